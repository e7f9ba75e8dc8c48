// Turn: one operation's place in the order of its group; and a turn that waits in a stream. Used by Group
// and its parts.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/core/no_memory.h"
#include "runtime/group/sequencer.h"
#include "runtime/stream/host_stream.h"

namespace ouro::rt {

/// The life of an operation: it has a ticket, waits for its turn, is entered, carried, and left, which passes
/// the turn on. Each turn ends exactly once. One that is destroyed before it was entered is skipped; one that
/// is destroyed after it was entered and before it was left fails the group. Used by one thread at a time.
class Turn {
 public:
  Turn() = default;  ///< of no operation
  /// Stands for `many` tickets from `ticket` on, which are entered as one operation. `place`: where the
  /// operation enters a device stream, or Sequencer::kNoPlace.
  Turn(Sequencer& sequencer, std::uint64_t ticket, std::uint64_t many = 1,
       std::uint64_t place = Sequencer::kNoPlace)
      : sequencer_(&sequencer), ticket_(ticket), many_(many), place_(place) {}
  Turn(Turn&& from) noexcept
      : sequencer_(std::exchange(from.sequencer_, nullptr)),
        ticket_(from.ticket_),
        many_(from.many_),
        place_(from.place_),
        entered_(from.entered_) {}
  Turn& operator=(Turn from) noexcept {
    std::swap(sequencer_, from.sequencer_);
    std::swap(ticket_, from.ticket_);
    std::swap(many_, from.many_);
    std::swap(place_, from.place_);
    std::swap(entered_, from.entered_);
    return *this;
  }
  [[gnu::always_inline]] inline ~Turn() {
    if (sequencer_) sequencer_->abandon(ticket_, many_, place_, entered_);
  }

  explicit operator bool() const { return sequencer_ != nullptr; }
  Sequencer* sequencer() const { return sequencer_; }
  /// Of its (first) operation in the group.
  std::uint64_t seq() const { return ticket_ + 1; }

  /// Waits for the place in the order of entries. False: the group has failed first, and the turn has ended.
  bool await_place() {
    if (sequencer_->entries().await(place_)) return true;
    std::exchange(sequencer_, nullptr)->skip_aside(ticket_);
    return false;
  }
  /// The place becomes the caller's, who leaves it.
  std::uint64_t take_place() { return std::exchange(place_, Sequencer::kNoPlace); }

  /// Waits for the turn and enters the operation, after which others can see it. leave() follows in any case.
  /// Errors: that of the group, those of planning, those of the watchers (OperationWatchers::began).
  [[gnu::always_inline]] inline Status enter(const Plan& plan) {
    sequencer_->await_turn(ticket_);
    entered_ = true;
    plain_ = sequencer_->is_plain(plan, ticket_);
    if (plain_) [[likely]]
      return sequencer_->enter_plainly(plan, ticket_);
    return sequencer_->enter_with_care(plan, ticket_);
  }
  /// Ends the operation and passes the turn on. A failure becomes the group's, unless it leaves the group
  /// usable. Returns the outcome. `in_stream`: the operation has been put into a stream and ends there.
  [[gnu::always_inline]] inline Status leave(Status outcome, bool in_stream = false) {
    Sequencer& s = *std::exchange(sequencer_, nullptr);
    if (!plain_ || !outcome.ok() || in_stream || place_ != Sequencer::kNoPlace || !s.settled()) [[unlikely]]
      return s.leave_with_care(ticket_ + many_, place_, in_stream, std::move(outcome));
    s.complete(ticket_ + many_);  // all that is left of leave_with_care()
    s.pass(ticket_ + many_);
    return outcome;
  }

  /// Enters, moves the data by `carrier`, and leaves. A carrier has:
  ///   kInStream           whether the operation ends in a stream, into which move() puts it;
  ///   move(InFlight&)     carries out in_flight.plan, and returns the outcome;
  ///   damage(InFlight&, Status request)   the same, for OURO_FAULT: damages what this rank sends.
  /// An exception is an outcome: resource.
  template <class Carrier>
  [[gnu::always_inline]] inline Status carry(const Plan& plan, Carrier&& carrier) {
    Status outcome = enter_and_move(plan, carrier);
    return leave(std::move(outcome), std::decay_t<Carrier>::kInStream);
  }
  /// carry() without leave().
  template <class Carrier>
  [[gnu::always_inline]] inline Status enter_and_move(const Plan& plan, Carrier& carrier) {
    Status outcome = enter(plan);
    InFlight& in_flight = sequencer_->in_flight();
    try {
      if (outcome.ok()) [[likely]] {
        if (!in_flight.plan->idle) outcome = carrier.move(in_flight);
      } else if (Faults::is_damage(outcome)) {
        outcome = carrier.damage(in_flight, std::move(outcome));
      }
    } catch (const std::exception&) {
      outcome = no_memory();
    }
    return outcome;
  }

