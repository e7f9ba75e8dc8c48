// Counters in shared memory and the one way to wait for them: spin, yield, park on a futex, always bounded.
// Used by links, staging buffers, the host executor and messages. Plain data, so that a segment can hold it.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

#include "runtime/core/status.h"

namespace ouro {

using Clock = std::chrono::steady_clock;

/// A count that only grows, written by one rank and read by others; two lines apart from its neighbours.
struct alignas(128) Counter {
  std::uint64_t value;
  std::uint32_t sleepers;  // how many wait in the kernel; the writer wakes them only if there are any
};

/// Pairs with publish(): what was written before it is visible after this load.
inline std::uint64_t load(const Counter& c) {
  return std::atomic_ref(const_cast<std::uint64_t&>(c.value)).load(std::memory_order_acquire);
}
void wake_sleepers(Counter&);
/// Pairs with load(). A sleeper that registers at this very moment may be missed: it sleeps in slices of 1
/// ms, which is cheaper than a full fence on each publication.
inline void publish(Counter& c, std::uint64_t v) {
  std::atomic_ref(c.value).store(v, std::memory_order_release);
  if (std::atomic_ref(c.sleepers).load(std::memory_order_relaxed) != 0) wake_sleepers(c);
}
inline void bump(Counter& c) {
  std::atomic_ref(c.value).fetch_add(1, std::memory_order_release);
  if (std::atomic_ref(c.sleepers).load(std::memory_order_relaxed) != 0) wake_sleepers(c);
}

/// A word whose low half is a serial number that somebody waits for, and the word that says whether anybody
/// sleeps on it. Programs load and store it whole; only the kernel looks at 32 bits of it, to sleep on.
struct Signal {
  std::uint64_t* word;
  std::uint32_t* sleepers;
};
/// Serial numbers wrap: `now` has come to `at_least` if the difference, as a signed number, is not negative.
/// Whoever compares them makes sure that they never lie 2^31 or more apart.
inline bool reached(std::uint32_t now, std::uint32_t at_least) {
  return static_cast<std::int32_t>(now - at_least) >= 0;
}
/// Pairs with an acquiring load of `word`, which the caller has stored to.
void wake_sleepers(Signal);

/// One pause of the processor, 10 to 50 ns, for loops that look at shared memory.
void relax();

/// Waits for c >= at_least between threads of one process, where what is waited for ends by itself.
void wait_patiently(Counter& c, std::uint64_t at_least);

/// What moves counters that no other thread or process moves by itself: those of links between hosts. Any
/// thread may call it.
class ProgressEngine {
 public:
  virtual ~ProgressEngine() = default;
  /// Moves what can move, without waiting.
  virtual void progress() = 0;
  /// Sleeps until something may move, `at_most` that long.
  virtual void rest(std::chrono::microseconds at_most) = 0;
  /// From now on, until it leaves, the caller moves things; a thread of the engine's own keeps out of its
  /// way.
  virtual void enter() = 0;
  virtual void leave() = 0;
};

/// From now on the calling thread is one of a stream's: it works beside callers who have work of their own.
void serve_stream();
/// Whether it is: what is queued on that stream does not begin before the caller returns.
bool serving_stream();

/// While it lives the calling thread waits for a stream: one thread of a stream may spin in its place.
class LentCore {
 public:
  LentCore();
  ~LentCore();
  LentCore(const LentCore&) = delete;
  LentCore& operator=(const LentCore&) = delete;
};

/// What a thread is asked while it waits for others; a failure that it returns ends the wait.
struct Question {
  Status (*ask)(void*) = nullptr;
  void* data = nullptr;
};
/// The question of the calling thread; returns the one before.
Question ask_while_waiting(Question);
/// Whether the caller is called by such a question: below it on the stack an operation waits.
bool inside_question();

/// How long waiters keep a core before they give it to others.
struct Patience {
  std::chrono::microseconds spin{0};  ///< before they yield; 0: they look `polls` times
  /// Pauses. Ranks that share cores look a few times before they yield: a rank on another core answers within
  /// a hand-off, and a context switch costs six of those. About 250 ns.
  int polls = 10;
  bool crowded = false;  ///< there are too few cores for callers and streams to spin at the same time
  /// Where each rank can have one.
  static constexpr Patience with_own_cores() { return {.spin = std::chrono::microseconds(50)}; }
};

/// How one operation waits. `look` is asked from time to time, and at once when the abort word is raised:
/// a failure that it returns ends the wait. There is no wait without one.
class Waiter {
 public:
  Waiter(const std::uint32_t* abort, const Patience& patience) : abort_(abort), patience_(patience) {}
  virtual ~Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  /// Waits drive `engine` from now on; nullptr: there is nothing to drive.
  void drive(ProgressEngine* engine) { engine_ = engine; }
  /// The waits that begin from now on. By whoever waits.
  void have(const Patience& patience) { patience_ = patience; }

  /// Returns when c >= at_least, or with the failure that ended the wait. `by_engine`: what is waited for can
  /// come through the progress engine only.
  Status until(Counter& c, std::uint64_t at_least, bool by_engine = false) {
    if (load(c) >= at_least) return {};
    if (engine_) return until_driven(c, at_least, by_engine);
    return until_counted(c, at_least);
  }
  /// Returns when the low half of the word has come to `at_least`, or with the failure that ended the wait.
  Status until(Signal, std::uint32_t at_least);

 protected:
  /// Called about every kLookEvery of waiting, `elapsed` after this wait began.
  virtual Status look(Clock::duration elapsed) = 0;
  static constexpr std::chrono::milliseconds kLookEvery{4};

 private:
  Status ask_and_look(Clock::duration elapsed);
  Status until_counted(Counter&, std::uint64_t at_least);
  Status until_driven(Counter&, std::uint64_t at_least, bool by_engine);
  /// `there`: whether the word, as it was seen, is what is waited for.
  template <class There>
  Status climb(Signal, There there);
  const std::uint32_t* abort_;
  Patience patience_;
  ProgressEngine* engine_ = nullptr;
};

}  // namespace ouro
