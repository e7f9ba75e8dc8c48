// The choices that follow from a record. Used where copies and algorithms are chosen, and by ouro-info.
#pragma once
#include <cstddef>
#include <optional>

#include "runtime/calibration/record.h"
#include "runtime/core/wait.h"

namespace ouro::rt {

/// The cost of a copy of kCopySizes[size]. Copies larger than kLargePiece write to memory that is in no
/// nearer cache any more, so for the built-in kind they cost as much as so many pieces in a ring, if
/// that is less.
CopyCost cost_of(const PairCosts&, kernels::CopyKind, std::size_t size);
/// For each size class, the kind with which writer and reader of a staging slot together take the least time.
/// The built-in kind is kept if figures are missing, or if another kind saves less than a fifth, which
/// may be noise.
kernels::CopyKinds slot_kinds_by(const Calibration&);
/// Whether a post in a ring, by the built-in kind, takes no more time than one in a slot by the kind for
/// slots while the other core copies, too. False if the figures are not known.
bool ring_pays(const Calibration&);
/// The kinds for posts of large buffers, which displace the lines of slots as a ring does by itself: the
/// built-in ones where a ring pays, else those for slots.
kernels::CopyKinds large_kinds_by(const Calibration&);
/// As for slots, but for the buffers of other ranks, where another kind has to save half: the owner of a
/// buffer reads data that bypassed the caches from memory, which is slower than a copy.
kernels::CopyKinds buffer_kinds_by(const Calibration&);
/// Has this process copy by these kinds from now on.
void use_copy_kinds(const Calibration&);

/// How long waiters keep their core. If each rank has a core of its own, spinning takes it from no other
/// thread: they spin 16 times as long as waking a sleeper takes, so that sleeping makes no wait longer by
/// more than a sixteenth, but at least the built-in time, and at most a millisecond. If ranks share cores,
/// they poll as often as fits into four hand-offs, within which a rank on another core has answered, or into
/// a context switch, if that is shorter. The built-in values are kept if figures are missing.
Patience patience_by(const Calibration&, bool own_cores);

/// The share of an outermost cache, whose size the system reports, that a host with so many hardware threads
/// can use: a hypervisor reports the whole cache of a mesh of some 60 cores to a machine that has two of
/// them. Up to 32 MiB a cache belongs to a few cores, and all of it counts. The share was measured on two
/// cores of Emerald Rapids (bench/results/measured.md).
std::size_t share_of_cache(std::size_t reported, std::size_t processors);
/// The size in bytes of `caches` outermost caches of a host with so many hardware threads. nullopt: it
/// is not known.
std::optional<std::size_t> cached_bytes(const Calibration&, std::size_t caches, std::size_t processors);

/// Whether two cores that the system says share an outermost cache hand a line over as quickly as such cores
/// do. A hypervisor may report one cache for cores that have one each. Within the large cache of a mesh a
/// hand-off takes as long as between two caches.
bool shares_caches(const Calibration&);

}  // namespace ouro::rt
