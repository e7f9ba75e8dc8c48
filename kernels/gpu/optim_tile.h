// Memory access of the optimiser kernels: tiles of n elements per thread, chunks of tensors, and words shared
// by all blocks. Used by optim_body.h and, for the sizes of chunks, by optim_host.cc.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/arith/reduce.h"
#include "kernels/gpu/access.h"
#include "runtime/core/hd.h"

#if defined(__CUDACC__)
#define OURO_BODY __device__ __forceinline__
#define OURO_UNROLLED _Pragma("unroll")
#define OURO_ROLLED _Pragma("unroll 1")
#else
#define OURO_BODY inline
#define OURO_UNROLLED
#define OURO_ROLLED
#endif

namespace ouro::gpu::optim {

using collect::Access;
using collect::Bits;
using collect::finish;
using collect::get;
using collect::lift;
using collect::set;

inline constexpr int kOptimThreads = 256;

/// Elements per chunk: a multiple of what a block moves at once, and small enough that there are thousands of
/// chunks, which divide evenly among blocks.
OURO_HD constexpr std::uint32_t chunk_elements(std::uint64_t total) {
  constexpr std::uint32_t kLeast = 8 * kOptimThreads, kMost = 8 * kLeast, kEnough = 4096;
  std::uint32_t size = kMost;
  while (size > kLeast && total / size < kEnough) size /= 2;
  return size;
}
OURO_HD constexpr std::uint64_t chunks_of(std::uint64_t count, std::uint64_t size) {
  return count / size + (count % size != 0);
}

/// Consecutive elements that a thread moves at once: 16 bytes in the type of the arithmetic.
template <class C>
inline constexpr int kUnit = 16 / static_cast<int>(sizeof(C));

/// The positions of a thread's n elements of a tile: one unit in each row of the block, so that the data that
/// a warp moves by one instruction is contiguous. If not all arrays are aligned or the end is near, a unit is
/// one element.
struct Span {
  std::uint64_t first, end;
  std::uint32_t pitch;  // distance from a unit to this thread's next one
  bool vector;

  /// `unit`: elements per unit; `stride`: elements per tile.
  template <class Block>
  OURO_BODY Span(const Block& block, std::uint64_t at, std::uint64_t last, std::uint64_t stride, bool aligned,
                 std::uint32_t unit)
      : first(at), end(last) {
    const auto thread = static_cast<unsigned>(block.thread()),
               threads = static_cast<unsigned>(block.threads());
    vector = aligned && last - at >= stride;
    const std::uint32_t each = vector ? unit : 1;
    first += each * thread;
    pitch = each * threads;
  }
};

/// Loads a tile of an array of T in the type of the arithmetic C. Elements beyond the end are zero.
/// Conversions in both directions use those of a sum of one element; every NaN that is stored is canonical.
template <class T, Access kAccess, class C, int n>
OURO_BODY void load(const Span& span, const void* array, C (&to)[n]) {
  const T* const from = static_cast<const T*>(array) + span.first;
  constexpr int kEach = kUnit<C>, kBytes = kEach * static_cast<int>(sizeof(T));
  static_assert(n % kEach == 0);
  T x[n];
  if (span.vector) {
    Bits bits[n / kEach];
    OURO_UNROLLED
    for (int k = 0; k < n / kEach; ++k)
      collect::load<kBytes, kAccess>(
          bits[k], reinterpret_cast<const std::byte*>(from + static_cast<unsigned>(k) * span.pitch));
    OURO_UNROLLED
    for (int i = 0; i < n; ++i) x[i] = get<T>(bits[i / kEach], i % kEach);
  } else {
    OURO_UNROLLED
    for (int i = 0; i < n; ++i) {
      const std::uint32_t ahead = static_cast<unsigned>(i) * span.pitch;
      Bits bits;
      if (span.first + ahead < span.end)
        collect::load<sizeof(T), kAccess>(bits, reinterpret_cast<const std::byte*>(from + ahead));
      x[i] = get<T>(bits, 0);
    }
  }
  OURO_UNROLLED
  for (int i = 0; i < n; ++i) to[i] = lift<arith::Sum<T>>(x[i], C{});
}
template <class T, class C, int n>
OURO_BODY void store(const Span& span, void* array, const C (&what)[n]) {
  T* const to = static_cast<T*>(array) + span.first;
  constexpr int kEach = kUnit<C>, kBytes = kEach * static_cast<int>(sizeof(T));
  T x[n];
  OURO_UNROLLED
  for (int i = 0; i < n; ++i) x[i] = finish<arith::Sum<T>>(what[i], 1);
  if (span.vector) {
    OURO_UNROLLED
    for (int k = 0; k < n / kEach; ++k) {
      Bits bits;
      OURO_UNROLLED
      for (int i = 0; i < kEach; ++i) set(bits, i, x[k * kEach + i]);
      collect::store<kBytes, Access::plain>(
          reinterpret_cast<std::byte*>(to + static_cast<unsigned>(k) * span.pitch), bits);
    }
  } else {
    OURO_UNROLLED
    for (int i = 0; i < n; ++i) {
      const std::uint32_t ahead = static_cast<unsigned>(i) * span.pitch;
      if (span.first + ahead >= span.end) continue;
      Bits bits;
      set(bits, 0, x[i]);
      collect::store<sizeof(T), Access::plain>(reinterpret_cast<std::byte*>(to + ahead), bits);
    }
  }
}

// Words shared by all blocks of a launch. The last block to call is_last sees everything that the others
// wrote before they called it.

OURO_BODY void raise(std::uint32_t* word) {
#if defined(__CUDA_ARCH__)
  atomicOr(word, 1u);
#else
  __atomic_fetch_or(word, 1u, __ATOMIC_RELAXED);
#endif
}
OURO_BODY std::uint32_t take(std::uint32_t* word) {
#if defined(__CUDA_ARCH__)
  return atomicExch(word, 0u);
#else
  return __atomic_exchange_n(word, 0u, __ATOMIC_RELAXED);
#endif
}
/// Called by one thread, after a `sync` of its block: whether its block is the last of all to arrive.
OURO_BODY bool is_last(std::uint32_t* arrived, int blocks) {
#if defined(__CUDA_ARCH__)
  __threadfence();
  const bool last = atomicAdd(arrived, 1u) + 1 == static_cast<unsigned>(blocks);
  __threadfence();
  return last;
#else
  return __atomic_add_fetch(arrived, 1u, __ATOMIC_ACQ_REL) == static_cast<unsigned>(blocks);
#endif
}
/// Reads a value that another block wrote.
OURO_BODY double fresh(const double* from) {
#if defined(__CUDA_ARCH__)
  return __ldcg(from);
#else
  return *from;
#endif
}

}  // namespace ouro::gpu::optim
