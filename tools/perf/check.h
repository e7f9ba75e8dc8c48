// One call with prepared inputs whose whole result is compared, bit for bit, with an oracle.
// Used by the measuring loop and by the tuner.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

#include "ouro/ouro.hpp"
#include "tools/perf/device.h"
#include "tools/perf/operation.h"

namespace ouro::perf {

inline constexpr std::size_t kGuard = 64;  ///< bytes after the buffer that nobody may write
inline constexpr int kGarbage = 0xff;      ///< what outputs hold before: NaN in every floating-point type

/// Fills this rank's input, performs the call and its end, and counts the elements on this rank that are not
/// what they must be: of the output, of inputs that were to stay as they were, of the guard. `region` is
/// where the receive buffer begins, with room for the guard. Collective: `seed` is the same on all ranks. The
/// buffers are where `mover` moves to; no `perform`: the call itself, without a stream.
Result<std::size_t> check_call(Group&, const Call&, OpKind, bool in_place, std::byte* region,
                               std::uint64_t seed, const std::function<Status()>& perform = {},
                               const Mover& mover = {});

}  // namespace ouro::perf
