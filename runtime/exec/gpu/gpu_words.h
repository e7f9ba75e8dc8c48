// The words of a group's GPU operations, which streams wait for, and beside them the arrival records, by
// which ranks announce what they called and where their buffers lie. Used by the GPU executor.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/device/gpu.h"
#include "kernels/gpu/collect.h"
#include "runtime/core/segment.h"
#include "runtime/core/types.h"
#include "runtime/core/wait.h"
#include "transport/cuda_ipc/cuda_ipc.h"

namespace ouro::rt {

/// What a rank says about one operation, before it counts itself in.
struct GpuArrival {
  static constexpr int kPairs = gpu::FusedArgs::kMaxUnevenPairs;
  std::uint64_t seq, signature;
  std::uint64_t stream;    // GpuStream::identity()
  std::uint32_t captured;  // whether its stream is recording a graph
  transport::GpuRef in, out;
  Scalar premul;
  std::uint64_t send_counts[kPairs], recv_counts[kPairs];  // uneven all_to_all
};

/// A word that streams write and wait for. Some are set to 1 by one stream, and waited for and cleared by
/// another: they are 0 whenever nothing is under way, so that a graph which was captured from such pairs can
/// be replayed. The others hold the numbers of operations. The host sets them to end a wait.
struct GpuWord {
  std::uint32_t* host = nullptr;
  void* device = nullptr;
};

/// The memory that all ranks of a host share for operations on GPUs: a sealed segment, pinned, so that
/// processors and GPUs see it.
class GpuWords {
 public:
  static constexpr int kArrivals = 64;   // operations that a rank may run ahead of the slowest one
  static constexpr int kLinkWords = 16;  // slots of a link, at most
  static constexpr int kMaxRanks = 256;
  static std::size_t bytes(int n);
  /// Pins the segment, once a process.
  static Result<std::shared_ptr<GpuWords>> open(std::shared_ptr<device::Segment>, int n);
  GpuWords(const GpuWords&) = delete;
  GpuWords& operator=(const GpuWords&) = delete;

  GpuArrival& arrival(int rank, std::uint64_t op) const {
    return arrivals_[rank * kArrivals + static_cast<int>(op % kArrivals)];
  }
  /// Counts a rank in; true for the last one, which sees all arrival records.
  bool arrive(std::uint64_t op) const {
    // Pairs with itself: who comes last has acquired what all others released.
    const std::uint64_t before =
        std::atomic_ref(head_->arrived[op % kArrivals]).fetch_add(1, std::memory_order_acq_rel);
    return before % static_cast<std::uint64_t>(n_) == static_cast<std::uint64_t>(n_ - 1);
  }
  /// Operations whose arrival records have been read for the last time.
  Counter& led() const { return head_->led; }

  /// The number of the last operation that is done on the leader's path.
  GpuWord finished() const { return word(0); }
  /// The number of the last operation to which a rank's stream has come.
  GpuWord come_to(int rank) const { return word((1 + rank) * kLine + kNumber); }
  GpuWord ready(int rank) const { return word((1 + rank) * kLine); }
  GpuWord done(int rank) const { return word((1 + rank) * kLine + 1); }
  GpuWord full(int from, int to, int slot) const { return word((1 + n_ + from * n_ + to) * kLine + slot); }
  /// From now on waits may end that nobody has answered, on all ranks: what passes afterwards proves nothing.
  void poison() const { std::atomic_ref(head_->poisoned).store(1, std::memory_order_release); }
  /// Pairs with poison(): whoever sees a word that was set after it sees it, too.
  bool poisoned() const { return std::atomic_ref(head_->poisoned).load(std::memory_order_acquire) != 0; }
  /// Sets all words, after poison(): ends waits for `value`, and for the numbers up to `number`, on all
  /// ranks.
  void set_all(std::uint32_t value, std::uint32_t number) const;

 private:
  static constexpr int kLine = 16, kNumber = 2;  // words
  static_assert(kLinkWords <= kLine);
  struct Head {
    std::uint32_t poisoned;
    Counter led;
    std::uint64_t arrived[kArrivals];
  };
  GpuWords() = default;
  GpuWord word(int i) const {
    return {words_ + i,
            static_cast<std::byte*>(device_words_) + static_cast<std::size_t>(i) * sizeof(std::uint32_t)};
  }
  static std::size_t count(int n) { return static_cast<std::size_t>(1 + n + n * n) * kLine; }

  int n_ = 0;
  std::shared_ptr<void> pin_;  // keeps the segment
  Head* head_ = nullptr;
  GpuArrival* arrivals_ = nullptr;
  std::uint32_t* words_ = nullptr;
  void* device_words_ = nullptr;
};

}  // namespace ouro::rt
