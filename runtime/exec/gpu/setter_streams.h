// The streams that set words after a failure, and what they may still write to. Used by GpuArrivals.
#pragma once
#include <memory>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/core/status.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// One for all ranks of this process on a device, by priority (GpuStream::create): streams of each rank would
/// take hardware queues from the user's.
Result<std::shared_ptr<GpuStream>> setter_stream(int device, int priority);

/// Keeps memory that the stream may still write to, until it has. `stream` may be null.
void keep_until_written(const std::shared_ptr<GpuStream>& stream, std::vector<std::shared_ptr<void>> memory);

/// Whether nothing is in the stream. An error means that the device is lost: nothing runs there any more.
inline bool idle(const GpuStream& stream) {
  const auto ended = gpu::gpu().query(stream.peek());
  return !ended.ok() || *ended;
}

}  // namespace ouro::rt
