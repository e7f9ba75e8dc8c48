// Views of tensors, and checks of arguments. See tensors.h.
#include "tensors.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/pybind11.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "work.h"

namespace ouro::adapter {
namespace {

/// The ouro type, and the number of ouro elements that form one element; 0: ouro lacks the type.
struct Elements {
  DType dtype = DType::u8;
  std::size_t count = 0;
};

Elements elements(at::ScalarType t) {
  switch (t) {
    case at::kByte:
      return {DType::u8, 1};
    case at::kChar:
      return {DType::i8, 1};
    case at::kShort:
      return {DType::i16, 1};
    case at::kInt:
      return {DType::i32, 1};
    case at::kLong:
      return {DType::i64, 1};
    case at::kUInt16:
      return {DType::u16, 1};
    case at::kUInt32:
      return {DType::u32, 1};
    case at::kUInt64:
      return {DType::u64, 1};
    case at::kHalf:
      return {DType::f16, 1};
    case at::kBFloat16:
      return {DType::bf16, 1};
    case at::kFloat:
      return {DType::f32, 1};
    case at::kDouble:
      return {DType::f64, 1};
    case at::kFloat8_e4m3fn:
      return {DType::f8e4m3, 1};
    case at::kFloat8_e5m2:
      return {DType::f8e5m2, 1};
    case at::kBool:
      return {DType::boolean, 1};
    case at::kComplexHalf:
      return {DType::f16, 2};
    case at::kComplexFloat:
      return {DType::f32, 2};
    case at::kComplexDouble:
      return {DType::f64, 2};
    default:
      return {};
  }
}

Elements elements(const at::Tensor& t, Use use) {
  const Elements e = elements(t.scalar_type());
  if (e.count != 0) return e;
  TORCH_CHECK_TYPE(use == Use::move, "ouro: tensors of type ", t.scalar_type(), " cannot be reduced");
  return {DType::u8, static_cast<std::size_t>(t.element_size())};
}

Device place(const at::Tensor& t) {
  return t.is_cuda() ? Device{Device::Kind::cuda, t.get_device()} : Device{};
}

std::string say(const at::Tensor& t) { return c10::str(t.scalar_type(), " on ", t.device()); }

}  // namespace

View view(const at::Tensor& t, Use use) {
  const Elements e = elements(t, use);
  const auto count = static_cast<std::size_t>(t.numel()) * e.count;
  return {count == 0 ? nullptr : t.data_ptr(), count, e.dtype, place(t)};
}

std::size_t per_element(const at::Tensor& t, Use use) { return elements(t, use).count; }

Stream current_stream(const at::Tensor& t) {
  const c10::Device device = t.device();
#ifdef C10D_BACKEND_HAS_HOOKS  // 2.15
  void* const handle = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
#else  // without CUDA's headers, only Python provides it
  const pybind11::gil_scoped_acquire held;
  const auto get = pybind11::module_::import("torch._C").attr("_cuda_getCurrentRawStream");
  void* const handle = PyLong_AsVoidPtr(get(static_cast<int>(device.index())).ptr());
#endif
  Result<Stream> made = Stream::cuda(handle, device.index());
  if (!made.ok()) std::rethrow_exception(exception_of(made.status()));
  return *std::move(made);
}

ReduceOp reduction(const c10d::ReduceOp& op, at::ScalarType type) {
  TORCH_CHECK_VALUE(!c10::isComplexType(type) || c10d::isComplexViewAsRealAllowed(op),
                    "ouro: complex numbers can be summed up and averaged, nothing else");
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::prod;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::band;
    case c10d::ReduceOp::BOR:
      return ReduceOp::bor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bxor;
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* const factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(factor != nullptr, "ouro: PREMUL_SUM without its factor");
      return ReduceOp::premul(factor->tensor_factor.defined() ? factor->tensor_factor.item<double>()
                                                              : factor->double_factor);
    }
    default:
      TORCH_CHECK_VALUE(false, "ouro: no such reduction: ", static_cast<int>(op.op_));
  }
}

