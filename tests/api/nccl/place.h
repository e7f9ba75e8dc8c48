// Where the buffers of the tests lie and what their calls go into: the host, or emulated GPUs. Used by the
// tests of libnccl; place_host.cc and place_gpu.cc implement it, one of them in each program.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "nccl.h"

namespace ouro::test {

/// The GPU of a rank, which becomes the thread's current one; on the host 0.
int enter_device(int rank);
/// The stream that calls of a rank go into.
cudaStream_t stream_of(int rank);
/// A copy of `bytes` where calls of a rank can work on it.
std::shared_ptr<std::uint8_t> place(const std::vector<std::uint8_t>& bytes, int rank);
/// What such a copy holds when all that is on the rank's stream has ended.
std::vector<std::uint8_t> fetch(const std::shared_ptr<std::uint8_t>&, std::size_t bytes, int rank);

}  // namespace ouro::test
