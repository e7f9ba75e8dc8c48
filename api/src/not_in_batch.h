// Calls that need what they receive before they return cannot be deferred. Used by those of the C++ interface
// and of the trainers.
#pragma once
#include <string>
#include <string_view>

#include "runtime/batch.h"

namespace ouro {

/// `invalid` between group_start and group_end.
inline Status not_in_batch(std::string_view call) {
  if (!rt::Batch::current()) return {};
  return invalid(std::string(call) + ": inside group_start, where nothing runs before group_end");
}

}  // namespace ouro
