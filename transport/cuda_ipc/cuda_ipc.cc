// Export and import of device memory. See cuda_ipc.h.
#include "transport/cuda_ipc/cuda_ipc.h"

#include <fmt/format.h>

#include <utility>

namespace ouro::transport {

using gpu::gpu;

Result<std::shared_ptr<GpuBlock>> GpuBlock::create(int device, std::size_t bytes) {
  auto properties = gpu().properties(device);
  if (!properties.ok()) return properties.status();
  const auto block = when_quiet(std::shared_ptr<GpuBlock>(new GpuBlock));
  block->bytes_ = bytes;
  if (properties->shareable_memory) {
    auto region = gpu().alloc_shareable(device, bytes);
    if (!region.ok()) return region.status();
    block->region_ = *region;
    block->shareable_ = true;
  } else {
    auto data = gpu().alloc(device, bytes);
    if (!data.ok()) return data.status();
    block->region_ = {device, *data, bytes, 0};
  }
  auto stream = gpu().create_stream(device, properties->low_priority);
  if (!stream.ok()) return stream.status();
  Status zeroed = gpu().set(block->data(), 0, bytes, *stream);
  if (zeroed.ok()) zeroed = gpu().synchronize(*stream);
  Status ended = gpu().destroy_stream(*stream);
  if (!zeroed.ok()) return zeroed;
  if (!ended.ok()) return ended;
  return block;
}

GpuBlock::~GpuBlock() {
  if (region_.data) (void)(shareable_ ? gpu().free_region(region_) : gpu().free(region_.data)).ok();
}

// ---- exports --------------------------------------------------------------------------------------

std::uint64_t GpuExports::add(std::shared_ptr<GpuBlock> block) {
  Entry e{.base = block->data(), .bytes = block->bytes()};
  if (!block->shareable()) {
    auto handle = gpu().ipc_export(block->data());
    if (!handle.ok()) return 0;  // for this process only
    e.handle = *handle;
  }
  e.block = std::move(block);
  std::lock_guard lock(mutex_);
  entries_[next_] = std::move(e);
  return next_++;
}

void GpuExports::withdraw(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  if (entries_.erase(id) > 0) dropped_(id);
}

GpuRef GpuExports::in_block(const std::byte* p, std::size_t bytes) const {
  for (const auto& [id, e] : entries_)
    if (e.block && p >= e.base && p + bytes <= e.base + e.bytes)
      return {id, static_cast<std::uint64_t>(p - e.base), reinterpret_cast<std::uint64_t>(p)};
  return {0, 0, reinterpret_cast<std::uint64_t>(p)};
}

Result<GpuRef> GpuExports::find_block(const void* p, std::size_t bytes) const {
  std::lock_guard lock(mutex_);
  return in_block(static_cast<const std::byte*>(p), bytes);
}

void GpuExports::drop(std::map<std::uint64_t, std::uint64_t>::iterator by_base) {
  const std::uint64_t gone = by_base->second;
  entries_.erase(gone);
  by_base_.erase(by_base);
  dropped_(gone);
}

void GpuExports::look_for_freed() {
  constexpr std::uint64_t kEvery = 4;  // calls: a look costs what a call costs that finds a stranger's memory
  if (by_base_.empty() || ++calls_ % kEvery != 0) return;
  auto next = by_base_.upper_bound(looked_at_);
  if (next == by_base_.end()) next = by_base_.begin();
  looked_at_ = next->first;
  const auto info = gpu().pointer(reinterpret_cast<const void*>(next->first));
  if (!info.ok() || info->allocation != entries_[next->second].allocation) drop(next);
}

Result<GpuRef> GpuExports::find(const void* p, std::size_t bytes, int device) {
  const auto* at = static_cast<const std::byte*>(p);
  const auto address = reinterpret_cast<std::uint64_t>(p);
  std::lock_guard lock(mutex_);
  look_for_freed();
  if (const GpuRef ours = in_block(at, bytes); ours.id != 0) return ours;
  auto info = gpu().pointer(p);
  if (!info.ok()) return info.status();
  if (info->kind != gpu::MemoryKind::device && info->kind != gpu::MemoryKind::managed)
    return invalid(fmt::format("{} is not memory of a GPU, though its view says so", fmt::ptr(p)));
  if (info->device != device)
    return invalid(fmt::format("a buffer on GPU {}, in a view that says GPU {}", info->device, device));
  if (info->base && at + bytes > static_cast<const std::byte*>(info->base) + info->bytes)
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
  auto handle = gpu().ipc_export(info->base);
  if (!handle.ok()) return GpuRef{0, 0, address};
  const std::uint64_t id = next_++;
  entries_[id] = {.base = static_cast<std::byte*>(info->base),
                  .bytes = info->bytes,
                  .allocation = info->allocation,
                  .handle = *handle};
  by_base_[base] = id;
  return GpuRef{id, address - base, address};
}

Result<GpuOffer> GpuExports::offer(std::uint64_t id) const {
  std::lock_guard lock(mutex_);
  const auto it = entries_.find(id);
  if (it == entries_.end()) return Status(Reason::refused, "this memory was freed");
  const Entry& e = it->second;
  GpuOffer offer;
  offer.bytes = e.bytes;
  if (e.block && e.block->shareable()) {
    auto fd = gpu().export_fd(e.block->region());
    if (!fd.ok()) return fd.status();
    offer.bytes = e.block->region().bytes;
    offer.fd = std::move(*fd);
  } else {
    offer.handle = e.handle;
  }
  return offer;
}

// ---- imports --------------------------------------------------------------------------------------

Result<std::shared_ptr<GpuImport>> GpuImport::map(int device, const GpuOffer& offer) {
  const auto made = when_quiet(std::shared_ptr<GpuImport>(new GpuImport));
  if (offer.fd) {
    OURO_ASSIGN(made->region_, gpu().import_fd(device, offer.fd, offer.bytes));
    made->data_ = static_cast<std::byte*>(made->region_.data);
  } else {
    OURO_ASSIGN(void* const data, gpu().ipc_open(device, offer.handle));
    made->data_ = static_cast<std::byte*>(data);
    made->legacy_ = true;
  }
  made->bytes_ = offer.bytes;
  made->device_ = device;
  return made;
}

GpuImport::~GpuImport() {
  if (data_) (void)(legacy_ ? gpu().ipc_close(device_, data_) : gpu().free_region(region_)).ok();
}

Result<GpuImports::At> GpuImports::map(int device, const GpuRef& ref, std::size_t bytes,
                                       const std::function<Result<GpuOffer>()>& fetch) {
  std::lock_guard lock(mutex_);
  auto it = mapped_.find(ref.id);
  if (it == mapped_.end()) {
    OURO_ASSIGN(const GpuOffer offer, fetch());
    OURO_ASSIGN(auto mapped, GpuImport::map(device, offer));
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
  mapped_.erase(id);
}

void GpuImports::retire_all() {
  std::lock_guard lock(mutex_);
  mapped_.clear();
}

}  // namespace ouro::transport
