// The configuration of a communicator: the fields of ncclConfig_t that have an effect here. Used by
// everything that makes communicators.
#pragma once
#include <string>

#include "api/nccl/exports.h"

namespace ouro::nccl {

/// A configuration in which undefined fields have received their values.
struct Config {
  bool blocking = true;
  std::string name;  ///< "" if the user set none
  int max_ctas =
      0;  ///< 0: no limit. Counts where a job begins; communicators derived from it share its limit
};

/// Reads a configuration of any version of the interface: `size` determines which fields are present,
/// `version` which of them count. nullptr yields `fallback`. Errors, reported under the name `function`:
/// ncclInvalidArgument (size, magic, a value out of its range).
ncclResult_t parse(const char* function, const ncclConfig_t* from, const Config& fallback, Config* out);

/// The initial value of every configuration: the defaults, modified by NCCL_COMM_BLOCKING.
Config default_config();

}  // namespace ouro::nccl
