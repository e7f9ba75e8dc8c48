// The link sets of a process, and the frames about them. See exchange.h.
#include "transport/net/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace ouro::transport {

void Exchange::add(std::shared_ptr<LinkSet> link_set) {
  std::lock_guard lock(mutex_);
  try {
    for (const auto& [rank, link] : link_set->links) at(rank).links.push_back({link_set, link.get()});
    link_sets_[link_set->key] = link_set;
  } catch (const std::exception&) {
    drop(link_set);  // on failure, nothing of the owner stays here
    throw;
  }
}

void Exchange::drop(const std::shared_ptr<LinkSet>& link_set) {
  for (const auto& entry : link_set->links)
    std::erase_if(at(entry.first).links, [&](const PeerLink& e) { return e.link_set == link_set; });
  link_sets_.erase(link_set->key);
}

void Exchange::remove(std::uint64_t key, bool lingers) {
  std::lock_guard lock(mutex_);
  const auto it = link_sets_.find(key);
  if (it == link_sets_.end()) return;
  const std::shared_ptr<LinkSet> link_set = it->second;
  link_set->doorbell = nullptr;
  for (const auto& [rank, link] : link_set->links) {
    try {
      if (at(rank).gets_farewells) at(rank).farewells.add(key, link->taken(), link->gone());
    } catch (const std::exception&) {
      continue;  // there is no memory for a farewell: a peer that misses it asks
    }
  }
  if (!lingers) return drop(link_set);
  ++lingering_;
  for (auto& [rank, link] : link_set->links) {
    link->ask();
    if (at(rank).gone) forget(rank, link_set);
  }
  drop_if_drained(link_set);
}

void Exchange::forget(int peer, const std::shared_ptr<LinkSet>& link_set) {
  std::erase_if(at(peer).links, [&](const PeerLink& e) { return e.link_set == link_set; });
  link_set->links.at(peer)->leave();  // data in flight may still be in its slots
}

void Exchange::drop_if_drained(const std::shared_ptr<LinkSet>& link_set) {
  const auto it = link_sets_.find(link_set->key);
  if (it == link_sets_.end() || it->second != link_set) return;
  for (const auto& [rank, link] : link_set->links)
    if (!link->drained()) return;
  --lingering_;
  drop(link_set);
}

std::size_t Exchange::lingering() {
  std::lock_guard lock(mutex_);
  return lingering_;
}

std::size_t Exchange::undelivered() {
  std::lock_guard lock(mutex_);
  const auto on_its_way = [](const auto& to) { return to.second->open() && !to.second->arrived(); };
  return static_cast<std::size_t>(std::count_if(link_sets_.begin(), link_sets_.end(), [&](const auto& entry) {
    const LinkSet& link_set = *entry.second;
    return !link_set.doorbell && std::any_of(link_set.links.begin(), link_set.links.end(), on_its_way);
  }));
}

std::size_t Exchange::unanswered() {
  std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const Peer& p : peers_) sum += p.gone ? 0 : p.farewells.unanswered();
  return sum;
}

void Exchange::forgive(int peer) {
  leaves(peer);
  std::lock_guard lock(mutex_);
  at(peer).gets_farewells = false;
  at(peer).farewells.clear();
}

void Exchange::leaves(int peer) {
  std::lock_guard lock(mutex_);
  Peer& p = at(peer);
  p.gone = true;
  std::vector<std::shared_ptr<LinkSet>> left;
  for (const PeerLink& e : p.links)
    if (!e.link_set->doorbell) left.push_back(e.link_set);
  for (const auto& link_set : left) {
    forget(peer, link_set);
    drop_if_drained(link_set);
  }
}

NetLink* Exchange::find_link(int peer, std::uint64_t link_set, std::shared_ptr<LinkSet>* keep) {
  const auto it = link_sets_.find(link_set);
  if (it == link_sets_.end()) return nullptr;
  const auto link = it->second->links.find(peer);
  if (link == it->second->links.end()) return nullptr;
  if (keep) *keep = it->second;
  return link->second.get();
}

bool Exchange::next(int peer, Outgoing* out) {
  Peer& p = at(peer);
  *out = {};
  bool found = p.farewells.waiting();
  if (found) out->header = p.farewells.next();
  for (std::size_t i = 0; i < p.links.size() && !found; ++i) {
    const PeerLink& e = p.links[p.turn++ % p.links.size()];
    found = e.link->next(e.link_set->key, &out->header, &out->payload, &out->device);
    if (found) out->keep = e.link_set;
  }
  if (!found || (!checks_ && damage_.times == 0)) return found;
  if (checks_ && out->payload && !out->device) out->header.check = check_of(out->header, out->payload);
  if (damage_.times > 0) damage(peer, out->header);
  if (checks_) out->header.head_check = head_check_of(out->header);
  return true;
}

