// Memory of Python objects, without copies: the buffer protocol for host arrays, DLPack for all others.
#include <nanobind/stl/string.h>

#include <cstring>
#include <string_view>

#include "api/python/src/binding.h"
#include "ouro/dlpack.hpp"
#include "ouro/dlpack_abi.h"

namespace ouro::python {
namespace {

/// The element type of a format of the struct module; nullopt: ouro does not have it.
std::optional<DType> dtype_of_format(std::string_view format, Py_ssize_t bytes) {
  if (format.size() == 2 && (format[0] == '@' || format[0] == '=' || format[0] == '<'))
    format.remove_prefix(1);
  if (format.size() != 1) return std::nullopt;
  const auto integer = [bytes](bool is_signed) -> std::optional<DType> {
    switch (bytes) {
      case 1:
        return is_signed ? DType::i8 : DType::u8;
      case 2:
        return is_signed ? DType::i16 : DType::u16;
      case 4:
        return is_signed ? DType::i32 : DType::u32;
      case 8:
        return is_signed ? DType::i64 : DType::u64;
    }
    return std::nullopt;
  };
  switch (format[0]) {
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return integer(true);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
    case 'c':
      return integer(false);
    case 'e':
      return DType::f16;
    case 'f':
      return DType::f32;
    case 'd':
      return DType::f64;
    case '?':
      return DType::boolean;
  }
  return std::nullopt;
}

[[noreturn]] void refuse(PyObject* type, const std::string& text) {
  PyErr_SetString(type, text.c_str());
  throw nb::python_error();
}

/// Raises a `type` with the text with which the array's library refused to lend its memory.
[[noreturn]] void not_lent(nb::python_error& said, PyObject* type, const char* name) {
  if (!said.matches(PyExc_Exception) || said.matches(PyExc_MemoryError)) {
    said.restore();
    nb::raise_python_error();
  }
  const auto words = nb::cast<std::string>(nb::str(said.value()));
  nb::raise_from(said, type, "%s: its library does not lend its memory: %s", name, words.c_str());
}

/// Element types of the ml_dtypes package, by name: neither protocol carries them, and NumPy refuses both for
/// such arrays.
std::optional<DType> extended_dtype(nb::handle object) {
  nb::object dtype = nb::getattr(object, "dtype", nb::none());
  nb::object name = nb::getattr(dtype, "name", nb::none());
  if (!nb::isinstance<nb::str>(name)) return std::nullopt;
  const auto type = parse_dtype(nb::cast<const char*>(name));
  return type == DType::bf16 || type == DType::f8e4m3 || type == DType::f8e5m2 ? type : std::nullopt;
}

}  // namespace

Array::Array(nb::handle object, const char* name, bool write) {
  if (take_buffer(object, name, write)) return;
  if (nb::hasattr(object, "__dlpack__")) {
    take_dlpack(object, name, write);
    return;
  }
  wrong_type(name, "an array of NumPy or of any other library that supports DLPack or the buffer protocol",
             object);
}

bool Array::take_buffer(nb::handle object, const char* name, bool write) {
  if (!PyObject_CheckBuffer(object.ptr())) return false;
  std::unique_ptr<Py_buffer> raw(new Py_buffer);
  if (PyObject_GetBuffer(object.ptr(), raw.get(), PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
    nb::python_error said;  // clears the pending exception before Python is called again
    const auto extended = extended_dtype(object);
    if (!extended) not_lent(said, nb::hasattr(object, "dtype") ? PyExc_TypeError : PyExc_ValueError, name);
    *this = Array(object.attr("view")(size_of(*extended) == 2 ? "u2" : "u1"), name, write);
    view_.dtype = *extended;
    return true;
  }
  buffer_.reset(raw.release());
  const Py_buffer& b = *buffer_;
  const auto dtype = dtype_of_format(b.format ? b.format : "B", b.itemsize);
  if (!dtype)
    refuse(PyExc_TypeError,
           std::string(name) + ": its elements are of format '" + (b.format ? b.format : "B") +
               "'; expected integers of 8 to 64 bits, bool, or floats of 16, 32 or 64 bits in the byte "
               "order of this machine");
  if (write && b.readonly)
    refuse(PyExc_ValueError, std::string(name) + ": it is for reading only, and would be written");
  if (!PyBuffer_IsContiguous(&b, 'C'))
    refuse(PyExc_ValueError, std::string(name) +
                                 ": its elements do not lie in C order without gaps; pass a copy " +
                                 "(numpy.ascontiguousarray), or the array that this is a view of");
  view_ = View(b.buf, static_cast<std::size_t>(b.len / (b.itemsize > 0 ? b.itemsize : 1)), *dtype);
  return true;
}

void Array::take_dlpack(nb::handle object, const char* name, bool write) {
  // Orders the work that a GPU's producer has enqueued before later work on the legacy default stream.
  nb::dict options;
  const int device = nb::cast<int>(nb::object(object.attr("__dlpack_device__")()[0]));
  const bool gpu = device == kDLCUDA || device == kDLCUDAManaged;
  if (gpu) options["stream"] = 1;
  options["max_version"] = nb::make_tuple(1, 1);
  nb::object capsule;
  const auto lend = [&] { capsule = nb::borrow(object.attr("__dlpack__"))(**options); };
  try {
    try {
      lend();
    } catch (nb::python_error& e) {
      if (!e.matches(PyExc_TypeError)) throw;  // a library older than DLPack 1.0 does not know max_version
      PyObject_DelItemString(options.ptr(), "max_version");
      lend();
    }
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_BufferError)) throw;
    not_lent(e, PyExc_ValueError, name);
  }
  const Access access = write ? Access::write : Access::read;
  Result<Imported> imported = invalid("no tensor");
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    imported = from_dlpack(
        static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned")),
        access);
    if (imported.ok()) PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    imported =
        from_dlpack(static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor")), access);
    if (imported.ok()) PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  }
  if (!imported.ok())
    refuse(imported.status().reason() == Reason::unsupported ? PyExc_TypeError : PyExc_ValueError,
           std::string(name) + ": " + imported.status().failure()->text);
  if (imported->order() != train::Order::row_major)
    refuse(PyExc_ValueError,
           std::string(name) + ": its elements do not lie in C order; pass a contiguous copy");
  const CView read = imported->cview();
  view_ = View(const_cast<void*>(read.data), read.count, read.dtype, read.device);
  imported_ = std::make_shared<Imported>(*std::move(imported));
}

