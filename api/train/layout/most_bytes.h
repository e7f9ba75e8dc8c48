// The maximum length of a message. Used by mailboxes and the replay service.
#pragma once
#include <cstddef>
#include <limits>

namespace ouro::train {

/// No buffer can be longer: the difference of two of its addresses would overflow.
inline constexpr std::size_t kMostBytes =
    static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

}  // namespace ouro::train
