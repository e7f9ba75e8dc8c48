// The C interface over the C++ one: streams and work.
// Used by C programs and other languages through ouro.h.
#include "api/src/c_api.h"

using namespace ouro;
using namespace ouro::c;

int ouro_stream_create(ouro_priority_t priority, const char* name, ouro_stream_t* stream) {
  return guarded([&]() -> Status {
    OURO_TRY(need(stream, "stream_create", "stream"));
    const int value = static_cast<int>(priority);
    if (value < 0 || value > static_cast<int>(Priority::high))
      return invalid(fmt::format("stream_create: {} is not one of ouro_priority_t", value));
    Result<Stream> made = Stream::create(static_cast<Priority>(value), name ? name : "");
    if (!made) return made.status();
    *stream = new ouro_stream{std::move(*made)};
    return {};
  });
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
