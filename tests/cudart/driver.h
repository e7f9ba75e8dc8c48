// How functions of CUDA's driver are defined over the emulated devices. Used by driver.cc and
// driver_memory.cc.
#pragma once
#include <cuda.h>

#include "world.h"

/// Defines a function of CUDA's driver, by the name that programs ask for (with the version).
#define OURO_CU(name, ...) \
  extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI name(__VA_ARGS__)

namespace ouro::test::cudart {

inline CUresult code_of(cudaError_t error) {
  return static_cast<CUresult>(error);
}  // their numbers are the same

/// Runs `body`, which returns a Status, on the world.
template <class Body>
CUresult drive(const char* function, Body&& body) noexcept {
  const cudaError_t before = cudaGetLastError();  // the runtime's, which errors of the driver do not touch
  const cudaError_t now = serve(function, body);
  (void)cudaGetLastError();
  (void)keep(before);
  return code_of(now);
}

}  // namespace ouro::test::cudart
