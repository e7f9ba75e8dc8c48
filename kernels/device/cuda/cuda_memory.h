// The part of Gpu by CUDA that concerns memory. Used by cuda.cc, which adds the rest.
#pragma once
#include "kernels/device/gpu.h"

namespace ouro::gpu {

class CudaMemory : public Gpu {
 public:
  Result<void*> alloc(int device, std::size_t bytes) override;
  Status free(void*) override;
  Result<Region> alloc_shareable(int device, std::size_t bytes) override;
  Result<Fd> export_fd(const Region&) override;
  Result<Region> import_fd(int device, const Fd&, std::size_t bytes) override;
  Status free_region(const Region&) override;
  Result<IpcHandle> ipc_export(void* base) override;
  Result<void*> ipc_open(int device, const IpcHandle&) override;
  Status ipc_close(int device, void*) override;
  Result<PointerInfo> pointer(const void*) override;
  Result<void*> alloc_pinned(std::size_t bytes) override;
  Status free_pinned(void*) override;
  Result<void*> register_host(void*, std::size_t bytes) override;
  Status unregister_host(void*) override;
  // cuda_pieces.cc
  Result<Region> retain_piece(const void*) override;
  Status release_piece(const Region&) override;
  Result<Fd> export_piece(const Region&) override;
  Status open_to_peers(const Region&) override;
  Result<MappedRange> reserve_range(int device, std::size_t bytes) override;
  Status map_piece(MappedRange*, const Fd&, std::size_t bytes) override;
  Status free_range(const MappedRange&) override;
  // cuda_multicast.cc
  Result<Multicast> multicast_create(int device, int devices, std::size_t bytes) override;
  Result<Fd> export_fd(const Multicast&) override;
  Result<Multicast> multicast_import(int device, const Fd&, std::size_t bytes) override;
  Status multicast_join(const Multicast&) override;
  Status multicast_bind(Multicast*, const Region&) override;
  Status free_multicast(const Multicast&) override;
};

}  // namespace ouro::gpu
