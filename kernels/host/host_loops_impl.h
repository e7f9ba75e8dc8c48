// The host loops. Included once per instruction set, by a unit that defines OURO_ISA (a namespace of its own)
// and is compiled for it. One kernel per (type, op): the cold ones use a block of accumulators in the L1
// cache, the hot ones also have loops that keep the accumulator in registers.
#pragma once
#ifndef OURO_ISA
#error "define OURO_ISA, the namespace of this instruction set, before including host_loops_impl.h"
#endif
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/arith/cases.h"
#include "kernels/arith/reduce.h"
#include "kernels/host/host_job.h"
#if defined(__F16C__)
#include "kernels/host/host_loops_half.h"
#endif

namespace ouro::kernels::OURO_ISA {

template <class T>
inline T load(const void* array, std::size_t i) {  // any alignment
  T x;
  __builtin_memcpy(&x, static_cast<const char*>(array) + i * sizeof(T), sizeof(T));
  return x;
}
template <class T>
inline void store(void* array, std::size_t i, T x) {
  __builtin_memcpy(static_cast<char*>(array) + i * sizeof(T), &x, sizeof(T));
}

/// Element i of a source as a partial result; a wide source holds partial results already.
template <class R, bool kWide>
inline typename R::Acc partial(const void* source, std::size_t i, typename R::Acc factor = {}) {
  if constexpr (kWide)
    return load<typename R::Acc>(source, i);
  else
    return R::lift(load<typename R::Element>(source, i), factor);
}
template <class R, bool kWide>
inline void leave(void* out, std::size_t i, typename R::Acc a, int ranks) {
  if constexpr (kWide)
    store(out, i, arith::settle(a));
  else
    store(out, i, R::finish(a, ranks));
}

// ---- any type and op: block by block ------------------------------------------------------------

constexpr std::size_t kBlock = 1024;  // elements: 4 KiB of fp32, 16 KiB at most, within the L1 cache

/// block (+)= source, from element `begin` on; the first source starts the block.
template <class R, bool kWide>
inline void take(typename R::Acc* block, bool first, const void* source, std::size_t begin, std::size_t n,
                 typename R::Acc factor) {
  if (first) {
    for (std::size_t i = 0; i < n; ++i) block[i] = partial<R, kWide>(source, begin + i, factor);
  } else {
    for (std::size_t i = 0; i < n; ++i)
      block[i] = R::combine(block[i], partial<R, kWide>(source, begin + i, factor));
  }
}

template <class R>
void run_blocks(const Job& shared) {
  using Acc = typename R::Acc;
  const Job job = shared;  // the compiler can assume that no store through `out` changes this copy
  alignas(64) Acc block[kBlock];
  for (std::size_t begin = 0; begin < job.count; begin += kBlock) {
    const std::size_t n = job.count - begin < kBlock ? job.count - begin : kBlock;
    for (int k = 0; k < job.wides; ++k) {
      take<R, true>(block, k == 0, job.wide_in[k], begin, n, {});
      if constexpr (arith::Format<Acc>::kFloat) {
        if (k == 0 && job.weight != 1)
          for (std::size_t i = 0; i < n; ++i) block[i] = arith::weigh(block[i], job.weight);
      }
    }
    for (std::size_t k = 0; k < job.ins; ++k) {
      Acc factor = {};
      if constexpr (R::kScaled) factor = R::factor(job.factor[k]);
      take<R, false>(block, k == 0 && job.wides == 0, job.in[k], begin, n, factor);
    }
    if (job.wide_out) {
      for (std::size_t i = 0; i < n; ++i) leave<R, true>(job.out, begin + i, block[i], job.ranks);
    } else {
      for (std::size_t i = 0; i < n; ++i) leave<R, false>(job.out, begin + i, block[i], job.ranks);
    }
  }
}

// ---- hot types and ops: in registers ------------------------------------------------------------

template <class R>
inline constexpr bool kHot = false;
template <>
inline constexpr bool kHot<arith::Sum<float>> = true;
template <>
inline constexpr bool kHot<arith::Avg<float>> = true;
template <>
inline constexpr bool kHot<arith::Sum<double>> = true;
template <>
inline constexpr bool kHot<arith::Avg<double>> = true;
template <>
inline constexpr bool kHot<arith::Sum<arith::BFloat16>> = true;
template <>
inline constexpr bool kHot<arith::Avg<arith::BFloat16>> = true;
template <>
inline constexpr bool kHot<arith::Sum<arith::Half>> = true;
template <>
inline constexpr bool kHot<arith::Avg<arith::Half>> = true;
template <>
inline constexpr bool kHot<arith::Sum<std::uint32_t>> = true;
template <>
inline constexpr bool kHot<arith::Sum<std::uint64_t>> = true;

/// The first kWides sources are wide. A source may be `out` itself: each element is read before it is
/// written, and no two elements depend on each other, as the pragma states.
template <class R, bool kWideOut, std::size_t kWides, std::size_t... K>
void stream(const Job& job, const void* const* sources, std::index_sequence<K...>) {
  const void* const source[] = {sources[K]...};
  void* const out = job.out;
  const std::size_t count = job.count;
  const int ranks = job.ranks;
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < count; ++i) {
    auto a = partial<R, (kWides > 0)>(source[0], i);
    ((K == 0 ? void() : void(a = R::combine(a, partial<R, (K < kWides)>(source[K], i)))), ...);
    leave<R, kWideOut>(out, i, a, ranks);
  }
}

