// Functions of the CUDA driver, for programs that use libcuda.so.1 in addition to the runtime: devices, and
// one context per device. They are in the library of the runtime, which libcuda.so.1 links to.
#include <dlfcn.h>

#include "driver.h"

using namespace ouro::test::cudart;
using ouro::gpu::FakeGpu;

namespace {

CUresult found(bool it) { return it ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; }
bool is_device(int device) { return world() && device >= 0 && device < world()->devices(); }

/// The context of a device is the device's number plus one.
CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::intptr_t>(device) + 1);
}
int device_of(CUcontext c) { return static_cast<int>(reinterpret_cast<std::intptr_t>(c)) - 1; }

}  // namespace

OURO_CU(cuInit, unsigned) { return world() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
OURO_CU(cuDriverGetVersion, int* version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
OURO_CU(cuGetErrorName, CUresult error, const char** text) {
  return *text = cudaGetErrorName(static_cast<cudaError_t>(error)), CUDA_SUCCESS;
}
OURO_CU(cuGetErrorString, CUresult error, const char** text) { return cuGetErrorName(error, text); }

OURO_CU(cuDeviceGetCount, int* count) { return *count = world() ? world()->devices() : 0, CUDA_SUCCESS; }
OURO_CU(cuDeviceGet, CUdevice* device, int ordinal) { return *device = ordinal, found(is_device(ordinal)); }
OURO_CU(cuDeviceGetAttribute, int* value, CUdevice_attribute attribute, CUdevice device) {
  return code_of(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device));
}

OURO_CU(cuDevicePrimaryCtxGetState, CUdevice device, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  return *active = is_device(device), found(is_device(device));
}
OURO_CU(cuDevicePrimaryCtxRetain, CUcontext* out, CUdevice device) {
  return *out = context_of(device), found(is_device(device));
}
OURO_CU(cuDevicePrimaryCtxRelease_v2, CUdevice device) { return found(is_device(device)); }
OURO_CU(cuCtxGetCurrent, CUcontext* out) {
  return drive("cuCtxGetCurrent", [&](FakeGpu& g) -> ouro::Status {
    OURO_ASSIGN(const int device, g.current_device());
    *out = context_of(device);
    return {};
  });
}
OURO_CU(cuCtxSetCurrent, CUcontext context) {
  return drive("cuCtxSetCurrent", [&](FakeGpu& g) { return g.set_current_device(device_of(context)); });
}
OURO_CU(cuCtxGetDevice, CUdevice* device) {
  return drive("cuCtxGetDevice", [&](FakeGpu& g) -> ouro::Status {
    OURO_ASSIGN(*device, g.current_device());
    return {};
  });
}

OURO_CU(cuMemGetAddressRange_v2, CUdeviceptr* base, size_t* bytes, CUdeviceptr p) {
  return drive("cuMemGetAddressRange", [&](FakeGpu& g) -> ouro::Status {
    OURO_ASSIGN(const auto about, g.pointer(reinterpret_cast<const void*>(p)));
    if (about.kind != ouro::gpu::MemoryKind::device) return ouro::invalid("the address is not of a device");
    if (base) *base = reinterpret_cast<CUdeviceptr>(about.base);
    if (bytes) *bytes = about.bytes;
    return {};
  });
}

/// Finds the newest version of a function. Also finds the functions that are missing here, which report that
/// when they are called.
OURO_CU(cuGetProcAddress_v2, const char* name, void** out, int, cuuint64_t,
        CUdriverProcAddressQueryResult* result) {
  *out = nullptr;
  for (const char* version : {"_v4", "_v3", "_v2", ""})
    if (!*out) *out = ::dlsym(RTLD_DEFAULT, (std::string(name) + version).c_str());
  if (result) *result = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
OURO_CUDART(cudaGetDriverEntryPointByVersion, const char* name, void** out, unsigned version,
            unsigned long long flags, cudaDriverEntryPointQueryResult* result) {
  CUdriverProcAddressQueryResult answer;
  const CUresult code = cuGetProcAddress_v2(name, out, static_cast<int>(version), flags, &answer);
  if (result) *result = static_cast<cudaDriverEntryPointQueryResult>(answer);
  return code == CUDA_ERROR_NOT_FOUND && result ? cudaSuccess : static_cast<cudaError_t>(code);
}
