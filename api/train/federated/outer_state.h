// The parts of an outer step, for those who put something between them; the state of local steps; and loops
// by element type. Used by outer*.cc, average.cc.
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
    Param param;   // the model's
    Array before;  // x_o, which the optimiser steps on
    Array delta;   // g
  };
  std::vector<Item> items;
  std::unique_ptr<Optimizer> optimizer;
  OuterOptions options;
  std::int64_t steps = 0;
  Stream own;  // of the GPU, for calls without one

  /// g = x_o - x.
  Status difference(const Stream&);
  /// One step of the optimiser with g on x_o; x <- x_o. A step that is refused changes nothing.
  Status apply(const Stream&);
  /// Where optimiser and differences run, for a call with `stream`.
  const Stream& beside(const Stream& stream) const;
  /// `stream`, or one of the parameters' device that is waited for by `settle`.
  const Stream& at(const Stream& stream) const { return stream.valid() ? stream : own; }
  Status settle(const Stream& stream) const { return stream.valid() ? Status{} : own.synchronize(); }
};

struct LocalSteps::State {
  LocalStepsOptions options;
  std::int64_t taken = 0;
  std::optional<OuterOptimizer> outer;
  std::optional<AggregationPlan>
      plan;  // of parameters (exact), of `rounded` (bf16); int8: for the comparison
  std::vector<Array> rounded;
  AggregationLane lane;         // int8
  std::vector<double> weights;  // of the sites
  std::vector<std::byte> packed, gathered;
  TensorClaims tensors;    // what the plan claims by itself
  std::uint64_t rule = 0;  // digest of what all ranks must have alike besides

  /// The next round compares again: tensors, rule and rounds so far.
  void claim();
  Status round(const Stream&);
  Status exchange_rounded(const Stream&);
  Status exchange_packed();
};

/// Copies between arrays of a device, or of a GPU and the host, in the stream's order; without a stream at
/// once.
Status copy(const View& to, const CView& from, const Stream&);

/// f(T{}) with T the element type: double, float, BFloat16 or Half; nothing for others, which checks refuse.
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
/// The type of sums: double for double, else float.
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
