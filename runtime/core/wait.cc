// The wait ladder: pause-spin while every rank has a core, then yield, then sleep on the counter's low half.
// Used by everything that waits for another rank.
#include "runtime/core/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace ouro {
namespace {

constexpr auto kYieldFor = std::chrono::microseconds(200);
constexpr long kParkNs = 1'000'000;  // one slice; bounds a missed wake-up

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The futex word is the low half of the 64-bit value (little-endian targets only, as the wire formats are).
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
std::uint32_t* futex_word(Counter& c) { return reinterpret_cast<std::uint32_t*>(&c.value); }

void park(Counter& c, std::uint64_t seen) {
  std::atomic_ref sleepers(c.sleepers);
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (std::atomic_ref(c.value).load(std::memory_order_seq_cst) == seen) {
    timespec slice{0, kParkNs};
    syscall(SYS_futex, futex_word(c), FUTEX_WAIT, static_cast<std::uint32_t>(seen), &slice, nullptr, 0);
  }
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

void wake_sleepers(Counter& c) {
  syscall(SYS_futex, futex_word(c), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

Status Waiter::slow(Counter& c, std::uint64_t at_least) {
  const auto start = Clock::now();
  auto next_look = start + kLookEvery;
  std::atomic_ref abort(*const_cast<std::uint32_t*>(abort_));
  for (std::uint64_t i = 1;; ++i) {
    const std::uint64_t seen = load(c);
    if (seen >= at_least) return {};
    if (i % 64 != 0 && spin_.count() > 0) {
      relax();
      continue;
    }
    const auto now = Clock::now();
    if (now >= next_look || abort.load(std::memory_order_acquire) != 0) {
      if (load(c) >= at_least) return {};  // what was published before a death still counts
      OURO_TRY(look(now - start));
      next_look = now + kLookEvery;
    }
    if (now - start < spin_) continue;
    if (now - start < spin_ + kYieldFor)
      sched_yield();
    else
      park(c, seen);
  }
}

}  // namespace ouro
