// An error that all trainer calls share. Used by all of them.
#pragma once
#include <string>
#include <string_view>

#include "ouro/ouro.hpp"

namespace ouro::train {

/// Returns `invalid` between group_start and group_end, for a call that cannot be deferred because it needs
/// its result before it returns.
inline Status not_in_batch(std::string_view call) {
  if (!in_batch()) return {};
  return invalid(std::string(call) + ": inside group_start, where nothing runs before group_end");
}

}  // namespace ouro::train
