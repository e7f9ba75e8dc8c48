// Copies, events, graphs and the copy probe of one GPU. See device.h.
#include "tools/perf/device.h"

#include <algorithm>
#include <cstring>

namespace ouro::perf {
namespace {

constexpr std::size_t kLargeCopy = std::size_t{1} << 30, kSmallCopy = std::size_t{16} << 20;
constexpr int kDeviceRounds = 3, kCopies = 10;

bool is_fake() { return std::strcmp(gpu::gpu().name(), "fake") == 0; }

struct FreeOnDevice {
  void operator()(void* p) const { (void)gpu::gpu().free(p).ok(); }
};
using DeviceBytes = std::unique_ptr<void, FreeOnDevice>;

Result<DeviceBytes> allocate(int device, std::size_t bytes) {
  auto made = gpu::gpu().alloc(device, bytes);
  if (!made) return made.status();
  return DeviceBytes(*made);
}

}  // namespace

Result<Mover> Mover::make(Device device) {
  Mover m;
  if (device.kind == Device::Kind::host) return m;
  const auto made = gpu::gpu().create_stream(device.index, 0);
  if (!made) return made.status();
  m.stream_ = std::shared_ptr<const gpu::Stream>(new gpu::Stream(*made), [](const gpu::Stream* s) {
    (void)gpu::gpu().destroy_stream(*s).ok();
    delete s;
  });
  return m;
}

Status Mover::write(void* there, const void* from, std::size_t bytes) const {
  if (bytes == 0) return {};
  if (!stream_) return std::memcpy(there, from, bytes), Status();
  OURO_TRY(gpu::gpu().copy(there, from, bytes, *stream_));
  return gpu::gpu().synchronize(*stream_);
}

Status Mover::read(void* to, const void* there, std::size_t bytes) const { return write(to, there, bytes); }

Status Mover::set(void* there, int byte, std::size_t bytes) const {
  if (bytes == 0) return {};
  if (!stream_) return std::memset(there, byte, bytes), Status();
  OURO_TRY(gpu::gpu().set(there, static_cast<std::uint8_t>(byte), bytes, *stream_));
  return gpu::gpu().synchronize(*stream_);
}

Result<std::unique_ptr<EventClock>> EventClock::make(gpu::Stream stream, int marks) {
  std::unique_ptr<EventClock> clock(new EventClock(stream));
  for (int i = 0; i < marks; ++i) {
    const auto event = gpu::gpu().create_event(stream.device, true);
    if (!event) return event.status();
    clock->events_.push_back(*event);
  }
  return clock;
}

EventClock::~EventClock() {
  for (const gpu::Event e : events_) (void)gpu::gpu().destroy_event(e).ok();
}

Status EventClock::mark(int i) { return gpu::gpu().record(events_[static_cast<std::size_t>(i)], stream_); }

Result<double> EventClock::seconds(int from, int to) const {
  const auto ms =
      gpu::gpu().elapsed_ms(events_[static_cast<std::size_t>(from)], events_[static_cast<std::size_t>(to)]);
  if (!ms) return ms.status();
  return static_cast<double>(*ms) / 1e3;
}

Result<std::unique_ptr<CapturedGraph>> CapturedGraph::capture(gpu::Stream stream,
                                                              const std::function<Status()>& enqueue) {
  OURO_TRY(gpu::gpu().begin_capture(stream));
  const Status enqueued = enqueue();
  // Runs even after an error, because the stream must not remain in capture mode.
  const auto graph = gpu::gpu().end_capture(stream);
  if (!enqueued) {
    if (graph) (void)gpu::gpu().destroy_graph(*graph).ok();
    return enqueued;
  }
  if (!graph) return graph.status();
  return std::unique_ptr<CapturedGraph>(new CapturedGraph(stream, *graph));
}

std::string describe(const gpu::Properties& p) {
  return is_fake() ? p.name + ", a fake device: memory and threads of this host" : p.name;
}

Result<DeviceCopy> measure_copy(int device) {
  DeviceCopy copy{.gbs = 0, .bytes = is_fake() ? kSmallCopy : kLargeCopy};
  DeviceBytes from, to;
  for (;; copy.bytes /= 2) {
    auto a = allocate(device, copy.bytes), b = allocate(device, copy.bytes);
    if (a && b) {
      from = std::move(*a), to = std::move(*b);
      break;
    }
    const Status why = a ? b.status() : a.status();
    if (why.reason() != Reason::resource || copy.bytes <= kSmallCopy) return why;
  }
  const auto stream = gpu::gpu().create_stream(device, 0);
  if (!stream) return stream.status();
  const auto run = [&]() -> Status {
    const auto clock = EventClock::make(*stream, 2);
    if (!clock) return clock.status();
    OURO_TRY(gpu::gpu().set(from.get(), 1, copy.bytes, *stream));
    OURO_TRY(gpu::gpu().copy(to.get(), from.get(), copy.bytes, *stream));
    for (int round = 0; round < kDeviceRounds; ++round) {
      OURO_TRY((*clock)->mark(0));
      for (int i = 0; i < kCopies; ++i) OURO_TRY(gpu::gpu().copy(to.get(), from.get(), copy.bytes, *stream));
      OURO_TRY((*clock)->mark(1));
      OURO_TRY(gpu::gpu().synchronize(*stream));
      const auto seconds = (*clock)->seconds(0, 1);
      if (!seconds) return seconds.status();
      if (*seconds > 0)
        copy.gbs = std::max(copy.gbs, 2.0 * kCopies * static_cast<double>(copy.bytes) / *seconds / 1e9);
    }
    return {};
  };
  const Status done = run();
  const Status ended = gpu::gpu().destroy_stream(*stream);
  OURO_TRY(done);
  OURO_TRY(ended);
  return copy;
}

}  // namespace ouro::perf
