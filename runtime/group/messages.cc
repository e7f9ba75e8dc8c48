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

bool fits(const Message& m, const Envelope& e) { return m.exact ? e.bytes == m.bytes : e.bytes <= m.bytes; }

/// The outcome of a receive that a message does not fit.
Status misfit(const Message& m, const Envelope& e) {
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

void put(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

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
    arrivals_.push_back({{rank_, m.tag, m.bytes}, std::vector<std::byte>(m.data, m.data + m.bytes), m.bytes});
    m.done = true;
    offer(arrivals_.back());
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

/// The earliest of the posted receives that match this message.
std::list<Message*>::iterator Messages::first_wanted(const Envelope& e) {
  return std::find_if(wanted_.begin(), wanted_.end(), [&](const Message* w) { return matches(*w, e); });
}

/// Gives a message that waits from now on to the first matching receive that it fits, if there is one.
/// Matching receives before that one end with an error. `a` may be destroyed afterwards.
void Messages::offer(Arrival& a) {
  const Envelope e = a.envelope;
  for (bool taken = false; !taken;) {
    const auto wanted = first_wanted(e);
    if (wanted == wanted_.end()) return;
    Message& receiver = **wanted;
    wanted_.erase(wanted);
    recall(receiver);
    taken = fits(receiver, e);
    take(a, receiver);
    bump(doorbell());
  }
}

/// Makes sure that nothing more is written to the memory of a receive that has left the queue.
void Messages::recall(const Message& m) {
  for (std::size_t source = 0; source < in_.size(); ++source) {
    if (in_[source].expected != &m) continue;
    links_->recall_inbound(static_cast<int>(source));
    in_[source].expected = nullptr;
  }
}

/// Matches a new receive with the message that was set aside for it, or with what has arrived, in order of
/// arrival; else queues it.
void Messages::claim(Message& m) {
  const auto found = std::find_if(arrivals_.begin(), arrivals_.end(), [&](const Arrival& a) {
    return m.matched != 0 ? a.matched == m.matched : a.waits() && matches(m, a.envelope);
  });
  if (m.matched != 0 && (found == arrivals_.end() || found->claimed)) {
    m.outcome = invalid(found == arrivals_.end()
                            ? "recv: the matched message was received before"
                            : "recv: the matched message is being received; another receive has it");
    m.done = true;
    return;
  }
  if (found != arrivals_.end()) return take(*found, m);
  wanted_.push_back(&m);
  if (m.peer != Message::kAny && m.peer != rank_) expect(m.peer);
}

void Messages::take(Arrival& a, Message& m) {
  if (!fits(m, a.envelope)) {
    m.outcome = misfit(m, a.envelope);
    m.done = true;
  } else if (a.complete()) {
    deliver(a, m);
    arrivals_.remove_if([&](const Arrival& other) { return &other == &a; });
  } else {
    a.claimed = &m;
  }
}

/// Posts the first receive for `source` to the link, for the case that the next message of `source`
/// matches it.
void Messages::expect(int source) {
  Inbound& i = in_[static_cast<std::size_t>(source)];
  if (!i.link.view.elsewhere || i.within || i.expected) return;
  const auto first =
      std::find_if(wanted_.begin(), wanted_.end(), [&](const Message* w) { return w->peer == source; });
  if (first == wanted_.end() || (*first)->bytes < kWorthPosting) return;
  // An earlier receive from any source may take this message, or one of another source and leave this one to
  // the next receive.
  const auto open = [&](const Message* w) { return w->peer == Message::kAny && w->tag == (*first)->tag; };
  if (std::any_of(wanted_.begin(), first, open)) return;
  i.expected = *first;
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

void Messages::deliver(Arrival& a, Message& m) {
  if (a.receipt && m.receipt) {
    m.receipt->take_over(a.receipt);
  } else if (a.receipt) {
    m.outcome = a.receipt->copy_to(m.data);
  } else {
    put(m.data, a.data.data(), a.envelope.bytes);
    if (m.receipt) m.receipt->arrived(0, a.envelope.bytes, false);
  }
  m.envelope = a.envelope;
  m.done = true;
}

Status Messages::progress() {
  std::lock_guard lock(mutex_);
  for (std::size_t r = 0; r < in_.size(); ++r) OURO_TRY(pull(in_[r], static_cast<int>(r)));
  for (std::size_t r = 0; r < out_.size(); ++r) push(out_[r], static_cast<int>(r));
  links_->settle();
  return {};
}

/// Ends lent sends that the receiver has taken: their memory belongs to their callers again.
void Messages::give_back(Outbound& o) {
  for (; !o.lent.empty() && load(*o.link.view.freed) >= o.lent.front()->end; o.lent.pop_front())
    o.lent.front()->done = true;
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
      o.link.view.header(o.link.next) = {m.first, 0, m.bytes, static_cast<std::uint32_t>(bytes), m.tag};
      publish(*o.link.view.full, ++o.link.next);
      m.moved += bytes;
      m.begun = rang = true;
    } while (m.moved < m.bytes);
    o.queue.pop_front();
    m.end = o.link.next;
    if (lends)
      o.lent.push_back(&m);
    else
      m.done = true;
  }
  tell();
}

Status Messages::pull(Inbound& i, int source) {
  const auto corrupt = [&](const char* what) {
    return Status(
        Failure{.reason = Reason::ring_corrupt, .text = what, .rank = source, .detector = "slot header"});
  };
  if (i.lost) return no_memory();
  bool freed = false;
  while (load(*i.link.view.full) > i.link.next) {
    const SlotHeader h = i.link.view.header(i.link.next);
    if (!i.within) {
      i.envelope = {source, h.tag, h.total};
      i.got = 0;
      i.within = true;
      i.first = i.link.next;
      i.target = nullptr;
      i.arrival = arrivals_.end();
      auto wanted = first_wanted(i.envelope);
      for (; wanted != wanted_.end() && !fits(**wanted, i.envelope); wanted = first_wanted(i.envelope)) {
        Message& w = **wanted;  // ends with an error; the message is for the next one
        recall(w);              // its next slots may be in flight to the posted memory
        w.outcome = misfit(w, i.envelope);
        w.done = true;
        wanted_.erase(wanted);
      }
      if (wanted != wanted_.end()) {
        i.target = *wanted;
        i.target->begun = true;
        wanted_.erase(wanted);
      } else {
        try {
          arrivals_.push_back({i.envelope, std::vector<std::byte>(i.envelope.bytes)});
        } catch (const std::exception&) {
          i.lost = true;
          return Status(
              Reason::resource,
              fmt::format("no memory for an unexpected message of {} bytes from rank {}", h.total, source));
        }
        i.arrival = std::prev(arrivals_.end());
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
      i.target->done = true;
    } else if (Message* m = i.arrival->claimed) {
      deliver(*i.arrival, *m);
      arrivals_.erase(i.arrival);
    }
  }
  if (freed) bump(*links_->doorbell(source));  // a sender may be waiting for room
  return {};
}

bool Messages::withdraw(Message& m) {
  std::lock_guard lock(mutex_);
  if (m.done) return true;
  if (m.sends) {
    Outbound& o = out_[static_cast<std::size_t>(m.peer)];
    std::erase(o.queue, &m);
    if (!m.begun) return true;
    links_->recall_outbound(m.peer);
    if (std::erase(o.lent, &m) > 0) return m.done = true;  // all of it is in slots now, and will arrive
    o.torn = true;
    return false;
  }
  wanted_.remove(&m);
  recall(m);
  for (Arrival& a : arrivals_) {
    if (a.claimed != &m) continue;
    a.claimed = nullptr;
    if (a.waits()) {
      offer(a);
      break;  // `a` may be destroyed; a receive claims one message
    }
  }
  for (Inbound& i : in_)
    if (i.within && i.target == &m) {  // the rest goes into a buffer here, with what has arrived already
      if (!m.receipt) links_->recall_inbound(i.envelope.source);
      try {
        if (m.receipt)  // not the caller's memory: it can stay in use
          arrivals_.push_back({.envelope = i.envelope, .data = {}, .got = i.got, .receipt = m.receipt});
        else
          arrivals_.push_back({i.envelope, std::vector<std::byte>(i.envelope.bytes), i.got});
      } catch (const std::exception&) {
        if (m.receipt) links_->recall_inbound(i.envelope.source);  // its memory goes with the message
        i.lost = true;
        break;
      }
      i.arrival = std::prev(arrivals_.end());
      if (!m.receipt) put(i.arrival->data.data(), m.data, i.got);
      i.target = nullptr;
      offer(*i.arrival);
    }
  return true;
}

bool Messages::done(const Message& m) const {
  std::lock_guard lock(mutex_);
  return m.done;
}

std::optional<Envelope> Messages::peek(int source, int tag) const {
  std::lock_guard lock(mutex_);
  for (const Arrival& a : arrivals_)
    if (a.waits() && matches({.peer = source, .tag = tag}, a.envelope)) return a.envelope;
  return std::nullopt;
}

std::optional<Messages::Match> Messages::match(int source, int tag) {
  std::lock_guard lock(mutex_);
  for (Arrival& a : arrivals_) {
    if (!a.waits() || !matches({.peer = source, .tag = tag}, a.envelope)) continue;
    a.matched = ++last_key_;
    return Match{a.envelope, a.matched};
  }
  return std::nullopt;
}

void Messages::put_back(std::uint64_t key) {
  std::lock_guard lock(mutex_);
  for (Arrival& a : arrivals_) {
    if (a.matched != key) continue;
    a.matched = 0;
    if (a.waits()) offer(a);  // else it goes to the receive that has claimed it
    return;
  }
}

}  // namespace ouro::rt
