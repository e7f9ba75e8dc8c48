// Failures as exceptions: the classes are in ouro/errors.py; this file fills in their attributes.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <typeinfo>

#include "api/python/src/binding.h"

namespace ouro::python {
namespace {

nb::object exception(const Status& s) {
  const Failure& f = *s.failure();
  nb::dict known;
  known["reason"] = name(f.reason);
  known["code"] = name(s.code());
  known["text"] = f.text;
  known["rank"] = f.rank >= 0 ? nb::cast(f.rank) : nb::none();
  std::vector<int> ranks = f.dead;
  if (f.rank >= 0 && std::find(ranks.begin(), ranks.end(), f.rank) == ranks.end())
    ranks.insert(ranks.begin(), f.rank);
  known["ranks"] = nb::tuple(nb::cast(ranks));
  known["dead"] = nb::tuple(nb::cast(f.dead));
  known["host"] = f.host;
  known["pid"] = f.pid;
  known["group"] = f.group;
  known["generation"] = f.generation;
  known["op"] = f.op;
  known["seq"] = f.seq;
  known["detector"] = f.detector;
  known["elapsed"] = f.elapsed_s;
  return nb::module_::import_("ouro.errors").attr("_make")(s.message(), known);
}

}  // namespace

void wrong_type(const std::string& argument, const char* expected, nb::handle found) {
  const nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(found.ptr())));
  const auto name = nb::cast<std::string>(nb::str(type.attr("__name__")));
  throw nb::type_error((argument + ": " + expected + " is expected; it is " + name).c_str());
}

Milliseconds milliseconds(const char* argument, std::optional<double> seconds, Milliseconds otherwise) {
  if (!seconds) return otherwise;
  if (!(*seconds >= 0))
    throw nb::value_error((std::string(argument) + ": seconds are expected, 0 or more").c_str());
  return Milliseconds(static_cast<std::int64_t>(std::min(std::ceil(*seconds * 1000), 4e15)));
}

Milliseconds deadline_of(const char* argument, std::optional<double> seconds, Milliseconds otherwise) {
  if (seconds && !(*seconds > 0))
    throw nb::value_error((std::string(argument) + ": seconds are expected, more than 0").c_str());
  return milliseconds(argument, seconds, otherwise);
}

ReduceOp reduction(nb::handle op) {
  if (nb::isinstance<ReduceOp>(op)) return nb::cast<ReduceOp>(op);
  if (nb::isinstance<nb::str>(op))
    if (const auto kind = parse_op(nb::cast<const char*>(op)); kind && *kind != OpKind::premulsum)
      return {*kind, {}};
  throw nb::value_error(
      "op: one of 'sum', 'prod', 'max', 'min', 'avg', 'band', 'bor', 'bxor', 'land', 'lor', 'lxor' is "
      "expected, or ouro.premul(factor)");
}

Numerics numerics(std::optional<std::string> name) {
  if (!name) return Numerics::inherit;
  if (*name == "fast") return Numerics::fast;
  if (*name == "canonical") return Numerics::canonical;
  throw nb::value_error("numerics: 'fast', 'canonical' or None is expected");
}

DType dtype_of(const std::string& name) {
  if (const auto t = parse_dtype(name)) return *t;
  throw nb::value_error(("dtype: '" + name + "' is not an element type of ouro").c_str());
}

void bind_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const Failed& f) {
      try {
        const nb::object e = exception(f.status);
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(e.ptr())), e.ptr());
      } catch (nb::python_error& raised) {
        raised.restore();  // a signal handler that ran in exception() raised: Ctrl-C
      }
    } catch (const std::bad_cast&) {
      PyErr_SetString(PyExc_TypeError, "an argument, or an item of one, has a type that is not expected");
    }
  });
}

}  // namespace ouro::python
