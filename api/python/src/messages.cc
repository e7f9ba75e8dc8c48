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
  nb::class_<Received>(m, "Received", "Describes a message that was received or is waiting.")
      .def_ro("source", &Received::source, "Rank of the sender in the group.")
      .def_ro("tag", &Received::tag, "The tag it was sent with.")
      .def_ro("bytes", &Received::bytes, "Length of the message in bytes.")
      .def("__repr__", [](const Received& r) {
        return "<ouro.Received: " + std::to_string(r.bytes) + " bytes of rank " + std::to_string(r.source) +
               ", tag " + std::to_string(r.tag) + ">";
      });
  nb::class_<Matched>(
      m, "Matched",
      "A message that match() has taken out of the queue. Only a holder of this object can\n"
      "receive it, once. If the object is destroyed before that, the message returns to its place\n"
      "in the queue.")
      .def_prop_ro(
          "about", [](const Matched& x) { return x.about(); },
          "A Received that describes the message: its sender, tag and length.");
  const auto none = nb::none();
  group
      .def("send", &send_to, "x"_a, "dst"_a, "tag"_a = 0, nb::kw_only(), "stream"_a = none,
           "Sends all elements of x to rank `dst`. Returns None once x may be reused; with a stream,\n"
           "returns a Work at once. Tags are 0 to 2^31 - 1; messages with the same source, destination\n"
           "and tag arrive in order.")
      .def("recv", &recv_from, "out"_a, "src"_a = none, "tag"_a = 0, nb::kw_only(), "timeout"_a = none,
           "exact"_a = false, "stream"_a = none,
           "Receives one message of at most the size of `out` from rank `src`, or from any rank if it is\n"
           "None. Returns a Received; with a stream, a Work at once. Inside batch(), the returned\n"
           "Received is empty.\n\n"
           "timeout: limit of this call in seconds; None: the group's deadline. If it passes before a\n"
           "  message has begun, DeadlineError is raised and the group stays usable; 0 takes only a\n"
           "  message that is already here. A stream and a timeout together are a ValueError.\n"
           "exact: a message whose length differs from that of `out` raises MismatchError.\n\n"
           "InvalidError: a longer message, which stays queued.")
      .def(
          "recv_matched",
          [](Group& g, const Matched& message, nb::handle out, std::optional<double> timeout) {
            const Array array(out, "out", true);
            const Milliseconds deadline = timeout_of(timeout);
            return receive([&] { return recv(g, message, array.view(), deadline); });
          },
          "message"_a, "out"_a, nb::kw_only(), "timeout"_a = none,
          "Receives a message that match() returned into `out`. Returns a Received. timeout: as in\n"
          "recv; if it passes, `message` still holds the message. InvalidError: a message of another\n"
          "group, already received, or longer than `out`.")
      .def(
          "probe",
          [](Group& g, std::optional<int> src, int tag) { return value_of(probe(g, source_of(src), tag)); },
          "src"_a = none, "tag"_a = 0,
          "Returns a Received that describes the next message that recv(src, tag) would take, or None\n"
          "if none is here. Never blocks.")
      .def(
          "match",
          [](Group& g, std::optional<int> src, int tag) { return value_of(match(g, source_of(src), tag)); },
          "src"_a = none, "tag"_a = 0,
          "Like probe, but takes the message out of the queue for the caller and returns a Matched, or\n"
          "None: no other thread can receive it before recv_matched does. Never blocks.");

  nb::class_<Batch>(
      m, "batch",
      "`with ouro.batch():` defers the operations that this thread calls in the block without a\n"
      "stream, and submits them together at its end, which waits for them. Messages progress\n"
      "together, and so do operations of different groups. They are submitted even if the block\n"
      "raises, because other ranks wait for them; a wrong argument of one drops them all.")
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
