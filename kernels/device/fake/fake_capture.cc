// FakeGpu: events, waiting for streams and events, capture and graphs. See fake_gpu.h.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/device/fake/fake_state.h"

namespace ouro::gpu {

using namespace fake;

namespace {

/// What the first lane of a capture has not waited for.
bool joined(const Capture& c) {
  for (std::size_t lane = 1; lane < c.clocks.size(); ++lane)
    if (c.clocks[0][lane] < c.clocks[lane][lane]) return false;
  return true;
}

void add_lane(const std::shared_ptr<Capture>& c, Queue& q) {
  q.capture = c;
  q.lane = c->recording.lanes.size();
  c->recording.lanes.push_back({q.device(), {}});
  for (auto& clock : c->clocks) clock.push_back(0);
  c->clocks.emplace_back(c->recording.lanes.size());
}

void learn(std::vector<std::size_t>& clock, const std::vector<std::size_t>& from) {
  for (std::size_t i = 0; i < from.size(); ++i) clock[i] = std::max(clock[i], from[i]);
}

}  // namespace

Result<FakeGpu::State::EventState*> FakeGpu::State::find(Event e) {
  auto it = events.find(e.handle);
  if (it == events.end()) return unknown("event", e.handle);
  return &it->second;
}

Status FakeGpu::State::break_capture(Capture& c, std::string why) {
  if (c.broken.empty()) c.broken = why;
  return invalid(std::move(why));
}

Result<Event> FakeGpu::create_event(int device, bool timing) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::create, device));
  std::lock_guard lock(s.mutex);
  void* handle = s.new_handle();
  s.events[handle] = {.device = device, .timing = timing};
  return Event{handle};
}

Status FakeGpu::destroy_event(Event e) {
  State& s = state();
  OURO_TRY(s.allowed_here());
  std::lock_guard lock(s.mutex);
  auto it = s.events.find(e.handle);
  if (it == s.events.end()) return s.unknown("event", e.handle);
  const int device = it->second.device;
  s.events.erase(it);
  return s.control->lost(device);
}

Status FakeGpu::record(Event event, Stream stream) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::record, stream.device));
  std::lock_guard lock(s.mutex);
  auto e = s.find(event);
  if (!e.ok()) return e.status();
  auto q = s.find(stream);
  if (!q.ok()) return q.status();
  State::EventState& ev = **e;
  if (ev.device != stream.device)
    return invalid(fmt::format("an event of device {} is recorded on device {}", ev.device, stream.device));
  if ((*q)->capture != nullptr) {
    const auto c = (*q)->capture;
    const auto i = static_cast<std::size_t>(c->recording.marks);
    OURO_TRY(s.push(**q, {FakeOp::record, [i](const Run& run) { (*run.marks)[i].pass(); }}, false));
    ++c->recording.marks;
    ev.mark = nullptr;
    ev.capture = c;
    ev.capture_mark = i;
    ev.clock = c->clocks[(*q)->lane];
    return {};
  }
  auto mark = std::make_shared<Mark>(stream.device);
  OURO_TRY(s.push(**q, {FakeOp::record, [mark](const Run&) { mark->pass(); }}));
  ev.mark = std::move(mark);
  ev.capture = nullptr;
  return {};
}

Status FakeGpu::wait(Stream stream, Event event) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::wait, stream.device));
  std::lock_guard lock(s.mutex);
  auto found = s.find(stream);
  if (!found.ok()) return found.status();
  Queue& q = **found;
  auto e = s.find(event);
  if (!e.ok()) return e.status();
  const State::EventState& ev = **e;
  if (ev.capture == nullptr) {
    if (ev.mark == nullptr) return {};
    if (q.capture != nullptr)
      return State::break_capture(*q.capture,
                                  "a stream that is being captured waits for work outside the capture");
    return s.push(q, {FakeOp::wait,
                      [mark = ev.mark](const Run& run) { mark->wait_on_stream(run.control, run.device); }});
  }
  const auto c = ev.capture;
  if (c->ended) {
    constexpr char kGone[] = "the event was recorded in a capture that has ended: it marks nothing that runs";
    return q.capture != nullptr ? State::break_capture(*q.capture, kGone) : invalid(kGone);
  }
  if (!c->broken.empty()) return invalid("the capture of this event is broken: " + c->broken);
  if (q.capture != nullptr && q.capture != c) {
    static_cast<void>(State::break_capture(*q.capture, "it waits for an event of another capture"));
    return State::break_capture(*c, "another capture waits for an event of it");
  }
  if (q.capture == nullptr) {
    if (stream.handle == nullptr) return State::break_capture(*c, "the legacy stream cannot be captured");
    add_lane(c, q);
  }
  OURO_TRY(s.push(
      q,
      {FakeOp::wait,
       [i = ev.capture_mark](const Run& run) { (*run.marks)[i].wait_on_stream(run.control, run.device); }},
      false));
  learn(c->clocks[q.lane], ev.clock);
  return {};
}

Status FakeGpu::synchronize(Stream stream) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::synchronize, stream.device));
  const auto control = s.control;
  std::shared_ptr<Queue> q;
  {
    std::lock_guard lock(s.mutex);
    auto found = s.find(stream);
    if (!found.ok()) return found.status();
    q = *std::move(found);
    if (q->capture != nullptr)
      return State::break_capture(*q->capture, "a stream that is being captured was synchronized");
  }
  q->drain();
  return control->lost(stream.device);
}

Result<bool> FakeGpu::query(Stream stream) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::synchronize, stream.device));
  std::lock_guard lock(s.mutex);
  auto q = s.find(stream);
  if (!q.ok()) return q.status();
  if ((*q)->capture != nullptr)
    return State::break_capture(*(*q)->capture, "a stream that is being captured was queried");
  return (*q)->idle();
}

