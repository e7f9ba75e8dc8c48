// The message engine. See messages.h.
#include "runtime/group/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/core/no_memory.h"

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

/// The type of a message's elements in the headers of its slots; 0 is not said.
std::uint64_t on_wire(DType t) { return static_cast<std::uint64_t>(t) + 1; }

void put(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

/// A message for which there was no receive when it began.
struct Unexpected {
  Envelope envelope;
  std::unique_ptr<std::byte[]> data;
  std::size_t got = 0;
  std::shared_ptr<DeviceReceipt> receipt = nullptr;  // of a receive that has ended; in place of `data`
  Message* claimed = nullptr;
  std::uint64_t matched = 0;  // its key, if it is set aside
  MatchQueue<Unexpected>::Place place = {};
  std::list<Unexpected>::iterator self = {};
  std::byte* memory() const { return receipt ? receipt->on_host() : data.get(); }
  bool complete() const { return got == envelope.bytes; }
};

Messages::Messages(std::unique_ptr<transport::Links> links, int rank, int size)
    : links_(std::move(links)),
      rank_(rank),
      in_(static_cast<std::size_t>(size)),
      out_(static_cast<std::size_t>(size)) {
  for (int r = 0; r < size; ++r) in_[static_cast<std::size_t>(r)].link.view = links_->inbound(r);
}

Messages::~Messages() {
  for (std::size_t r = 0; r < in_.size(); ++r) links_->recall_inbound(static_cast<int>(r));
}

Status Messages::post(Message& m) {
  std::unique_lock lock(mutex_);
  if (!m.sends) {
    claim(m);
  } else if (m.peer == rank_) {
    Unexpected& a = add({rank_, m.tag, m.bytes, m.dtype}, m.bytes);
    put(a.data.get(), m.data, m.bytes);
    end(m);
    offer(a);
  } else {
    OURO_TRY(reach(m.peer, lock));
    out_[static_cast<std::size_t>(m.peer)].queue.push_back(&m);
  }
  return {};
}

Status Messages::reach(int to, std::unique_lock<std::mutex>& lock) {
  Outbound& o = out_[static_cast<std::size_t>(to)];
  if (o.reached) return {};
  lock.unlock();  // other threads continue meanwhile
  OURO_TRY(links_->reach(to));
  lock.lock();
  o.link.view = links_->outbound(to);
  o.reached = true;
  return {};
}

void Messages::end(Message& m) {
  m.done = true;
  if (!m.ended) return;
  (m.ended->last ? m.ended->last->next_ended : m.ended->first) = &m;
  m.ended->last = &m;
}

Message* Messages::take_ended(EndedMessages& ended) {
  std::lock_guard lock(mutex_);
  Message* const m = ended.first;
  if (m) ended.first = m->next_ended;
  if (!ended.first) ended.last = nullptr;
  return m;
}

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
Message* Messages::first_wanted(const Envelope& e) {
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

/// Gives a message that waits from now on to the first matching receive that it fits; otherwise it waits.
/// Matching receives before that one end with an error. `a` may be destroyed afterwards.
void Messages::offer(Unexpected& a) {
  const Envelope e = a.envelope;
  while (Message* const receiver = first_wanted(e)) {
    wanted_.remove(*receiver);
    recall(*receiver);
    const bool taken = fits(*receiver, e);
    take(a, *receiver);
    bump(doorbell());
    if (taken) return;
  }
  await_receive(a);
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
  links_->recall_inbound(m.peer);
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
                device_of(source, i.expected->receipt)});
}

std::shared_ptr<std::byte> Messages::device_of(int source,
                                               const std::shared_ptr<DeviceReceipt>& receipt) const {
  return receipt && links_->takes_device(source) ? receipt->on_device() : nullptr;
}

void Messages::post_receive(Inbound& i, int source, const PostedReceive& where) {
  if (!where.to && !i.posted) return;
  links_->post_receive(source, where);
  i.posted = where.to != nullptr;
}

void Messages::deliver(Unexpected& a, Message& m) {
  if (a.receipt && m.receipt) {
    m.receipt->take_over(a.receipt);
  } else if (a.receipt) {
    m.outcome = a.receipt->copy_to(m.data);
  } else {
    put(m.data, a.data.get(), a.envelope.bytes);
    if (m.receipt) m.receipt->arrived(0, a.envelope.bytes, false);
  }
  m.envelope = a.envelope;
  m.claims = nullptr;
  end(m);
}

