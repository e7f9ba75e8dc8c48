// What calls of trainers refuse alike. Used by all of them.
#pragma once
#include <string>
#include <string_view>

#include "ouro/ouro.hpp"

namespace ouro::train {

/// `invalid` between group_start and group_end: a call that needs what it receives before it returns cannot
/// be deferred.
inline Status not_in_batch(std::string_view call) {
  if (!in_batch()) return {};
  return invalid(std::string(call) + ": inside group_start, where nothing runs before group_end");
}

}  // namespace ouro::train
