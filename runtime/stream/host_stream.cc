// Host streams. See host_stream.h.
#include "runtime/stream/host_stream.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/core/no_memory.h"

namespace ouro::rt {

namespace {
Status forked_child() {
  return {Reason::forked,
          "this process was forked after its parent had made the stream or begun the operation; "
          "a child makes its own"};
}
}  // namespace

void WorkState::complete(Status outcome) {
  if (inherited()) return;
  std::vector<std::function<void(const Status&)>> callbacks;
  {
    std::lock_guard lock(mutex_);
    if (done_) return;  // two threads noticed that the mark was passed
    outcome_ = outcome;
    done_ = true;
    callbacks.swap(callbacks_);
  }
  cv_.notify_all();
  for (auto& f : callbacks) {
    try {
      f(outcome);
    } catch (const std::exception& e) {  // a stream's thread continues with its queue
      OURO_WARN("a callback of an operation threw: {}", e.what());
    }
  }
}

bool WorkState::wait_until(Clock::time_point until) {
  if (inherited()) return true;
  const LentCore lent;
  if (mark_) {
    // A mark may ask the driver, which takes a microsecond and a lock that other threads need. So marks are
    // asked at intervals that grow with the time waited, by 1/16 of it, and a nap, which lasts 100 us, is
    // taken only where it is little of that time.
    constexpr auto kClosely = std::chrono::milliseconds(1);
    constexpr auto kNap = std::chrono::microseconds(50);
    const auto begin = Clock::now();
    for (auto now = begin, next = begin;; now = Clock::now()) {
      if (now >= next || now >= until) {
        if (done()) return true;
        if (now >= until) return false;
        next = now + std::min<Clock::duration>((now - begin) / 16, kNap);
      }
      if (now - begin < kClosely)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(kNap);
    }
  }
  std::unique_lock lock(mutex_);
  return cv_.wait_until(lock, until, [&] { return done_; });
}

void WorkState::wait() {  // bounded: every operation has a deadline
  if (inherited()) return;
  if (mark_) return (void)wait_until(Clock::time_point::max());
  const LentCore lent;
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [&] { return done_; });
}

bool WorkState::done() {
  if (inherited()) return true;
  {
    std::lock_guard lock(mutex_);
    if (done_ || !mark_) return done_;
  }
  if (!mark_->passed()) return false;
  complete(mark_->outcome());
  return true;
}

Status WorkState::outcome() {
  if (inherited()) return forked_child();
  (void)done();
  std::lock_guard lock(mutex_);
  return outcome_;
}

void WorkState::then(std::function<void(const Status&)> f) {
  if (!done()) {
    std::lock_guard lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(f));
      if (mark_ && callbacks_.size() == 1)
        mark_->watcher().enqueue([self = shared_from_this()] {
          self->wait();
          return Status{};
        });
      return;
    }
  }
  f(outcome());
}

Status Stream::of_parent() { return forked_child(); }
std::shared_ptr<WorkState> Stream::refused() {
  auto state = std::make_shared<WorkState>();
  state->complete(forked_child());
  return state;
}

void Stream::Failures::note(const Status& outcome) {
  if (outcome.ok()) return;
  std::lock_guard lock(mutex_);
  if (first_.ok()) first_ = outcome;
}
Status Stream::Failures::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(first_, Status{});
}

HostStream::HostStream(std::string name, int nice)
    : queue_(std::make_shared<Queue>()),
      thread_(std::move(name),
              [queue = queue_, failures = failures_, nice] { loop(*queue, *failures, nice); }) {}

HostStream::~HostStream() {
  if (inherited()) {
    thread_.detach();
    new std::shared_ptr<Queue>(
        std::move(queue_));  // leaked: its mutex may be locked, and its condition awaited, for ever
    return;
  }
  {
    std::lock_guard lock(queue_->mutex);
    queue_->stop = true;
  }
  queue_->cv.notify_all();
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

std::shared_ptr<WorkState> HostStream::enqueue(std::function<Status()> f) {
  if (inherited()) return refused();
  auto state = std::make_shared<WorkState>();
  {
    std::lock_guard lock(queue_->mutex);
    queue_->tasks.push_back({std::move(f), state});
    queue_->last = state;
  }
  queue_->cv.notify_one();
  return state;
}

std::shared_ptr<WorkState> HostStream::last() {
  if (inherited()) return refused();
  std::lock_guard lock(queue_->mutex);
  return queue_->last;
}

void HostStream::after(std::shared_ptr<WorkState> mark) {
  (void)enqueue([mark = std::move(mark)] {
    mark->wait();
    return Status{};
  });
}

void EventState::set(std::shared_ptr<WorkState> mark) {
  if (forks_ != forks()) return;
  std::lock_guard lock(mutex_);
  mark_ = std::move(mark);
}
std::shared_ptr<WorkState> EventState::get() const {
  if (forks_ != forks()) {
    auto of_parent = std::make_shared<WorkState>();
    of_parent->complete(forked_child());
    return of_parent;
  }
  std::lock_guard lock(mutex_);
  return mark_;
}

void run_aside(std::function<void()> f) {
  try {
    Thread("ouro-aside", std::move(f)).detach();
  } catch (const std::exception& e) {
    OURO_WARN("no thread to end a group on, so it is leaked: {}", e.what());
  }
}

void HostStream::loop(Queue& queue, Failures& failures, int nice) {
  serve_stream();
  if (nice != 0) setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), nice);
  for (;;) {
    Queue::Task task;
    {
      std::unique_lock lock(queue.mutex);
      queue.cv.wait(lock, [&] { return queue.stop || !queue.tasks.empty(); });
      if (queue.tasks.empty()) return;
      task = std::move(queue.tasks.front());
      queue.tasks.pop_front();
    }
    Status outcome;
    try {
      outcome = task.run();
    } catch (const std::bad_alloc&) {
      outcome = no_memory();
    } catch (const std::exception& e) {
      outcome = Status(Reason::resource, std::string("a function on a stream threw: ") + e.what());
    }
    task.run = nullptr;  // releases its captures before waiters are notified
    failures.note(outcome);
    task.state->complete(std::move(outcome));
  }
}

}  // namespace ouro::rt
