// The words of a group's GPU operations, which streams wait for, and beside them the arrival records, by
// which ranks announce what they called and where their buffers lie. Used by the GPU executor.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/device/gpu.h"
#include "kernels/gpu/collect.h"
#include "runtime/core/segment.h"
#include "runtime/core/types.h"
#include "runtime/core/wait.h"
#include "runtime/device_memory/export_handles.h"

namespace ouro::rt {

/// What a rank says about one operation, before it counts itself in.
struct GpuArrival {
  static constexpr int kPairs = gpu::FusedArgs::kMaxUnevenPairs;
  std::uint64_t seq, signature;
  std::uint64_t stream;    // GpuStream::identity()
  std::uint32_t captured;  // whether its stream is recording a graph
  std::uint32_t in_call;   // whether its call waits, and one launch may serve all ranks
  GpuRef in, out;
  Scalar premul;
  std::uint64_t send_counts[kPairs], recv_counts[kPairs];  // uneven all_to_all
};

/// A rank's latest operations by sequence number, for which nobody waits: an older one is overwritten. All
/// members are accessed as atomics.
struct GpuNote {
  std::uint64_t seq;  // 1 more; 0: none, or being written
  std::uint64_t signature, stream, captured;
};

/// A word that streams write and wait for. Some are set to 1 by one stream, and waited for and cleared by
/// another: they are 0 whenever nothing is under way, so that a graph which was captured from such pairs can
/// be replayed. The others hold the numbers of operations. A rank that fails sets them to end waits.
struct GpuWord {
  std::uint32_t* host = nullptr;  ///< of pinned words; those in device memory are not read by processors
  void* device = nullptr;         ///< as this rank's GPU sees it
};

/// The memory that all ranks of a host share for operations on GPUs: a sealed segment, pinned, so that
/// processors and GPUs see it. The words may be in device memory instead (put_on_devices).
class GpuWords {
 public:
  static constexpr int kArrivals = 64;  // operations that a rank may run ahead of the slowest one
  static constexpr int kLinkWords = 4;  // slots of a link
  static constexpr int kMaxRanks = 256;
  static std::size_t bytes(int n);
  /// Of the words alone, in pinned memory and in each block of device memory.
  static std::size_t word_bytes(int n) { return count(n) * sizeof(std::uint32_t); }
  /// Pins the segment, once a process.
  static Result<std::shared_ptr<GpuWords>> open(std::shared_ptr<SharedSegment>, int n);
  GpuWords(const GpuWords&) = delete;
  GpuWords& operator=(const GpuWords&) = delete;
  /// From now on words are in device memory, which is zero: `at[r]` is where this rank's GPU sees the block
  /// of word_bytes(n) with the words that rank r's streams wait for. `apart`: these are blocks of several
  /// GPUs; otherwise all are one. Before the first word is used, and on all ranks alike.
  void put_on_devices(std::vector<std::byte*> at, bool apart) { blocks_ = std::move(at), apart_ = apart; }
  bool on_devices() const { return !blocks_.empty(); }
  /// Tells groups of this process apart, as long as one rank has its words.
  const void* identity() const { return head_; }

  GpuArrival& arrival(int rank, std::uint64_t op) const {
    return arrivals_[rank * kArrivals + static_cast<int>(op % kArrivals)];
  }
  GpuNote& note(int rank, std::uint64_t seq) const {
    return notes_[rank * kArrivals + static_cast<int>(seq % kArrivals)];
  }
  /// Whether any rank has captured an operation without an arrival record.
  std::uint64_t& captures() const { return head_->captures; }
  /// Counts a rank in; true for the last one, which sees all arrival records.
  bool arrive(std::uint64_t op) const {
    // Pairs with itself: the last to arrive has acquired what all others released.
    const std::uint64_t before =
        std::atomic_ref(head_->arrived[op % kArrivals]).fetch_add(1, std::memory_order_acq_rel);
    return before % static_cast<std::uint64_t>(n_) == static_cast<std::uint64_t>(n_ - 1);
  }
  /// Operations whose arrival records have been read for the last time.
  Counter& led() const { return head_->led; }

