// The optimiser loops. Included once per instruction set, by a unit that defines OURO_ISA (a namespace of its
// own) and is compiled for it. One loop per rule in fp32 and fp64; 16-bit types are converted in tiles
// in the cache.
#pragma once
#ifndef OURO_ISA
#error "define OURO_ISA, the namespace of this instruction set, before including host_optim_impl.h"
#endif
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/arith/optim.h"
#include "kernels/host/host_optim_job.h"

namespace ouro::kernels::OURO_ISA {

template <class T>
inline T get(const void* array, std::size_t i) {  // any alignment
  T x;
  __builtin_memcpy(&x, static_cast<const char*>(array) + i * sizeof(T), sizeof(T));
  return x;
}
template <class T>
inline void put(void* array, std::size_t i, T x) {
  __builtin_memcpy(static_cast<char*>(array) + i * sizeof(T), &x, sizeof(T));
}

/// The type of the arithmetic.
template <class T>
using Computed = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
inline Computed<T> get_wide(const void* array, std::size_t i) {
  if constexpr (arith::Format<T>::kSmall)
    return arith::widen(get<T>(array, i));
  else
    return get<T>(array, i);
}
template <class T>
inline void put_narrow(void* array, std::size_t i, Computed<T> x) {
  if constexpr (arith::Format<T>::kSmall)
    put(array, i, arith::narrow<T>(x));
  else
    put(array, i, arith::settle(x));
}

// No two elements depend on each other, and each is read before it is written.
#if defined(__clang__)
#define OURO_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define OURO_INDEPENDENT _Pragma("GCC ivdep")
#endif

/// One rule in registers, over fp32 or fp64 arrays or (kMaster) a 16-bit type and its master. Every NaN that
/// is stored is canonical.
template <class T, template <class> class RuleOf, bool kMix, bool kMaster = false>
[[gnu::noinline]] bool stream_update(const RuleOf<Computed<T>>& shared, const OptimJob& job) {
  using C = Computed<T>;
  using Rule = RuleOf<C>;
  const Rule rule = shared;  // local: the compiler can assume that no store changes it
  const arith::Scale<C> scale(job.scale);
  const arith::Mix<C> mix(job.mix);
  void* const param = kMaster ? job.master : job.param;
  void* const rounded = job.param;
  const void* const grad = job.grad;
  void *const s0 = job.state[0], *const s1 = job.state[1], *const s2 = job.state[2];
  const void* const neighbours = job.neighbours;
  void* const message = job.message;
  const std::size_t count = job.count;
  arith::Mask<C> all_finite = -1;
  OURO_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) {
    const C g = scale(get_wide<T>(grad, i));
    const arith::Mask<C> finite = arith::finite_mask(g);
    all_finite &= finite;
    C p = get<C>(param, i);
    if constexpr (kMix) p = mix.mixed(p, get<C>(neighbours, i));
    C s[3] = {};
    if constexpr (Rule::reads(0)) s[0] = get<C>(s0, i);
    if constexpr (Rule::reads(1)) s[1] = get<C>(s1, i);
    if constexpr (Rule::reads(2)) s[2] = get<C>(s2, i);
    rule(g, finite, p, s);
    p = arith::settle(p);
    put(param, i, p);
    if constexpr (kMaster) put_narrow<T>(rounded, i, p);
    if constexpr (kMix) put(message, i, mix.message(p));
    if constexpr (Rule::writes(0)) put(s0, i, arith::settle(s[0]));
    if constexpr (Rule::writes(1)) put(s1, i, arith::settle(s[1]));
    if constexpr (Rule::writes(2)) put(s2, i, arith::settle(s[2]));
  }
  return all_finite != 0;
}

/// x <- keep*x + take*neighbours, x of type X and neighbours of type N.
template <class X, class N>
void stream_mix(void* x, const OptimJob& job) {
  const arith::Mix<Computed<X>> mix(job.mix);
  const void* const neighbours = job.neighbours;
  const std::size_t count = job.count;
  OURO_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i)
    put_narrow<X>(x, i, mix.mixed(get_wide<X>(x, i), get_wide<N>(neighbours, i)));
}

/// message <- send*x
template <class X, class N>
void stream_pack(const void* x, const OptimJob& job) {
  const arith::Mix<Computed<X>> mix(job.mix);
  void* const message = job.message;
  const std::size_t count = job.count;
  OURO_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) put_narrow<N>(message, i, mix.message(get_wide<X>(x, i)));
}

template <class To, class From>
[[gnu::noinline]] void convert(void* to, const void* from, std::size_t count) {
  OURO_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) put_narrow<To>(to, i, get_wide<From>(from, i));
}

template <class T>
void run_mix(const OptimJob& job) {
  if constexpr (arith::Format<T>::kSmall) {
    if (job.master != nullptr) {
      stream_mix<float, T>(job.master, job);
      convert<T, float>(job.param, job.master, job.count);
      return;
    }
  }
  stream_mix<T, T>(job.param, job);
}

