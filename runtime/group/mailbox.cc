// Messages of a group as its callers see them. See mailbox.h; how they move is in messages.cc.
#include "runtime/group/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "runtime/core/deadline.h"
#include "runtime/core/log.h"
#include "runtime/plan/operation.h"

namespace ouro::rt {

using namespace std::chrono_literals;

/// How a caller waits for messages: its checks find errors of peers and peers that have left.
class Mailbox::MessageWaiter final : public Waiter {
 public:
  MessageWaiter(Mailbox& mailbox, Messages& engine, const std::vector<Message*>& messages,
                std::chrono::milliseconds deadline)
      : Waiter(mailbox.detector_.abort_word(), mailbox.cores_.patience()),
        mailbox_(mailbox),
        engine_(engine),
        messages_(messages),
        end_(deadline_after(deadline)),
        deadline_(deadline) {
    drive(mailbox.fabric_);
  }

 protected:
  Status check(Clock::duration) override {
    FailureDetector& detector = mailbox_.detector_;
    detector.adopt_errors();
    OURO_TRY(detector.status());
    for (const Message* m : messages_) {
      if (engine_.done(*m) || !mailbox_.in_vain(*m)) continue;
      if (left_since_ == Clock::time_point{}) left_since_ = Clock::now();
      if (Clock::now() - left_since_ < FailureDetector::kCauseFirst) continue;
      if (!mailbox_.in_flight_.closed()) return mailbox_.left(*m);
      closed_ = true;
      return {Reason::revoked, fmt::format("group '{}' was closed before {}", detector.settings().group,
                                           m->request.sends ? "the message was taken" : "a message came")};
    }
    if (Clock::now() < end_) return {};
    return {Reason::deadline,
            fmt::format("no message within {} s", std::chrono::duration<double>(deadline_).count())};
  }

 public:
  /// Whether the wait has ended because all members close the group: that is no failure of it.
  bool closed() const { return closed_; }

