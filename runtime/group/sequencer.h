// Sequencer: the order of a group's operations. Used by Group and its parts.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/core/wait.h"
#include "runtime/exec/gpu/gpu_pending.h"
#include "runtime/group/entry_order.h"
#include "runtime/group/failure_detector.h"
#include "runtime/plan/plan.h"
#include "runtime/stream/host_stream.h"

namespace ouro::rt {

/// Orders the operations of a group: each takes a ticket, waits for its turn, is entered on the control page,
/// and passes the turn on. Sequence numbers are tickets + 1, the same on all members.
class Sequencer {
 public:
  /// `faults`: of this rank, or nullptr. `parts`: operations are parts of those of another group.
  Sequencer(FailureDetector& detector, OperationWaiter& waiter, GroupRecord& record, Faults* faults,
            bool parts)
      : detector_(detector),
        waiter_(waiter),
        record_(record),
        faults_(faults),
        parts_(parts),
        entries_(detector) {}

  std::uint64_t take_ticket(std::uint64_t many = 1) {
    return tickets_.fetch_add(many, std::memory_order_acq_rel);
  }
  /// A ticket, and the place (EntryOrder) at which its operation enters a device stream.
  struct Entry {
    std::uint64_t ticket, place;
  };
  Entry take_entry() {
    std::lock_guard lock(submit_mutex_);
    const std::uint64_t place = entries_.take(true);
    return {take_ticket(), place};
  }
  EntryOrder& entries() { return entries_; }
  /// Waits for the turn of `ticket`; operations run in the order of their tickets. Each operation before it
  /// ends by itself, within its deadline.
  void await_turn(std::uint64_t ticket) {
    if (load(turn_) != ticket) await(ticket);
  }
  /// Called in the ticket's turn: enters the operation on the control page, and applies OURO_FAULT. Returns
  /// the group's error, if it has one, or that of a fault.
  Status begin(const Plan& plan, std::uint64_t ticket) {
    return faults_ ? begin_with_care(plan, ticket) : begin_unharmed(plan, ticket);
  }
  /// The same without OURO_FAULT.
  Status begin_unharmed(const Plan& plan, std::uint64_t ticket) {
    if (!detector_.ok()) return begin_with_care(plan, ticket);
    waiter_.begin(plan, ticket + 1);
    enter(record_, ticket + 1, plan.signature);
    return {};
  }
  /// Publishes that all operations before ticket `next` have succeeded, except those in flight in streams.
  void complete(std::uint64_t next) {
    if (GpuPending* const pending = in_streams_.load(std::memory_order_relaxed)) [[unlikely]]
      return complete_beside(*pending, next);
    record_.completed.set(next);
  }
  /// Sets the operations that end in streams, before the first of them; nullptr: none is left.
  void watch(GpuPending* pending) { in_streams_.store(pending, std::memory_order_relaxed); }
  /// Publishes which of them have ended.
  void look_at_streams() {
    if (GpuPending* const pending = in_streams_.load(std::memory_order_relaxed)) complete_beside(*pending, 0);
  }
  /// Passes the turn to ticket `next`.
  void pass(std::uint64_t next) { publish(turn_, next); }
  /// Waits for the turn of `many` unused tickets from `ticket` on and passes it on.
  void skip(std::uint64_t ticket, std::uint64_t many = 1) {
    wait_patiently(turn_, ticket);
    pass(ticket + many);
  }

  /// Skips a ticket whose turn may take long to come, on a thread of its own. The group outlives that
  /// thread's work.
  void skip_aside(std::uint64_t ticket);

