// One-sided access to other ranks' arrays: ouro::train::Window.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "api/python/src/submit.h"
#include "api/python/src/train.h"
#include "ouro/train/window.hpp"

namespace ouro::python {
namespace {

using namespace nb::literals;
using train::Window;

void make(Window* self, Group& group, nb::handle initial) {
  const Array array(initial, "initial", false);
  new (self) Window(waited([&] { return Window::create(group, array.cview()); }));
}

nb::object get(const Window& w, int rank, nb::object out, std::size_t offset) {
  const Array array(out, "out", true);
  waited([&] { return w.get(rank, array.view(), offset); });
  return out;
}

void put(const Window& w, int rank, nb::handle x, std::size_t offset) {
  const Array array(x, "x", false);
  waited([&] { return w.put(rank, array.cview(), offset); });
}

void accumulate(const Window& w, int rank, nb::handle x, nb::handle op, std::size_t offset) {
  const Array array(x, "x", false);
  const ReduceOp how = reduction(op);
  waited([&] { return w.accumulate(rank, array.cview(), how, offset); });
}

nb::object average(Window& w, const std::vector<int>& donors, const std::vector<double>& weights,
                   nb::object params, double keep) {
  const Array array(params, "params", true);
  waited([&] { return train::average_donors(w, donors, weights, array.view(), keep); });
  return params;
}

}  // namespace

void bind_windows(nb::module_& m) {
  nb::class_<Window>(m, "Window",
                     "An array of each rank, which the others read, write and add to while its owner does "
                     "something else.\n"
                     "Arrays of the host, ranks of one host; a call sees, and leaves, whole arrays.")
      .def("__init__", &make, "group"_a, "initial"_a, nb::keep_alive<1, 2>(),
           "Collective. What is shown is a copy of `initial`, of one count and type on all ranks.")
      .def_prop_ro("rank", &Window::rank, "Of this process in the group.")
      .def_prop_ro("size", &Window::size, "Ranks of the group.")
      .def_prop_ro("count", &Window::count, "Elements of each array.")
      .def("get", &get, "rank"_a, "out"_a, "offset"_a = 0,
           "Elements from `offset` on of that rank's array, as many as `out` has. Returns out.")
      .def("put", &put, "rank"_a, "x"_a, "offset"_a = 0, "Replaces elements of that rank's array.")
      .def("accumulate", &accumulate, "rank"_a, "x"_a, "op"_a = "sum", "offset"_a = 0,
           "Reduces x into that rank's array. op: any reduction but avg.")
      .def(
          "publish", [](const Window& w, nb::handle x) { put(w, w.rank(), x, 0); }, "x"_a,
          "put to this rank's own array.")
      .def(
          "version", [](const Window& w, int rank) { return waited([&] { return w.version(rank); }); },
          "rank"_a, "How often that rank's array was written.")
      .def(
          "fence", [](const Window& w) { waited([&] { return w.fence(); }); },
          "Collective: all calls before it are seen by all calls after it.")
      .def("average_donors", &average, "donors"_a, "weights"_a, "params"_a, "keep"_a = 0.0,
           "params = keep * params + (1 - keep) * the weighted mean of the donors' arrays, as one moment has "
           "them. Returns params.");
}

}  // namespace ouro::python
