// Threads that answer each other. See pair_probe.h.
#include "runtime/calibration/pair_probe.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/calibration/stopwatch.h"
#include "runtime/core/thread.h"

namespace ouro::rt {
namespace {

using kernels::CopyKind;

constexpr std::size_t kHuge = std::size_t{2} << 20;
constexpr std::uint32_t kRoundTrips = 100;                   // per try, between cores
constexpr std::uint32_t kSwitches = 50;                      // round trips per try, on one core
constexpr auto kFallAsleep = std::chrono::microseconds(60);  // longer waits do not deepen the sleep of a core

/// Memory of this process, all on one kind of pages, and already touched.
class Block {
 public:
  /// Rounded up to whole huge pages, if `huge`.
  Block(std::size_t bytes, bool huge) : bytes_(huge ? bytes + 2 * kHuge : bytes) {
    void* const p = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    whole_ = static_cast<std::byte*>(p);
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    data_ = whole_ + (huge ? (kHuge - address % kHuge) % kHuge : 0);
    (void)::madvise(data_, huge ? (bytes + kHuge - 1) / kHuge * kHuge : bytes,
                    huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#ifdef MADV_POPULATE_WRITE
    (void)::madvise(data_, bytes, MADV_POPULATE_WRITE);  // takes a third of the time, from Linux 5.14 on
#endif
    std::memset(data_, 1, bytes);
  }
  ~Block() {
    if (whole_) ::munmap(whole_, bytes_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  std::byte* data() const { return data_; }
  explicit operator bool() const { return whole_ != nullptr; }

 private:
  std::byte *whole_ = nullptr, *data_ = nullptr;
  std::size_t bytes_;
};

/// Stores of 16 bytes, as compilers make them for loops over elements.
void store_to(std::byte* to, std::size_t bytes, std::uint32_t turn) {
  using Four [[gnu::vector_size(16), gnu::may_alias]] = std::uint32_t;
  const Four value = {turn, turn, turn, turn};
  for (std::size_t i = 0; i < bytes; i += sizeof value) *reinterpret_cast<volatile Four*>(to + i) = value;
}

void copy_by_pieces(std::byte* to, const std::byte* from) {
  for (std::size_t at = 0; at < kLargeBytes; at += kLargePiece) std::memcpy(to + at, from + at, kLargePiece);
}

/// Loads of 16 bytes, likewise.
void load_from(const std::byte* from, std::size_t bytes) {
  using Four [[gnu::vector_size(16), gnu::may_alias]] = std::uint32_t;
  Four sum = {};
  for (std::size_t i = 0; i < bytes; i += sizeof sum)
    sum += *reinterpret_cast<const volatile Four*>(from + i);
  asm volatile("" : : "r"(sum[0] + sum[1] + sum[2] + sum[3]));
}

bool go_to(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return cpu < 0;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set) == 0;
}

/// The blocks are on huge pages, which take a fifth of the time to map, except for one that is pulled.
struct Blocks {
  static constexpr std::size_t kMost = kernels::kCopySizes.back();
  const Block source{kLargeBytes, true}, source_small{kMost, false}, shared{kRingBytes, true},
      taken{kLargeBytes, true};
  explicit operator bool() const { return source && source_small && shared && taken; }
};
/// These are for the opposite direction at the same time: the peer's source, and the blocks that it is
/// written to and read into.
struct BlocksBack {
  const Block source{kLargeBytes, true}, shared{kRingBytes, true}, taken{kLargeBytes, true};
  explicit operator bool() const { return source && shared && taken; }
};

/// Sleeps until the word has changed, for at most a millisecond, so that no wake-up is missed for longer.
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  const timespec slice{0, 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, &slice, nullptr, 0);
}
/// Returns whether there was a sleeper.
bool wake_one(std::atomic<std::uint32_t>& word) {
  return ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0) == 1;
}

/// A word on a cache line of its own.
struct alignas(128) Word {
  std::atomic<std::uint32_t> value{0};
};

enum class Task : std::uint8_t {
  handoff,
  fill,
  write,
  read,
  pull,
  store,
  load,
  put,
  local,
  come,
  leave,
  sleep,
  stop
};

class PairProbe final : public Probe {
 public:
  explicit PairProbe(Clock::time_point end) : end_(end) {}
  ~PairProbe() override {
    if (!peer_.joinable()) return;
    task_.store(Task::stop, std::memory_order_relaxed);
    asked_.value.store(++serial_, std::memory_order_release);
    peer_.join();
  }