Status Messages::progress(std::optional<int> source) {
  std::lock_guard lock(mutex_);
  for (std::size_t r = 0; r < in_.size(); ++r) OURO_TRY(pull(in_[r], static_cast<int>(r), source));
  for (std::size_t r = 0; r < out_.size(); ++r) push(out_[r], static_cast<int>(r));
  links_->settle();
  return {};
}

/// Ends lent sends that the receiver has taken: their memory belongs to their callers again.
void Messages::give_back(Outbound& o) {
  for (; !o.lent.empty() && load(*o.link.view.freed) >= o.lent.front()->end; o.lent.pop_front())
    end(*o.lent.front());
}

Result<bool> Messages::damage_link(int to) {
  std::unique_lock lock(mutex_);
  OURO_TRY(reach(to, lock));
  Outbound& o = out_[static_cast<std::size_t>(to)];
  if (o.link.next - load(*o.link.view.freed) >= o.link.view.slot_count) return false;
  // The slot bears a wrong number of its message's first slot.
  o.link.view.header(o.link.next) = {o.link.next ^ 1, 0, 0, 0, 0};
  publish(*o.link.view.full, ++o.link.next);
  bump(*links_->doorbell(to));
  return true;
}

void Messages::push(Outbound& o, int to) {
  give_back(o);
  bool rang = false;
  const auto tell = [&] {  // once for all chunks at hand, so that they are sent together
    if (!rang) return;
    if (links_->remote(to)) links_->sent(to);
    bump(*links_->doorbell(to));
  };
  while (!o.queue.empty() && !o.torn) {
    Message& m = *o.queue.front();
    // A long message waits for its receiver in any case, so it need not be copied. One on a device cannot be.
    const bool lends = m.lent || (o.link.view.elsewhere && m.bytes > kBuffered);
    do {
      if (o.link.next - load(*o.link.view.freed) >= o.link.view.slot_count) return tell();
      const std::size_t bytes = std::min<std::size_t>(m.bytes - m.moved, o.link.view.slot_bytes);
      if (o.link.view.elsewhere)
        o.link.view.elsewhere[o.link.next % o.link.view.slot_count] =
            lends && !m.lent ? m.data + m.moved : nullptr;
      if (m.lent) links_->lend_device(to, o.link.next, m.data + m.moved, m.lent);
      if (!lends) put(o.link.view.payload(o.link.next), m.data + m.moved, bytes);
      if (!m.begun) m.first = o.link.next;
      o.link.view.header(o.link.next) = {m.first, on_wire(m.dtype), m.bytes,
                                         static_cast<std::uint32_t>(bytes), m.tag};
      publish(*o.link.view.full, ++o.link.next);
      m.moved += bytes;
      m.begun = rang = true;
    } while (m.moved < m.bytes);
    o.queue.pop_front();
    m.end = o.link.next;
    if (lends)
      o.lent.push_back(&m);
    else
      end(m);
  }
  tell();
}

