// Listing, mapping, and who knows what from when on. See gpu_listing.h.
#include "runtime/exec/gpu/gpu_listing.h"

#include <algorithm>
#include <atomic>

namespace ouro::rt {
namespace {
constexpr std::uint64_t kListingOf = 0x6770752d6c697374;  // distinguishes it from other segments of a group
/// Errors of a rank that was slow to answer, and of a process that has no memory or descriptors at the
/// moment.
bool may_pass(Reason why) { return why == Reason::deadline || why == Reason::resource; }
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
  trying_.assign(static_cast<std::size_t>(team_.size), {});
  return {};
}

int GpuListing::free_number() {
  if (mine_.size() < Ref::kListed) {
    mine_.emplace_back();
    return static_cast<int>(mine_.size()) - 1;
  }
  GpuExports& exports = team_.context.device_memory().exports();
  const std::uint64_t endings = exports.endings();
  if (endings == endings_) return -1;
  bool later = false;  // a number becomes free without another ending
  for (int number = 0; number < Ref::kListed; ++number) {
    const Mine& m = mine_[static_cast<std::size_t>(number)];
    if (m.captured || exports.exists(m.id)) continue;
    // Pairs with entered(): a rank that has taken the entry up reads it no more.
    bool known = true;
    for (int r = 0; known && r < team_.size; ++r)
      known = r == team_.rank ||
              std::atomic_ref(known_from(team_.rank, number, r)).load(std::memory_order_acquire) != 0;
    if (known) return number;
    later = true;
  }
  if (!later) endings_ = endings;
  return -1;
}

Result<std::uint64_t> GpuListing::refer(const void* p, std::size_t bytes, std::uint64_t seq, bool capturing) {
  if (bytes == 0) return 0;
  // Other processes map only memory that this library allocated or that the program registered: they cannot
  // learn of a free of other memory before it happens.
  GpuExports& exports = team_.context.device_memory().exports();
  OURO_ASSIGN(const auto found,
              team_.abroad ? exports.find_lasting(p, bytes) : exports.find(p, bytes, team_.device));
  if (found.id == 0 || found.offset >> Ref::kOffsetBits != 0) return Ref::kNone;
  const auto at = std::find_if(mine_.begin(), mine_.end(), [&](const Mine& m) { return m.id == found.id; });
  auto number = static_cast<int>(at - mine_.begin());
  if (at == mine_.end()) {
    if (number = free_number(); number < 0) return Ref::kNone;
    Mine& mine = mine_[static_cast<std::size_t>(number)];
    // Operations before this one may have named what had the number before; of this operation another part.
    const std::uint64_t from = mine.id == 0 ? 0 : seq + 1;
    mine = {found.id, false};
    for (int r = 0; r < team_.size; ++r)
      std::atomic_ref(known_from(team_.rank, number, r)).store(0, std::memory_order_relaxed);
    list(team_.rank).allocation[listed_ % Ref::kListed] = {found.id, found.address - found.offset,
                                                           static_cast<std::uint64_t>(number), from};
    // Pairs with learn().
    std::atomic_ref(list(team_.rank).listed).store(++listed_, std::memory_order_release);
  }
  for (int r = 0; r < team_.size; ++r) {
    if (r == team_.rank) continue;
    const std::uint64_t from =
        std::atomic_ref(known_from(team_.rank, number, r)).load(std::memory_order_relaxed);
    if (from == 0 || from > seq) return Ref::kNone;
  }
  mine_[static_cast<std::size_t>(number)].captured |= capturing;
  return Ref::make(static_cast<std::uint64_t>(number), found.offset);
}

int GpuListing::learn(std::span<gpu::ResidentEntry> room, std::uint64_t seq) {
  std::size_t learned = 0;
  learning_.clear();
  for (int q = 0; q < team_.size; ++q) {
    // Mapping memory of another process may wait for kernels of this one, which may wait for this very call
    // where its ranks are threads.
    if (q == team_.rank || (!team_.here(q) && team_.shares_process)) continue;
    // Where it is not known which exports have ended, all mappings stay.
    if (!team_.here(q) && !team_.context.device_memory().release_ended_imports(team_.world_rank(q)))
      captured();
    // Pairs with refer(). Peers write these words, which are not believed to lie within the list.
    const std::uint64_t first = learnt_[static_cast<std::size_t>(q)];
    const std::uint64_t listed = std::min(std::atomic_ref(list(q).listed).load(std::memory_order_acquire),
                                          first + std::uint64_t{Ref::kListed});
    for (std::uint64_t i = first; i < listed && learned < room.size(); ++i) {
      const Allocation a = list(q).allocation[i % Ref::kListed];
      const auto number = static_cast<int>(a.number % Ref::kListed);
      Trying& trying = trying_[static_cast<std::size_t>(q)];
      if (a.from > seq || trying.next > seq) break;
      auto at = team_.context.device_memory().resolve(team_.world_rank(q), {a.id, 0, a.base}, 0);
      // A rank that is slow to answer has held this one up for seconds: it is asked once more.
      if (!at.ok() && at.status().reason() == Reason::deadline)
        trying.times = std::max(trying.times, kTries - 2);
      if (!at.ok() && may_pass(at.status().reason()) && ++trying.times < kTries) {
        trying.next = seq + (std::uint64_t{1} << trying.times);
        break;
      }
      trying = {};
      if (at.ok()) {
        constexpr std::uint64_t kAll = std::uint64_t{1} << Ref::kOffsetBits;
        room[learned++] = {.mapping = {at->data, at->keep ? at->keep->bytes() : kAll},
                           .peer = q,
                           .number = static_cast<std::uint32_t>(number)};
      }
      learning_.push_back({q, number, at.ok(), at.ok() ? std::move(at->keep) : nullptr});
    }
  }
  std::lock_guard lock(kept_mutex_);
  drop_retired();
  kept_.reserve(kept_.size() + learning_.size());
  return static_cast<int>(learned);
}

void GpuListing::release_retired() {
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
    ++learnt_[static_cast<std::size_t>(l.owner)];
    if (l.keep) kept_.push_back(std::move(l.keep));
    std::atomic_ref(known_from(l.owner, l.number, team_.rank))
        .store(l.mapped ? seq + 1 : Ref::kNone, std::memory_order_release);  // pairs with free_number()
  }
  learning_.clear();
}

}  // namespace ouro::rt
