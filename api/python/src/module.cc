// The Python module ouro._ouro: the C++ interface for Python. The package ouro imports it on first use.
#include <nanobind/stl/string.h>

#include "api/python/src/binding.h"
#include "api/python/src/train.h"
#include "api/python/src/waiting.h"

NB_MODULE(_ouro, m) {
  namespace nb = nanobind;
  using namespace nb::literals;
  namespace py = ouro::python;
  // The operating system reclaims what the program still holds at its end, as in C++.
  nb::set_leak_warnings(false);
  py::remember_main_thread();
  m.attr("__doc__") = "The compiled part of ouro. Use it through the package `ouro`.";
  m.def("library_version", &ouro::version, "Returns the version of the loaded libouro, such as \"0.1.0\".");
  m.def(
      "log_warning", [](const std::string& text) { ouro::log_warning(text); }, "text"_a,
      "Writes `text` as a line of level WARN to the library's log (see OURO_DEBUG\n"
      "and OURO_DEBUG_FILE).");
  py::bind_errors(m);
  nb::class_<ouro::ReduceOp>(m, "ReduceOp",
                             "A reduction with a factor, as premul() returns it. Pass it as `op`.");
  m.def(
      "premul",
      [](nb::handle factor) {
        if (nb::isinstance<nb::int_>(factor))
          return ouro::ReduceOp::premul(
              py::typed<std::int64_t>("factor", "an integer of 64 bits or a float", factor));
        return ouro::ReduceOp::premul(py::typed<double>("factor", "a number", factor));
      },
      "factor"_a,
      "Returns a reduction that multiplies this rank's input by `factor` and then sums. Ranks may\n"
      "pass different factors. TypeError: `factor` is not a number, or is an integer that does not\n"
      "fit 64 bits.");
  py::bind_streams(m);
  py::bind_contexts(m);
  py::bind_groups(m);
  py::bind_rules(m);
  py::bind_gossip(m);
  py::bind_federated(m);
  py::bind_sharded(m);
  py::bind_windows(m);
}
