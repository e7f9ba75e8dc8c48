// What the bindings of the trainers share: update rules, parameters, and calls of Python from a trainer. Used
// by this folder's train_*.cc.
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

/// How to make an optimiser, as often as it is wanted.
struct Rule {
  std::string name;
  double lr = 0;
  std::function<Result<std::unique_ptr<train::Optimizer>>()> make;
};

/// A Python object that threads without the GIL may hold.
using Held = std::shared_ptr<nb::object>;
Held hold(nb::object);

/// Where a trainer calls Python: what was raised there is kept, and raised again when the trainer has
/// returned.
class Raised {
 public:
  /// Runs `call` under the GIL; what it raises becomes `invalid`.
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
  /// Notes what a call that a trainer made has raised. Under the GIL.
  void keep(std::exception_ptr e) {
    if (!first_) first_ = std::move(e);
  }
  /// Raises what was raised, else the failure, if there is one. Under the GIL.
  void check_status(const Status&);
  /// What may wait, or call Python: call(trainer) without the GIL. Its value, or as check_status.
  template <class Trainer, class Call>
  auto run(Trainer& trainer, Call call) {
    auto result = [&] {
      Waiting waiting;
      try {
        return call(trainer);
      } catch (...) {
        nb::gil_scoped_acquire held;
        first_ = nullptr;  // it is on its way already
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

/// (name, values, gradient or None[, shape[, channels last]]); `arrays` holds the memory. A gradient True,
/// where it `may_come` later: one that each grad_ready brings along.
struct Params {
  std::vector<train::Param> list;
  Arrays arrays;
  std::map<int, std::shared_ptr<void>> zeros;  // by parameter: memory of the host in such a gradient's place
};
Params params_of(const nb::sequence&, bool may_come = false);

/// One of `values` by its name; ValueError says what is expected.
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

/// save() and load() of a trainer that Python has as a `Py`, whose run() calls it.
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
