// Streams of a FakeGpu. See fake_streams.h.
#include "kernels/device/fake/fake_streams.h"

#include <fmt/format.h>

#include "kernels/device/fake/fake_work.h"

namespace ouro::gpu::fake {

Streams::Streams(const FakeOptions& options, std::shared_ptr<Control> control, Handles& handles)
    : harsh_(options.harsh),
      control_(std::move(control)),
      handles_(handles),
      connections_(static_cast<std::size_t>(options.devices)),
      made_(static_cast<std::size_t>(options.devices)) {
  for (auto& shared : connections_)
    for (int i = 0; i < harsh_.connections; ++i) shared.push_back(std::make_shared<Connection>());
  for (int d = 0; d < options.devices; ++d)
    defaults_.push_back(make(d, fmt::format("fake{} legacy", d), false));
}

std::shared_ptr<Queue> Streams::make(int device, std::string name, bool blocking) {
  const auto d = static_cast<std::size_t>(device);
  const auto& all = connections_[d];
  return std::make_shared<Queue>(control_, device, std::move(name),
                                 all.empty() ? nullptr : all[made_[d]++ % all.size()], blocking);
}

Streams::~Streams() {
  {
    std::lock_guard lock(mutex_);  // follows callers that wait without it
    control_->stop();
    for (auto& [handle, q] : streams_) q->capture = nullptr;
    for (auto& [whose, q] : of_threads_) q->capture = nullptr;
  }
  for (auto& [handle, q] : streams_) q->end();
  for (auto& q : defaults_) q->end();
  for (auto& [whose, q] : of_threads_) q->end();
  for (auto& q : retired_) q->end();
}

Result<Stream> Streams::create(int device, int priority, bool blocking) {
  OURO_TRY(control_->admit(FakeOp::create, device));
  if (priority < kHighPriority || priority > kLowPriority)
    return invalid(
        fmt::format("priority {}; from {} (high) to {} (low)", priority, kHighPriority, kLowPriority));
  std::lock_guard lock(mutex_);
  std::erase_if(retired_, [](const auto& q) { return q->idle(); });
  const std::uint64_t number = handles_.number();
  void* const handle = handles_.make(number);
  streams_[handle] = make(device, fmt::format("fake{} stream {}", device, number), blocking);
  blocking_ += blocking;
  return Stream{device, handle};
}

Result<Stream> Streams::create_foreign(int device) {
  OURO_TRY(control_->admit(FakeOp::create, device));
  std::lock_guard lock(mutex_);
  void* const handle = handles_.make(handles_.number());
  foreign_.insert(handle);
  return Stream{device, handle};
}

/// Like CUDA, for which the handle of a stream that was never made is undefined, this does not check others.
Status Streams::check_context(Stream s) {
  std::lock_guard lock(mutex_);
  if (!foreign_.contains(s.handle)) return {};
  return invalid(fmt::format("stream {} belongs to another context than the primary one of device {}",
                             s.handle, s.device));
}

Status Streams::destroy(Stream stream) {
  OURO_TRY(Control::allowed_here());
  if (is_legacy(stream.handle) || stream.handle == kThreadStream)
    return invalid("the default streams, legacy and of a thread, cannot be destroyed");
  std::lock_guard lock(mutex_);
  auto q = find(stream);
  if (!q.ok()) return q.status();
  if ((*q)->capture != nullptr)
    return (*q)->capture->break_off("a stream that is being captured cannot be destroyed");
  (*q)->close();  // what is enqueued still runs
  blocking_ -= (*q)->blocking();
  if (!(*q)->idle()) retired_.push_back(*std::move(q));  // else its thread ends here, with its last owner
  streams_.erase(stream.handle);
  return control_->lost(stream.device);
}

Status Streams::synchronize(Stream stream) {
  OURO_TRY(control_->admit(FakeOp::synchronize, stream.device));
  const auto control = control_;
  std::shared_ptr<Queue> q;
  {
    std::lock_guard lock(mutex_);
    auto found = find(stream);
    if (!found.ok()) return found.status();
    q = *std::move(found);
    if (q->capture != nullptr)
      return q->capture->break_off("a stream that is being captured was synchronized");
  }
  q->drain();
  return control->lost(stream.device);
}

Result<bool> Streams::query(Stream stream) {
  OURO_TRY(control_->admit(FakeOp::synchronize, stream.device));
  std::lock_guard lock(mutex_);
  auto q = find(stream);
  if (!q.ok()) return q.status();
  if ((*q)->capture != nullptr)
    return (*q)->capture->break_off("a stream that is being captured was queried");
  return (*q)->idle();
}

Status Streams::enqueue(Stream stream, FakeOp kind, Work work) {
  std::lock_guard lock(mutex_);
  auto q = find(stream);
  if (!q.ok()) return q.status();
  if (control_->take_fault(kind)) work = fault_work();
  return push(**q, {kind, std::move(work)});
}

Status Streams::push(Queue& q, Op op, bool is_work) {
  if (q.capture == nullptr) {
    if (blocking_ > 0 || !of_threads_.empty()) OURO_TRY(keep_legacy_order(q));
    if (harsh_.depth > 0 && !q.room_until(harsh_.depth, Clock::now() + harsh_.patience))
      return control_->stalled(
          fmt::format("stream \"{}\" has been full of {} operations for {} ms, and all calls wait", q.name(),
                      harsh_.depth, harsh_.patience.count()));
    return q.push(std::move(op));
  }
  Capture& c = *q.capture;
  if (!c.broken.empty()) return invalid("the capture of this stream is broken: " + c.broken);
  c.recording.lanes[q.lane].ops.push_back(std::move(op));
  if (is_work) ++c.clocks[q.lane][q.lane];
  return {};
}

Status Streams::follow(Queue& later, Queue& first) {
  if (first.idle()) return {};
  auto mark = std::make_shared<Mark>(first.device());
  OURO_TRY(first.push({FakeOp::record, [mark](const Run&) { mark->pass(); }}));
  return later.push(
      {FakeOp::wait, [mark](const Run& run) { mark->wait_on_stream(run.control, run.device); }});
}

Status Streams::keep_legacy_order(Queue& q) {
  Queue& legacy = *defaults_[static_cast<std::size_t>(q.device())];
  if (q.blocking()) return follow(q, legacy);
  if (&q != &legacy) return {};
  const auto after = [&](Queue& other) -> Status {
    if (!other.blocking() || other.device() != q.device()) return {};
    if (other.capture != nullptr)
      return other.capture->break_off("the legacy stream would wait for a stream that is being captured");
    return follow(q, other);
  };
  for (auto& [handle, other] : streams_) OURO_TRY(after(*other));
  for (auto& [whose, other] : of_threads_) OURO_TRY(after(*other));
  return {};
}

std::shared_ptr<Queue> Streams::of_thread(int device) {
  auto& q = of_threads_[{std::this_thread::get_id(), device}];
  if (q == nullptr) q = make(device, fmt::format("fake{} stream of a thread", device), true);
  return q;
}

Result<std::shared_ptr<Queue>> Streams::find(Stream s) {
  if (s.device < 0 || static_cast<std::size_t>(s.device) >= defaults_.size())
    return invalid(fmt::format("a stream of device {}; there are {}", s.device, defaults_.size()));
  if (is_legacy(s.handle)) return defaults_[static_cast<std::size_t>(s.device)];
  if (s.handle == kThreadStream) return of_thread(s.device);
  auto it = streams_.find(s.handle);
  if (it == streams_.end()) return handles_.unknown("stream", s.handle);
  if (it->second->device() != s.device)
    return invalid(
        fmt::format("a stream of device {} is used as one of device {}", it->second->device(), s.device));
  return it->second;
}

void Streams::end_capture(const std::shared_ptr<Capture>& c) {
  for (auto& [handle, q] : streams_)
    if (q->capture == c) q->capture = nullptr;
  for (auto& [whose, q] : of_threads_)
    if (q->capture == c) q->capture = nullptr;
  c->ended = true;
}

std::vector<std::shared_ptr<Queue>> Streams::queues(int device) {
  std::vector<std::shared_ptr<Queue>> all;
  std::lock_guard lock(mutex_);
  const auto add = [&](const std::shared_ptr<Queue>& q) {
    if (device < 0 || q->device() == device) all.push_back(q);
  };
  for (auto& q : defaults_) add(q);
  for (auto& [handle, q] : streams_) add(q);
  for (auto& [whose, q] : of_threads_) add(q);
  for (auto& q : retired_) add(q);
  return all;
}

Status Streams::synchronize_device(int device) {
  OURO_TRY(control_->admit(FakeOp::synchronize, device));
  const auto control = control_;
  const auto all = queues(device);
  {
    std::lock_guard lock(mutex_);
    for (auto& q : all)
      if (q->capture != nullptr)
        return q->capture->break_off("the device of a stream that is being captured was synchronized");
  }
  for (auto& q : all) q->drain();
  return control->lost(device);
}

Status Streams::quiesce(int device, const char* why) {
  const auto until = Clock::now() + harsh_.patience;
  for (auto& q : queues(device))
    if (!q->drain_until(until))
      return control_->stalled(
          fmt::format("{} waits for its device, and after {} ms stream \"{}\" has not ended: what it waits "
                      "for may need this thread",
                      why, harsh_.patience.count(), q->name()));
  return {};
}

void Streams::keep_until_idle(int device, const std::shared_ptr<const void>& what) {
  for (auto& q : queues(device)) q->push_behind_work({FakeOp::free, [keep = what](const Run&) {}});
}

int Streams::count() {
  std::lock_guard lock(mutex_);
  return static_cast<int>(streams_.size());
}

}  // namespace ouro::gpu::fake
