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
  m.attr("__doc__") = "The compiled part of ouro; use it through the package.";
  m.def("library_version", &ouro::version, "The version of libouro that is loaded, \"0.1.0\".");
  m.def(
      "log_warning", [](const std::string& text) { ouro::log_warning(text); }, "text"_a,
      "Writes a line of level WARN into the library's log (OURO_DEBUG, OURO_DEBUG_FILE).");
  py::bind_errors(m);
  nb::class_<ouro::ReduceOp>(m, "ReduceOp", "A reduction, of premul().");
  m.def(
      "premul",
      [](nb::handle factor) {
        if (nb::isinstance<nb::int_>(factor))
          return ouro::ReduceOp::premul(
              py::typed<std::int64_t>("factor", "an integer of 64 bits or a float", factor));
        return ouro::ReduceOp::premul(py::typed<double>("factor", "a number", factor));
      },
      "factor"_a,
      "A reduction that multiplies this rank's input by `factor`, then sums. Ranks may have different "
      "factors.");
  py::bind_streams(m);
  py::bind_contexts(m);
  py::bind_groups(m);
  py::bind_rules(m);
  py::bind_gossip(m);
  py::bind_federated(m);
  py::bind_sharded(m);
  py::bind_windows(m);
}
