// Tensors of PyTorch as views of ouro, and what c10d's arguments must be. Used by every operation of the
// backend.
#pragma once
#include <ATen/ATen.h>

#include <span>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "ouro/ouro.hpp"

namespace ouro::adapter {

/// What an operation does with elements: only those that compute need to know their type.
enum class Use { move, reduce };

/// The elements of a contiguous tensor. Complex numbers are pairs; where elements only move, types that ouro
/// does not have are bytes. Throws TypeError for a type that cannot be reduced.
View view(const at::Tensor&, Use = Use::move);
/// Elements of ouro in one of the tensor's.
std::size_t per_element(const at::Tensor&, Use = Use::move);

/// PyTorch's current stream of the tensor's GPU. Throws DistBackendError.
Stream current_stream(const at::Tensor&);

/// The reduction, for tensors of this type. Throws ValueError where there is none.
ReduceOp reduction(const c10d::ReduceOp&, at::ScalarType);

/// All of them: defined, dense, on one device of a kind that is served, of one type. Throws ValueError, in
/// the words of the caller's function.
void check(const char* function, std::span<const at::Tensor> tensors);
/// That c10d's list has one tensor for this rank.
const at::Tensor& only(const char* function, const std::vector<at::Tensor>& tensors);
const std::vector<at::Tensor>& only(const char* function, const std::vector<std::vector<at::Tensor>>& lists,
                                    std::size_t length);
/// That two have the same number of elements.
void same_count(const char* function, const char* what, std::int64_t count, const char* than,
                std::int64_t wanted);

/// The tensor itself, or a contiguous one with its contents.
at::Tensor to_read(const at::Tensor&);

/// A contiguous place for results: the tensor itself where it is one; else another, from which store() copies
/// back.
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

/// Tensors as one contiguous vector: without a copy where they lie one behind the other.
class Packed {
 public:
  explicit Packed(std::vector<at::Tensor> parts);
  const at::Tensor& flat() const { return flat_; }
  void load() const;   ///< parts into the vector
  void store() const;  ///< the vector into the parts

 private:
  std::vector<at::Tensor> parts_;
  at::Tensor flat_;
  bool own_ = false;
};

}  // namespace ouro::adapter
