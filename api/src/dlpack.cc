// Import and export of DLPack tensors. See ouro/dlpack.hpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <new>
#include <vector>

#include "api/src/strided.h"
#include "ouro/dlpack.hpp"
#include "ouro/dlpack_abi.h"
#include "ouro/train/average.hpp"

namespace ouro {

using train::Order;

/// The properties read from a tensor, and the tensor itself, which the destructor releases.
struct Imported::State {
  std::vector<std::int64_t> shape, strides;
  View view;
  Order order = Order::row_major;
  Space space = Space::cpu;
  bool read_only = false, writable = false;
  void* tensor = nullptr;
  void (*release)(void* tensor) = nullptr;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (tensor != nullptr) release(tensor);
  }
};

namespace {

DLDataType dl_type(DType t) {
  const auto of = [t](DLDataTypeCode code) {
    return DLDataType{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * size_of(t)), 1};
  };
  switch (t) {
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64:
      return of(kDLInt);
    case DType::u8:
    case DType::u16:
    case DType::u32:
    case DType::u64:
      return of(kDLUInt);
    case DType::f16:
    case DType::f32:
    case DType::f64:
      return of(kDLFloat);
    case DType::bf16:
      return of(kDLBfloat);
    case DType::f8e4m3:
      return of(kDLFloat8_e4m3fn);
    case DType::f8e5m2:
      return of(kDLFloat8_e5m2);
    case DType::boolean:
      return of(kDLBool);
  }
  return {};
}

Result<DType> dtype_of(DLDataType type) {
  if (type.lanes != 1) return unsupported(fmt::format("DLPack elements of {} lanes; expected 1", type.lanes));
  if (type.bits < 8)
    return unsupported(fmt::format("DLPack elements of {} bits; at least a byte", type.bits));
  for (int i = 0; i < kDTypes; ++i) {
    const DType t = static_cast<DType>(i);
    const DLDataType d = dl_type(t);
    if (d.code == type.code && d.bits == type.bits) return t;
  }
  return unsupported(fmt::format("DLPack type of code {} with {} bits is not among ouro's{}", type.code,
                                 type.bits, type.code == kDLComplex ? ", which has no complex numbers" : ""));
}

struct Place {
  Space space;
  Device device;
};
Result<Place> place_of(DLDevice d) {
  switch (static_cast<int>(d.device_type)) {
    case kDLCPU:
      return Place{Space::cpu, {}};
    case kDLCUDAHost:
      return Place{Space::cuda_host, {}};
    case kDLCUDA:
    case kDLCUDAManaged:
      if (d.device_id < 0) return invalid(fmt::format("a DLPack tensor of GPU {}", d.device_id));
      return Place{d.device_type == kDLCUDA ? Space::cuda : Space::cuda_managed,
                   {Device::Kind::cuda, d.device_id}};
    default:
      return unsupported(fmt::format("a DLPack tensor on a device of type {}; expected CPU or CUDA",
                                     static_cast<int>(d.device_type)));
  }
}

Status read(const DLTensor& t, Imported::State* to) {
  OURO_ASSIGN(auto dtype, dtype_of(t.dtype));
  OURO_ASSIGN(auto place, place_of(t.device));
  if (t.ndim < 0) return invalid(fmt::format("a DLPack tensor of {} dimensions", t.ndim));
  const auto dims = static_cast<std::size_t>(t.ndim);
  if (dims > kMaxDims)
    return unsupported(fmt::format("a DLPack tensor of {} dimensions; at most {}", dims, kMaxDims));
  if (dims > 0 && t.shape == nullptr)
    return invalid(fmt::format("a DLPack tensor of {} dimensions without a shape", dims));
  to->shape.assign(t.shape, t.shape + dims);
  OURO_ASSIGN(auto count, count_of(to->shape));
  const Numbers strides = t.strides == nullptr ? Numbers{} : Numbers{t.strides, dims};
  OURO_ASSIGN(auto order, order_of(to->shape, strides));

  std::uintptr_t at = 0;
  if (count > 0) {
    if (t.data == nullptr) return invalid(fmt::format("a DLPack tensor of {} elements without data", count));
    if (__builtin_add_overflow(reinterpret_cast<std::uintptr_t>(t.data), t.byte_offset, &at))
      return invalid(fmt::format(
          "a DLPack tensor that begins {} bytes behind its data, beyond the last address", t.byte_offset));
  }
  OURO_ASSIGN(auto view, view_at(at, count, dtype, place.device));
  to->strides = strides_of(to->shape, order);
  to->view = view;
  to->order = order;
  to->space = place.space;
  return {};
}

/// T is either form of tensor. Takes ownership in the last statement, which cannot fail.
template <class T>
Result<Imported> take(T* tensor, bool read_only, Access access) try {
  if (read_only && access == Access::write)
    return unsupported("this DLPack tensor is for reading only; import it with Access::read");
  auto state = std::make_shared<Imported::State>();
  OURO_TRY(read(tensor->dl_tensor, state.get()));
  state->read_only = read_only;
  state->writable = access == Access::write;
  state->release = [](void* p) {
    auto* t = static_cast<T*>(p);
    if (t->deleter != nullptr) t->deleter(t);
  };
  state->tensor = tensor;
  return Imported(std::move(state));
} catch (const std::bad_alloc&) {
  return Status(Reason::resource, "no memory to describe a DLPack tensor");
}

