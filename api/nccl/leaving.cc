// Closes groups in the background. See leaving.h.
#include "api/nccl/leaving.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>

#include "runtime/core/thread.h"

namespace ouro::nccl {
namespace {

using namespace std::chrono_literals;
constexpr auto kExitPatience = 2s;

/// A group and the membership that it needs.
struct Leaver {
  std::shared_ptr<Family>
      family;  // destroyed after the group: members are destroyed from the last to the first
  Group group;
  UserStreams streams;  // earlier calls on them must run before the group ends

  void close() {
    if (group.failed()) return;
    streams.wait();
    (void)group.close();
  }
};

/// The groups that are closing in the background. One per process, never destroyed; a forked child has
/// another, because the threads belong to its parent and the lock may be held forever.
class Leaving {
 public:
  static Leaving& all() {
    static std::atomic<Leaving*> newest{nullptr};
    [[maybe_unused]] static const int waits = std::atexit([] { newest.load()->end(); });
    Leaving* leaving = newest.load();
    if (leaving != nullptr && leaving->forks_ == forks()) return *leaving;
    Leaving* const own = new Leaving;
    if (newest.compare_exchange_strong(leaving, own)) return *own;
    delete own;  // another thread was faster
    return *leaving;
  }

  void close_aside(std::shared_ptr<Leaver> leaver) {
    {
      std::lock_guard lock(mutex_);
      ++busy_;
    }
    auto run = [this, leaver]() mutable {
      leaver->close();
      leaver.reset();
      std::lock_guard lock(mutex_);
      --busy_;
      changed_.notify_all();
    };
    try {
      Thread("ouro-nccl-end", run).detach();
    } catch (const std::exception&) {
      run();
    }
  }

 private:
  Leaving() = default;
  void end() {
    if (forks_ != forks()) return;  // the threads belong to the parent
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kExitPatience, [this] { return busy_ == 0; });
  }

  const unsigned forks_ = forks();
  std::mutex mutex_;
  std::condition_variable changed_;
  int busy_ = 0;  // number of closing threads
};

}  // namespace

void leave(std::shared_ptr<Family> family, Group group, UserStreams streams, bool aside) {
  Leaver leaver{std::move(family), std::move(group), std::move(streams)};
  if (aside)
    Leaving::all().close_aside(std::make_shared<Leaver>(std::move(leaver)));
  else
    leaver.close();
}

}  // namespace ouro::nccl
