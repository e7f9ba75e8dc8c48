// Buffers on GPUs, and a stream for each rank. See place.h.
#include <cuda_runtime_api.h>

#include <bit>
#include <map>
#include <mutex>
#include <stdexcept>

#include "place.h"

namespace ouro::test {
namespace {

void check(cudaError_t e) {
  if (e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
}

}  // namespace

int enter_device(int rank) {
  static const int devices = [] {
    int count = 0;
    check(cudaGetDeviceCount(&count));
    return count;
  }();
  check(cudaSetDevice(rank % devices));
  return rank % devices;
}

cudaStream_t stream_of(int rank) {
  static std::mutex mutex;
  static std::map<int, cudaStream_t> streams;
  enter_device(rank);
  std::lock_guard lock(mutex);
  cudaStream_t& s = streams[rank];
  if (!s) check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  return s;
}

std::shared_ptr<std::uint8_t> place(const std::vector<std::uint8_t>& bytes, int rank) {
  // Memory is reused instead of freed: cudaFree waits for all work of a device, and if ranks that are threads
  // share it, that work waits for the next call of this thread.
  static std::mutex mutex;
  static std::multimap<std::pair<int, std::size_t>, void*> unused;
  const auto kind = std::pair(enter_device(rank), std::bit_ceil(bytes.size() + 1));
  void* data = nullptr;
  {
    std::lock_guard lock(mutex);
    if (const auto found = unused.find(kind); found != unused.end())
      data = found->second, unused.erase(found);
  }
  if (!data) check(cudaMalloc(&data, kind.second));
  check(cudaMemcpyAsync(data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_of(rank)));
  return {static_cast<std::uint8_t*>(data), [kind](std::uint8_t* p) {
            std::lock_guard lock(mutex);
            unused.emplace(kind, p);
          }};
}

std::vector<std::uint8_t> fetch(const std::shared_ptr<std::uint8_t>& from, std::size_t bytes, int rank) {
  std::vector<std::uint8_t> to(bytes);
  check(cudaMemcpyAsync(to.data(), from.get(), bytes, cudaMemcpyDeviceToHost, stream_of(rank)));
  check(cudaStreamSynchronize(stream_of(rank)));
  return to;
}

}  // namespace ouro::test
