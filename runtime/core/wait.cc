// The wait ladder: pause-spin while every rank has a core, then yield, then sleep on the word's low half.
// Used by everything that waits for another rank.
#include "runtime/core/wait.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <utility>

namespace ouro {
namespace {

// Yields per wait before it sleeps. Each yield puts this thread a whole time slice behind all other threads
// of its core, including those of other programs and of the lowest scheduling class. After some tens of
// yields this adds up to milliseconds, and every rank that waits for this one is delayed by as much.
constexpr int kYields = 50;
constexpr int kTightPolls = 64;
constexpr std::uint64_t kPausesPerClock = 32;  // a pause takes 10 to 50 ns
constexpr long kParkNs = 1'000'000;            // one slice; bounds a missed wake-up

// Factor on the spin time of waits for another host: its data arrives later than a neighbour's, and sleeping
// on a socket costs 10 us and more. The limit is for hosts on which a wake-up takes long.
constexpr int kFarther = 20;
constexpr std::chrono::microseconds kFarthest{2000};
std::chrono::microseconds spin_for(const Patience& p, bool by_engine) {
  return by_engine ? std::max(p.spin, std::min(kFarther * p.spin, kFarthest)) : p.spin;
}

thread_local bool serves_stream = false;
thread_local Question question;
thread_local int asking = 0;
std::atomic<int> cores_lent{0}, cores_borrowed{0};
/// Resets both in a forked child: the threads that lend and borrow are the parent's.
[[maybe_unused]] const int forgets_cores =
    pthread_atfork(nullptr, nullptr, [] { cores_lent.store(0), cores_borrowed.store(0); });

/// Decides whether a wait may keep a core busy. If cores are scarce, a stream thread that spins takes the
/// core from a caller that computes, and one that yields takes turns with it, a time slice each. A stream
/// thread therefore spins only while it can borrow the core of a waiting caller (LentCore). Otherwise it
/// sleeps at once; when woken, it runs ahead of the thread that computes.
class Busy {
 public:
  explicit Busy(bool crowded) : borrows_(crowded && serves_stream) {}
  ~Busy() { give_back(); }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  bool may() {
    if (!borrows_) return true;
    if (!std::exchange(has_, true)) cores_borrowed.fetch_add(1, std::memory_order_relaxed);
    if (cores_borrowed.load(std::memory_order_relaxed) <= cores_lent.load(std::memory_order_relaxed))
      return true;
    give_back();
    return false;
  }

