// Errors that several calls of the C++ interface share. Used by its operations and groups.
#pragma once
#include <string>
#include <string_view>

#include "runtime/group/batch.h"

namespace ouro {

inline Status empty_group() { return invalid("the group is an empty handle"); }

/// Returns `invalid` between group_start and group_end, for a call that cannot be deferred because it needs
/// its result before it returns.
inline Status not_in_batch(std::string_view call) {
  if (!rt::Batch::current()) return {};
  return invalid(std::string(call) + ": inside group_start, where nothing runs before group_end");
}

}  // namespace ouro
