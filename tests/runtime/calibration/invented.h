// Records of machines that do not exist. Used by the tests of calibration.
#pragma once
#include "runtime/calibration/record.h"

namespace ouro::rt {

/// Stores to what a peer has read, or loads of what it has stored: so many nanoseconds a byte, and one else.
inline void set_accesses(AccessCost (&costs)[kAccessSizes.size()], std::uint32_t after) {
  for (std::size_t s = 0; s < kAccessSizes.size(); ++s) {
    const auto bytes = static_cast<std::uint32_t>(kAccessSizes[s]);
    costs[s] = {after * bytes, bytes};
  }
}

/// Two cores that share a cache and two that share a node, with every figure set, all of them different.
inline Calibration invented_record() {
  Calibration c{};
  c.pairs = 2, c.context_switch = 1200, c.wake = 15'000, c.pause = 20, c.cache_kib = 32 << 10, c.caches = 2;
  for (std::uint32_t i = 0; i < c.pairs; ++i) {
    PairCosts& p = c.pair[i];
    p.distance = i == 0 ? Distance::cache : Distance::node;
    p.cpus[0] = 0, p.cpus[1] = static_cast<std::int32_t>(i + 1);
    p.handoff = 50 + 150 * i;
    for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s) {
      const auto base = static_cast<std::uint32_t>(kernels::kCopySizes[s] / 10 * (i + 1));
      for (std::uint32_t k = 0; k < kernels::kCopyKinds; ++k) p.copies[s][k] = {base + k, base + 10 + k};
      p.pull[s] = base + 1000, p.pull_huge[s] = base + 500;
    }
    p.large = {800'000 * (i + 1), 900'000 * (i + 1)};
    p.together = {9'000 * (i + 1), 9'500 * (i + 1)}, p.pull_together = 11'000 * (i + 1);
    p.together_slots = {8'000 * (i + 1), 8'500 * (i + 1)}, p.ring = {7'000 * (i + 1), 7'500 * (i + 1)};
    for (std::uint32_t s = 0; s < kAccessSizes.size(); ++s) {
      const auto lines = static_cast<std::uint32_t>(kAccessSizes[s] / 64);
      p.stores[s] = {4 * lines * (i + 1), 2 * lines}, p.loads[s] = {5 * lines * (i + 1), 3 * lines};
    }
    p.large_local = 700'000;
  }
  return c;
}

/// Two distant cores of a Zen 3: `rep movsb` into lines that the other core has read is four times slower
/// than non-temporal stores, and one copy out of a process is faster than both.
inline Calibration far_zen3() {
  using kernels::CopyKind;
  Calibration c{};
  c.pairs = 1, c.pair[0].distance = Distance::cache, c.pair[0].handoff = 190;
  constexpr std::uint32_t kRep[] = {700, 10'900, 43'000, 190'000}, kStream[] = {800, 2'700, 12'000, 48'000},
                          kPull[] = {1'300, 5'500, 15'000, 57'000};
  for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s) {
    const auto read = static_cast<std::uint32_t>(kernels::kCopySizes[s] / 13);
    for (CopyCost& cost : c.pair[0].copies[s]) cost = {kRep[s] + kRep[s] / 2, read};
    c.pair[0].copies[s][static_cast<std::size_t>(CopyKind::rep)] = {kRep[s], read};
    c.pair[0].copies[s][static_cast<std::size_t>(CopyKind::stream)] = {kStream[s], read};
    c.pair[0].pull[s] = c.pair[0].pull_huge[s] = kPull[s];
  }
  return c;
}

/// A byte takes a nanosecond to write and two to read, whatever the kind of copy.
inline Calibration simple() {
  Calibration c{};
  c.pairs = 1, c.pair[0].handoff = 100;
  for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s) {
    const auto bytes = static_cast<std::uint32_t>(kernels::kCopySizes[s]);
    for (CopyCost& cost : c.pair[0].copies[s]) cost = {bytes, 2 * bytes};
    c.pair[0].pull[s] = 10'000 + 2 * bytes, c.pair[0].pull_huge[s] = 5'000 + bytes;
  }
  return c;
}

/// The same, with stores that take eight times as long after a peer's read: zero copy pays off in place
/// alone.
inline Calibration dear_stores() {
  Calibration c = simple();
  set_accesses(c.pair[0].stores, 8);
  return c;
}

/// Faster than any processor, so every measurement misses the prediction. Pulling seems cheapest.
inline Calibration too_fast() {
  Calibration c{};
  c.pairs = 1, c.pair[0].handoff = 5;
  for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s) {
    const auto bytes = static_cast<std::uint32_t>(kernels::kCopySizes[s]);
    for (CopyCost& cost : c.pair[0].copies[s]) cost = {bytes / 500, bytes / 500};
    c.pair[0].pull[s] = c.pair[0].pull_huge[s] = bytes / 1000 + 1;
  }
  return c;
}

/// Figures of two near cores, for which pulling does not pay.
inline PairCosts as_near_cores() {
  PairCosts p = too_fast().pair[0];
  p.handoff = 60;
  for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s) {
    for (CopyCost& cost : p.copies[s]) cost.write *= 8, cost.read *= 8;
    p.pull[s] = p.pull_huge[s] = 1000 + p.pull[s] * 100;
  }
  return p;
}

}  // namespace ouro::rt
