// Measurements between two ranks: questions on one control page, answers on the other. See peer_probe.h.
#include "runtime/context/peer_probe.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/calibration/stopwatch.h"

namespace ouro::rt {
namespace {

using kernels::CopyKind;

enum Task : std::uint32_t { handoff, read, pull, sleep };
constexpr std::uint32_t kRoundTrips = 16;
constexpr auto kPatience =
    std::chrono::microseconds(500);  // longest pause between two questions: pages may be touched meanwhile
constexpr auto kLongest = std::chrono::milliseconds(2);
constexpr auto kHeld =
    std::chrono::milliseconds(50);  // an invitation is kept for this long while another group wants to ask
constexpr auto kFallAsleep = std::chrono::microseconds(60);  // a core that waits for longer sleeps no deeper

/// Spins until done() is true; returns false if it is not before `end`.
template <class Done>
bool spin(Clock::time_point end, Done&& done) {
  for (std::uint32_t spins = 1; !done(); ++spins) {
    relax();
    if (spins % 64 == 0 && Clock::now() >= end) return false;
  }
  return true;
}

/// The half of a serial number that the futex uses: the first half (runtime/core/wait.cc).
void* low_half(const Shared<std::uint64_t>& word) { return const_cast<std::uint64_t*>(&word.value); }

/// The asker's private blocks: the answering process reads them.
struct Blocks {
  explicit Blocks(bool huge) : bytes(huge ? std::size_t{4} << 20 : ProbePage::kBytes) {
    void* const p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    whole = static_cast<std::byte*>(p);
    constexpr std::size_t kHuge = std::size_t{2} << 20;
    data = whole + (huge ? (kHuge - reinterpret_cast<std::uintptr_t>(p) % kHuge) % kHuge : 0);
    (void)::madvise(data, huge ? kHuge : bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::memset(data, 1, ProbePage::kBytes);
  }
  ~Blocks() {
    if (whole) ::munmap(whole, bytes);
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  std::size_t bytes;
  std::byte *whole = nullptr, *data = nullptr;
};

class PeerProbe final : public Probe {
 public:
  PeerProbe(ControlPage& mine, const ProbePage::Answer& answer, Clock::time_point end)
      : mine_(mine.probe), answer_(answer), first_serial_(std::uint64_t{mine.rank + 1} << 40), end_(end) {}

  std::optional<std::uint32_t> handoff() override {
    if (!ask(Task::handoff))
      return std::nullopt;  // the first answer may take longer, since the peer may have to arrive
    const Stopwatch watch;
    for (std::uint32_t i = 0; i < kRoundTrips; ++i)
      if (!ask(Task::handoff)) return std::nullopt;
    return watch.elapsed() / (2 * kRoundTrips);
  }
  std::optional<CopyCost> copy(CopyKind kind, std::size_t bytes) override {
    if (bytes > ProbePage::kBytes || gave_up_ || !small_.data) return std::nullopt;
    const Stopwatch watch;
    kernels::copy_as(kind, mine_.block, small_.data, bytes);
    const std::uint32_t wrote = watch.stored();
    if (!ask(Task::read, bytes)) return std::nullopt;
    return CopyCost{wrote, answer_.took.get()};
  }
  std::optional<std::uint32_t> pull(std::size_t bytes, bool huge_pages) override {
    const Blocks& from = huge_pages ? huge_ : small_;
    if (bytes > ProbePage::kBytes || gave_up_ || !from.data) return std::nullopt;
    std::memset(from.data, ++fill_, bytes);  // as if an application had just written it
    if (!ask(Task::pull, bytes, from.data)) return std::nullopt;
    const std::uint32_t took = answer_.took.get();
    return took ? std::optional(took) : std::nullopt;
  }
  std::optional<CopyCost> large(CopyKind) override {
    return std::nullopt;
  }  // its block is on a control page, which is too small
  std::optional<CopyCost> together(CopyKind) override {
    return std::nullopt;
  }  // each rank writes to its own page only
  std::optional<CopyCost> ring(CopyKind) override { return std::nullopt; }
  std::optional<std::uint32_t> pull_together() override { return std::nullopt; }
  std::optional<Accesses> accesses(std::size_t) override { return std::nullopt; }  // for the same reason
  std::optional<std::uint32_t> large_local() override { return std::nullopt; }     // likewise
  std::optional<std::uint32_t> context_switch() override { return std::nullopt; }
  std::optional<std::uint32_t> wake() override {
    if (!ask(Task::sleep)) return std::nullopt;
    for (const auto asleep = Clock::now() + kFallAsleep; Clock::now() < asleep;) relax();
    bool slept = false;
    const Stopwatch watch;
    if (!ask(Task::handoff, 0, nullptr, &slept) || !slept) return std::nullopt;
    return watch.elapsed();
  }

 private:
  /// Asks one question and waits for its answer. woken: wakes the peer, which may sleep; set to
  /// whether it slept.
  bool ask(Task task, std::size_t bytes = 0, const std::byte* from = nullptr, bool* woken = nullptr) {
    if (gave_up_) return false;
    ProbePage::Question& q = mine_.question;
    constexpr auto relaxed = std::memory_order_relaxed;
    q.task.set(task, relaxed), q.bytes.set(static_cast<std::uint32_t>(bytes), relaxed);
    q.from.set(reinterpret_cast<std::uint64_t>(from), relaxed);
    // Serial numbers differ between ranks, because the answering rank has one word for all that ask.
    const std::uint64_t serial = std::max(q.serial.get(relaxed), first_serial_) + 1;
    q.serial.set(serial);  // pairs with answer()
    if (woken) *woken = ::syscall(SYS_futex, low_half(q.serial), FUTEX_WAKE, 1, nullptr, nullptr, 0) == 1;
    std::uint64_t answer = 0;
    const bool came = spin(end_, [&] {
      answer = answer_.serial.get();
      return answer >> 1 == serial || (met_ && answer & 1);
    });
    met_ = came && answer == serial << 1;
    gave_up_ = !met_;
    return met_;
  }

  ProbePage& mine_;
  const ProbePage::Answer& answer_;
  const std::uint64_t first_serial_;
  const Clock::time_point end_;
  const Blocks small_{false}, huge_{true};
  bool met_ = false, gave_up_ = false;  // met: the peer has arrived, and had not left when it last answered
  unsigned char fill_ = 0;
};

}  // namespace

bool PeerProbes::invite(const ProbeMeeting& at, const ControlPage& peer,
                        const std::function<bool(int)>& is_dead) {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (holder_ != 0 && (measures_ || now - since_ < kHeld)) return false;
  ProbePage::Question& q = mine_.probe.question;
  // A late peer that was asked to read the block may still be reading it.
  if (peer_ && q.task.get() == Task::read && !is_dead(static_cast<int>(peer_->rank))) {
    const std::uint64_t answer = peer_->probe.answer.serial.get();
    if (answer != q.serial.get() << 1 && (answer & 1) == 0) return false;
  }
  holder_ = at.group, since_ = now, peer_ = &peer;
  q.seq.set(0);  // of a group that has lost its turn
  q.group.set(at.group), q.rank.set(static_cast<std::uint32_t>(at.rank)), q.seq.set(at.seq);
  return true;
}

std::unique_ptr<Probe> PeerProbes::meet(std::uint64_t group, Clock::time_point end) {
  std::lock_guard lock(mutex_);
  if (holder_ != group) return nullptr;
  measures_ = true;
  return std::make_unique<PeerProbe>(mine_, peer_->probe.answer, end);
}

void PeerProbes::withdraw(std::uint64_t group) {
  std::lock_guard lock(mutex_);
  if (holder_ != group) return;
  mine_.probe.question.seq.set(0);
  holder_ = 0, measures_ = false;
}

void PeerProbes::answer(const ControlPage& asker, const ReadAsker& read, const ProbeMeeting& at) {
  const ProbePage::Question& q = asker.probe.question;
  ProbePage::Answer& a = mine_.probe.answer;
  const std::uint64_t from = q.seq.get();
  if (from == 0 || from > at.seq || q.group.get() != at.group ||
      q.rank.get() != static_cast<std::uint32_t>(at.rank))
    return;
  std::vector<std::byte> taken(ProbePage::kBytes);
  if (answers_.exchange(true, std::memory_order_acquire)) return;  // there is one word for all answers
  const Clock::time_point end = Clock::now() + kLongest;
  const auto work = [&]() -> std::uint32_t {
    const std::size_t bytes = std::min<std::size_t>(q.bytes.get(), taken.size());
    const Stopwatch watch;
    if (q.task.get() == Task::read) {
      std::memcpy(taken.data(), asker.probe.block, bytes);
    } else {
      if (!read(q.from.get(), taken.data(), bytes)) return 0;
    }
    return watch.elapsed();
  };
  /// The serial number of the next question; the last one again if there is none.
  const auto next = [&](std::uint64_t last) {
    Clock::time_point quiet{};
    std::uint64_t serial = last;
    for (std::uint32_t spins = 1; (serial = q.serial.get()) == last && q.seq.get() == from; ++spins) {
      relax();
      if (spins % 64 != 0) continue;
      const auto now = Clock::now();
      if (quiet == Clock::time_point{}) quiet = now;
      if (now >= end || now - quiet >= kPatience) break;
    }
    return serial;
  };
  std::uint64_t last = a.serial.get() >> 1;
  for (std::uint64_t serial; (serial = next(last)) != last; last = serial) {
    const std::uint32_t task = q.task.get();
    if (task == Task::read || task == Task::pull) a.took.set(work());
    a.serial.set(serial << 1);  // pairs with ask
    if (task != Task::sleep) continue;
    const timespec slice{0, 500'000};
    ::syscall(SYS_futex, low_half(q.serial), FUTEX_WAIT, static_cast<std::uint32_t>(serial), &slice, nullptr,
              0);
  }
  a.serial.set(last << 1 | 1);
  answers_.store(false, std::memory_order_release);
}

}  // namespace ouro::rt
