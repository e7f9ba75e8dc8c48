// Links within and between hosts. See net_links.h.
#include "transport/net/net_links.h"

#include <exception>

namespace ouro::transport {

NetLinks::NetLinks(Fabric& fabric, std::uint64_t key, std::vector<int> ranks, std::vector<int> local,
                   int rank, NetSlots slots, std::unique_ptr<Links> here)
    : fabric_(fabric),
      ranks_(std::move(ranks)),
      local_(std::move(local)),
      rank_(rank),
      slot_bytes_(slots.bytes),
      here_(std::move(here)),
      link_set_(std::make_shared<LinkSet>()),
      spare_(std::make_unique<Spare>()) {
  link_set_->key = key;
  link_set_->doorbell = doorbell(rank_);
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (local_[r] < 0) link_set_->links[ranks_[r]] = std::make_unique<NetLink>(slots.bytes, slots.count);
  fabric_.exchange().add(link_set_);
  try {
    for (std::size_t r = 0; r < ranks_.size(); ++r)
      if (local_[r] < 0) fabric_.kick(ranks_[r]);
  } catch (const std::exception&) {
    fabric_.exchange().remove(key, false);  // it refers to members of this object
    throw;
  }
}

NetLinks::~NetLinks() {
  fabric_.exchange().remove(link_set_->key, lingers_);
  if (!lingers_) return;
  try {
    fabric_.kick(Fabric::kEveryone);
  } catch (const std::exception&) {
    return;  // the fabric's own thread sends it
  }
}

void NetLinks::linger(std::shared_ptr<void> after) {
  std::lock_guard lock(fabric_.exchange().lock());
  link_set_->after = std::move(after);
  lingers_ = true;
}

bool NetLinks::arrived(int to, bool ask) {
  {
    std::lock_guard lock(fabric_.exchange().lock());
    if (link(to).arrived()) return true;
    if (!ask) return false;
    link(to).ask();
  }
  fabric_.kick(ranks_[static_cast<std::size_t>(to)]);
  return false;
}

LinkView NetLinks::inbound(int from) const {
  if (is_far(from)) return link(from).in();
  if (here_) return here_->inbound(local_[static_cast<std::size_t>(from)]);
  return nothing();
}

LinkView NetLinks::outbound(int to) const {
  if (is_far(to)) return link(to).out();
  if (here_) return here_->outbound(local_[static_cast<std::size_t>(to)]);
  return nothing();
}

Status NetLinks::reach(int to) {
  if (is_far(to) || !here_) return {};
  return here_->reach(local_[static_cast<std::size_t>(to)]);
}

Counter* NetLinks::doorbell(int rank) const {
  if (is_far(rank))
    return &spare_->others_doorbell;  // the other side rings its own doorbell when a chunk arrives
  return here_ ? here_->doorbell(local_[static_cast<std::size_t>(rank)]) : &spare_->own_doorbell;
}

void NetLinks::post_receive(int from, const PostedReceive& where) {
  std::lock_guard lock(fabric_.exchange().lock());
  if (link(from).elsewhere()) recall_inbound_locked(from);
  link(from).post(where);
}

void NetLinks::lend_device(int to, std::uint64_t index, const std::byte* from, std::shared_ptr<void> memory) {
  std::lock_guard lock(fabric_.exchange().lock());
  link(to).lend_device(index, from, std::move(memory));
}

void NetLinks::recall_inbound(int from) {
  std::lock_guard lock(fabric_.exchange().lock());
  recall_inbound_locked(from);
}

void NetLinks::recall_inbound_locked(int from) {
  link(from).recall_inbound([&](NetLink::Move m) {
    m.link_set = link_set_->key;
    fabric_.moved(ranks_[static_cast<std::size_t>(from)], m);
  });
}

void NetLinks::recall_outbound(int to) {
  std::lock_guard lock(fabric_.exchange().lock());
  link(to).recall_outbound([&](NetLink::Move m) {
    m.link_set = link_set_->key;
    fabric_.moved(ranks_[static_cast<std::size_t>(to)], m);
  });
}

}  // namespace ouro::transport
