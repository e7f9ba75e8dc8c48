// The protocol of links between hosts. See exchange.h.
#include "transport/net/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ouro::transport {
namespace {

constexpr std::size_t kAlign = 4096;

constexpr std::uint64_t bit(std::uint64_t index, std::uint32_t slots) {
  return std::uint64_t{1} << (index % slots);
}

}  // namespace

NetLink::NetLink(std::uint32_t slot_bytes, std::uint32_t slot_count)
    : slot_bytes_(slot_bytes), slot_count_(slot_count) {
  const std::size_t ring = std::size_t{slot_count} * (sizeof(SlotHeader) + slot_bytes);
  memory_ = std::make_unique_for_overwrite<std::byte[]>(2 * ring + kAlign);
  auto at = reinterpret_cast<std::uintptr_t>(memory_.get());
  in_slots_ = memory_.get() + (kAlign - at % kAlign) % kAlign;
  out_slots_ = in_slots_ + ring;
  in_elsewhere_ = std::make_unique<const std::byte*[]>(slot_count);
  out_elsewhere_ = std::make_unique<const std::byte*[]>(slot_count);
}

std::byte* NetLink::posted(const NetHeader& h) const {
  if (!posted_.to || h.seq != posted_.first || h.tag != posted_.tag || h.total > posted_.capacity)
    return nullptr;
  if (h.index < h.seq || h.index - h.seq >= h.total / slot_bytes_ + 1) return nullptr;
  const std::uint64_t at = (h.index - h.seq) * slot_bytes_;
  if (h.bytes == 0 || h.bytes != std::min<std::uint64_t>(slot_bytes_, h.total - at)) return nullptr;
  return posted_.to + at;
}

void Exchange::add(std::shared_ptr<LinkSet> link_set) {
  std::lock_guard lock(mutex_);
  for (const auto& [rank, link] : link_set->links)
    peers_[static_cast<std::size_t>(rank)].links.push_back({link_set, link.get()});
  link_sets_[link_set->key] = std::move(link_set);
}

void Exchange::drop(const std::shared_ptr<LinkSet>& link_set) {
  for (const auto& entry : link_set->links)
    std::erase_if(peers_[static_cast<std::size_t>(entry.first)].links,
                  [&](const Entry& e) { return e.link_set == link_set; });
  link_sets_.erase(link_set->key);
}

void Exchange::remove(std::uint64_t key, bool lingers) {
  std::lock_guard lock(mutex_);
  const auto it = link_sets_.find(key);
  if (it == link_sets_.end()) return;
  const std::shared_ptr<LinkSet> link_set = it->second;
  link_set->doorbell = nullptr;
  for (const auto& [rank, link] : link_set->links) {
    Peer& p = peers_[static_cast<std::size_t>(rank)];
    if (p.gone) continue;
    p.ended.push_back({key, load(link->in_freed_), link->gone_});
    ++p.untold;
  }
  if (!lingers) return drop(link_set);
  ++lingering_;
  std::vector<int> gone;
  for (auto& [rank, link] : link_set->links) {
    link->say_ask_ = !link->drained();
    if (peers_[static_cast<std::size_t>(rank)].gone) gone.push_back(rank);
  }
  for (const int rank : gone) forget(rank, link_set);
  drop_if_drained(link_set);
}

