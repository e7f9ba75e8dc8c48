// Messages between two ranks, and batches.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "api/python/src/submit.h"

namespace ouro::python {
namespace {

using namespace nb::literals;
using namespace std::chrono_literals;

/// 0 means the group's deadline in C++, so a timeout of 0 becomes the shortest possible wait.
Milliseconds timeout_of(std::optional<double> seconds) {
  return seconds ? std::max<Milliseconds>(milliseconds("timeout", seconds, 0ms), 1ms) : 0ms;
}

int source_of(std::optional<int> src) { return src.value_or(kAnySource); }

nb::object send_to(Group& g, nb::handle x, int dst, int tag, OptionalStream stream) {
  Arrays arrays;
  arrays.emplace_back(x, "x", false);
  const CView a = arrays[0].cview();
  return submit(std::move(arrays), nb::none(), stream,
                [&](auto&&... s) { return send(g, a, dst, tag, s...); });
}

template <class Receive>
Received receive(Receive&& call) {
  Result<Received> got = [&] {
    Waiting waiting;
    return call();
  }();
  check_interrupted(got.status());
  return value_of(std::move(got));
}

nb::object recv_from(Group& g, nb::handle out, std::optional<int> src, int tag, std::optional<double> timeout,
                     bool exact, OptionalStream stream) {
  Arrays arrays;
  arrays.emplace_back(out, "out", true);
  const View b = arrays[0].view();
  const RecvOptions options{.deadline = timeout_of(timeout), .exact = exact};
  const int from = source_of(src);
  if (stream) {
    if (timeout) throw nb::value_error("recv: on a stream the group's deadline governs; pass no timeout");
    return enqueue(std::move(arrays), *stream,
                   [&](const Stream& s) { return recv(g, b, from, tag, s, options); });
  }
  const Received got = receive([&] { return recv(g, b, from, tag, options); });
  if (in_batch()) keep_until_batch_ends(std::move(arrays));
  return nb::cast(got);
}

/// `with ouro.batch():` in one thread.
struct Batch {};

}  // namespace

void bind_messages(nb::module_& m, nb::class_<Group>& group) {
  nb::class_<Received>(m, "Received", "What was received, or would be.")
      .def_ro("source", &Received::source, "Its rank in the group.")
      .def_ro("tag", &Received::tag, "As it was sent.")
      .def_ro("bytes", &Received::bytes, "Length of the message.")
      .def("__repr__", [](const Received& r) {
        return "<ouro.Received: " + std::to_string(r.bytes) + " bytes of rank " + std::to_string(r.source) +
               ", tag " + std::to_string(r.tag) + ">";
      });
  nb::class_<Matched>(
      m, "Matched",
      "A message that match() has taken out of the queue: whoever holds it, and nobody else,\n"
      "receives it, once. Where it goes before, the message is in the queue again.")
      .def_prop_ro(
          "about", [](const Matched& x) { return x.about(); }, "Where it comes from, and its length.");
  const auto none = nb::none();
  group
      .def("send", &send_to, "x"_a, "dst"_a, "tag"_a = 0, nb::kw_only(), "stream"_a = none,
           "Sends all elements of x; returns once x may be used again. With a stream, at once, a Work.")
      .def("recv", &recv_from, "out"_a, "src"_a = none, "tag"_a = 0, nb::kw_only(), "timeout"_a = none,
           "exact"_a = false, "stream"_a = none,
           "Receives one message of at most the bytes of `out`, from src (None: any rank). Returns Received; "
           "with a stream a\n"
           "Work. timeout: seconds for this call; one that passes before a message has begun leaves the "
           "group usable; 0\n"
           "takes what is there. exact: a message of another length is a MismatchError. Inside a batch the "
           "result says nothing.")
      .def(
          "recv_matched",
          [](Group& g, const Matched& message, nb::handle out, std::optional<double> timeout) {
            const Array array(out, "out", true);
            const Milliseconds deadline = timeout_of(timeout);
            return receive([&] { return recv(g, message, array.view(), deadline); });
          },
          "message"_a, "out"_a, nb::kw_only(), "timeout"_a = none, "Receives a message that was matched.")
      .def(
          "probe",
          [](Group& g, std::optional<int> src, int tag) { return value_of(probe(g, source_of(src), tag)); },
          "src"_a = none, "tag"_a = 0,
          "The next message that recv(src, tag) would take, or None. Never waits.")
      .def(
          "match",
          [](Group& g, std::optional<int> src, int tag) { return value_of(match(g, source_of(src), tag)); },
          "src"_a = none, "tag"_a = 0,
          "The same, set aside for the caller: no other thread can take it before recv_matched.");

  nb::class_<Batch>(m, "batch",
                    "`with ouro.batch():` operations of this thread without a stream are deferred, and "
                    "submitted together at\n"
                    "its end: messages progress together, and operations of different groups too. With an "
                    "exception in the\n"
                    "block they are submitted as well, as other ranks wait for them.")
      .def(nb::init<>())
      .def("__enter__",
           [](nb::handle self) {
             group_start();
             return nb::borrow(self);
           })
      .def(
          "__exit__",
          [](Batch&, nb::handle, nb::handle, nb::handle) {
            Status s;
            {
              Waiting waiting;
              s = group_end();
            }
            if (!in_batch()) batch_has_ended();
            check_interrupted(s);
          },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none());
}

}  // namespace ouro::python
