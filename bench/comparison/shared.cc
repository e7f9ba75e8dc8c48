// A file mapping with a sense-free barrier: a generation counter that is also the futex word.
// Used by the harness of all peers.
#include "bench/comparison/shared.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ouro::compare {
namespace {

constexpr std::int64_t kSpinNs = 50'000, kYieldNs = 2'000'000;  // then a futex
constexpr int kPausesPerLook = 64;
constexpr timespec kSlice{0,
                          20'000'000};  // a sleeper checks at this interval, even if its wake-up was missed

long futex(std::atomic<std::uint32_t>& word, int op, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), op, value, timeout, nullptr, 0);
}

}  // namespace

struct Shared::Page {
  alignas(128) std::atomic<std::uint32_t> arrived;
  alignas(128) std::atomic<std::uint32_t> generation;
  alignas(128) std::atomic<std::uint32_t> sleepers;
  alignas(128) std::int64_t released_ns;
  alignas(128) std::byte id[kIdBytes];
  struct alignas(128) Slot {
    std::int64_t value;
  } slots[kMaxRanks];
};

std::int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

Shared::~Shared() {
  if (page_) munmap(page_, bytes_);
}

Error Shared::open(const std::string& path, int rank, int ranks) {
  if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks)
    return "rank or number of ranks out of range";
  rank_ = rank;
  ranks_ = ranks;
  bytes_ = sizeof(Page) + static_cast<std::size_t>(ranks + 1) * kMaxSamples * sizeof(std::int64_t);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return path + ": " + std::strerror(errno);
  // Every rank sets the same length; a new file is all zero, which is the barrier's initial state.
  const bool sized = ftruncate(fd, static_cast<off_t>(bytes_)) == 0;
  void* at = sized ? mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  const int why = errno;
  ::close(fd);
  if (at == MAP_FAILED) return path + ": " + std::strerror(why);
  page_ = static_cast<Page*>(at);
  barrier(Waiting::sleep);
  if (rank == 0) unlink(path.c_str());
  return {};
}

void Shared::barrier(Waiting how) {
  Page& p = *page_;
  const std::uint32_t before = p.generation.load(std::memory_order_acquire);
  if (p.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(ranks_)) {
    p.arrived.store(0, std::memory_order_relaxed);  // no rank can arrive again before the generation changes
    p.released_ns = now_ns();
    p.generation.store(before + 1, std::memory_order_seq_cst);  // pairs with the loads below
    // Sequentially consistent with the sleeper's own pair: either this rank sees the sleeper, or the sleeper
    // sees the new generation.
    if (p.sleepers.load(std::memory_order_seq_cst)) futex(p.generation, FUTEX_WAKE, kMaxRanks, nullptr);
    return;
  }
  auto here = [&] { return p.generation.load(std::memory_order_acquire) != before; };
  if (how != Waiting::sleep) {
    const std::int64_t begin = now_ns(), until_yield = begin + (how == Waiting::spin ? kSpinNs : 0);
    while (now_ns() < until_yield)
      for (int i = 0; i < kPausesPerLook; ++i) {
        if (here()) return;
        __builtin_ia32_pause();
      }
    while (now_ns() < until_yield + kYieldNs) {
      if (here()) return;
      sched_yield();
    }
  }
  p.sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (p.generation.load(std::memory_order_seq_cst) == before)
    futex(p.generation, FUTEX_WAIT, before, &kSlice);
  p.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

std::int64_t Shared::released_ns() const { return page_->released_ns; }

template <class Fold>
std::int64_t Shared::fold(std::int64_t mine, Waiting how, Fold fold) {
  page_->slots[rank_].value = mine;
  barrier(how);
  std::int64_t all = page_->slots[0].value;
  for (int r = 1; r < ranks_; ++r) all = fold(all, page_->slots[r].value);
  barrier(how);  // the slots may be written again
  return all;
}

std::int64_t Shared::max(std::int64_t mine, Waiting how) {
  return fold(mine, how, [](std::int64_t a, std::int64_t b) { return std::max(a, b); });
}

std::int64_t Shared::sum(std::int64_t mine, Waiting how) {
  return fold(mine, how, [](std::int64_t a, std::int64_t b) { return a + b; });
}

std::int64_t* Shared::samples(int row) {
  return reinterpret_cast<std::int64_t*>(page_ + 1) + static_cast<std::size_t>(row) * kMaxSamples;
}

std::byte* Shared::id() { return page_->id; }

}  // namespace ouro::compare
