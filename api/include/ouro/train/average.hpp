/// Averages of gradients and of whole models over a group, reductions and gathers of lists and of uneven
/// rows, and the array type that they return. For users and for the outer optimisers (outer.hpp).
/// @file
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ouro/ouro.hpp"
#include "ouro/train/param.hpp"

namespace ouro::train {

/// Memory with a shape, row-major. Copies share it; destroying the last copy frees it.
class OURO_API Array {
 public:
  Array() = default;
  /// Makes a zero-filled array. An empty shape means one element. Errors: invalid (a dimension below 0, more
  /// bytes than an address can count), resource, device.
  static Result<Array> make(std::span<const std::int64_t> shape, DType, Device = {});
  const View& view() const { return view_; }                      ///< all elements
  std::span<const std::int64_t> shape() const { return shape_; }  ///< elements of each dimension
  /// All elements, which must be on the host; T must have the elements' size.
  template <class T>
  std::span<T> as() const {
    return {static_cast<T*>(view_.data), view_.count};
  }

 private:
  std::shared_ptr<void> memory_;
  View view_;
  std::vector<std::int64_t> shape_;
};

/// @defgroup averages Training: averages, lists and gathers
/// Collective over the group. Ranks first compare their arguments (one small reduction): if they differ, or
/// one of the ranks refuses, every rank returns `invalid` and the group remains usable. Without a stream,
/// they block; with one, they are enqueued, and the stream reports their outcome. Not allowed inside
/// group_start (invalid).
/// @{

/// Options of average_gradients().
struct GradientAverageOptions {
  /// Skip parameters without a gradient, provided all ranks lack the same ones. Otherwise they are `invalid`.
  bool skip_missing = false;
};
/// Replaces each gradient by its mean over the group, in place. Errors: invalid (no gradient, types, sizes).
OURO_API Status average_gradients(Group&, std::span<const Param>, const GradientAverageOptions& = {},
                                  const Stream& = {});
/// Replaces each parameter by its mean over the group, in place: sum / size of the group.
OURO_API Status average_models(Group&, std::span<const Param>, const Stream& = {});

/// Stacks the rows of all ranks in rank order on `root`; returns nothing elsewhere. `shape` has at least one
/// dimension; the first, the number of rows, may differ between ranks and be 0, the others are equal. Any
/// type. Blocks. Errors: invalid, on every rank (shapes, types, devices or roots that differ; a shape that
/// does not match the view).
OURO_API Result<std::optional<Array>> gather_rows(Group&, CView rows, std::span<const std::int64_t> shape,
                                                  int root = 0);
/// All ranks' inputs in rank order, in the given shape, on the input's device. Blocks. Errors: invalid (shape
/// does not have size * count elements; counts or types differ).
OURO_API Result<Array> gather_into(Group&, CView in, std::span<const std::int64_t> shape);
/// Concatenates the inputs and reduces them at once; the result has one dimension. Blocks. Errors: invalid
/// (no inputs, more than one type or device, null arrays; ranks that differ).
OURO_API Result<Array> all_reduce_list(Group&, std::span<const CView>, ReduceOp = ReduceOp::sum);

/// Options of all_reduce_list().
struct ListOptions {
  bool unflatten = true;  ///< also write the results back to the inputs
};
/// The same; by default, the results are also written to the inputs.
OURO_API Result<Array> all_reduce_list(Group&, std::span<const View>, ReduceOp, const ListOptions&);

/// @}
/// @defgroup selective Training: selective averaging
/// @{

/// The source of the replaced ranks' values.
enum class Averaging : std::uint8_t {
  mean,           ///< all remaining ranks, with equal weights
  weighted_mean,  ///< weights proportional to the metric
  best_only,      ///< the rank with the largest metric
  reset_weights,  ///< no donors: the replaced ranks start anew
};
/// Which ranks are replaced, and from which donors.
struct Replacement {
  std::vector<int> replaced;    ///< sorted
  std::vector<int> donors;      ///< sorted
  std::vector<double> weights;  ///< one per donor; their sum is 1
};
/// The max(1, floor(n ratio)) ranks with the lowest metric are replaced; among equals, the lower rank first.
/// Donors are chosen from the others: none if all are replaced. A pure function. Errors: invalid (no metric;
/// one that is not finite or, for weighted_mean, negative; a ratio outside [0, 1]).
OURO_API Result<Replacement> choose_replaced(std::span<const double> metric, double ratio, Averaging);
/// @}

}  // namespace ouro::train
