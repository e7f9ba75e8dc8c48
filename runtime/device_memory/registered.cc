// Memory that the program has registered, among the exports. See cuda_ipc.h.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/device_memory/cuda_ipc.h"

namespace ouro::rt {

Result<std::shared_ptr<RetainedPiece>> RetainedPiece::retain(const void* p) {
  const auto piece = free_when_idle(std::shared_ptr<RetainedPiece>(new RetainedPiece));
  OURO_ASSIGN(piece->region_, gpu::gpu().retain_piece(p));
  piece->retained_ = true;
  return piece;
}

RetainedPiece::~RetainedPiece() {
  if (retained_) (void)gpu::gpu().release_piece(region_).ok();
}

/// Makes the export of a range: all pieces of VMM memory that it overlaps, or the whole legacy allocation.
Result<GpuExports::Entry> GpuExports::entry_of(const std::byte* p, std::size_t bytes,
                                               const gpu::PointerInfo& info, Reach reach) {
  Entry e{.base = const_cast<std::byte*>(p), .bytes = bytes, .allocation = info.allocation};
  if (info.legacy_ipc) {
    if (!reach.processes) return e;
    OURO_ASSIGN(e.handle, gpu::gpu().ipc_export(info.base));
    e.has_handle = true;
    e.base = static_cast<std::byte*>(info.base);
    e.bytes = info.bytes;
    return e;
  }
  for (const std::byte* at = p; at < p + bytes;) {
    if (e.pieces.size() == kMaxPieces)
      return Status(Reason::resource, fmt::format("{} bytes at {} are more than {} pieces of cuMemMap", bytes,
                                                  fmt::ptr(p), kMaxPieces));
    OURO_ASSIGN(const auto here, gpu::gpu().pointer(at));
    if (here.kind != gpu::MemoryKind::device || here.device != info.device || !here.base)
      return invalid(fmt::format("of {} bytes at {}, those from byte {} on are not memory of GPU {}", bytes,
                                 fmt::ptr(p), at - p, info.device));
    gpu::Region piece{.device = here.device, .data = here.base, .bytes = here.bytes};
    if (reach.processes) {
      OURO_ASSIGN(auto kept, RetainedPiece::retain(at));
      piece = kept->region();
      e.pieces.push_back(std::move(kept));
    }
    if (reach.devices) OURO_TRY(gpu::gpu().open_to_peers(piece));
    at = static_cast<std::byte*>(piece.data) + piece.bytes;
  }
  if (e.pieces.empty()) return e;
  e.base = e.pieces.front()->begin();
  e.bytes = static_cast<std::size_t>(e.pieces.back()->end() - e.base);
  return e;
}

Result<std::uint64_t> GpuExports::register_range(const void* data, std::size_t bytes, int device,
                                                 Reach reach) {
  const auto* p = static_cast<const std::byte*>(data);
  OURO_ASSIGN(const auto info, gpu::gpu().pointer(p));
  if (info.kind == gpu::MemoryKind::managed)
    return unsupported(fmt::format(
        "the memory at {} is managed (cudaMallocManaged), which no other process can map", fmt::ptr(p)));
  if (info.kind != gpu::MemoryKind::device || !info.base)
    return invalid(fmt::format("{} is not memory of a GPU", fmt::ptr(p)));
  if (info.device != device)
    return invalid(fmt::format("{} is memory of GPU {}, not of GPU {}", fmt::ptr(p), info.device, device));
  const auto* end = static_cast<const std::byte*>(info.base) + info.bytes;
  if (info.legacy_ipc && p + bytes > end)
    return invalid(fmt::format("{} bytes at {} reach beyond their allocation, which has {} more", bytes,
                               fmt::ptr(p), end - p));
  // Without the lock: a driver may wait for all work when it opens memory to other devices, and that work may
  // wait for a thread that finds a buffer or makes an offer.
  OURO_ASSIGN(Entry made, entry_of(p, bytes, info, reach));
  std::lock_guard lock(mutex_);
  Range range{.end = p + bytes, .id = 0, .number = 0, .allocation = info.allocation};
  if (made.has_handle)  // an allocation has one export
    for (auto& [id, known] : entries_)
      if (known.users > 0 && known.base == info.base && known.allocation == info.allocation) range.id = id;
  if (range.id == 0) {
    range.id = next_++;
    entries_[range.id] = std::move(made);
  }
  ++entries_[range.id].users;
  range.number = next_++;
  registrations_[range.number] = p;
  add_range(p, range);
  return range.number;
}

void GpuExports::add_range(const std::byte* begin, Range range) {
  longest_ = std::max(longest_, static_cast<std::size_t>(range.end - begin));
  ranges_.emplace(begin, range);
  chains_.clear();
}

std::uint64_t GpuExports::export_around(const std::byte* p, std::size_t bytes) const {
  std::uint64_t oldest = 0, number = 0;
  for (auto it = ranges_.upper_bound(p); it != ranges_.begin();) {
    const auto& [begin, range] = *--it;
    if (range.end >= p + bytes && (oldest == 0 || range.number < number))
      oldest = range.id, number = range.number;
    if (static_cast<std::size_t>(p - begin) + bytes > longest_) break;  // as all that begin before it
  }
  if (oldest != 0) return oldest;
  for (const Union& u : unions_)
    if (u.begin <= p && u.end >= p + bytes) return u.id;
  return 0;
}

GpuRef GpuExports::in_range(const std::byte* p, std::size_t bytes) {
  std::uint64_t id = export_around(p, bytes);
  if (id == 0) id = join(p, bytes);
  const auto address = reinterpret_cast<std::uint64_t>(p);
  if (id == 0) return {0, 0, address};
  return {id, static_cast<std::uint64_t>(p - entries_[id].base), address};
}

/// A union takes in all that adjoins in both directions, so that one export serves every buffer that lies
/// across, and a segment that grows by one registration needs one more export.
std::uint64_t GpuExports::join(const std::byte* p, std::size_t bytes) {
  if (chains_.empty()) {
    Chain* last = nullptr;
    for (const auto& [begin, range] : ranges_)
      if (last && begin <= last->end)
        last->end = std::max(last->end, range.end);
      else
        last = &chains_.emplace(begin, Chain{range.end}).first->second;
  }
  const auto after = chains_.upper_bound(p);
  if (after == chains_.begin()) return 0;
  auto& [begin, chain] = *std::prev(after);
  if (p + bytes > chain.end || !chain.joins) return 0;
  chain.joins = unite(begin, chain.end);
  return chain.joins ? unions_.back().id : 0;
}

bool GpuExports::unite(const std::byte* begin, const std::byte* end) {
  Entry joined{.base = const_cast<std::byte*>(begin), .bytes = static_cast<std::size_t>(end - begin)};
  bool in_pieces = false, by_handle = false, one_export = true;
  std::uint64_t only = 0;
  for (auto it = ranges_.lower_bound(begin); it != ranges_.end() && it->first < end; ++it) {
    const Entry& e = entries_[it->second.id];
    one_export &= only == 0 || only == it->second.id;
    only = it->second.id;
    in_pieces |= !e.pieces.empty();
    by_handle |= e.has_handle;
    joined.pieces.insert(joined.pieces.end(), e.pieces.begin(), e.pieces.end());
  }
  if (in_pieces && !one_export) {
    const auto key = [](const auto& piece) { return piece->begin(); };
    std::ranges::sort(joined.pieces, {}, key);
    const auto twice = std::ranges::unique(joined.pieces, {}, key);
    joined.pieces.erase(twice.begin(), twice.end());
    for (std::size_t i = 1; i < joined.pieces.size(); ++i)
      if (joined.pieces[i - 1]->end() != joined.pieces[i]->begin()) return false;
    if (joined.pieces.size() > kMaxPieces) return false;
    joined.base = joined.pieces.front()->begin();
    joined.bytes = static_cast<std::size_t>(joined.pieces.back()->end() - joined.base);
    if (begin < joined.base || end > joined.base + joined.bytes) return false;
  } else if (by_handle && !one_export) {
    return false;  // importers map two allocations of cudaMalloc at unrelated addresses
  }
  Union all{begin, end, only, next_++};
  if (!one_export) {
    all.id = next_++;
    entries_[all.id] = std::move(joined);
  }
  ++entries_[all.id].users;
  unions_.push_back(all);
  return true;
}

void GpuExports::drop_range(Ranges::const_iterator it) {
  std::erase_if(unions_, [&](const Union& u) {
    const bool part = u.has(it->second, it->first);
    if (part) stop_using(u.id);
    return part;
  });
  const std::uint64_t id = it->second.id;
  ranges_.erase(it);
  chains_.clear();
  stop_using(id);
}

void GpuExports::stop_using(std::uint64_t id) {
  Entry& e = entries_[id];
  if (--e.users > 0) return;
  // The leader's path may have exported the allocation before it was registered.
  const auto known = e.has_handle ? by_base_.find(reinterpret_cast<std::uint64_t>(e.base)) : by_base_.end();
  if (known != by_base_.end()) {
    ending_.push_back(known->second);
    by_base_.erase(known);
  }
  ending_.push_back(id);
}

struct GpuExports::EndsWithIt {
  std::shared_ptr<Alive> alive;
  std::uint64_t id = 0;  // 0: none yet
  explicit EndsWithIt(std::shared_ptr<Alive> a) : alive(std::move(a)) {}
  EndsWithIt(const EndsWithIt&) = delete;
  EndsWithIt& operator=(const EndsWithIt&) = delete;
  ~EndsWithIt() {
    if (id == 0) return;
    std::lock_guard lock(alive->mutex);
    if (alive->exports) alive->exports->withdraw(id);
  }
};

void GpuExports::end_when_idle() noexcept try {
  std::vector<std::shared_ptr<EndsWithIt>>
      going;  // destroyed after the lock: if the process is idle, they withdraw
  std::lock_guard lock(mutex_);
  going.reserve(ending_.size());
  while (!ending_.empty()) {
    going.push_back(free_when_idle(std::make_shared<EndsWithIt>(alive_)));
    going.back()->id = ending_.back();
    ending_.pop_back();
  }
} catch (const std::bad_alloc&) {  // the rest stays in ending_, for the next call
}

void GpuExports::withdraw_when_idle(std::uint64_t id) noexcept {
  try {
    std::lock_guard lock(mutex_);
    if (entries_.contains(id)) ending_.push_back(id);
  } catch (const std::bad_alloc&) {
    return;
  }
  end_when_idle();
}

GpuExports::~GpuExports() {
  std::lock_guard lock(alive_->mutex);
  alive_->exports = nullptr;
}

bool GpuExports::ended(std::uint64_t id) {
  end_when_idle();
  std::lock_guard lock(mutex_);
  return !entries_.contains(id);
}

bool GpuExports::exists(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  return entries_.contains(id);
}

void GpuExports::check_for_freed_range() {
  if (registrations_.empty()) return;
  auto next = registrations_.upper_bound(checked_registration_);
  if (next == registrations_.end()) next = registrations_.begin();
  checked_registration_ = next->first;
  if (next->second == nullptr) return;
  const auto [from, to] = ranges_.equal_range(next->second);
  const auto range =
      std::find_if(from, to, [&](const auto& r) { return r.second.number == checked_registration_; });
  if (range == to || still(next->second, range->second.allocation)) return;
  // Pieces of memory of cuMemMap are retained: other ranks that have mapped them access memory that still
  // exists. This rank's own operations fault where the memory was unmapped.
  if (entries_[range->second.id].pieces.empty())
    OURO_WARN(
        "the memory registered at {} ({} bytes) was freed before its registration ended: ranks no longer "
        "reach it, and what they did there since is undefined",
        fmt::ptr(next->second), range->second.end - range->first);
  else
    OURO_INFO(REG, "the memory registered at {} ({} bytes) was unmapped before its registration ended",
              fmt::ptr(next->second), range->second.end - range->first);
  make_room_to_end();
  drop_range(range);
  next->second = nullptr;
}

void GpuExports::make_room_to_end() {
  ending_.reserve(ending_.size() + 2 * (ranges_.size() + unions_.size()));  // stop_using adds up to two
}

Result<std::vector<std::uint64_t>> GpuExports::deregister(std::uint64_t registration) {
  std::vector<std::uint64_t> to_be_closed;
  {
    std::lock_guard lock(mutex_);
    const auto known = registrations_.find(registration);
    if (known == registrations_.end()) return invalid("this registration has ended already");
    // Everything that throws precedes the first change, so that the caller can try again.
    make_room_to_end();
    to_be_closed.reserve(2 * (ranges_.size() + unions_.size()));
    const std::size_t before = ending_.size();
    checked_registration_ = registration - 1;
    check_for_freed_range();  // warns if the memory has been freed already
    if (known->second != nullptr) {
      auto it = ranges_.lower_bound(known->second);
      while (it->second.number != registration) ++it;
      drop_range(it);
    }
    registrations_.erase(known);
    for (std::size_t i = before; i < ending_.size(); ++i)
      if (entries_[ending_[i]].has_handle) to_be_closed.push_back(ending_[i]);
  }
  end_when_idle();
  return to_be_closed;
}

}  // namespace ouro::rt
