// The exchange between two ranks over an in-memory wire: chunks in any order, lost with a connection,
// duplicated, damaged, and headers that no honest peer sends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/transport/net/ends.h"

namespace ouro::transport {
namespace {

/// Whatever the wire does, chunks arrive intact, in order and once.
TEST(Exchange, ChunksArriveIntactInOrderAndOnce) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto chance = [&](unsigned percent) { return random() % 100 < percent; };
    End a(0), b(1);
    End* ends[] = {&a, &b};
    std::vector<Frame> wire[2];  // frames in flight to each end
    a.open();
    bool b_is_open = false;
    constexpr std::uint64_t kChunks = 200;
    for (int step = 0; step < 200'000 && (a.taken < kChunks || b.taken < kChunks); ++step) {
      if (!b_is_open && chance(5)) b.open(), b_is_open = true;
      const int i = static_cast<int>(random() % 2);
      End& e = *ends[i];
      if (e.link_set) {
        if (e.sent < kChunks && chance(50)) e.put();
        if (chance(50)) {
          ASSERT_TRUE(e.take()) << "seed " << seed << " chunk " << e.taken;
        }
        if (auto f = next(e)) wire[1 - i].push_back(std::move(*f));
      }
      if (!wire[i].empty()) {
        const std::size_t which = random() % wire[i].size();  // in any order
        Frame f = wire[i][which];
        const bool damage = chance(2) && !f.payload.empty();
        if (damage) f.payload[random() % f.payload.size()] ^= std::byte{4};
        if (!chance(3) || damage)
          // Otherwise it is delivered twice.
          wire[i].erase(wire[i].begin() + static_cast<std::ptrdiff_t>(which));
        const Status s = give(e, f);
        // A copy that arrives after its slot has been released is behind the window, never ahead of it.
        ASSERT_TRUE(s.ok()) << "seed " << seed << ": " << s.message();
        if (!e.damaged.empty()) break;  // the same chunk arrived twice, which is reported
      }
      if (chance(1) && step % 50 == 0) {  // the connection breaks, and everything in flight on it is lost
        wire[0].clear(), wire[1].clear();
        for (End* end : ends) {
          std::lock_guard lock(end->exchange.lock());
          end->exchange.resume(1 - end->rank);
        }
      }
    }
    if (a.damaged.empty() && b.damaged.empty()) {
      ASSERT_TRUE(a.taken == kChunks && b.taken == kChunks)
          << "seed " << seed << ": " << a.taken << " " << b.taken;
    }
  }
}

