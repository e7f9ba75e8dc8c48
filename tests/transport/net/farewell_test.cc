// The end of link sets: each side is told that the other takes nothing more, whatever is lost in between.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>

#include "tests/transport/net/ends.h"

namespace ouro::transport {
namespace {

/// Neither side takes what the other has sent: each is told, and neither waits.
TEST(Exchange, CloseNotifiesThePeerSoThatNeitherLingers) {
  End a(0), b(1);
  a.open(), b.open();
  for (int turn = 0; turn < 6; ++turn) {
    if (auto f = next(a)) {
      ASSERT_TRUE(give(b, *f).ok());
    }
    if (auto f = next(b)) {
      ASSERT_TRUE(give(a, *f).ok());
    }
  }
  a.put(), b.put();
  a.exchange.remove(kLinkSet, true);
  EXPECT_EQ(a.exchange.lingering(), 1u);
  EXPECT_FALSE(b.link().drained());
  for (int turn = 0; turn < 6; ++turn)
    if (auto f = next(a)) {
      ASSERT_TRUE(give(b, *f).ok());
    }
  EXPECT_TRUE(b.link().drained());
  b.exchange.remove(kLinkSet, true);
  EXPECT_EQ(b.exchange.lingering(), 0u);
  for (int turn = 0; turn < 6; ++turn)
    if (auto f = next(b)) {
      ASSERT_TRUE(give(a, *f).ok());
    }
  EXPECT_EQ(a.exchange.lingering(), 0u);
}

/// What a leaving rank has sent is in flight until its peer confirms its arrival, whether taken or not; a
/// chunk that arrived damaged and is sent again is in flight again.
TEST(Exchange, UndeliveredChunksAreCountedUntilConfirmed) {
  for (const bool damaged : {false, true}) {
    End a(0), b(1);
    a.open(), b.open();
    const auto talk = [&] {
      for (int turn = 0; turn < 6; ++turn) {
        if (auto f = next(a)) {
          ASSERT_TRUE(give(b, *f).ok());
        }
        if (auto f = next(b)) {
          ASSERT_TRUE(give(a, *f).ok());
        }
      }
    };
    talk();
    a.put(), a.put();
    EXPECT_EQ(a.exchange.undelivered(), 0u) << "its owner is still there";
    auto first = next(a), second = next(a);
    ASSERT_TRUE(first && second);
    a.exchange.remove(kLinkSet, true);
    auto last = next(a), ask = next(a);  // the farewell, and the question
    ASSERT_TRUE(last && ask && ask->header.kind == NetHeader::kAsk);
    ASSERT_TRUE(give(b, *last).ok() && give(b, *ask).ok());  // on a line that is faster
    while (auto f = next(b)) ASSERT_TRUE(give(a, *f).ok());
    EXPECT_EQ(a.exchange.undelivered(), 1u);
    ASSERT_TRUE(give(b, *first).ok());
    if (damaged) second->payload[0] ^= std::byte{1};
    ASSERT_TRUE(give(b, *second).ok());
    if (damaged) {
      ASSERT_TRUE(give(a, *next(b)).ok());
      EXPECT_EQ(a.exchange.undelivered(), 1u) << "one chunk goes once more";
    }
    talk();
    EXPECT_EQ(a.exchange.undelivered(), 0u) << damaged;
    EXPECT_EQ(a.exchange.lingering(), 1u) << "nobody has taken it";
    ASSERT_TRUE(b.take() && b.take());
  }
}

/// A sender that waits for its memory is told of it even by a receiver that takes the chunk and leaves
/// at once.
TEST(Exchange, FarewellCarriesTheCreditOfTakenChunks) {
  End a(0), b(1);
  a.open(), b.open();
  for (int turn = 0; turn < 6; ++turn) {
    if (auto f = next(a)) {
      ASSERT_TRUE(give(b, *f).ok());
    }
    if (auto f = next(b)) {
      ASSERT_TRUE(give(a, *f).ok());
    }
  }
  a.put();
  ASSERT_TRUE(give(b, *next(a)).ok());
  ASSERT_TRUE(b.take());
  b.exchange.remove(kLinkSet, true);
  b.link_set.reset();
  ASSERT_TRUE(give(a, *next(b)).ok());
  EXPECT_EQ(load(*a.link().out().freed), 1u);
}

/// A rank that is about to leave waits for what it has sent: it is told of link sets that end at its
/// peer shortly before the peer learns that this rank is leaving, or later, and its questions about them
/// are answered.
TEST(Exchange, LeavingRankIsNotifiedOfEndedLinkSets) {
  for (const bool ends_first : {false, true}) {
    End a(0), b(1);
    a.open(), b.open();
    const auto talk = [&] {
      for (int turn = 0; turn < 6; ++turn) {
        if (auto f = next(a)) {
          ASSERT_TRUE(give(b, *f).ok());
        }
        if (auto f = next(b)) {
          ASSERT_TRUE(give(a, *f).ok());
        }
      }
    };
    talk();
    a.put();
    ASSERT_TRUE(give(b, *next(a)).ok());
    a.exchange.remove(kLinkSet, true);
    ASSERT_EQ(a.exchange.lingering(), 1u);
    if (ends_first) b.exchange.remove(kLinkSet, false);
    b.exchange.leaves(0);
    if (!ends_first) b.exchange.remove(kLinkSet, false);
    EXPECT_EQ(b.exchange.unanswered(), 0u) << "it will not answer";
    talk();
    EXPECT_EQ(a.exchange.lingering(), 0u) << ends_first;
    b.exchange.forgive(0);
    EXPECT_EQ(b.exchange.remembered(0), 0u);
  }
}

/// What was sent about a link set before the connection broke is sent again.
TEST(Exchange, FarewellIsSentAgainAfterTheConnectionBreaks) {
  End a(0), b(1);
  a.open(), b.open();
  Exchange::Outgoing burst[2];
  {
    std::lock_guard lock(a.exchange.lock());
    ASSERT_TRUE(a.exchange.next(1, &burst[0]));
    ASSERT_EQ(burst[0].header.kind, NetHeader::kOpen);
  }
  a.exchange.remove(kLinkSet, false);
  {
    std::lock_guard lock(a.exchange.lock());
    EXPECT_TRUE(a.exchange.talks_to(1));
    ASSERT_TRUE(a.exchange.next(1, &burst[1]));
    ASSERT_EQ(burst[1].header.kind, NetHeader::kGone);
    EXPECT_FALSE(a.exchange.talks_to(1));
    a.exchange.resume(1);
  }
  const auto again = next(a);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->header.kind, NetHeader::kGone);
  EXPECT_EQ(again->header.link_set, kLinkSet);
}

/// Both ends close at any moment, before or after the other opens; the connection breaks at any moment, and
/// everything in flight on it is lost, completely written or not. Neither end is left waiting for the other.
TEST(Exchange, BreakAtAnyMomentLeavesNeitherEndWaiting) {
  constexpr int kMoments = 14, kEnough = 60;
  for (int first_closes = 1; first_closes < kMoments; ++first_closes)
    for (int second_opens = 0; second_opens < kMoments; second_opens += 3)
      for (int second_closes = second_opens + 1; second_closes < kMoments + 4; second_closes += 2)
        for (int breaks = 0; breaks < kMoments + 4; ++breaks) {
          End a(0), b(1);
          std::deque<Frame> to_a, to_b;
          a.open(), a.put(), a.put();
          const auto move = [](std::deque<Frame>& wire, End& to) {
            if (wire.empty()) return;
            ASSERT_TRUE(give(to, wire.front()).ok());
            wire.pop_front();
          };
          for (int at = 0; at < kEnough; ++at) {
            if (at == second_opens) b.open(), b.put();
            if (at == first_closes) a.exchange.remove(kLinkSet, true);
            if (at == second_closes) b.exchange.remove(kLinkSet, true);
            if (auto f = next(a)) to_b.push_back(std::move(*f));
            if (auto f = next(b)) to_a.push_back(std::move(*f));
            if (at == breaks) {
              to_a.clear(), to_b.clear();
              for (End* end : {&a, &b}) {
                std::lock_guard lock(end->exchange.lock());
                end->exchange.resume(1 - end->rank);
              }
            }
            move(to_a, a), move(to_b, b);
          }
          const auto when = fmt::format("a closes at {}, b lives from {} to {}, the connection breaks at {}",
                                        first_closes, second_opens, second_closes, breaks);
          ASSERT_EQ(a.exchange.lingering(), 0u) << when;
          ASSERT_EQ(b.exchange.lingering(), 0u) << when;
        }
}

/// However many link sets are opened and closed, the state that is kept of them is bounded, whether
/// connections break or not.
TEST(Exchange, StateKeptOfClosedLinkSetsIsBounded) {
  for (const bool breaks : {false, true}) {
    End a(0), b(1);
    const auto talk = [&](int turns, bool b_hears) {
      for (int turn = 0; turn < turns; ++turn) {
        auto of_a = next(a), of_b = next(b);
        if (of_a && b_hears) {
          ASSERT_TRUE(give(b, *of_a).ok());
        }
        if (of_b) {
          ASSERT_TRUE(give(a, *of_b).ok());
        }
      }
    };
    for (std::uint64_t key = 1; key <= 2000; ++key) {
      for (End* end : {&a, &b}) {
        auto link_set = std::make_shared<LinkSet>();
        link_set->key = key;
        link_set->links[1 - end->rank] = std::make_unique<NetLink>(64, 2);
        end->exchange.add(link_set);
      }
      a.exchange.remove(key, false), b.exchange.remove(key, false);
      const bool lost = breaks && key % 3 == 0;
      talk(4, !lost);
      for (End* end : {&a, &b}) {
        std::lock_guard lock(end->exchange.lock());
        if (lost) end->exchange.resume(1 - end->rank);
      }
      if (lost) talk(2 * Farewells::kKept, true);
    }
    EXPECT_LE(a.exchange.remembered(1), Farewells::kKept);
    EXPECT_LE(b.exchange.remembered(0), Farewells::kKept);
    EXPECT_FALSE(next(a) || next(b)) << "they would talk for ever";
    a.exchange.forgive(1);
    EXPECT_EQ(a.exchange.remembered(1), 0u);
  }
}

/// A rank that opens a link set that its peer has opened and ended meanwhile is told so, and so is one that
/// still uses it.
TEST(Exchange, OpeningAnEndedLinkSetIsAnsweredWithItsEnd) {
  for (const bool opened_before : {false, true}) {
    End a(0), b(1);
    b.open();
    if (opened_before) {
      a.open();
      for (int turn = 0; turn < 6; ++turn) {
        if (auto f = next(a)) {
          ASSERT_TRUE(give(b, *f).ok());
        }
        if (auto f = next(b)) {
          ASSERT_TRUE(give(a, *f).ok());
        }
      }
    }
    b.exchange.remove(kLinkSet, false);
    while (next(b)) continue;  // frames are lost
    if (!opened_before) a.open();
    a.put();
    ASSERT_FALSE(a.link().drained());
    a.link().ask();
    for (int turn = 0; turn < 8; ++turn) {
      if (auto f = next(a)) {
        ASSERT_TRUE(give(b, *f).ok());
      }
      if (auto f = next(b)) {
        ASSERT_TRUE(give(a, *f).ok());
      }
    }
    EXPECT_TRUE(a.link().drained()) << opened_before;
  }
  End never(1);  // a link set that is still to be opened here has not ended
  NetHeader ask{};
  ask.kind = NetHeader::kOpen;
  ask.link_set = kLinkSet;
  ASSERT_TRUE(give(never, {ask, {}}).ok());
  EXPECT_FALSE(next(never));
}

}  // namespace
}  // namespace ouro::transport