  Status start(int here, int there) {
    here_ = here;
    try {
      peer_ = Thread("ouro-calibrate", [this, there] { serve(there); });
    } catch (const std::exception& e) {
      return {Reason::resource, std::string("no thread to calibrate with: ") + e.what()};
    }
    // The new thread may begin on this core, and would wait for the end of a time slice.
    together_.store(true, std::memory_order_relaxed);
    const bool began = go_to(here) && await(answered_, 1);
    together_.store(false, std::memory_order_relaxed);
    if (!began || refused_)
      return {Reason::resource, "a hardware thread to calibrate with cannot be had, or others keep it busy"};
    return {};
  }

  std::optional<std::uint32_t> handoff() override {
    const Stopwatch watch;
    for (std::uint32_t i = 0; i < kRoundTrips; ++i)
      if (!ask(Task::handoff)) return std::nullopt;
    return watch.elapsed() / (2 * kRoundTrips);
  }

  std::optional<std::uint32_t> context_switch() override {
    if (here_ < 0) return std::nullopt;
    together_.store(true,
                    std::memory_order_relaxed);  // set before the first wait on one core, and until the last
    bool all = ask(Task::come) && took_ != 0;
    const Stopwatch watch;
    for (std::uint32_t i = 0; i < kSwitches && all; ++i) all = ask(Task::handoff);
    const std::uint32_t took = watch.elapsed() / (2 * kSwitches);
    all = ask(Task::leave) && all;
    together_.store(false, std::memory_order_relaxed);
    return all ? std::optional(took) : std::nullopt;
  }

  std::optional<std::uint32_t> wake() override {
    if (!ask(Task::sleep)) return std::nullopt;
    for (const auto asleep = Clock::now() + kFallAsleep; Clock::now() < asleep;) relax();
    const Stopwatch watch;
    task_.store(Task::handoff, std::memory_order_relaxed);
    asked_.value.store(++serial_, std::memory_order_release);
    const bool slept = wake_one(asked_.value);
    gave_up_ = !await(answered_, serial_);
    return slept && !gave_up_ ? std::optional(watch.elapsed()) : std::nullopt;
  }

  std::optional<CopyCost> copy(CopyKind kind, std::size_t bytes) override { return copy_to(0, kind, bytes); }

  std::optional<CopyCost> large(CopyKind kind) override {
    constexpr std::size_t kPlaces = 4 * kSlotOfTwo / kLargePiece;
    CopyCost sum{};
    std::optional<CopyCost> piece{sum};
    for (std::size_t i = 0; piece && i < kLargeBytes / kLargePiece; ++i) {
      taken_at_ = i * kLargePiece, shared_at_ = i % kPlaces * kLargePiece;
      if (piece = exchange(kind); piece) sum.write += piece->write, sum.read += piece->read;
    }
    taken_at_ = shared_at_ = 0;
    return piece ? std::optional(sum) : std::nullopt;
  }

  std::optional<CopyCost> ring(CopyKind kind) override {
    // Between far cores, for which a ring does not pay, a part of a lap gives the same result.
    constexpr std::uint32_t kLongest = 600'000;
    constexpr std::size_t kPieces = kRingBytes / kLargePiece, kEnough = 8;
    std::vector<std::uint32_t> writes, reads;
    const Stopwatch watch;
    for (std::size_t i = 0; i < kPieces && (i < kEnough || watch.elapsed() < kLongest); ++i) {
      const auto piece = copy_to(i * kLargePiece, kind, kLargePiece);
      if (!piece) return std::nullopt;
      writes.push_back(piece->write), reads.push_back(piece->read);
    }
    const auto median = [](std::vector<std::uint32_t>& times) {
      const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
      std::nth_element(times.begin(), middle, times.end());
      return *middle;
    };
    return CopyCost{median(writes), median(reads)};
  }

  std::optional<std::uint32_t> pull(std::size_t bytes, bool huge_pages) override {
    if (!need_blocks()) return std::nullopt;
    from_ = (huge_pages ? blocks_->source : blocks_->source_small).data(), bytes_ = bytes;
    std::memset(from_, static_cast<int>(serial_ & 0xFF), bytes);  // as if an application had just written it
    if (!ask(Task::pull) || took_ == 0) return std::nullopt;
    return took_;
  }

