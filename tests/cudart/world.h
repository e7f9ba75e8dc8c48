// The emulated devices of the process, and how their errors become CUDA's. Used by all of the CUDA runtime of
// the tests.
#pragma once
#include <cuda_runtime_api.h>

#include "kernels/device/fake/fake_gpu.h"

/// Defines a function of CUDA's runtime.
#define OURO_CUDART(name, ...) \
  extern "C" __attribute__((visibility("default"))) cudaError_t CUDARTAPI name(__VA_ARGS__)

namespace ouro::test::cudart {

/// OURO_FAKE_GPUS of them, made when first asked for; nullptr: none.
gpu::FakeGpu* world();

/// Keeps `error` as the thread's last and returns it. cudaSuccess changes nothing.
cudaError_t keep(cudaError_t error);
/// The same for a Status, whose text goes to standard error.
cudaError_t keep(const char* function, const Status&);
/// cudaErrorNotSupported, said by name on standard error.
cudaError_t not_supported(const char* function, const char* what);

/// The stream that a handle names: where it is a default one, of the current device.
Result<gpu::Stream> stream_of(gpu::FakeGpu&, cudaStream_t);
gpu::Event event_of(cudaEvent_t);
/// The device that an event was made on.
int device_of(cudaEvent_t);

/// Runs `body`, which returns a Status, on the world: cudaErrorNoDevice where there is none.
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
