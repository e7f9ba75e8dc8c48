// The calls of a FakeGpu that concern memory. Used by fake_gpu.cc.
#pragma once
#include <atomic>

#include "kernels/device/fake/fake_peers.h"
#include "kernels/device/fake/fake_streams.h"

namespace ouro::gpu::fake {

/// Allocates memory, shares it between processes, and frees it once the work that may use it has ended.
class Allocator {
 public:
  Allocator(const FakeOptions& options, Control& control, Memory& memory, Peers& peers, Streams& streams)
      : options_(options), control_(control), memory_(memory), peers_(peers), streams_(streams) {}

  Result<void*> alloc(int device, std::size_t bytes);
  Result<Region> alloc_shareable(int device, std::size_t bytes);
  Result<void*> alloc_pinned(std::size_t bytes);
  Result<void*> register_host(void*, std::size_t bytes);
  Result<Fd> export_fd(const Region&);
  Result<Region> import_fd(int device, const Fd&, std::size_t bytes);
  Status free_region(const Region&);
  Result<IpcHandle> ipc_export(void* base);
  Result<void*> ipc_open(int device, const IpcHandle&);
  Status ipc_close(int device, void*);
  Result<Region> retain_piece(const void*);
  Status release_piece(const Region&);
  Result<Fd> export_piece(const Region&);
  Status open_to_peers(const Region&);
  Result<MappedRange> reserve_range(int device, std::size_t bytes);
  Status map_piece(MappedRange*, const Fd&, std::size_t bytes);
  Status free_range(const MappedRange&);
  Result<void*> reserve(int device, std::size_t bytes);
  Status unreserve(void*);
  Status map_chunk(int device, void* at, std::size_t bytes, bool shareable);
  Status unmap_chunk(void* at) { return release(Origin::chunk, at); }
  int freed_in_use() const { return freed_in_use_.load(std::memory_order_relaxed); }
  PointerInfo pointer(const void*) const;
  /// Regions (`at_once`) are freed without a wait; work that is enqueued keeps their pages until
  /// it has ended.
  Status release(Origin, void* base, bool at_once = false);

 private:
  Status wait_to_allocate(int device);  ///< negative: all devices
  Status wait_to_share(const void*);

  const FakeOptions& options_;
  Control& control_;
  Memory& memory_;
  Peers& peers_;
  Streams& streams_;
  std::atomic<int> freed_in_use_{0};
};

}  // namespace ouro::gpu::fake
