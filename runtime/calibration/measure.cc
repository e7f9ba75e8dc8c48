// Repeats all measurements in turn and keeps the least of each. See measure.h.
#include "runtime/calibration/measure.h"

#include <algorithm>

#include "runtime/calibration/choose.h"

namespace ouro::rt {
namespace {

using kernels::CopyKind, kernels::kCopyKinds, kernels::kCopySizes;

constexpr int kEnough = 9, kFewLarge = 4, kFewest = 3;  // tries per figure
constexpr int kHandoffs = 8, kWakes = 5, kPauses = 64;

/// The least of the tries so far, and the number of tries.
struct Least {
  std::uint32_t value = 0;
  int tries = 0;
  void add(std::uint32_t v) { value = tries++ == 0 ? v : std::min(value, v); }
  std::uint32_t known() const { return tries >= kFewest ? value : 0; }
};

/// `value`, scaled by the ratio of `after` to `before`; unchanged if one of those is not known.
std::uint32_t scaled(std::uint32_t value, std::uint32_t before, std::uint32_t after) {
  if (before == 0 || after == 0) return value;
  constexpr std::uint64_t kMost = ~std::uint32_t{0};
  return static_cast<std::uint32_t>(std::min(kMost, std::uint64_t{value} * after / before));
}

/// The record if these are the only, and so the farthest, cores.
Calibration of_one_pair(const PairCosts& p) {
  Calibration c{};
  c.pairs = 1, c.pair[0] = p;
  return c;
}

}  // namespace

std::uint32_t measure_handoff(Probe& probe, const TimeOf& now, Clock::time_point end) {
  Least least;
  for (int i = 0; i < kHandoffs && now() < end; ++i)
    if (const auto took = probe.handoff()) least.add(*took);
  return least.known();
}

std::uint32_t measure_context_switch(Probe& probe, const TimeOf& now, Clock::time_point end) {
  Least least;
  for (int i = 0; i < kFewest && now() < end; ++i)
    if (const auto took = probe.context_switch()) least.add(*took);
  return least.known();
}

std::uint32_t measure_wake(Probe& probe, const TimeOf& now, Clock::time_point end) {
  Least least;
  for (int i = 0; i < kWakes && now() < end; ++i)
    if (const auto took = probe.wake()) least.add(*took);
  return least.known();
}

std::uint32_t measure_pause(const TimeOf& now) {
  Least least;
  for (int turn = 0; turn < kFewest; ++turn) {
    const auto begin = now();
    for (int i = 0; i < kPauses; ++i) relax();
    const auto took = std::chrono::nanoseconds(now() - begin).count();
    least.add(
        static_cast<std::uint32_t>(std::clamp<std::int64_t>((took + kPauses - 1) / kPauses, 0, 1 << 20)));
  }
  return least.known();
}

PairCosts measure(Probe& probe, const TimeOf& now, Clock::time_point end, bool farthest) {
  PairCosts out{};
  out.handoff = measure_handoff(probe, now, end);
  if (out.handoff == 0) return out;
  struct Both {
    Least write, read;
    void add(const std::optional<CopyCost>& took) {
      if (took) write.add(took->write), read.add(took->read);
    }
    CopyCost known() const { return {write.known(), read.known()}; }
  };
  struct Size {
    Both copies[kCopyKinds];
    Least pull, pull_huge;
  } sizes[kCopySizes.size()];
  struct Access {
    Least after, alone;
    void add(const AccessCost& took) { after.add(took.after), alone.add(took.alone); }
    AccessCost known() const { return {after.known(), alone.known()}; }
  } stores[kAccessSizes.size()], loads[kAccessSizes.size()];
  Both together, together_slots, ring, large;
  Least large_local, pull_together;
  const auto known = [&] {
    PairCosts p = out;
    for (std::size_t s = 0; s < kCopySizes.size(); ++s) {
      for (std::size_t k = 0; k < kCopyKinds; ++k) p.copies[s][k] = sizes[s].copies[k].known();
      p.pull[s] = sizes[s].pull.known();
      p.pull_huge[s] = sizes[s].pull_huge.known();
    }
    p.large = large.known(), p.ring = ring.known();
    p.together = together.known(), p.together_slots = together_slots.known();
    p.pull_together = pull_together.known();
    p.large_local = large_local.known();
    for (std::size_t s = 0; s < kAccessSizes.size(); ++s)
      p.stores[s] = stores[s].known(), p.loads[s] = loads[s].known();
    return p;
  };
  constexpr std::size_t kPiece = kernels::copy_size_class(kLargePiece);
  for (int turn = 0; !farthest && turn < kFewest; ++turn)
    for (std::size_t s = 0; s < kCopySizes.size() && now() < end; ++s) {
      const CopyKind kind = kernels::kDefaultCopyKinds[s];
      (void)probe.copy(kind, kCopySizes[s]);
      sizes[s].copies[static_cast<std::size_t>(kind)].add(probe.copy(kind, kCopySizes[s]));
    }
  for (int turn = 0; farthest && turn < kEnough && now() < end; ++turn) {
    // Large copies take most of the time, and vary less.
    for (std::size_t s = 0; s < (turn < kFewLarge ? kCopySizes.size() : kPiece + 1); ++s) {
      // The other core reads the lines first, so that they are in its cache for each kind, including
      // the first one.
      if (now() < end) (void)probe.copy(CopyKind::rep, kCopySizes[s]);
      for (std::size_t k = 0; k < kCopyKinds && now() < end; ++k)
        sizes[s].copies[k].add(probe.copy(static_cast<CopyKind>(k), kCopySizes[s]));
      if (now() >= end) break;
      if (const auto took = probe.pull(kCopySizes[s], false)) sizes[s].pull.add(*took);
      if (const auto took = probe.pull(kCopySizes[s], true)) sizes[s].pull_huge.add(*took);
    }
    if (turn < kFewest || now() >= end) continue;
    // Copies use the kinds that will be in force, as far as they are known by now.
    const Calibration so_far = of_one_pair(known());
    together.add(probe.together(kernels::kDefaultCopyKinds[kPiece]));
    if (const CopyKind kind = slot_kinds_by(so_far)[kPiece]; kind != kernels::kDefaultCopyKinds[kPiece])
      together_slots.add(probe.together(kind));
    if (const auto took = probe.pull_together()) pull_together.add(*took);
    for (std::size_t s = 0; s < kAccessSizes.size() && now() < end; ++s)
      if (const auto took = probe.accesses(kAccessSizes[s]))
        stores[s].add(took->stores), loads[s].add(took->loads);
    if (turn < 2 * kFewest) {
      if (now() < end) ring.add(probe.ring(kernels::kDefaultCopyKinds[kPiece]));
      continue;
    }
    if (now() < end) large.add(probe.large(large_kinds_by(so_far)[kPiece]));
    if (now() < end)
      if (const auto took = probe.large_local()) large_local.add(*took);
  }
  return known();
}

bool same_mode(std::uint32_t recorded, std::uint32_t now) { return now < 2 * recorded && recorded < 2 * now; }

bool moved(const Calibration& record, const PairCosts& now) {
  const auto off = [](std::uint32_t was, std::uint32_t is) { return was && is && !same_mode(was, is); };
  const PairCosts& then = record.farthest();
  if (off(then.handoff, now.handoff)) return true;
  const kernels::CopyKinds kinds = slot_kinds_by(record);
  for (std::size_t s = 0; s < kCopySizes.size(); ++s) {
    const auto k = static_cast<std::size_t>(kinds[s]);
    if (now.copies[s][k].known() && off(then.copies[s][k].both(), now.copies[s][k].both())) return true;
  }
  return false;
}

Calibration revised(const Calibration& record, const PairCosts& now) {
  Calibration out = record;
  PairCosts& p = out.pair[out.pairs - 1];
  const PairCosts& was = record.farthest();
  if (now.handoff) p.handoff = now.handoff;
  // Sizes are in ascending order: a figure that was not measured changes by the same ratio as that of the
  // size before it.
  const auto renew = [](std::uint32_t* value, std::uint32_t is, const std::uint32_t* before,
                        const std::uint32_t* after) {
    if (is != 0)
      *value = is;
    else if (before)
      *value = scaled(*value, *before, *after);
  };
  for (std::size_t s = 0; s < kCopySizes.size(); ++s) {
    const std::size_t t = s > 0 ? s - 1 : 0;
    const bool smaller = s > 0;
    for (std::size_t k = 0; k < kCopyKinds; ++k) {
      renew(&p.copies[s][k].write, now.copies[s][k].write, smaller ? &was.copies[t][k].write : nullptr,
            &p.copies[t][k].write);
      renew(&p.copies[s][k].read, now.copies[s][k].read, smaller ? &was.copies[t][k].read : nullptr,
            &p.copies[t][k].read);
    }
    if (kCopySizes[s] == kLargePiece) {
      const auto renew_copy = [&](CopyCost* value, const CopyCost& is, CopyKind kind) {
        const auto k = static_cast<std::size_t>(kind);
        renew(&value->write, is.write, &was.copies[s][k].write, &p.copies[s][k].write);
        renew(&value->read, is.read, &was.copies[s][k].read, &p.copies[s][k].read);
      };
      const Calibration then = of_one_pair(was);
      renew_copy(&p.together, now.together, kernels::kDefaultCopyKinds[s]);
      renew_copy(&p.together_slots, now.together_slots, slot_kinds_by(then)[s]);
      renew_copy(&p.ring, now.ring, kernels::kDefaultCopyKinds[s]);
      renew_copy(&p.large, now.large, large_kinds_by(then)[s]);
    }
    renew(&p.pull[s], now.pull[s], smaller ? &was.pull[t] : nullptr, &p.pull[t]);
    renew(&p.pull_huge[s], now.pull_huge[s], smaller ? &was.pull_huge[t] : nullptr, &p.pull_huge[t]);
    if (kCopySizes[s] == kLargePiece)
      renew(&p.pull_together, now.pull_together, &was.pull_huge[s], &p.pull_huge[s]);
  }
  if (now.large_local) p.large_local = now.large_local;
  // An access to a line that the other core has touched waits for that core, as a hand-off does.
  const auto renew_access = [&](AccessCost* value, const AccessCost& is) {
    renew(&value->after, is.after, &was.handoff, &p.handoff);
    if (is.alone) value->alone = is.alone;
  };
  for (std::size_t s = 0; s < kAccessSizes.size(); ++s)
    renew_access(&p.stores[s], now.stores[s]), renew_access(&p.loads[s], now.loads[s]);
  return out;
}

}  // namespace ouro::rt
