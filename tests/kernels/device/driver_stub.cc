// See driver_stub.h. This file includes no header of CUDA: most functions are the same here, whatever their
// parameters, which they do not use.
#include "tests/kernels/device/driver_stub.h"

#include <cstddef>
#include <string_view>

namespace ouro::test {

DriverStub driver_stub;

namespace {

int counted(int result = 0) {
  ++driver_stub.calls;
  return result;
}
void* const kContext = &driver_stub;

int any() { return counted(); }
int get_current(void** context) {
  *context = driver_stub.context_current ? kContext : nullptr;
  return counted();
}
int retain(void** context, int) {
  *context = kContext;
  return counted();
}
int get_limit(std::size_t* value, int) {
  *value = driver_stub.stack;
  return counted();
}
int stream_context(void*, void** context, void** green) {
  *context = driver_stub.stream_context ? driver_stub.stream_context : kContext;
  *green = driver_stub.green_context;
  return counted();
}
int set_limit(int, std::size_t value) {
  driver_stub.stack = value;
  return counted();
}
/// The values are type, managed, legacy, device and identity, as cuda_memory.cc asks for them.
int attributes(unsigned, void*, void** values, unsigned long long) {
  constexpr unsigned kDevice = 2;
  *static_cast<unsigned*>(values[0]) = driver_stub.device_memory ? kDevice : 0;
  *static_cast<unsigned*>(values[2]) = driver_stub.legacy_memory;
  *static_cast<int*>(values[3]) = 0;
  return counted();
}

}  // namespace
}  // namespace ouro::test

using ouro::test::counted;
using ouro::test::driver_stub;

#define OURO_STUB(name) \
  extern "C" int name() { return counted(); }
OURO_STUB(cudaDeviceCanAccessPeer)
OURO_STUB(cudaDeviceEnablePeerAccess)
OURO_STUB(cudaDeviceFlushGPUDirectRDMAWrites)
OURO_STUB(cudaDeviceGetAttribute)
OURO_STUB(cudaDeviceGetPCIBusId)
OURO_STUB(cudaDeviceGetStreamPriorityRange)
OURO_STUB(cudaDriverGetVersion)
OURO_STUB(cudaEventCreateWithFlags)
OURO_STUB(cudaEventDestroy)
OURO_STUB(cudaEventElapsedTime)
OURO_STUB(cudaEventRecord)
OURO_STUB(cudaEventSynchronize)
OURO_STUB(cudaFree)
OURO_STUB(cudaFreeHost)
OURO_STUB(cudaFuncGetAttributes)
OURO_STUB(cudaGetDevice)
OURO_STUB(cudaGetDeviceProperties)
OURO_STUB(cudaGetLastError)
OURO_STUB(cudaGraphDestroy)
OURO_STUB(cudaGraphExecDestroy)
OURO_STUB(cudaGraphInstantiate)
OURO_STUB(cudaGraphLaunch)
OURO_STUB(cudaGraphUpload)
OURO_STUB(cudaHostAlloc)
OURO_STUB(cudaHostGetDevicePointer)
OURO_STUB(cudaHostRegister)
OURO_STUB(cudaHostUnregister)
OURO_STUB(cudaIpcCloseMemHandle)
OURO_STUB(cudaIpcGetMemHandle)
OURO_STUB(cudaIpcOpenMemHandle)
OURO_STUB(cudaLaunchHostFunc)
OURO_STUB(cudaLaunchKernelExC)
OURO_STUB(cudaMalloc)
OURO_STUB(cudaMemcpyAsync)
OURO_STUB(cudaMemsetAsync)
OURO_STUB(cudaOccupancyMaxActiveBlocksPerMultiprocessor)
OURO_STUB(cudaRuntimeGetVersion)
OURO_STUB(cudaSetDevice)
OURO_STUB(cudaStreamBeginCapture)
OURO_STUB(cudaStreamCreateWithPriority)
OURO_STUB(cudaStreamDestroy)
OURO_STUB(cudaStreamEndCapture)
OURO_STUB(cudaStreamGetCaptureInfo)
OURO_STUB(cudaStreamSynchronize)
OURO_STUB(cudaStreamWaitEvent)
OURO_STUB(cudaThreadExchangeStreamCaptureMode)
#undef OURO_STUB

constexpr int kNotReady = 600;
extern "C" int cudaEventQuery() { return counted(driver_stub.ready ? 0 : kNotReady); }
extern "C" int cudaStreamQuery() { return counted(driver_stub.ready ? 0 : kNotReady); }
extern "C" const char* cudaGetErrorName() { return "an error"; }
extern "C" const char* cudaGetErrorString() { return "of the stub"; }
extern "C" int cudaGetDeviceCount(int* devices) {
  *devices = 1;
  return counted();
}
extern "C" int cudaGetDriverEntryPointByVersion(const char* name, void** out) {
  const std::string_view is = name;
  using namespace ouro::test;
  if (is == "cuCtxGetCurrent") {
    *out = reinterpret_cast<void*>(get_current);
  } else if (is == "cuDevicePrimaryCtxRetain") {
    *out = reinterpret_cast<void*>(retain);
  } else if (is == "cuCtxGetLimit") {
    *out = reinterpret_cast<void*>(get_limit);
  } else if (is == "cuStreamGetCtx") {
    *out = reinterpret_cast<void*>(stream_context);
  } else if (is == "cuCtxSetLimit") {
    *out = reinterpret_cast<void*>(set_limit);
  } else if (is == "cuPointerGetAttributes") {
    *out = reinterpret_cast<void*>(attributes);
  } else {
    *out = reinterpret_cast<void*>(any);
  }
  return 0;
}
