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
  nb::class_<Window>(
      m, "Window",
      "One array per rank, which the other ranks read, write and add to while its owner does\n"
      "something else.\n\n"
      "Only for ranks of one host and host memory. A call sees, and leaves, whole arrays (or the\n"
      "range that it names). Calls block, without the GIL, until they get the array's lock.\n"
      "InvalidError: a rank, type or range that does not fit. UnsupportedError: memory on a GPU.\n"
      "DeadlineError: the lock was not free before the group's deadline.")
      .def("__init__", &make, "group"_a, "initial"_a, nb::keep_alive<1, 2>(),
           "Collective. Exposes a copy of `initial`, which has the same count and type on all ranks\n"
           "(otherwise InvalidError).")
      .def_prop_ro("rank", &Window::rank, "Rank of this process in the group.")
      .def_prop_ro("size", &Window::size, "Number of ranks in the group.")
      .def_prop_ro("count", &Window::count, "Number of elements of each array.")
      .def("get", &get, "rank"_a, "out"_a, "offset"_a = 0,
           "Reads elements of the array of rank `rank`, from `offset` on, into out, as many as out has.\n"
           "Returns out.")
      .def("put", &put, "rank"_a, "x"_a, "offset"_a = 0,
           "Replaces elements of the array of rank `rank`, from `offset` on, by those of x.")
      .def("accumulate", &accumulate, "rank"_a, "x"_a, "op"_a = "sum", "offset"_a = 0,
           "Reduces x into the array of rank `rank`, from `offset` on. op: any reduction of\n"
           "Group.all_reduce except 'avg'.")
      .def(
          "publish", [](const Window& w, nb::handle x) { put(w, w.rank(), x, 0); }, "x"_a,
          "Replaces this rank's own array by x, as put does.")
      .def(
          "version", [](const Window& w, int rank) { return waited([&] { return w.version(rank); }); },
          "rank"_a, "Returns how many times the array of rank `rank` has been written.")
      .def(
          "fence", [](const Window& w) { waited([&] { return w.fence(); }); },
          "Collective: every call made before it on any rank is visible to all calls after it.")
      .def("average_donors", &average, "donors"_a, "weights"_a, "params"_a, "keep"_a = 0.0,
           "params = keep * params + (1 - keep) * the weighted mean of the donors' arrays, which are\n"
           "read as of one moment. donors: ranks. weights: one per donor, with any sum above 0. keep: 0\n"
           "to 1. Returns params. InvalidError: arguments that do not fit.");
}

}  // namespace ouro::python
