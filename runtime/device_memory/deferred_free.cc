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

/// An owner whose freeing is deferred; an element of a list.
struct Deferred {
  std::shared_ptr<void> owner;
  Deferred* next = nullptr;
  unsigned forks = ouro::forks();
};

/// What this process has deferred, and its operations on devices.
struct DeferredFrees {
  std::mutex mutex;
  std::condition_variable changed;
  int on_device = 0;     // number of operations
  bool freeing = false;  // a thread frees; no operation begins meanwhile
  Deferred* first = nullptr;
  std::atomic<bool> any{false};  // the list may have an element
  // For the DeferredFreeThread.
  std::condition_variable wanted;
  int requests = 0;  // number of threads that wait in free_soon()
  bool graphs = false;
  std::mutex thread_mutex;  // taken before `mutex`
  std::weak_ptr<DeferredFreeThread> thread;
};
constinit PerProcess<DeferredFrees> g_deferred_frees;

thread_local int t_frees_nothing = 0;

/// Frees everything that is deferred, unless an operation is on a device or another thread is freeing. An
/// owner may itself hold handles of free_when_idle(), so the lock is not held while one is freed.
void free_all(DeferredFrees& d, std::unique_lock<std::mutex>& lock) {
  if (d.on_device > 0 || d.freeing || t_frees_nothing > 0) return;
  d.freeing = true;
  while (d.first) {
    std::unique_ptr<Deferred> freed(std::exchange(d.first, d.first->next));
    lock.unlock();
    freed.reset();
    lock.lock();
  }
  d.any.store(false, std::memory_order_relaxed);
  d.freeing = false;
  d.changed.notify_all();
}

void defer(Deferred* deferred) noexcept {
  if (deferred->forks != forks()) return;
  DeferredFrees& d = *g_deferred_frees;
  std::unique_lock lock(d.mutex);
  deferred->next = std::exchange(d.first, deferred);
  d.any.store(true, std::memory_order_relaxed);
  if (t_frees_nothing > 0) d.wanted.notify_all();
  free_all(d, lock);
}

}  // namespace

OperationOnDevice::OperationOnDevice() {
  DeferredFrees& d = *g_deferred_frees;
  std::unique_lock lock(d.mutex);
  d.changed.wait(lock, [&] { return !d.freeing; });
  ++d.on_device;
}
OperationOnDevice::~OperationOnDevice() { end(); }
void OperationOnDevice::end() {
  if (!std::exchange(counted_, false) || forks_ != forks()) return;
  DeferredFrees& d = *g_deferred_frees;
  std::lock_guard lock(d.mutex);
  if (--d.on_device == 0 && d.first) d.wanted.notify_all();
}

std::shared_ptr<void> free_when_idle(std::shared_ptr<void> owner) {
  void* const at = owner.get();
  auto deferred = std::make_unique<Deferred>(Deferred{std::move(owner)});
  return {std::shared_ptr<Deferred>(deferred.release(), defer), at};
}

void free_if_idle() noexcept {
  DeferredFrees& d = *g_deferred_frees;
  if (!d.any.load(std::memory_order_relaxed)) return;
  std::unique_lock lock(d.mutex);
  free_all(d, lock);
}

void finish_freeing() noexcept {
  if (t_frees_nothing > 0) return;
  DeferredFrees& d = *g_deferred_frees;
  std::unique_lock lock(d.mutex);
  d.changed.wait(lock, [&] { return !d.freeing; });
  free_all(d, lock);
}

void free_soon(std::chrono::milliseconds at_most) noexcept {
  DeferredFrees& d = *g_deferred_frees;
  std::unique_lock lock(d.mutex);
  if (!d.first && !d.freeing) return;
  ++d.requests;
  d.wanted.notify_all();
  d.changed.wait_for(lock, at_most, [&] { return d.on_device > 0 || (!d.first && !d.freeing); });
  --d.requests;
}

void note_graph_capture() noexcept {
  std::lock_guard lock(g_deferred_frees->mutex);
  g_deferred_frees->graphs = true;
}

NeverFrees::NeverFrees() { ++t_frees_nothing; }
NeverFrees::~NeverFrees() { --t_frees_nothing; }

class DeferredFreeThread::Loop {
 public:
  Loop() : thread_("ouro-unmap", [this] { run(); }) {}
  ~Loop() {
    {
      std::lock_guard lock(frees_.mutex);
      stop_ = true;
    }
    frees_.wanted.notify_all();
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

 private:
  void run() {
    DeferredFrees& d = frees_;
    std::unique_lock lock(d.mutex);
    while (!stop_) {
      if (d.first && d.on_device == 0 && !d.freeing && (d.requests > 0 || !d.graphs)) {
        free_all(d, lock);
      } else {
        d.wanted.wait(lock);
      }
    }
  }
  DeferredFrees& frees_ = *g_deferred_frees;
  bool stop_ = false;  // under frees_.mutex
  Thread thread_;
};

DeferredFreeThread::DeferredFreeThread() : loop_(new Loop) {}
DeferredFreeThread::~DeferredFreeThread() = default;

std::shared_ptr<DeferredFreeThread> DeferredFreeThread::of_process() try {
  DeferredFrees& d = *g_deferred_frees;
  std::lock_guard lock(d.thread_mutex);
  if (auto known = d.thread.lock()) return known;
  std::shared_ptr<DeferredFreeThread> made(new DeferredFreeThread);
  d.thread = made;
  return made;
} catch (const std::system_error& e) {
  OURO_INFO(INIT, "no thread frees device memory that is deferred; calls do: {}", e.what());
  return nullptr;
}

}  // namespace ouro::rt
