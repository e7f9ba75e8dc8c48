// Leaving without being missed. See leaving.h.
#include "api/nccl/leaving.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>

#include "api/src/membership.h"
#include "runtime/core/thread.h"

namespace ouro::nccl {
namespace {

using namespace std::chrono_literals;
constexpr auto kExitPatience = 2s;
constexpr auto kLook = 5ms;  // at who has left

/// A group that has been closed, and the membership that it needs.
struct Kept {
  std::shared_ptr<Family>
      family;  // gone after the group, as members are destroyed from the last to the first
  Group group;
  UserStreams streams;  // what was called on them has to run before the group ends
};

/// The groups that outlive their communicators. One for the process, never destroyed.
class Leaving {
 public:
  static Leaving& all() {
    static Leaving& leaving = *new Leaving;
    return leaving;
  }

  void close_aside(std::shared_ptr<Kept> what) {
    {
      std::lock_guard lock(mutex_);
      ++busy_;
    }
    auto run = [this, what]() mutable {
      close(std::move(*what));
      what.reset();
      done();
    };
    try {
      Thread("ouro-nccl-end", run).detach();
    } catch (const std::exception&) {
      run();
    }
  }

  void close(Kept what) {
    const bool failed = what.group.failed();
    if (!failed) {
      what.streams.wait();
      (void)what.group.close();
    }
    what.streams = UserStreams();
    const bool stays = !failed && keeps_memory(what.group) && !others_left(what.group);
    // The last communicator of its context: from now on the context only serves what stays.
    if (what.family->open.fetch_sub(1) == 1 && (stays || what.family.use_count() > 1))
      say_left(what.family->context);
    if (stays) stay(std::move(what));
    what.group = Group();
    what.family.reset();
    sweep();
  }

 private:
  Leaving() {
    std::atexit([] { all().end(); });
  }

  /// A thread looks after what stays, for as long as anything does.
  void stay(Kept what) {
    std::lock_guard lock(mutex_);
    kept_.push_back(std::move(what));
    if (watched_) return;
    ++busy_;
    watched_ = true;
    try {
      Thread("ouro-nccl-keep", [this] { watch(); }).detach();
    } catch (const std::exception&) {  // the next communicator that ends looks
      watched_ = false;
      --busy_;
    }
  }
  void watch() {
    for (;;) {
      sweep();
      std::unique_lock lock(mutex_);
      if (kept_.empty() || exiting_) {
        watched_ = false;
        break;
      }
      changed_.wait_for(lock, kLook);
    }
    done();
  }
  /// Ends what nobody needs any more.
  void sweep() {
    std::list<Kept> over;
    {
      std::lock_guard lock(mutex_);
      for (auto at = kept_.begin(); at != kept_.end();) {
        const auto next = std::next(at);
        if (others_left(at->group)) over.splice(over.end(), kept_, at);
        at = next;
      }
    }
    if (!over.empty()) changed_.notify_all();
  }
  void done() {
    std::lock_guard lock(mutex_);
    --busy_;
    changed_.notify_all();
  }
  void end() {
    if (forks_ != forks()) return;  // the threads are the parent's
    std::list<Kept> over;
    std::unique_lock lock(mutex_);
    exiting_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, kExitPatience, [this] { return busy_ == 0; });
    over.swap(kept_);
    lock.unlock();
  }

  const unsigned forks_ = forks();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Kept> kept_;
  int busy_ = 0;  // threads
  bool watched_ = false, exiting_ = false;
};

}  // namespace

void leave(std::shared_ptr<Family> family, Group group, UserStreams streams, bool aside) {
  Kept what{std::move(family), std::move(group), std::move(streams)};
  if (aside)
    Leaving::all().close_aside(std::make_shared<Kept>(std::move(what)));
  else
    Leaving::all().close(std::move(what));
}

}  // namespace ouro::nccl
