// The operations of a group that its GPU has not ended yet. Used by the GPU executor, by the group that
// monitors them, and by the threads that wait for them.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

#include "runtime/core/thread.h"
#include "runtime/exec/gpu/end_mark.h"
#include "runtime/exec/gpu/end_word.h"
#include "runtime/exec/gpu/gpu_arrivals.h"
#include "runtime/exec/gpu/resident_path.h"
#include "runtime/plan/plan.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// Keeps the operations under way in their order, each with a mark of its end, and ends them when the
/// group fails.
class GpuPending {
 public:
  struct Operation {
    std::uint64_t seq = 0;
    Plan plan;  ///< the memory that its spans refer to may be destroyed
    Clock::time_point start, left_since = {};
    bool late_said = false;
  };
  GpuPending(GpuTeam& team, GpuArrivals& arrivals, ResidentPath& resident)
      : team_(team), arrivals_(arrivals), resident_(resident) {}
  ~GpuPending();
  GpuPending(const GpuPending&) = delete;
  GpuPending& operator=(const GpuPending&) = delete;

  // Called by the thread that enqueues operations.
  /// What follows on the stream starts after the last operation, also where that is on another stream.
  Status order(GpuStream&, bool capturing) const;
  /// Whether the last operation has ended.
  bool clear() const { return !last_mark_ || last_mark_->mark()->passed(); }
  /// What marks the end of an operation. It is made before anything is enqueued: what is in a stream has a
  /// mark, whatever runs out.
  class Ahead;
  /// Plan null: another part watches the operation. Capturing: there is nothing to make. `in_turn`: all
  /// operations before it have passed their turns, and where they have not ended they are among those here.
  Result<Ahead> prepare(const Plan*, std::uint64_t seq, const std::shared_ptr<GpuStream>&, bool capturing,
                        bool in_turn = true);
  /// Marks the end of the operation in the stream, unless its last piece of work does. Errors: those of the
  /// device.
  Status mark(Ahead, std::shared_ptr<WorkState>* work);

  // Thread-safe.
  /// The oldest that has not ended, in f.
  void with_oldest(const std::function<void(Operation&)>& f);
  /// All operations up to number `turn` have ended, or are under way here (0: nothing is new): writes, by one
  /// thread at a time, up to which number all have ended well.
  void settle(std::uint64_t turn, const std::function<void(std::uint64_t)>& write);
  bool idle();
  /// Whether a kernel of this rank has waited for others beyond its deadline.
  bool late();
  /// What the device said of the first operation that it did not end well, while the group was well.
  Status failure();
  /// Returns when all have ended; each does, within its deadline.
  void drain();
  /// The group has failed: ends all waits in streams; what is under way ends with `why`.
  void release(const Status& why);

 private:
  class Mark;
  struct Entry {
    Operation operation;
    std::shared_ptr<Mark> mark;
  };
  using Entries = std::list<Entry>;
  void end_waits();  ///< with mutex_ held

  GpuTeam& team_;
  GpuArrivals& arrivals_;
  ResidentPath& resident_;
  std::shared_ptr<EndWord> end_word_;       // taken by the first operation
  std::shared_ptr<GpuStream> last_stream_;  // of the last operation
  std::shared_ptr<WorkState> last_mark_;

  std::mutex mutex_;
  Entries entries_;
  std::uint64_t passed_ = 0;   // operations up to this number have ended or are among the entries
  std::uint64_t spoiled_ = 0;  // the first that did not end well; 0: none
  bool failed_ = false, ending_ = false;
  bool no_thread_ = false;  ///< to end waits on: it is tried again, and drain() does without
  Status error_, failure_;
  Thread releaser_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> captured_{false};  // an operation, in a graph whose replays have no entries
};

class GpuPending::Ahead {
 public:
  /// For the piece of work that ends the operation.
  OperationEnd end;

 private:
  friend class GpuPending;
  std::shared_ptr<GpuStream> stream;
  bool capturing = false, watched = false, in_turn = true;
  std::shared_ptr<WorkState> work;
  Entries entry;  // one: to put it among the others needs no memory
};

}  // namespace ouro::rt