/// A tensor and the data it refers to; manager_ctx points to this.
template <class T>
struct Export {
  T tensor = {};
  std::vector<std::int64_t> shape, strides;
  std::shared_ptr<const void> owner;
};

template <class T>
Result<std::unique_ptr<Export<T>>> make_export(const View& v, Numbers shape,
                                               std::shared_ptr<const void> owner, Order order) try {
  OURO_ASSIGN(auto count, count_of(shape));
  if (count != v.count)
    return invalid(fmt::format("shape {} has {} elements, the view {}", shape, count, v.count));
  if (order == Order::channels_last && shape.size() != kChannelsLastDims)
    return invalid(fmt::format("channels_last with {} dimensions; expected 4", shape.size()));
  if (v.data == nullptr && v.count > 0) return invalid(fmt::format("no data for {} elements", v.count));
  auto made = std::make_unique<Export<T>>();
  made->shape.assign(shape.begin(), shape.end());
  made->strides = strides_of(shape, order);
  made->owner = std::move(owner);
  const bool host = v.device.kind == Device::Kind::host;
  made->tensor.dl_tensor = {.data = v.data,
                            .device = {host ? kDLCPU : kDLCUDA, host ? 0 : v.device.index},
                            .ndim = static_cast<std::int32_t>(shape.size()),
                            .dtype = dl_type(v.dtype),
                            .shape = made->shape.data(),
                            .strides = made->strides.data(),
                            .byte_offset = 0};
  made->tensor.manager_ctx = made.get();
  made->tensor.deleter = [](T* self) { delete static_cast<Export<T>*>(self->manager_ctx); };
  return made;
} catch (const std::bad_alloc&) {
  return Status(Reason::resource, "no memory for a DLPack tensor");
}

/// A copy of the array as the owner of its memory.
Result<std::shared_ptr<const void>> keeper(const train::Array& a) try {
  return std::shared_ptr<const void>(std::make_shared<train::Array>(a));
} catch (const std::bad_alloc&) {
  return Status(Reason::resource, "no memory for a DLPack tensor");
}

}  // namespace

// ---- tensors in -------------------------------------------------------------------------------------

Numbers Imported::shape() const { return state_->shape; }
Numbers Imported::strides() const { return state_->strides; }
Order Imported::order() const { return state_->order; }
DType Imported::dtype() const { return state_->view.dtype; }
Space Imported::space() const { return state_->space; }
Device Imported::device() const { return state_->view.device; }
bool Imported::read_only() const { return state_->read_only; }
CView Imported::cview() const { return state_->view; }
Result<View> Imported::view() const {
  if (!state_->writable) return unsupported("this DLPack tensor was imported for reading; use cview()");
  return state_->view;
}

Result<Imported> from_dlpack(DLManagedTensorVersioned* tensor, Access access) {
  if (tensor == nullptr) return invalid("no DLPack tensor");
  if (tensor->version.major != DLPACK_MAJOR_VERSION)
    return unsupported(fmt::format("a tensor of DLPack {}.{}; expected {}.x", tensor->version.major,
                                   tensor->version.minor, DLPACK_MAJOR_VERSION));
  return take(tensor, (tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0, access);
}
Result<Imported> from_dlpack(DLManagedTensor* tensor, Access access) {
  if (tensor == nullptr) return invalid("no DLPack tensor");
  return take(tensor, false, access);
}

// ---- tensors out ------------------------------------------------------------------------------------

Result<DLManagedTensorVersioned*> to_dlpack(View v, Numbers shape, std::shared_ptr<const void> owner,
                                            const ExportOptions& o) {
  OURO_ASSIGN(auto made, make_export<DLManagedTensorVersioned>(v, shape, std::move(owner), o.order));
  DLManagedTensorVersioned& t = made->tensor;
  t.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  t.flags = o.read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
  return &made.release()->tensor;
}
Result<DLManagedTensorVersioned*> to_dlpack(const train::Array& a) {
  OURO_ASSIGN(auto owner, keeper(a));
  return to_dlpack(a.view(), a.shape(), std::move(owner));
}
Result<DLManagedTensor*> to_dlpack_unversioned(View v, Numbers shape, std::shared_ptr<const void> owner,
                                               const ExportOptions& o) {
  if (o.read_only) return unsupported("a DLPack tensor without a version cannot be for reading only");
  OURO_ASSIGN(auto made, make_export<DLManagedTensor>(v, shape, std::move(owner), o.order));
  return &made.release()->tensor;
}
Result<DLManagedTensor*> to_dlpack_unversioned(const train::Array& a) {
  OURO_ASSIGN(auto owner, keeper(a));
  return to_dlpack_unversioned(a.view(), a.shape(), std::move(owner));
}

}  // namespace ouro
