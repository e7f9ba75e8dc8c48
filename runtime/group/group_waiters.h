// How a group waits: for its turn, for an operation, and for messages. Used by the files of
// Group only.
#pragma once
#include <fmt/format.h>

#include "runtime/core/deadline.h"
#include "runtime/group/group.h"

namespace ouro::rt {

class Group::OpWaiter final : public Waiter {
 public:
  explicit OpWaiter(Group& g)
      : Waiter(&g.abort_word_, g.context_->cores().spin(), g.context_->cores().crowded()), group_(g) {}
  void begin(const Plan& plan, std::uint64_t seq) {
    in_flight_.plan = &plan;
    in_flight_.seq = seq;
    looked_ = false;
  }
  InFlight& in_flight() { return in_flight_; }

 protected:
  Status look(Clock::duration elapsed) override {
    if (!looked_) {  // the clock is read on the slow path only
      in_flight_.start = Clock::now() - elapsed;
      in_flight_.late_said = false;
      in_flight_.left_since = {};
      looked_ = true;
    }
    return group_.look(in_flight_);
  }

 private:
  Group& group_;
  InFlight in_flight_;
  bool looked_ = false;
};

class Group::MessageWaiter final : public Waiter {
 public:
  MessageWaiter(Group& g, const std::vector<Message*>& messages, std::chrono::milliseconds deadline)
      : Waiter(&g.abort_word_, g.context_->cores().spin(), g.context_->cores().crowded()),
        group_(g),
        messages_(messages),
        end_(deadline_after(deadline)),
        deadline_(deadline) {}

 protected:
  Status look(Clock::duration) override {
    group_.adopt_errors();
    OURO_TRY(group_.status());
    for (const Message* m : messages_) {
      if (m->peer == Message::kAny || m->peer == group_.rank_ || group_.messages_->done(*m)) continue;
      if (!group_.has_left(m->peer, group_.record_of(m->peer))) continue;
      if (left_since_ == Clock::time_point{}) left_since_ = Clock::now();
      if (Clock::now() - left_since_ >= kCauseFirst)
        return group_.fail({.reason = Reason::peer_dead,
                            .text = m->sends ? "it left the group before it took a message"
                                             : "it left the group before it sent a message",
                            .rank = m->peer,
                            .detector = "control page"},
                           nullptr, false);
    }
    if (Clock::now() < end_) return {};
    return {Reason::deadline,
            fmt::format("no message within {} s", std::chrono::duration<double>(deadline_).count())};
  }

 private:
  Group& group_;
  const std::vector<Message*>& messages_;
  Clock::time_point end_, left_since_{};
  std::chrono::milliseconds deadline_;
};

/// An operation that runs out of memory fails; nothing is thrown through the interface.
inline Status no_memory() { return {Reason::resource, "no memory for an operation's scratch space"}; }

}  // namespace ouro::rt