void check(const char* function, std::span<const at::Tensor> tensors, std::span<const at::Tensor> outputs) {
  for (const at::Tensor& t : tensors) {
    TORCH_CHECK_VALUE(t.defined(), "ouro: ", function, ": a tensor is not defined");
    TORCH_CHECK_VALUE(t.layout() == at::kStrided, "ouro: ", function, ": a tensor is ", t.layout(),
                      "; dense ones are served");
    TORCH_CHECK_VALUE(t.is_cpu() || t.is_cuda(), "ouro: ", function, ": a tensor is on ", t.device(),
                      "; those on cpu and cuda are served");
    const at::Tensor& first = tensors.front();
    TORCH_CHECK_VALUE(t.device() == first.device() && t.scalar_type() == first.scalar_type(),
                      "ouro: ", function, ": all tensors of a call have one type and device; these are ",
                      say(first), " and ", say(t));
  }
  for (const at::Tensor& t : outputs)
    TORCH_CHECK_VALUE(at::has_internal_overlap(t) != at::MemOverlap::Yes, "ouro: ", function,
                      ": several elements of an output of shape ", t.sizes(), " and strides ", t.strides(),
                      " are at the same address, as expand() makes them; give a copy of it, by clone()");
}

const at::Tensor& only(const char* function, const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "ouro: ", function, ": one tensor a rank; these are ",
                    tensors.size());
  return tensors.front();
}

const std::vector<at::Tensor>& only(const char* function, const std::vector<std::vector<at::Tensor>>& lists,
                                    std::size_t length) {
  TORCH_CHECK_VALUE(lists.size() == 1, "ouro: ", function, ": one list of tensors a rank; these are ",
                    lists.size());
  TORCH_CHECK_VALUE(lists.front().size() == length, "ouro: ", function, ": a list of ", lists.front().size(),
                    " tensors, of ", length, " ranks");
  return lists.front();
}

void same_count(const char* function, const char* what, std::int64_t count, const char* than,
                std::int64_t wanted) {
  TORCH_CHECK_VALUE(count == wanted, "ouro: ", function, ": ", what, " has ", count, " elements, ", than, " ",
                    wanted);
}

at::Tensor to_read(const at::Tensor& t) { return t.contiguous(); }

at::Tensor to_read(const at::Tensor& in, const at::Tensor& out, std::optional<std::int64_t> place) {
  const at::Tensor from = in.contiguous();
  if (!out.defined() || from.numel() == 0 || out.numel() == 0) return from;
  const auto* const a = static_cast<const char*>(from.data_ptr());
  const auto* const b = static_cast<const char*>(out.data_ptr());
  const bool apart = a + from.nbytes() <= b || b + out.nbytes() <= a;
  const bool in_place = place && a == b + *place * static_cast<std::int64_t>(from.element_size());
  return apart || in_place ? from : from.clone();
}

Packed::Packed(std::vector<at::Tensor> parts) : parts_(std::move(parts)) {
  if (parts_.empty()) return;
  std::int64_t count = 0;
  const at::Tensor* first = nullptr;  // first tensor with elements: the address of an empty one is irrelevant
  const void* next = nullptr;
  bool in_a_row = true;
  for (const at::Tensor& t : parts_) {
    if (t.numel() == 0) continue;
    if (first == nullptr) first = &t, next = t.data_ptr();
    in_a_row = in_a_row && t.is_contiguous() && t.is_alias_of(*first) && t.data_ptr() == next;
    next = static_cast<const char*>(t.data_ptr()) + t.nbytes();
    count += t.numel();
  }
  own_ = first == nullptr || !in_a_row;
  flat_ = own_ ? at::empty({count}, parts_.front().options())
               : first->as_strided({count}, {1}, first->storage_offset());
}

void Packed::load() const {
  std::int64_t at = 0;
  for (const at::Tensor& t : parts_) {
    if (own_ && t.numel() != 0) flat_.narrow(0, at, t.numel()).view(t.sizes()).copy_(t);
    at += t.numel();
  }
}

void Packed::store() const {
  std::int64_t at = 0;
  for (const at::Tensor& t : parts_) {
    if (own_ && t.numel() != 0) t.copy_(flat_.narrow(0, at, t.numel()).view(t.sizes()));
    at += t.numel();
  }
}

}  // namespace ouro::adapter
