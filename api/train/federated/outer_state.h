// The parts of an outer step, for callers that insert something between them; the state of local steps; and
// loops by element type. Used by outer*.cc, average.cc.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "api/train/federated/federation_state.h"
#include "kernels/arith/floats.h"
#include "ouro/train/average.hpp"
#include "ouro/train/outer.hpp"

namespace ouro::train {

struct OuterOptimizer::State {
  struct Item {
    Param param;   // the model's parameter
    Array before;  // x_o, the optimiser's parameter
    Array delta;   // g
  };
  std::vector<Item> items;
  std::unique_ptr<Optimizer> optimizer;
  OuterOptions options;
  std::int64_t steps = 0;
  Stream own;  // stream of the GPU, for calls without one

  /// g = x_o - x.
  Status difference(const Stream&);
  /// One step of the optimiser with g on x_o; then x <- x_o. A refused step changes nothing.
  Status apply(const Stream&);
  /// The stream on which optimiser and differences run, for a call with `stream`.
  const Stream& beside(const Stream& stream) const;
  /// `stream`, or a stream of the parameters' device that `settle` waits for.
  const Stream& at(const Stream& stream) const { return stream.valid() ? stream : own; }
  Status settle(const Stream& stream) const { return stream.valid() ? Status{} : own.synchronize(); }
};

struct LocalSteps::State {
  LocalStepsOptions options;
  std::int64_t taken = 0;
  std::optional<OuterOptimizer> outer;
  std::optional<AggregationPlan>
      plan;  // of parameters (exact), of `rounded` (bf16); int8: only for the comparison
  std::vector<Array> rounded;
  AggregationLane lane;         // for int8
  std::vector<double> weights;  // weights of the sites
  std::vector<std::byte> packed, gathered;
  TensorClaims tensors;    // the claims of the plan itself
  std::uint64_t rule = 0;  // digest of everything else that all ranks must have in common

  /// Makes the next round compare again: tensors, rule and number of rounds.
  void claim();
  Status round(const Stream&);
  Status exchange_rounded(const Stream&);
  Status exchange_packed();
};

/// Copies between arrays of a device, or between a GPU and the host, in stream order; immediately
/// without a stream.
Status copy(const View& to, const CView& from, const Stream&);

/// Calls f(T{}) with T the element type: double, float, BFloat16 or Half; does nothing for others, which
/// checks refuse.
template <class F>
void with_float_type(DType t, F&& f) {
  switch (t) {
    case DType::f64:
      return f(double{});
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(arith::BFloat16{});
    case DType::f16:
      return f(arith::Half{});
    default:
      return;
  }
}
/// Widens to the accumulation type: double for double, else float.
template <class T>
auto load_wide(T x) {
  if constexpr (arith::Format<T>::kSmall)
    return arith::widen(x);
  else
    return x;
}
template <class T, class C>
T store_wide(C x) {
  if constexpr (arith::Format<T>::kSmall)
    return arith::narrow<T>(x);
  else
    return static_cast<T>(x);
}

}  // namespace ouro::train
