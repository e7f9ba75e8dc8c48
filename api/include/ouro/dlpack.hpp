/// Arrays of other libraries: import and export of DLPack tensors, and views of memory with strides. For
/// users. Only declares DLPack's two structs: their definition comes from the user's dlpack.h, of any
/// version, or from ouro/dlpack_abi.h.
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
/// Strides are in elements; no strides means row-major without gaps. The stride of a dimension of size 1 is
/// ignored, as are all strides of an array without elements.
/// @{

/// The order of the elements if they have no gaps; row_major if both orders fit. Errors: invalid (the number
/// of strides differs from that of dimensions, a dimension below 0, more elements than an address can count),
/// unsupported (any other strides: transposed, with gaps, backwards, broadcast; more than 64 dimensions).
OURO_API Result<train::Order> order_of(std::span<const std::int64_t> shape,
                                       std::span<const std::int64_t> strides = {});
/// A view of all elements of such an array, which must have the given order. Errors: as order_of; unsupported
/// (another order); invalid (null data with a positive count, an end beyond the last address).
OURO_API Result<View> view_of(void* data, DType, Device, std::span<const std::int64_t> shape,
                              std::span<const std::int64_t> strides = {},
                              train::Order = train::Order::row_major);

/// @}
/// @defgroup dlpack_in Arrays: DLPack tensors in
/// @{

/// The intended use of an imported tensor; `write` refuses read-only tensors.
enum class Access : std::uint8_t { read, write };
/// Kinds of memory that DLPack distinguishes.
enum class Space : std::uint8_t { cpu, cuda, cuda_host, cuda_managed };

/// A tensor of another library, which this object keeps alive. Copies share it; destroying the last copy
/// calls the tensor's deleter, once, in that thread. It must outlive the operations on its memory.
class OURO_API Imported {
 public:
  std::span<const std::int64_t> shape() const;  ///< elements of each dimension
  /// Always one per dimension, without gaps in order(), even if the tensor itself gave none or other values
  /// for dimensions of size 1.
  std::span<const std::int64_t> strides() const;
  train::Order order() const;  ///< the order of the elements
  DType dtype() const;         ///< of each element
  Space space() const;         ///< the kind of memory
  /// Host memory, pinned or not, is Device{}. Managed memory belongs to the GPU that the tensor names, which
  /// is 0 as the standard recommends: if this rank's GPU is another one, set View::device to that.
  Device device() const;
  bool read_only() const;  ///< the tensor's read-only flag; false for the unversioned form, which has none
  CView cview() const;     ///< all elements, for reading
  /// A view of all elements, for reading and writing. Errors: unsupported (imported for reading).
  Result<View> view() const;

  struct OURO_HIDDEN State;
  explicit Imported(std::shared_ptr<const State> s) : state_(std::move(s)) {}  ///< for the library

 private:
  std::shared_ptr<const State> state_;
};

/// Takes ownership of the tensor. Its elements must be complete, because DLPack's structs carry no stream. On
/// error, the tensor is not taken: its deleter has not been called and remains the caller's responsibility.
/// Arrays that ranks combine must have the same order(). Errors: invalid (null tensor, shape or data; a
/// number of dimensions or a dimension below 0; sizes or offset beyond what an address can count; a GPU below
/// 0), unsupported (a major version other than 1; a device, element type, number of lanes or bits that ouro
/// lacks; strides as in order_of; more than 64 dimensions; for writing: a read-only tensor), resource.
OURO_API Result<Imported> from_dlpack(DLManagedTensorVersioned*, Access = Access::write);
/// The same for the struct used before DLPack 1.0.
OURO_API Result<Imported> from_dlpack(DLManagedTensor*, Access = Access::write);

/// @}
/// @defgroup dlpack_out Arrays: DLPack tensors out
/// @{

/// Properties of an exported tensor.
struct ExportOptions {
  train::Order order = train::Order::row_major;  ///< the order of the elements of `view`
  bool read_only = false;                        ///< consumers must not write
};
/// Makes a tensor of version 1.1 for another library; the receiver calls its deleter once, from any thread.
/// The tensor holds `owner`, which must keep the memory alive; empty: the memory outlives all consumers. (For
/// a Memory m: `std::make_shared<Memory>(m)`.) Errors: invalid (the shape's number of elements differs from
/// the view's; shapes as in order_of; channels_last with other than 4 dimensions; null data with a positive
/// count), resource.
OURO_API Result<DLManagedTensorVersioned*> to_dlpack(View, std::span<const std::int64_t> shape,
                                                     std::shared_ptr<const void> owner,
                                                     const ExportOptions& = {});
/// The same for an Array, which the tensor keeps alive.
OURO_API Result<DLManagedTensorVersioned*> to_dlpack(const train::Array&);
/// For libraries that support only DLPack before 1.0. Additional errors: unsupported (read_only, which this
/// form cannot express).
OURO_API Result<DLManagedTensor*> to_dlpack_unversioned(View, std::span<const std::int64_t> shape,
                                                        std::shared_ptr<const void> owner,
                                                        const ExportOptions& = {});
/// The same for an Array, which the tensor keeps alive.
OURO_API Result<DLManagedTensor*> to_dlpack_unversioned(const train::Array&);
/// @}

}  // namespace ouro
