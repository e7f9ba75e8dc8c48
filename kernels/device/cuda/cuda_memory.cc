// Memory of CUDA: allocations, regions and handles for other processes, properties of pointers,
// pinned memory.
// See cuda_memory.h.
#include "kernels/device/cuda/cuda_memory.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/device/cuda/cuda_driver.h"
#include "kernels/device/cuda/cuda_terms.h"

namespace ouro::gpu {
namespace {

Status no_bytes() { return invalid("an allocation of 0 bytes"); }

/// Undoes what was done so far when map() or its caller fails.
Status unmap(const Region& r, bool mapped) {
  const Driver& d = driver();
  Status first;
  const auto note = [&](Status s) {
    if (first.ok()) first = std::move(s);
  };
  if (mapped) note(check(d.cuMemUnmap(address(r.data), r.bytes), "cuMemUnmap"));
  if (r.data != nullptr) note(check(d.cuMemAddressFree(address(r.data), r.bytes), "cuMemAddressFree"));
  note(check(d.cuMemRelease(r.handle), "cuMemRelease"));
  return first;
}

/// Gives r.handle an address that `devices` can read and write. Releases the handle if it fails.
Status map(Region& r, const std::vector<int>& devices) {
  const Driver& d = driver();
  CUdeviceptr at = 0;
  if (Status s = check(d.cuMemAddressReserve(&at, r.bytes, 0, 0, 0), "cuMemAddressReserve"); !s.ok()) {
    (void)unmap(r, false);
    return s;
  }
  r.data = reinterpret_cast<void*>(at);
  if (Status s = check(d.cuMemMap(at, r.bytes, 0, r.handle, 0), "cuMemMap"); !s.ok()) {
    (void)unmap(r, false);
    return s;
  }
  std::vector<CUmemAccessDesc> access;
  for (int device : devices)
    access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  Status s = check(d.cuMemSetAccess(at, r.bytes, access.data(), access.size()), "cuMemSetAccess");
  if (!s.ok()) (void)unmap(r, true);
  return s;
}

}  // namespace

Result<void*> CudaMemory::alloc(int device, std::size_t bytes) {
  OURO_ON(device);
  if (bytes == 0) return no_bytes();
  const Relaxed relaxed;
  void* p = nullptr;
  if (const cudaError_t error = cudaMalloc(&p, bytes); error != cudaSuccess)
    return failed(error, "cudaMalloc", fmt::format("{} bytes on device {}", bytes, device));
  return p;
}

Status CudaMemory::free(void* p) {
  return aside(kAnyDevice, "cudaFree", [&] { return cudaFree(p); });
}

Result<Region> CudaMemory::alloc_shareable(int device, std::size_t bytes) {
  OURO_ON(device);
  if (bytes == 0) return no_bytes();
  const Relaxed relaxed;
  const CUmemAllocationProp kind =
      shareable_terms(device, attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device));
  std::size_t grain = 0;
  OURO_DRIVER(cuMemGetAllocationGranularity, &grain, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  Region r{.device = device, .bytes = (bytes + grain - 1) / grain * grain};
  CUmemGenericAllocationHandle handle = 0;
  if (const CUresult error = driver().cuMemCreate(&handle, r.bytes, &kind, 0); error != CUDA_SUCCESS)
    return failed(error, "cuMemCreate", fmt::format("{} bytes on device {}", r.bytes, device));
  r.handle = handle;
  // Unlike memory of cudaMalloc it is not opened to peers by cudaDeviceEnablePeerAccess.
  std::vector<int> readers = {device};
  for (int other = 0; other < devices(); ++other)
    if (other != device && peer_access(other, device)) readers.push_back(other);
  OURO_TRY(map(r, readers));
  return r;
}

Result<Fd> CudaMemory::export_fd(const Region& r) {
  OURO_ON(r.device);
  int fd = -1;
  OURO_DRIVER(cuMemExportToShareableHandle, &fd, r.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  Fd owned(fd);
  if (::fcntl(owned.get(), F_SETFD, FD_CLOEXEC) != 0)
    return Status{Reason::resource,
                  fmt::format("fcntl(FD_CLOEXEC) of exported memory: {}", std::strerror(errno))};
  return owned;
}

Result<Region> CudaMemory::import_fd(int device, const Fd& fd, std::size_t bytes) {
  OURO_ON(device);
  const Relaxed relaxed;
  CUmemGenericAllocationHandle handle = 0;
  void* number = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get()));  // the driver's type
  OURO_DRIVER(cuMemImportFromShareableHandle, &handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  Region r{.device = device, .bytes = bytes, .handle = handle};
  OURO_TRY(map(r, {device}));
  return r;
}

/// Unlike free, it does not wait: the caller ensures that the region is not in use.
Status CudaMemory::free_region(const Region& r) {
  OURO_ON(r.device);
  const Relaxed relaxed;
  return unmap(r, true);
}

Result<IpcHandle> CudaMemory::ipc_export(void* base) {
  const Result<PointerInfo> what = pointer(base);
  OURO_TRY(what.status());
  if (what->kind != MemoryKind::device)
    return invalid(fmt::format("{} is no memory of a device: nothing to export", base));
  if (!what->legacy_ipc)
    return unsupported(fmt::format("{} was not allocated by cudaMalloc: CUDA IPC cannot share it", base));
  OURO_ON(what->device);
  const Relaxed relaxed;
  cudaIpcMemHandle_t native_handle = {};
  OURO_CUDA(cudaIpcGetMemHandle, &native_handle, base);
  IpcHandle handle;
  static_assert(sizeof(handle) == sizeof(native_handle));
  std::memcpy(handle.data(), &native_handle, sizeof(handle));
  return handle;
}

Result<void*> CudaMemory::ipc_open(int device, const IpcHandle& handle) {
  OURO_ON(device);
  const Relaxed relaxed;
  cudaIpcMemHandle_t native_handle = {};
  std::memcpy(&native_handle, handle.data(), sizeof(handle));
  void* p = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&p, native_handle, cudaIpcMemLazyEnablePeerAccess);
  if (error == cudaErrorDeviceUninitialized) {  // how CUDA says it
    (void)cudaGetLastError();
    return invalid(
        "cudaIpcOpenMemHandle: this memory was exported by this very process: use its own address");
  }
  OURO_TRY(check(error, "cudaIpcOpenMemHandle"));
  return p;
}