 private:
  Mailbox& mailbox_;
  Messages& engine_;
  const std::vector<Message*>& messages_;
  Clock::time_point end_, left_since_{};
  std::chrono::milliseconds deadline_;
  bool closed_ = false;
};

Mailbox::Mailbox(const CoreShare& cores, MemberRecords& members, FailureDetector& detector,
                 transport::Fabric* fabric, Faults* faults, MakeLinks make_links)
    : cores_(cores),
      members_(members),
      detector_(detector),
      fabric_(fabric),
      faults_(faults),
      make_links_(std::move(make_links)) {
  int here = 0;
  for (int r = 0; r < members.size(); ++r) here += members.is_here(r);
  only_remote_ = fabric && here == 1;
}

Result<Messages*> Mailbox::engine() {
  std::lock_guard lock(mutex_);
  if (!messages_) {
    // Other members would take messages of a second engine for the rest of what the first has begun.
    if (closed_)
      return Status(Reason::revoked, fmt::format("group '{}' is closed", detector_.settings().group));
    auto links = make_links_();
    if (!links.ok()) return links.status();
    messages_ = std::make_unique<Messages>(std::move(*links), members_.rank(), members_.size());
    OURO_INFO(P2P, "group {} opens its links for messages", detector_.settings().group);
  }
  return messages_.get();
}

Status Mailbox::check(const MessageRequest& r, const void* memory) const {
  const char* what = r.sends ? "send" : "recv";
  const int n = members_.size();
  if (r.tag < 0 && !r.exchange) return invalid(fmt::format("{}: tag {}; expected 0 to 2^31-1", what, r.tag));
  if ((r.peer < 0 || r.peer >= n) && (r.sends || r.peer != MessageRequest::kAny))
    return invalid(fmt::format("{}: rank {} is not in the group (0..{})", what, r.peer, n - 1));
  if (r.bytes > 0 && !memory) return invalid(fmt::format("{}: null buffer with {} bytes", what, r.bytes));
  if (r.bytes > kMaxBytes)
    return invalid(
        fmt::format("{}: a message that overflows an address; expected at most {} bytes", what, kMaxBytes));
  return {};
}

Status Mailbox::post(const std::vector<Message*>& messages) {
  if (!detector_.ok()) return detector_.status();
  for (const Message* m : messages) OURO_TRY(check(*m));
  Messages* engine = nullptr;
  const Message* at = nullptr;
  const auto hand_over = [&]() -> Status {
    // Receives first, so that data of a send of the same batch is written directly to its receive.
    for (bool sends : {false, true})
      for (Message* m : messages)
        if (m->request.sends == sends) {
          at = m;
          OURO_TRY(engine->post(*m));
        }
    return {};
  };
  const auto take_back = [&] {  // their memory belongs to their callers again
    for (Message* m : messages)
      if (engine) (void)engine->withdraw(*m);
  };
  try {
    auto made = this->engine();
    if (!made.ok()) return detector_.fail(made.status());
    engine = *made;
    if (faults_) OURO_TRY(strike(messages, *engine));
    const Status s = hand_over();
    if (s.ok()) {
      if (!messages.empty()) posted_.fetch_add(1);  // complete() follows
      return s;
    }
    take_back();
    return members_.has_left(at->request.peer) ? left(*at) : detector_.fail(s);
  } catch (const std::exception&) {
    take_back();
    return detector_.out_of_memory();
  }
}

bool Mailbox::in_vain(const Message& m) {
  const int self = members_.rank(), size = members_.size();
  const bool closing = in_flight_.closed();
  const auto silent = [&](int r) {
    return closing ? members_.has_finished(r) : r != self && members_.has_left(r);
  };
  const int peer = m.request.peer;
  if (m.request.sends) return peer != self && members_.has_left(peer);
  if (peer != MessageRequest::kAny) return silent(peer);
  // Another thread of this rank may still send to itself; a group of several ranks is not kept
  // waiting for that.
  for (int r = 0; r < size; ++r)
    if (!(silent(r) || (r == self && !closing && size > 1))) return false;
  return true;
}

Status Mailbox::left(const Message& m) {
  const bool any = m.request.peer == MessageRequest::kAny;
  return detector_.fail({.reason = Reason::peer_dead,
                         .text = any ? "all others left the group before one of them sent a message"
                                 : m.request.sends ? "it left the group before it took a message"
                                                   : "it left the group before it sent a message",
                         .rank = any ? -1 : m.request.peer,
                         .detector = "control page"},
                        nullptr, false);
}

/// Applies OURO_FAULT to each message.
Status Mailbox::strike(const std::vector<Message*>& messages, Messages& engine) {
  for (const Message* m : messages) {
    const MessageRequest& r = m->request;
    const Status s = faults_->strike(r.sends ? "send" : "recv");
    if (s.ok()) continue;
    if (!Faults::is_damage(s)) return detector_.fail(s);
    if (!r.sends || r.peer == members_.rank()) {
      faults_->postpone_damage();
    } else if (!members_.is_here(r.peer)) {
      fabric_->exchange().damage_next();
    } else {
      const Result<bool> damaged = engine.damage_link(r.peer);
      if (!damaged.ok()) return detector_.fail(damaged.status());
      if (!*damaged) faults_->postpone_damage();
    }
  }
  return {};
}

Status Mailbox::complete(const std::vector<Message*>& messages, std::chrono::milliseconds deadline) {
  Messages& engine = *messages_;  // made by post(); it stays while they are in flight
  MessageWaiter waiter(*this, engine, messages,
                       deadline.count() > 0 ? deadline : detector_.settings().deadline);
  Status outcome;
  auto ended = messages.begin();  // all before this one are done
  try {
    for (;;) {
      const std::uint64_t heard = load(engine.doorbell());
      outcome = engine.progress();
      if (!outcome.ok()) break;
      while (ended != messages.end() && engine.done(**ended)) ++ended;
      if (ended == messages.end()) break;
      // If no other member is on this host, only the network rings the doorbell.
      outcome = waiter.until(engine.doorbell(), heard + 1, only_remote_);
      if (!outcome.ok()) break;
    }
  } catch (const std::exception&) {
    outcome = no_memory();
  }
  bool torn = false, all_done = true;
  for (; ended != messages.end(); ++ended) {
    torn |= !engine.withdraw(**ended);
    all_done &= engine.done(**ended);
  }
  posted_.fetch_sub(1);
  if ((outcome.reason() == Reason::deadline || waiter.closed()) && all_done) outcome = {};
  if (!outcome.ok()) {
    // A message that misses a deadline of its own leaves the group usable, unless it was cut off halfway.
    const bool late = outcome.reason() == Reason::deadline && deadline.count() > 0;
    if ((late || waiter.closed()) && !torn) return outcome;
    Status known = detector_.status();
    return known.ok() ? detector_.fail(outcome) : known;
  }
  for (const Message* m : messages) OURO_TRY(m->outcome);
  return {};
}

Result<std::optional<Envelope>> Mailbox::probe(int source, int tag) {
  OURO_TRY(check({.peer = source, .tag = tag}));
  OURO_TRY(post({}));
  auto engine = this->engine();
  if (!engine.ok()) return engine.status();
  Status moved;
  try {
    moved = (*engine)->progress(source);
  } catch (const std::exception&) {
    moved = no_memory();
  }
  if (!moved.ok()) return detector_.fail(moved);
  return (*engine)->peek(source, tag);
}

Result<std::optional<Messages::Match>> Mailbox::match(int source, int tag) {
  OURO_ASSIGN(const auto here, probe(source, tag));
  if (!here) return std::optional<Messages::Match>();
  OURO_ASSIGN(Messages* const messages, engine());
  return messages->match(source, tag);
}

void Mailbox::put_back(std::uint64_t key) {
  std::lock_guard lock(mutex_);
  if (messages_) messages_->put_back(key);  // closed: the message is destroyed
}

void Mailbox::linger(std::shared_ptr<void> after) {
  std::lock_guard lock(mutex_);
  if (messages_) messages_->linger(std::move(after));
}

bool Mailbox::all_sends_over(bool ask) {
  // In this order: none begins any more, so those counted first are all that may not have been posted.
  const std::uint64_t in_flight = in_flight_.count();
  if (posted_.load() < in_flight) return false;
  std::lock_guard lock(mutex_);
  return !messages_ || messages_->all_arrived(ask);
}

void Mailbox::drain(const std::function<void()>& finishing) {
  in_flight_.close();
  auto next_question = Clock::now();
  for (bool said = false; in_flight_.any(); std::this_thread::sleep_for(100us)) {
    if (said) continue;
    const bool ask = Clock::now() >= next_question;
    if (ask) next_question = Clock::now() + 20ms;
    if (all_sends_over(ask)) finishing(), said = true;
  }
}

void Mailbox::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  messages_.reset();
}

}  // namespace ouro::rt
