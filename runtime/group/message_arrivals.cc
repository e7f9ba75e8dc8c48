// The message engine: receives, and messages that arrive. See messages.h.
#include <fmt/format.h>

#include <exception>
#include <iterator>
#include <utility>

#include "runtime/core/no_memory.h"
#include "runtime/group/messages.h"

namespace ouro::rt {
namespace {

constexpr std::size_t kWorthPosting = 4096;  // bytes from which posting to the link costs less than copying

Status corrupt_slot(int source, const char* what) {
  return Status(
      Failure{.reason = Reason::ring_corrupt, .text = what, .rank = source, .detector = "slot header"});
}

}  // namespace

// ---- messages without a receive -------------------------------------------------------------------

Messages::StoredMessage& Messages::store(const Envelope& e, std::size_t got) {
  auto memory = std::make_unique_for_overwrite<std::byte[]>(e.bytes);
  StoredMessage& a = store_in(MessageCarrier(memory.get()), e, got);
  a.own_memory = std::move(memory);
  matching_.hold(a, e.bytes);
  return a;
}

Messages::StoredMessage& Messages::store_in(const MessageCarrier& carrier, const Envelope& e,
                                            std::size_t got) {
  StoredMessage& a = arrivals_.emplace_back();
  a.self = std::prev(arrivals_.end());
  a.envelope = e;
  a.carrier = carrier;
  a.got = got;
  return a;
}

void Messages::discard(StoredMessage& a) {
  matching_.forget(a);
  arrivals_.erase(a.self);
}

/// Takes out the first of the posted receives that match this message and that it fits, or returns nullptr.
/// Matching receives before that one end with an error.
Message* Messages::receiver_of(const Envelope& e) {
  Status misfit;
  while (MatchableReceive* const receive = matching_.take_receive(e, &misfit)) {
    Message& m = static_cast<Message&>(*receive);
    if (misfit.ok()) return &m;
    recall(m);  // slots of the message may be in flight to its memory
    m.outcome = std::exchange(misfit, {});
    end(m);
    bump(doorbell());
  }
  return nullptr;
}

/// Gives a message that waits from now on to a receive, if there is one that it fits. `a` may be
/// destroyed afterwards.
void Messages::offer(StoredMessage& a) {
  Message* const receiver = receiver_of(a.envelope);
  if (!receiver) return matching_.await_receive(a);
  recall(*receiver);
  MessageMatching::claim(a, *receiver);
  deliver_if_complete(a, *receiver);
  bump(doorbell());
}

void Messages::deliver_if_complete(StoredMessage& a, Message& m) {
  if (!a.complete()) return;
  m.outcome = m.carrier.take_all(a.carrier, a.envelope.bytes);
  m.envelope = a.envelope;
  discard(a);
  end(m);
}

std::optional<Envelope> Messages::peek(int source, int tag) const {
  std::lock_guard lock(mutex_);
  const UnexpectedMessage* const found = matching_.peek(source, tag);
  return found ? std::optional(found->envelope) : std::nullopt;
}

std::optional<Messages::Match> Messages::match(int source, int tag) {
  std::lock_guard lock(mutex_);
  return matching_.set_aside(source, tag);
}

void Messages::put_back(std::uint64_t key) {
  std::lock_guard lock(mutex_);
  if (UnexpectedMessage* const a = matching_.put_back(key)) offer(stored(*a));
}

// ---- receives -------------------------------------------------------------------------------------

void Messages::begin_receive(Message& m) {
  UnexpectedMessage* found = nullptr;
  m.outcome = matching_.post(m, &found);
  if (!m.outcome.ok()) return end(m);
  if (found) return deliver_if_complete(stored(*found), m);
  const int source = m.request.peer;
  if (source != MessageRequest::kAny && source != rank_)
    expect(in_[static_cast<std::size_t>(source)], source);
}

Status Messages::pull(Inbound& i, int source, std::optional<int> asked) {
  if (i.lost) return no_memory();
  bool freed = false;
  while (load(*i.link.view.full) > i.link.next) {
    const SlotHeader h = i.link.view.header(i.link.next);
    if (!i.within) {
      OURO_TRY(begin_arrival(i, source, h, asked));
      if (!i.within) break;
    }
    OURO_TRY(take_chunk(i, source, h));
    publish(*i.link.view.freed, ++i.link.next);
    freed = true;
    if (i.got == i.envelope.bytes) end_arrival(i, source);
  }
  if (freed) bump(*links_->doorbell(source));  // a sender may be waiting for room
  return {};
}

Status Messages::begin_arrival(Inbound& i, int source, const SlotHeader& h, std::optional<int> asked) {
  if (h.signature > kDTypes)
    return corrupt_slot(source, "a message's slot has an element type that does not exist");
  i.envelope = {source, h.tag, h.total, h.signature == 0 ? DType::u8 : static_cast<DType>(h.signature - 1)};
  Message* const target = receiver_of(i.envelope);
  if (!target && !matching_.may_take(source, h.total, asked) && !has_sends()) return {};
  i.within = true;
  i.first = i.link.next;
  i.got = 0;
  i.target = target;
  i.arrival = nullptr;
  if (target) {
    target->begun = true;
    return {};
  }
  try {
    i.arrival = &store(i.envelope, 0);
    matching_.await_receive(*i.arrival);
  } catch (const std::exception&) {
    i.lost = true;
    return Status(
        Reason::resource,
        fmt::format("no memory for an unexpected message of {} bytes from rank {}", h.total, source));
  }
  return {};
}

Status Messages::take_chunk(Inbound& i, int source, const SlotHeader& h) {
  if (h.seq != i.first || h.bytes > i.link.view.slot_bytes || h.bytes > i.envelope.bytes - i.got ||
      (h.bytes == 0 && i.envelope.bytes > 0))
    return corrupt_slot(source, "a message's slot has a size that cannot be");
  const MessageCarrier& carrier = i.carrier();
  if (i.link.next == i.first) {
    Message* const expected = std::exchange(i.expected, nullptr);
    if ((!i.target || i.target != expected) && i.envelope.bytes > h.bytes)
      post_to_link(i, source, carrier, i.envelope.bytes, i.envelope.tag);
  }
  OURO_TRY(carrier.take({i.link.view, i.link.next, i.got, h.bytes}));
  i.got += h.bytes;
  if (i.arrival) i.arrival->got = i.got;
  return {};
}

void Messages::end_arrival(Inbound& i, int source) {
  i.within = false;
  // Before the memory belongs to the caller again: a peer may have more data in flight for it than it
  // has announced.
  expect(i, source);
  if (!i.expected) clear_posted(i, source);
  if (i.target) {
    i.target->envelope = i.envelope;
    end(*i.target);
  } else if (MatchableReceive* const receive = i.arrival->claimed) {
    deliver_if_complete(*i.arrival, static_cast<Message&>(*receive));
  }
}

// ---- memory in which links receive by themselves --------------------------------------------------

void Messages::expect_on_link(Inbound& i, int source) {
  if (i.within || i.expected) return;
  MatchableReceive* const receive = matching_.expected_from(source);
  if (!receive || receive->request.bytes < kWorthPosting) return;
  i.expected = static_cast<Message*>(receive);
  post_to_link(i, source, i.expected->carrier, receive->request.bytes, receive->request.tag);
}

void Messages::post_to_link(Inbound& i, int source, const MessageCarrier& carrier, std::size_t capacity,
                            int tag) {
  FarLinks* const links = far(source);
  if (!links) return;
  links->post_receive(source, {i.link.next, carrier.on_host(), capacity, tag,
                               links->takes_device(source) ? carrier.on_device() : nullptr});
  i.posted = true;
}

void Messages::clear_posted(Inbound& i, int source) {
  FarLinks* const links = i.posted ? far(source) : nullptr;
  if (!links) return;
  links->post_receive(source, {});
  i.posted = false;
}

/// The memory of a receive is not written by its link any more.
void Messages::recall(const Message& m) {
  const int source = m.request.peer;
  if (source == MessageRequest::kAny) return;  // never posted to a link
  Inbound& i = in_[static_cast<std::size_t>(source)];
  if (i.expected != &m) return;
  if (FarLinks* const links = far(source)) links->recall_inbound(source);
  i.expected = nullptr;
}

}  // namespace ouro::rt
