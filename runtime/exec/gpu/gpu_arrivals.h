// Arrivals: how a rank announces an operation on its GPU and learns that it came last; and how all waits of a
// group that has failed are ended. Used by the paths of the GPU executor.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "runtime/exec/gpu/gpu_team.h"
#include "runtime/exec/gpu/gpu_words.h"
#include "runtime/plan/plan.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// Announces this rank's operations to the others of its host, and compares the records of all ranks.
class GpuArrivals {
 public:
  explicit GpuArrivals(GpuTeam& team) : team_(team) {}
  ~GpuArrivals();
  GpuArrivals(const GpuArrivals&) = delete;
  GpuArrivals& operator=(const GpuArrivals&) = delete;

  /// Makes the words, once. Others are asked for them.
  Status open();
  /// Writes this rank's record of its next operation and counts it in. *last: all others have come before,
  /// and their records are of the same operation. Waits for a rank that is 64 operations behind.
  /// `stream`: its identity(). Errors: mismatch; invalid, if two ranks are on one stream, where the first
  /// would wait for the second.
  Status announce(const Plan&, std::uint64_t seq, std::uint64_t stream, bool capturing, transport::GpuRef in,
                  transport::GpuRef out, bool* last);
  /// A copy of rank r's record of the operation that was announced last: a peer could change it under us.
  GpuArrival record(int r) const { return words_->arrival(r, ops_ - 1); }
  /// Of the next operation on the leader's path that is not captured; all ranks count the same.
  std::uint32_t next_number() { return numbers_.fetch_add(1, std::memory_order_relaxed) + 1; }
  /// By whoever came last: nobody reads the records of this operation any more.
  void release_records() { publish(words_->led(), ops_); }
  /// Once an operation has been announced.
  const std::shared_ptr<GpuWords>& words() const { return words_; }
  /// In device memory of rank 0: kernels that find it non-zero touch nothing.
  std::uint32_t* stop_word() const { return stop_word_; }

  // After a failure; from any thread.
  /// From now on waits may end that nobody has answered, on all ranks. False: there are no words yet.
  bool poison();
  /// Tells kernels that have not begun to touch nothing; returns when the device has heard of it, or soon.
  void stop_kernels();
  /// Each pass over the words ends at least one wait of every stream, whichever value it waits for.
  void set_all(std::uint32_t value);

 private:
  Status compare(const Plan&, std::uint64_t seq, bool capturing) const;
  Status compare_streams() const;
  std::shared_ptr<GpuWords> opened();  ///< for other threads than the one that announces

  GpuTeam& team_;
  std::uint64_t ops_ = 0;  // that were announced
  std::atomic<std::uint32_t> numbers_{0};
  std::mutex mutex_;  // while the three below are being set
  std::shared_ptr<GpuWords> words_;
  std::uint32_t* stop_word_ = nullptr;
  std::shared_ptr<GpuStream> stop_stream_;
};

}  // namespace ouro::rt
