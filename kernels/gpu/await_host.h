// The kernel that waits for a function on the host and then copies its results: for processes with so few
// hardware queues that no stream may wait. Used by GpuStream.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/gpu/collect.h"

namespace ouro::gpu {

/// A copy in stream order; one end may be pinned memory.
struct HostCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::uint64_t bytes = 0;
};

/// Waits until the host has set the word to 1, clears it, makes the copies, and writes the number.
struct AwaitHostArgs {
  static constexpr int kMost = 128;  ///< copies of a launch
  std::uint32_t* word = nullptr;     ///< pinned
  NumberedWord ended = {};
  int copies = 0;
  HostCopy copy[kMost] = {};
};
static_assert(sizeof(AwaitHostArgs) <= 4096);
/// One block: its stores fill the bus to the host, and it occupies one multiprocessor.
Launch await_host(const AwaitHostArgs&);
const Kernel& awaiting_kernel();

}  // namespace ouro::gpu
