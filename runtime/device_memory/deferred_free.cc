// The list of what is deferred, and its thread. See deferred_free.h.
#include "runtime/device_memory/deferred_free.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/core/per_process.h"
#include "runtime/core/thread.h"

namespace ouro::rt {
namespace {

/// Something whose freeing is deferred. A list of them.
struct Kept {
  std::shared_ptr<void> what;
  Kept* next = nullptr;
  unsigned forks = ouro::forks();
};

struct Process {
  std::mutex mutex;
  std::condition_variable changed;
  int on_device = 0;     // operations
  bool freeing = false;  // no operation begins meanwhile
  Kept* waiting = nullptr;
  std::atomic<bool> any{false};  // is deferred
  // For the DeferredFreeThread.
  std::condition_variable wanted;
  int asked = 0;  // by threads that wait
  bool graphs = false;
  std::mutex making;  // taken before `mutex`
  std::weak_ptr<DeferredFreeThread> thread;
};
constinit PerProcess<Process> g_process;
Process& process() { return *g_process; }

thread_local int t_frees_nothing = 0;

/// Frees everything that is deferred. It may hold handles of free_when_idle() itself, so the lock is not held
/// meanwhile.
void free_all(Process& p, std::unique_lock<std::mutex>& lock) {
  if (p.on_device > 0 || p.freeing || t_frees_nothing > 0) return;
  p.freeing = true;
  while (p.waiting) {
    std::unique_ptr<Kept> freed(std::exchange(p.waiting, p.waiting->next));
    lock.unlock();
    freed.reset();
    lock.lock();
  }
  p.any.store(false, std::memory_order_relaxed);
  p.freeing = false;
  p.changed.notify_all();
}

void keep_until_idle(Kept* kept) noexcept {
  if (kept->forks != forks()) return;
  Process& p = process();
  std::unique_lock lock(p.mutex);
  kept->next = std::exchange(p.waiting, kept);
  p.any.store(true, std::memory_order_relaxed);
  if (t_frees_nothing > 0) p.wanted.notify_all();
  free_all(p, lock);
}

}  // namespace

OperationOnDevice::OperationOnDevice() {
  Process& p = process();
  std::unique_lock lock(p.mutex);
  p.changed.wait(lock, [&] { return !p.freeing; });
  ++p.on_device;
}
OperationOnDevice::~OperationOnDevice() { end(); }
void OperationOnDevice::end() {
  if (!std::exchange(counted_, false) || forks_ != forks()) return;
  Process& p = process();
  std::lock_guard lock(p.mutex);
  if (--p.on_device == 0 && p.waiting) p.wanted.notify_all();
}

std::shared_ptr<void> free_when_idle(std::shared_ptr<void> what) {
  void* const at = what.get();
  auto kept = std::make_unique<Kept>(Kept{std::move(what)});
  return {std::shared_ptr<Kept>(kept.release(), keep_until_idle), at};
}

void free_if_idle() noexcept {
  Process& p = process();
  if (!p.any.load(std::memory_order_relaxed)) return;
  std::unique_lock lock(p.mutex);
  free_all(p, lock);
}

void finish_freeing() noexcept {
  if (t_frees_nothing > 0) return;
  Process& p = process();
  std::unique_lock lock(p.mutex);
  p.changed.wait(lock, [&] { return !p.freeing; });
  free_all(p, lock);
}

void free_soon(std::chrono::milliseconds at_most) noexcept {
  Process& p = process();
  std::unique_lock lock(p.mutex);
  if (!p.waiting && !p.freeing) return;
  ++p.asked;
  p.wanted.notify_all();
  p.changed.wait_for(lock, at_most, [&] { return p.on_device > 0 || (!p.waiting && !p.freeing); });
  --p.asked;
}

void note_graph_capture() noexcept {
  std::lock_guard lock(process().mutex);
  process().graphs = true;
}

NeverFrees::NeverFrees() { ++t_frees_nothing; }
NeverFrees::~NeverFrees() { --t_frees_nothing; }

class DeferredFreeThread::Loop {
 public:
  Loop() : thread_("ouro-unmap", [this] { run(); }) {}
  ~Loop() {
    {
      std::lock_guard lock(process_.mutex);
      stop_ = true;
    }
    process_.wanted.notify_all();
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

 private:
  void run() {
    Process& p = process_;
    std::unique_lock lock(p.mutex);
    while (!stop_) {
      if (p.waiting && p.on_device == 0 && !p.freeing && (p.asked > 0 || !p.graphs)) {
        free_all(p, lock);
      } else {
        p.wanted.wait(lock);
      }
    }
  }
  Process& process_ = process();
  bool stop_ = false;  // under the lock of the process
  Thread thread_;
};

DeferredFreeThread::DeferredFreeThread() : loop_(new Loop) {}
DeferredFreeThread::~DeferredFreeThread() = default;

std::shared_ptr<DeferredFreeThread> DeferredFreeThread::of_process() try {
  Process& p = process();
  std::lock_guard lock(p.making);
  if (auto known = p.thread.lock()) return known;
  std::shared_ptr<DeferredFreeThread> made(new DeferredFreeThread);
  p.thread = made;
  return made;
} catch (const std::system_error& e) {
  OURO_INFO(INIT, "no thread frees device memory that is deferred; calls do: {}", e.what());
  return nullptr;
}

}  // namespace ouro::rt
