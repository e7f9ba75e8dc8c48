// The message engine. See messages.h.
#include "runtime/group/messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/core/no_memory.h"

namespace ouro::rt {
namespace {

/// The type of a message's elements in the headers of its slots; 0 is not said.
std::uint64_t on_wire(DType t) { return static_cast<std::uint64_t>(t) + 1; }

}  // namespace

Messages::Messages(std::unique_ptr<transport::Links> links, int rank, int size)
    : links_(std::move(links)),
      far_(links_->far()),
      rank_(rank),
      in_(static_cast<std::size_t>(size)),
      out_(static_cast<std::size_t>(size)) {
  for (int r = 0; r < size; ++r) in_[static_cast<std::size_t>(r)].link.view = links_->inbound(r);
}

Messages::~Messages() {
  for (std::size_t r = 0; r < in_.size(); ++r)
    if (FarLinks* const links = far(static_cast<int>(r))) links->recall_inbound(static_cast<int>(r));
}

Status Messages::post(Message& m) {
  std::unique_lock lock(mutex_);
  if (!m.sends) {
    claim(m);
  } else if (m.peer == rank_) {
    Unexpected& a = add({rank_, m.tag, m.bytes, m.dtype}, m.bytes);
    copy_bytes(a.data.get(), m.data, m.bytes);
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

Status Messages::progress(std::optional<int> source) {
  std::lock_guard lock(mutex_);
  for (std::size_t r = 0; r < in_.size(); ++r) OURO_TRY(pull(in_[r], static_cast<int>(r), source));
  for (std::size_t r = 0; r < out_.size(); ++r) push(out_[r], static_cast<int>(r));
  if (far_) far_->settle();
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
    if (FarLinks* const links = far(to)) links->sent(to);
    bump(*links_->doorbell(to));
  };
  while (!o.queue.empty() && !o.torn) {
    Message& m = *o.queue.front();
    // A long message waits for its receiver in any case, so it need not be copied. One on a device cannot be.
    const bool lends = m.carrier.lent || (o.link.view.elsewhere && m.bytes > kBuffered);
    do {
      if (o.link.next - load(*o.link.view.freed) >= o.link.view.slot_count) return tell();
      const std::size_t bytes = std::min<std::size_t>(m.bytes - m.moved, o.link.view.slot_bytes);
      if (o.link.view.elsewhere)
        o.link.view.elsewhere[o.link.next % o.link.view.slot_count] =
            lends && !m.carrier.lent ? m.data + m.moved : nullptr;
      if (FarLinks* const links = m.carrier.lent ? far(to) : nullptr)
        links->lend_device(to, o.link.next, m.data + m.moved, m.carrier.lent);
      if (!lends) copy_bytes(o.link.view.payload(o.link.next), m.data + m.moved, bytes);
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
      Message* const wanted = receiver_of(i.envelope);
      if (!wanted && !may_take(source, h.total, asked)) break;
      i.got = 0;
      i.within = true;
      i.first = i.link.next;
      i.target = wanted;
      i.arrival = nullptr;
      if (wanted) {
        wanted->begun = true;
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
    const auto& receipt = i.target ? i.target->carrier.receipt : i.arrival->receipt;
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
      copy_bytes(to + i.got, found, h.bytes);
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
    if (FarLinks* const links = far(m.peer)) links->recall_outbound(m.peer);
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
    if (i.within && i.target == &m) {  // the rest is received into a buffer here, after what has arrived
      FarLinks* const links = far(i.envelope.source);
      if (!m.carrier.receipt && links) links->recall_inbound(i.envelope.source);
      try {
        i.arrival = &add(i.envelope, i.got,
                         m.carrier.receipt);  // a receipt's memory is not the caller's: it can stay in use
      } catch (const std::exception&) {
        if (m.carrier.receipt && links)
          links->recall_inbound(i.envelope.source);  // its memory is destroyed with the message
        i.lost = true;
        break;
      }
      if (!m.carrier.receipt) copy_bytes(i.arrival->data.get(), m.data, i.got);
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
    const int to = static_cast<int>(r);
    FarLinks* const links = o.reached ? far(to) : nullptr;
    all &= !links || links->arrived(to, ask);
  }
  return all;
}

}  // namespace ouro::rt
