// Memory access of kernels: up to 16 bytes at a time between an array and registers, and the elements in
// those registers. Used by the bodies of kernels/gpu; on the host an access is a copy of bytes.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/arith/reduce.h"
#include "runtime/core/hd.h"

#if defined(__CUDA_ARCH__)
#define OURO_UNROLL _Pragma("unroll")
#define OURO_PRAGMA(text) _Pragma(#text)
#define OURO_UNROLL_BY(n) OURO_PRAGMA(unroll(n))
#else
#define OURO_UNROLL
#define OURO_UNROLL_BY(n)
#endif
// As OURO_HD, but not inlined, so that a switch with many cases is short.
#if defined(__CUDACC__)
#define OURO_HD_OUTLINE __host__ __device__ __noinline__
#else
#define OURO_HD_OUTLINE inline
#endif

namespace ouro::gpu::collect {

/// Whether the group of this launch has failed, in which case its buffers may no longer exist. Each thread
/// reads this once, from device memory.
OURO_HD bool stopped(const std::uint32_t* word) {
  if (word == nullptr) return false;
#if defined(__CUDA_ARCH__)
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value != 0;
#else
  return std::atomic_ref(*const_cast<std::uint32_t*>(word)).load(std::memory_order_relaxed) != 0;
#endif
}

/// How a kernel accesses an array. constant: nothing writes it while the kernel runs, so the read-only path
/// may be used. plain: this kernel may write it, each element after it was read. any: like plain, at any
/// address; unaligned accesses are byte by byte. On the host all are the same, so that each body is
/// compiled once.
#if defined(__CUDACC__)
enum class Access : std::uint8_t { constant, plain, any };
#else
enum class Access : std::uint8_t { plain, constant = plain, any = plain };
#endif

/// Elements in registers; if all indices are constants, no part of it is ever in memory. Little-endian.
struct Bits {
  std::uint32_t word[4] = {};
};

template <int kBytes>
struct RawOf;
template <>
struct RawOf<1> {
  using type = std::uint8_t;
};
template <>
struct RawOf<2> {
  using type = std::uint16_t;
};
template <>
struct RawOf<4> {
  using type = std::uint32_t;
};

template <class To, class From>
OURO_HD To same_bits_as(
    From x) {  // a function of its own: nvcc 13.0 fails on the builtin in an initialiser of a constant
  return __builtin_bit_cast(To, x);
}
template <class T>
OURO_HD T get(const Bits& b, int i) {
  constexpr int size = static_cast<int>(sizeof(T));
  if constexpr (size >= 8) {
    const int w = i * (size / 4);
    const std::uint64_t low = b.word[w] | std::uint64_t{b.word[w + 1]} << 32;
    if constexpr (size == 8) {
      return same_bits_as<T>(low);
    } else {
      const std::uint64_t high = b.word[2] | std::uint64_t{b.word[3]} << 32;
      return static_cast<T>(static_cast<arith::UInt128>(high) << 64 | low);
    }
  } else {
    using Raw = typename RawOf<size>::type;
    return same_bits_as<T>(static_cast<Raw>(b.word[i * size / 4] >> (i * size % 4 * 8)));
  }
}

/// Sets element i of `b`, which must have been zero.
template <class T>
OURO_HD void set(Bits& b, int i, T x) {
  constexpr int size = static_cast<int>(sizeof(T));
  if constexpr (size == 16) {
    const auto raw = static_cast<arith::UInt128>(x);
    OURO_UNROLL
    for (int w = 0; w < 4; ++w) b.word[w] = static_cast<std::uint32_t>(raw >> (32 * w));
  } else if constexpr (size == 8) {
    const auto raw = same_bits_as<std::uint64_t>(x);
    b.word[2 * i] = static_cast<std::uint32_t>(raw);
    b.word[2 * i + 1] = static_cast<std::uint32_t>(raw >> 32);
  } else {
    const std::uint32_t raw = same_bits_as<typename RawOf<size>::type>(x);
    b.word[i * size / 4] |= raw << (i * size % 4 * 8);
  }
}

#if defined(__CUDACC__)
inline __device__ __noinline__ Bits load_bytes(const std::byte* p, int bytes) {
  Bits b;
  OURO_UNROLL
  for (int k = 0; k < 16; ++k)
    if (k < bytes) b.word[k / 4] |= static_cast<std::uint32_t>(p[k]) << (k % 4 * 8);
  return b;
}
inline __device__ __noinline__ void store_bytes(std::byte* p, Bits b, int bytes) {
  OURO_UNROLL
  for (int k = 0; k < 16; ++k)
    if (k < bytes) p[k] = static_cast<std::byte>(b.word[k / 4] >> (k % 4 * 8));
}
#endif

#if defined(__CUDA_ARCH__)
// Volatile keeps these in source order: all loads of a step before the first use of any, and before the
// stores. No line is kept in the L1 cache, since each byte is read once.
#define OURO_LOAD(kind)                                                                                     \
  if constexpr (kBytes == 16)                                                                               \
    asm volatile("ld.global" kind ".v4.u32 {%0,%1,%2,%3}, [%4];"                                            \
                 : "=r"(b.word[0]), "=r"(b.word[1]), "=r"(b.word[2]), "=r"(b.word[3])                       \
                 : "l"(from));                                                                              \
  else if constexpr (kBytes == 8)                                                                           \
    asm volatile("ld.global" kind ".v2.u32 {%0,%1}, [%2];" : "=r"(b.word[0]), "=r"(b.word[1]) : "l"(from)); \
  else if constexpr (kBytes == 4)                                                                           \
    asm volatile("ld.global" kind ".u32 %0, [%1];" : "=r"(b.word[0]) : "l"(from));                          \
  else if constexpr (kBytes == 2)                                                                           \
    asm volatile("ld.global" kind ".u16 %0, [%1];" : "=r"(b.word[0]) : "l"(from));                          \
  else                                                                                                      \
    asm volatile("ld.global" kind ".u8 %0, [%1];" : "=r"(b.word[0]) : "l"(from))
#endif

/// Loads kBytes (a power of two, at most 16) from `p`, which is aligned to kBytes unless the access is `any`.
template <int kBytes, Access kAccess>
OURO_HD void load(Bits& b, const std::byte* p) {
#if defined(__CUDA_ARCH__)
  if (kAccess == Access::any && reinterpret_cast<std::uintptr_t>(p) % kBytes != 0) {
    b = load_bytes(p, kBytes);
  } else {
    const std::size_t from = __cvta_generic_to_global(p);
    if constexpr (kAccess == Access::constant) {
      OURO_LOAD(".nc.L1::no_allocate");
    } else {
      OURO_LOAD(".L1::no_allocate");
    }
  }
#else
  __builtin_memcpy(b.word, p, kBytes);
#endif
}

/// Stores kBytes in the same way. The line is marked to be evicted first, since this kernel does not
/// use it again.
template <int kBytes, Access kAccess>
OURO_HD void store(std::byte* p, const Bits& b) {
#if defined(__CUDA_ARCH__)
  if (kAccess == Access::any && reinterpret_cast<std::uintptr_t>(p) % kBytes != 0) {
    store_bytes(p, b, kBytes);
  } else {
    const std::size_t to = __cvta_generic_to_global(p);
    if constexpr (kBytes == 16)
      asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(b.word[0]), "r"(b.word[1]),
                   "r"(b.word[2]), "r"(b.word[3]));
    else if constexpr (kBytes == 8)
      asm volatile("st.global.cs.v2.u32 [%0], {%1,%2};" ::"l"(to), "r"(b.word[0]), "r"(b.word[1]));
    else if constexpr (kBytes == 4)
      asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(to), "r"(b.word[0]));
    else if constexpr (kBytes == 2)
      asm volatile("st.global.cs.u16 [%0], %1;" ::"l"(to), "r"(b.word[0]));
    else
      asm volatile("st.global.cs.u8 [%0], %1;" ::"l"(to), "r"(b.word[0]));
  }