template <class T>
void run_pack(const OptimJob& job) {
  if constexpr (arith::Format<T>::kSmall) {
    if (job.master != nullptr) return stream_pack<float, T>(job.master, job);
  }
  stream_pack<T, T>(job.param, job);
}

constexpr std::size_t kTile = 1024;  // elements: the arrays that a tile of AdamW uses fit into the L1 cache

/// Elements begin..begin+n of a job of a 16-bit type.
template <class T>
OptimJob tile_of(const OptimJob& job, std::size_t begin, std::size_t n) {
  const auto at = [begin](auto* array, std::size_t size) -> decltype(array) {
    using Byte =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(array)>>, const char, char>;
    if (array == nullptr) return nullptr;
    return static_cast<decltype(array)>(static_cast<Byte*>(array) + begin * size);
  };
  OptimJob tile = job;
  tile.param = at(job.param, sizeof(T));
  if (job.master != nullptr) tile.master = job.master + begin;
  tile.grad = at(job.grad, sizeof(T));
  for (void*& state : tile.state) state = at(state, sizeof(float));
  tile.neighbours = at(job.neighbours, sizeof(T));
  tile.message = at(job.message, sizeof(T));
  tile.count = n;
  return tile;
}

template <class T, template <class> class RuleOf>
bool run_update(const OptimJob& job) {
  const RuleOf<Computed<T>> rule(job.recipe);
  if constexpr (!arith::Format<T>::kSmall) {
    if (job.neighbours != nullptr) return stream_update<T, RuleOf, true>(rule, job);
    return stream_update<T, RuleOf, false>(rule, job);
  } else {
    if constexpr (std::is_same_v<T, arith::BFloat16>) {  // the most frequent case
      if (job.master != nullptr && job.neighbours == nullptr)
        return stream_update<T, RuleOf, false, true>(rule, job);
    }
    alignas(64) float param[kTile], grad[kTile];
    bool finite = true;
    for (std::size_t begin = 0; begin < job.count; begin += kTile) {
      const std::size_t n = job.count - begin < kTile ? job.count - begin : kTile;
      const OptimJob tile = tile_of<T>(job, begin, n);
      if (tile.neighbours != nullptr) run_mix<T>(tile);
      OptimJob wide = tile;
      wide.grad = grad;
      convert<float, T>(grad, tile.grad, n);
      if (tile.master != nullptr) {
        wide.param = tile.master;
      } else {
        wide.param = param;
        convert<float, T>(param, tile.param, n);
      }
      finite &= stream_update<float, RuleOf, false>(rule, wide);
      convert<T, float>(tile.param, wide.param, n);
      if (tile.neighbours != nullptr) run_pack<T>(tile);
    }
    return finite;
  }
}

template <class T>
bool run_survey(const OptimJob& job, SquareSums* sums) {
  constexpr std::size_t kBlock = arith::kSurveyBlock, kLanes = arith::kSurveyLanes;
  const arith::Scale<Computed<T>> scale(job.scale);
  arith::Mask<Computed<T>> all_finite = -1;
  for (std::size_t begin = 0; begin < job.count; begin += kBlock) {
    const std::size_t n = job.count - begin < kBlock ? job.count - begin : kBlock;
    double lane[kLanes] = {};
    const auto add = [&](std::size_t i, std::size_t k) {
      const auto g = scale(get_wide<T>(job.grad, begin + i + k));
      all_finite &= arith::finite_mask(g);
      lane[k] += static_cast<double>(g) * static_cast<double>(g);
    };
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (std::size_t k = 0; k < kLanes; ++k) add(i, k);
    for (std::size_t k = 0; i + k < n; ++k) add(i, k);
    for (std::size_t half = kLanes / 2; half > 0; half /= 2)
      for (std::size_t k = 0; k < half; ++k) lane[k] += lane[k + half];
    double& chain = sums->chain[sums->blocks % arith::kSurveyChains];
    chain = sums->blocks < arith::kSurveyChains ? lane[0] : chain + lane[0];
    ++sums->blocks;
  }
  return all_finite != 0;
}

// ---- dispatch: the one place where types and rules meet -----------------------------------------

template <class T>
bool update_any(arith::Update update, const OptimJob& job) {
  switch (update) {
#define OURO_X(e, Rule)  \
  case arith::Update::e: \
    return run_update<T, arith::Rule>(job);
    OURO_UPDATES(OURO_X)
#undef OURO_X
  }
  __builtin_unreachable();
}

template <class T>
constexpr OptimLoops kLoops = {&update_any<T>, &run_mix<T>, &run_pack<T>, &run_survey<T>};

inline const OptimLoops* optim_loops(DType t) {
  switch (t) {
    case DType::f64:
      return &kLoops<double>;
    case DType::f32:
      return &kLoops<float>;
    case DType::f16:
      return &kLoops<arith::Half>;
    case DType::bf16:
      return &kLoops<arith::BFloat16>;
    default:
      return nullptr;
  }
}

}  // namespace ouro::kernels::OURO_ISA
