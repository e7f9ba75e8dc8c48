// Host streams. See stream.h.
#include "runtime/device/stream.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <exception>

namespace ouro::rt {

void WorkState::complete(Status outcome) {
  std::vector<std::function<void(const Status&)>> callbacks;
  {
    std::lock_guard lock(mutex_);
    outcome_ = outcome;
    done_ = true;
    callbacks.swap(callbacks_);
  }
  cv_.notify_all();
  for (auto& f : callbacks) f(outcome);
}

bool WorkState::wait_until(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  return cv_.wait_until(lock, until, [&] { return done_; });
}

void WorkState::wait() {
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [&] { return done_; });  // bounded: every operation ends by its own deadline
}

bool WorkState::done() const {
  std::lock_guard lock(mutex_);
  return done_;
}

Status WorkState::outcome() const {
  std::lock_guard lock(mutex_);
  return outcome_;
}

void WorkState::then(std::function<void(const Status&)> f) {
  {
    std::lock_guard lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(f));
      return;
    }
  }
  f(outcome());
}

HostStream::HostStream(std::string name, int nice)
    : queue_(std::make_shared<Queue>()),
      thread_([queue = queue_, name = std::move(name), nice] { loop(queue, name, nice); }) {}

HostStream::~HostStream() {
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
  auto state = std::make_shared<WorkState>();
  {
    std::lock_guard lock(queue_->mutex);
    queue_->tasks.push_back({std::move(f), state});
    queue_->last = state;
  }
  queue_->cv.notify_one();
  return state;
}

std::shared_ptr<WorkState> HostStream::last() const {
  std::lock_guard lock(queue_->mutex);
  return queue_->last;
}

void HostStream::loop(const std::shared_ptr<Queue>& queue, const std::string& name, int nice) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  if (nice != 0) setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), nice);
  for (;;) {
    Queue::Task task;
    {
      std::unique_lock lock(queue->mutex);
      queue->cv.wait(lock, [&] { return queue->stop || !queue->tasks.empty(); });
      if (queue->tasks.empty()) return;
      task = std::move(queue->tasks.front());
      queue->tasks.pop_front();
    }
    Status outcome;
    try {
      outcome = task.run();
    } catch (const std::exception& e) {
      outcome = Status(Reason::resource, std::string("a function on a stream threw: ") + e.what());
    }
    task.run = nullptr;  // releases what it captured before anybody is told
    task.state->complete(std::move(outcome));
  }
}

}  // namespace ouro::rt