Status Messages::pull(Inbound& i, int source, std::optional<int> asked) {
  const auto corrupt = [&](const char* what) {
    return Status(
        Failure{.reason = Reason::ring_corrupt, .text = what, .rank = source, .detector = "slot header"});
  };
  if (i.lost) return no_memory();
  bool freed = false;
  while (load(*i.link.view.full) > i.link.next) {
    const SlotHeader h = i.link.view.header(i.link.next);
    if (!i.within) {
      if (h.signature > kDTypes) return corrupt("a message's slot has an element type that does not exist");
      i.envelope = {source, h.tag, h.total,
                    h.signature == 0 ? DType::u8 : static_cast<DType>(h.signature - 1)};
      Message* wanted = first_wanted(i.envelope);
      for (; wanted && !fits(*wanted, i.envelope); wanted = first_wanted(i.envelope)) {
        wanted_.remove(*wanted);  // ends with an error; the message is for the next one
        recall(*wanted);          // its next slots may be in flight to the posted memory
        wanted->outcome = misfit(*wanted, i.envelope);
        end(*wanted);
      }
      if (!wanted && !may_take(source, h.total, asked)) break;
      i.got = 0;
      i.within = true;
      i.first = i.link.next;
      i.target = wanted;
      i.arrival = nullptr;
      if (wanted) {
        wanted->begun = true;
        wanted_.remove(*wanted);
      } else {
        try {
          i.arrival = &add(i.envelope, 0);
          await_receive(*i.arrival);
        } catch (const std::exception&) {
          i.lost = true;
          return Status(
              Reason::resource,
              fmt::format("no memory for an unexpected message of {} bytes from rank {}", h.total, source));
        }
      }
    }
    if (h.seq != i.first || h.bytes > i.link.view.slot_bytes || h.bytes > i.envelope.bytes - i.got ||
        (h.bytes == 0 && i.envelope.bytes > 0))
      return corrupt("a message's slot has a size that cannot be");
    std::byte* to = i.target ? i.target->data : i.arrival->memory();
    const auto& receipt = i.target ? i.target->receipt : i.arrival->receipt;
    if (i.link.next == i.first) {
      Message* const expected = std::exchange(i.expected, nullptr);
      if ((!i.target || i.target != expected) && i.envelope.bytes > h.bytes)
        post_receive(i, source, {i.first, to, i.envelope.bytes, i.envelope.tag, device_of(source, receipt)});
    }
    const auto& view = i.link.view;
    const std::byte* const device = view.on_device ? view.on_device[i.link.next % view.slot_count] : nullptr;
    const bool there = device && receipt && device == receipt->on_device().get() + i.got;
    if (device && !there) {  // in memory of a receive that did not get the message
      OURO_TRY(copy_to_host(to + i.got, device, h.bytes));
    } else if (const std::byte* const found = view.found(i.link.next); !there && found != to + i.got) {
      put(to + i.got, found, h.bytes);
    }
    if (receipt) receipt->arrived(i.got, h.bytes, there);
    i.got += h.bytes;
    publish(*i.link.view.freed, ++i.link.next);
    freed = true;
    if (!i.target) i.arrival->got = i.got;
    if (i.got < i.envelope.bytes) continue;
    i.within = false;
    // Before the memory belongs to the caller again: a peer may have more data in flight for it than it
    // has announced.
    expect(source);
    if (!i.expected) post_receive(i, source, {});
    if (i.target) {
      i.target->envelope = i.envelope;
      end(*i.target);
    } else if (Message* m = i.arrival->claimed) {
      deliver(*i.arrival, *m);
      discard(*i.arrival);
    }
  }
  if (freed) bump(*links_->doorbell(source));  // a sender may be waiting for room
  return {};
}

bool Messages::withdraw(Message& m) {
  std::lock_guard lock(mutex_);
  return withdraw_locked(m);
}

bool Messages::withdraw_unbegun(Message& m) {
  std::lock_guard lock(mutex_);
  if (m.done || m.begun || m.claims) return false;
  return withdraw_locked(m);
}

bool Messages::withdraw_locked(Message& m) {
  if (m.done) return true;
  if (m.sends) {
    Outbound& o = out_[static_cast<std::size_t>(m.peer)];
    std::erase(o.queue, &m);
    if (!m.begun) return true;
    links_->recall_outbound(m.peer);
    if (std::erase(o.lent, &m) > 0) {  // all of it is in slots now, and will arrive
      end(m);
      return true;
    }
    o.torn = true;
    return false;
  }
  wanted_.remove(m);
  recall(m);
  if (Unexpected* const a = std::exchange(m.claims, nullptr)) {
    a->claimed = nullptr;
    if (a->matched == 0) offer(*a);
  }
  if (!m.begun) return true;
  for (Inbound& i : in_)
    if (i.within && i.target == &m) {  // the rest goes into a buffer here, with what has arrived already
      if (!m.receipt) links_->recall_inbound(i.envelope.source);
      try {
        i.arrival =
            &add(i.envelope, i.got, m.receipt);  // a receipt's memory is not the caller's: it can stay in use
      } catch (const std::exception&) {
        if (m.receipt) links_->recall_inbound(i.envelope.source);  // its memory goes with the message
        i.lost = true;
        break;
      }
      if (!m.receipt) put(i.arrival->data.get(), m.data, i.got);
      i.target = nullptr;
      offer(*i.arrival);
    }
  return true;
}

bool Messages::done(const Message& m) const {
  std::lock_guard lock(mutex_);
  return m.done;
}

bool Messages::all_arrived(bool ask) {
  std::lock_guard lock(mutex_);
  bool all = true;
  for (std::size_t r = 0; r < out_.size(); ++r) {
    const Outbound& o = out_[r];
    if (!o.queue.empty() || !o.lent.empty()) return false;
    all &= !o.reached || links_->arrived(static_cast<int>(r), ask);
  }
  return all;
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
  if (!a.claimed) offer(a);  // else it goes to the receive that has claimed it
}

}  // namespace ouro::rt
