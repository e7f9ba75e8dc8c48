// Shared by the parts of the Python module ouro._ouro: errors, and arrays of other libraries. Used by
// this folder.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::python {

namespace nb = nanobind;

/// Thrown for a Status that is not ok; becomes the ouro.errors exception for its reason.
struct Failed {
  Status status;
};
inline void check(const Status& s) {
  if (!s.ok()) throw Failed{s};
}
template <class T>
T value_of(Result<T> r) {
  if (!r.ok()) throw Failed{r.status()};
  return std::move(r).value();
}

/// The result of `call`, called without the GIL.
template <class Call>
auto without_gil(Call&& call) {
  const nb::gil_scoped_release release;
  return std::forward<Call>(call)();
}

/// Throws a TypeError that names what `argument` should be, and its actual type.
[[noreturn]] void wrong_type(const std::string& argument, const char* expected, nb::handle found);
/// Converts `value` to a T. Errors: as wrong_type.
template <class T>
T typed(const std::string& argument, const char* expected, nb::handle value) {
  T out{};
  if (!nb::try_cast(value, out)) wrong_type(argument, expected, value);
  return out;
}

/// Converts seconds to milliseconds; nullopt yields `otherwise`. Errors: ValueError (negative, not a number).
Milliseconds milliseconds(const char* argument, std::optional<double> seconds, Milliseconds otherwise);
/// The same for a deadline. Errors: also ValueError for 0, which in C++ means another object's deadline.
Milliseconds deadline_of(const char* argument, std::optional<double> seconds, Milliseconds otherwise);

/// Memory of a Python object, through DLPack or the buffer protocol, held until this is destroyed, for which
/// the GIL must be held.
class Array {
 public:
  Array() = default;
  /// `name` is the argument's name for messages. `write`: refuses read-only memory. Errors: TypeError
  /// (neither protocol, an element type that ouro lacks), ValueError (gaps, read-only, or its library does
  /// not lend its memory).
  Array(nb::handle object, const char* name, bool write);
  Array(Array&&) noexcept = default;
  Array& operator=(Array&&) noexcept = default;

  CView cview() const { return view_; }
  View view() const { return view_; }

 private:
  bool take_buffer(nb::handle object, const char* name, bool write);
  void take_dlpack(nb::handle object, const char* name, bool write);
  struct Release {
    void operator()(Py_buffer* b) const {
      PyBuffer_Release(b);
      delete b;
    }
  };
  std::unique_ptr<Py_buffer, Release> buffer_;
  std::shared_ptr<void> imported_;
  View view_;
};

/// The arrays of one call. If the operation outlives the call, they are kept until it has ended.
using Arrays = std::vector<Array>;
void keep_until_done(Work, Arrays, Stream = {});
/// Releases the arrays of operations that have ended.
void let_go();
/// For calls without a stream between group_start and group_end: keeps the arrays until the batch has run.
void keep_until_batch_ends(Arrays);
void batch_has_ended();

/// A Work and the arrays it works on.
class PyWork {
 public:
  PyWork(Work work, Arrays arrays) : work_(std::move(work)), arrays_(std::move(arrays)) {}
  ~PyWork();
  PyWork(PyWork&&) noexcept = default;
  PyWork& operator=(PyWork&&) = delete;
  void wait(std::optional<double> timeout);
  const Work& work() const { return work_; }

 private:
  Work work_;
  Arrays arrays_;
};

/// Waits for `work` without the GIL; runs Python's signal handlers meanwhile.
Status wait_for(const Work& work, Milliseconds deadline);

/// A Python array over memory that `owner` keeps alive.
nb::ndarray<nb::array_api> array_over(const View&, const std::vector<std::size_t>& shape,
                                      const nb::capsule& owner);

ReduceOp reduction(nb::handle op);
Numerics numerics(std::optional<std::string> name);
DType dtype_of(const std::string& name);

void bind_errors(nb::module_&);
void bind_contexts(nb::module_&);
void bind_groups(nb::module_&);
void bind_operations(nb::class_<Group>&);
void bind_messages(nb::module_&, nb::class_<Group>&);
void bind_streams(nb::module_&);
void bind_training(nb::module_&, nb::class_<Group>&);

}  // namespace ouro::python
