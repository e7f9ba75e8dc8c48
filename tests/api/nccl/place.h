// The memory of the tests' buffers and the streams of their calls: the host, or emulated GPUs. Used by the
// tests of libnccl; place_host.cc and place_gpu.cc implement it, and each program links one of them.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "nccl.h"

namespace ouro::test {

/// Makes the GPU of a rank the thread's current device and returns it; on the host 0.
int enter_device(int rank);
/// The stream that calls of a rank go into.
cudaStream_t stream_of(int rank);
/// A copy of `bytes` in memory that calls of a rank can use.
std::shared_ptr<std::uint8_t> place(const std::vector<std::uint8_t>& bytes, int rank);
/// The contents of such a copy once everything in the rank's stream has run.
std::vector<std::uint8_t> fetch(const std::shared_ptr<std::uint8_t>&, std::size_t bytes, int rank);

}  // namespace ouro::test
