// One rank's part in a multicast object: memory of its GPU that a switch reads and writes together with that
// of others. Used by the context, which passes the object between ranks, and by the resident executor.
#pragma once
#include <cstddef>
#include <memory>

#include "kernels/device/gpu.h"
#include "runtime/device_memory/cuda_ipc.h"

namespace ouro::rt {

/// Made by one rank, imported by the others; then each joins, and when all have, each binds. A step that has
/// failed fails again with the same error, so that every rank that asks gets it. Freed when the process is
/// idle (free_when_idle), since a driver may wait for all work then. One thread at a time.
class GpuMulticast {
 public:
  static Result<std::shared_ptr<GpuMulticast>> create(int device, int ranks, std::size_t bytes);
  static Result<std::shared_ptr<GpuMulticast>> import(int device, const Fd& object, std::size_t bytes);
  ~GpuMulticast();
  GpuMulticast(const GpuMulticast&) = delete;
  GpuMulticast& operator=(const GpuMulticast&) = delete;

  Status join();
  /// After all ranks have joined: memory is made, bound, and mapped. Only when all have bound may a kernel
  /// touch it.
  Status bind();
  const Status& failed() const { return failed_; }  ///< of the steps above
  Result<ExportHandles> offer() const;

  std::byte* address() const { return static_cast<std::byte*>(object_.data); }  ///< of all ranks' memory
  std::byte* own() const { return memory_ ? memory_->data() : nullptr; }        ///< of this rank's
  std::size_t bytes() const { return object_.bytes; }

 private:
  GpuMulticast() = default;
  gpu::Multicast object_;
  std::shared_ptr<GpuBlock> memory_;
  bool made_ = false, joined_ = false, bound_ = false;
  Status failed_;
};

}  // namespace ouro::rt
