// What waits to be given back. See quiet.h.
#include "transport/cuda_ipc/quiet.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "runtime/core/per_process.h"

namespace ouro::transport {
namespace {

/// What will wait, with its place in the line.
struct Kept {
  std::shared_ptr<void> what;
  Kept* next = nullptr;
  unsigned forks = ouro::forks();
};

struct Process {
  std::mutex mutex;
  std::condition_variable changed;
  int on_device = 0;
  bool releasing = false;  // nothing begins then
  Kept* waiting = nullptr;
  std::atomic<bool> any{false};  // waits
};
constinit PerProcess<Process> g_process;
Process& process() { return *g_process; }

/// What goes may hold things that wait, too, so the lock is not held meanwhile.
void release(Process& p, std::unique_lock<std::mutex>& lock) {
  if (p.on_device > 0 || p.releasing) return;
  p.releasing = true;
  while (p.waiting) {
    std::unique_ptr<Kept> going(std::exchange(p.waiting, p.waiting->next));
    lock.unlock();
    going.reset();
    lock.lock();
  }
  p.any.store(false, std::memory_order_relaxed);
  p.releasing = false;
  p.changed.notify_all();
}

void wait_for_quiet(Kept* kept) noexcept {
  if (kept->forks != forks()) return;
  Process& p = process();
  std::unique_lock lock(p.mutex);
  kept->next = std::exchange(p.waiting, kept);
  p.any.store(true, std::memory_order_relaxed);
  release(p, lock);
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
  if (!std::exchange(counted_, false) || forks_ != forks()) return;
  std::lock_guard lock(process().mutex);
  --process().on_device;
}

std::shared_ptr<void> when_quiet(std::shared_ptr<void> what) {
  void* const at = what.get();
  auto kept = std::make_unique<Kept>(Kept{std::move(what)});
  return {std::shared_ptr<Kept>(kept.release(), wait_for_quiet), at};
}

void release_if_quiet() noexcept {
  Process& p = process();
  if (!p.any.load(std::memory_order_relaxed)) return;
  std::unique_lock lock(p.mutex);
  release(p, lock);
}

}  // namespace ouro::transport
