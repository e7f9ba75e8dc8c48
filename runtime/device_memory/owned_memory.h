// Owners of device memory: blocks that this library allocates, and pieces of the program's memory that it
// keeps allocated. Used by exports, multicast objects and the GPU executors.
#pragma once
#include <cstddef>
#include <memory>

#include "kernels/device/gpu.h"
#include "runtime/core/status.h"

namespace ouro::rt {

class ZeroingStream;

/// Device memory that this library allocates. It is freed after the last owner is destroyed, when the process
/// is idle (free_when_idle), because a driver may wait for all work when it frees.
class GpuBlock {
 public:
  /// Allocates zero-filled memory. It can be shared by descriptor where the device supports that; elsewhere
  /// it is ordinary memory, which a legacy handle may still share.
  static Result<std::shared_ptr<GpuBlock>> create(int device, std::size_t bytes);
  ~GpuBlock();
  GpuBlock(const GpuBlock&) = delete;
  GpuBlock& operator=(const GpuBlock&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(region_.data); }
  std::size_t bytes() const { return bytes_; }
  int device() const { return region_.device; }
  bool shareable() const { return shareable_; }
  const gpu::Region& region() const { return region_; }

 private:
  GpuBlock() = default;
  std::shared_ptr<ZeroingStream> stream_;
  gpu::Region region_;
  std::size_t bytes_ = 0;
  bool shareable_ = false;
};

/// A reference to one piece of VMM memory that the program allocated. It keeps the memory allocated, even if
/// the program unmaps it. The reference is released when the process is idle (free_when_idle), because the
/// release may free the memory.
class RetainedPiece {
 public:
  /// Retains the piece around `p`. Errors: those of gpu::Gpu::retain_piece.
  static Result<std::shared_ptr<RetainedPiece>> retain(const void* p);
  ~RetainedPiece();
  RetainedPiece(const RetainedPiece&) = delete;
  RetainedPiece& operator=(const RetainedPiece&) = delete;
  const gpu::Region& region() const { return region_; }
  std::byte* begin() const { return static_cast<std::byte*>(region_.data); }
  std::byte* end() const { return begin() + region_.bytes; }

 private:
  RetainedPiece() = default;
  gpu::Region region_;
  bool retained_ = false;
};

}  // namespace ouro::rt
