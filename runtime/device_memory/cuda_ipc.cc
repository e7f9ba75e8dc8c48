// Export and import of device memory. See cuda_ipc.h.
#include "runtime/device_memory/cuda_ipc.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ouro::rt {

Result<std::shared_ptr<GpuBlock>> GpuBlock::create(int device, std::size_t bytes) {
  auto properties = gpu::gpu().properties(device);
  if (!properties.ok()) return properties.status();
  const auto block = free_when_idle(std::shared_ptr<GpuBlock>(new GpuBlock));
  block->bytes_ = bytes;
  if (properties->shareable_memory) {
    auto region = gpu::gpu().alloc_shareable(device, bytes);
    if (!region.ok()) return region.status();
    block->region_ = *region;
    block->shareable_ = true;
  } else {
    auto data = gpu::gpu().alloc(device, bytes);
    if (!data.ok()) return data.status();
    block->region_ = {device, *data, bytes, 0};
  }
  auto stream = gpu::gpu().create_stream(device, properties->low_priority);
  if (!stream.ok()) return stream.status();
  Status zeroed = gpu::gpu().set(block->data(), 0, bytes, *stream);
  if (zeroed.ok()) zeroed = gpu::gpu().synchronize(*stream);
  Status ended = gpu::gpu().destroy_stream(*stream);
  if (!zeroed.ok()) return zeroed;
  if (!ended.ok()) return ended;
  return block;
}

GpuBlock::~GpuBlock() {
  if (region_.data) (void)(shareable_ ? gpu::gpu().free_region(region_) : gpu::gpu().free(region_.data)).ok();
}

// ---- exports --------------------------------------------------------------------------------------

std::uint64_t GpuExports::add(std::shared_ptr<GpuBlock> block) {
  Entry e{.base = block->data(), .bytes = block->bytes()};
  if (!block->shareable()) {
    auto handle = gpu::gpu().ipc_export(block->data());
    if (!handle.ok()) return 0;  // for this process only
    e.handle = *handle;
    e.has_handle = true;
  }
  e.block = std::move(block);
  std::lock_guard lock(mutex_);
  entries_[next_] = std::move(e);
  return next_++;
}

void GpuExports::withdraw(std::uint64_t id) {
  decltype(entries_)::node_type gone;  // after the lock
  std::lock_guard lock(mutex_);
  gone = end(id);
}

/// An export that was never offered is mapped nowhere. Announcing its end would only displace older
/// announcements that importers still need.
std::map<std::uint64_t, GpuExports::Entry>::node_type GpuExports::end(std::uint64_t id) {
  auto gone = entries_.extract(id);
  if (!gone) return gone;
  endings_.fetch_add(1, std::memory_order_acq_rel);
  if (gone.mapped().offered) dropped_(id);
  return gone;
}

GpuRef GpuExports::in_block(const std::byte* p, std::size_t bytes) const {
  for (const auto& [id, e] : entries_)
    if (e.block && p >= e.base && p + bytes <= e.base + e.bytes)
      return {id, static_cast<std::uint64_t>(p - e.base), reinterpret_cast<std::uint64_t>(p)};
  return {0, 0, reinterpret_cast<std::uint64_t>(p)};
}

Result<GpuRef> GpuExports::find_lasting(const void* p, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  const auto* at = static_cast<const std::byte*>(p);
  const GpuRef ours = in_block(at, bytes);
  return ours.id != 0 || ranges_.empty() ? ours : in_range(at, bytes);
}

void GpuExports::drop(std::map<std::uint64_t, std::uint64_t>::iterator by_base) {
  const std::uint64_t gone = by_base->second;
  by_base_.erase(by_base);
  end(gone);
}

bool GpuExports::still(const void* p, std::uint64_t allocation) {
  const auto info = gpu::gpu().pointer(p);
  return info.ok() && info->kind == gpu::MemoryKind::device && info->allocation == allocation;
}

void GpuExports::check_for_freed() {
  constexpr std::uint64_t kEvery =
      4;  // calls: a check costs as much as a call that finds the program's memory
  {
    std::lock_guard lock(mutex_);
    if (by_base_.empty() && registrations_.empty()) return;
    if (++calls_ % kEvery != 0) return;
    check_for_freed_range();
    if (!by_base_.empty()) {
      auto next = by_base_.upper_bound(checked_at_);
      if (next == by_base_.end()) next = by_base_.begin();
      checked_at_ = next->first;
      if (!still(reinterpret_cast<const void*>(next->first), entries_[next->second].allocation)) drop(next);
    }
  }
  end_when_idle();
}

