// The message engine: posting, sends, and withdrawal. See messages.h; receives are in message_arrivals.cc.
#include "runtime/group/messages.h"

#include <algorithm>
#include <utility>

namespace ouro::rt {
namespace {

/// The type of a message's elements in the headers of its slots; 0 means that no type is given.
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
  const MessageRequest& request = m.request;
  if (!request.sends) {
    begin_receive(m);
  } else if (request.peer == rank_) {
    StoredMessage& a = store({rank_, request.tag, request.bytes, request.dtype}, request.bytes);
    copy_bytes(a.own_memory.get(), m.carrier.on_host(), request.bytes);
    end(m);
    offer(a);
  } else {
    OURO_TRY(reach(request.peer, lock));
    out_[static_cast<std::size_t>(request.peer)].queue.push_back(&m);
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

bool Messages::done(const Message& m) const {
  std::lock_guard lock(mutex_);
  return m.done;
}

Status Messages::progress(std::optional<int> source) {
  std::lock_guard lock(mutex_);
  for (std::size_t r = 0; r < in_.size(); ++r) OURO_TRY(pull(in_[r], static_cast<int>(r), source));
  for (std::size_t r = 0; r < out_.size(); ++r) push(out_[r], static_cast<int>(r));
  if (far_) far_->settle();
  return {};
}

// ---- sends ----------------------------------------------------------------------------------------

bool Messages::has_sends() const {
  return std::any_of(out_.begin(), out_.end(),
                     [](const Outbound& o) { return !o.queue.empty() || !o.lent.empty(); });
}

/// Ends lent sends that the receiver has taken: their memory belongs to their callers again.
void Messages::give_back(Outbound& o) {
  for (; !o.lent.empty() && load(*o.link.view.freed) >= o.lent.front()->end; o.lent.pop_front())
    end(*o.lent.front());
}

void Messages::push(Outbound& o, int to) {
  give_back(o);
  if (o.queue.empty() || o.torn) return;
  const LinkView& view = o.link.view;
  FarLinks* const links = far(to);
  const std::uint64_t before = o.link.next;
  while (!o.queue.empty() && !o.torn) {
    Message& m = *o.queue.front();
    const bool lends = m.carrier.lends(view, m.request.bytes);
    bool has_room = true;
    do {
      has_room = o.link.next - load(*view.freed) < view.slot_count;
      if (has_room) push_chunk(o, m, {links, to}, lends);
    } while (has_room && m.moved < m.request.bytes);
    if (!has_room) break;
    o.queue.pop_front();
    m.end = o.link.next;
    if (lends)
      o.lent.push_back(&m);
    else
      end(m);
  }
  if (o.link.next == before) return;  // else one ring for all chunks at hand, so that they are sent together
  if (links) links->sent(to);
  bump(*links_->doorbell(to));
}

void Messages::push_chunk(Outbound& o, Message& m, const ChunkReceiver& to, bool lends) {
  const LinkView& view = o.link.view;
  const std::uint64_t index = o.link.next;
  const std::size_t bytes = std::min<std::size_t>(m.request.bytes - m.moved, view.slot_bytes);
  m.carrier.fill({view, index, m.moved, bytes, to}, lends);
  if (!m.begun) m.first = index;
  view.header(index) = {m.first, on_wire(m.request.dtype), m.request.bytes, static_cast<std::uint32_t>(bytes),
                        m.request.tag};
  publish(*view.full, ++o.link.next);
  m.moved += bytes;
  m.begun = true;
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

// ---- withdrawal -----------------------------------------------------------------------------------

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
  if (m.request.sends) return withdraw_send(m);
  recall(m);
  if (UnexpectedMessage* const a = matching_.withdraw(m)) offer(stored(*a));
  if (!m.begun) return true;
  for (Inbound& i : in_)
    if (i.within && i.target == &m) withdraw_from(i, m);
  return true;
}

bool Messages::withdraw_send(Message& m) {
  Outbound& o = out_[static_cast<std::size_t>(m.request.peer)];
  std::erase(o.queue, &m);
  if (!m.begun) return true;
  if (FarLinks* const links = far(m.request.peer)) links->recall_outbound(m.request.peer);
  if (std::erase(o.lent, &m) > 0) {  // all of it is in slots now, and will arrive
    end(m);
    return true;
  }
  o.torn = true;
  return false;
}

/// Stores the rest of a message that is being received, together with the part that has arrived.
void Messages::withdraw_from(Inbound& i, Message& m) {
  const int source = i.envelope.source;
  FarLinks* const links = far(source);
  const bool outlives = m.carrier.outlives_receive();
  if (!outlives && links) links->recall_inbound(source);
  try {
    i.arrival = outlives ? &store_in(m.carrier, i.envelope, i.got) : &store(i.envelope, i.got);
  } catch (const std::exception&) {
    if (outlives && links) links->recall_inbound(source);  // the message is destroyed, and with it its memory
    i.lost = true;
    return;
  }
  if (!outlives) copy_bytes(i.arrival->own_memory.get(), m.carrier.on_host(), i.got);
  i.target = nullptr;
  offer(*i.arrival);
}

}  // namespace ouro::rt
