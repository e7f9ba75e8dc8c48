// The C interface on top of the C++ one: streams and work. Used by C programs and other languages
// through ouro.h.
#include "api/src/c_api.h"

using namespace ouro;
using namespace ouro::c;

namespace {

Status hand_out(Result<Stream> made, ouro_stream_t* stream) {
  if (!made) return made.status();
  *stream = new ouro_stream{std::move(*made)};
  return {};
}

}  // namespace

int ouro_stream_create(ouro_priority_t priority, const char* name, ouro_stream_t* stream) {
  return guarded([&]() -> Status {
    OURO_TRY(need(stream, "stream_create", "stream"));
    const Result<Priority> p = priority_of(priority, "stream_create");
    if (!p) return p.status();
    return hand_out(Stream::create(*p, name ? name : ""), stream);
  });
}

int ouro_stream_create_device(int device, ouro_priority_t priority, ouro_stream_t* stream) {
  return guarded([&]() -> Status {
    OURO_TRY(need(stream, "stream_create_device", "stream"));
    const Result<Priority> p = priority_of(priority, "stream_create_device");
    if (!p) return p.status();
    return hand_out(Stream::create({Device::Kind::cuda, device}, *p), stream);
  });
}

int ouro_stream_cuda(void* cuda_stream, int device, ouro_stream_t* stream) {
  return guarded([&]() -> Status {
    OURO_TRY(need(stream, "stream_cuda", "stream"));
    return hand_out(Stream::cuda(cuda_stream, device), stream);
  });
}

int ouro_stream_device(ouro_stream_t stream) {
  return number(stream, "stream_device", [&] {
    const Device d = stream->stream.device();
    return d.kind == Device::Kind::cuda ? d.index : -1;
  });
}

void* ouro_stream_handle(ouro_stream_t stream) {
  if (stream) return stream->stream.cuda_handle();
  finish(need(stream, "stream_handle", "stream"));
  return nullptr;
}

int ouro_stream_synchronize(ouro_stream_t stream, int64_t deadline_ms) {
  return guarded([&]() -> Status {
    OURO_TRY(need(stream, "stream_synchronize", "stream"));
    return stream->stream.synchronize(Milliseconds(deadline_ms));
  });
}

void ouro_stream_destroy(ouro_stream_t stream) { delete stream; }

int ouro_work_wait(ouro_work_t work, int64_t deadline_ms) {
  return guarded([&]() -> Status {
    OURO_TRY(need(work, "work_wait", "work"));
    return work->work.wait(Milliseconds(deadline_ms));
  });
}

int ouro_work_test(ouro_work_t work) {
  return number(work, "work_test", [&] { return work->work.test() ? 1 : 0; });
}

int ouro_work_status(ouro_work_t work) {
  return guarded([&]() -> Status {
    OURO_TRY(need(work, "work_status", "work"));
    return work->work.status();
  });
}

int ouro_work_then(ouro_work_t work, void (*f)(int code, const char* message, void* argument),
                   void* argument) {
  return guarded([&]() -> Status {
    OURO_TRY(need(work, "work_then", "work"));
    if (!f) return invalid("work_then: f is null");
    work->work.then([f, argument](const Status& outcome) {
      f(static_cast<int>(outcome.code()), outcome.message().c_str(), argument);
    });
    return {};
  });
}

void ouro_work_destroy(ouro_work_t work) { delete work; }