/// Executes the job and returns true if there is a loop for its shape; these are the most frequent shapes.
template <class R>
bool run_in_registers(const Job& job) {
  constexpr std::size_t most = 8;
  std::size_t wides = static_cast<std::size_t>(job.wides);
  const std::size_t n = wides + job.ins;
  if (n > most || job.weight != 1) return false;
  const void* sources[most] = {};
  for (std::size_t k = 0; k < n; ++k) sources[k] = k < wides ? job.wide_in[k] : job.in[k - wides];
  const auto go = [&]<bool kWideOut, std::size_t kWides, std::size_t kSources>() {
    stream<R, kWideOut, kWides>(job, sources, std::make_index_sequence<kSources>());
    return true;
  };
  using Sum = arith::Sum<typename R::Element>;
  if (job.wide_out && !std::is_same_v<R, Sum>)
    return run_in_registers<Sum>(job);  // avg differs only in the last division
  if constexpr (R::kPlain) {
    wides = 0;  // wide and narrow sources have the same type
  } else if (job.wide_out) {
    if (wides == 0 && n == 1) return go.template operator()<true, 0, 1>();
    if (wides == 1 && n == 2) return go.template operator()<true, 1, 2>();
    if (wides == 2 && n == 2) return go.template operator()<true, 2, 2>();
    return false;
  } else {
    if (wides == 1 && n == 1) return go.template operator()<false, 1, 1>();
    if (wides == 1 && n == 2) return go.template operator()<false, 1, 2>();
    if (wides == 2 && n == 2) return go.template operator()<false, 2, 2>();
  }
  if (wides != 0) return false;
  switch (n) {
    case 1:
      return go.template operator()<false, 0, 1>();
    case 2:
      return go.template operator()<false, 0, 2>();
    case 3:
      return go.template operator()<false, 0, 3>();
    case 4:
      return go.template operator()<false, 0, 4>();
    case 8:
      return go.template operator()<false, 0, 8>();
    default:
      return false;
  }
}

/// Executes the job and returns true if it has so few elements that choosing a loop would take longer than
/// all of them.
template <class R>
bool run_few(const Job& job) {
  constexpr std::size_t kFew = 4;
  if (job.count > kFew || job.wides != 0 || job.wide_out) return false;
  for (std::size_t i = 0; i < job.count; ++i) {
    auto a = partial<R, false>(job.in[0], i);
    for (std::size_t k = 1; k < job.ins; ++k) a = R::combine(a, partial<R, false>(job.in[k], i));
    leave<R, false>(job.out, i, a, job.ranks);
  }
  return true;
}

// ---- dispatch: the one place where types and ops meet -------------------------------------------

template <class R>
void run(const Job& job) {
#if defined(__F16C__)
  using arith::Half;
  constexpr bool sum = std::is_same_v<R, arith::Sum<Half>>, avg = std::is_same_v<R, arith::Avg<Half>>;
  if constexpr (sum || avg) return run_half<avg>(job);
#endif
  if constexpr (kHot<R>) {
    if (run_few<R>(job) || run_in_registers<R>(job)) return;
  }
  run_blocks<R>(job);
}

template <DType kType, OpKind kOp>
constexpr Kernel kernel_of() {
  if constexpr (applies(kOp, kType)) {
    constexpr arith::Case same = arith::same_bits(kType, kOp);
    return &run<arith::ReductionFor<same.type, same.op>>;
  } else {
    return nullptr;
  }
}

struct Table {
  Kernel kernel[kDTypes * kOps];
};
template <std::size_t... I>
constexpr Table make_table(std::index_sequence<I...>) {
  return {{kernel_of<static_cast<DType>(I / kOps), static_cast<OpKind>(I % kOps)>()...}};
}
constexpr Table kTable = make_table(std::make_index_sequence<kDTypes * kOps>());

inline Kernel look_up(DType t, OpKind op) {
  return kTable.kernel[static_cast<std::size_t>(t) * kOps + static_cast<std::size_t>(op)];
}

}  // namespace ouro::kernels::OURO_ISA