void Exchange::forget(int peer, const std::shared_ptr<LinkSet>& link_set) {
  std::erase_if(peers_[static_cast<std::size_t>(peer)].links,
                [&](const Entry& e) { return e.link_set == link_set; });
  link_set->links.at(peer)->gone_ = true;  // what is on its way may still lie in its slots
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

void Exchange::forgive(int peer) {
  std::lock_guard lock(mutex_);
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  p.gone = true;
  p.ended.clear();
  p.untold = 0;
  std::vector<std::shared_ptr<LinkSet>> left;
  for (const Entry& e : p.links)
    if (!e.link_set->doorbell) left.push_back(e.link_set);
  for (const auto& link_set : left) {
    forget(peer, link_set);
    drop_if_drained(link_set);
  }
}

NetLink* Exchange::find(int peer, std::uint64_t link_set, std::shared_ptr<LinkSet>* keep) {
  const auto it = link_sets_.find(link_set);
  if (it == link_sets_.end()) return nullptr;
  const auto link = it->second->links.find(peer);
  if (link == it->second->links.end()) return nullptr;
  if (keep) *keep = it->second;
  return link->second.get();
}

std::uint32_t Exchange::head_check_of(NetHeader h) {
  h.head_check = 0;
  const auto sum = static_cast<std::uint32_t>(XXH3_64bits(&h, sizeof h));
  return sum == 0 ? 1 : sum;
}

std::uint64_t Exchange::check_of(NetHeader h, const std::byte* payload) const {
  h.check = h.head_check = 0;
  const std::uint64_t sum = XXH3_64bits_withSeed(payload, h.bytes, XXH3_64bits(&h, sizeof h));
  return sum == 0 ? 1 : sum;
}

bool Exchange::next(NetLink& l, std::uint64_t link_set, Outgoing* out) {
  const std::uint64_t freed = load(l.in_freed_);
  out->header = {};
  out->payload = nullptr;
  NetHeader& h = out->header;
  h.link_set = link_set;
  h.freed = freed;
  const auto say = [&](bool& wanted, NetHeader::Kind kind) {
    if (!wanted) return false;
    wanted = false;
    h.kind = kind;
    return true;
  };
  if (say(l.say_open_, NetHeader::kOpen) || say(l.say_opened_, NetHeader::kOpened)) return true;
  if (!l.open_) return false;
  if (l.ask_again_ != 0) {
    h.kind = NetHeader::kResend;
    h.index = load(l.in_full_);
    while (!(l.ask_again_ & bit(h.index, l.slot_count_))) ++h.index;
    l.ask_again_ &= ~bit(h.index, l.slot_count_);
    return true;
  }
  const std::uint64_t full = load(l.out_full_);
  std::uint64_t index = l.sent_;
  const bool takes =
      !l.gone_;  // else nobody takes chunks there, and what came from there is still given back
  if (takes && l.again_ != 0) {
    index = load(l.out_freed_);
    while (!(l.again_ & bit(index, l.slot_count_))) ++index;
    l.again_ &= ~bit(index, l.slot_count_);
  } else if (takes && l.sent_ < full) {
    ++l.sent_;
  } else {
    // Nothing carries the count along: it goes by itself when half of the slots wait for it, or somebody
    // does.
    const bool awaited = l.told_ < l.tell_ && freed >= l.tell_;
    if (!l.say_credit_ && !l.say_ask_ && !awaited && freed - l.told_ < l.slot_count_ / 2) return false;
    h.kind = l.say_ask_ ? NetHeader::kAsk : NetHeader::kCredit;
    l.say_ask_ = l.say_credit_ = false;
    l.told_ = freed;
    return true;
  }
  const SlotHeader& s = l.out().header(index);
  h.kind = NetHeader::kChunk;
  h.bytes = s.bytes;
  h.index = index;
  h.seq = s.seq, h.signature = s.signature, h.total = s.total, h.tag = s.tag;
  l.told_ = freed;
  l.say_credit_ = false;
  out->payload = l.out().found(index);
  // The owner of a lent message waits for its memory: it is told of the end of each.
  h.tell = l.out_elsewhere_[index % l.slot_count_] &&
           (index + 1 == full || l.out().header(index + 1).seq != s.seq);
  if (checks_) h.check = check_of(h, out->payload);
  return true;
}

bool Exchange::next(int peer, Outgoing* out) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (p.untold > 0) {
    Ended& e = *std::find_if(p.ended.begin(), p.ended.end(), [](const Ended& x) { return !x.told; });
    e.told = true;
    --p.untold;
    *out = {};
    out->header = {.kind = NetHeader::kGone, .link_set = e.link_set, .index = e.theirs, .freed = e.freed};
    if (checks_) out->header.head_check = head_check_of(out->header);
    return true;
  }
  for (std::size_t i = 0; i < p.links.size(); ++i) {
    Entry& e = p.links[p.turn++ % p.links.size()];
    if (!next(*e.link, e.link_set->key, out)) continue;
    out->keep = e.link_set;
    if (checks_) out->header.head_check = head_check_of(out->header);
    return true;
  }
  return false;
}

