// Errors, entry points and contexts of CUDA.
// Used through cuda_driver.h.
#include "kernels/device/cuda/cuda_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>

#include "runtime/core/fork.h"
#include "runtime/core/per_process.h"
#include "runtime/core/thread.h"

namespace ouro::gpu {
namespace {

constexpr int kResource[] = {
    cudaErrorMemoryAllocation,     cudaErrorLaunchOutOfResources,    cudaErrorTooManyPeers,
    cudaErrorDevicesUnavailable,  // taken by another process in exclusive mode
    cudaErrorOperatingSystem,     // no descriptor could be made for memory that is passed on
    cudaErrorMpsMaxClientsReached, cudaErrorMpsMaxConnectionsReached};
constexpr int kUnsupported[] = {
    cudaErrorNotSupported, cudaErrorNotPermitted, cudaErrorStubLibrary, cudaErrorInsufficientDriver,
    cudaErrorCallRequiresNewerDriver, cudaErrorNoDevice, cudaErrorUnsupportedLimit,
    cudaErrorPeerAccessUnsupported, cudaErrorSymbolNotFound, cudaErrorCompatNotSupportedOnDevice,
    cudaErrorStreamCaptureUnsupported,
    // The kernel was not compiled for this device.
    cudaErrorInvalidDeviceFunction, cudaErrorInvalidKernelImage, cudaErrorNoKernelImageForDevice,
    cudaErrorInvalidPtx, cudaErrorUnsupportedPtxVersion, cudaErrorJitCompilerNotFound,
    cudaErrorJitCompilationDisabled};
constexpr int kInvalid[] = {
    cudaErrorInvalidValue, cudaErrorInvalidConfiguration, cudaErrorInvalidHostPointer,
    cudaErrorInvalidDevicePointer, cudaErrorInvalidMemcpyDirection, cudaErrorInvalidDevice,
    cudaErrorInvalidResourceHandle, cudaErrorIllegalState, cudaErrorNotReady, cudaErrorPeerAccessNotEnabled,
    cudaErrorHostMemoryAlreadyRegistered, cudaErrorHostMemoryNotRegistered,
    cudaErrorCooperativeLaunchTooLarge,
    // Misuse of captures.
    cudaErrorStreamCaptureInvalidated, cudaErrorStreamCaptureMerge, cudaErrorStreamCaptureUnmatched,
    cudaErrorStreamCaptureUnjoined, cudaErrorStreamCaptureIsolation, cudaErrorStreamCaptureImplicit,
    cudaErrorCapturedEvent, cudaErrorStreamCaptureWrongThread};

Reason reason_of(int error) {
  const auto is = [error](const auto& list) { return std::ranges::find(list, error) != std::end(list); };
  if (is(kResource)) return Reason::resource;
  if (is(kUnsupported)) return Reason::unsupported;
  if (is(kInvalid)) return Reason::invalid;
  return Reason::device;  // the rest of 700 to 719, faults of ECC, links and MPS, and errors that are not
                          // known yet
}

std::string version_words(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

/// Sets `function` to the driver's entry; if there is none, leaves it at nullptr and sets `why`.
template <class Function>
void find(const char* name, Function& function, const std::string& version, std::string& why) {
  void* found = nullptr;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, CUDA_VERSION, cudaEnableLegacyStream, nullptr);
  if (error != cudaSuccess || found == nullptr) {
    if (why.empty()) why = fmt::format("the driver ({}) lacks {}", version, name);
    (void)cudaGetLastError();
    return;
  }
  function = reinterpret_cast<Function>(found);
}

/// Streams share this many queues of the device (8 unless set). A stream that waits for a value holds up all
/// later work in its queue, which may include the write that it waits for. The driver reads the variable when
/// it starts, so setting it has no effect if the program has used CUDA before. It is set when this library is
/// loaded, because later other threads may be reading the environment.
const int g_connections = [] {
  constexpr const char* kName = "CUDA_DEVICE_MAX_CONNECTIONS";
  (void)::setenv(kName, "32", /*overwrite=*/0);
  const char* const set = ::getenv(kName);
  const int many = set ? std::atoi(set) : 0;
  return many >= 1 && many <= 32 ? many : 8;  // as the driver takes it
}();

/// Never destroyed: streams may outlive static objects.
constinit MadeOnce<const Driver> g_driver;
constinit std::atomic<unsigned> g_begun{0};  // forks() + 1 in the process that began to load the driver first

/// The device that was used last. Calls that belong to no device run there in a thread that has no current
/// device, so that device 0 gets no context by accident (hundreds of MiB of its memory).
std::atomic<int> last_device{0};

}  // namespace

Result<CUcontext> context_of(int device) {
  static std::atomic<CUcontext> contexts[kMaxDevices] = {};
  static std::mutex making;
  std::atomic<CUcontext>& slot = contexts[device];
  if (CUcontext made = slot.load(std::memory_order_acquire)) return made;  // pairs with the store below
  const std::lock_guard lock(making);
  if (CUcontext made = slot.load(std::memory_order_relaxed)) return made;
  const SignalsBlocked ours;  // the driver starts threads
  CUdevice handle = 0;
  CUcontext context = nullptr;
  OURO_TRY(check(driver().cuDeviceGet(&handle, device), "cuDeviceGet"));
  OURO_TRY(check(driver().cuDevicePrimaryCtxRetain(&context, handle), "cuDevicePrimaryCtxRetain"));
  slot.store(context, std::memory_order_release);
  return context;
}

[[gnu::cold]] Status failed(int error, const char* call, const std::string& about) {
  const auto code = static_cast<cudaError_t>(error);
  // The runtime keeps an error until the next query. This error has been reported, so it is cleared: other
  // code queries errors after launches.
  (void)cudaGetLastError();
  return {reason_of(error), fmt::format("{}{}{}: {} ({}): {}", call, about.empty() ? "" : " of ", about,
                                        cudaGetErrorName(code), error, cudaGetErrorString(code))};
}

void Driver::load() {
  const SignalsBlocked ours;
  int runtime = 0, driver = 0;
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaDriverGetVersion(&driver);
  version = fmt::format("CUDA runtime {}, driver {}", version_words(runtime),
                        driver == 0 ? "none" : "for CUDA " + version_words(driver));
  const cudaError_t error = cudaGetDeviceCount(&devices);  // does not change its argument if it fails
  if (error != cudaSuccess) {
    devices = 0;
    if (driver == 0)
      why = "no CUDA driver (libcuda.so.1 not found)";
    else if (error == cudaErrorInsufficientDriver)
      why = fmt::format("the driver is for CUDA {}, older than the {} that ouro was built with",
                        version_words(driver), version_words(runtime));
    else if (error == cudaErrorNoDevice)
      why = "the CUDA driver finds no device";
    else
      why = failed(error, "cudaGetDeviceCount").failure()->text;
    (void)cudaGetLastError();
    return;
  }
  if (devices == 0) why = "the CUDA driver finds no device";
#define OURO_X(call) find(#call, call, version, why);
  OURO_DRIVER_CALLS(OURO_X)
#undef OURO_X
  find("cuStreamGetCtx", cuStreamGetCtx, version, why);
  std::string lacks;
#define OURO_X(call) find(#call, call, version, lacks);
  OURO_MULTICAST_CALLS(OURO_X)
#undef OURO_X
  if (!lacks.empty()) cuMulticastCreate = nullptr;
}

bool attribute(CUdevice_attribute which, int device) {
  CUdevice handle = 0;
  int value = 0;
  return driver().cuDeviceGet(&handle, device) == CUDA_SUCCESS &&
         driver().cuDeviceGetAttribute(&value, which, handle) == CUDA_SUCCESS && value != 0;
}

void mapping_around(CUdeviceptr p, CUdeviceptr* base, std::size_t* bytes) {
  CUdeviceptr at = 0;
  std::size_t size = 0;
  if (driver().cuPointerGetAttribute(&at, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, p) != CUDA_SUCCESS ||
      driver().cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, p) != CUDA_SUCCESS ||
      at == 0 || at > p || p - at >= size)
    return;
  *base = at;
  *bytes = size;
}

