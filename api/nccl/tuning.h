// Translates NCCL's names of algorithms and protocols to ouro's. Used by environment.cc.
#pragma once
#include <string>

#include "runtime/core/status.h"

namespace ouro::nccl {

/// The translation of a value of NCCL_ALGO: rows of OURO_SELECT, or "" if it leaves the choice to the table.
/// `declined`: the functions for which the value has no counterpart here. The form is
/// [function:]a,b;function:^a. Unknown words are skipped. Errors: invalid (a list that leaves nothing, an
/// unknown function).
struct Choice {
  std::string rows, declined;
};
Result<Choice> parse_algorithms(const std::string& value);

/// Checks a value of NCCL_PROTO, which has no counterpart here: whether NCCL would accept it.
/// Errors as above.
Status check_protocols(const std::string& value);

}  // namespace ouro::nccl
