// Multicast objects of CUDA. See cuda_memory.h.
#include <fmt/format.h>

#include <utility>

#include "kernels/device/cuda/cuda_driver.h"
#include "kernels/device/cuda/cuda_memory.h"

namespace ouro::gpu {
namespace {

Status has_multicast(int device) {
  if (driver().cuMulticastCreate != nullptr && attribute(CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device))
    return {};
  return unsupported(fmt::format("GPU {}, or its driver, has no multicast objects", device));
}

/// The driver's handle of the runtime's device.
Result<CUdevice> handle_of(int device) {
  CUdevice handle = 0;
  OURO_DRIVER(cuDeviceGet, &handle, device);
  return handle;
}

}  // namespace

Result<Multicast> CudaMemory::multicast_create(int device, int devices, std::size_t bytes) {
  OURO_ON(device);
  OURO_TRY(has_multicast(device));
  const Relaxed relaxed;
  CUmulticastObjectProp kind = {};
  kind.numDevices = static_cast<unsigned>(devices);
  kind.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  kind.size = bytes;
  // The recommended granularity is hundreds of MiB on some devices, which is too much for a group's
  // staging buffers.
  std::size_t grain = 0;
  OURO_DRIVER(cuMulticastGetGranularity, &grain, &kind, CU_MULTICAST_GRANULARITY_MINIMUM);
  kind.size = (bytes + grain - 1) / grain * grain;
  CUmemGenericAllocationHandle handle = 0;
  if (const CUresult error = driver().cuMulticastCreate(&handle, &kind); error != CUDA_SUCCESS)
    return failed(error, "cuMulticastCreate", fmt::format("{} bytes on {} devices", kind.size, devices));
  return Multicast{.device = device, .bytes = kind.size, .handle = handle};
}

Result<Fd> CudaMemory::export_fd(const Multicast& m) {
  return export_fd(Region{.device = m.device, .bytes = m.bytes, .handle = m.handle});
}

Result<Multicast> CudaMemory::multicast_import(int device, const Fd& fd, std::size_t bytes) {
  OURO_ON(device);
  OURO_TRY(has_multicast(device));
  const Relaxed relaxed;
  CUmemGenericAllocationHandle handle = 0;
  void* number = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get()));  // the driver's type
  OURO_DRIVER(cuMemImportFromShareableHandle, &handle, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  return Multicast{.device = device, .bytes = bytes, .handle = handle};
}

Status CudaMemory::multicast_join(const Multicast& m) {
  OURO_ON(m.device);
  const Relaxed relaxed;
  OURO_ASSIGN(const CUdevice device, handle_of(m.device));
  OURO_DRIVER(cuMulticastAddDevice, m.handle, device);
  return {};
}

Status CudaMemory::multicast_bind(Multicast* m, const Region& r) {
  OURO_ON(m->device);
  if (r.device != m->device || r.bytes < m->bytes)
    return invalid(fmt::format("{} bytes of device {} bound as {} of device {}", r.bytes, r.device, m->bytes,
                               m->device));
  const Relaxed relaxed;
  const Driver& d = driver();
  OURO_DRIVER(cuMulticastBindMem, m->handle, 0, r.handle, 0, m->bytes, 0);
  m->region = r;  // from here on free_multicast unbinds
  CUdeviceptr at = 0;
  OURO_DRIVER(cuMemAddressReserve, &at, m->bytes, 0, 0, 0);
  Status s = check(d.cuMemMap(at, m->bytes, 0, m->handle, 0), "cuMemMap");
  if (!s.ok()) {
    (void)d.cuMemAddressFree(at, m->bytes);
    return s;
  }
  m->data = reinterpret_cast<void*>(at);
  const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, m->device},
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OURO_DRIVER(cuMemSetAccess, at, m->bytes, &access, 1);
  return {};
}

Status CudaMemory::free_multicast(const Multicast& m) {
  OURO_ON(m.device);
  const Relaxed relaxed;
  const Driver& d = driver();
  Status first;
  const auto note = [&](Status s) {
    if (first.ok()) first = std::move(s);
  };
  if (m.data != nullptr) {
    note(check(d.cuMemUnmap(address(m.data), m.bytes), "cuMemUnmap"));
    note(check(d.cuMemAddressFree(address(m.data), m.bytes), "cuMemAddressFree"));
  }
  if (m.region.data != nullptr) {
    auto device = handle_of(m.device);
    note(device.ok() ? check(d.cuMulticastUnbind(m.handle, *device, 0, m.bytes), "cuMulticastUnbind")
                     : device.status());
  }
  note(check(d.cuMemRelease(m.handle), "cuMemRelease"));
  return first;
}

}  // namespace ouro::gpu
