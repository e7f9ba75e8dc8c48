// Selection as data: which algorithm serves a call, and why. Used by group (each call) and explain.
#pragma once
#include <string>

#include "runtime/flow/list.h"
#include "runtime/operation.h"

namespace ouro::rt {

struct Choice {
  flow::Algorithm algorithm{};
  /// Ask first whether all buffers are registered, and if so run the in-place twin.
  bool try_in_place = false;
  bool forced = false;
  std::string why;  ///< filled in for explain only
};

/// `job_default`: OURO_ALGO, used where it can serve. Errors: invalid, when the caller forced an algorithm
/// that does not exist for this collective or breaks its contract; the text lists those that do.
Result<Choice> select(const Operation&, int rank, int size, bool canonical, const std::string& job_default,
                      bool explain = false);

}  // namespace ouro::rt