/// Whether [at, end) is memory of the device. A buffer in memory of cuMemMap may lie across mappings.
static bool goes_on(const std::byte* at, const std::byte* end, int device) {
  while (at < end) {
    const auto next = gpu::gpu().pointer(at);
    if (!next.ok() || next->kind != gpu::MemoryKind::device || next->device != device || next->legacy_ipc ||
        !next->base)
      return false;
    at = static_cast<const std::byte*>(next->base) + next->bytes;
  }
  return true;
}

Result<GpuRef> GpuExports::find(const void* p, std::size_t bytes, int device) {
  const auto* at = static_cast<const std::byte*>(p);
  const auto address = reinterpret_cast<std::uint64_t>(p);
  check_for_freed();
  std::lock_guard lock(mutex_);
  if (const GpuRef ours = in_block(at, bytes); ours.id != 0) return ours;
  if (!ranges_.empty())
    if (const GpuRef registered = in_range(at, bytes); registered.id != 0) return registered;
  auto info = gpu::gpu().pointer(p);
  if (!info.ok()) return info.status();
  if (info->kind != gpu::MemoryKind::device && info->kind != gpu::MemoryKind::managed)
    return invalid(fmt::format("{} is not memory of a GPU, though its view says so", fmt::ptr(p)));
  if (info->device != device)
    return invalid(fmt::format("a buffer on GPU {}, in a view that says GPU {}", info->device, device));
  if (const auto* end = static_cast<const std::byte*>(info->base) + info->bytes;
      info->base && at + bytes > end && (info->legacy_ipc || !goes_on(end, at + bytes, device)))
    return invalid(
        fmt::format("a buffer of {} bytes reaches beyond its allocation of {}", bytes, info->bytes));
  if (!info->legacy_ipc || !info->base) return GpuRef{0, 0, address};
  const auto base = reinterpret_cast<std::uint64_t>(info->base);
  const auto known = by_base_.find(base);
  if (known != by_base_.end()) {
    if (entries_[known->second].allocation == info->allocation)
      return GpuRef{known->second, address - base, address};
    drop(known);  // freed since, and the address given out again
  }
  auto handle = gpu::gpu().ipc_export(info->base);
  if (!handle.ok()) return GpuRef{0, 0, address};
  const std::uint64_t id = next_++;
  entries_[id] = {.base = static_cast<std::byte*>(info->base),
                  .bytes = info->bytes,
                  .allocation = info->allocation,
                  .handle = *handle,
                  .has_handle = true};
  by_base_[base] = id;
  return GpuRef{id, address - base, address};
}

Result<ExportHandles> GpuExports::offer(std::uint64_t id, std::size_t first, std::size_t most) {
  ExportHandles offer;
  std::shared_ptr<GpuBlock> block;
  std::vector<std::shared_ptr<RetainedPiece>> pieces;
  {
    std::lock_guard lock(mutex_);
    const auto it = entries_.find(id);
    if (it == entries_.end()) return Status(Reason::refused, "this memory was freed");
    Entry& e = it->second;
    offer.bytes = e.bytes;
    if (e.block && e.block->shareable()) {
      block = e.block;
    } else if (!e.pieces.empty()) {
      if (first >= e.pieces.size()) return Status(Reason::refused, "this memory has fewer pieces");
      const auto from = e.pieces.begin() + static_cast<std::ptrdiff_t>(first);
      pieces.assign(from, from + static_cast<std::ptrdiff_t>(std::min(most, e.pieces.size() - first)));
    } else if (e.has_handle) {
      offer.handle = e.handle;
    } else {
      return Status(Reason::refused, "this memory is for its own process only");
    }
    e.offered = true;
  }
  if (block) {
    OURO_ASSIGN(offer.fd, gpu::gpu().export_fd(block->region()));
    offer.bytes = block->region().bytes;
  }
  for (const auto& piece : pieces) {
    OURO_ASSIGN(Fd fd, gpu::gpu().export_piece(piece->region()));
    offer.pieces.push_back({piece->region().bytes, std::move(fd)});
  }
  return offer;
}

// ---- imports --------------------------------------------------------------------------------------

