// The calls of a FakeGpu that enqueue work. Used by fake_gpu.cc.
#pragma once
#include <mutex>
#include <set>
#include <utility>

#include "kernels/device/fake/fake_peers.h"
#include "kernels/device/fake/fake_streams.h"
#include "kernels/device/fake/fake_work.h"

namespace ouro::gpu::fake {

/// Checks work (its addresses, its arguments, and that it fits on the device) and enqueues it on its stream.
class Submitter {
 public:
  Submitter(const FakeOptions& options, Control& control, Memory& memory, Peers& peers, Streams& streams)
      : options_(options),
        control_(control),
        memory_(memory),
        peers_(peers),
        streams_(streams),
        stack_(static_cast<std::size_t>(options.devices), options.stack_bytes) {}

  Status copy(void* to, const void* from, std::size_t bytes, Stream);
  Status set(void* to, std::uint8_t byte, std::size_t bytes, Stream);
  Status enqueue(std::span<const MemOp>, Stream);
  Status launch(const Kernel&, Shape, const void* args, Stream);
  Status call_host(Stream, void (*f)(void*), void* data);
  /// Frees device memory in stream order. Errors: unsupported (in a capture), invalid.
  Status free(void*, Stream);
  /// Blocks of so many threads that the device has room for at once. Errors: unsupported (no body), invalid.
  Result<int> resident_blocks(const Kernel&, int threads, int device);
  std::size_t local_bytes(const Kernel& k) const {
    return options_.local_bytes ? options_.local_bytes(k) : 0;
  }
  /// From now on each thread of the device has so much stack or more. `why` names the caller in the error.
  Status need_stack(int device, std::size_t bytes, const char* why);

 private:
  Status has_body(const Kernel&) const;
  Status load(const Kernel&, int device);  ///< once

  const FakeOptions& options_;
  Control& control_;
  Memory& memory_;
  Peers& peers_;
  Streams& streams_;
  std::mutex mutex_;
  std::set<std::pair<const char*, int>> loaded_;  ///< kernels, by their names, and devices
  std::vector<std::size_t> stack_;                ///< bytes of a thread, by device
};

}  // namespace ouro::gpu::fake
