// Messages that one thread drives. See message_set.h.
#include "runtime/group/message_set.h"

#include <fmt/format.h>

#include <exception>
#include <utility>
#include <vector>

#include "runtime/core/deadline.h"
#include "runtime/core/no_memory.h"

namespace ouro::rt {

class MessageSet::SetWaiter final : public Waiter {
 public:
  explicit SetWaiter(MessageSet& set)
      : Waiter(set.mailbox_.detector_.abort_word(), set.mailbox_.cores_.patience()), set_(set) {
    drive(set.mailbox_.fabric_);
  }

 protected:
  Status check(Clock::duration) override { return set_.check(); }

 private:
  MessageSet& set_;
};

MessageSet::MessageSet(std::shared_ptr<Group> group)
    : group_(std::move(group)), mailbox_(group_->mailbox()), stream_("ouro-messages", 0) {}

MessageSet::~MessageSet() {
  if (inherited()) return;
  bool busy = false;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    busy = unfinished_ > 0;
  }
  if (busy) group_->abort("its message set was destroyed");
}

Status MessageSet::add(const Message& m, Then then) {
  OURO_TRY(group_->check(m));
  OURO_TRY(group_->ready());
  const auto e = std::make_shared<SetMessage>(m, mailbox_.in_flight(), std::move(then));
  if (!e->held) return group_->gone();
  e->ended = &ended_;
  e->until = deadline_after(mailbox_.detector_.settings().deadline);
  {
    std::lock_guard lock(mutex_);
    if (closed_) return {Reason::revoked, "the message set is closed"};
    ++unfinished_;
    e->keep = e;
  }
  const auto undo = [&] {
    std::lock_guard lock(mutex_);
    e->keep.reset();
    if (--unfinished_ == 0) at_rest_.notify_all();
  };
  const Status posted = mailbox_.post({e.get()});
  if (!posted.ok()) {
    undo();
    return posted;
  }
  Messages& engine = *mailbox_.messages_;  // made by post(); it stays while messages are in flight
  Status moved;
  try {
    moved = engine.progress();  // most messages that can move need no thread
  } catch (const std::exception&) {
    moved = no_memory();
  }
  if (!moved.ok()) (void)mailbox_.detector_.fail(moved);  // the set's thread ends the messages
  finish_ended(engine);
  std::lock_guard lock(mutex_);
  if (e->stage == SetMessage::Stage::over) return {};
  e->stage = SetMessage::Stage::open;
  e->at = open_.insert(open_.end(), e.get());
  if (!std::exchange(serving_, true))
    stream_.enqueue([this] {
      serve();
      return Status();
    });
  return {};
}

void MessageSet::finish(SetMessage& e, const Status& outcome) {
  std::shared_ptr<SetMessage> keep;
  {
    std::lock_guard lock(mutex_);
    if (e.stage == SetMessage::Stage::open) {
      open_.erase(e.at);
      if (open_.empty()) bump(mailbox_.messages_->doorbell());  // serve() has nothing to wait for any more
    }
    e.stage = SetMessage::Stage::over;
    keep = std::move(e.keep);
  }
  mailbox_.posted_.fetch_sub(1);
  e.held.end();
  e.then(outcome, e.envelope);
  std::lock_guard lock(mutex_);
  if (--unfinished_ == 0) at_rest_.notify_all();
}

void MessageSet::finish_ended(Messages& engine) {
  while (Message* const m = engine.take_ended(ended_)) finish(static_cast<SetMessage&>(*m), m->outcome);
}

void MessageSet::give_up(Messages& engine, const Status& why,
                         const std::function<bool(SetMessage&)>& take_back) {
  std::vector<SetMessage*> ended;
  {
    std::lock_guard lock(mutex_);
    for (SetMessage* const e : open_)
      if (!engine.done(*e) && take_back(*e) && !engine.done(*e)) ended.push_back(e);
  }
  for (SetMessage* const e : ended) finish(*e, why);
}

/// Errors end all messages of the set; those that fail the group have done so.
Status MessageSet::check() {
  FailureDetector& detector = mailbox_.detector_;
  detector.adopt_errors();
  OURO_TRY(detector.status());
  Messages& engine = *mailbox_.messages_;
  std::unique_lock lock(mutex_);
  const auto now = Clock::now();
  bool any = false;
  std::vector<SetMessage*> vain;
  for (SetMessage* const e : open_) {
    if (!mailbox_.in_vain(*e) || engine.done(*e)) continue;
    any = true;
    if (left_since_ == Clock::time_point{}) left_since_ = now;
    if (now - left_since_ < FailureDetector::kCauseFirst) break;
    if (!mailbox_.in_flight_.closed()) return mailbox_.left(*e);
    vain.push_back(e);
  }
  if (!any) left_since_ = {};
  if (!open_.empty() && now >= open_.front()->until && !engine.done(*open_.front())) {
    const double seconds = std::chrono::duration<double>(detector.settings().deadline).count();
    return detector.fail(Status(Reason::deadline, fmt::format("no message within {} s", seconds)));
  }
  lock.unlock();
  for (SetMessage* const e : vain)
    if (engine.withdraw(*e) && !engine.done(*e))
      finish(*e,
             {Reason::revoked, fmt::format("group '{}' was closed before {}", detector.settings().group,
                                           e->request.sends ? "the message was taken" : "a message came")});
  return {};
}

void MessageSet::serve() {
  Messages& engine = *mailbox_.messages_;
  SetWaiter waiter(*this);
  for (;;) {
    const std::uint64_t heard = load(engine.doorbell());
    Status moved;
    try {
      moved = engine.progress();
    } catch (const std::exception&) {
      moved = no_memory();
    }
    finish_ended(engine);
    bool closing = false;
    {
      std::lock_guard lock(mutex_);
      if (open_.empty()) {
        serving_ = false;
        return;
      }
      closing = closed_;
    }
    if (moved.ok() && closing)
      give_up(engine, {Reason::revoked, "the message set was closed before a message came"},
              [&](SetMessage& e) { return !e.request.sends && engine.withdraw_unbegun(e); });
    if (moved.ok()) moved = waiter.until(engine.doorbell(), heard + 1, mailbox_.only_remote_);
    if (moved.ok()) continue;
    const Status known = mailbox_.detector_.status();
    give_up(engine, known.ok() ? mailbox_.detector_.fail(moved) : known, [&](SetMessage& e) {
      (void)engine.withdraw(e);
      return true;
    });
  }
}

void MessageSet::close() {
  if (inherited()) return;
  std::unique_lock lock(mutex_);
  closed_ = true;
  if (serving_) bump(mailbox_.messages_->doorbell());
  at_rest_.wait(lock, [this] { return unfinished_ == 0; });
}

}  // namespace ouro::rt