nb::ndarray<nb::array_api> array_over(const View& v, const std::vector<std::size_t>& shape,
                                      const nb::capsule& owner) {
  using nb::dlpack::dtype_code;
  const DType t = v.dtype;
  dtype_code code = t == DType::boolean ? dtype_code::Bool : dtype_code::UInt;
  if (t == DType::i8 || t == DType::i16 || t == DType::i32 || t == DType::i64) code = dtype_code::Int;
  if (t == DType::f16 || t == DType::f32 || t == DType::f64) code = dtype_code::Float;
  if (t == DType::bf16) code = dtype_code::Bfloat;
  if (t == DType::f8e4m3 || t == DType::f8e5m2)
    throw nb::value_error("dtype: 8-bit floats have no array here; take 'uint8', and view it as what it is");
  const nb::dlpack::dtype type{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * size_of(t)), 1};
  const bool gpu = v.device.kind == Device::Kind::cuda;
  return nb::ndarray<nb::array_api>(v.data, shape.size(), shape.data(), owner, nullptr, type,
                                    gpu ? nb::device::cuda::value : nb::device::cpu::value, v.device.index);
}

namespace {

/// An operation in flight whose Work Python no longer holds, with its arrays or its stream.
struct Kept {
  Work work;
  Arrays arrays;
  Stream stream;
};
/// Guarded by the GIL; never freed, so that nothing runs after the interpreter's end.
auto& in_flight() {
  static auto* kept = new std::vector<Kept>;
  return *kept;
}
auto& of_batch() {
  thread_local std::vector<Arrays> kept;
  return kept;
}

}  // namespace

void let_go() {
  // A destructor may call Python, and thereby this function again: nothing is destroyed while the
  // list changes.
  std::vector<Kept> ended;
  auto& kept = in_flight();
  for (std::size_t i = 0; i < kept.size();) {
    if (!kept[i].work.test()) {
      ++i;
      continue;
    }
    std::swap(kept[i], kept.back());
    ended.push_back(std::move(kept.back()));
    kept.pop_back();
  }
}

void keep_until_done(Work work, Arrays arrays, Stream stream) {
  let_go();
  if (!work.test()) in_flight().push_back({std::move(work), std::move(arrays), std::move(stream)});
}

void keep_until_batch_ends(Arrays arrays) { of_batch().push_back(std::move(arrays)); }
void batch_has_ended() { of_batch().clear(); }

}  // namespace ouro::python
