// Tries in turn, least of each. See measure.h.
#include "runtime/calibration/measure.h"

#include <algorithm>

namespace ouro::rt {
namespace {

using kernels::CopyKind, kernels::kCopyKinds, kernels::kCopySizes;

constexpr int kEnough = 9, kFewest = 3;  // tries of a figure
constexpr int kHandoffs = 8;

/// The least of the tries so far, and how many they were.
struct Least {
  std::uint32_t value = 0;
  int tries = 0;
  void add(std::uint32_t v) { value = tries++ == 0 ? v : std::min(value, v); }
  std::uint32_t known() const { return tries >= kFewest ? value : 0; }
};

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

PairCosts measure(Probe& probe, const TimeOf& now, Clock::time_point end) {
  PairCosts out{};
  out.handoff = measure_handoff(probe, now, end);
  if (out.handoff == 0) return out;
  struct Size {
    Least write[kCopyKinds], read[kCopyKinds], pull, pull_huge;
  } sizes[kCopySizes.size()];
  for (int turn = 0; turn < kEnough; ++turn)
    for (std::size_t s = 0; s < kCopySizes.size(); ++s) {
      for (std::size_t k = 0; k < kCopyKinds && now() < end; ++k)
        if (const auto took = probe.copy(static_cast<CopyKind>(k), kCopySizes[s]))
          sizes[s].write[k].add(took->write), sizes[s].read[k].add(took->read);
      if (now() >= end) break;
      if (const auto took = probe.pull(kCopySizes[s], false)) sizes[s].pull.add(*took);
      if (const auto took = probe.pull(kCopySizes[s], true)) sizes[s].pull_huge.add(*took);
    }
  for (std::size_t s = 0; s < kCopySizes.size(); ++s) {
    for (std::size_t k = 0; k < kCopyKinds; ++k)
      out.copies[s][k] = {sizes[s].write[k].known(), sizes[s].read[k].known()};
    out.pull[s] = sizes[s].pull.known();
    out.pull_huge[s] = sizes[s].pull_huge.known();
  }
  return out;
}

bool same_mode(std::uint32_t recorded, std::uint32_t now) { return now < 2 * recorded && recorded < 2 * now; }

}  // namespace ouro::rt
