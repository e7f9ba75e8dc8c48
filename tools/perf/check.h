// Makes one call with prepared inputs and compares its whole result, bit for bit, with an oracle. Used by the
// measuring loop and by the tuner.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

#include "ouro/ouro.hpp"
#include "tools/perf/device.h"
#include "tools/perf/operation.h"

namespace ouro::perf {

inline constexpr std::size_t kGuard = 64;  ///< bytes after the buffer that must not be written
inline constexpr int kGarbage = 0xff;      ///< previous contents of outputs: NaN in every floating-point type

/// Fills this rank's input, performs the call, waits for it, and counts the elements on this rank that have a
/// wrong value: in the output, in inputs that must not change, and in the guard. `region` is where the
/// receive buffer begins, with room for the guard. Collective: `seed` must be the same on all ranks.
/// The buffers are in the memory that `mover` copies to. Without `perform`, the call itself is made,
/// without a stream.
Result<std::size_t> check_call(Group&, const Call&, OpKind, bool in_place, std::byte* region,
                               std::uint64_t seed, const std::function<Status()>& perform = {},
                               const Mover& mover = {});

}  // namespace ouro::perf
