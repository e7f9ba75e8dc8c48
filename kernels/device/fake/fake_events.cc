// Events of a FakeGpu. See fake_events.h.
#include "kernels/device/fake/fake_events.h"

#include <fmt/format.h>

#include <algorithm>

namespace ouro::gpu::fake {
namespace {

void learn(std::vector<std::size_t>& clock, const std::vector<std::size_t>& from) {
  for (std::size_t i = 0; i < from.size(); ++i) clock[i] = std::max(clock[i], from[i]);
}

}  // namespace

Result<Events::State*> Events::find(Event e) {
  auto it = events_.find(e.handle);
  if (it == events_.end()) return handles_.unknown("event", e.handle);
  return &it->second;
}

Result<Event> Events::create(int device, bool timing) {
  OURO_TRY(control_->admit(FakeOp::create, device));
  std::lock_guard lock(streams_.lock());
  void* const handle = handles_.make(handles_.number());
  events_[handle] = {.device = device, .timing = timing};
  return Event{handle};
}

Status Events::destroy(Event e) {
  OURO_TRY(Control::allowed_here());
  std::lock_guard lock(streams_.lock());
  auto it = events_.find(e.handle);
  if (it == events_.end()) return handles_.unknown("event", e.handle);
  const int device = it->second.device;
  events_.erase(it);
  return control_->lost(device);
}

Status Events::record(Event event, Stream stream) {
  OURO_TRY(control_->admit(FakeOp::record, stream.device));
  std::lock_guard lock(streams_.lock());
  auto e = find(event);
  if (!e.ok()) return e.status();
  auto q = streams_.find(stream);
  if (!q.ok()) return q.status();
  State& ev = **e;
  if (ev.device != stream.device)
    return invalid(fmt::format("an event of device {} is recorded on device {}", ev.device, stream.device));
  if ((*q)->capture != nullptr) {
    const auto c = (*q)->capture;
    const auto i = static_cast<std::size_t>(c->recording.marks);
    OURO_TRY(streams_.push(**q, {FakeOp::record, [i](const Run& run) { (*run.marks)[i].pass(); }}, false));
    ++c->recording.marks;
    ev.mark = nullptr;
    ev.capture = c;
    ev.capture_mark = i;
    ev.clock = c->clocks[(*q)->lane];
    return {};
  }
  auto mark = std::make_shared<Mark>(stream.device);
  OURO_TRY(streams_.push(**q, {FakeOp::record, [mark](const Run&) { mark->pass(); }}));
  ev.mark = std::move(mark);
  ev.capture = nullptr;
  return {};
}

Status Events::wait(Stream stream, Event event) {
  OURO_TRY(control_->admit(FakeOp::wait, stream.device));
  std::lock_guard lock(streams_.lock());
  auto found = streams_.find(stream);
  if (!found.ok()) return found.status();
  Queue& q = **found;
  auto e = find(event);
  if (!e.ok()) return e.status();
  const State& ev = **e;
  if (ev.capture != nullptr) {
    if (q.capture == nullptr && is_legacy(stream.handle) && !ev.capture->ended && ev.capture->broken.empty())
      return ev.capture->break_off("the legacy stream cannot be captured");
    return wait_in_capture(ev, q);
  }
  if (ev.mark == nullptr) return {};
  if (q.capture != nullptr)
    return q.capture->break_off("a stream that is being captured waits for work outside the capture");
  return streams_.push(
      q, {FakeOp::wait, [mark = ev.mark](const Run& run) { mark->wait_on_stream(run.control, run.device); }});
}

Status Events::wait_in_capture(const State& ev, Queue& q) {
  const auto c = ev.capture;
  if (c->ended) {
    constexpr char kGone[] = "the event was recorded in a capture that has ended: it marks nothing that runs";
    return q.capture != nullptr ? q.capture->break_off(kGone) : invalid(kGone);
  }
  if (!c->broken.empty()) return invalid("the capture of this event is broken: " + c->broken);
  if (q.capture != nullptr && q.capture != c) {
    static_cast<void>(q.capture->break_off("it waits for an event of another capture"));
    return c->break_off("another capture waits for an event of it");
  }
  if (q.capture == nullptr) Capture::join(c, q);
  OURO_TRY(streams_.push(
      q,
      {FakeOp::wait,
       [i = ev.capture_mark](const Run& run) { (*run.marks)[i].wait_on_stream(run.control, run.device); }},
      false));
  learn(c->clocks[q.lane], ev.clock);
  return {};
}

Result<std::shared_ptr<Mark>> Events::mark_of(Event event, int* device) {
  auto e = find(event);
  if (!e.ok()) return e.status();
  const State& ev = **e;
  *device = ev.device;
  OURO_TRY(control_->lost(ev.device));
  if (ev.capture == nullptr) return ev.mark;
  constexpr char kCaptured[] = "an event that was recorded in a capture marks nothing that runs";
  return ev.capture->ended ? invalid(kCaptured) : ev.capture->break_off(kCaptured);
}

Status Events::synchronize(Event event) {
  OURO_TRY(control_->admit_anywhere(FakeOp::synchronize));
  const auto control = control_;
  std::shared_ptr<Mark> mark;
  int device = 0;
  {
    std::lock_guard lock(streams_.lock());
    auto found = mark_of(event, &device);
    if (!found.ok()) return found.status();
    mark = *std::move(found);
  }
  if (mark != nullptr) mark->wait();
  return control->lost(device);
}

Result<bool> Events::query(Event event) {
  OURO_TRY(control_->admit_anywhere(FakeOp::synchronize));
  std::lock_guard lock(streams_.lock());
  int device = 0;
  auto mark = mark_of(event, &device);
  if (!mark.ok()) return mark.status();
  return *mark == nullptr || (*mark)->passed();
}

Result<float> Events::elapsed_ms(Event from, Event to) {
  OURO_TRY(control_->admit_anywhere(FakeOp::synchronize));
  std::lock_guard lock(streams_.lock());
  for (const Event event : {from, to}) {
    auto e = find(event);
    if (!e.ok()) return e.status();
    if (!(*e)->timing) return invalid("an event that was made without timing");
  }
  Clock::time_point when[2];
  int i = 0;
  for (const Event event : {from, to}) {
    const State& e = events_.at(event.handle);
    if (e.capture != nullptr || e.mark == nullptr) return invalid("an event that was never recorded");
    OURO_TRY(control_->lost(e.device));
    if (!e.mark->passed()) return invalid("an event that has not passed yet");
    when[i++] = e.mark->when();
  }
  return std::chrono::duration<float, std::milli>(when[1] - when[0]).count();
}

int Events::count() {
  std::lock_guard lock(streams_.lock());
  return static_cast<int>(events_.size());
}

}  // namespace ouro::gpu::fake