#else
  __builtin_memcpy(p, b.word, kBytes);
#endif
}
#undef OURO_LOAD

/// Conversion to and from a partial result, as R defines it. For fp16 on a device, these use the
/// conversion instructions: one instruction where integer arithmetic takes ten (like
/// kernels/host/host_loops_half.h on the host). The bits are the same: widening is exact, narrowing rounds
/// to nearest even, a NaN becomes canonical.
template <class R>
inline constexpr bool kHalf = std::is_same_v<typename R::Element, arith::Half> && !R::kPlain;
template <class R>
OURO_HD typename R::Acc lift(typename R::Element x, typename R::Acc factor) {
#if defined(__CUDA_ARCH__)
  if constexpr (kHalf<R>) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return R::kScaled ? arith::multiply(wide, factor) : wide;
  }
#endif
  return R::lift(x, factor);
}
template <class R>
OURO_HD typename R::Element finish(typename R::Acc a, int ranks) {
#if defined(__CUDA_ARCH__)
  if constexpr (kHalf<R>) {
    if constexpr (std::is_same_v<R, arith::Avg<arith::Half>>) a = a / static_cast<float>(ranks);
    arith::Half narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(a));
    if (arith::is_nan(a)) narrow.bits = arith::Format<arith::Half>::kNan;
    return narrow;
  }
#endif
  return R::finish(a, ranks);
}

}  // namespace ouro::gpu::collect
