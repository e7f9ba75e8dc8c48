// Streams of fake GPUs, marks and replays. See fake_queue.h.
#include "kernels/device/fake/fake_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <system_error>

namespace ouro::gpu::fake {
void Mark::pass() {
  {
    std::lock_guard lock(mutex_);
    passed_ = true;
    when_ = Clock::now();
  }
  cv_.notify_all();
}
bool Mark::passed() const {
  std::lock_guard lock(mutex_);
  return passed_;
}
Clock::time_point Mark::when() const {
  std::lock_guard lock(mutex_);
  return when_;
}
void Mark::wait_on_stream(const Control& control, int device) {
  std::unique_lock lock(mutex_);
  while (!cv_.wait_for(lock, kSlice, [&] { return passed_; }))
    if (control.ended(device) || control.ended(device_)) return;
}
void Mark::wait() {
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [&] { return passed_; });
}

bool together(int n, const std::function<void(int)>& f) {
  std::atomic<int> gate{0};  // 1: run, -1: do not
  std::vector<Thread> others;
  bool all = true;
  try {
    others.reserve(static_cast<std::size_t>(n));
    for (int i = 1; i < n; ++i)
      others.emplace_back("ouro-fake", [&gate, &f, i] {
        gate.wait(0, std::memory_order_acquire);
        if (gate.load(std::memory_order_acquire) > 0) f(i);
      });
  } catch (const std::system_error&) {
    all = false;
  }
  gate.store(all ? 1 : -1, std::memory_order_release);
  gate.notify_all();
  if (all) f(0);
  for (Thread& t : others) t.join();
  return all;
}

void perform(const Op& op, const Run& run) {
  if (!run.ended()) run.control.hesitate(op.kind, run.device);
  if (!run.ended() || op.kind == FakeOp::record) op.work(run);
}

void replay(const Recording& recording, const Run& outer) {
  std::deque<Mark> marks;
  for (int i = 0; i < recording.marks; ++i) marks.emplace_back(outer.device);
  const bool all = together(static_cast<int>(recording.lanes.size()), [&](int i) {
    const Recording::Lane& lane = recording.lanes[static_cast<std::size_t>(i)];
    const Run run{outer.control, lane.device, &marks};
    for (const Op& op : lane.ops) perform(op, run);
  });
  if (!all) outer.control.lose(outer.device, "no threads for the streams of a graph");
}

std::uint64_t Connection::take() {
  std::lock_guard lock(mutex_);
  return taken_++;
}
void Connection::wait_for(std::uint64_t place, const Control& control, int device) {
  std::unique_lock lock(mutex_);
  while (!cv_.wait_for(lock, kSlice, [&] { return passed_ >= place; }))
    if (control.ended(device)) return;
}
void Connection::pass(std::uint64_t place) {
  {
    std::lock_guard lock(mutex_);
    passed_ = std::max(passed_, place + 1);
  }
  cv_.notify_all();
}

void Queue::append(Op op) {
  const bool placed = shared_ && op.kind != FakeOp::record;
  ops_.push_back({std::move(op), placed ? shared_->take() : 0});
  ++pushed_;
}

void Queue::end() {
  close();
  if (thread_.joinable()) thread_.join();
}

Status Queue::push(Op op) {
  {
    std::lock_guard lock(mutex_);
    if (!thread_.joinable()) {
      try {
        thread_ = Thread(name_, [this] { loop(); });
      } catch (const std::system_error& e) {
        return {Reason::resource, fmt::format("no thread for a fake stream: {}", e.what())};
      }
    }
    append(std::move(op));
  }
  more_.notify_one();
  return {};
}

void Queue::push_behind_work(Op op) {
  {
    std::lock_guard lock(mutex_);
    if (done_ == pushed_) return;  // a closed queue's thread may have ended
    append(std::move(op));
  }
  more_.notify_one();
}

bool Queue::idle() const {
  std::lock_guard lock(mutex_);
  return done_ == pushed_;
}
void Queue::drain() {
  std::unique_lock lock(mutex_);
  less_.wait(lock, [this, target = pushed_] { return done_ >= target; });
}
bool Queue::drain_until(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  return less_.wait_until(lock, until, [this, target = pushed_] { return done_ >= target; });
}
bool Queue::room_until(int depth, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  return less_.wait_until(lock, until, [&] { return pushed_ - done_ < static_cast<std::uint64_t>(depth); });
}
void Queue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  more_.notify_one();
}

void Queue::loop() {
  const Run run{*control_, device_};
  for (;;) {
    Placed next;
    {
      std::unique_lock lock(mutex_);
      more_.wait(lock, [this] { return closed_ || !ops_.empty(); });
      if (ops_.empty()) return;
      next = std::move(ops_.front());
      ops_.pop_front();
    }
    const bool placed = shared_ && next.op.kind != FakeOp::record, leaves = next.op.kind == FakeOp::kernel;
    if (placed) shared_->wait_for(next.place, *control_, device_);
    if (placed && leaves) shared_->pass(next.place);
    perform(next.op, run);
    next.op.work = nullptr;  // releases what it holds before waiters are notified
    if (placed && !leaves) shared_->pass(next.place);
    {
      std::lock_guard lock(mutex_);
      ++done_;
    }
    less_.notify_all();
  }
}

void Capture::join(const std::shared_ptr<Capture>& c, Queue& q) {
  q.capture = c;
  q.lane = c->recording.lanes.size();
  c->recording.lanes.push_back({q.device(), {}});
  for (auto& clock : c->clocks) clock.push_back(0);
  c->clocks.emplace_back(c->recording.lanes.size());
}

Status Capture::break_off(std::string why) {
  if (broken.empty()) broken = why;
  return invalid(std::move(why));
}

bool Capture::joined() const {
  for (std::size_t other = 1; other < clocks.size(); ++other)
    if (clocks[0][other] < clocks[other][other]) return false;
  return true;
}

}  // namespace ouro::gpu::fake
