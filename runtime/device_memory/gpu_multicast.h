// One rank's part in a multicast object: memory of its GPU that a switch accesses together with that of
// others. Used by MulticastObjects, which passes the object between ranks, and by the resident path.
#pragma once
#include <cstddef>
#include <memory>

#include "kernels/device/gpu.h"
#include "runtime/device_memory/export_handles.h"
#include "runtime/device_memory/owned_memory.h"

namespace ouro::rt {

/// One rank creates the object and the others import it. Then each joins, and when all have joined, each
/// binds memory. A step that has failed fails again with the same error, so that every rank that asks
/// receives it. The part is freed when the process is idle (free_when_idle), since a driver may wait for all
/// work then. Only one thread may use it at a time.
class GpuMulticast {
 public:
  static Result<std::shared_ptr<GpuMulticast>> create(int device, int ranks, std::size_t bytes);
  static Result<std::shared_ptr<GpuMulticast>> import(int device, const Fd& object, std::size_t bytes);
  ~GpuMulticast();
  GpuMulticast(const GpuMulticast&) = delete;
  GpuMulticast& operator=(const GpuMulticast&) = delete;

  Status join();
  /// Allocates memory, binds and maps it, after all ranks have joined. A kernel may access it only after all
  /// ranks have bound theirs.
  Status bind();
  const Status& failed() const { return failed_; }  ///< the error of the step that failed
  /// Returns the descriptor with which other ranks import the object.
  Result<ExportHandles> handles() const;

  std::byte* address() const { return static_cast<std::byte*>(object_.data); }  ///< of all ranks' memory
  std::byte* own() const { return memory_ ? memory_->data() : nullptr; }        ///< of this rank's memory
  std::size_t bytes() const { return object_.bytes; }

 private:
  GpuMulticast() = default;
  gpu::Multicast object_;
  std::shared_ptr<GpuBlock> memory_;
  bool made_ = false, joined_ = false, bound_ = false;
  Status failed_;
};

}  // namespace ouro::rt