  /// By the last to arrive, for ranks whose calls wait: whether one rank launches for all, and which.
  Counter& verdict() const { return head_->verdict; }
  /// The rank that did so last; -1: none has, or a peer has damaged it.
  int last_leader() const {
    const std::uint32_t leader = std::atomic_ref(head_->leader_plus_1).load(std::memory_order_relaxed);
    return leader <= static_cast<std::uint32_t>(n_) ? static_cast<int>(leader) - 1 : -1;
  }
  void leads(int rank) const {
    std::atomic_ref(head_->leader_plus_1)
        .store(static_cast<std::uint32_t>(rank) + 1, std::memory_order_relaxed);
  }
  /// The number, counted cyclically, of the last operation that one launch has done for all: pinned, for
  /// processors.
  GpuWord told() const { return {words_ + 1, static_cast<std::uint32_t*>(device_words_) + 1}; }
  bool told(std::uint32_t number) const {
    const auto now = std::atomic_ref(words_[1]).load(std::memory_order_acquire);
    return static_cast<std::int32_t>(now - number) >= 0;
  }
  /// The number of the last operation that is done on the leader's path.
  GpuWord finished() const { return word(0, 0); }
  /// The number of the last operation that a rank's stream has reached.
  GpuWord come_to(int rank) const { return word(rank, line(rank) + kNumber); }
  GpuWord ready(int rank) const { return word(rank, line(rank)); }
  GpuWord done(int rank) const { return word(rank, line(rank) + 1); }
  /// Whether a slot of a link has data. The receiver waits for 1, the sender, unless tells_apart(), for 0.
  GpuWord full(int from, int to, int slot) const { return word(to, line(to, from) + slot); }
  /// Whether a slot is in use: what the sender waits for, until it is 0. The same word as full(),
  /// unless tells_apart().
  GpuWord taken(int from, int to, int slot) const {
    return apart_ ? word(from, line(from, to) + kTaken + slot) : full(from, to, slot);
  }
  /// Whether a slot has a word in the memory of each end's GPU, so that each polls its own memory.
  bool tells_apart() const { return apart_; }
  /// From now on waits may end without an answer, on all ranks: a wait that ends afterwards proves nothing.
  void poison() const { std::atomic_ref(head_->poisoned).store(1, std::memory_order_release); }
  /// Pairs with poison(): a reader of a word that was set after it sees it, too.
  bool poisoned() const { return std::atomic_ref(head_->poisoned).load(std::memory_order_acquire) != 0; }
  /// Sets all pinned words, after poison(): ends waits for `value`, and for the numbers up to `number`,
  /// on all ranks.
  void set_all(std::uint32_t value, std::uint32_t number) const;
  /// The same for words in device memory, by a stream: writes to all words for which a stream of `rank` may
  /// wait, and, if all ranks share one GPU, to those of the leader's path. The first `*numbers` of them are
  /// words with numbers.
  std::vector<gpu::MemOp> writes(int rank, std::uint32_t value, std::uint32_t number,
                                 std::size_t* numbers) const;

 private:
  static constexpr int kLine = 16, kNumber = 2, kTaken = 8;  // words
  static_assert(kLinkWords <= kTaken && kTaken + kLinkWords <= kLine);
  struct Head {
    std::uint32_t poisoned;
    std::uint32_t leader_plus_1;
    Counter led, verdict;
    std::uint64_t arrived[kArrivals];
    std::uint64_t captures;
  };
  GpuWords() = default;
  /// Word i, for which `owner` waits.
  GpuWord word(int owner, int i) const {
    auto* const base =
        blocks_.empty() ? static_cast<std::byte*>(device_words_) : blocks_[static_cast<std::size_t>(owner)];
    return {words_ + i, base + static_cast<std::size_t>(i) * sizeof(std::uint32_t)};
  }
  /// The first line is for finished() and told(); each rank has one, and one for its links from and to each
  /// rank.
  int line(int owner) const { return (1 + owner * (1 + n_)) * kLine; }
  int line(int owner, int other) const { return line(owner) + (1 + other) * kLine; }
  static std::size_t count(int n) { return static_cast<std::size_t>(1 + n + n * n) * kLine; }

  int n_ = 0;
  std::shared_ptr<void> pin_;  // keeps the segment
  Head* head_ = nullptr;
  GpuArrival* arrivals_ = nullptr;
  GpuNote* notes_ = nullptr;
  std::uint32_t* words_ = nullptr;
  void* device_words_ = nullptr;
  std::vector<std::byte*> blocks_;  // by rank; empty: the words are pinned
  bool apart_ = false;
};

}  // namespace ouro::rt
