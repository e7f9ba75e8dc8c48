// Two ranks, each with an exchange and one link set between them; the tests carry frames from one to the
// other by hand. Used by the tests of the exchange.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/net/exchange.h"

namespace ouro::transport {

inline constexpr std::uint32_t kSlotBytes = 256, kSlots = 8;
constexpr std::uint64_t kLinkSet = 77;

/// One rank: its exchange, its end of the link set, and an executor that fills and reads slots.
struct End {
  explicit End(int me, bool checks = true)
      : rank(me), exchange(2, checks, [this](int, std::string why) { damaged = std::move(why); }) {}
  void open() {
    link_set = std::make_shared<LinkSet>();
    link_set->key = kLinkSet;
    link_set->doorbell = &doorbell;
    link_set->links[1 - rank] = std::make_unique<NetLink>(kSlotBytes, kSlots);
    exchange.add(link_set);
  }
  NetLink& link() { return *link_set->links.at(1 - rank); }
  /// Sends a chunk whose bytes are derived from its number, if there is a free slot. False if there is none.
  bool put() {
    const LinkView out = link().out();
    if (sent - load(*out.freed) >= out.slot_count) return false;
    const std::uint32_t bytes = static_cast<std::uint32_t>((sent * 37) % (kSlotBytes + 1));
    for (std::uint32_t i = 0; i < bytes; ++i) out.payload(sent)[i] = static_cast<std::byte>(sent * 7 + i);
    out.header(sent) = {sent, 5, 6, bytes, static_cast<std::int32_t>(sent)};
    publish(*out.full, ++sent);
    return true;
  }
  /// Takes the next chunk if it has arrived; false if it is wrong.
  bool take() {
    const LinkView in = link().in();
    if (load(*in.full) <= taken) return true;
    const SlotHeader h = in.header(taken);
    bool right = h.seq == taken && h.bytes == (taken * 37) % (kSlotBytes + 1) &&
                 h.tag == static_cast<std::int32_t>(taken);
    for (std::uint32_t i = 0; right && i < h.bytes; ++i)
      right = in.payload(taken)[i] == static_cast<std::byte>(taken * 7 + i);
    publish(*in.freed, ++taken);
    return right;
  }
  int rank;
  Exchange exchange;
  Counter doorbell{};
  std::shared_ptr<LinkSet> link_set;
  std::string damaged;
  std::uint64_t sent = 0, taken = 0;
};

struct Frame {
  NetHeader header;
  std::vector<std::byte> payload;
};

inline std::optional<Frame> next(End& from) {
  Exchange::Outgoing out;
  std::lock_guard lock(from.exchange.lock());
  if (!from.exchange.next(1 - from.rank, &out)) return std::nullopt;
  return Frame{out.header, {out.payload, out.payload + out.header.bytes}};
}

inline Status give(End& to, const Frame& f) {
  std::lock_guard lock(to.exchange.lock());
  auto destination = to.exchange.begin_receive(1 - to.rank, f.header);
  if (!destination.ok()) return destination.status();
  if (destination->to && !f.payload.empty()) std::memcpy(destination->to, f.payload.data(), f.payload.size());
  to.exchange.received(1 - to.rank, f.header, *destination);
  return {};
}

}  // namespace ouro::transport
