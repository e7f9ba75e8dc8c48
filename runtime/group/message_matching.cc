// Which receive gets which message: by source, tag and order. See messages.h; how messages move is in
// messages.cc.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/group/messages.h"

namespace ouro::rt {
namespace {

constexpr std::size_t kWorthPosting = 4096;  // bytes from which posting to the link costs less than copying

bool same_type(const Message& m, const Envelope& e) {
  return m.dtype == e.dtype || m.dtype == DType::u8 || e.dtype == DType::u8;
}
bool fits(const Message& m, const Envelope& e) {
  return same_type(m, e) && (m.exact ? e.bytes == m.bytes : e.bytes <= m.bytes);
}

/// The outcome of a receive that a message does not fit.
Status misfit(const Message& m, const Envelope& e) {
  if (!same_type(m, e))
    return Status(Failure{
        .reason = Reason::mismatch,
        .text =
            fmt::format("the message from rank {} with tag {} has {} elements of {}; expected {} (it stays "
                        "queued)",
                        e.source, e.tag, e.bytes / size_of(e.dtype), name(e.dtype), name(m.dtype)),
        .rank = e.source,
        .detector = "message"});
  if (m.exact)
    return Status(Failure{
        .reason = Reason::mismatch,
        .text = fmt::format("the message from rank {} with tag {} has {} bytes; expected {} (it stays "
                            "queued)",
                            e.source, e.tag, e.bytes, m.bytes),
        .rank = e.source,
        .detector = "message"});
  return invalid(
      fmt::format("the message from rank {} with tag {} has {} bytes; room for {} (it stays queued)",
                  e.source, e.tag, e.bytes, m.bytes));
}

// The kinds of MatchQueue: receives by source and tag, and by source; messages by source and tag, and by tag.
constexpr std::size_t kPair = 0, kSource = 1, kTag = 1;
std::uint64_t pair_of(int source, int tag) {
  return std::uint64_t{static_cast<std::uint32_t>(source)} << 32 | static_cast<std::uint32_t>(tag);
}
std::uint64_t kind_of(int source_or_tag) { return static_cast<std::uint32_t>(source_or_tag); }

}  // namespace

Unexpected& Messages::add(const Envelope& e, std::size_t got, std::shared_ptr<DeviceReceipt> receipt) {
  auto memory = receipt ? nullptr : std::make_unique_for_overwrite<std::byte[]>(e.bytes);
  if (!receipt) backlog_ += e.bytes;
  Unexpected& a = arrivals_.emplace_back(Unexpected{e, std::move(memory), got, std::move(receipt)});
  a.self = std::prev(arrivals_.end());
  return a;
}

void Messages::discard(Unexpected& a) {
  waiting_.remove(a);
  if (a.matched != 0) set_aside_.erase(a.matched);
  if (a.data) backlog_ -= a.envelope.bytes;
  arrivals_.erase(a.self);
}

/// Whether a message without a receive may leave its link. See progress().
bool Messages::may_take(int source, std::size_t bytes, std::optional<int> asked) const {
  if (backlog_ + bytes <= most_ || asked == source || asked == Message::kAny) return true;
  if (wanted_.first(kSource, kind_of(source)) || wanted_.first(kSource, kind_of(Message::kAny))) return true;
  return std::any_of(out_.begin(), out_.end(),
                     [](const Outbound& o) { return !o.queue.empty() || !o.lent.empty(); });
}

/// The earliest of the posted receives that match this message.
Message* Messages::first_wanted(const Envelope& e) const {
  Message* const named = wanted_.first(kPair, pair_of(e.source, e.tag));
  Message* const any = wanted_.first(kPair, pair_of(Message::kAny, e.tag));
  if (!named || !any) return named ? named : any;
  return named->place.number() < any->place.number() ? named : any;
}

/// The earliest of the messages that wait for such a receive.
Unexpected* Messages::first_waiting(int source, int tag) const {
  return source == Message::kAny ? waiting_.first(kTag, kind_of(tag))
                                 : waiting_.first(kPair, pair_of(source, tag));
}

/// Takes out the first of the posted receives that match this message and that it fits, or returns nullptr.
/// Matching receives before that one end with an error.
Message* Messages::receiver_of(const Envelope& e) {
  while (Message* const first = first_wanted(e)) {
    wanted_.remove(*first);
    if (fits(*first, e)) return first;
    recall(*first);  // slots of the message may be in flight to its memory
    first->outcome = misfit(*first, e);
    end(*first);
    bump(doorbell());
  }
  return nullptr;
}

/// Gives a message that waits from now on to a receive, if there is one that it fits. `a` may be destroyed
/// afterwards.
void Messages::offer(Unexpected& a) {
  Message* const receiver = receiver_of(a.envelope);
  if (!receiver) return await_receive(a);
  recall(*receiver);
  take(a, *receiver);
  bump(doorbell());
}

void Messages::await_receive(Unexpected& a) {
  if (a.place.number() != 0)
    waiting_.put_back(a);
  else
    waiting_.append(a, {pair_of(a.envelope.source, a.envelope.tag), kind_of(a.envelope.tag)});
}

/// Makes sure that nothing more is written to the memory of a receive that has left the queue.
void Messages::recall(const Message& m) {
  if (m.peer == Message::kAny) return;  // never posted to a link
  Inbound& i = in_[static_cast<std::size_t>(m.peer)];
  if (i.expected != &m) return;
  if (FarLinks* const links = far(m.peer)) links->recall_inbound(m.peer);
  i.expected = nullptr;
}

/// Matches a new receive with the message that was set aside for it, or with what has arrived, in order of
/// arrival; else queues it.
void Messages::claim(Message& m) {
  if (m.matched != 0) {
    const auto found = set_aside_.find(m.matched);
    if (found != set_aside_.end() && !found->second->claimed) return take(*found->second, m);
    m.outcome = invalid(found == set_aside_.end()
                            ? "recv: the matched message was received before"
                            : "recv: the matched message is being received; another receive has it");
    end(m);
    return;
  }
  if (Unexpected* const found = first_waiting(m.peer, m.tag)) return take(*found, m);
  wanted_.append(m, {pair_of(m.peer, m.tag), kind_of(m.peer)});
  if (m.peer != Message::kAny && m.peer != rank_) expect(m.peer);
}

void Messages::take(Unexpected& a, Message& m) {
  if (!fits(m, a.envelope)) {
    m.outcome = misfit(m, a.envelope);
    end(m);
    return;
  }
  waiting_.take_out(a);
  if (a.complete()) {
    deliver(a, m);
    discard(a);
  } else {
    a.claimed = &m;
    m.claims = &a;
  }
}

/// Posts the first receive for `source` to the link, for the case that the next message of `source`
/// matches it.
void Messages::expect(int source) {
  Inbound& i = in_[static_cast<std::size_t>(source)];
  if (!i.link.view.elsewhere || i.within || i.expected) return;
  Message* const first = wanted_.first(kSource, kind_of(source));
  if (!first || first->bytes < kWorthPosting) return;
  // An earlier receive from any source may take this message, or one of another source and leave this one to
  // the next receive.
  const Message* const open = wanted_.first(kPair, pair_of(Message::kAny, first->tag));
  if (open && open->place.number() < first->place.number()) return;
  i.expected = first;
  post_receive(i, source,
               {i.link.next, i.expected->data, i.expected->bytes, i.expected->tag,
                device_of(source, i.expected->carrier.receipt)});
}

std::shared_ptr<std::byte> Messages::device_of(int source,
                                               const std::shared_ptr<DeviceReceipt>& receipt) const {
  return receipt && far(source) && far_->takes_device(source) ? receipt->on_device() : nullptr;
}

void Messages::post_receive(Inbound& i, int source, const PostedReceive& where) {
  FarLinks* const links = far(source);
  if (!links || (!where.to && !i.posted)) return;
  links->post_receive(source, where);
  i.posted = where.to != nullptr;
}

void Messages::deliver(Unexpected& a, Message& m) {
  if (a.receipt && m.carrier.receipt) {
    m.carrier.receipt->take_over(a.receipt);
  } else if (a.receipt) {
    m.outcome = a.receipt->copy_to(m.data);
  } else {
    copy_bytes(m.data, a.data.get(), a.envelope.bytes);
    if (m.carrier.receipt) m.carrier.receipt->arrived(0, a.envelope.bytes, false);
  }
  m.envelope = a.envelope;
  m.claims = nullptr;
  end(m);
}

std::optional<Envelope> Messages::peek(int source, int tag) const {
  std::lock_guard lock(mutex_);
  const Unexpected* const found = first_waiting(source, tag);
  return found ? std::optional(found->envelope) : std::nullopt;
}

std::optional<Messages::Match> Messages::match(int source, int tag) {
  std::lock_guard lock(mutex_);
  Unexpected* const found = first_waiting(source, tag);
  if (!found) return std::nullopt;
  set_aside_[last_key_ + 1] = found;
  found->matched = ++last_key_;
  waiting_.take_out(*found);
  return Match{found->envelope, found->matched};
}

void Messages::put_back(std::uint64_t key) {
  std::lock_guard lock(mutex_);
  const auto at = set_aside_.find(key);
  if (at == set_aside_.end()) return;
  Unexpected& a = *at->second;
  set_aside_.erase(at);
  a.matched = 0;
  if (!a.claimed) offer(a);  // else the receive that has claimed it gets it
}

}  // namespace ouro::rt
