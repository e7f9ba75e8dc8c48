// Fuzz targets for data received over lines between hosts: headers of chunks, and notes that update the
// replica of a control page. See targets.h.
#include <algorithm>
#include <cstring>
#include <memory>

#include "runtime/health/replica.h"
#include "tests/system/fuzz/support.h"
#include "tests/system/fuzz/targets.h"
#include "transport/net/exchange.h"

namespace ouro::fuzz {
namespace {

using transport::Exchange;
using transport::NetHeader;
using wire::Bytes;
using wire::View;

constexpr std::uint32_t kSlotBytes = 256, kSlots = 4;
constexpr std::uint64_t kLinkSet = 77;

// The first byte of a record: the action (its low three bits), and flags for the header fields that
// are corrected.
constexpr std::uint8_t kDeliver = 0, kAbandon = 1, kTake = 2, kPublish = 3, kRecall = 4, kReconnect = 5;
constexpr std::uint8_t kKind = 8, kItsLinkSet = 16, kIndex = 32, kBytes = 64, kCheck = 128;

}  // namespace

/// A rank whose peer sends what the input contains. Checks that data is only written where there is room for
/// it, and that counters stay consistent.
void chunks(View in) {
  Exchange exchange(2, true, [](int, const std::string&) {});
  Counter doorbell{};
  auto mine = std::make_shared<transport::LinkSet>();
  mine->key = kLinkSet;
  mine->doorbell = &doorbell;
  mine->links[1] = std::make_unique<transport::NetLink>(kSlotBytes, kSlots);
  exchange.add(mine);
  transport::NetLink& link = *mine->links.at(1);
  const LinkView inbound = link.in(), outbound = link.out();
  std::byte posted[3 * kSlotBytes];
  const auto within = [](const std::byte* at, std::size_t n, const std::byte* begin, std::size_t size) {
    return at >= begin && n <= size && at + n <= begin + size;
  };
  const std::size_t ring = kSlots * (sizeof(SlotHeader) + kSlotBytes);
  std::uint64_t taken = 0, sent = 0, full = 0;
  while (!in.empty()) {
    const std::uint8_t first = in[0];
    in = in.subspan(1);
    std::lock_guard lock(exchange.lock());
    switch (first % 8) {
      case kTake:
        if (load(*inbound.full) > taken) publish(*inbound.freed, ++taken);
        break;
      case kPublish:
        if (sent - load(*outbound.freed) < kSlots) {
          outbound.header(sent) = {0, 0, 0, kSlotBytes, 0};
          outbound.elsewhere[sent % kSlots] = first & kKind ? posted : nullptr;
          publish(*outbound.full, ++sent);
        }
        break;
      case kRecall:
        if (first & kKind)
          link.post({taken, posted, sizeof posted});
        else if (first & kItsLinkSet)
          link.recall_outbound([](const transport::NetLink::Move&) {});
        else
          link.recall_inbound([](const transport::NetLink::Move&) {});
        break;
      case kReconnect:
        exchange.resume(1);
        break;
      default: {
        NetHeader h{};
        const std::size_t n = std::min(in.size(), sizeof h);
        std::memcpy(&h, in.data(), n);
        in = in.subspan(n);
        if (first & kKind) h.kind = NetHeader::kOpen + h.kind % 7;
        if (first & kItsLinkSet) h.link_set = kLinkSet;
        if (first & kIndex) h.index = taken + h.index % kSlots, h.seq = taken, h.total %= 1024;
        if (first & kBytes) h.bytes = h.kind == NetHeader::kChunk ? h.bytes % (kSlotBytes + 1) : 0;
        if (first & kCheck) h.check = h.head_check = 0;
        auto destination = exchange.begin_receive(1, h);
        require(destination.ok() || destination.status().reason() == Reason::ring_corrupt ||
                destination.status().reason() == Reason::data_corrupt);
        if (!destination.ok()) break;
        if (destination->to) {
          require(within(destination->to, h.bytes, inbound.slots, ring) ||
                  within(destination->to, h.bytes, posted, sizeof posted));
          std::memset(destination->to, first, h.bytes);
        }
        if (first % 8 == kAbandon)
          exchange.abandon(1, h);
        else
          exchange.received(1, h, *destination);
      }
    }
    const std::uint64_t now = load(*inbound.full);
    require(now >= full && now - taken <= kSlots);
    require(load(*outbound.freed) <= sent);
    full = now;
    Exchange::Outgoing out;
    for (int i = 0; i < 64 && exchange.next(1, &out); ++i)
      require(out.header.bytes == 0 || within(out.payload, out.header.bytes, outbound.slots, ring) ||
              out.payload == posted);
  }
}

std::vector<Bytes> chunks_seeds() {
  Bytes talk;
  const auto say = [&](std::uint8_t act, NetHeader h) {
    talk.push_back(act);
    const auto* raw = reinterpret_cast<const std::uint8_t*>(&h);
    talk.insert(talk.end(), raw, raw + sizeof h);
  };
  NetHeader h{};
  h.link_set = kLinkSet;
  h.kind = NetHeader::kOpen, say(kDeliver, h);
  h.kind = NetHeader::kOpened, say(kDeliver, h);
  h.kind = NetHeader::kChunk;
  for (const std::uint64_t i : {1u, 0u, 2u}) {
    h.index = i, h.bytes = kSlotBytes;
    talk.push_back(kRecall | kKind);
    say(i == 2 ? kAbandon : kDeliver, h);
    talk.push_back(kPublish);
    talk.push_back(kTake);
  }
  h.bytes = 0;
  for (const auto k : {NetHeader::kCredit, NetHeader::kAsk, NetHeader::kResend, NetHeader::kGone}) {
    h.kind = k, h.freed = 1;
    say(kDeliver, h);
    talk.push_back(kReconnect);
  }
  // A posted message of three and a half chunks, two of them out of order and one cut off; then everything
  // is recalled.
  Bytes lent;
  std::swap(talk, lent);
  h = {};
  h.link_set = kLinkSet;
  h.kind = NetHeader::kOpen, say(kDeliver, h);
  h.kind = NetHeader::kChunk, h.total = 2 * kSlotBytes + kSlotBytes / 2;
  talk.push_back(kRecall | kKind);
  for (const std::uint64_t i : {0u, 2u, 1u}) {
    h.index = i, h.bytes = i < 2 ? kSlotBytes : kSlotBytes / 2;
    say(i == 1 ? kAbandon : kDeliver, h);
  }
  talk.push_back(kRecall);
  for (const int act :
       {kPublish | kKind, kPublish | 0, kPublish | kKind, kRecall | kItsLinkSet, kReconnect | 0})
    talk.push_back(static_cast<std::uint8_t>(act));
  std::swap(talk, lent);
  // A chunk that does not fit, and one that arrives damaged twice.
  Bytes damaged;
  std::swap(talk, damaged);
  h = {};
  h.link_set = kLinkSet;
  h.kind = NetHeader::kOpen, say(kDeliver, h);
  h.kind = NetHeader::kChunk, h.bytes = kSlotBytes + 1, say(kDeliver, h);
  h.bytes = kSlotBytes, h.check = 1, say(kDeliver, h), say(kDeliver, h);
  std::swap(talk, damaged);
  Bytes helped = talk;
  for (std::uint8_t& b : helped)
    if (b == kDeliver) b = kDeliver | kKind | kItsLinkSet | kIndex | kBytes | kCheck;
  return {talk, helped, lent, damaged};
}

/// Applies notes one after the other to one replica: a byte for the kind, two for the key, two for the
/// length, then the body.
void notes(View in) {
  static const auto copy = std::make_unique<rt::ControlPage>();
  while (in.size() >= 5) {
    wire::Note n;
    n.kind = in[0];
    n.key = static_cast<std::uint64_t>(in[1]) << 8 | in[2];
    const std::size_t length =
        std::min<std::size_t>(static_cast<std::size_t>(in[3]) << 8 | in[4], in.size() - 5);
    n.body.assign(in.begin() + 5, in.begin() + 5 + static_cast<std::ptrdiff_t>(length));
    in = in.subspan(5 + length);
    const Status s = rt::apply(n, *copy);
    require(s.ok() || s.reason() == Reason::refused);
    require(copy->errors_used.get() <= rt::kErrors);
  }
}

std::vector<Bytes> notes_seeds() {
  auto page = std::make_unique<rt::ControlPage>();
  rt::ReplicaPublisher publisher(*page);
  page->groups[0].key.set(9), page->groups[0].entered.set(3), page->groups[0].state.set(1);
  page->groups[1].key.set(10), page->groups[1].history[0].tag.set(4);
  page->errors[0].rank = 1, page->errors_used.set(1), page->groups[0].error.set(1);
  page->votes[0].key.set(9);
  page->state.set(1);
  Bytes all;
  std::vector<Bytes> seeds;
  for (const wire::Note& n : publisher.changes()) {
    Bytes one = {static_cast<std::uint8_t>(n.kind), static_cast<std::uint8_t>(n.key >> 8),
                 static_cast<std::uint8_t>(n.key), static_cast<std::uint8_t>(n.body.size() >> 8),
                 static_cast<std::uint8_t>(n.body.size())};
    one.insert(one.end(), n.body.begin(), n.body.end());
    all.insert(all.end(), one.begin(), one.end());
    seeds.push_back(std::move(one));
  }
  seeds.push_back(std::move(all));
  return seeds;
}

}  // namespace ouro::fuzz