 private:
  void give_back() {
    if (std::exchange(has_, false)) cores_borrowed.fetch_sub(1, std::memory_order_relaxed);
  }
  const bool borrows_;
  bool has_ = false;
};

/// Returns the futex of a word, which is its lower half, as a futex has 32 bits. Only the kernel reads this
/// half of a word alone; every change of a word that a thread waits for changes this half.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half of a word comes first");
void* low_half(std::uint64_t* word) { return word; }

void park(Signal s, std::uint64_t seen) {
  std::atomic_ref sleepers(*s.sleepers);
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (std::atomic_ref(*s.word).load(std::memory_order_seq_cst) == seen) {
    timespec slice{0, kParkNs};
    syscall(SYS_futex, low_half(s.word), FUTEX_WAIT, static_cast<std::uint32_t>(seen), &slice, nullptr, 0);
  }
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // "yield" takes one cycle on cores without SMT, "isb" 10 to 40 ns
#endif
}

void wake_sleepers(Signal s) {
  syscall(SYS_futex, low_half(s.word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}
void wake_sleepers(Counter& c) { wake_sleepers({&c.value, &c.sleepers}); }

void serve_stream() { serves_stream = true; }
bool serving_stream() { return serves_stream; }
LentCore::LentCore() {
  if (!serves_stream) cores_lent.fetch_add(1, std::memory_order_relaxed);
}
LentCore::~LentCore() {
  if (!serves_stream) cores_lent.fetch_sub(1, std::memory_order_relaxed);
}

void wait_patiently(Counter& c, std::uint64_t at_least) {
  for (int i = 0;; ++i) {
    const std::uint64_t now = load(c);
    if (now >= at_least) return;
    if (i < kYields)
      sched_yield();
    else
      park({&c.value, &c.sleepers}, now);
  }
}

Question ask_while_waiting(Question q) { return std::exchange(question, q); }
bool inside_question() { return asking > 0; }
Status Waiter::ask_and_check(Clock::duration elapsed) {
  if (question.ask) {
    struct Asking {
      Asking() { ++asking; }
      ~Asking() { --asking; }
    } const now;
    OURO_TRY(question.ask(question.data));
  }
  return check(elapsed);
}

Status Waiter::until(Signal s, std::uint32_t at_least) {
  return climb(
      s, [at_least](std::uint64_t seen) { return reached(static_cast<std::uint32_t>(seen), at_least); });
}
Status Waiter::until_counted(Counter& c, std::uint64_t at_least) {
  return climb({&c.value, &c.sleepers}, [at_least](std::uint64_t seen) { return seen >= at_least; });
}

template <class There>
Status Waiter::climb(Signal s, There there) {
  std::atomic_ref word(*s.word);
  bool spinning = patience_.spin.count() > 0;
  // Most waits are shorter than one pause or one clock read.
  const auto here = [&] { return there(word.load(std::memory_order_acquire)); };
  if (spinning) {
    for (int i = kTightPolls; i > 0; --i)
      if (here()) return {};
  }
  Busy busy(patience_.crowded);
  if (!spinning) {
    for (int i = patience_.polls; i > 0; --i, relax())
      if (here()) return {};
    if (busy.may()) sched_yield();
  }
  const auto start = Clock::now();
  auto next_check = start + kCheckEvery;
  std::atomic_ref abort(*const_cast<std::uint32_t*>(abort_));
  int yields = 0;
  for (std::uint64_t i = 1;; ++i) {
    const std::uint64_t seen = word.load(std::memory_order_acquire);
    if (there(seen)) return {};
    if (spinning && i % kPausesPerClock != 0) {
      relax();
      continue;
    }
    const auto now = Clock::now();
    if (now >= next_check || abort.load(std::memory_order_acquire) != 0) {
      // Data that a rank published before its death still counts.
      if (here()) return {};
      OURO_TRY(ask_and_check(now - start));
      next_check = now + kCheckEvery;
    }
    const bool may = busy.may();
    spinning = may && now - start < patience_.spin;
    if (spinning)
      relax();
    else if (may && yields++ < kYields)
      sched_yield();
    else
      park(s, seen);
  }
}

Status Waiter::until_driven(Counter& c, std::uint64_t at_least, bool by_engine) {
  struct Driving {
    explicit Driving(ProgressEngine& p) : engine(p) { engine.enter(); }
    ~Driving() { stop(); }
    void stop() {
      if (on) engine.leave();
      on = false;
    }
    ProgressEngine& engine;
    bool on = true;
  } driving(*engine_);
  const Signal signal{&c.value, &c.sleepers};
  const auto start = Clock::now();
  auto next_check = start + kCheckEvery;
  std::atomic_ref abort(*const_cast<std::uint32_t*>(abort_));
  const auto spin = spin_for(patience_, by_engine);
  Busy busy(patience_.crowded);
  int yields = 0;
  for (;;) {
    const std::uint64_t seen = load(c);
    if (seen >= at_least) return {};
    if (driving.on) {
      engine_->progress();
      if (load(c) >= at_least) return {};
    }
    const auto now = Clock::now();
    if (now >= next_check || abort.load(std::memory_order_acquire) != 0) {
      if (load(c) >= at_least) return {};
      OURO_TRY(ask_and_check(now - start));
      next_check = now + kCheckEvery;
    }
    const bool may = busy.may();
    if (may && now - start < spin) {
      relax();
    } else if (may && yields++ < kYields) {
      sched_yield();
    } else if (by_engine) {
      engine_->rest(std::chrono::microseconds(kParkNs / 1000));
    } else {
      driving.stop();  // another rank of this host advances the counter, and the engine's own thread drives
                       // the rest
      park(signal, seen);
    }
  }
}

}  // namespace ouro
