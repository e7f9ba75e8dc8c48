// Allocation and retention of device memory. See owned_memory.h.
#include "runtime/device_memory/owned_memory.h"

#include <map>
#include <mutex>
#include <utility>

#include "runtime/core/per_process.h"
#include "runtime/device_memory/deferred_free.h"

namespace ouro::rt {

/// The stream that fills new blocks of a device with zeros. All blocks of the process share it, because a
/// driver has few hardware queues for all streams of a process. A rank that is a thread may allocate while
/// streams of the other ranks wait for it, so its stream must not share a queue with one of these.
class ZeroingStream {
 public:
  static Result<std::shared_ptr<ZeroingStream>> of_device(int device);
  ZeroingStream() = default;
  ~ZeroingStream() {
    if (stream_.device >= 0) (void)gpu::gpu().destroy_stream(stream_).ok();
  }
  ZeroingStream(const ZeroingStream&) = delete;
  ZeroingStream& operator=(const ZeroingStream&) = delete;
  /// Returns when the memory is zero.
  Status fill(void* data, std::size_t bytes) {
    OURO_TRY(gpu::gpu().set(data, 0, bytes, stream_));
    return gpu::gpu().synchronize(stream_);
  }

 private:
  gpu::Stream stream_;
};

namespace {

struct ZeroingStreams {
  std::mutex mutex;
  std::map<std::pair<gpu::Gpu*, int>, std::weak_ptr<ZeroingStream>> streams;
};
constinit PerProcess<ZeroingStreams> g_zeroing_streams;

}  // namespace

Result<std::shared_ptr<ZeroingStream>> ZeroingStream::of_device(int device) {
  OURO_ASSIGN(const gpu::Properties properties, gpu::gpu().properties(device));
  std::lock_guard lock(g_zeroing_streams->mutex);
  std::weak_ptr<ZeroingStream>& known = g_zeroing_streams->streams[{&gpu::gpu(), device}];
  std::shared_ptr<ZeroingStream> stream = known.lock();
  if (!stream) {
    stream = std::make_shared<ZeroingStream>();
    OURO_ASSIGN(stream->stream_, gpu::gpu().create_stream(device, properties.low_priority));
    known = stream;
  }
  return stream;
}

Result<std::shared_ptr<GpuBlock>> GpuBlock::create(int device, std::size_t bytes) {
  auto properties = gpu::gpu().properties(device);
  if (!properties.ok()) return properties.status();
  const auto block = free_when_idle(std::shared_ptr<GpuBlock>(new GpuBlock));
  OURO_ASSIGN(block->stream_, ZeroingStream::of_device(device));
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
  OURO_TRY(block->stream_->fill(block->data(), bytes));
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
