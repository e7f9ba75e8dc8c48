// The base of cuda.cc and cuda_memory.cc: errors of CUDA as Status, the driver's functions, and the device on
// which a call runs. Used by these two only; includes CUDA's headers.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <limits>
#include <string>

#include "runtime/core/status.h"

namespace ouro::gpu {

/// The Status of an error of the runtime or of the driver (their numbers mean the same since CUDA 10.1): the
/// call's name, CUDA's name and text of the error. `about`: what the call was about, if that helps.
Status failed(int error, const char* call, const std::string& about = "");

inline Status check(cudaError_t error, const char* call) {
  return error == cudaSuccess ? Status{} : failed(error, call);
}
inline Status check(CUresult result, const char* call) {
  return result == CUDA_SUCCESS ? Status{} : failed(result, call);
}

#define OURO_DRIVER_CALLS(X)                \
  X(cuCtxGetCurrent)                        \
  X(cuCtxGetLimit)                          \
  X(cuCtxPushCurrent)                       \
  X(cuCtxPopCurrent)                        \
  X(cuCtxSetLimit)                          \
  X(cuDeviceGet)                            \
  X(cuDeviceGetAttribute)                   \
  X(cuDevicePrimaryCtxRetain)               \
  X(cuMemAddressFree)                       \
  X(cuMemAddressReserve)                    \
  X(cuMemCreate)                            \
  X(cuMemExportToShareableHandle)           \
  X(cuMemGetAddressRange)                   \
  X(cuMemGetAllocationGranularity)          \
  X(cuMemGetAllocationPropertiesFromHandle) \
  X(cuMemImportFromShareableHandle)         \
  X(cuMemMap)                               \
  X(cuMemRelease)                           \
  X(cuMemRetainAllocationHandle)            \
  X(cuMemSetAccess)                         \
  X(cuMemUnmap)                             \
  X(cuPointerGetAttribute)                  \
  X(cuPointerGetAttributes)                 \
  X(cuStreamBatchMemOp)
/// Functions that a driver may lack: either all of them are set, or all are nullptr.
#define OURO_MULTICAST_CALLS(X) \
  X(cuMulticastAddDevice)       \
  X(cuMulticastBindMem)         \
  X(cuMulticastCreate)          \
  X(cuMulticastGetGranularity)  \
  X(cuMulticastUnbind)

/// The driver as it was found at the first use of CUDA; it never changes in a process. libcuda.so.1 is not
/// linked, so the library loads where there is none. A child that was forked while a thread of its parent
/// loaded the driver has none: the child's copy of CUDA's runtime may hold locks that no thread releases.
struct Driver {
  int devices = 0;
  std::string version;
  std::string why;  ///< why it cannot be used; "" if it works
#define OURO_X(call) decltype(&::call) call = nullptr;
  OURO_DRIVER_CALLS(OURO_X)
  OURO_MULTICAST_CALLS(OURO_X)
#undef OURO_X
  decltype(&::cuStreamGetCtx_v2) cuStreamGetCtx = nullptr;  ///< its second version has the name of the first

 private:
  friend const Driver& driver();
  Driver() = default;
  void load();
};
const Driver& driver();
/// Sets base and bytes to those of the mapping of cuMemMap around an address; leaves them unchanged if
/// there is none.
void mapping_around(CUdeviceptr, CUdeviceptr* base, std::size_t* bytes);
/// Whether an attribute of a device is set.
bool attribute(CUdevice_attribute, int device);
/// The primary context of a device, made on first use and kept.
Result<CUcontext> context_of(int device);
/// Hardware queues that the streams of a device share.
int connections();
/// Checks that the driver works, for calls that need no context.
inline Status works() { return driver().why.empty() ? Status{} : unsupported(driver().why); }
inline CUdeviceptr address(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

inline constexpr int kMaxDevices = 256;
/// Stands for the current device of the thread, or, if it has none, the device that was used last. For calls
/// that belong to no device.
inline constexpr int kAnyDevice = std::numeric_limits<int>::min();

/// Makes a device current in this thread for as long as the object lives. It pushes the device's context and
/// does not call cudaSetDevice: restoring the previous device by that call would make a context on it, even
/// if the thread never used it.
class Scope {
 public:
  explicit Scope(int device);
  ~Scope() {
    if (CUcontext popped = nullptr; pushed_) (void)driver().cuCtxPopCurrent(&popped);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  const Status& status() const { return status_; }

 private:
  Status status_;
  bool pushed_ = false;
};

/// While any thread of the process captures a graph in the global mode, CUDA refuses calls that may wait, and
/// invalidates the capture, unless the calling thread has set the relaxed mode. Calls of this library use
/// nothing that is being captured, so they set it.
class Relaxed {
 public:
  Relaxed() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

#define OURO_ON(device)           \
  const Scope ouro_scope(device); \
  OURO_TRY(ouro_scope.status())

// The call's name is in every error.
#define OURO_CUDA(call, ...) OURO_TRY(check(call(__VA_ARGS__), #call))
#define OURO_DRIVER(call, ...) OURO_TRY(check(driver().call(__VA_ARGS__), #call))

/// Makes one call of the runtime on a device. `aside`: for a call that may wait and is not part of
/// any capture.
template <class Call>
Status on(int device, const char* name, Call call) {
  OURO_ON(device);
  return check(call(), name);
}
template <class Call>
Status aside(int device, const char* name, Call call) {
  OURO_ON(device);
  const Relaxed relaxed;
  return check(call(), name);
}

}  // namespace ouro::gpu
