// What a host's processors do: the figures that copies and algorithms are chosen by. Plain data, so that it
// fits on a control page. Used by whoever measures, keeps, shows or chooses by it.
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "kernels/host/copy.h"
#include "runtime/core/status.h"

namespace ouro::rt {

// These have no initialisers, so that a page of zeros holds them: make them with {}.

/// One core writes a block that another has read before, then the other copies it: nanoseconds of each. 0:
/// not known.
struct CopyCost {
  std::uint32_t write, read;
  bool known() const { return write != 0 && read != 0; }
  std::uint32_t both() const { return write + read; }
  friend bool operator==(const CopyCost&, const CopyCost&) = default;
};

/// What two cores have in common, as the system says; a hypervisor may know better.
enum class Distance : std::uint32_t { cache, node, machine };  ///< outermost cache, NUMA node, neither
inline constexpr int kDistances = 3;
const char* name(Distance);

/// What does not fit into the nearer caches, and the piece by which it goes through a shared block.
inline constexpr std::size_t kLargeBytes = std::size_t{4} << 20, kLargePiece = std::size_t{64} << 10;

/// Two cores of a host. Times in nanoseconds; 0: not known.
struct PairCosts {
  Distance distance;
  std::int32_t cpus[2];   ///< the hardware threads; the same twice: not known
  std::uint32_t handoff;  ///< of one line, one way
  CopyCost copies[kernels::kCopySizes.size()][kernels::kCopyKinds];
  /// kLargePiece by the kind in force, as above, but each core for the other and both at once.
  CopyCost together;
  /// kLargeBytes likewise, from private memory through a block of kLargePiece into private memory.
  CopyCost large;
  std::uint32_t pull[kernels::kCopySizes.size()];       ///< one copy out of a process, on small pages
  std::uint32_t pull_huge[kernels::kCopySizes.size()];  ///< the same on huge ones, if there were any
  std::uint32_t pull_together;  ///< kLargePiece on small pages, each core out of the other's, both at once
  friend bool operator==(const PairCosts&, const PairCosts&) = default;
};

/// A machine's record. Trivially copyable; all bytes zero: there is none.
struct Calibration {
  std::uint32_t pairs;  ///< how many of `pair` there are, nearest first
  PairCosts pair[kDistances];
  std::uint32_t context_switch;  ///< of two threads of one core by sched_yield, in nanoseconds; 0: not known
  std::uint32_t wake;       ///< of a thread that sleeps on another core, until it answers, in nanoseconds
  std::uint32_t pause;      ///< of one relax(), in nanoseconds
  std::uint32_t cache_kib;  ///< of one outermost cache, as the system says
  std::uint32_t caches;     ///< how many of those there are
  std::uint32_t native;     ///< 1: of a processor such as the built-in table of algorithms was measured on
  bool known() const { return pairs != 0; }
  /// Every pair has every copy. The rest may be missing: systems forbid pulls, and say nothing of caches.
  bool complete() const;
  /// The cores farthest from each other: what ranks that may be anywhere reckon with. Only if known().
  const PairCosts& farthest() const { return pair[pairs - 1]; }
  /// Of the figures and distances; 0 where there is none.
  std::uint64_t digest() const;
  friend bool operator==(const Calibration&, const Calibration&) = default;
};

/// Figures that no processor can have (an interrupted measurement, a damaged file) become "not known"; a pair
/// without a hand-off goes.
Calibration without_absurd(const Calibration&);

/// {"ouro_calibration": 1, "key", "pairs": [{"distance", "cpus": [a, b], "handoff_ns", "copies": [{"bytes",
/// "plain": [write, read], "rep", "stream", "prefetch", "pull", "pull_huge"}], "large": [write, read],
/// "together": [write, read], "pull_together"}],
/// "context_switch_ns", "wake_ns", "pause_ns", "cache_kib", "caches", "native"}, times in nanoseconds; what
/// is not known is left out. `key`: of which machine and system.
std::string to_json(const Calibration&, const std::string& key);
/// Errors: invalid, with the place, of what is not such a record. `*key`, if given, is filled in.
Result<Calibration> parse_calibration(const std::string& text, std::string* key = nullptr);
/// Errors: those of parse_calibration, and a file that cannot be read or is longer than 1 MiB.
Result<Calibration> load_calibration(const std::string& file, std::string* key = nullptr);

}  // namespace ouro::rt