bool Exchange::given_back(int peer, const NetHeader& h) {
  if (h.kind != NetHeader::kChunk) return false;
  const NetLink* const l = find(peer, h.link_set);
  return l && h.index < load(l->out_freed_);
}

Result<Exchange::Place> Exchange::place(int peer, const NetHeader& h, bool anywhere) {
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
  Place place;
  NetLink* const l = find(peer, h.link_set, &place.keep);
  if (!l || h.kind != NetHeader::kChunk || !place.keep->doorbell) return place;
  if (h.bytes > l->slot_bytes_)
    return corrupt(fmt::format("a chunk of {} bytes for slots of {}", h.bytes, l->slot_bytes_));
  const std::uint64_t full = load(l->in_full_), end = load(l->in_freed_) + l->slot_count_;
  if (h.index >= end) return corrupt(fmt::format("chunk {} where there is room up to {}", h.index, end));
  const std::uint64_t here = bit(h.index, l->slot_count_);
  if (h.index < full || ((l->got_ | l->coming_) & here)) return Place{};  // it comes twice
  l->coming_ |= here;
  std::byte* const posted = anywhere ? l->posted(h) : nullptr;
  l->in_elsewhere_[h.index % l->slot_count_] = posted;
  place.to = posted ? posted : l->in().payload(h.index);
  place.ends = posted && posted + h.bytes == l->posted_.to + h.total;
  return place;
}

void Exchange::recall_inbound(NetLink& l, const Moved& moved) {
  l.posted_ = {};
  const std::uint64_t freed = load(l.in_freed_);
  for (std::uint64_t i = freed; i < freed + l.slot_count_; ++i) {
    const std::byte*& at = l.in_elsewhere_[i % l.slot_count_];
    if (!at) continue;
    const bool here = i < load(l.in_full_) || (l.got_ & bit(i, l.slot_count_));
    if (here)
      std::memcpy(l.in().payload(i), at, l.in().header(i).bytes);
    else if (l.coming_ & bit(i, l.slot_count_))
      moved({.index = i, .from = at, .to = l.in().payload(i)});
    at = nullptr;
  }
}

void Exchange::recall_outbound(NetLink& l, const Moved& moved) {
  for (std::uint64_t i = load(l.out_freed_); i < load(l.out_full_); ++i) {
    const std::byte*& at = l.out_elsewhere_[i % l.slot_count_];
    if (!at) continue;
    std::memcpy(l.out().payload(i), at, l.out().header(i).bytes);
    if (i < l.sent_) moved({.index = i, .from = at, .to = l.out().payload(i)});
    at = nullptr;
  }
}

void Exchange::abandon(int peer, const NetHeader& h) {
  if (h.kind != NetHeader::kChunk) return;
  NetLink* const l = find(peer, h.link_set);
  if (!l || h.index < load(l->in_full_)) return;
  const std::uint64_t here = bit(h.index, l->slot_count_);
  if (!(l->coming_ & here)) return;
  l->coming_ &= ~here;
  l->ask_again_ |= here;
}

