// Choices based on figures. See choose.h.
#include "runtime/calibration/choose.h"

#include <algorithm>
#include <chrono>

namespace ouro::rt {

using kernels::CopyKind, kernels::kCopyKinds, kernels::kCopySizes;

CopyCost cost_of(const PairCosts& p, CopyKind kind, std::size_t s) {
  const CopyCost& in_cache = p.copies[s][static_cast<std::size_t>(kind)];
  if (kCopySizes[s] <= kLargePiece || kind != kernels::kDefaultCopyKinds[s] || !p.ring.known())
    return in_cache;
  const auto pieces = static_cast<std::uint32_t>(kCopySizes[s] / kLargePiece);
  const CopyCost elsewhere = {p.ring.write * pieces, p.ring.read * pieces};
  return in_cache.known() && in_cache.both() < elsewhere.both() ? in_cache : elsewhere;
}

namespace {
/// The kinds of which each saves at least one part in `parts` of the built-in kind's time.
kernels::CopyKinds kinds_that_save(const Calibration& c, std::uint32_t parts) {
  kernels::CopyKinds kinds = kernels::kDefaultCopyKinds;
  if (!c.known()) return kinds;
  for (std::size_t s = 0; s < kCopySizes.size(); ++s) {
    const auto& costs = c.farthest().copies[s];
    const CopyCost built_in = cost_of(c.farthest(), kinds[s], s);
    if (!built_in.known()) continue;
    std::uint32_t least = built_in.both() - built_in.both() / parts;
    for (std::size_t k = 0; k < kCopyKinds; ++k)
      if (costs[k].known() && costs[k].both() < least)
        least = costs[k].both(), kinds[s] = static_cast<CopyKind>(k);
  }
  return kinds;
}
}  // namespace

kernels::CopyKinds slot_kinds_by(const Calibration& c) { return kinds_that_save(c, 5); }
kernels::CopyKinds buffer_kinds_by(const Calibration& c) { return kinds_that_save(c, 2); }

bool ring_pays(const Calibration& c) {
  if (!c.known()) return false;
  constexpr std::size_t kPiece = kernels::copy_size_class(kLargePiece);
  const PairCosts& far = c.farthest();
  const CopyKind kind = slot_kinds_by(c)[kPiece], built_in = kernels::kDefaultCopyKinds[kPiece];
  const auto alone = [&](CopyKind k) { return far.copies[kPiece][static_cast<std::size_t>(k)]; };
  const CopyCost& both = kind == built_in ? far.together : far.together_slots;
  const CopyCost slots = both.known() ? both : alone(kind);
  if (!far.ring.known() || !slots.known()) return false;
  // A ring is measured with one core at a time: the other core slows it down as much as it slows the same
  // kind in a slot.
  const bool slowed = both.known() && far.together.known() && alone(built_in).known();
  const double factor = slowed ? std::max(1.0, double(far.together.both()) / alone(built_in).both()) : 1;
  return far.ring.both() * factor <= slots.both();
}

kernels::CopyKinds large_kinds_by(const Calibration& c) {
  return ring_pays(c) ? kernels::kDefaultCopyKinds : slot_kinds_by(c);
}

void use_copy_kinds(const Calibration& c) {
  kernels::set_copy_kinds(kernels::Shared::slot, slot_kinds_by(c));
  kernels::set_copy_kinds(kernels::Shared::buffer, buffer_kinds_by(c));
}

Patience patience_by(const Calibration& c, bool own_cores) {
  constexpr std::uint32_t kWakes = 16, kHandoffs = 4, kFewest = 4, kMost = 100;
  constexpr std::chrono::microseconds kLongest{1000};
  Patience p = own_cores ? Patience::with_own_cores() : Patience{};
  if (!c.known()) return p;
  const auto spin = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::nanoseconds(std::uint64_t{kWakes} * c.wake));
  if (own_cores) p.spin = std::clamp(spin, p.spin, kLongest);
  if (c.pause > 0) {
    std::uint32_t ns = kHandoffs * c.farthest().handoff;
    if (c.context_switch > 0) ns = std::min(ns, c.context_switch);
    p.polls = static_cast<int>(std::clamp(ns / c.pause, kFewest, kMost));
  }
  return p;
}

namespace {
constexpr std::size_t kOfFewCores = std::size_t{32} << 20;  // the largest cache that is not of a mesh
std::size_t reported_bytes(const Calibration& c) { return std::size_t{c.cache_kib} << 10; }
}  // namespace

std::size_t share_of_cache(std::size_t reported, std::size_t processors) {
  constexpr std::size_t kShare = std::size_t{16} << 20;
  return reported <= kOfFewCores ? reported : std::min(reported, std::max(kOfFewCores, kShare * processors));
}

std::optional<std::size_t> cached_bytes(const Calibration& c, std::size_t caches, std::size_t processors) {
  if (c.cache_kib == 0) return std::nullopt;
  return share_of_cache(reported_bytes(c), processors) * std::max<std::size_t>(caches, 1);
}

bool shares_caches(const Calibration& c) {
  constexpr std::uint32_t kWithinOneCache = 120;  // nanoseconds; between caches it takes 160 and more
  return !c.known() || c.pair[0].distance != Distance::cache || c.pair[0].handoff < kWithinOneCache ||
         reported_bytes(c) > kOfFewCores;
}

}  // namespace ouro::rt
