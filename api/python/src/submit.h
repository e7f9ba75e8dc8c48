// Ways to call an operation: in the caller, on a stream, or in a batch. Used by this folder.
#pragma once
#include "api/python/src/binding.h"
#include "api/python/src/waiting.h"

namespace ouro::python {

/// A stream as a Python argument. Destroying it does not wait: enqueued work continues and keeps the
/// stream alive.
class PyStream {
 public:
  explicit PyStream(Stream stream) : stream_(std::move(stream)) {}
  PyStream(PyStream&&) noexcept = default;
  PyStream& operator=(PyStream&&) = delete;
  ~PyStream() {
    if (stream_.valid() && !last_.test()) keep_until_done(last_, {}, std::move(stream_));
  }
  const Stream& stream() const { return stream_; }
  void enqueued(const Work& last) const { last_ = last; }

 private:
  Stream stream_;
  mutable Work last_;
};
using OptionalStream = const PyStream*;

/// Enqueues `call(stream)` and returns its Work, which keeps `arrays` alive.
template <class Call>
nb::object enqueue(Arrays arrays, const PyStream& stream, Call call) {
  Result<Work> work = without_gil([&] { return Result<Work>(call(stream.stream())); });
  check(work.status());
  stream.enqueued(*work);
  return nb::cast(PyWork(*std::move(work), std::move(arrays)));
}

/// Runs `call()`, or `call(stream)`, and keeps `arrays` alive as long as the operation needs them. Returns
/// `result`, or the stream's Work. GPU arrays go through the legacy default stream of their GPU, in order
/// with the work that their library enqueued there.
template <class Call>
nb::object submit(Arrays arrays, nb::object result, OptionalStream stream, Call call) {
  if (stream) return enqueue(std::move(arrays), *stream, call);
  Device device;
  for (const Array& a : arrays)
    if (a.view().device.kind == Device::Kind::cuda) device = a.view().device;
  if (device.kind == Device::Kind::cuda && !in_batch()) {
    const Stream legacy = value_of(Stream::cuda(nullptr, device.index));
    PyWork work(value_of(Result<Work>(call(legacy))), std::move(arrays));
    work.wait(std::nullopt);
    return result;
  }
  Status s;
  {
    Waiting waiting;
    s = call();
  }
  check_interrupted(s);
  if (in_batch()) keep_until_batch_ends(std::move(arrays));
  return result;
}

}  // namespace ouro::python
