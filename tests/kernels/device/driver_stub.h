// The CUDA driver and its runtime as functions that succeed at once and are counted. Used by
// cuda_calls_test.cc.
#pragma once
#include <cstdint>

namespace ouro::test {

struct DriverStub {
  std::uint64_t calls = 0;         ///< of all its functions so far
  bool context_current = false;    ///< whether the thread has the device's context already
  bool ready = true;               ///< the result of queries
  bool device_memory = true;       ///< what pointers point to, else memory that CUDA does not know
  bool legacy_memory = true;       ///< allocated by cudaMalloc, else by cuMemMap
  void* stream_context = nullptr;  ///< of all streams; nullptr: the device's
  void* green_context = nullptr;
  std::uint64_t stack = 1024;  ///< the limit of the context, in bytes
};
extern DriverStub driver_stub;

}  // namespace ouro::test