  /// A turn for the first ticket; this one stands for the rest, and has ended if there is none.
  Turn split_first() {
    Turn first(*sequencer_, ticket_);
    first.entered_ = entered_, first.plain_ = plain_;
    ++ticket_, --many_;
    entered_ = plain_ = false;
    if (many_ == 0) sequencer_ = nullptr;
    return first;
  }
  /// Fails the group, as its members wait for this rank, and passes the turn on. Returns the group's error.
  Status forfeit(const Status& why) {
    return std::exchange(sequencer_, nullptr)->forfeit(ticket_, many_, why);
  }

 private:
  Sequencer* sequencer_ = nullptr;  // nullptr: the turn has ended
  std::uint64_t ticket_ = 0, many_ = 0, place_ = Sequencer::kNoPlace;
  bool entered_ = false, plain_ = false;
};

/// The turn of an operation that the calling thread puts into a device stream.
inline Turn take_placed_turn(Sequencer& sequencer) {
  std::lock_guard lock(sequencer.submit_mutex());
  const Sequencer::Numbers n = sequencer.take_ticket_and_place(true);
  return {sequencer, n.ticket, 1, n.place};
}

/// A turn that waits in a stream. Either the stream reaches it and claims it, or it is given up; whichever is
/// first ends it. Thread-safe. May outlive the group once it has been claimed or given up.
class QueuedTurn {
 public:
  QueuedTurn() = default;  ///< hold() follows
  QueuedTurn(const QueuedTurn&) = delete;
  QueuedTurn& operator=(const QueuedTurn&) = delete;
  /// A stream that is destroyed before it reaches the turn gives it up.
  ~QueuedTurn() {
    if (turn_) give_up(given_up());
  }
  void hold(Turn turn) { turn_ = std::move(turn); }

  /// Called by the stream: f gets the turn and returns an outcome. Errors: revoked, if it has been given up;
  /// the group may be destroyed by then.
  template <class F>
  Status claim(F&& f) {
    if (taken_.exchange(true)) return given_up();
    const Sequencer::Inside inside(*turn_.sequencer());
    Turn turn = std::move(turn_);  // ends before `inside`
    return std::forward<F>(f)(std::move(turn));
  }
  /// Called if the stream has failed and never reaches the turn: fails the group.
  void give_up(const Status& why) {
    (void)claim([&](Turn turn) { return turn.forfeit(why); });
  }

 private:
  static Status given_up() {
    return {Reason::revoked, "the operation was given up before its stream came to it"};
  }
  std::atomic<bool> taken_{false};
  Turn turn_;
};

/// Takes `many` tickets and enqueues f on the stream, as one step; the stream calls f with their turn.
template <class F>
std::shared_ptr<WorkState> enqueue_turn(Sequencer& sequencer, std::uint64_t many, Stream& stream, F&& f) {
  const auto queued = std::make_shared<QueuedTurn>();
  std::lock_guard lock(sequencer.submit_mutex());
  if (stream.gpu())
    sequencer.entries().await_calls();  // operations with lower tickets enter this stream first
  queued->hold(Turn(sequencer, sequencer.take_ticket(many), many));
  try {
    auto work = stream.enqueue([queued, f = std::forward<F>(f)] { return queued->claim(f); });
    if (!stream.gpu()) return work;  // a host stream reaches what it has accepted
    if (work->done() && !work->outcome().ok()) queued->give_up(work->outcome());
    stream.last()->then([queued, work](const Status& passed) {
      if (passed.ok()) return;
      queued->give_up(passed);
      work->complete(passed);
    });
    return work;
  } catch (const std::exception&) {  // no one would notice a stream that fails before it reaches the work
    queued->give_up(no_memory());
    throw;
  }
}

/// The same for one operation that then enters a device stream: its turn has a place.
template <class F>
std::shared_ptr<WorkState> enqueue_placed_turn(Sequencer& sequencer, Stream& host, F&& f) {
  const auto queued = std::make_shared<QueuedTurn>();
  std::lock_guard lock(sequencer.submit_mutex());
  const Sequencer::Numbers n = sequencer.take_ticket_and_place(false);
  queued->hold(Turn(sequencer, n.ticket, 1, n.place));
  try {
    return host.enqueue([queued, f = std::forward<F>(f)] { return queued->claim(f); });
  } catch (const std::exception&) {
    queued->give_up(no_memory());
    throw;
  }
}

}  // namespace ouro::rt
