// The world of a run: virtual time, its events in order, processes, and their threads, which are fibers of
// the only real thread. Used by everything that is simulated.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <string_view>
#include <vector>

#include "tests/explore/engine/fiber.h"
#include "tests/simulate/engine/random.h"

namespace simulate {

using Nanos = std::int64_t;  // virtual time since its beginning
inline constexpr Nanos kMicro = 1000, kMilli = 1000 * kMicro, kSecond = 1000 * kMilli, kNever = INT64_MAX;

/// A process of the job, with the clock of its host.
struct Process {
  int rank = 0, host = 0, pid = 0;
  Nanos clock_offset = 0;   ///< what its clocks show at the beginning
  double clock_rate = 1.0;  ///< seconds of its clock per second of the world's
  bool dead = false;
  int stops = 0;  ///< stops in force; the process is stopped while there is at least one
  int calm = 0;   ///< doublings of short sleeps, while nothing happens to the process
  Nanos local(Nanos t) const {
    return clock_offset + static_cast<Nanos>(static_cast<double>(t) * clock_rate);
  }
  Nanos global(Nanos duration) const {
    return static_cast<Nanos>(static_cast<double>(duration) / clock_rate);
  }
};

/// A thread of a process.
struct Fiber {
  Process* process = nullptr;
  std::string name;
  std::function<void()> body;
  explore::Context context;
  std::vector<std::byte> thread_locals;
  void* exceptions[2] = {};  // the C++ library's words for this thread
  std::uint64_t waits = 0;   // number of its waits so far, so that the end of an earlier wait is ignored
  bool woken = false, over = false;
  int undivided = 0;  ///< number of static objects that it is constructing; it is not preempted meanwhile
  std::vector<Fiber*> joining;
};

class World {
 public:
  explicit World(std::uint64_t seed);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Nanos now() const { return now_; }
  Random& random() { return random_; }
  /// The running fiber; nullptr: the world itself runs.
  Fiber* running() const { return running_; }

  /// Calls f at that time, or next if that time has passed. Calls are in order of time, then of registration.
  void at(Nanos when, std::function<void()> f);
  void after(Nanos wait, std::function<void()> f) { at(now_ + wait, std::move(f)); }
  Fiber& spawn(Process&, std::string name, std::function<void()> body);

  // For the running fiber.
  /// Waits until wake() (returns true) or until the time `until` (returns false).
  bool wait(Nanos until);
  void pass(Nanos time) { (void)wait(now_ + time); }
  /// A point at which the fiber may be preempted. Called with each system call, so that each is a step, and
  /// the process may die at it.
  void step();
  /// Stretches short sleeps of polling fibers while nothing happens to their process.
  Nanos stretched(Nanos sleep);

  void wake(Fiber&);
  /// Stops of a process may overlap: it continues when the last of them ends.
  void stop(Process&);
  void go_on(Process&);
  /// Its threads run no more. The caller handles everything else about its end.
  void kill(Process& p) { p.dead = true; }
  /// Number of threads of the process that have not ended.
  std::size_t alive(const Process&) const;

  /// Runs until no events are left, `done` returns true, or the time is reached.
  void run(Nanos until, const std::function<bool()>& done);

  /// Adds a line to the log of events, which is hashed, and printed if `tracing`.
  void note(std::string_view what, std::int64_t a = 0, std::int64_t b = 0, std::int64_t c = 0);
  std::uint64_t digest() const { return digest_; }
  std::uint64_t events() const { return events_; }
  bool tracing = false;
  Nanos most_latency = 20 * kMicro;  ///< delay from a wake-up to running
  double preempted = 0.01;           ///< share of steps at which another fiber runs

 private:
  struct Event {
    Nanos when;
    std::uint64_t order;
    std::function<void()> f;
    bool operator<(const Event& o) const { return when != o.when ? when > o.when : order > o.order; }
  };
  void resume(Fiber&, std::uint64_t wait);
  void back_to_world();
  void load(Fiber&);
  static void enter();

  Random random_;
  Nanos now_ = 0;
  std::uint64_t order_ = 0, events_ = 0, digest_ = 0xcbf29ce484222325;
  std::priority_queue<Event> queue_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<std::pair<Fiber*, std::uint64_t>> held_;  // fibers of stopped processes
  explore::Context own_;
  Fiber* running_ = nullptr;
  Fiber* loaded_ = nullptr;
};

/// The current world; nullptr: calls go to the real system.
inline World* world = nullptr;
/// The process of the running fiber.
inline Process& self() { return *world->running()->process; }
inline bool simulated() { return world && world->running(); }

}  // namespace simulate
