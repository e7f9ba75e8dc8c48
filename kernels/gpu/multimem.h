// Multicast addresses in kernels: reductions that a switch computes over the memory of all members
// while reading, and stores that it replicates to all of them (multimem of PTX ISA 8.1 and later, sm_90
// and later). On the host, the same over the members' memory, which the emulated device provides. Used
// by resident_switch.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/arith/reduce.h"
#include "kernels/gpu/access.h"
#include "runtime/core/hd.h"
#include "runtime/core/types.h"

#if !defined(__CUDACC__)
#include "kernels/device/gpu.h"
#endif

namespace ouro::gpu {

/// X(element type, reduction, bits of a register, type and operation in PTX): the reductions that a switch
/// supports. Bitwise reductions are independent of the element type, so all integers have them. Sums of
/// 16-bit floats are computed in fp32 and rounded once. PTX does not specify the result of min and max of
/// floats with a NaN; it has none for fp32 and fp64.
#define OURO_MULTIMEM_BITWISE(X, type) \
  X(type, band, 32, "and.b32")         \
  X(type, bor, 32, "or.b32")           \
  X(type, bxor, 32, "xor.b32")
// clang-format off
#define OURO_MULTIMEM_HOT(X)                   \
  X(f32, sum, 128, "add.v4.f32")               \
  X(f16, sum, 128, "add.acc::f32.v4.f16x2")    \
  X(bf16, sum, 128, "add.acc::f32.v4.bf16x2")
#define OURO_MULTIMEM_COLD(X)                                                                       \
  X(f16, min, 128, "min.v4.f16x2")    X(f16, max, 128, "max.v4.f16x2")                              \
  X(bf16, min, 128, "min.v4.bf16x2")  X(bf16, max, 128, "max.v4.bf16x2")                            \
  X(f64, sum, 64, "add.f64")                                                                        \
  X(i32, sum, 32, "add.s32")  X(i32, min, 32, "min.s32")  X(i32, max, 32, "max.s32")                \
  X(u32, sum, 32, "add.u32")  X(u32, min, 32, "min.u32")  X(u32, max, 32, "max.u32")                \
  X(i64, sum, 64, "add.u64")  X(i64, min, 64, "min.s64")  X(i64, max, 64, "max.s64")                \
  X(u64, sum, 64, "add.u64")  X(u64, min, 64, "min.u64")  X(u64, max, 64, "max.u64")                \
  OURO_MULTIMEM_BITWISE(X, i8)  OURO_MULTIMEM_BITWISE(X, u8)  OURO_MULTIMEM_BITWISE(X, i16)         \
  OURO_MULTIMEM_BITWISE(X, u16) OURO_MULTIMEM_BITWISE(X, i32) OURO_MULTIMEM_BITWISE(X, u32)         \
  OURO_MULTIMEM_BITWISE(X, i64) OURO_MULTIMEM_BITWISE(X, u64)
// clang-format on

/// Whether a switch supports this reduction.
constexpr bool has_multimem(DType type, OpKind op) {
#define OURO_X(t, o, bits, text) \
  if (type == DType::t && op == OpKind::o) return true;
  OURO_MULTIMEM_HOT(OURO_X)
  OURO_MULTIMEM_COLD(OURO_X)
#undef OURO_X
  return false;
}

/// The memory of all members behind a multicast address, for the duration of its use.
class Multimem {
 public:
#if defined(__CUDACC__)
  OURO_HD explicit Multimem(std::byte* at) : at_(at) {}
#else
  explicit Multimem(std::byte* at) : at_(at), members_(gpu().multicast_members(at, member_)) {}
  ~Multimem() {
    (void)gpu().multicast_members(at_, member_);
  }  // faults if the memory has been released meanwhile
  Multimem(const Multimem&) = delete;
  Multimem& operator=(const Multimem&) = delete;
#endif

