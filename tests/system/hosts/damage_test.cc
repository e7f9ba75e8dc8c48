// The exchange over a wire that flips bits and drops connections, but delivers everything else: each chunk
// arrives as it was sent, or an end reports damage. In memory, seeded; one link in each direction, frames
// serialised to bytes.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <string>

#include "transport/net/exchange.h"

namespace ouro::transport {
namespace {

constexpr std::uint32_t kSlotBytes = 512, kSlots = 8;
constexpr std::uint64_t kLinkSet = 77;

std::byte content(std::uint64_t index, std::size_t at) {
  return static_cast<std::byte>(index * 37 + at * 11 + (index >> 8));
}

/// One end: an exchange with one link, and the frames in flight to it.
struct End {
  explicit End(bool checks)
      : exchange(2, checks, [this](int, std::string why) { damaged = std::move(why); }),
        link_set(std::make_shared<LinkSet>()) {
    link_set->key = kLinkSet;
    link_set->doorbell = &doorbell;
    link = (link_set->links[1] = std::make_unique<NetLink>(kSlotBytes, kSlots)).get();
    exchange.add(link_set);
  }
  Exchange exchange;
  Counter doorbell{};
  std::shared_ptr<LinkSet> link_set;
  NetLink* link;
  std::deque<std::vector<std::byte>> wire;
  std::uint64_t sent = 0, taken = 0, wrong = 0;
  std::string damaged;
};

class Wire {
 public:
  Wire(unsigned seed, double flips, double breaks) : random_(seed), flip_(flips), break_(breaks) {}

  /// Both ends send `chunks` chunks and receive those of the other. False: no progress, or an end has
  /// reported damage.
  bool carry(std::uint64_t chunks) {
    for (int idle = 0; a_.taken < chunks || b_.taken < chunks;) {
      const std::uint64_t before = a_.taken + b_.taken + flips;
      for (End* e : {&a_, &b_}) offer(*e, chunks);
      move(a_, b_);
      move(b_, a_);
      for (End* e : {&a_, &b_}) take(*e);
      if (!a_.damaged.empty() || !b_.damaged.empty()) return false;
      idle = before == a_.taken + b_.taken + flips ? idle + 1 : 0;
      if (idle > 100) return false;
    }
    return true;
  }
  std::uint64_t wrong() const { return a_.wrong + b_.wrong; }
  bool told() const { return !a_.damaged.empty() || !b_.damaged.empty(); }
  std::uint64_t flips = 0, reconnects = 0;

 private:
  void offer(End& e, std::uint64_t chunks) {
    const LinkView out = e.link->out();
    for (; e.sent < chunks && e.sent - load(*out.freed) < kSlots; ++e.sent) {
      const auto bytes = static_cast<std::uint32_t>(e.sent * 61 % (kSlotBytes + 1));
      for (std::size_t i = 0; i < bytes; ++i) out.payload(e.sent)[i] = content(e.sent, i);
      out.header(e.sent) = {.seq = e.sent, .signature = 5, .total = bytes, .bytes = bytes, .tag = 1};
      publish(*out.full, e.sent + 1);
    }
  }
  void take(End& e) {
    const LinkView in = e.link->in();
    for (; e.taken < load(*in.full); ++e.taken) {
      const SlotHeader& h = in.header(e.taken);
      bool right = h.seq == e.taken && h.signature == 5 && h.bytes == e.taken * 61 % (kSlotBytes + 1);
      for (std::size_t i = 0; right && i < h.bytes; ++i)
        right = in.payload(e.taken)[i] == content(e.taken, i);
      e.wrong += right ? 0 : 1;
      publish(*in.freed, e.taken + 1);
    }
  }
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }

  /// Serialises frames of `from`, with some bits flipped, and delivers frames to `to`.
  void move(End& from, End& to) {
    Exchange::Outgoing out;
    while (to.wire.size() < 4 && from.exchange.next(1, &out)) {
      std::vector<std::byte> bytes(sizeof out.header + out.header.bytes);
      std::memcpy(bytes.data(), &out.header, sizeof out.header);
      std::memcpy(bytes.data() + sizeof out.header, out.payload, out.header.bytes);
      if (chance(flip_)) {
        const std::size_t bit = random_() % (bytes.size() * 8);
        bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
        ++flips;
      }
      to.wire.push_back(std::move(bytes));
    }
    if (chance(break_)) return reconnect();
    while (!to.wire.empty() && chance(0.7)) {
      NetHeader h;
      std::memcpy(&h, to.wire.front().data(), sizeof h);
      const auto place = to.exchange.begin_receive(1, h);
      // After an unreadable header or a wrong length, the start of the next frame is unknown.
      if (!place.ok() || h.bytes != to.wire.front().size() - sizeof h) {
        if (place.ok()) to.exchange.abandon(1, h);
        return reconnect();
      }
      if (place->to) std::memcpy(place->to, to.wire.front().data() + sizeof h, h.bytes);
      to.wire.pop_front();
      to.exchange.received(1, h, *place);
    }
  }
  void reconnect() {
    ++reconnects;
    for (End* e : {&a_, &b_}) e->wire.clear(), e->exchange.resume(1);
  }

  std::mt19937 random_;
  double flip_, break_;
  End a_{true}, b_{true};
};

TEST(Damage, GoodWireDeliversEverything) {
  Wire wire(1, 0, 0);
  EXPECT_TRUE(wire.carry(20'000));
  EXPECT_EQ(wire.wrong(), 0u);
}

TEST(Damage, ConnectionsThatBreakLoseNothing) {
  Wire wire(2, 0, 0.05);
  EXPECT_TRUE(wire.carry(20'000));
  EXPECT_EQ(wire.wrong(), 0u);
  EXPECT_GT(wire.reconnects, 500u);
}

TEST(Damage, EveryFlippedBitIsRepairedOrReported) {
  std::uint64_t flips = 0, jobs = 0, told = 0;
  for (unsigned seed = 10; flips < 100'000 && seed < 5'000; ++seed, ++jobs) {
    Wire wire(seed, seed % 2 == 0 ? 0.02 : 0.2, seed % 3 == 0 ? 0.01 : 0);
    const bool whole = wire.carry(2'000);
    ASSERT_EQ(wire.wrong(), 0u) << "seed " << seed << ": taken as it was not sent";
    ASSERT_TRUE(whole || wire.told()) << "seed " << seed << ": stands still";
    told += wire.told() ? 1 : 0;
    flips += wire.flips;
  }
  EXPECT_GE(flips, 100'000u);
  EXPECT_LT(told, jobs);
  RecordProperty("flips", std::to_string(flips));
  RecordProperty("jobs", std::to_string(jobs) + ", told " + std::to_string(told));
}

}  // namespace
}  // namespace ouro::transport
