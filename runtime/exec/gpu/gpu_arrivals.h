// Arrivals: how a rank announces an operation on its GPU and learns that it arrived last; and how all waits
// of a group that has failed are ended. Used by the paths of the GPU executor.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

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

  /// Makes what ranks announce operations with, once. Others are asked for it.
  Status open();
  /// Makes the words of streams too. Before an operation whose streams wait for words is announced; the first
  /// rank of a process makes what is needed for all.
  Status open_words();
  /// Waits until this rank is fewer than 64 operations ahead of the slowest one.
  Status await_room();
  /// The operation that is announced next, counted from 0 on all ranks alike.
  std::uint64_t next_operation() const { return ops_; }
  /// Writes this rank's record of its next operation and counts it in. *last: all others have arrived before,
  /// and their records are of the same operation. Waits for a rank that is 64 operations behind.
  /// `stream`: its identity(). Errors: mismatch; invalid, if two ranks are on one stream, where the first
  /// would wait for the second.
  /// `in_call`: the call waits, its buffers are ready, and its stream has nothing to do. leader_of_all() then
  /// follows.
  Status announce(const Plan&, std::uint64_t seq, std::uint64_t stream, bool capturing, GpuRef in, GpuRef out,
                  bool* last, bool in_call = false);
  /// The rank that serves the operation that was announced last by one launch for all, if the calls of all
  /// ranks wait; -1: each carries out its own part. Waits for all ranks. Errors: those of the wait.
  Result<int> leader_of_all();
  /// For an operation that is captured and whose kernels need no record: waits for no rank, however many
  /// operations this one is ahead, and compares with the ranks that are fewer than 64 apart. Errors:
  /// mismatch; invalid, as above.
  Status announce_captured(const Plan&, std::uint64_t seq, std::uint64_t stream);
  /// Operations that were announced in either way.
  std::uint64_t announced() const { return ops_ + captured_; }
  /// A copy of rank r's record of the operation that was announced last: a peer could change it under us.
  GpuArrival record(int r) const { return words_->arrival(r, ops_ - 1); }
  /// Of the next operation on the leader's path that is not captured; all ranks count the same.
  std::uint32_t next_number() { return numbers_.fetch_add(1, std::memory_order_relaxed) + 1; }
  /// Whether the records of the operation that was announced last are complete, and have been read.
  bool led() const { return words_ && load(words_->led()) >= ops_ && ops_ > 0; }
  /// Called by the last to arrive: the records of this operation are not read any more.
  void release_records() { publish(words_->led(), ops_); }
  /// Once an operation has been announced.
  const std::shared_ptr<GpuWords>& words() const { return words_; }
  /// In device memory of rank 0: kernels that find it non-zero touch nothing.
  std::uint32_t* stop_word() const { return stop_word_; }
  /// Beside it, 0 between launches: gpu::LaunchEnd::blocks.
  std::uint32_t* block_count() const { return stop_word_ + kBlockCount; }

  // After a failure; from any thread.
  /// From now on waits may end without an answer, on all ranks. False: there are no words yet.
  bool poison();
  /// Sets the stop word, so that kernels that have not begun touch nothing. Returns when the device sees it,
  /// or after a short time-out.
  void stop_kernels();
  /// One pass over the words. Two passes, of both values, end at least one wait of every stream of this rank,
  /// whichever value it waits for. If the words are in device memory, no pass begins until the one before has
  /// ended, and passes alternate between the values by themselves.
  void set_all(std::uint32_t value);

 private:
  Status compare(const Plan&, std::uint64_t seq, bool capturing) const;
  Status compare_streams() const;
  void decide();
  /// Writes this rank's note of an operation.
  void write_note(const Plan&, std::uint64_t seq, std::uint64_t stream, bool capturing) const;
  /// Compares with the notes of others. Of two ranks the later one sees the note of the other.
  Status compare_notes(const Plan&, std::uint64_t seq, std::uint64_t stream, bool capturing) const;
  Status captured_by_one(int r, bool by_it) const;
  Status on_one_stream(int a, int b) const;
  std::shared_ptr<GpuWords> opened();  ///< for other threads than the one that announces
  /// What sets words in device memory: two streams, each of which is used only while nothing is in it. The
  /// second is for the case that the first lies behind a stream that waits, in a hardware queue that
  /// they share.
  struct Setter {
    std::shared_ptr<GpuStream> first, second;
    std::vector<gpu::MemOp> writes[2];          // by value: the stop word, words with numbers, the others
    std::size_t numbers = 0;                    // how many words with numbers
    std::vector<std::shared_ptr<void>> memory;  // in which the words are
    std::mutex mutex;
    Clock::time_point began = {};  // of the last pass on the first
    std::uint32_t value = 1;       // of the next pass
  };
  void set_on_device(Setter&, std::uint32_t number) const;

  static constexpr int kBlockCount = 32;  // words: a line of the device's memory

  GpuTeam& team_;
  std::uint64_t ops_ = 0, captured_ = 0;  // that were announced, by records and by announce_captured()
  std::atomic<std::uint32_t> numbers_{0};
  std::mutex mutex_;  // while those below are being set
  std::shared_ptr<GpuWords> words_;
  std::uint32_t* stop_word_ = nullptr;
  std::shared_ptr<void> stop_memory_;
  std::shared_ptr<GpuStream> stop_stream_;
  std::shared_ptr<Setter> setter_;  // null: words are pinned, or nothing waits for them yet
  bool has_words_ = false;
};

}  // namespace ouro::rt
