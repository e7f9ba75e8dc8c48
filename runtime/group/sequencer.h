// The order of a group's operations. Used by Group and its parts.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/core/wait.h"
#include "runtime/group/failure_detector.h"
#include "runtime/plan/plan.h"
#include "runtime/stream/host_stream.h"

namespace ouro::rt {

/// Orders the operations of a group: each takes a ticket, waits for its turn, is entered on the control page,
/// and passes the turn on. Sequence numbers are tickets + 1, the same on all members.
class Sequencer {
 public:
  Sequencer(FailureDetector& detector, OperationWaiter& waiter, GroupRecord& record)
      : detector_(detector), waiter_(waiter), record_(record) {}

  std::uint64_t take_ticket(std::uint64_t many = 1) {
    return tickets_.fetch_add(many, std::memory_order_acq_rel);
  }
  /// Waits until it is the ticket's turn, and says on the control page what this rank begins. The group's
  /// error, if it has one.
  Status begin(const Plan& plan, std::uint64_t ticket) {
    // Operations run in the order of their tickets. Each one before this ends by itself, within its deadline.
    if (load(turn_) != ticket) await(ticket);
    if (!detector_.ok()) return detector_.status();
    waiter_.begin(plan, ticket + 1);
    enter(record_, ticket + 1, plan.signature);
    return {};
  }
  /// All operations before ticket `next` have ended well.
  void complete(std::uint64_t next) { record_.completed.set(next); }
  /// The same, for operations that end in streams: those up to sequence number `seq`.
  void complete_to(std::uint64_t seq) {
    if (seq > record_.completed.get()) record_.completed.set(seq);
  }
  /// The turn is that of ticket `next`.
  void pass(std::uint64_t next) { publish(turn_, next); }
  /// Passes a ticket's turn on, when it has come, without having used it.
  void skip(std::uint64_t ticket) {
    wait_patiently(turn_, ticket);
    pass(ticket + 1);
  }

  /// `many` tickets and a place on the stream, taken together; the stream calls f with the first ticket.
  template <class F>
  std::shared_ptr<WorkState> enqueue(std::uint64_t many, Stream& stream, F&& f) {
    std::lock_guard lock(submit_mutex_);
    const std::uint64_t ticket = take_ticket(many);
    return stream.enqueue([this, ticket, f = std::forward<F>(f)] {
      inside_.fetch_add(1, std::memory_order_relaxed);  // before its ticket ends, which is a release
      Status outcome = f(ticket);
      // Pairs with await_rest(); nothing here is touched after.
      inside_.fetch_sub(1, std::memory_order_release);
      return outcome;
    });
  }

  /// Whether tickets are out.
  bool busy() const { return load(turn_) != tickets_.load(std::memory_order_acquire); }
  /// Returns when all tickets taken so far are done, and no stream is inside.
  void await_rest() {
    wait_patiently(turn_, tickets_.load(std::memory_order_acquire));
    while (inside_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  }

 private:
  void await(std::uint64_t ticket);

  FailureDetector& detector_;
  OperationWaiter& waiter_;  // of the operation whose turn it is
  GroupRecord& record_;
  std::mutex submit_mutex_;
  std::atomic<std::uint64_t> tickets_{0};
  Counter turn_{};              // tickets that are done
  std::atomic<int> inside_{0};  // threads of streams that may still touch this after the end of their tickets
};

}  // namespace ouro::rt
