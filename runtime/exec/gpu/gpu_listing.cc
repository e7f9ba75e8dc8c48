// Listing, mapping, and who knows what from when on. See gpu_listing.h.
#include "runtime/exec/gpu/gpu_listing.h"

#include <algorithm>
#include <atomic>

namespace ouro::rt {
namespace {
constexpr std::uint64_t kListingOf = 0x6770752d6c697374;  // tells it from other segments of a group
}  // namespace

GpuListing::~GpuListing() {
  if (team_.rank == 0 && segment_) team_.context.host_memory().drop_segment(team_.key ^ kListingOf);
}

std::size_t GpuListing::bytes(int n) {
  const auto ranks = static_cast<std::size_t>(n);
  return ranks * sizeof(List) + ranks * ranks * Ref::kListed * sizeof(std::uint64_t);
}

std::uint64_t& GpuListing::known_from(int owner, int number, int reader) const {
  auto* const all = reinterpret_cast<std::uint64_t*>(&list(team_.size));
  return all[(owner * Ref::kListed + number) * team_.size + reader];
}

Status GpuListing::open() {
  if (segment_) return {};
  OURO_ASSIGN(segment_, team_.context.host_memory().segment(team_.key ^ kListingOf, bytes(team_.size),
                                                            team_.world_rank(0)));
  learnt_.assign(static_cast<std::size_t>(team_.size), 0);
  return {};
}

Result<std::uint64_t> GpuListing::refer(const void* p, std::size_t bytes, std::uint64_t seq) {
  if (bytes == 0) return 0;
  // Other processes map only memory that this library allocated or that the program registered: they cannot
  // learn of a free of other memory before it happens.
  transport::GpuExports& exports = team_.context.device_memory().exports();
  OURO_ASSIGN(const auto found,
              team_.abroad ? exports.find_lasting(p, bytes) : exports.find(p, bytes, team_.device));
  if (found.id == 0 || found.offset >> Ref::kOffsetBits != 0) return Ref::kNone;
  const auto at =
      std::find_if(mine_.begin(), mine_.end(), [&](const Allocation& a) { return a.id == found.id; });
  const auto number = static_cast<int>(at - mine_.begin());
  if (at == mine_.end()) {
    if (number == Ref::kListed) return Ref::kNone;
    mine_.push_back({found.id, found.address - found.offset});
    list(team_.rank).allocation[number] = mine_.back();
    // Pairs with learn().
    std::atomic_ref(list(team_.rank).listed).store(mine_.size(), std::memory_order_release);
  }
  for (int r = 0; r < team_.size; ++r) {
    if (r == team_.rank) continue;
    const std::uint64_t from =
        std::atomic_ref(known_from(team_.rank, number, r)).load(std::memory_order_relaxed);
    if (from == 0 || from > seq) return Ref::kNone;
  }
  return Ref::make(static_cast<std::uint64_t>(number), found.offset);
}

int GpuListing::learn(std::span<gpu::ResidentEntry> room) {
  std::size_t learned = 0;
  learning_.clear();
  for (int q = 0; q < team_.size; ++q) {
    // Mapping memory of another process may wait for kernels of this one, which may wait for this very call
    // where its ranks are threads.
    if (q == team_.rank || (!team_.here(q) && team_.shares_process)) continue;
    // Where nobody knows what has ended, all stays.
    if (!team_.here(q) && !team_.context.device_memory().let_go_of_what_ended(team_.world_rank(q)))
      captured();
    // Pairs with refer(). A peer writes the number, which is not believed to lie within the list.
    const std::uint64_t listed = std::min<std::uint64_t>(
        std::atomic_ref(list(q).listed).load(std::memory_order_acquire), Ref::kListed);
    for (std::uint64_t i = learnt_[static_cast<std::size_t>(q)]; i < listed && learned < room.size(); ++i) {
      const Allocation a = list(q).allocation[i];
      auto at = team_.context.device_memory().resolve(team_.world_rank(q), {a.id, 0, a.base}, 0);
      if (at.ok()) {
        constexpr std::uint64_t kAll = std::uint64_t{1} << Ref::kOffsetBits;
        room[learned++] = {.mapping = {at->data, at->keep ? at->keep->bytes() : kAll},
                           .peer = q,
                           .number = static_cast<std::uint32_t>(i)};
      }
      learning_.push_back({q, static_cast<int>(i), at.ok(), at.ok() ? std::move(at->keep) : nullptr});
    }
  }
  std::lock_guard lock(kept_mutex_);
  drop_retired();
  kept_.reserve(kept_.size() + learning_.size());
  return static_cast<int>(learned);
}

void GpuListing::let_go() {
  std::lock_guard lock(kept_mutex_);
  drop_retired();
}

void GpuListing::drop_retired() {
  if (keeps_all_.load(std::memory_order_relaxed)) return;
  std::erase_if(kept_, [](const auto& keep) { return keep->retired(); });
}

void GpuListing::entered(std::uint64_t seq) {
  if (learning_.empty()) return;
  std::lock_guard lock(kept_mutex_);
  for (Learning& l : learning_) {
    learnt_[static_cast<std::size_t>(l.owner)] = static_cast<std::uint64_t>(l.number) + 1;
    if (l.keep) kept_.push_back(std::move(l.keep));
    std::atomic_ref(known_from(l.owner, l.number, team_.rank))
        .store(l.mapped ? seq + 1 : Ref::kNone, std::memory_order_relaxed);
  }
  learning_.clear();
}

}  // namespace ouro::rt
