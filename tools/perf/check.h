// One call with prepared inputs whose whole result is compared, bit for bit, with an oracle.
// Used by the measuring loop and by the tuner.
#pragma once
#include <cstddef>
#include <cstdint>

#include "ouro/ouro.hpp"
#include "tools/perf/operation.h"

namespace ouro::perf {

inline constexpr std::size_t kGuard = 64;  ///< bytes after the buffer that nobody may write

/// Fills this rank's input, calls, waits, and counts the elements on this rank that are not what they must
/// be: of the output, of inputs that were to stay as they were, of the guard. `region` is where the receive
/// buffer begins, with room for the guard. Collective: `seed` is the same on all ranks.
Result<std::size_t> check_call(Group&, const Call&, OpKind, bool in_place, std::byte* region,
                               std::uint64_t seed, const Stream& = {});

}  // namespace ouro::perf
