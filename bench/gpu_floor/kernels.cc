// The bodies that emulated devices run, and the descriptions of the kernels. See kernels.h.
#include "bench/gpu_floor/kernels.h"

#include <atomic>
#include <cstring>

namespace ouro::bench {
namespace {

void empty(const void*, int, int) {}

/// Block b handles every blocks-th unit.
template <int kIn, int kOut>
void mix(const void* args, int block, int blocks) {
  struct Unit {
    std::uint64_t half[2];
  };
  const auto& a = *static_cast<const MixArgs*>(args);
  for (auto i = static_cast<std::uint64_t>(block); i < a.units; i += static_cast<std::uint64_t>(blocks)) {
    Unit sum{};
    for (int k = 0; k < kIn; ++k) {
      Unit x;
      std::memcpy(&x, a.in[k] + i * sizeof x, sizeof x);
      sum.half[0] ^= x.half[0], sum.half[1] ^= x.half[1];
    }
    for (int k = 0; k < kOut; ++k) std::memcpy(a.out[k] + i * sizeof sum, &sum, sizeof sum);
  }
}

void store_word(const void* args, int block, int) {
  const auto& a = *static_cast<const WordArgs*>(args);
  // Pairs with the acquire load of the host in memory_rows.
  if (block == 0) std::atomic_ref(*a.word).store(a.value, std::memory_order_release);
}

}  // namespace

const gpu::Kernel& floor_kernel(FloorKernel k) {
  using enum FloorKernel;
  static const gpu::Kernel kernels[kFloorKernels] = {
      {"floor_empty_small", floor_entry(empty_small), &empty, kSmallArgs},
      {"floor_empty_fused", floor_entry(empty_fused), &empty, kFusedArgs},
      {"floor_empty_resident", floor_entry(empty_resident), &empty, kResidentArgs},
      {"floor_mix_1_8", floor_entry(mix_1_8), &mix<1, 8>, sizeof(MixArgs)},
      {"floor_mix_8_1", floor_entry(mix_8_1), &mix<8, 1>, sizeof(MixArgs)},
      {"floor_store_word", floor_entry(FloorKernel::store_word), &bench::store_word, sizeof(WordArgs)}};
  return kernels[static_cast<int>(k)];
}

}  // namespace ouro::bench