Status GpuImport::map_pieces(int device, const ExportHandles& offer, const RequestHandles& more) {
  OURO_ASSIGN(range_, gpu::gpu().reserve_range(device, offer.bytes));
  data_ = static_cast<std::byte*>(range_.data);
  std::size_t many = 0;
  const auto map_all = [&](const ExportHandles& some) -> Status {
    if (some.pieces.empty()) return {Reason::refused, "a peer offered device memory with a piece missing"};
    many += some.pieces.size();
    for (const ExportHandles::Piece& piece : some.pieces)
      OURO_TRY(gpu::gpu().map_piece(&range_, piece.fd, piece.bytes));
    return {};
  };
  OURO_TRY(map_all(offer));
  while (range_.mapped < range_.bytes) {
    if (many >= GpuExports::kMaxPieces) return {Reason::refused, "a peer offered memory in too many pieces"};
    OURO_ASSIGN(const ExportHandles next, more(many));
    OURO_TRY(map_all(next));
  }
  return {};
}

Result<std::shared_ptr<GpuImport>> GpuImport::map(int device, const ExportHandles& offer,
                                                  const RequestHandles& more, std::shared_ptr<void> token) {
  const auto made = free_when_idle(std::shared_ptr<GpuImport>(new GpuImport(std::move(token))));
  made->device_ = device;
  made->bytes_ = offer.bytes;
  if (!offer.pieces.empty()) {
    OURO_TRY(made->map_pieces(device, offer, more));
  } else if (offer.fd) {
    OURO_ASSIGN(made->region_, gpu::gpu().import_fd(device, offer.fd, offer.bytes));
    made->data_ = static_cast<std::byte*>(made->region_.data);
  } else {
    OURO_ASSIGN(void* const data, gpu::gpu().ipc_open(device, offer.handle));
    made->data_ = static_cast<std::byte*>(data);
    made->legacy_ = true;
    // The offer's size is a peer's word. The other kinds fail where it is not that of the memory.
    OURO_ASSIGN(const auto here, gpu::gpu().pointer(data));
    const auto* const end = static_cast<const std::byte*>(here.base) + here.bytes;
    if (here.kind != gpu::MemoryKind::device || !here.base || end <= made->data_)
      return Status(Reason::refused, "a peer offered device memory, and its handle opened something else");
    made->bytes_ = std::min(made->bytes_, static_cast<std::size_t>(end - made->data_));
  }
  return made;
}

GpuImport::~GpuImport() {
  if (!data_) return;
  if (range_.data)
    (void)gpu::gpu().free_range(range_).ok();
  else
    (void)(legacy_ ? gpu::gpu().ipc_close(device_, data_) : gpu::gpu().free_region(region_)).ok();
}

Result<GpuImports::At> GpuImports::map(int device, const GpuRef& ref, std::size_t bytes,
                                       const RequestHandles& fetch) {
  std::lock_guard lock(mutex_);
  auto it = mapped_.find(ref.id);
  if (it == mapped_.end()) {
    OURO_ASSIGN(const ExportHandles offer, fetch(0));
    OURO_ASSIGN(auto mapped, GpuImport::map(device, offer, fetch, token_()));
    {
      std::lock_guard held(held_mutex_);
      std::erase_if(held_, [](const auto& h) { return h.second.expired(); });
      held_.emplace(ref.id, mapped->mapped());
    }
    it = mapped_.emplace(ref.id, std::move(mapped)).first;
  }
  const GpuImport& m = *it->second;
  // The reference was written by a peer: bounded by the size of what was mapped.
  if (ref.offset > m.bytes() || bytes > m.bytes() - ref.offset)
    return Status(Reason::ring_corrupt, fmt::format("a peer posted {} bytes at {} of device memory of {}",
                                                    bytes, ref.offset, m.bytes()));
  return At{m.data() + ref.offset, it->second};
}

void GpuImports::retire(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto it = mapped_.find(id);
  if (it == mapped_.end()) return;
  it->second->retire();
  mapped_.erase(it);
}

bool GpuImports::holds(std::uint64_t id) {
  std::lock_guard lock(held_mutex_);
  std::erase_if(held_, [](const auto& held) { return held.second.expired(); });
  return held_.contains(id);
}

void GpuImports::retire_all(bool marked) {
  std::lock_guard lock(mutex_);
  if (marked)
    for (const auto& [id, import] : mapped_) import->retire();
  mapped_.clear();
}

}  // namespace ouro::rt
