// The body of the kernel that collects the parts of a message that have arrived. Included by collect_body.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/gpu/collect.h"
#include "kernels/gpu/sweep.h"

namespace ouro::gpu::collect {

template <class Block>
OURO_HD void gather_runs(const GatherArgs& a, const Block& at) {
  share_out(
      at, 1, static_cast<int>(*a.count), false, [&](int k) { return a.runs[k].bytes; },
      [&](int k, const Share<Block>& share) {
        const Run& run = a.runs[k];
        std::byte* const to = a.to + run.at;
        sweep_bytes<1>(share, address(to) ^ address(run.from), run.from, run.bytes,
                       Multicast{run.from, &to, 1, 0});
      });
}

}  // namespace ouro::gpu::collect