int connections() { return g_connections; }

const Driver& driver() {
  return g_driver.get([] {
    Driver found;
    const unsigned mine = forks() + 1;
    unsigned begun = 0;
    if (g_begun.compare_exchange_strong(begun, mine, std::memory_order_relaxed) || begun == mine)
      found.load();
    else
      found.version = "unknown",
      found.why = "this process was forked while its parent loaded the CUDA driver";
    return found;
  });
}

Scope::Scope(int device) {
  const Driver& d = driver();
  if (!d.why.empty()) {
    status_ = unsupported(d.why);
    return;
  }
  if (device != kAnyDevice && (device < 0 || device >= std::min(d.devices, kMaxDevices))) {
    status_ = invalid(fmt::format("device {}: there are {}", device, d.devices));
    return;
  }
  CUcontext current = nullptr;
  status_ = check(d.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  if (!status_.ok()) return;
  if (device == kAnyDevice) {
    if (current != nullptr) return;
    device = last_device.load(std::memory_order_relaxed);
  } else {
    last_device.store(device, std::memory_order_relaxed);
  }
  const Result<CUcontext> wanted = context_of(device);
  if (!wanted) {
    status_ = wanted.status();
  } else if (*wanted != current) {
    status_ = check(d.cuCtxPushCurrent(*wanted), "cuCtxPushCurrent");
    pushed_ = status_.ok();
  }
}

}  // namespace ouro::gpu
