// Rounds over memory that all ranks of one host share, with flags alone: no checks, no failures.
// Used by bare_peer.cc.
#pragma once
#include <fcntl.h>
#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "bench/comparison/peer.h"

namespace ouro::compare {

constexpr std::size_t kRecords = 64, kInline = 48, kEager = 2 << 10;
constexpr std::size_t kSlots = 4, kSlot = 128 << 10;
constexpr std::size_t kRing = 2 << 20;
constexpr std::size_t kTile = 16 << 10;  // bytes that are reduced, then written on from the first-level cache

/// What a rank says of one round: `serial` is the round + 1 once its data are there.
struct alignas(64) Record {
  std::atomic<std::uint64_t> serial;
  std::byte data[kInline];
};
/// What one rank writes and all read. A round's data are in its record, its eager slot or its slot, by size;
/// instead of in a slot also in the ring, where its readers' caches have dropped what was at its place
/// before.
struct Area {
  struct alignas(128) Count {
    std::atomic<std::uint64_t> rounds;
  } taken;  ///< rounds whose data this rank has read
  Record records[kRecords];
  alignas(4096) std::byte eager[kRecords][kEager];
  alignas(4096) std::byte slots[kSlots][kSlot];
  alignas(4096) std::byte ring[kRing];
};

enum class Copy { plain, rep, stream };

inline void copy_rep(void* to, const void* from, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}
__attribute__((target("avx2"))) inline void copy_stream(std::byte* to, const std::byte* from,
                                                        std::size_t bytes) {
  const std::size_t head = std::min(bytes, (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64);
  std::memcpy(to, from, head);
  std::size_t i = head;
  for (; i + 64 <= bytes; i += 64) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)),
                  b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), b);
  }
  std::memcpy(to + i, from + i, bytes - i);
}
/// Which round this rank is in, and how data of a round pass from rank to rank. All ranks run the same
/// rounds.
class BareRounds {
 public:
  Error start(const Launch& launch) {
    rank_ = launch.rank, n_ = launch.ranks, directory_ = launch.directory;
    crowded_ = n_ > static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    for (int r = 0; r < n_; ++r) {
      void* const at = map("area-" + std::to_string(r), sizeof(Area));
      if (!at) return "cannot map an area";
      areas_.push_back(static_cast<Area*>(at));
    }
    known_.assign(static_cast<std::size_t>(n_), 0);
    return {};
  }
  /// The file `name` of this launch, which all ranks map; nullptr: there is no memory.
  void* map(const std::string& name, std::size_t bytes) {
    const int fd = ::open((directory_ + "/bare-" + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return nullptr;
    void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    ::close(fd);
    return at == MAP_FAILED ? nullptr : at;
  }

  int rank() const { return rank_; }
  int ranks() const { return n_; }
  /// `span`: bytes from one round's place in the ring to the next round's; 0: data are in slots.
  void use(Copy kind, std::size_t span) { copy_ = kind, span_ = span; }
  Copy kind() const { return copy_; }
  std::uint64_t current() const { return round_; }
  void advance(std::uint64_t rounds) { round_ += rounds; }

  void put(void* to, const void* from, std::size_t bytes) const {
    if (to == from || bytes == 0) return;
    if (copy_ == Copy::plain || bytes < 1024) return void(std::memcpy(to, from, bytes));
    if (copy_ == Copy::rep) return copy_rep(to, from, bytes);
    copy_stream(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
  }

  std::byte* place(int r, std::uint64_t round, std::size_t bytes) const {
    Area& a = area(r);
    return bytes <= kInline  ? a.records[round % kRecords].data
           : bytes <= kEager ? a.eager[round % kRecords]
           : span_ > 0       ? a.ring + round % (kRing / span_) * span_
                             : a.slots[round % kSlots];
  }
  /// Where the data of this rank go in `round`, once all others have read what was there.
  std::byte* open(std::uint64_t round, std::size_t bytes) {
    const std::uint64_t depth = bytes <= kEager ? kRecords : kSlots;
    for (int r = 0; r < n_; ++r) {
      auto& known = known_[static_cast<std::size_t>(r)];
      if (r == rank_ || known + depth > round) continue;
      wait([&] { return (known = area(r).taken.rounds.load(std::memory_order_acquire)) + depth > round; });
    }
    return place(rank_, round, bytes);
  }
  void publish(std::uint64_t round) {
    if (copy_ == Copy::stream) _mm_sfence();
    area(rank_).records[round % kRecords].serial.store(round + 1, std::memory_order_release);
  }
  void await(int r, std::uint64_t round) const {
    const auto& serial = area(r).records[round % kRecords].serial;
    wait([&] { return serial.load(std::memory_order_acquire) == round + 1; });
  }
  void take(std::uint64_t round) { area(rank_).taken.rounds.store(round + 1, std::memory_order_release); }
  void barrier() {
    const std::uint64_t round = round_++;
    open(round, 0);
    publish(round);
    for (int d = 1; d < n_; ++d) await((rank_ + d) % n_, round);
    take(round);
  }
  /// write(i) and then read(i - 1), so that a rank reads while the others read what it has just written.
  template <class Write, class Read>
  void pipeline(std::size_t rounds, Write&& write, Read&& read) {
    for (std::size_t i = 0; i < rounds; ++i) {
      write(i, round_ + i);
      if (i > 0) read(i - 1, round_ + i - 1);
    }
    read(rounds - 1, round_ + rounds - 1);
    round_ += rounds;
  }

 private:
  template <class Ready>
  void wait(Ready&& ready) const {
    for (int looks = 0; !ready(); ++looks) {
      _mm_pause();
      if (crowded_ && looks > 100) sched_yield();
    }
  }
  Area& area(int r) const { return *areas_[static_cast<std::size_t>(r)]; }

  int rank_ = 0, n_ = 1;
  bool crowded_ = false;
  Copy copy_ = Copy::rep;
  std::size_t span_ = 0;
  std::string directory_;
  std::vector<Area*> areas_;
  std::vector<std::uint64_t> known_;  // rounds that each rank is known to have taken
  std::uint64_t round_ = 0;           // the next; the same on all ranks between calls
};

}  // namespace ouro::compare
