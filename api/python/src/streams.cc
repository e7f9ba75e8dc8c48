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
  nb::class_<PyWork>(m, "Work", "An operation in flight. It holds its arrays until it has ended.")
      .def("wait", &PyWork::wait, "timeout"_a = nb::none(),
           "Returns when the operation has ended; raises what it failed with. DeadlineError after `timeout` "
           "seconds, and the\n"
           "operation goes on.")
      .def(
          "done", [](const PyWork& w) { return w.work().test(); },
          "Whether it has ended, well or not. Never waits.")
      .def(
          "check", [](const PyWork& w) { check(w.work().status()); },
          "Raises what it failed with, if it has. Never waits.");

  nb::class_<PyStream>(
      m, "Stream",
      "An ordered queue of operations: of the host, run by a thread of its own, or of a GPU.\n\n"
      "priority: 'low', 'normal' or 'high'. gpu: of this GPU; None: of the host.")
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
          "A stream of the user's own, by its cudaStream_t as a number (0: the legacy default stream).")
      .def(
          "synchronize",
          [](const PyStream& s, std::optional<double> timeout) {
            wait_in_pieces([&](Milliseconds piece) { return s.stream().synchronize(piece); }, timeout);
          },
          "timeout"_a = nb::none(),
          "Waits for what is enqueued now; raises the first failure of anything that ran here.");

  nb::class_<Event>(m, "Event", "A mark in a stream.")
      .def(nb::init<>())
      .def(
          "record", [](Event& e, const PyStream& s) { e.record(s.stream()); }, "stream"_a,
          "Sets the mark after all that is enqueued now; replaces the one before.")
      .def(
          "record", [](Event& e, const PyWork& w) { e.record(w.work()); }, "work"_a,
          "The same, at the end of one operation.")
      .def(
          "wait_on", [](const Event& e, const PyStream& s) { e.wait_on(s.stream()); }, "stream"_a,
          "What is enqueued on the stream from now on starts after the mark.")
      .def(
          "synchronize",
          [](const Event& e, std::optional<double> timeout) {
            wait_in_pieces([&](Milliseconds piece) { return e.synchronize(piece); }, timeout);
          },
          "timeout"_a = nb::none(), "Waits for the mark; raises what the operation before it failed with.")
      .def("query", &Event::query, "Whether the mark has been passed. True if nothing was recorded.");
}

}  // namespace ouro::python
