// The world of a run: virtual time, what happens in it in order, processes, and their threads, which are
// fibers of the one thread that there is. Used by everything that is simulated.
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

using Nanos = std::int64_t;  // of virtual time, since its beginning
inline constexpr Nanos kMicro = 1000, kMilli = 1000 * kMicro, kSecond = 1000 * kMilli, kNever = INT64_MAX;

/// A process of the job, with the clock of its host.
struct Process {
  int rank = 0, host = 0, pid = 0;
  Nanos clock_offset = 0;   ///< what its clocks show at the beginning
  double clock_rate = 1.0;  ///< seconds of its clock in one of the world's
  bool dead = false;
  int stops = 0;  ///< in force: it stands still while there is one
  int calm = 0;   ///< doublings of short sleeps, while nothing happens to it
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
  std::uint64_t waits = 0;   // how often it has waited: an end of an earlier wait is none of this one
  bool woken = false, over = false;
  int undivided = 0;  ///< objects of the program that it is making: no step is taken meanwhile
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
  /// The fiber that runs; nullptr: the world itself.
  Fiber* running() const { return running_; }

  /// Calls f at that time, or next if it is over. In order of time, then of these calls.
  void at(Nanos when, std::function<void()> f);
  void after(Nanos wait, std::function<void()> f) { at(now_ + wait, std::move(f)); }
  Fiber& spawn(Process&, std::string name, std::function<void()> body);

  // Of the running fiber.
  /// Until wake(), true, or `until`, false.
  bool wait(Nanos until);
  void pass(Nanos time) { (void)wait(now_ + time); }
  /// It may lose its processor here. Called with each system call, which makes each a step that can be its
  /// last.
  void step();
  /// Short sleeps of who looks again and again are stretched while nothing happens to its process.
  Nanos stretched(Nanos sleep);

  void wake(Fiber&);
  /// Stops of a process may overlap: it goes on with the last of them.
  void stop(Process&);
  void go_on(Process&);
  /// Its threads run no more. What else belongs to its end is its caller's affair.
  void kill(Process& p) { p.dead = true; }
  /// Threads of the process that have not ended.
  std::size_t alive(const Process&) const;

  /// Runs until nothing more happens, `done` says so, or it is that time.
  void run(Nanos until, const std::function<bool()>& done);

  /// One line of the log of events, which is hashed, and printed if `tracing`.
  void note(std::string_view what, std::int64_t a = 0, std::int64_t b = 0, std::int64_t c = 0);
  std::uint64_t digest() const { return digest_; }
  std::uint64_t events() const { return events_; }
  bool tracing = false;
  Nanos most_latency = 20 * kMicro;  ///< from a wake-up to running
  double preempted = 0.01;           ///< steps at which another fiber runs

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
  std::vector<std::pair<Fiber*, std::uint64_t>> held_;  // of processes that are stopped
  explore::Context own_;
  Fiber* running_ = nullptr;
  Fiber* loaded_ = nullptr;
};

/// The world that there is; nullptr: calls are the system's.
inline World* world = nullptr;
/// Of the fiber that runs.
inline Process& self() { return *world->running()->process; }
inline bool simulated() { return world && world->running(); }

}  // namespace simulate
