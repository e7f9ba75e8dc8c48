/// Averages of gradients and of whole models over a group, reductions and gathers of lists and of uneven
/// rows; and the array that they return. For users and for the outer optimisers (outer.hpp).
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

/// Memory with a shape, row-major. Copies share it; the last one frees it.
class OURO_API Array {
 public:
  Array() = default;
  /// Zero-filled. No dimension: one element. Errors: invalid (a dimension below 0, more bytes than an address
  /// counts), resource, device.
  static Result<Array> make(std::span<const std::int64_t> shape, DType, Device = {});
  const View& view() const { return view_; }                      ///< all elements
  std::span<const std::int64_t> shape() const { return shape_; }  ///< elements of each dimension
  /// On the host; T is of the elements' size.
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
/// Collective over the group. Ranks first compare what they bring (one small reduction): where they differ,
/// or one of them refuses, every rank returns `invalid` and the group stays usable. They block without a
/// stream; with one they are enqueued, and their outcome is the stream's. Not inside group_start (invalid).
/// @{

/// Options of average_gradients().
struct GradientAverageOptions {
  /// Parameters without a gradient are left out, if all ranks lack the same ones. Else they are `invalid`.
  bool skip_missing = false;
};
/// Each gradient becomes its mean over the group, in place. Errors: invalid (no gradient, types, sizes).
OURO_API Status average_gradients(Group&, std::span<const Param>, const GradientAverageOptions& = {},
                                  const Stream& = {});
/// Each parameter becomes its mean over the group, in place: sum / size of the group.
OURO_API Status average_models(Group&, std::span<const Param>, const Stream& = {});

/// Rows of all ranks, one below the other in the order of ranks, on `root`; nothing elsewhere. `shape` has at
/// least one dimension; the first, the number of rows, may differ between ranks and be 0, the others are the
/// same. Any type. Blocks. Errors: invalid, on every rank (shapes, types, devices, roots that differ; a shape
/// that is not the view's).
OURO_API Result<std::optional<Array>> gather_rows(Group&, CView rows, std::span<const std::int64_t> shape,
                                                  int root = 0);
/// All ranks' inputs in the order of ranks, in this shape, on the input's device. Blocks. Errors: invalid
/// (shape does not have size * count elements; counts or types differ).
OURO_API Result<Array> gather_into(Group&, CView in, std::span<const std::int64_t> shape);
/// The inputs one behind the other, reduced once: one dimension. Blocks. Errors: invalid (no inputs, more
/// than one type or device, null arrays; ranks that differ).
OURO_API Result<Array> all_reduce_list(Group&, std::span<const CView>, ReduceOp = ReduceOp::sum);

/// Options of all_reduce_list().
struct ListOptions {
  bool unflatten = true;  ///< also write the results back to the inputs
};
/// The same; by default the inputs receive the results, too.
OURO_API Result<Array> all_reduce_list(Group&, std::span<const View>, ReduceOp, const ListOptions&);

/// @}
/// @defgroup selective Training: selective averaging
/// @{

/// From whom the replaced ranks take their values.
enum class Averaging : std::uint8_t {
  mean,           ///< donors: all ranks that stay, alike
  weighted_mean,  ///< weights proportional to the metric
  best_only,      ///< the one with the largest metric
  reset_weights,  ///< no donors: the replaced start anew
};
/// Which ranks are replaced, and by what.
struct Replacement {
  std::vector<int> replaced;    ///< sorted
  std::vector<int> donors;      ///< sorted
  std::vector<double> weights;  ///< one per donor; they add up to 1
};
/// The max(1, floor(n ratio)) ranks of the lowest metric are replaced; among equals, the lower rank first.
/// Donors are among the others: none if all are replaced. A pure function. Errors: invalid (no metric, one
/// that is not finite or, for weighted_mean, negative; a ratio outside [0, 1]).
OURO_API Result<Replacement> choose_replaced(std::span<const double> metric, double ratio, Averaging);
/// @}

}  // namespace ouro::train
