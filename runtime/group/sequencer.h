// Sequencer: the order of a group's operations. Used by turns (turn.h), and by Group and its parts.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

#include "runtime/core/wait.h"
#include "runtime/exec/gpu/gpu_pending.h"
#include "runtime/exec/host/wiring.h"
#include "runtime/group/entry_order.h"
#include "runtime/group/failure_detector.h"
#include "runtime/group/operation_watchers.h"
#include "runtime/group/planner.h"
#include "runtime/plan/plan.h"

namespace ouro::rt {

/// Orders the operations of a group. Each takes a ticket and becomes a Turn. Sequence numbers are tickets +
/// 1, the same on all members.
class Sequencer {
 public:
  /// `record`: that of this rank and group, on the control page.
  Sequencer(FailureDetector& detector, OperationWaiter& waiter, GroupRecord& record, const Planner& planner,
            Wiring& wiring, OperationWatchers& watchers)
      : detector_(detector),
        waiter_(waiter),
        record_(record),
        planner_(planner),
        wiring_(wiring),
        watchers_(watchers),
        entries_(detector) {
    refresh();
  }

  std::uint64_t take_ticket(std::uint64_t many = 1) {
    return tickets_.fetch_add(many, std::memory_order_acq_rel);
  }
  /// A ticket, and the place (EntryOrder) at which its operation enters a device stream.
  struct Numbers {
    std::uint64_t ticket, place;
  };
  /// `by_call`: the calling thread enters the stream itself; else a stream's thread will. The caller
  /// holds submit_mutex().
  Numbers take_ticket_and_place(bool by_call) {
    const std::uint64_t place = entries_.take(by_call);
    return {take_ticket(), place};
  }
  /// Held while a ticket is taken and its operation is put into a stream, as one step.
  std::mutex& submit_mutex() { return submit_mutex_; }
  EntryOrder& entries() { return entries_; }

  /// Sets the operations that end in streams, before the first of them; nullptr: none is left.
  void watch(GpuPending* pending) { in_streams_.store(pending, std::memory_order_relaxed); }
  /// Publishes which of them have ended.
  void publish_ended_in_streams() {
    if (GpuPending* const pending = in_streams_.load(std::memory_order_relaxed)) complete_among(*pending, 0);
  }
  /// Whether some tickets are not done.
  bool busy() const { return load(turn_) != tickets_.load(std::memory_order_acquire); }
  /// Returns when all tickets taken so far are done and no stream's thread is inside a turn.
  void await_rest();

  // For turns.
  /// Exists while the thread of a stream is inside a turn, from before the turn is entered until nothing of
  /// the group is accessed any more. The turn is passed on meanwhile, and the group may then be closed:
  /// await_rest() waits for this.
  class Inside {
   public:
    explicit Inside(Sequencer& s) : threads_(s.inside_) { threads_.fetch_add(1, std::memory_order_relaxed); }
    ~Inside() { threads_.fetch_sub(1, std::memory_order_release); }  // pairs with await_rest()
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    std::atomic<int>& threads_;
  };
  /// Waits for the turn of `ticket`. Each operation before it ends by itself, within its deadline.
  void await_turn(std::uint64_t ticket) {
    if (load(turn_) != ticket) await(ticket);
  }
  InFlight& in_flight() { return waiter_.in_flight(); }
  /// Whether the operation enters without watchers, by a plan that is still valid. `ticket` has its turn.
  bool is_plain(const Plan& plan, std::uint64_t ticket) const {
    return ticket < due_ && plan.table == table_;
  }
  /// Enters the operation on the control page. Errors: that of the group.
  Status enter_plainly(const Plan& plan, std::uint64_t ticket) {
    if (!detector_.ok()) [[unlikely]]
      return detector_.status();
    waiter_.begin(plan, ticket + 1);
    enter(record_, ticket + 1, plan.signature);
    return {};
  }
  /// The same with watchers; first makes another plan if the group has changed its selection table. Errors:
  /// also those of the watchers, of planning.
  Status enter_with_care(const Plan&, std::uint64_t ticket);
  /// Publishes that all operations before ticket `next` have succeeded, except those in flight in streams.
  void complete(std::uint64_t next) {
    if (GpuPending* const pending = in_streams_.load(std::memory_order_relaxed)) [[unlikely]]
      return complete_among(*pending, next);
    record_.completed.set(next);
  }
  /// Passes the turn to ticket `next`.
  void pass(std::uint64_t next) { publish(turn_, next); }
  /// Whether other hosts need no notification when an operation ends.
  bool settled() const { return !wiring_.settles(); }
  /// Ends the operation whose turn it is and passes the turn to ticket `next`. A failure becomes the group's
  /// (FailureDetector::stick). `in_stream`: the operation has been put into a stream and ends there. `place`:
  /// is left first, unless it is kNoPlace. Returns the outcome.
  Status leave_with_care(std::uint64_t next, std::uint64_t place, bool in_stream, Status outcome);
  /// Ends a turn that was destroyed before its operation had ended.
  void abandon(std::uint64_t ticket, std::uint64_t many, std::uint64_t place, bool entered);
  /// Fails the group, whose members wait for this rank, and skips the tickets. Returns the group's error.
  Status forfeit(std::uint64_t ticket, std::uint64_t many, const Status& why);
  /// Waits for the turn of `many` unused tickets from `ticket` on and passes it on.
  void skip(std::uint64_t ticket, std::uint64_t many) {
    wait_patiently(turn_, ticket);
    pass(ticket + many);
  }
  /// Skips a ticket whose turn may be far away, on a thread of its own. The group outlives that
  /// thread's work.
  void skip_aside(std::uint64_t ticket);
  static constexpr std::uint64_t kNoPlace = ~std::uint64_t{0};

  /// Reads again when watchers are due and which table is valid, after these may have changed.
  void refresh() { due_ = watchers_.due(), table_ = planner_.table(); }

 private:
  void await(std::uint64_t ticket);
  void complete_among(GpuPending&, std::uint64_t next);

  FailureDetector& detector_;
  OperationWaiter& waiter_;  // of the operation whose turn it is
  GroupRecord& record_;
  const Planner& planner_;
  Wiring& wiring_;
  OperationWatchers& watchers_;
  std::atomic<GpuPending*> in_streams_{nullptr};  // set before the first of them takes its turn
  std::uint64_t due_ = 0;                         // watchers are due from this ticket on
  std::uint32_t table_ = 0;                       // of valid plans
  Plan again_;  // of the operation whose turn it is, if it was planned again
  std::mutex submit_mutex_;
  EntryOrder entries_;
  std::atomic<std::uint64_t> tickets_{0};
  Counter turn_{};              // tickets that are done
  std::atomic<int> inside_{0};  // threads of streams that are inside a turn
};

}  // namespace ouro::rt
