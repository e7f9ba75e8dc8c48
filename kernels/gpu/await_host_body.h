// The body of the kernel of await_host.h, and its device entry. Included by await_host.cc and await_host.cu.
#pragma once
#include "kernels/gpu/access.h"
#include "kernels/gpu/await_host.h"
#include "kernels/gpu/block.h"
#include "kernels/gpu/resident_memory.h"

namespace ouro::gpu {

inline constexpr int kAwaitThreads = 512;

/// The entry; nullptr in builds without a CUDA compiler.
const void* await_host_entry();

/// Each load is plain: the host has written the data while this kernel ran. kAhead loads of a thread are in
/// flight at the same time.
template <int kBytes, class Block>
OURO_HD void copy_plain(const HostCopy& c, std::uint64_t from, std::uint64_t to, const Block& at) {
  constexpr int kAhead = 4;
  const auto apart = static_cast<std::uint64_t>(at.threads());
  for (std::uint64_t k = from + static_cast<std::uint64_t>(at.thread()); k < to; k += kAhead * apart) {
    collect::Bits bits[kAhead];
    OURO_UNROLL
    for (int i = 0; i < kAhead; ++i)
      if (const std::uint64_t n = k + i * apart; n < to)
        collect::load<kBytes, collect::Access::plain>(bits[i], c.from + n * kBytes);
    OURO_UNROLL
    for (int i = 0; i < kAhead; ++i)
      if (const std::uint64_t n = k + i * apart; n < to)
        collect::store<kBytes, collect::Access::plain>(c.to + n * kBytes, bits[i]);
  }
}

template <class Block>
OURO_HD void await_host(const AwaitHostArgs& a, const Block& at) {
  if (at.thread() == 0) {
    while (load_acquire(a.word) != 1) {  // pairs with the store of GpuStream::Task
#if defined(__CUDA_ARCH__)
      __nanosleep(500);
#else
      std::this_thread::sleep_for(std::chrono::microseconds(20));
#endif
    }
    store_release(a.word, 0);
  }
  at.sync();
  for (int i = 0; i < a.copies; ++i) {
    const HostCopy& c = a.copy[i];
    const auto ends = reinterpret_cast<std::uintptr_t>(c.to) | reinterpret_cast<std::uintptr_t>(c.from);
    const std::uint64_t wide = ends % 16 == 0 ? c.bytes / 16 : 0;
    copy_plain<16>(c, 0, wide, at);
    copy_plain<1>(c, wide * 16, c.bytes, at);
  }
  end_launch({.ended = a.ended}, at, false);
}

}  // namespace ouro::gpu
