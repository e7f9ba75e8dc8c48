// Access to memory that peers write and read at the same time: flags, packets, the clock. On the host the
// same protocol runs on atomics. Used by resident_body.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "runtime/core/hd.h"

#if !defined(__CUDA_ARCH__)
#include <atomic>
#include <chrono>
#include <thread>
#endif

namespace ouro::gpu {

/// Acquire load. Everything that other threads wrote before the store_release of the value read here is
/// visible afterwards, also to the threads of the block that pass the next barrier together with the reader.
/// Pairs with store_release.
OURO_HD std::uint64_t load_acquire(const std::uint64_t* word, [[maybe_unused]] bool one_device) {
#if defined(__CUDA_ARCH__)
  std::uint64_t value;
  if (one_device)
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  else
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#else
  return std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
#endif
}

/// Release store. Covers the accesses of the block's threads before their last barrier: reads as
/// well as writes.
OURO_HD void store_release(std::uint64_t* word, std::uint64_t value, [[maybe_unused]] bool one_device) {
#if defined(__CUDA_ARCH__)
  if (one_device)
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
  else
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
  std::atomic_ref(*word).store(value, std::memory_order_release);
#endif
}

/// Loads a word, of the host or of this rank's arena, that requests a stop; no data depends on the word.
OURO_HD std::uint32_t load_relaxed(const std::uint32_t* word) {
#if defined(__CUDA_ARCH__)
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
#else
  return std::atomic_ref(*const_cast<std::uint32_t*>(word)).load(std::memory_order_relaxed);
#endif
}

/// Acquire load of a word that streams, kernels of other ranks or processors write.
OURO_HD std::uint32_t load_acquire(const std::uint32_t* word) {
#if defined(__CUDA_ARCH__)
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
#else
  return std::atomic_ref(*const_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
#endif
}

/// Publishes to the host, and to all devices, what was written before.
OURO_HD void store_release(std::uint32_t* word, std::uint32_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
#else
  std::atomic_ref(*word).store(value, std::memory_order_release);
#endif
}

/// Returns true to the first of a rank's blocks that calls it; the word is in the rank's own memory.
OURO_HD bool claim(std::uint32_t* word) {
#if defined(__CUDA_ARCH__)
  return atomicCAS(word, 0u, 1u) == 0;
#else
  std::uint32_t expected = 0;
  return std::atomic_ref(*word).compare_exchange_strong(expected, 1, std::memory_order_relaxed);
#endif
}

/// Nanoseconds of a monotonic clock.
OURO_HD std::uint64_t now_ns() {
#if defined(__CUDA_ARCH__)
  std::uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                    std::chrono::nanoseconds(1));
#endif
}

/// Called between two polls of a flag. A block has a multiprocessor of its own; a host thread
/// shares its core.
OURO_HD void pause() {
#if !defined(__CUDA_ARCH__)
  std::this_thread::yield();
#endif
}

/// Eight bytes of data with a flag next to each half, so that arrival needs no fence: both halves are valid
/// when both flags match. Only each half has to be written at once, not the 16 bytes: the PTX memory model
/// treats the elements of a vector as separate accesses, and the halves are its elements.
struct alignas(16) Packet {
  std::uint64_t half[2];  // data in the low bits, flag in the high bits
};

OURO_HD void store_packet(Packet* packet, std::uint64_t data, std::uint32_t flag) {
  const auto low = static_cast<std::uint32_t>(data), high = static_cast<std::uint32_t>(data >> 32);
  const std::uint64_t above = std::uint64_t{flag} << 32, first = above | low, second = above | high;
#if defined(__CUDA_ARCH__)
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(packet), "l"(first), "l"(second) : "memory");
#else
  std::atomic_ref(packet->half[0]).store(first, std::memory_order_relaxed);
  std::atomic_ref(packet->half[1]).store(second, std::memory_order_relaxed);
#endif
}

/// Loads a packet in its current state, whether it has arrived or not.
OURO_HD Packet peek_packet(const Packet* packet) {
#if defined(__CUDA_ARCH__)
  Packet seen;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(seen.half[0]), "=l"(seen.half[1])
               : "l"(packet)
               : "memory");
  return seen;
#else
  Packet& p = *const_cast<Packet*>(packet);
  const std::uint64_t first = std::atomic_ref(p.half[0]).load(std::memory_order_relaxed);
  return {{first, std::atomic_ref(p.half[1]).load(std::memory_order_relaxed)}};
#endif
}

/// Whether the packet has arrived; sets `data`.
OURO_HD bool has_arrived(const Packet& seen, std::uint32_t flag, std::uint64_t* data) {
  const std::uint64_t low = seen.half[0] & 0xffffffff;
  *data = seen.half[1] << 32 | low;
  return static_cast<std::uint32_t>(seen.half[0] >> 32) == flag &&
         static_cast<std::uint32_t>(seen.half[1] >> 32) == flag;
}
OURO_HD bool load_packet(const Packet* packet, std::uint32_t flag, std::uint64_t* data) {
  return has_arrived(peek_packet(packet), flag, data);
}

}  // namespace ouro::gpu
