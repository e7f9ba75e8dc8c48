// Counters in shared memory and the one way to wait for them: spin, yield, sleep on a futex, always bounded.
// Used by links, staging buffers, the host executor and messages. Counters are plain data, so that a segment
// can hold them.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

#include "runtime/core/status.h"

namespace ouro {

using Clock = std::chrono::steady_clock;

/// A monotonic counter that one rank publishes, or several bump, and others read. It has two cache
/// lines to itself.
struct alignas(128) Counter {
  std::uint64_t value;
  std::uint32_t sleepers;  // threads asleep in the kernel; the writer wakes them only if there are any
};

/// Acquire load. Pairs with publish(): everything written before the publish is visible after this load.
inline std::uint64_t load(const Counter& c) {
  return std::atomic_ref(const_cast<std::uint64_t&>(c.value)).load(std::memory_order_acquire);
}
void wake_sleepers(Counter&);
/// Release store; pairs with load(). It may miss a sleeper that registers at the same moment. Sleepers
/// therefore sleep in slices of 1 ms, which is cheaper than a full fence on each publication.
inline void publish(Counter& c, std::uint64_t v) {
  std::atomic_ref(c.value).store(v, std::memory_order_release);
  if (std::atomic_ref(c.sleepers).load(std::memory_order_relaxed) != 0) wake_sleepers(c);
}
/// Adds 1; otherwise as publish(). For counters that several ranks write.
inline void bump(Counter& c) {
  std::atomic_ref(c.value).fetch_add(1, std::memory_order_release);
  if (std::atomic_ref(c.sleepers).load(std::memory_order_relaxed) != 0) wake_sleepers(c);
}

/// A 64-bit word whose low half is a serial number that threads wait for, and the number of threads that
/// sleep on it. Programs load and store the whole word; only the kernel reads the low 32 bits alone,
/// as a futex.
struct Signal {
  std::uint64_t* word;
  std::uint32_t* sleepers;
};
/// Whether serial number `now` has reached `at_least`. Serial numbers wrap around, so the sign of their
/// difference decides. Precondition: they are less than 2^31 apart.
inline bool reached(std::uint32_t now, std::uint32_t at_least) {
  return static_cast<std::int32_t>(now - at_least) >= 0;
}
/// Wakes all threads that sleep on the signal. Before this call the caller stores to `word` with release
/// order, which pairs with the waiters' acquire load.
void wake_sleepers(Signal);

/// One pause of the processor, 10 to 50 ns, for loops that poll shared memory.
void relax();

/// Waits until c >= at_least, without a deadline or any check for failures. Only for waits between threads of
/// one process for something that is certain to end.
void wait_patiently(Counter& c, std::uint64_t at_least);

/// Advances the counters of links between hosts, which no other thread or process advances by itself. Any
/// thread may call it.
class ProgressEngine {
 public:
  virtual ~ProgressEngine() = default;
  /// Makes all progress that is possible without waiting.
  virtual void progress() = 0;
  /// Sleeps until progress may be possible, for at most `at_most`.
  virtual void rest(std::chrono::microseconds at_most) = 0;
  /// From enter() to leave() the calling thread drives the engine, and the engine's own thread keeps out
  /// of its way.
  virtual void enter() = 0;
  virtual void leave() = 0;
};

/// Marks the calling thread as a stream's thread: it runs at the same time as callers that have work
/// of their own.
void serve_stream();
/// Whether the calling thread is a stream's thread. If so, no work queued on that stream begins before the
/// current work returns.
bool serving_stream();

/// Exists while the calling thread waits for a stream or for its turn: one stream thread may spin in its
/// place. It does nothing on stream threads.
class LentCore {
 public:
  LentCore();
  ~LentCore();
  LentCore(const LentCore&) = delete;
  LentCore& operator=(const LentCore&) = delete;
};

/// A callback that a thread runs while it waits for other ranks. A failure that it returns ends the wait.
struct Question {
  Status (*ask)(void*) = nullptr;
  void* data = nullptr;
};
/// Sets the callback of the calling thread and returns the previous one.
Question ask_while_waiting(Question);
/// Whether the caller runs inside such a callback, that is, while an operation further down the stack waits.
bool inside_question();

/// How long waiters keep a core before they give it up.
struct Patience {
  std::chrono::microseconds spin{0};  ///< before the first yield; 0: poll `polls` times instead
  /// The number of polls, each followed by a pause; they take about 250 ns in total. Ranks that share cores
  /// poll a few times before they yield: a rank on another core answers within one hand-off, and a context
  /// switch costs as much as six hand-offs.
  int polls = 10;
  bool crowded = false;  ///< too few cores for callers and streams to spin at the same time
  /// For ranks that can have a core each.
  static constexpr Patience with_own_cores() { return {.spin = std::chrono::microseconds(50)}; }
};

/// How operations wait for other ranks. A wait calls `check` periodically, and at once when the abort word is
/// set; a failure that `check` returns ends the wait. No wait runs without these checks.
class Waiter {
 public:
  Waiter(const std::uint32_t* abort, const Patience& patience) : abort_(abort), patience_(patience) {}
  virtual ~Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  /// Later waits drive `engine`; nullptr: there is nothing to drive.
  void drive(ProgressEngine* engine) { engine_ = engine; }
  /// Sets how long later waits keep a core before they give it up. Called by the waiting thread.
  void have(const Patience& patience) { patience_ = patience; }

  /// Waits until c >= at_least, or returns the failure that ended the wait. `by_engine`: only the progress
  /// engine can advance c.
  Status until(Counter& c, std::uint64_t at_least, bool by_engine = false) {
    if (load(c) >= at_least) return {};
    if (engine_) return until_driven(c, at_least, by_engine);
    return until_counted(c, at_least);
  }
  /// Waits until the low half of the word has reached `at_least`, or returns the failure that ended the wait.
  Status until(Signal, std::uint32_t at_least);

 protected:
  /// Called about every kCheckEvery during a wait, `elapsed` after the wait began.
  virtual Status check(Clock::duration elapsed) = 0;
  static constexpr std::chrono::milliseconds kCheckEvery{4};

 private:
  Status ask_and_check(Clock::duration elapsed);
  Status until_counted(Counter&, std::uint64_t at_least);
  Status until_driven(Counter&, std::uint64_t at_least, bool by_engine);
  /// Climbs the wait ladder (wait.cc) until `there`, called with the value of the word, returns true.
  template <class There>
  Status climb(Signal, There there);
  const std::uint32_t* abort_;
  Patience patience_;
  ProgressEngine* engine_ = nullptr;
};

}  // namespace ouro