Result<std::shared_ptr<Mark>> FakeGpu::State::mark_of(Event event, int* device) {
  auto e = find(event);
  if (!e.ok()) return e.status();
  const EventState& ev = **e;
  *device = ev.device;
  OURO_TRY(control->lost(ev.device));
  if (ev.capture == nullptr) return ev.mark;
  constexpr char kCaptured[] = "an event that was recorded in a capture marks nothing that runs";
  return ev.capture->ended ? invalid(kCaptured) : break_capture(*ev.capture, kCaptured);
}

Status FakeGpu::synchronize(Event event) {
  State& s = state();
  OURO_TRY(s.admit_anywhere(FakeOp::synchronize));
  const auto control = s.control;
  std::shared_ptr<Mark> mark;
  int device = 0;
  {
    std::lock_guard lock(s.mutex);
    auto found = s.mark_of(event, &device);
    if (!found.ok()) return found.status();
    mark = *std::move(found);
  }
  if (mark != nullptr) mark->wait();
  return control->lost(device);
}

Result<bool> FakeGpu::query(Event event) {
  State& s = state();
  OURO_TRY(s.admit_anywhere(FakeOp::synchronize));
  std::lock_guard lock(s.mutex);
  int device = 0;
  auto mark = s.mark_of(event, &device);
  if (!mark.ok()) return mark.status();
  return *mark == nullptr || (*mark)->passed();
}

Result<float> FakeGpu::elapsed_ms(Event from, Event to) {
  State& s = state();
  OURO_TRY(s.admit_anywhere(FakeOp::synchronize));
  std::lock_guard lock(s.mutex);
  for (const Event event : {from, to}) {
    auto e = s.find(event);
    if (!e.ok()) return e.status();
    if (!(*e)->timing) return invalid("an event that was made without timing");
  }
  Clock::time_point when[2];
  int i = 0;
  for (const Event event : {from, to}) {
    const State::EventState* e = &s.events.at(event.handle);
    if (e->capture != nullptr || e->mark == nullptr) return invalid("an event that was never recorded");
    OURO_TRY(s.control->lost(e->device));
    if (!e->mark->passed()) return invalid("an event that has not passed yet");
    when[i++] = e->mark->when();
  }
  return std::chrono::duration<float, std::milli>(when[1] - when[0]).count();
}

Result<std::uint64_t> FakeGpu::capturing(Stream stream) {
  State& s = state();
  OURO_TRY(s.check(stream.device));
  std::lock_guard lock(s.mutex);
  auto q = s.find(stream);
  if (!q.ok()) return q.status();
  if ((*q)->capture == nullptr) return std::uint64_t{0};
  if (!(*q)->capture->broken.empty())
    return invalid("the capture of this stream is broken: " + (*q)->capture->broken);
  return (*q)->capture->id;
}

Status FakeGpu::begin_capture(Stream stream) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::capture, stream.device));
  if (stream.handle == nullptr) return invalid("the legacy stream cannot be captured");
  std::lock_guard lock(s.mutex);
  auto q = s.find(stream);
  if (!q.ok()) return q.status();
  if ((*q)->capture != nullptr)
    return State::break_capture(*(*q)->capture, "a capture was begun in a capture");
  auto c = std::make_shared<Capture>();
  c->id = s.next++;
  add_lane(c, **q);
  return {};
}

Result<Graph> FakeGpu::end_capture(Stream stream) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::capture, stream.device));
  std::lock_guard lock(s.mutex);
  auto q = s.find(stream);
  if (!q.ok()) return q.status();
  const auto c = (*q)->capture;
  if (c == nullptr) return invalid("this stream is not being captured");
  if ((*q)->lane != 0) return State::break_capture(*c, "a capture was ended on a stream that only joined it");
  for (auto& [handle, other] : s.streams)
    if (other->capture == c) other->capture = nullptr;
  c->ended = true;
  if (!c->broken.empty()) return invalid("the capture is broken: " + c->broken);
  if (!joined(*c)) return invalid("work of a stream that joined the capture is not waited for at its end");
  void* handle = s.new_handle();
  s.graphs[handle].recording = std::make_shared<const fake::Recording>(std::move(c->recording));
  return Graph{handle};
}

Status FakeGpu::launch(Graph graph, Stream stream) {
  State& s = state();
  OURO_TRY(s.admit(FakeOp::graph, stream.device));
  std::lock_guard lock(s.mutex);
  auto it = s.graphs.find(graph.handle);
  if (it == s.graphs.end()) return s.unknown("graph", graph.handle);
  auto q = s.find(stream);
  if (!q.ok()) return q.status();
  if (s.control->take_fault(FakeOp::graph)) return s.push(**q, {FakeOp::graph, fault_work()});
  const auto recording = it->second.recording;
  if ((*q)->capture != nullptr)
    return s.push(**q, {FakeOp::graph, [recording](const Run& run) { replay(*recording, run); }});
  auto mark = std::make_shared<Mark>(stream.device);
  OURO_TRY(s.push(**q, {FakeOp::graph, [recording, mark, last = it->second.last](const Run& run) {
                          if (last != nullptr) last->wait_on_stream(run.control, run.device);
                          replay(*recording, run);
                          mark->pass();
                        }}));
  it->second.last = std::move(mark);
  return {};
}

Status FakeGpu::destroy_graph(Graph graph) {
  State& s = state();
  OURO_TRY(s.allowed_here());
  std::lock_guard lock(s.mutex);
  if (s.graphs.erase(graph.handle) == 0) return s.unknown("graph", graph.handle);
  return {};
}

}  // namespace ouro::gpu
