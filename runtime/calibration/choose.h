// The choices that follow from a record. Used where copies and algorithms are chosen, and by ouro-info.
#pragma once
#include <cstddef>
#include <optional>

#include "runtime/calibration/record.h"
#include "runtime/core/wait.h"

namespace ouro::rt {

/// For each size class, the kind with which writer and reader together take the least time. The built-in kind
/// is kept if figures are missing, or if another kind saves less than a fifth, which may be noise.
kernels::CopyKinds copy_kinds_by(const Calibration&);

/// How long waiters keep their core. If each rank has a core of its own, spinning takes it from nobody: they
/// spin four times as long as waking a sleeper takes, so that sleeping makes no wait longer by more than a
/// quarter, but at least the built-in time, and at most a millisecond. If ranks share cores, they poll as
/// often as fits into four hand-offs, within which a rank on another core has answered, or into a context
/// switch, if that is shorter. The built-in values are kept if figures are missing.
Patience patience_by(const Calibration&, bool own_cores);

/// The size in bytes of `caches` outermost caches. nullopt: it is not known.
std::optional<std::size_t> cached_bytes(const Calibration&, std::size_t caches);

/// Whether two cores that the system says share an outermost cache hand a line over as quickly as such cores
/// do. A hypervisor may report one cache for cores that have one each.
bool shares_caches(const Calibration&);

}  // namespace ouro::rt