  std::optional<CopyCost> together(CopyKind kind) override {
    (void)exchange(kind);  // fetches the blocks into the caches
    return exchange(kind);
  }

  std::optional<std::uint32_t> large_local() override {
    if (!need_both()) return std::nullopt;
    return both(Task::local, [&] {
      copy_by_pieces(back_->taken.data(), blocks_->source.data());
      return true;
    });
  }

  std::optional<Accesses> accesses(std::size_t bytes) override {
    if (!need_both() || bytes > kLargeBytes) return std::nullopt;
    std::byte *const mine = blocks_->source.data(), *const others = back_->source.data(),
                     *const taken = back_->taken.data();
    const auto timed = [&](Task task, auto&& access) {
      return both(task, [&] {
        access();
        return true;
      });
    };
    const auto store = [&] { return timed(Task::store, [&] { store_to(mine, bytes, serial_); }); };
    const auto load = [&] { return timed(Task::load, [&] { load_from(mine, bytes); }); };
    from_ = mine, bytes_ = bytes;
    if (!store()) return std::nullopt;  // what is read next was written last by its owner
    const auto read = timed(Task::read, [&] { std::memcpy(taken, others, bytes); });
    const auto after_read = store(), stored = store();
    const auto put = timed(Task::put, [&] { std::memcpy(others, taken, bytes); });
    const auto after_put = load(), loaded = load();
    if (!read || !after_read || !stored || !put || !after_put || !loaded) return std::nullopt;
    return Accesses{{*after_read, *stored}, {*after_put, *loaded}};
  }

  std::optional<std::uint32_t> pull_together() override {
    if (!need_both()) return std::nullopt;
    const Blocks& b = *blocks_;
    from_ = b.source.data(), bytes_ = kLargePiece;
    std::memset(from_, static_cast<int>(serial_ & 0xFF), bytes_);
    if (!ask(Task::fill)) return std::nullopt;
    return both(Task::pull,
                [&] { return pull_into(back_->taken.data(), back_->source.data(), kLargePiece); });
  }

 private:
  /// The blocks are made on first use: a hand-off, which suffices to check a stored record, needs none.
  bool need_blocks() {
    if (gave_up_) return false;
    if (!blocks_) blocks_ = std::make_unique<Blocks>();
    return static_cast<bool>(*blocks_);
  }
  bool need_both() {
    if (!need_blocks()) return false;
    if (!back_) back_ = std::make_unique<BlocksBack>();
    return static_cast<bool>(*back_);
  }
  /// This core writes to a place of the shared block, and the other reads it.
  std::optional<CopyCost> copy_to(std::size_t place, CopyKind kind, std::size_t bytes) {
    if (!need_blocks()) return std::nullopt;
    from_ = blocks_->shared.data() + place, bytes_ = bytes;
    const Stopwatch watch;
    kernels::copy_as(kind, from_, blocks_->source.data(), bytes);
    const std::uint32_t wrote = watch.stored();
    if (!ask(Task::read)) return std::nullopt;
    return CopyCost{wrote, took_};
  }
  /// Each core writes and reads one piece for the other.
  std::optional<CopyCost> exchange(CopyKind kind) {
    if (!need_both()) return std::nullopt;
    const Blocks& b = *blocks_;
    kind_ = kind, from_ = b.shared.data() + shared_at_, bytes_ = kLargePiece;
    const auto wrote = both(Task::write, [&] {
      kernels::copy_as(kind, b.shared.data() + shared_at_, b.source.data() + taken_at_, kLargePiece);
      return true;
    });
    const auto read = both(Task::read, [&] {
      std::memcpy(back_->taken.data() + taken_at_, back_->shared.data() + shared_at_, kLargePiece);
      return true;
    });
    return wrote && read ? std::optional(CopyCost{*wrote, *read}) : std::nullopt;
  }
  /// Has the peer run a task. Returns false if it did not answer before the end; it will not be asked again.
  bool ask(Task task) { return begin(task) && finish(); }
  bool begin(Task task) {
    if (gave_up_) return false;
    task_.store(task, std::memory_order_relaxed);
    asked_.value.store(++serial_, std::memory_order_release);  // pairs with serve
    return true;
  }
  bool finish() {
    gave_up_ = !await(answered_, serial_);
    return !gave_up_;
  }
  /// Runs the peer's task and, at the same time, `own`; returns the mean of their times.
  template <class F>
  std::optional<std::uint32_t> both(Task task, F&& own) {
    if (!begin(task)) return std::nullopt;
    const Stopwatch watch;
    const bool done = own();
    const std::uint32_t took = watch.stored();
    if (!finish() || !done || took_ == 0) return std::nullopt;
    return took / 2 + took_ / 2 + (took & took_ & 1);
  }
  static bool pull_into(std::byte* to, std::byte* from, std::size_t bytes) {
    const iovec into{to, bytes}, out_of{from, bytes};
    return ::process_vm_readv(::getpid(), &into, 1, &out_of, 1, 0) == static_cast<ssize_t>(bytes);
  }
  /// Spins until the word has reached `serial`; returns false if it does not before the end.
  bool await(const Word& word, std::uint32_t serial) const {
    for (std::uint32_t spins = 1; !reached(word.value.load(std::memory_order_acquire), serial); ++spins) {
      together_.load(std::memory_order_relaxed) ? void(::sched_yield()) : relax();
      if (spins % 256 == 0 && Clock::now() >= end_) return false;
    }
    return true;
  }