/// One message is sent from its sender's memory to its receiver's; each end recalls its memory at
/// some moment.
TEST(Exchange, LentMemoryIsUsedUntilItIsRecalled) {
  int received = 0, lent = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const auto chance = [&](unsigned percent) { return random() % 100 < percent; };
    constexpr std::uint64_t kChunks = 30;
    constexpr std::size_t kBytes = (kChunks - 1) * kSlotBytes + 100;
    End a(0, chance(50)), b(1);
    a.open(), b.open();
    std::vector<std::byte> message(kBytes), mine(kBytes), theirs(kBytes);
    for (std::byte& x : message) x = static_cast<std::byte>(random());
    std::vector<std::byte> source = message;
    std::byte* to = mine.data();
    bool lends = true, posted = true;
    const auto give_up_at = random() % 2000, recall_at = random() % 2000;
    struct Coming {
      Frame frame;
      Exchange::Destination destination;
    };
    std::vector<Frame> wire, back;
    std::vector<Coming> coming;  // half of their payload has arrived
    const auto half = [](const Frame& f) { return f.payload.size() / 2; };
    if (chance(80)) {
      std::lock_guard lock(b.exchange.lock());
      b.link().post({0, to, kBytes});
    }
    for (unsigned step = 0; step < 100'000 && b.taken < kChunks; ++step) {
      if (step == give_up_at) {
        std::lock_guard lock(a.exchange.lock());
        a.link().recall_outbound([](const NetLink::Move&) {});  // the wire has copies
        std::fill(source.begin(), source.end(), std::byte{0xee});
        lends = false;
      }
      if (step == recall_at) {
        std::lock_guard lock(b.exchange.lock());
        b.link().recall_inbound([&](const NetLink::Move& m) {
          for (Coming& c : coming)
            if (c.destination.to == m.from) std::memcpy(m.to, m.from, half(c.frame)), c.destination.to = m.to;
        });
        theirs = mine;
        to = theirs.data();
        std::fill(mine.begin(), mine.end(), std::byte{0xee});
        posted = false;
      }
      const LinkView out = a.link().out();
      if (a.sent < kChunks && a.sent - load(*out.freed) < kSlots && chance(30)) {
        const std::size_t at = a.sent * kSlotBytes, bytes = std::min<std::size_t>(kSlotBytes, kBytes - at);
        out.elsewhere[a.sent % kSlots] = lends ? source.data() + at : nullptr;
        lent += lends;
        if (!lends) std::memcpy(out.payload(a.sent), message.data() + at, bytes);
        out.header(a.sent) = {0, 0, kBytes, static_cast<std::uint32_t>(bytes), 0};
        publish(*out.full, ++a.sent);
      }
      if (auto f = next(a)) wire.push_back(std::move(*f));
      if (auto f = next(b)) back.push_back(std::move(*f));
      if (!back.empty()) {
        ASSERT_TRUE(give(a, back.front()).ok());
        back.erase(back.begin());
      }
      if (!wire.empty() && chance(50)) {
        const auto which = static_cast<std::ptrdiff_t>(random() % wire.size());
        Coming c{std::move(wire[static_cast<std::size_t>(which)]), {}};
        wire.erase(wire.begin() + which);
        std::lock_guard lock(b.exchange.lock());
        auto destination = b.exchange.begin_receive(0, c.frame.header);
        ASSERT_TRUE(destination.ok()) << destination.status().message();
        c.destination = std::move(*destination);
        if (c.destination.to) std::memcpy(c.destination.to, c.frame.payload.data(), half(c.frame));
        coming.push_back(std::move(c));
      }
      if (!coming.empty() && chance(50)) {
        const auto which = static_cast<std::ptrdiff_t>(random() % coming.size());
        Coming c = std::move(coming[static_cast<std::size_t>(which)]);
        coming.erase(coming.begin() + which);
        std::lock_guard lock(b.exchange.lock());
        if (c.destination.to && chance(3)) {  // its connection broke
          b.exchange.abandon(0, c.frame.header);
          continue;
        }
        if (c.destination.to)
          std::memcpy(c.destination.to + half(c.frame), c.frame.payload.data() + half(c.frame),
                      c.frame.payload.size() - half(c.frame));
        b.exchange.received(0, c.frame.header, c.destination);
      }
      const LinkView in = b.link().in();
      if (load(*in.full) > b.taken && chance(40)) {
        std::byte* const here = to + b.taken * kSlotBytes;
        const std::byte* const found = in.found(b.taken);
        received += found == here;
        if (found != here) std::memcpy(here, found, in.header(b.taken).bytes);
        publish(*in.freed, ++b.taken);
      }
    }
    ASSERT_EQ(b.taken, kChunks) << "seed " << seed;
    ASSERT_EQ(std::memcmp(to, message.data(), kBytes), 0) << "seed " << seed;
    if (!posted) {
      ASSERT_EQ(std::count(mine.begin(), mine.end(), std::byte{0xee}), std::ssize(mine)) << "seed " << seed;
    }
    // The sender is told, without asking, that the last chunk, sent from its own memory, was taken.
    for (int turn = 0; turn < 8; ++turn)
      if (auto f = next(b)) back.push_back(std::move(*f));
    for (const Frame& f : back) ASSERT_TRUE(give(a, f).ok());
    if (lends) {
      ASSERT_EQ(load(*a.link().out().freed), kChunks) << "seed " << seed;
    }
  }
  EXPECT_GT(received, 1000);
  EXPECT_GT(lent, 1000);
}

TEST(Exchange, ChunkDamagedTwiceIsReported) {
  End a(0), b(1);
  a.open(), b.open();
  a.put(), a.put();
  for (int turn = 0; turn < 8; ++turn) {
    if (auto f = next(a)) {
      if (f->header.kind == NetHeader::kChunk && f->header.index == 1) f->payload[3] ^= std::byte{1};
      ASSERT_TRUE(give(b, *f).ok());
    }
    if (auto f = next(b)) {
      ASSERT_TRUE(give(a, *f).ok());
    }
  }
  EXPECT_THAT(b.damaged, testing::HasSubstr("chunk 1 "));
  EXPECT_EQ(load(*b.link().in().full), 1u);  // the first one has arrived; the damaged one never counts
}