void Exchange::damage_next() {
  std::lock_guard lock(mutex_);
  damage_ = {.times = 2};
}

bool Exchange::spare_next() {
  std::lock_guard lock(mutex_);
  if (damage_.peer >= 0 || damage_.times == 0) return false;
  damage_ = {};
  return true;
}

/// Damages a bit of the checksum, not of the payload, which may be in the user's memory and may be sent
/// again. Without checksums it damages the kind of the frame, which the other side checks first. A chunk in
/// memory of a device, whose payload has no checksum, is left alone.
void Exchange::damage(int peer, NetHeader& h) {
  if (h.kind != NetHeader::kChunk || h.bytes == 0 || (checks_ && h.check == 0)) return;
  if (damage_.peer < 0) damage_.peer = peer, damage_.link_set = h.link_set, damage_.index = h.index;
  if (damage_.peer != peer || damage_.link_set != h.link_set || damage_.index != h.index) return;
  --damage_.times;
  if (checks_)
    h.check ^= 1;
  else
    h.kind ^= 1u << 31;
}

bool Exchange::given_back(int peer, const NetHeader& h) {
  if (h.kind != NetHeader::kChunk) return false;
  const NetLink* const l = find_link(peer, h.link_set);
  return l && l->given_back(h.index);
}

Result<Exchange::Destination> Exchange::begin_receive(int peer, const NetHeader& h, bool anywhere) {
  const auto corrupt = [&](std::string what) {
    return Status(Failure{
        .reason = Reason::ring_corrupt, .text = std::move(what), .rank = peer, .detector = "frame header"});
  };
  if (h.head_check != 0 && h.head_check != head_check_of(h))
    return Status(Failure{.reason = Reason::data_corrupt,
                          .text = "the header of a frame came damaged (checksum)",
                          .rank = peer,
                          .detector = "checksum"});
  if (h.kind < NetHeader::kOpen || h.kind > NetHeader::kGone)
    return corrupt(fmt::format("a frame of unknown kind {:#x}", h.kind));
  if (h.kind != NetHeader::kChunk && h.bytes != 0)
    return corrupt(fmt::format("a frame of kind {:#x} with {} bytes of payload", h.kind, h.bytes));
  if (h.bytes > kMaxPayload)
    return corrupt(fmt::format("a chunk of {} bytes; at most {}", h.bytes, kMaxPayload));
  Destination destination;
  NetLink* const l = find_link(peer, h.link_set, &destination.keep);
  if (!l || h.kind != NetHeader::kChunk || !destination.keep->doorbell) return destination;
  std::string wrong;
  const NetLink::Destination found = l->begin_receive(h, anywhere, &wrong);
  if (!wrong.empty()) return corrupt(std::move(wrong));
  if (!found.to) return Destination{};  // it is a duplicate
  static_cast<NetLink::Destination&>(destination) = found;
  return destination;
}

void Exchange::abandon(int peer, const NetHeader& h) {
  if (h.kind != NetHeader::kChunk) return;
  if (NetLink* const l = find_link(peer, h.link_set)) l->abandon(h.index);
}

void Exchange::received(int peer, const NetHeader& h, const Destination& destination) {
  std::shared_ptr<LinkSet> link_set;
  NetLink* const l = find_link(peer, h.link_set, &link_set);
  if (!l) return at(peer).farewells.handle_frame(h);
  if (l->give_back(h.freed)) ring(link_set, *l);
  if (h.kind != NetHeader::kChunk) {
    l->handle_control(h);
    if (h.kind != NetHeader::kGone) return;
    at(peer).farewells.handle_frame(h);  // the link set's owner here may have been destroyed, too
    return ring(link_set, *l);
  }
  if (!destination.to) return;  // it was discarded: another copy of the chunk may be arriving in the slot
  const NetLink::Arrived arrived = l->arrive(h);
  if (arrived == NetLink::Arrived::kDamagedAgain)
    damaged_(peer, fmt::format("chunk {} of {} bytes came damaged twice (checksum)", h.index, h.bytes));
  else if (arrived == NetLink::Arrived::kNews && link_set->doorbell)
    bump(*link_set->doorbell);
}

void Exchange::ring(const std::shared_ptr<LinkSet>& link_set, NetLink& l) {
  if (link_set->doorbell)
    bump(*link_set->doorbell);
  else if (l.drained())
    drop_if_drained(link_set);
  else
    l.ask();
}

void Exchange::resume(int peer) {
  Peer& p = at(peer);
  p.farewells.resume();
  for (PeerLink& e : p.links) {
    e.link->resume();
    if (!e.link_set->doorbell) e.link->ask();
  }
}

}  // namespace ouro::transport
