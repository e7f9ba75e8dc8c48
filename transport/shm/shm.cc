// Layout of links and staging buffers in a segment. See shm.h.
#include "transport/shm/shm.h"

#include <algorithm>
#include <utility>

namespace ouro::transport {
namespace {

constexpr std::size_t kLinkBudget =
    std::size_t{32} << 20;  // bytes of all links of a group; slots are made smaller to stay below it
constexpr std::uint32_t kSlots = 4, kMinSlotBytes = 1024;
constexpr std::size_t kStagingBudget = std::size_t{64} << 20;
constexpr std::size_t kMinSlotOfStaging = 16 << 10;
constexpr std::size_t kEagerBudget = std::size_t{16} << 20,
                      kEagerBytes = 4096;  // for all eager slots, and for one at most

constexpr std::size_t round_up(std::size_t x, std::size_t to) { return (x + to - 1) / to * to; }

}  // namespace

namespace {
/// Payload bytes of a slot if there are `links` links in total.
std::size_t slot_of(std::size_t links, std::uint32_t wanted) {
  const std::size_t fair = kLinkBudget / (links * kSlots) / 64 * 64;
  return std::clamp(std::min<std::size_t>(round_up(wanted, 64), fair), std::size_t{kMinSlotBytes},
                    std::size_t{1} << 24);
}
/// Bytes of a segment with this many counters and rings.
std::size_t segment_bytes(std::size_t counters, std::size_t rings, std::size_t slot) {
  return round_up(counters * sizeof(Counter) + rings * kSlots * (sizeof(SlotHeader) + slot), 4096);
}
}  // namespace

// The segment holds n*n pairs of counters (full, freed), n doorbells and n*n rings of slots. The index of
// link (from, to) is from*n+to.
ShmLinkLayout ShmLinkLayout::of(int n, std::uint32_t slot_bytes) {
  const auto ranks = static_cast<std::size_t>(n);
  const std::size_t links = ranks * ranks, slot = slot_of(links, slot_bytes);
  return {static_cast<std::uint32_t>(slot), kSlots, segment_bytes(2 * links + ranks, links, slot)};
}

LinkView ShmLinks::link(int from, int to) const {
  const std::size_t links = static_cast<std::size_t>(n_) * static_cast<std::size_t>(n_);
  const std::size_t i =
      static_cast<std::size_t>(from) * static_cast<std::size_t>(n_) + static_cast<std::size_t>(to);
  auto* counters = reinterpret_cast<Counter*>(segment_->data());
  std::byte* slots = segment_->data() + (2 * links + static_cast<std::size_t>(n_)) * sizeof(Counter);
  const std::size_t ring = std::size_t{layout_.slot_count} * (sizeof(SlotHeader) + layout_.slot_bytes);
  return {slots + i * ring, layout_.slot_bytes, layout_.slot_count, counters + 2 * i, counters + 2 * i + 1};
}

Counter* ShmLinks::doorbell(int rank) const {
  const std::size_t links = static_cast<std::size_t>(n_) * static_cast<std::size_t>(n_);
  return reinterpret_cast<Counter*>(segment_->data()) + 2 * links + rank;
}

// The segment holds n pairs of counters (full, freed) and n rings of slots, by producer.
ShmInboxLayout ShmInboxLayout::of(int n, std::uint32_t slot_bytes) {
  const auto ranks = static_cast<std::size_t>(n);
  const std::size_t slot = slot_of(ranks * ranks, slot_bytes);
  return {static_cast<std::uint32_t>(slot), kSlots, segment_bytes(2 * ranks, ranks, slot)};
}

ShmInboxes::ShmInboxes(std::shared_ptr<SharedSegment> mine, ShmInboxLayout layout, int rank,
                       std::vector<Counter*> doorbells, Fetch fetch)
    : layout_(layout), rank_(rank), doorbells_(std::move(doorbells)), fetch_(std::move(fetch)) {
  segments_.resize(doorbells_.size());
  segments_[static_cast<std::size_t>(rank)] = std::move(mine);
}

Status ShmInboxes::reach(int to) {
  {
    std::lock_guard lock(mutex_);
    if (segments_[static_cast<std::size_t>(to)]) return {};
  }
  OURO_ASSIGN(auto segment, fetch_(to));  // unlocked, so that other threads can proceed
  std::lock_guard lock(mutex_);
  if (auto& known = segments_[static_cast<std::size_t>(to)]; !known) known = std::move(segment);
  return {};
}

LinkView ShmInboxes::link(int from, int to) const {
  std::lock_guard lock(mutex_);
  std::byte* const base = segments_[static_cast<std::size_t>(to)]->data();
  auto* const counters = reinterpret_cast<Counter*>(base) + 2 * from;
  const std::size_t ring = std::size_t{layout_.slot_count} * (sizeof(SlotHeader) + layout_.slot_bytes);
  return {base + 2 * segments_.size() * sizeof(Counter) + static_cast<std::size_t>(from) * ring,
          layout_.slot_bytes, layout_.slot_count, counters, counters + 1};
}

// The segment holds one block per rank, with its arrival records, its count of rounds, its sleepers, its mark
// of presence, then its eager slots, its slots and its ring on page boundaries.
namespace {
constexpr std::size_t kHeadBytes =
    round_up(StagingView::kArrivals * sizeof(Arrival) + 3 * sizeof(Counter), 4096);
constexpr std::size_t eager_memory(std::size_t slot) { return round_up(StagingView::kArrivals * slot, 4096); }
}  // namespace

ShmStagingLayout ShmStagingLayout::of(int n, std::size_t slot_bytes, std::size_t ring_bytes) {
  const auto ranks = static_cast<std::size_t>(n);
  const std::size_t fair = kStagingBudget / (ranks * StagingView::kSlots) / 4096 * 4096;
  // A slot is cut into up to n+1 pieces of at least one line each.
  const std::size_t least = std::max(kMinSlotOfStaging, round_up((ranks + 1) * 128, 4096));
  const std::size_t slot = std::max(least, std::min(round_up(slot_bytes, 4096), fair));
  const std::size_t eager =
      std::clamp(kEagerBudget / (ranks * StagingView::kArrivals) / 64 * 64, std::size_t{64}, kEagerBytes);
  const std::size_t least_ring = StagingView::least_ring(slot);
  const std::size_t ring =
      least_ring <= ring_bytes / 2 ? std::max(least_ring, round_up(ring_bytes / ranks, 4096)) : 0;
  return {slot, eager, ring, ranks * (kHeadBytes + eager_memory(eager) + StagingView::kSlots * slot + ring)};
}

StagingView ShmStaging::staging(int rank) const {
  std::byte* const block =
      segment_->data() + static_cast<std::size_t>(rank) * (layout_.bytes / static_cast<std::size_t>(n_));
  auto* arrivals = reinterpret_cast<Arrival*>(block);
  auto* counters = reinterpret_cast<Counter*>(arrivals + StagingView::kArrivals);
  std::byte* const slots = block + kHeadBytes + eager_memory(layout_.eager_bytes);
  return {.slots = slots,
          .slot_bytes = layout_.slot_bytes,
          .eager_bytes = layout_.eager_bytes,
          .eager_slots = block + kHeadBytes,
          .ring = slots + StagingView::kSlots * layout_.slot_bytes,
          .arrivals = arrivals,
          .done = counters,
          .sleepers = &counters[1].sleepers};
}

Counter* ShmStaging::present(int rank) const { return staging(rank).done + 2; }

}  // namespace ouro::transport
