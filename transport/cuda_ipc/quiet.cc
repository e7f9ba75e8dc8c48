// What waits to be given back. See quiet.h.
#include "transport/cuda_ipc/quiet.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <utility>

#include "runtime/core/log.h"
#include "runtime/core/per_process.h"
#include "runtime/core/thread.h"

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
  // For a Releaser.
  std::condition_variable wanted;
  int asked = 0;  // by threads that wait
  bool graphs = false;
  std::mutex making;  // taken before `mutex`
  std::weak_ptr<Releaser> releaser;
};
constinit PerProcess<Process> g_process;
Process& process() { return *g_process; }

thread_local int t_never_releases = 0;

/// What goes may hold things that wait, too, so the lock is not held meanwhile.
void release(Process& p, std::unique_lock<std::mutex>& lock) {
  if (p.on_device > 0 || p.releasing || t_never_releases > 0) return;
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
  if (t_never_releases > 0) p.wanted.notify_all();
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
  Process& p = process();
  std::lock_guard lock(p.mutex);
  if (--p.on_device == 0 && p.waiting) p.wanted.notify_all();
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

void finish_releasing() noexcept {
  if (t_never_releases > 0) return;
  Process& p = process();
  std::unique_lock lock(p.mutex);
  p.changed.wait(lock, [&] { return !p.releasing; });
  release(p, lock);
}

void release_soon(std::chrono::milliseconds at_most) noexcept {
  Process& p = process();
  std::unique_lock lock(p.mutex);
  if (!p.waiting && !p.releasing) return;
  ++p.asked;
  p.wanted.notify_all();
  p.changed.wait_for(lock, at_most, [&] { return p.on_device > 0 || (!p.waiting && !p.releasing); });
  --p.asked;
}

void graphs_exist() noexcept {
  std::lock_guard lock(process().mutex);
  process().graphs = true;
}

NeverReleases::NeverReleases() { ++t_never_releases; }
NeverReleases::~NeverReleases() { --t_never_releases; }

class Releaser::Loop {
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
      if (p.waiting && p.on_device == 0 && !p.releasing && (p.asked > 0 || !p.graphs)) {
        release(p, lock);
      } else {
        p.wanted.wait(lock);
      }
    }
  }
  Process& process_ = process();
  bool stop_ = false;  // under the lock of the process
  Thread thread_;
};

Releaser::Releaser() : loop_(new Loop) {}
Releaser::~Releaser() = default;

std::shared_ptr<Releaser> Releaser::of_process() try {
  Process& p = process();
  std::lock_guard lock(p.making);
  if (auto known = p.releaser.lock()) return known;
  std::shared_ptr<Releaser> made(new Releaser);
  p.releaser = made;
  return made;
} catch (const std::system_error& e) {
  OURO_INFO(INIT, "no thread releases device memory; calls do: {}", e.what());
  return nullptr;
}

}  // namespace ouro::transport
