// The body of the kernel by which streams of ranks that share a GPU wait for each other. Included by
// collect_body.h.
#pragma once
#include "kernels/gpu/block.h"
#include "kernels/gpu/collect.h"

namespace ouro::gpu::collect {

/// A whole block, each thread of which polls words of its own. A host thread is a block.
template <class Block>
OURO_HD void meet(const MeetArgs& a, const Block& at) {
  constexpr std::uint32_t kGate = 128;  // polls of a word for each look at the clock
  const std::uint64_t start = now_ns();
  if (at.thread() == 0) write_number(a.arrived);
  bool late = false;
  for (int i = at.thread(); i < a.words; i += at.threads()) {
    const std::uint32_t* const word = a.awaited + static_cast<std::uint64_t>(i) * a.stride;
    if (i == a.skip) continue;
    for (std::uint32_t polls = 1; static_cast<std::int32_t>(load_acquire(word) - a.number) < 0; ++polls) {
      if (polls % kGate == 0 && now_ns() - start >= a.deadline_ns) {
        late = true;
        break;
      }
      pause();
    }
  }
  late = at.any(late);
  if (at.thread() != 0) return;
  if (late) {
    // The streams of others may still be behind: no kernel may touch a buffer any more.
    store_release(a.stop, 1);
    store_release(a.late, 1);
  } else {
    write_number(a.end.finished);
  }
  write_number(a.end.ended);
}

}  // namespace ouro::gpu::collect
