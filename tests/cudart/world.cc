// The emulated devices of a process, shared by all of its libraries. See world.h.
#include "world.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/device/fake/fake_shared.h"

namespace ouro::test::cudart {
namespace {

thread_local cudaError_t t_last = cudaSuccess;

gpu::FakeGpu* make_world() {
  const char* const text = std::getenv("OURO_FAKE_GPUS");
  const int devices = text ? std::atoi(text) : 0;
  std::fprintf(stderr,
               "This is the CUDA runtime of ouro's tests: %d emulated devices (OURO_FAKE_GPUS). No GPU is "
               "used, and no "
               "figure means anything.\n",
               devices);
  return devices > 0 ? new gpu::FakeGpu({.devices = devices, .multiprocessors = 16}) : nullptr;
}

cudaError_t code_of(const Status& s) {
  const bool capture = !s.ok() && s.message().find("captur") != std::string::npos;
  switch (s.reason()) {
    case Reason::none:
      return cudaSuccess;
    case Reason::resource:
      return cudaErrorMemoryAllocation;
    case Reason::unsupported:
      return capture ? cudaErrorStreamCaptureUnsupported : cudaErrorNotSupported;
    case Reason::device:
      return cudaErrorIllegalAddress;
    case Reason::forked:
      return cudaErrorInitializationError;
    default:
      return capture ? cudaErrorStreamCaptureInvalidated : cudaErrorInvalidValue;
  }
}

}  // namespace

gpu::FakeGpu* world() {
  static gpu::FakeGpu* const devices = make_world();  // never destroyed: programs call CUDA during exit
  return devices;
}

cudaError_t keep(cudaError_t error) {
  if (error != cudaSuccess) t_last = error;
  return error;
}

cudaError_t keep(const char* function, const Status& s) {
  if (!s.ok()) std::fprintf(stderr, "ouro's CUDA runtime: %s: %s\n", function, s.message().c_str());
  return keep(code_of(s));
}

cudaError_t not_supported(const char* function, const char* what) {
  std::fprintf(stderr, "ouro's CUDA runtime: %s is not supported on emulated devices%s%s\n", function,
               *what ? ": " : "", what);
  return keep(cudaErrorNotSupported);
}

}  // namespace ouro::test::cudart

using namespace ouro::test::cudart;

/// The function through which ouro's libraries in this process find the devices.
extern "C" __attribute__((visibility("default"))) ouro::gpu::Gpu* ouro_emulated_devices(const char* build) {
  if (std::strcmp(build, ouro::gpu::fake::shared_build()) != 0) {
    std::fprintf(stderr, "ouro's CUDA runtime: a library of ouro in this process is of another build\n");
    return nullptr;
  }
  return world();
}

/// Called by the functions of not_there.cc. A driver error does not become the runtime's last error.
extern "C" int ouro_cudart_not_there(const char* name) {
  const cudaError_t before = t_last;
  const cudaError_t error = not_supported(name, "");
  if (std::strncmp(name, "cuda", 4) != 0 && *name != '_') t_last = before;
  return error;
}

OURO_CUDART(cudaGetLastError, void) { return std::exchange(t_last, cudaSuccess); }
OURO_CUDART(cudaPeekAtLastError, void) { return t_last; }

// clang-format off
#define OURO_ERRORS(X)                                                                                              \
  X(cudaSuccess) X(cudaErrorInvalidValue) X(cudaErrorMemoryAllocation) X(cudaErrorInitializationError)              \
  X(cudaErrorInvalidConfiguration) X(cudaErrorInvalidDeviceFunction) X(cudaErrorInvalidDevice) X(cudaErrorNoDevice) \
  X(cudaErrorIllegalAddress) X(cudaErrorNotReady) X(cudaErrorNotSupported) X(cudaErrorPeerAccessAlreadyEnabled)     \
  X(cudaErrorStreamCaptureUnsupported) X(cudaErrorStreamCaptureInvalidated)
// clang-format on

extern "C" __attribute__((visibility("default"))) const char* CUDARTAPI cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define OURO_X(name) \
  case name:         \
    return #name;
    OURO_ERRORS(OURO_X)
#undef OURO_X
    default:
      return "cudaErrorUnknown";
  }
}
extern "C" __attribute__((visibility("default"))) const char* CUDARTAPI
cudaGetErrorString(cudaError_t error) {
  return cudaGetErrorName(error);
}