void Exchange::received(int peer, const NetHeader& h, const Place& place) {
  std::shared_ptr<LinkSet> link_set;
  NetLink* const l = find(peer, h.link_set, &link_set);
  if (!l) return hear_of_ended(peer, h);
  // What the other side has given back; never more than was sent, whatever it says.
  if (h.freed > load(l->out_freed_) && h.freed <= l->sent_) {
    for (std::uint64_t i = load(l->out_freed_); i < h.freed; ++i) l->again_ &= ~bit(i, l->slot_count_);
    publish(l->out_freed_, h.freed);
    if (link_set->doorbell)
      bump(*link_set->doorbell);
    else if (l->drained())
      drop_if_drained(link_set);
    else
      l->say_ask_ = true;
  }
  switch (h.kind) {
    case NetHeader::kOpen:
      l->say_opened_ = true;
      l->open_ = true;
      return;
    case NetHeader::kOpened:
      l->open_ = true;
      return;
    case NetHeader::kAsk:
      l->say_credit_ = true;
      return;
    case NetHeader::kResend:
      if (h.index >= load(l->out_freed_) && h.index < l->sent_) l->again_ |= bit(h.index, l->slot_count_);
      return;
    case NetHeader::kGone:
      l->gone_ = true;
      hear_of_ended(peer, h);  // its owner here may have gone, too
      if (link_set->doorbell)
        bump(*link_set->doorbell);
      else if (l->drained())
        drop_if_drained(link_set);
      return;
    case NetHeader::kCredit:
      return;
    default:
      break;
  }
  if (!place.to) return;  // discarded: the place may be another's, who comes the same way
  const std::uint64_t full = load(l->in_full_);
  const std::uint64_t here = bit(h.index, l->slot_count_);
  if (h.index < full || !(l->coming_ & here)) return;
  l->coming_ &= ~here;
  const LinkView in = l->in();
  if (h.check != 0 && h.check != check_of(h, in.found(h.index))) {
    if (l->bad_ & here) {
      damaged_(peer, fmt::format("chunk {} of {} bytes came damaged twice (checksum)", h.index, h.bytes));
      return;
    }
    l->bad_ |= here;
    l->ask_again_ |= here;
    return;
  }
  in.header(h.index) = {h.seq, h.signature, h.total, h.bytes, h.tag};
  if (h.tell != 0) l->tell_ = std::max(l->tell_, h.index + 1);
  l->got_ |= here;
  l->bad_ &= ~here;
  l->ask_again_ &= ~here;
  std::uint64_t now = full;
  for (; l->got_ & bit(now, l->slot_count_); ++now) l->got_ &= ~bit(now, l->slot_count_);
  if (now == full) return;
  publish(l->in_full_, now);
  if (link_set->doorbell) bump(*link_set->doorbell);
}

/// Of a link set whose end here has gone, if it ever was here: the peer learns so from whatever it says,
/// unless it knows.
void Exchange::hear_of_ended(int peer, const NetHeader& h) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  const auto e =
      std::find_if(p.ended.begin(), p.ended.end(), [&](const Ended& x) { return x.link_set == h.link_set; });
  if (e == p.ended.end() || h.kind == NetHeader::kOpened || h.kind == NetHeader::kCredit) return;
  if (h.kind != NetHeader::kGone) return tell_again(p, *e);
  e->theirs = true;
  if (h.index == 1) {  // both have heard
    if (!e->told) --p.untold;
    p.ended.erase(e);
    return;
  }
  tell_again(p, *e);
  const auto closed = [](const Ended& x) { return x.theirs && x.told; };
  if (std::count_if(p.ended.begin(), p.ended.end(), closed) > std::ptrdiff_t{kFarewells})
    p.ended.erase(std::find_if(p.ended.begin(), p.ended.end(), closed));
}

void Exchange::resume(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  for (Ended& e : p.ended) tell_again(p, e);
  for (Entry& e : p.links) {
    NetLink& l = *e.link;
    for (std::uint64_t i = load(l.out_freed_); i < l.sent_; ++i) l.again_ |= bit(i, l.slot_count_);
    l.say_open_ = l.say_credit_ = true;
    if (!e.link_set->doorbell) l.say_ask_ = !l.drained();
  }
}

std::vector<int> Exchange::owing(LinkSet& link_set) {
  std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (auto& [rank, link] : link_set.links) {
    if (link->drained()) continue;
    link->say_ask_ = true;
    ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace ouro::transport
