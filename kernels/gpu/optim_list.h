// The one list of optimiser kernels: storage, family and form of each. Used by optim_host.cc and optim.cu,
// which generate the host and the device half of each kernel from it.
#pragma once
#include <array>
#include <cstddef>

#include "kernels/arith/floats.h"
#include "kernels/gpu/optim_body.h"
#include "kernels/gpu/optim_survey.h"

namespace ouro::gpu::optim {

/// X(T, has a master, hot): hot layouts move twice as much at a time and have an additional kernel
/// for few ranks.
#define OURO_OPTIM_LAYOUTS(X)      \
  X(double, false, false)          \
  X(float, false, true)            \
  X(arith::BFloat16, false, false) \
  X(arith::BFloat16, true, true)   \
  X(arith::Half, false, false)     \
  X(arith::Half, true, false)

/// One kernel. Its parameters are L, kFamily, kForm, kRanks (the most ranks that it serves), and kBytes: the
/// bytes of an array that a thread moves at once, in the type of the arithmetic.
template <class L_, Family family, Form form, int ranks, int bytes>
struct Variant {
  using L = L_;
  static constexpr Family kFamily = family;
  static constexpr Form kForm = form;
  static constexpr int kRanks = ranks, kBytes = bytes;
  /// Resident blocks per multiprocessor: registers are limited so that this many fit, and this many are
  /// launched. Two blocks of AdamW in fp32 have 64 KiB of loads in flight; HBM needs 24. If there were no
  /// bound, the compiler would aim higher and spill.
  static constexpr int kResident = [] {
    constexpr bool wide = sizeof(typename L::Computed) == 8, accumulates = family == Family::accum_adam;
    if (form == Form::leader) return wide || (ranks == 4 && accumulates) ? 1 : 2;
    return form == Form::plain && !accumulates && !wide ? 3 : 2;
  }();
};

/// Calls f(Variant) for all variants, always in the same order.
template <class L, bool kHot, Family kFamily, class F>
constexpr void each_form(F&& f) {
  constexpr int kBytes = kHot ? 32 : 16;
  f(Variant<L, kFamily, Form::plain, 1, kBytes>{});
  f(Variant<L, kFamily, Form::exchange, 1, kBytes>{});
  if constexpr (kHot) f(Variant<L, kFamily, Form::leader, 4, 32>{});
  f(Variant<L, kFamily, Form::leader, 8, 16>{});
}
template <class F>
constexpr void each_variant(F&& f) {
#define OURO_X(T, master, hot)                        \
  each_form<Layout<T, master>, hot, Family::sgd>(f);  \
  each_form<Layout<T, master>, hot, Family::adam>(f); \
  each_form<Layout<T, master>, hot, Family::accum_adam>(f);
  OURO_OPTIM_LAYOUTS(OURO_X)
#undef OURO_X
}
/// Calls f(T{}) for the element types of surveys.
template <class F>
constexpr void each_survey(F&& f) {
  f(double{});
  f(float{});
  f(arith::BFloat16{});
  f(arith::Half{});
}

inline constexpr std::size_t kUpdates = [] {
  std::size_t n = 0;
  each_variant([&](auto) { ++n; });
  return n;
}();
inline constexpr std::size_t kSurveys = 4, kOptimKernels = kUpdates + kSurveys;

/// Device entries, updates first, in the order of the list; null in builds without a CUDA compiler.
std::array<const void*, kOptimKernels> optim_entries();

}  // namespace ouro::gpu::optim
