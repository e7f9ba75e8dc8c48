// NCCL's words for algorithms and protocols, in ouro's. Used by environment.cc.
#pragma once
#include <string>

#include "runtime/core/status.h"

namespace ouro::nccl {

/// What a value of NCCL_ALGO comes to: rows of OURO_SELECT, or "" where it leaves the choice to the table.
/// `declined`: what of it has no counterpart here. The form is [function:]a,b;function:^a. Words that nobody
/// knows are skipped. Errors: invalid (a list that leaves nothing, a function that does not exist).
struct Choice {
  std::string rows, declined;
};
Result<Choice> parse_algorithms(const std::string& value);

/// The same of NCCL_PROTO, of which nothing has a counterpart: whether it could be NCCL's.
Status check_protocols(const std::string& value);

}  // namespace ouro::nccl