  /// Set by whichever comes first: an operation that waits in a stream begins, or is given up.
  using Begun = std::shared_ptr<std::atomic<bool>>;
  /// Calls f() on a stream's thread. f passes a turn on, after which the group may be closed; await_rest()
  /// waits until f has returned.
  template <class F>
  Status inside(F&& f) {
    struct Count {
      std::atomic<int>& n;
      explicit Count(std::atomic<int>& c) : n(c) { n.fetch_add(1, std::memory_order_relaxed); }
      ~Count() { n.fetch_sub(1, std::memory_order_release); }  // pairs with await_rest()
    } const count(inside_);  // before its ticket ends, which is a release; nothing of this is accessed after
    return f();
  }
  /// The outcome of the host's part of an operation that its stream reaches too late: the group may be gone
  /// by then.
  static Status given_up() {
    return {Reason::revoked, "the operation was given up before its stream came to it"};
  }
  /// Called if a stream fails before it reaches an operation: passes the turn on and fails the group, since
  /// its members wait for this rank.
  void forgo(std::uint64_t ticket, std::uint64_t many, const Status& why) {
    (void)inside([&] {
      (void)detector_.fail(why);
      skip(ticket, many);
      return Status();
    });
  }

  /// Takes a ticket and a place and enqueues f on a host stream, as one step; the stream calls f with the
  /// entry, for an operation that then enters a device stream.
  template <class F>
  std::shared_ptr<WorkState> enqueue_entry(Stream& host, F&& f) {
    std::lock_guard lock(submit_mutex_);
    const Entry entry{take_ticket(), entries_.take(false)};
    try {
      return host.enqueue(
          [this, entry, f = std::forward<F>(f)]() -> Status { return inside([&] { return f(entry); }); });
    } catch (const std::exception&) {
      forgo(entry.ticket, 1, no_memory());
      throw;
    }
  }

  /// Takes `many` tickets and enqueues f on the stream, as one step; the stream calls f with the
  /// first ticket.
  template <class F>
  std::shared_ptr<WorkState> enqueue(std::uint64_t many, Stream& stream, F&& f) {
    // A host stream accepts the work or throws; a device stream may accept it and never reach it.
    const Begun begun = stream.gpu() ? std::make_shared<std::atomic<bool>>(false) : nullptr;
    std::lock_guard lock(submit_mutex_);
    if (begun) entries_.await_calls();  // operations with lower tickets enter this stream first
    const std::uint64_t ticket = take_ticket(many);
    std::shared_ptr<WorkState> work;
    try {
      work = stream.enqueue([this, ticket, begun, f = std::forward<F>(f)]() -> Status {
        if (begun && begun->exchange(true)) return given_up();
        return inside([&] { return f(ticket); });
      });
    } catch (const std::exception&) {
      if (!begun || !begun->exchange(true)) forgo(ticket, many, no_memory());
      throw;
    }
    if (!begun) return work;
    if (work->done() && !work->outcome().ok() && !begun->exchange(true)) forgo(ticket, many, work->outcome());
    try {
      stream.last()->then([this, begun, ticket, many, work](const Status& passed) {
        if (passed.ok()) return;
        // Once the operation has begun, its group may be destroyed, and this object with it.
        if (!begun->exchange(true)) forgo(ticket, many, passed);
        work->complete(passed);
      });
    } catch (const std::exception&) {  // no one would notice a stream that fails before it reaches the work
      if (!begun->exchange(true)) forgo(ticket, many, no_memory());
      throw;
    }
    return work;
  }

  /// Whether some tickets are not done.
  bool busy() const { return load(turn_) != tickets_.load(std::memory_order_acquire); }
  /// Returns when all tickets taken so far are done and no call of inside() is running.
  void await_rest() {
    wait_patiently(turn_, tickets_.load(std::memory_order_acquire));
    while (inside_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  }

 private:
  void await(std::uint64_t ticket);
  void complete_beside(GpuPending&, std::uint64_t next);
  /// begin() of a group that has failed, or with OURO_FAULT.
  Status begin_with_care(const Plan&, std::uint64_t ticket);

  FailureDetector& detector_;
  OperationWaiter& waiter_;  // of the operation whose turn it is
  GroupRecord& record_;
  Faults* const faults_;
  const bool parts_;
  std::atomic<GpuPending*> in_streams_{nullptr};  // set before the first of them takes its turn
  std::mutex submit_mutex_;
  EntryOrder entries_;
  std::atomic<std::uint64_t> tickets_{0};
  Counter turn_{};              // tickets that are done
  std::atomic<int> inside_{0};  // stream threads that may still access this after the end of their tickets
};

}  // namespace ouro::rt
