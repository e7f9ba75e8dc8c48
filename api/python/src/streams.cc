// Streams, events and works.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "api/python/src/submit.h"

namespace ouro::python {

using namespace nb::literals;
using namespace std::chrono_literals;

PyWork::~PyWork() {
  if (!arrays_.empty() && !work_.test()) keep_until_done(work_, std::move(arrays_));
}
void PyWork::wait(std::optional<double> timeout) {
  const Status s = wait_for(work_, milliseconds("timeout", timeout, Milliseconds(-1)));
  if (work_.test()) arrays_.clear();
  let_go();
  check(s);
}

namespace {

PyStream make_stream(const std::string& priority, std::optional<int> gpu, const std::string& name) {
  Priority p = Priority::normal;
  if (priority == "low")
    p = Priority::low;
  else if (priority == "high")
    p = Priority::high;
  else if (priority != "normal")
    throw nb::value_error("priority: 'low', 'normal' or 'high' is expected");
  const Device device = gpu ? Device{Device::Kind::cuda, *gpu} : Device{};
  return PyStream(value_of(Stream::create(device, p, name)));
}

/// Waits in short pieces, so that signal handlers run. `wait(piece)` returns `timeout` until the awaited
/// event has happened.
template <class Wait>
void wait_in_pieces(Wait wait, std::optional<double> timeout) {
  const auto end = std::chrono::steady_clock::now() + milliseconds("timeout", timeout, 100h * 24 * 365);
  for (;;) {
    const auto left = std::chrono::duration_cast<Milliseconds>(end - std::chrono::steady_clock::now());
    const Status s = without_gil([&] { return wait(std::clamp(left, 0ms, 100ms)); });
    if (s.ok() || s.code() != Code::timeout || left <= 100ms) {
      let_go();
      return check(s);
    }
    if (in_main_thread() && PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

}  // namespace

void bind_streams(nb::module_& m) {
  nb::class_<PyWork>(
      m, "Work",
      "An operation in flight. It keeps the operation's arrays alive until the operation has ended.")
      .def("wait", &PyWork::wait, "timeout"_a = nb::none(),
           "Blocks, without the GIL, until the operation has ended; raises its error if it failed.\n"
           "timeout: limit in seconds; None: only the group's deadline applies. If it passes,\n"
           "DeadlineError is raised and the operation continues.")
      .def(
          "done", [](const PyWork& w) { return w.work().test(); },
          "Returns whether the operation has ended, successfully or not. Never blocks.")
      .def(
          "check", [](const PyWork& w) { check(w.work().status()); },
          "Raises the operation's error if it has failed. Never blocks.");

  nb::class_<PyStream>(
      m, "Stream",
      "An ordered queue of operations, either on the host, where the stream's own thread runs them,\n"
      "or on a GPU. Destroying it does not wait: enqueued operations continue.\n\n"
      "priority: 'low', 'normal' or 'high'.\n"
      "gpu: index of the GPU; None: a host stream.\n"
      "name: name of a host stream.")
      .def(
          "__init__",
          [](PyStream* self, const std::string& priority, std::optional<int> gpu, const std::string& name) {
            new (self) PyStream(make_stream(priority, gpu, name));
          },
          nb::kw_only(), "priority"_a = "normal", "gpu"_a = nb::none(), "name"_a = "")
      .def_static(
          "cuda",
          [](std::uintptr_t handle, int gpu) {
            return PyStream(value_of(Stream::cuda(reinterpret_cast<void*>(handle), gpu)));
          },
          "handle"_a, "gpu"_a,
          "Wraps a stream of the user's own. handle: its cudaStream_t as a number, 0 for the legacy\n"
          "default stream; it must outlive this object. InvalidError: no such GPU.")
      .def(
          "synchronize",
          [](const PyStream& s, std::optional<double> timeout) {
            wait_in_pieces([&](Milliseconds piece) { return s.stream().synchronize(piece); }, timeout);
          },
          "timeout"_a = nb::none(),
          "Blocks, without the GIL, until everything enqueued so far has run; raises the first failure\n"
          "of anything that ran here since the last call. timeout: limit in seconds, after which\n"
          "DeadlineError is raised; None: no limit.");

  nb::class_<Event>(m, "Event", "A mark in a stream.")
      .def(nb::init<>())
      .def(
          "record", [](Event& e, const PyStream& s) { e.record(s.stream()); }, "stream"_a,
          "Places the mark after everything that is enqueued now; replaces the previous mark.")
      .def(
          "record", [](Event& e, const PyWork& w) { e.record(w.work()); }, "work"_a,
          "Places the mark at the end of one operation; replaces the previous mark.")
      .def(
          "wait_on", [](const Event& e, const PyStream& s) { e.wait_on(s.stream()); }, "stream"_a,
          "Makes work that is enqueued on the stream from now on wait for the mark.")
      .def(
          "synchronize",
          [](const Event& e, std::optional<double> timeout) {
            wait_in_pieces([&](Milliseconds piece) { return e.synchronize(piece); }, timeout);
          },
          "timeout"_a = nb::none(),
          "Blocks, without the GIL, until the mark has been passed; raises the error of the operation\n"
          "before it, if that failed. timeout: limit in seconds, after which DeadlineError is raised;\n"
          "None: no limit.")
      .def("query", &Event::query,
           "Returns whether the mark has been passed; True if nothing was recorded. Never blocks.");
}

}  // namespace ouro::python