  /// Reads 16 bytes at `offset`, a multiple of 16, reduced over all members in an unspecified order.
  template <DType kType, OpKind kOp>
  OURO_HD void reduce(collect::Bits& b, std::uint64_t offset) const;
  /// Stores the same 16 bytes into the memory of all members.
  OURO_HD void store([[maybe_unused]] std::uint64_t offset, [[maybe_unused]] const collect::Bits& b) const {
#if defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 900
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(at_ + offset),
                 "r"(b.word[0]), "r"(b.word[1]), "r"(b.word[2]), "r"(b.word[3])
                 : "memory");
#else
    __trap();  // no such instruction; Properties::multicast is false on these devices
#endif
#elif !defined(__CUDACC__)
    for (int m = 0; m < members_; ++m) __builtin_memcpy(member_[m] + offset, b.word, sizeof b.word);
#endif
  }

 private:
  std::byte* at_;
#if !defined(__CUDACC__)
  static constexpr int kMost = 64;
  std::byte* member_[kMost];
  int members_;

  /// Folds from the last member to the first, so that code which relies on rank order gives wrong
  /// results in tests.
  template <class R>
  void fold(collect::Bits& b, std::uint64_t offset) const {
    using T = typename R::Element;
    collect::Bits out;
    for (int i = 0; i < static_cast<int>(16 / sizeof(T)); ++i) {
      typename R::Acc sum{};
      for (int m = members_ - 1; m >= 0; --m) {
        T x;
        __builtin_memcpy(&x, member_[m] + offset + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
        const auto mine = R::lift(x, {});
        sum = m == members_ - 1 ? mine : R::combine(sum, mine);
      }
      collect::set(out, i, R::finish(sum, members_));
    }
    b = out;
  }
#endif
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define OURO_LD_REDUCE(text) "multimem.ld_reduce.relaxed.sys.global." text
#define OURO_REDUCE_128(text)                                                       \
  asm volatile(OURO_LD_REDUCE(text) " {%0,%1,%2,%3}, [%4];"                         \
               : "=r"(b.word[0]), "=r"(b.word[1]), "=r"(b.word[2]), "=r"(b.word[3]) \
               : "l"(at_ + offset)                                                  \
               : "memory")
#define OURO_REDUCE_32(text)                                                                                 \
  OURO_UNROLL for (int w = 0; w < 4; ++w) asm volatile(OURO_LD_REDUCE(text) " %0, [%1];" : "=r"(b.word[w]) : \
                                                       "l"(at_ + offset + 4 * w) : "memory")
#define OURO_REDUCE_64(text)                                                                             \
  OURO_UNROLL for (int w = 0; w < 2; ++w) {                                                              \
    std::uint64_t both;                                                                                  \
    asm volatile(OURO_LD_REDUCE(text) " %0, [%1];" : "=l"(both) : "l"(at_ + offset + 8 * w) : "memory"); \
    b.word[2 * w] = static_cast<std::uint32_t>(both);                                                    \
    b.word[2 * w + 1] = static_cast<std::uint32_t>(both >> 32);                                          \
  }
#elif defined(__CUDA_ARCH__)
#define OURO_REDUCE_128(text) __trap()
#define OURO_REDUCE_64(text) __trap()
#define OURO_REDUCE_32(text) __trap()
#elif defined(__CUDACC__)
#define OURO_REDUCE_128(text) static_cast<void>(b), static_cast<void>(offset)
#define OURO_REDUCE_64(text) OURO_REDUCE_128(text)
#define OURO_REDUCE_32(text) OURO_REDUCE_128(text)
#endif
template <DType kType, OpKind kOp>
OURO_HD void Multimem::reduce(collect::Bits& b, std::uint64_t offset) const {
  static_assert(has_multimem(kType, kOp));
#if defined(__CUDACC__)
#define OURO_X(t, o, bits, text)                         \
  if constexpr (kType == DType::t && kOp == OpKind::o) { \
    OURO_REDUCE_##bits(text);                            \
  }
  OURO_MULTIMEM_HOT(OURO_X)
  OURO_MULTIMEM_COLD(OURO_X)
#undef OURO_X
#else
  fold<arith::ReductionFor<kType, kOp> >(b, offset);
#endif
}
#undef OURO_LD_REDUCE
#undef OURO_REDUCE_128
#undef OURO_REDUCE_64
#undef OURO_REDUCE_32

/// Orders accesses by a multicast address and other accesses to the same memory, which are aliases of each
/// other. Needed between the two kinds, together with the synchronisation that orders them.
OURO_HD void order_aliases() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.alias;" ::: "memory");
#endif
}

}  // namespace ouro::gpu
