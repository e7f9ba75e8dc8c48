// What the parts of the Python module ouro._ouro share: errors, and arrays of other libraries. Used by this
// folder.
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

/// Thrown for a Status that is not ok; becomes the exception of ouro.errors that its reason names.
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

/// What `call` returns, called without the GIL.
template <class Call>
auto without_gil(Call&& call) {
  const nb::gil_scoped_release release;
  return std::forward<Call>(call)();
}

/// TypeError: what `argument` should be, and the type that it has.
[[noreturn]] void wrong_type(const std::string& argument, const char* expected, nb::handle found);
/// `value` as a T. Errors: as wrong_type.
template <class T>
T typed(const std::string& argument, const char* expected, nb::handle value) {
  T out{};
  if (!nb::try_cast(value, out)) wrong_type(argument, expected, value);
  return out;
}

/// Milliseconds of a number of seconds; nothing: `otherwise`. Errors: ValueError (negative, not a number).
Milliseconds milliseconds(const char* argument, std::optional<double> seconds, Milliseconds otherwise);
/// The same of a deadline. Errors: ValueError, 0 included, which is C++'s word for another one's deadline.
Milliseconds deadline_of(const char* argument, std::optional<double> seconds, Milliseconds otherwise);

/// Memory of a Python object: through DLPack or the buffer protocol, held until this goes, which needs the
/// GIL.
class Array {
 public:
  Array() = default;
  /// `name` is the argument's, for messages. `write`: refuses what is for reading only. Errors: TypeError
  /// (neither of the protocols, an element type that ouro has not), ValueError (with gaps, for reading only,
  /// or its library does not lend its memory).
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

/// The arrays of one call. Those of calls that go on after it has returned are kept until they have ended.
using Arrays = std::vector<Array>;
void keep_until_done(Work, Arrays, Stream = {});
/// Lets those go that have ended.
void let_go();
/// For calls between group_start and group_end without a stream: until the batch has run.
void keep_until_batch_ends(Arrays);
void batch_has_ended();

/// A Work and what it works on.
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

/// Waits for `work` without the GIL, and lets signal handlers of Python run meanwhile.
Status wait_for(const Work& work, Milliseconds deadline);

/// An array of Python's over memory that `owner` holds.
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
