// PyTorch tensors as ouro views, and checks of c10d's arguments. Used by every operation of the backend.
#pragma once
#include <ATen/ATen.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "ouro/ouro.hpp"

namespace ouro::adapter {

/// The use of the elements: only operations that compute need to know their type.
enum class Use { move, reduce };

/// The elements of a contiguous tensor. Complex numbers are pairs; for `move`, types that ouro lacks are
/// bytes. Throws TypeError for a type that cannot be reduced.
View view(const at::Tensor&, Use = Use::move);
/// Number of ouro elements per tensor element.
std::size_t per_element(const at::Tensor&, Use = Use::move);

/// PyTorch's current stream of the tensor's GPU. Throws DistBackendError.
Stream current_stream(const at::Tensor&);

/// The ouro reduction for tensors of this type. Throws ValueError if there is none.
ReduceOp reduction(const c10d::ReduceOp&, at::ScalarType);

/// Checks that all tensors are defined, dense, on one device of a supported kind, and of one type, and that
/// those of `outputs` can be written: no two elements of one at the same address. Throws ValueError that
/// names the caller's function.
void check(const char* function, std::span<const at::Tensor> tensors,
           std::span<const at::Tensor> outputs = {});
/// Checks that c10d's list has exactly one tensor for this rank, and returns it.
const at::Tensor& only(const char* function, const std::vector<at::Tensor>& tensors);
const std::vector<at::Tensor>& only(const char* function, const std::vector<std::vector<at::Tensor>>& lists,
                                    std::size_t length);
/// Checks that two tensors have the same number of elements.
void same_count(const char* function, const char* what, std::int64_t count, const char* than,
                std::int64_t wanted);

/// The tensor itself, or a contiguous copy of it.
at::Tensor to_read(const at::Tensor&);
/// The same for an operation that writes to `out`, which is contiguous or undefined. A copy, too, if the two
/// share memory, unless `in` begins `place` of its elements behind `out`, where the operation expects it.
at::Tensor to_read(const at::Tensor& in, const at::Tensor& out,
                   std::optional<std::int64_t> place = std::nullopt);

/// A contiguous destination for results: the tensor itself if it is contiguous; else another one, from which
/// store() copies back.
class Target {
 public:
  explicit Target(at::Tensor t)
      : wanted_(std::move(t)),
        flat_(wanted_.is_contiguous() ? wanted_ : at::empty_like(wanted_, at::MemoryFormat::Contiguous)) {}
  const at::Tensor& flat() const { return flat_; }
  void store() const {
    if (!flat_.is_same(wanted_)) wanted_.copy_(flat_);
  }

 private:
  at::Tensor wanted_, flat_;
};

/// Tensors as one contiguous vector: without a copy if they are adjacent in memory.
class Packed {
 public:
  explicit Packed(std::vector<at::Tensor> parts);
  const at::Tensor& flat() const { return flat_; }
  void load() const;   ///< copies the parts into the vector
  void store() const;  ///< copies the vector into the parts

 private:
  std::vector<at::Tensor> parts_;
  at::Tensor flat_;
  bool own_ = false;
};

}  // namespace ouro::adapter