Status CudaMemory::ipc_close(int device, void* p) {
  return aside(device, "cudaIpcCloseMemHandle", [&] { return cudaIpcCloseMemHandle(p); });
}

Result<PointerInfo> CudaMemory::pointer(const void* p) {
  OURO_TRY(works());
  // One call queries all attributes. It needs no context, and leaves zeros for memory that is not CUDA's.
  unsigned type = 0, managed = 0, legacy = 0;
  int device = -1;
  unsigned long long id = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* values[] = {&type, &managed, &legacy, &device, &id};
  const CUresult error = driver().cuPointerGetAttributes(std::size(names), names, values, address(p));
  if (error == CUDA_ERROR_INVALID_VALUE || error == CUDA_ERROR_INVALID_CONTEXT)
    type = 0;
  else
    OURO_TRY(check(error, "cuPointerGetAttributes"));

  PointerInfo info;
  if (type == 0) {
    info.kind = p == nullptr ? MemoryKind::unknown : MemoryKind::host;
    return info;
  }
  info.allocation = id;
  if (managed != 0) {
    info.kind = MemoryKind::managed;
    info.device = device;
  } else if (type == CU_MEMORYTYPE_HOST) {
    info.kind = MemoryKind::pinned;
  } else {
    info.kind = MemoryKind::device;
    info.device = device;
    info.legacy_ipc = legacy != 0;
    OURO_ON(device);
    CUdeviceptr base = 0;
    // The documentation does not say whether this is one mapping of cuMemMap or more.
    OURO_DRIVER(cuMemGetAddressRange, &base, &info.bytes, address(p));
    if (!info.legacy_ipc) mapping_around(address(p), &base, &info.bytes);
    info.base = reinterpret_cast<void*>(base);
  }
  return info;
}

Result<void*> CudaMemory::alloc_pinned(std::size_t bytes) {
  OURO_ON(kAnyDevice);
  if (bytes == 0) return no_bytes();
  const Relaxed relaxed;
  void* p = nullptr;
  OURO_CUDA(cudaHostAlloc, &p, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  return p;
}

Status CudaMemory::free_pinned(void* p) {
  return aside(kAnyDevice, "cudaFreeHost", [&] { return cudaFreeHost(p); });
}

Result<void*> CudaMemory::register_host(void* p, std::size_t bytes) {
  OURO_ON(kAnyDevice);
  const Relaxed relaxed;
  OURO_CUDA(cudaHostRegister, p, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  void* on_device = nullptr;
  if (Status s = check(cudaHostGetDevicePointer(&on_device, p, 0), "cudaHostGetDevicePointer"); !s.ok()) {
    (void)cudaHostUnregister(p);
    return s;
  }
  return on_device;
}

Status CudaMemory::unregister_host(void* p) {
  return aside(kAnyDevice, "cudaHostUnregister", [&] { return cudaHostUnregister(p); });
}

}  // namespace ouro::gpu