  /// The peer's loop: it runs the tasks that it receives until one of them is to stop; after the end it waits
  /// for the prober to finish.
  void serve(int cpu) {
    refused_ = !go_to(cpu);
    bool sleeps = false;
    answered_.value.store(1, std::memory_order_release);
    for (std::uint32_t serial = 2;; ++serial) {
      if (std::exchange(sleeps, false)) sleep_on(asked_.value, serial - 1);
      while (!await(asked_, serial)) ::sched_yield();  // past the end
      const Task task = task_.load(std::memory_order_relaxed);
      if (task == Task::stop) return;
      if (task == Task::come || task == Task::leave)
        took_ = go_to(task == Task::come ? here_ : cpu) ? 1 : 0;
      else if (task == Task::sleep)
        sleeps = true;
      else if (task != Task::handoff)
        took_ = work(task);
      answered_.value.store(serial, std::memory_order_release);  // pairs with await
    }
  }
  /// Returns the time in nanoseconds; 0: the system refuses.
  std::uint32_t work(Task task) {
    const Blocks& b = *blocks_;
    std::byte* const taken = b.taken.data() + taken_at_;
    bool done = true;
    const Stopwatch watch;
    if (task == Task::read)
      std::memcpy(taken, from_, bytes_);
    else if (task == Task::write)
      kernels::copy_as(kind_, back_->shared.data() + shared_at_, back_->source.data() + taken_at_, bytes_);
    else if (task == Task::store)
      store_to(back_->source.data(), bytes_, turn_of_peer_++);
    else if (task == Task::load)
      load_from(back_->source.data(), bytes_);
    else if (task == Task::put)
      std::memcpy(from_, taken, bytes_);
    else if (task == Task::local)
      copy_by_pieces(b.taken.data(), back_->source.data());
    else if (task == Task::fill)
      std::memset(back_->source.data(), 1, kLargePiece);
    else
      done = pull_into(taken, from_, bytes_);
    return done ? watch.stored() : 0;
  }

  const Clock::time_point end_;
  Word asked_, answered_;
  std::uint32_t serial_ = 1;  // number of the newest task
  bool gave_up_ = false;
  int here_ = -1;                      // the prober's hardware thread; written before the peer starts
  std::atomic<bool> together_{false};  // both are on one core, so a waiter has to yield
  bool refused_ = false;               // written by the peer before its first answer
  // Written before a task is published and read by the peer after it; a late peer may find `stop` already.
  std::atomic<Task> task_{Task::handoff};
  std::unique_ptr<Blocks> blocks_;
  std::unique_ptr<BlocksBack> back_;
  std::byte* from_ = nullptr;
  std::size_t bytes_ = 0, taken_at_ = 0, shared_at_ = 0;
  CopyKind kind_{};
  std::uint32_t took_ = 0;          // written by the peer before an answer
  std::uint32_t turn_of_peer_ = 0;  // used by the peer only
  Thread peer_;
};

}  // namespace

Result<std::unique_ptr<Probe>> make_pair_probe(int here, int there, Clock::time_point end) {
  auto probe = std::make_unique<PairProbe>(end);
  OURO_TRY(probe->start(here, there));
  return std::unique_ptr<Probe>(std::move(probe));
}

}  // namespace ouro::rt
