// What waits to be given back. See quiet.h.
#include "transport/cuda_ipc/quiet.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace ouro::transport {
namespace {

struct Process {
  std::mutex mutex;
  std::condition_variable changed;
  int on_device = 0;
  bool releasing = false;  // nothing begins then
  std::vector<std::shared_ptr<void>> waiting;
  std::size_t expected = 0;      // for which there is room in `waiting`
  std::atomic<bool> any{false};  // in `waiting`
};
Process& process() {
  static auto* const one = new Process;  // groups may outlive static objects
  return *one;
}

/// What goes may hold things that wait, too, so the lock is not held meanwhile.
void release(Process& p, std::unique_lock<std::mutex>& lock) {
  if (p.on_device > 0 || p.releasing) return;
  p.releasing = true;
  while (!p.waiting.empty()) {
    auto going = std::move(p.waiting.back());
    p.waiting.pop_back();
    lock.unlock();
    going.reset();
    lock.lock();
  }
  p.any.store(false, std::memory_order_relaxed);
  p.releasing = false;
  p.changed.notify_all();
}

}  // namespace

OnDevice::OnDevice() {
  Process& p = process();
  std::unique_lock lock(p.mutex);
  p.changed.wait(lock, [&] { return !p.releasing; });
  ++p.on_device;
}
OnDevice::~OnDevice() { end(); }
void OnDevice::end() {
  if (!std::exchange(counted_, false)) return;
  std::lock_guard lock(process().mutex);
  --process().on_device;
}

void expect_release() {
  Process& p = process();
  std::lock_guard lock(p.mutex);
  p.waiting.reserve(p.waiting.size() + p.expected + 1);
  ++p.expected;
}

void release_when_quiet(std::shared_ptr<void> what) noexcept {
  if (!what) return;
  Process& p = process();
  std::unique_lock lock(p.mutex);
  if (p.expected > 0) --p.expected;
  try {
    p.waiting.push_back(std::move(what));
  } catch (const std::bad_alloc&) {
    lock.unlock();
    return;  // it goes now, whatever its driver waits for
  }
  p.any.store(true, std::memory_order_relaxed);
  release(p, lock);
}

void release_if_quiet() noexcept {
  Process& p = process();
  if (!p.any.load(std::memory_order_relaxed)) return;
  std::unique_lock lock(p.mutex);
  release(p, lock);
}

}  // namespace ouro::transport
