// Memory that the program has mapped with cuMemMap: retaining its pieces, and mapping those of another
// process into one range. See gpu.h; used through cuda_memory.h.
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/device/cuda/cuda_driver.h"
#include "kernels/device/cuda/cuda_memory.h"
#include "kernels/device/cuda/cuda_terms.h"

namespace ouro::gpu {

Result<Region> CudaMemory::retain_piece(const void* p) {
  OURO_ASSIGN(const PointerInfo what, pointer(p));
  if (what.kind != MemoryKind::device)
    return invalid(fmt::format("{} is no memory of a device: nothing to share", p));
  OURO_ON(what.device);
  const Relaxed relaxed;
  CUmemGenericAllocationHandle handle = 0;
  const CUresult error = driver().cuMemRetainAllocationHandle(&handle, const_cast<void*>(p));
  if (error == CUDA_ERROR_INVALID_VALUE)
    return unsupported(fmt::format(
        "{} was mapped neither by cudaMalloc nor by cuMemMap (memory of cudaMallocAsync, perhaps)", p));
  OURO_TRY(check(error, "cuMemRetainAllocationHandle"));
  Region r{.device = what.device, .data = what.base, .bytes = what.bytes, .handle = handle};
  CUmemAllocationProp made = {};
  Status known = check(driver().cuMemGetAllocationPropertiesFromHandle(&made, handle),
                       "cuMemGetAllocationPropertiesFromHandle");
  if (known.ok())
    if (const std::string why = why_not_shareable(made); !why.empty())
      known = unsupported(fmt::format("other processes cannot map the memory at {}: {}", p, why));
  if (!known.ok()) {
    (void)driver().cuMemRelease(handle);
    return known;
  }
  return r;
}

Status CudaMemory::release_piece(const Region& r) {
  OURO_ON(r.device);
  const Relaxed relaxed;
  return check(driver().cuMemRelease(r.handle), "cuMemRelease");
}

Result<Fd> CudaMemory::export_piece(const Region& r) { return export_fd(r); }

Status CudaMemory::open_to_peers(const Region& r) {
  OURO_ON(r.device);
  const Relaxed relaxed;
  std::vector<CUmemAccessDesc> access;
  for (int other = 0; other < devices(); ++other)
    if (other != r.device && peer_access(other, r.device))
      access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, other}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  if (access.empty()) return {};
  return check(driver().cuMemSetAccess(address(r.data), r.bytes, access.data(), access.size()),
               "cuMemSetAccess");
}

Result<MappedRange> CudaMemory::reserve_range(int device, std::size_t bytes) {
  OURO_ON(device);
  if (bytes == 0) return invalid("a range of 0 bytes");
  const Relaxed relaxed;
  CUdeviceptr at = 0;
  OURO_DRIVER(cuMemAddressReserve, &at, bytes, 0, 0, 0);
  return MappedRange{.device = device, .data = reinterpret_cast<void*>(at), .bytes = bytes};
}

Status CudaMemory::map_piece(MappedRange* r, const Fd& fd, std::size_t bytes) {
  OURO_ON(r->device);
  if (bytes == 0 || bytes > r->bytes - r->mapped)
    return invalid(fmt::format("a piece of {} bytes, where {} are left", bytes, r->bytes - r->mapped));
  const Relaxed relaxed;
  const Driver& d = driver();
  CUmemGenericAllocationHandle handle = 0;
  void* number = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get()));  // the driver's type
  OURO_DRIVER(cuMemImportFromShareableHandle, &handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const CUdeviceptr at = address(r->data) + r->mapped;
  Status mapped = check(d.cuMemMap(at, bytes, 0, handle, 0), "cuMemMap");
  // A mapping keeps the memory, so the handle is not needed any more.
  if (Status s = check(d.cuMemRelease(handle), "cuMemRelease"); mapped.ok() && !s.ok()) {
    (void)d.cuMemUnmap(at, bytes);
    return s;
  }
  OURO_TRY(std::move(mapped));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, r->device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  Status s = check(d.cuMemSetAccess(at, bytes, &access, 1), "cuMemSetAccess");
  if (!s.ok()) {
    (void)d.cuMemUnmap(at, bytes);
    return s;
  }
  r->mapped += bytes;
  return {};
}

Status CudaMemory::free_range(const MappedRange& r) {
  OURO_ON(r.device);
  const Relaxed relaxed;
  const Driver& d = driver();
  Status unmapped;  // CUDA can unmap all pieces by one call
  if (r.mapped > 0) unmapped = check(d.cuMemUnmap(address(r.data), r.mapped), "cuMemUnmap");
  Status freed = check(d.cuMemAddressFree(address(r.data), r.bytes), "cuMemAddressFree");
  return unmapped.ok() ? freed : unmapped;
}

}  // namespace ouro::gpu
