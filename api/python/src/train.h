// Shared by the bindings of the trainers: update rules, parameters, and calls from a trainer into Python.
// Used by this folder's train_*.cc.
#pragma once
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/python/src/binding.h"
#include "api/python/src/waiting.h"
#include "ouro/train/optim.hpp"
#include "ouro/train/param.hpp"

namespace ouro::python {

/// A factory that can make any number of equal optimisers.
struct Rule {
  std::string name;
  double lr = 0;
  std::function<Result<std::unique_ptr<train::Optimizer>>()> make;
};

/// A Python object that threads without the GIL may hold and release.
using Held = std::shared_ptr<nb::object>;
Held hold(nb::object);

/// Calls from a trainer into Python: stores their exceptions and raises them again when the trainer
/// has returned.
class Raised {
 public:
  /// Runs `call` under the GIL; an exception becomes `invalid`.
  template <class Call>
  Status in_python(Call call) {
    nb::gil_scoped_acquire held;
    try {
      call();
      return {};
    } catch (const Failed& f) {
      return f.status;
    } catch (std::exception& e) {
      keep(std::current_exception());
      return invalid("its Python program raised " + first_line(e.what()));
    }
  }
  /// Stores the first exception of a call that a trainer made. Needs the GIL.
  void keep(std::exception_ptr e) {
    if (!first_) first_ = std::move(e);
  }
  /// Raises the stored exception, else the failure, if there is one. Needs the GIL.
  void check_status(const Status&);
  /// For calls that may wait or call Python: runs call(trainer) without the GIL. Returns its value, or raises
  /// as check_status.
  template <class Trainer, class Call>
  auto run(Trainer& trainer, Call call) {
    auto result = [&] {
      Waiting waiting;
      try {
        return call(trainer);
      } catch (...) {
        nb::gil_scoped_acquire held;
        first_ = nullptr;  // the current exception already propagates it
        throw;
      }
    }();
    if constexpr (std::is_same_v<decltype(result), Status>) {
      check_status(result);
    } else {
      check_status(result.status());
      return *std::move(result);
    }
  }

 private:
  static std::string first_line(std::string_view text);
  std::exception_ptr first_;
};

/// A list of (name, values, gradient or None[, shape[, channels last]]); `arrays` keeps the memory alive.
/// With `may_come`, the gradient may be True: each grad_ready then passes one.
struct Params {
  std::vector<train::Param> list;
  Arrays arrays;
  std::map<int, std::shared_ptr<void>> zeros;  // by parameter: host memory in place of such a gradient
};
Params params_of(const nb::sequence&, bool may_come = false);

/// The one of `values` with this name; raises a ValueError that lists what is expected.
template <class T>
T one_of(const char* argument, std::string_view name,
         std::initializer_list<std::pair<const char*, T>> values) {
  std::string names;
  for (const auto& [known, value] : values) {
    if (name == known) return value;
    names += (names.empty() ? "'" : ", '") + std::string(known) + "'";
  }
  throw nb::value_error((std::string(argument) + ": '" + std::string(name) + "'; expected " + names).c_str());
}

inline nb::bytes bytes_of(const Bytes& b) { return nb::bytes(b.data(), b.size()); }
inline CBytes view_of(const nb::bytes& b) {
  return {reinterpret_cast<const std::byte*>(b.c_str()), b.size()};
}

/// Binds save() and load() of a trainer whose Python class is `Py`; Py::run() calls the trainer.
template <class Py>
void bind_saved(nb::class_<Py>& trainer, const char* save, const char* load) {
  trainer
      .def(
          "save", [](Py& t) { return bytes_of(t.run([](auto& trainer) { return trainer.save(); })); }, save)
      .def(
          "load",
          [](Py& t, const nb::bytes& state) {
            const CBytes view = view_of(state);
            t.run([&](auto& trainer) { return trainer.load(view); });
          },
          nb::arg("state"), load);
}

void bind_rules(nb::module_&);
void bind_federated(nb::module_&);
void bind_gossip(nb::module_&);
void bind_sharded(nb::module_&);
void bind_windows(nb::module_&);

}  // namespace ouro::python
