// The machine on which explored programs run: fibers, atomic operations, futexes, time. Its front end is
// hooks.cc, which the compiler calls for each access; another front end, for example for compiled GPU code,
// would call the same functions. Used by explored programs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tests/explore/engine/fault.h"
#include "tests/explore/engine/fiber.h"
#include "tests/explore/engine/memory.h"
#include "tests/explore/engine/program.h"
#include "tests/explore/engine/search.h"

namespace explore {

/// How an execution ended.
enum class End : std::uint8_t { well, violation, redundant };

/// Runs executions of a program, each with the choices of a search.
class Machine {
 public:
  static Machine& the();
  /// The machine while fibers run; otherwise nullptr.
  static Machine* running;
  End run(Program&, Search&, const Fault* fault, bool trace);

  // See program.h.
  void* place(std::size_t bytes, const char* label, bool late, std::size_t alignment);
  void* place_sparse(std::size_t bytes, const char* label);
  void label(const void* p, std::size_t bytes, const char* text, bool late);
  void fail(std::string what);
  void kill(int fiber);
  int current() const { return current_; }
  bool holds(const void* p) const { return memory_.holds(p); }

  /// Lets other fibers run; returns when a polled value has changed, or when the fiber should go down its
  /// ladder of waits.
  void yield();
  /// Sleeps for an unspecified time.
  void nap();
  std::int64_t now() { return time_ += 1; }

  // Results of the last execution.
  const std::string& violation() const { return violation_; }
  const std::vector<Event>& events() const { return events_; }
  int missed_wakes() const { return missed_; }
  std::uint64_t steps() const { return steps_; }

 private:
  friend class Operations;
  struct Seen {
    const void* site;
    int location, store;
    int looked;  // value of the fiber's mark when it last polled this
  };
  enum class State : std::uint8_t { ready, asleep, awaiting, napping, ended };
  struct Fiber {
    Context context;
    Knowledge knows;
    State state = State::ended;
    Footprint next;
    Kept<Seen> seen;  // loads since the fiber last saw something new
    std::int16_t last_read[kLocations];
    std::uint64_t news = 0, yielded = 0, awaited = 0;
    int idle = 0, yields = 0, naps = 0, mark = 0;
    int on = -1;  // location of the futex word while asleep
    std::uint32_t expected = 0;
    bool timed = false, spins = false, timed_out = false;
  };
  Machine();
  static void enter();
  void step(Footprint&);
  int choose();
  void dispatch();
  bool unblock();
  FiberSet enabled() const;
  bool is_old(const Seen&) const;
  bool has_changed(const Fiber&) const;
  [[noreturn]] void leave(End);
  Fiber& me() { return fibers_[current_]; }
  void news(Fiber&);
  void forget_older();
  void await(bool spins);

  void note(const char* what, Order, const std::string& where, std::uint64_t value, const void* site,
            bool old);

  Memory memory_;
  Context main_;
  Fiber fibers_[kFibers];
  Program* program_ = nullptr;
  Search* search_ = nullptr;
  const Fault* fault_ = nullptr;
  Rules rules_;
  int count_ = 0, current_ = 0, most_locations_ = 0;
  bool starting_ = false, tracing_ = false;
  End end_ = End::well;
  std::size_t used_ = 0, used_sparse_ = 0;
  std::int64_t time_ = 0;
  std::uint64_t steps_ = 0;
  int quiet_ = 0, spurious_ = 0, missed_ = 0;
  std::string violation_;
  std::vector<Event> events_;
};

}  // namespace explore
