// The emulated devices of the process, and the mapping of their errors to CUDA's. Used by the whole CUDA
// runtime of the tests.
#pragma once
#include <cuda_runtime_api.h>

#include "kernels/device/fake/fake_gpu.h"

/// Defines a function of the CUDA runtime.
#define OURO_CUDART(name, ...) \
  extern "C" __attribute__((visibility("default"))) cudaError_t CUDARTAPI name(__VA_ARGS__)

namespace ouro::test::cudart {

/// The emulated devices, OURO_FAKE_GPUS of them, created at the first call; nullptr: none.
gpu::FakeGpu* world();

/// Stores `error` as the thread's last error and returns it. cudaSuccess changes nothing.
cudaError_t keep(cudaError_t error);
/// The same for a Status, whose text is printed on standard error.
cudaError_t keep(const char* function, const Status&);
/// Stores and returns cudaErrorNotSupported, and names the function on standard error.
cudaError_t not_supported(const char* function, const char* what);

/// The stream of a handle; for a default stream, that of the current device.
Result<gpu::Stream> stream_of(gpu::FakeGpu&, cudaStream_t);
gpu::Event event_of(cudaEvent_t);
/// The device that an event was made on.
int device_of(cudaEvent_t);

/// Runs `body`, which returns a Status, on the devices; cudaErrorNoDevice if there are none.
template <class Body>
cudaError_t serve(const char* function, Body&& body) noexcept {
  gpu::FakeGpu* const devices = world();
  if (devices == nullptr) return keep(cudaErrorNoDevice);
  try {
    return keep(function, body(*devices));
  } catch (const std::exception& e) {
    return keep(function, Status(Reason::resource, e.what()));
  }
}

/// The same, on a stream.
template <class Body>
cudaError_t serve(const char* function, cudaStream_t handle, Body&& body) noexcept {
  return serve(function, [&](gpu::FakeGpu& devices) -> Status {
    auto stream = stream_of(devices, handle);
    return stream.ok() ? body(devices, *stream) : stream.status();
  });
}

}  // namespace ouro::test::cudart
