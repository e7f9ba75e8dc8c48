// How a launch says that it has ended: its last block writes numbers into words, so no other work has to
// follow it in its stream. Used by the fused, the meeting and the resident kernels.
#pragma once
#include <cstdint>

#include "kernels/gpu/resident_memory.h"

namespace ouro::gpu {

/// A number for a word. Streams and processors wait until the word holds at least this number, cyclically.
struct NumberedWord {
  std::uint32_t* word = nullptr;  ///< as the device sees it; nullptr: nothing is written
  std::uint32_t number = 0;
};

/// The words that a launch writes when all of its blocks have ended, with all that they wrote before.
struct LaunchEnd {
  /// Counts blocks that have ended: a word of the device's memory, 0 between launches. Not for one block.
  std::uint32_t* blocks = nullptr;
  NumberedWord finished =
      {};                   ///< not written if the launch was stopped: what it should have done is not done
  NumberedWord ended = {};  ///< written in any case; in pinned memory
};

/// Counts a block in. True for the last of `blocks`, which has acquired what the others wrote; the word is 0
/// again.
OURO_HD bool count_in(std::uint32_t* word, int blocks) {
  const auto last = static_cast<std::uint32_t>(blocks - 1);
#if defined(__CUDA_ARCH__)
  std::uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(word) : "memory");
  if (before != last) return false;
  *word = 0;  // no other block touches it any more
#else
  if (std::atomic_ref(*word).fetch_add(1, std::memory_order_acq_rel) != last) return false;
  std::atomic_ref(*word).store(0, std::memory_order_relaxed);
#endif
  return true;
}

OURO_HD void write_number(const NumberedWord& w) {
  if (w.word != nullptr) store_release(w.word, w.number);
}

/// The whole block calls it last. `stopped`: whether the launch has found that it must touch nothing.
template <class Block>
OURO_HD void end_launch(const LaunchEnd& end, const Block& at, bool stopped) {
  if (end.ended.word == nullptr && end.finished.word == nullptr) return;
  at.sync();
  if (at.thread() != 0 || (at.blocks() > 1 && !count_in(end.blocks, at.blocks()))) return;
  if (!stopped) write_number(end.finished);
  write_number(end.ended);
}

}  // namespace ouro::gpu
