// Allocation and retention of device memory. See owned_memory.h.
#include "runtime/device_memory/owned_memory.h"

#include "runtime/device_memory/deferred_free.h"

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
  if (!region_.data) return;
  (void)(shareable_ ? gpu::gpu().free_region(region_) : gpu::gpu().free(region_.data)).ok();
}

Result<std::shared_ptr<RetainedPiece>> RetainedPiece::retain(const void* p) {
  const auto piece = free_when_idle(std::shared_ptr<RetainedPiece>(new RetainedPiece));
  OURO_ASSIGN(piece->region_, gpu::gpu().retain_piece(p));
  piece->retained_ = true;
  return piece;
}

RetainedPiece::~RetainedPiece() {
  if (retained_) (void)gpu::gpu().release_piece(region_).ok();
}

}  // namespace ouro::rt