TEST(Exchange, InvalidHeadersAreRefused) {
  End a(0), b(1);
  a.open(), b.open();
  NetHeader h{};
  h.kind = NetHeader::kChunk;
  h.link_set = kLinkSet;
  const auto refused = [&](NetHeader wrong, const char* what) {
    std::lock_guard lock(b.exchange.lock());
    const auto destination = b.exchange.begin_receive(0, wrong);
    ASSERT_EQ(destination.status().reason(), Reason::ring_corrupt) << what;
    EXPECT_THAT(destination.status().message(), testing::HasSubstr(what));
  };
  NetHeader wrong = h;
  wrong.kind = 0;
  refused(wrong, "unknown kind");
  wrong = h, wrong.kind = NetHeader::kCredit, wrong.bytes = 1;
  refused(wrong, "bytes of payload");
  wrong = h, wrong.bytes = static_cast<std::uint32_t>(Exchange::kMaxPayload) + 1;
  refused(wrong, "at most");
  wrong = h, wrong.bytes = kSlotBytes + 1;
  refused(wrong, "slots of 256");
  wrong = h, wrong.index = kSlots;
  refused(wrong, "room up to 8");
  // For a link set that does not exist, or from a rank that is not in it: the frame is read and discarded,
  // with no other effect.
  std::lock_guard lock(b.exchange.lock());
  wrong = h, wrong.link_set = 1, wrong.bytes = 4;
  EXPECT_EQ(b.exchange.begin_receive(0, wrong)->to, nullptr);
  EXPECT_EQ(b.exchange.begin_receive(1, h)->to, nullptr);
  // A credit for more than was sent is ignored.
  wrong = h, wrong.kind = NetHeader::kCredit, wrong.freed = 100;
  b.exchange.received(0, wrong, {});
  EXPECT_EQ(load(*b.link().out().freed), 0u);
}

TEST(Exchange, ClosedLinkSetLingersUntilItsChunksAreTaken) {
  End a(0), b(1);
  a.open();
  a.put();
  auto after = std::make_shared<int>();
  a.link_set->after = after;
  a.exchange.remove(kLinkSet, true);
  a.link_set.reset();
  EXPECT_EQ(a.exchange.lingering(), 1u);
  b.open();
  for (int turn = 0; turn < 20 && a.exchange.lingering() > 0; ++turn) {
    if (auto f = next(a)) {
      ASSERT_TRUE(give(b, *f).ok());
    }
    ASSERT_TRUE(b.take());
    if (auto f = next(b)) {
      ASSERT_TRUE(give(a, *f).ok());
    }
  }
  EXPECT_EQ(b.taken, 1u);
  EXPECT_EQ(a.exchange.lingering(), 0u);
  EXPECT_EQ(after.use_count(), 1);
}

/// A sender that has lent the memory of a message waits for the credit of its last chunk, whatever follows it
/// on the link.
TEST(Exchange, RequestsCreditForTheEndOfEachLentMessage) {
  End a(0), b(1);
  a.open(), b.open();
  ASSERT_TRUE(give(b, *next(a)).ok());
  ASSERT_TRUE(give(a, *next(b)).ok());
  ASSERT_TRUE(give(b, *next(a)).ok());
  const LinkView out = a.link().out();
  const std::vector<std::byte> memory(kSlotBytes);
  const struct {
    std::uint64_t first;
    bool lent;
  } chunks[] = {{0, true}, {0, true}, {2, false}, {3, true}, {4, true}};
  for (const auto& c : chunks) {
    out.elsewhere[a.sent] = c.lent ? memory.data() : nullptr;
    out.header(a.sent) = {c.first, 0, kSlotBytes, kSlotBytes, 0};
    publish(*out.full, ++a.sent);
  }
  std::vector<bool> asked;
  while (auto f = next(a))
    if (f->header.kind == NetHeader::kChunk) asked.push_back(f->header.report != 0);
  EXPECT_THAT(asked, testing::ElementsAre(false, true, false, true, true));
}

TEST(Exchange, DoesNotLingerForALostPeer) {
  End a(0);
  a.open();
  a.put();
  a.exchange.forgive(1);
  a.exchange.remove(kLinkSet, true);
  EXPECT_EQ(a.exchange.lingering(), 0u);
}

}  // namespace
}  // namespace ouro::transport
