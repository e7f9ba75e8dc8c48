// Listing and naming of exports, and mapping of those that others list. See export_listing.h.
#include "runtime/device_memory/export_listing.h"

#include <algorithm>
#include <utility>

namespace ouro::rt {
namespace {

/// Returns whether the error is of a rank that was slow to answer, or of a process that lacks memory or
/// descriptors at the moment.
bool is_transient(Reason why) { return why == Reason::deadline || why == Reason::resource; }

}  // namespace

ExportListing::ExportListing(DeviceMemory& memory, int rank, std::vector<int> world, int device)
    : memory_(memory),
      rank_(rank),
      device_(device),
      world_(std::move(world)),
      keeper_(memory.imports(), [this] { release_ended(); }) {
  for (int r = 0; r < size(); ++r)
    if (r != rank_) (in_process(r) ? shares_process_ : spans_processes_) = true;
}

std::size_t ExportListing::segment_bytes(int n) {
  const auto ranks = static_cast<std::size_t>(n);
  return ranks * sizeof(List) + ranks * ranks * Ref::kListed * sizeof(std::uint64_t);
}

std::uint64_t& ExportListing::known_from(int owner, int number, int reader) const {
  auto* const all = reinterpret_cast<std::uint64_t*>(&list(size()));
  return all[(owner * Ref::kListed + number) * size() + reader];
}

void ExportListing::open(std::shared_ptr<SharedSegment> segment) {
  read_.assign(world_.size(), 0);
  attempts_.assign(world_.size(), {});
  segment_ = std::move(segment);
}

int ExportListing::free_number() {
  if (own_.size() < Ref::kListed) {
    own_.emplace_back();
    return static_cast<int>(own_.size()) - 1;
  }
  const std::uint64_t endings = memory_.exports().endings();
  if (endings == endings_) return -1;
  bool later = false;  // a number becomes free without another ending
  for (int number = 0; number < Ref::kListed; ++number) {
    const Numbered& own = own_[static_cast<std::size_t>(number)];
    if (own.captured || memory_.exports().exists(own.id)) continue;
    // Pairs with publish_mapped(): a rank that has entered the export does not read its entry again.
    bool known = true;
    for (int r = 0; known && r < size(); ++r)
      known =
          r == rank_ || std::atomic_ref(known_from(rank_, number, r)).load(std::memory_order_acquire) != 0;
    if (known) return number;
    later = true;
  }
  if (!later) endings_ = endings;
  return -1;
}

Result<std::uint64_t> ExportListing::name_buffer(const void* p, std::size_t bytes, std::uint64_t seq,
                                                 bool capturing) {
  if (bytes == 0) return 0;
  // Other processes map only memory that this library allocated or that the program registered: they cannot
  // learn of a free of other memory before it happens.
  GpuExports& exports = memory_.exports();
  OURO_ASSIGN(const auto found,
              spans_processes_ ? exports.find_lasting(p, bytes) : exports.find(p, bytes, device_));
  if (found.id == 0 || found.offset >> Ref::kOffsetBits != 0) return Ref::kNone;
  const auto at = std::ranges::find(own_, found.id, &Numbered::id);
  auto number = static_cast<int>(at - own_.begin());
  if (at == own_.end()) {
    if (number = free_number(); number < 0) return Ref::kNone;
    Numbered& own = own_[static_cast<std::size_t>(number)];
    // Operations before this one may have named the export that had the number before, and so may the other
    // buffer of this operation.
    const std::uint64_t from = own.id == 0 ? 0 : seq + 1;
    own = {found.id, false};
    for (int r = 0; r < size(); ++r)
      std::atomic_ref(known_from(rank_, number, r)).store(0, std::memory_order_relaxed);
    list(rank_).entries[listed_ % Ref::kListed] = {found.id, found.address - found.offset,
                                                   static_cast<std::uint64_t>(number), from};
    // Pairs with map_listed().
    std::atomic_ref(list(rank_).listed).store(++listed_, std::memory_order_release);
  }
  for (int r = 0; r < size(); ++r) {
    if (r == rank_) continue;
    const std::uint64_t from = std::atomic_ref(known_from(rank_, number, r)).load(std::memory_order_relaxed);
    if (from == 0 || from > seq) return Ref::kNone;
  }
  own_[static_cast<std::size_t>(number)].captured |= capturing;
  return Ref::make(static_cast<std::uint64_t>(number), found.offset);
}

int ExportListing::map_listed(std::span<gpu::ResidentEntry> room, std::uint64_t seq) {
  std::size_t entries = 0;
  new_imports_.clear();
  for (int q = 0; q < size(); ++q) {
    // Mapping memory of another process may wait for kernels of this one, which may wait for this very call
    // if other members are of this process.
    if (q == rank_ || (!in_process(q) && shares_process_)) continue;
    // If it is unknown which exports have ended, all mappings stay.
    if (!in_process(q) && !memory_.imports().release_ended(world_rank(q))) keep_all();
    // Pairs with name_buffer(). Peers write these words, so they are not trusted to lie within the list.
    const std::uint64_t first = read_[static_cast<std::size_t>(q)];
    const std::uint64_t listed = std::min(std::atomic_ref(list(q).listed).load(std::memory_order_acquire),
                                          first + std::uint64_t{Ref::kListed});
    for (std::uint64_t i = first; i < listed && entries < room.size(); ++i) {
      const Listed e = list(q).entries[i % Ref::kListed];
      const auto number = static_cast<int>(e.number % Ref::kListed);
      Attempts& attempts = attempts_[static_cast<std::size_t>(q)];
      if (e.from > seq || attempts.next > seq) break;
      auto at = memory_.resolve_ref(world_rank(q), {e.id, 0, e.base}, 0);
      // A rank that is slow to answer has delayed this one by seconds, so it is asked only once more.
      if (!at.ok() && at.status().reason() == Reason::deadline)
        attempts.failed = std::max(attempts.failed, kTries - 2);
      if (!at.ok() && is_transient(at.status().reason()) && ++attempts.failed < kTries) {
        attempts.next = seq + (std::uint64_t{1} << attempts.failed);
        break;
      }
      attempts = {};
      if (at.ok()) {
        constexpr std::uint64_t kAll = std::uint64_t{1} << Ref::kOffsetBits;
        room[entries++] = {.mapping = {at->data, at->keep ? at->keep->bytes() : kAll},
                           .peer = q,
                           .number = static_cast<std::uint32_t>(number)};
      }
      new_imports_.push_back({q, number, at.ok(), at.ok() ? std::move(at->keep) : nullptr});
    }
  }
  std::lock_guard lock(kept_mutex_);
  release_ended_locked();
  kept_.reserve(kept_.size() + new_imports_.size());
  return static_cast<int>(entries);
}

void ExportListing::release_ended() {
  std::lock_guard lock(kept_mutex_);
  release_ended_locked();
}

void ExportListing::release_ended_locked() {
  if (keeps_all_.load(std::memory_order_relaxed)) return;
  std::erase_if(kept_, [](const auto& keep) { return keep->export_ended(); });
}

void ExportListing::publish_mapped(std::uint64_t seq) {
  if (new_imports_.empty()) return;
  std::lock_guard lock(kept_mutex_);
  for (NewImport& n : new_imports_) {
    ++read_[static_cast<std::size_t>(n.owner)];
    if (n.keep) kept_.push_back(std::move(n.keep));
    std::atomic_ref(known_from(n.owner, n.number, rank_))
        .store(n.mapped ? seq + 1 : Ref::kNone, std::memory_order_release);  // pairs with free_number()
  }
  new_imports_.clear();
}

}  // namespace ouro::rt
