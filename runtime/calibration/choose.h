// What follows from a record. Used where copies and algorithms are chosen, and by ouro-info.
#pragma once
#include <cstddef>
#include <optional>

#include "runtime/calibration/record.h"
#include "runtime/core/wait.h"

namespace ouro::rt {

/// The kind of each size class that takes writer and reader together the least time. What is built in stays
/// where figures are missing, and where another kind saves less than a fifth: such a figure may be noise.
kernels::CopyKinds copy_kinds_by(const Calibration&);

/// How long waiters keep their core. Where each rank has one, that is taken from nobody: they spin four times
/// as long as it takes to wake a sleeper, so that sleep makes no wait longer by more than a quarter, but at
/// least as long as is built in, and at most a millisecond. Where ranks share cores they look as often as
/// fits into four hand-offs, by when a rank on another core has answered, or into a context switch, if that
/// is shorter. What is built in stays where figures are missing.
Patience patience_by(const Calibration&, bool own_cores);

/// Bytes that ranks may touch before they do not fit into the outermost caches any more: 3/4 of so many of
/// these. nullopt: their size is not known.
std::optional<std::size_t> cached_bytes(const Calibration&, std::size_t caches);

}  // namespace ouro::rt
