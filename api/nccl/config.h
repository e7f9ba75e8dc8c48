// What a communicator is made with: the fields of ncclConfig_t that mean something here. Used by all that
// makes communicators.
#pragma once
#include <string>

#include "api/nccl/exports.h"

namespace ouro::nccl {

/// A configuration whose undefined fields have got their values.
struct Config {
  bool blocking = true;
  std::string name;  ///< "" if the user gave none
};

/// Reads a configuration of any version of the interface: by its `size` what is there, by its `version` what
/// counts. nullptr gives `fallback`. What is wrong is told as `function`'s error. Errors: ncclInvalidArgument
/// (size, magic, a value out of its range).
ncclResult_t parse(const char* function, const ncclConfig_t* from, const Config& fallback, Config* out);

/// What every configuration starts from: the defaults, after NCCL_COMM_BLOCKING.
Config default_config();

}  // namespace ouro::nccl
