/// Arrays of other libraries: DLPack tensors in and out, and views of memory with strides. For users.
/// Declares DLPack's two structs only: their definition is the user's dlpack.h, of any version, or
/// ouro/dlpack_abi.h.
/// @file
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "ouro/ouro.hpp"
#include "ouro/train/param.hpp"

struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace ouro {

namespace train {
class Array;
}

/// @defgroup dlpack_views Arrays: memory with strides
/// Strides are in elements; none: row-major without gaps. The stride of a dimension of size 1 says nothing,
/// nor does any stride of an array without elements.
/// @{

/// How the elements lie, if they do without gaps; where both fit, row_major. Errors: invalid (strides of
/// another number than dimensions, a dimension below 0, more elements than an address counts), unsupported
/// (any other strides: transposed, with gaps, backwards, broadcast; more than 64 dimensions).
OURO_API Result<train::Order> order_of(std::span<const std::int64_t> shape,
                                       std::span<const std::int64_t> strides = {});
/// All elements of such an array, which must lie in this order. Errors: as order_of; unsupported (another
/// order); invalid (null data of a positive count, an end beyond the last address).
OURO_API Result<View> view_of(void* data, DType, Device, std::span<const std::int64_t> shape,
                              std::span<const std::int64_t> strides = {},
                              train::Order = train::Order::row_major);

/// @}
/// @defgroup dlpack_in Arrays: DLPack tensors in
/// @{

/// What an imported tensor is wanted for; `write` refuses those that are for reading only.
enum class Access : std::uint8_t { read, write };
/// Kinds of memory as DLPack tells them apart.
enum class Space : std::uint8_t { cpu, cuda, cuda_host, cuda_managed };

/// A tensor of another library that this process holds on to. Copies share it; the last one calls the
/// tensor's deleter, once, in the thread in which it goes. It must outlive the operations on its memory.
class OURO_API Imported {
 public:
  std::span<const std::int64_t> shape() const;  ///< elements of each dimension
  /// Always as many as dimensions, without gaps in order(), also where the tensor's own said something else
  /// about dimensions of size 1 or gave none.
  std::span<const std::int64_t> strides() const;
  train::Order order() const;  ///< how the elements lie
  DType dtype() const;         ///< of each element
  Space space() const;         ///< the kind of memory
  /// Host memory, pinned too, is Device{}; managed memory is of the GPU that the tensor names, which by the
  /// standard's advice is 0: where this rank has another one, set View::device to that.
  Device device() const;
  bool read_only() const;  ///< what the tensor says; without a version it cannot say so
  CView cview() const;     ///< all elements, for reading
  /// Errors: unsupported (imported for reading).
  Result<View> view() const;

  struct OURO_HIDDEN State;
  explicit Imported(std::shared_ptr<const State> s) : state_(std::move(s)) {}  ///< for the library

 private:
  std::shared_ptr<const State> state_;
};

/// Takes the tensor over. Its elements must be complete: DLPack has no streams in its structs. With an error
/// the tensor is not taken: its deleter has not been called and remains the caller's to call. Where ranks are
/// to combine arrays, their order() must be the same. Errors: invalid (null tensor, shape or data; a number
/// of dimensions or a dimension below 0; sizes or offset beyond what an address counts; a GPU below 0),
/// unsupported (a major version other than 1; a device, element type, number of lanes or bits that ouro does
/// not have; strides as order_of; more than 64 dimensions; for writing: a tensor that is for reading only),
/// resource.
OURO_API Result<Imported> from_dlpack(DLManagedTensorVersioned*, Access = Access::write);
/// The same for the form before DLPack 1.0.
OURO_API Result<Imported> from_dlpack(DLManagedTensor*, Access = Access::write);

/// @}
/// @defgroup dlpack_out Arrays: DLPack tensors out
/// @{

/// What is said about an exported tensor.
struct ExportOptions {
  train::Order order = train::Order::row_major;  ///< how the elements of `view` lie
  bool read_only = false;                        ///< consumers shall not write
};
/// A tensor for another library, of version 1.1: whoever receives it calls its deleter once, from any thread.
/// `owner` goes with it and has to keep the memory alive; empty: the memory outlives all consumers. (Of
/// Memory m: `std::make_shared<Memory>(m)`.) Errors: invalid (shape of another number of elements than the
/// view, as order_of; channels_last of other than 4 dimensions; null data of a positive count), resource.
OURO_API Result<DLManagedTensorVersioned*> to_dlpack(View, std::span<const std::int64_t> shape,
                                                     std::shared_ptr<const void> owner,
                                                     const ExportOptions& = {});
/// The same of an Array, which the tensor keeps alive.
OURO_API Result<DLManagedTensorVersioned*> to_dlpack(const train::Array&);
/// For libraries that know DLPack before 1.0 only. Errors also: unsupported (read_only, which this form
/// cannot say).
OURO_API Result<DLManagedTensor*> to_dlpack_unversioned(View, std::span<const std::int64_t> shape,
                                                        std::shared_ptr<const void> owner,
                                                        const ExportOptions& = {});
/// The same of an Array, which the tensor keeps alive.
OURO_API Result<DLManagedTensor*> to_dlpack_unversioned(const train::Array&);
/// @}

}  // namespace ouro
