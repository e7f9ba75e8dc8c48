// FailureDetector: how a group fails. Used by Group and its parts.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "runtime/context/context.h"
#include "runtime/core/no_memory.h"
#include "runtime/core/wait.h"
#include "runtime/group/member_records.h"
#include "runtime/network/tcp_watch.h"
#include "runtime/plan/in_flight.h"

namespace ouro::rt {

/// Keeps the first error of a group and finds it: by the checks of a waiting rank (late, dead, departed and
/// disagreeing members, errors of peers, the deadline), by the context's threads, or from whoever reports
/// it. Thread-safe.
class FailureDetector final : public MemberObserver {
 public:
  /// A rank may leave early because of an error. The error gets this long to show before the leaving
  /// rank is named.
  static constexpr std::chrono::milliseconds kCauseFirst{100};
  struct Settings {
    std::string group;  ///< its name, for messages
    std::uint64_t generation = 0;
    std::chrono::milliseconds deadline{0}, late_after{0};
    std::chrono::milliseconds under_way{kCauseFirst};  ///< how long data of departed ranks may be in flight
    std::chrono::milliseconds silent_fail{5000};       ///< how long a process of this host may be stopped
    bool one_host = true;
  };
  FailureDetector(Context& context, MemberRecords& members, Settings settings)
      : context_(context), members_(members), settings_(std::move(settings)) {}

  /// Whether the group has not failed; one load.
  bool ok() const {
    return std::atomic_ref(const_cast<std::uint32_t&>(abort_word_)).load(std::memory_order_acquire) == 0;
  }
  Status status() const;
  /// Non-zero once the group has failed; every wait watches it.
  const std::uint32_t* abort_word() const { return &abort_word_; }
  const Settings& settings() const { return settings_; }

  /// Completes a failure with what is known of the group and of `op` (nullptr: it belongs to no operation)
  /// and makes it the group's error, unless there is one: the first error wins. Sets the abort word and, with
  /// `notify_peers`, publishes the error. Returns the group's error.
  Status fail(Failure, const InFlight* op, bool notify_peers);
  /// The same for a failure that belongs to no operation in flight; peers are notified.
  Status fail(const Status&);
  /// The same if this rank has no memory or no thread for something that its members wait for.
  Status out_of_memory() { return keep(no_memory(), Collective::none, true); }
  /// Registers `release` of `by`, which is called with the first error, at once if there is one already; by
  /// one thread at a time. Empty: removes it.
  void when_failed(const void* by, std::function<void(const Status&)> release);

  /// Called periodically while an operation waits. Errors: that of the group, which may be new.
  Status check(InFlight&);
  /// Makes the error of an operation the group's, unless it leaves the group usable (invalid, unsupported).
  Status stick(Status outcome, const InFlight&);
  /// The same for an operation that has taken no turn.
  Status stick(const Status& outcome);

  // Called by the context, possibly from its threads.
  /// Fails the group if members are among the lost ranks.
  void on_losses(const std::vector<LostRank>&) override;
  /// World rank `by` and others have continued without this rank.
  void on_fenced(int by) override;
  /// Adopts an error that a peer has published.
  void adopt_errors() override;

 private:
  /// Finds out which ranks disagree after an executor suspected that a peer is in another operation.
  Status resolve(const Failure& suspected, const InFlight&);
  /// Fails if the one rank that is awaited has left.
  Status check_awaited(InFlight&);
  /// Fails if a process of this host has been stopped for too long.
  Status check_stopped(InFlight&);
  /// Fails if the members have entered this operation with different signatures.
  Status check_for_mismatch(const InFlight&);
  /// Describes to which hosts of members data moves slowly, as "; ..." to be appended to a text; "" if none
  /// is known. With `news` also "" if the group has reported them and they have not become worse since.
  std::string slow_links(bool news);
  void complete(Failure*, const InFlight*);
  /// Makes `first` the group's error, unless it has one, ends all waits and notifies peers. Skips steps for
  /// which there is no memory.
  Status keep(Status first, Collective, bool notify_peers) noexcept;
  int from_world(int world_rank) const;  // rank in the group, or -1

  Context& context_;
  MemberRecords& members_;
  const Settings settings_;
  std::uint32_t abort_word_ = 0;
  mutable std::mutex mutex_;
  Status error_;                             // the first one
  std::map<std::string, Repeat> said_slow_;  // by host; guarded by mutex_
  std::mutex release_mutex_;
  std::map<const void*, std::function<void(const Status&)>> releases_;  // under release_mutex_
};

/// How operations wait: their checks are those of the detector.
class OperationWaiter final : public Waiter {
 public:
  OperationWaiter(FailureDetector& detector, const CoreShare& cores)
      : Waiter(detector.abort_word(), cores.patience()), detector_(detector) {}
  void begin(const Plan& plan, std::uint64_t seq) {
    in_flight_.plan = &plan;
    in_flight_.seq = seq;
    in_flight_.add_to_history(plan.folded);
    timed_ = false;
  }
  InFlight& in_flight() { return in_flight_; }

 protected:
  Status check(Clock::duration elapsed) override {
    if (!timed_) {  // the clock is read on the slow path only
      in_flight_.start = Clock::now() - elapsed;
      in_flight_.late_said = false;
      in_flight_.left_since = {};
      timed_ = true;
    }
    return detector_.check(in_flight_);
  }

 private:
  FailureDetector& detector_;
  InFlight in_flight_;
  bool timed_ = false;
};

}  // namespace ouro::rt
