// The record of a host: the figures of its processors by which copies and algorithms are chosen. Plain data,
// so that it fits on a control page. Used by the code that measures, stores, shows or uses it.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "kernels/host/copy.h"
#include "runtime/core/status.h"

namespace ouro::rt {

// These structs have no initialisers, so that a page of zeros holds them: create them with {}.

/// One core writes a block that another has read before, then the other copies it: nanoseconds of each.
/// 0: not known.
struct CopyCost {
  std::uint32_t write, read;
  bool known() const { return write != 0 && read != 0; }
  std::uint32_t both() const { return write + read; }
  friend bool operator==(const CopyCost&, const CopyCost&) = default;
};

/// Ordinary loads from a piece of private memory, or stores to it, each core to its own and both at once:
/// nanoseconds if the other core has just stored (before loads) or read (before stores) the piece, and if
/// nobody else has. 0: not known.
struct AccessCost {
  std::uint32_t after, alone;
  bool known() const { return after != 0 && alone != 0; }
  friend bool operator==(const AccessCost&, const AccessCost&) = default;
};
/// The sizes of those pieces: some lines, most of a core's first cache, and more than that.
inline constexpr std::array<std::size_t, 3> kAccessSizes = {std::size_t{4} << 10, std::size_t{32} << 10,
                                                            std::size_t{128} << 10};

/// The innermost unit that two cores share, as the system reports it; under a hypervisor this may be wrong.
enum class Distance : std::uint32_t { cache, node, machine };  ///< outermost cache, NUMA node, neither
inline constexpr int kDistances = 3;
const char* name(Distance);

/// A size that does not fit into the nearer caches, and the size of the pieces in which it is copied through
/// a shared block.
inline constexpr std::size_t kLargeBytes = std::size_t{4} << 20, kLargePiece = std::size_t{64} << 10;
/// A staging slot of two ranks.
inline constexpr std::size_t kSlotOfTwo = std::size_t{128} << 10;
/// The size of a ring in which each piece has been evicted from the nearer caches before its place is
/// used again.
inline constexpr std::size_t kRingBytes = std::size_t{2} << 20;

/// Two cores of a host. Times in nanoseconds; 0: not known.
struct PairCosts {
  Distance distance;
  std::int32_t cpus[2];   ///< the hardware threads; if both are the same: not known
  std::uint32_t handoff;  ///< one way, of a word that a core waits for and of a line that it announces
  CopyCost copies[kernels::kCopySizes.size()][kernels::kCopyKinds];
  /// kLargePiece as above by the built-in kind, each time to the next place of a ring of kRingBytes.
  CopyCost ring;
  /// kLargePiece as above, but each core for the other and both at once: by the built-in kind, and by the
  /// kind for staging slots, if that is another.
  CopyCost together, together_slots;
  /// kLargeBytes by the kind for large buffers, each core for the other and both at once, from private memory
  /// through four slots of kSlotOfTwo into private memory.
  CopyCost large;
  /// kLargeBytes from private memory into private memory of the same core, piece by piece, both
  /// cores at once.
  std::uint32_t large_local;
  std::uint32_t pull[kernels::kCopySizes.size()];       ///< one copy out of a process, on small pages
  std::uint32_t pull_huge[kernels::kCopySizes.size()];  ///< the same on huge pages, if available
  /// kLargePiece on huge pages, if available, each core out of the other's memory, both at once.
  std::uint32_t pull_together;
  /// For kAccessSizes: the time that an application loses on memory that peers read or write in place.
  AccessCost stores[kAccessSizes.size()], loads[kAccessSizes.size()];
  friend bool operator==(const PairCosts&, const PairCosts&) = default;
};

/// The record of a host. Trivially copyable; all bytes zero: no record.
struct Calibration {
  std::uint32_t pairs;  ///< number of valid entries of `pair`, nearest first
  PairCosts pair[kDistances];
  std::uint32_t
      context_switch;  ///< between two threads of one core by sched_yield, in nanoseconds; 0: not known
  std::uint32_t
      wake;  ///< time to wake a thread that sleeps on another core, until it answers, in nanoseconds
  std::uint32_t pause;      ///< time of one relax(), in nanoseconds
  std::uint32_t cache_kib;  ///< size of one outermost cache, as the system reports it
  std::uint32_t caches;     ///< number of those caches
  bool known() const { return pairs != 0; }
  /// Whether the farthest pair has every copy, and the others those of the built-in kinds. Other figures may
  /// be missing: some systems forbid pulls, or do not report caches.
  bool complete() const;
  /// Whether the record has all figures that an undisturbed measurement yields: those of the farthest cores
  /// besides copies, and the times of a switch and a wake-up. Records without them are used, but not stored.
  bool undisturbed() const;
  /// The cores farthest from each other, which apply to ranks that may be on any cores.
  /// Precondition: known().
  const PairCosts& farthest() const { return pair[pairs - 1]; }
  /// Digest of the figures and distances, without the hardware threads; 0 if there is no record.
  std::uint64_t digest() const;
  friend bool operator==(const Calibration&, const Calibration&) = default;
};

/// Replaces impossible figures (from an interrupted measurement or a damaged file) by "not known", and drops
/// pairs without a hand-off, or not beyond the pair before.
Calibration without_absurd(const Calibration&);

/// {"ouro_calibration": 1, "key", "pairs": [{"distance", "cpus": [a, b], "handoff_ns", "copies":
/// [{"bytes", "plain": [write, read], "rep", "stream", "prefetch", "pull", "pull_huge"}], "large": [write,
/// read], "large_local", "together": [write, read], "together_slots": [write, read], "ring": [write, read],
/// "pull_together", "accesses": [{"bytes", "stores": [after, alone], "loads": [after, alone]}]}],
/// "context_switch_ns", "wake_ns", "pause_ns", "cache_kib", "caches"}, times in nanoseconds; unknown figures
/// are omitted. `key` identifies the machine and system.
std::string to_json(const Calibration&, const std::string& key);
/// Error: invalid, with the position, if the text is not such a record. `*key`, if given, is set.
Result<Calibration> parse_calibration(const std::string& text, std::string* key = nullptr);
/// Errors: those of parse_calibration, and invalid for a file that cannot be read or is longer than 1 MiB.
Result<Calibration> load_calibration(const std::string& file, std::string* key = nullptr);

}  // namespace ouro::rt
