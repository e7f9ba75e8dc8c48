// Which connections keep a place at a flooded listener: tests the policy in virtual time.
#include "runtime/network/half_open.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <list>
#include <random>
#include <vector>

#include "tests/runtime/network/lab.h"

namespace ouro::rt {
namespace {

/// A listener without sockets.
struct Places {
  Clock::time_point now{std::chrono::hours(1)};
  struct Held : HalfOpen {
    int id = 0;
  };
  std::list<Held> all;

  std::vector<const HalfOpen*> seen() const {
    std::vector<const HalfOpen*> v;
    for (const Held& h : all) v.push_back(&h);
    return v;
  }
  /// A connection arrives. Returns whether it was admitted.
  bool come(const std::string& source, std::chrono::microseconds round_trip, int id = 0, bool known = false) {
    const HalfOpenVerdict v = judge(seen(), source, known, now);
    if (!v.admit) return false;
    if (v.evict) all.erase(std::next(all.begin(), static_cast<std::ptrdiff_t>(*v.evict)));
    all.push_back({{source, known, now + grace(round_trip)}, id});
    EXPECT_LE(all.size(), kHalfOpenInAll);
    return true;
  }
  bool holds(int id) const {
    return std::any_of(all.begin(), all.end(), [&](const Held& h) { return h.id == id; });
  }
  std::size_t of(const std::string& source) const {
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [&](const Held& h) { return h.source == source; }));
  }
};

/// Number of attempts of an honest rank, one round trip each, until one keeps its place for a round trip,
/// while `rate` strangers per second arrive from the sources that `source` names; at most 1000.
template <class Source>
int attempts(std::chrono::microseconds round_trip, int rate, std::chrono::microseconds pretended,
             Source source, unsigned seed) {
  Places p;
  std::mt19937 random(seed);
  const auto flood = [&](Clock::duration time) {
    const auto gap = std::chrono::microseconds(1'000'000 / rate);
    for (const auto end = p.now + time; p.now < end;
         p.now += std::uniform_int_distribution<int>(1, 2)(random) * gap * 2 / 3)
      p.come(source(random), pretended);
  };
  flood(3s);
  for (int attempt = 1; attempt <= 1000; ++attempt) {
    if (!p.come("honest", round_trip, attempt)) {
      flood(std::chrono::milliseconds(random() % 200));
      continue;
    }
    flood(round_trip);
    if (p.holds(attempt)) return attempt;
  }
  return 1000;
}

TEST(HalfOpen, GraceIsTwoRoundTripsWithinLimits) {
  EXPECT_EQ(grace(100us), 4ms);
  EXPECT_EQ(grace(80ms), 160ms);
  EXPECT_EQ(grace(5s), 2s) << "whatever a stranger pretends";
  EXPECT_EQ(grace(0us), 1s) << "not measured";
}

TEST(HalfOpen, SourcesAreIpv4AddressesAndIpv6Networks) {
  const auto of = [](const char* text) { return source_of(*parse_address(text)); };
  EXPECT_EQ(of("10.0.0.7:99"), of("10.0.0.7:100"));
  EXPECT_NE(of("10.0.0.7:99"), of("10.0.0.8:99"));
  EXPECT_EQ(of("[fd00::1:2:3:4]:1"), of("[fd00::ffff:2:3:9]:2"));
  EXPECT_NE(of("[fd00:0:0:1::1]:1"), of("[fd00:0:0:2::1]:1"));
}

TEST(HalfOpen, DistantClientConnectsDuringAFloodFromItsAddress) {
  double all = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const int n = attempts(
        80ms, 800, 80ms, [](auto&) { return "honest"; }, seed);
    EXPECT_LT(n, 200) << "seed " << seed;
    all += n;
  }
  EXPECT_LT(all / 20, 32) << "16 places and 160 ms: one in eight gets one";
}

TEST(HalfOpen, DistantClientConnectsDuringAFloodFromManyAddresses) {
  double all = 0;
  for (unsigned seed = 0; seed < 4; ++seed)
    all += attempts(
        80ms, 2000, 2s, [](auto& random) { return fmt::format("10.{}", random() % 5000); }, seed);
  EXPECT_LT(all / 4, 100) << "128 places and 2 s: one in 31";
}

/// If few sources hold all places, they must share them at once.
TEST(HalfOpen, DistantClientConnectsAtOnceDuringAFloodFromFewSources) {
  for (unsigned seed = 0; seed < 20; ++seed)
    EXPECT_EQ(attempts(
                  80ms, 2000, 2s, [](auto& random) { return fmt::format("10.{}", random() % 8); }, seed),
              1);
}

TEST(HalfOpen, OldestExpiredConnectionOfTheSameSourceIsEvicted) {
  Places p;
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(p.come("a", 40ms, i));
  EXPECT_FALSE(p.come("a", 1ms, 99)) << "no time is over";
  EXPECT_TRUE(p.come("b", 1ms, 50)) << "of no concern to others";
  p.now += 81ms;
  EXPECT_TRUE(p.come("a", 1ms, 99));
  EXPECT_FALSE(p.holds(0));
  for (int i = 1; i < 16; ++i) EXPECT_TRUE(p.holds(i));
  EXPECT_TRUE(p.holds(50)) << "a source pays for itself";
}

TEST(HalfOpen, YoungestConnectionOfTheLargestSourceIsEvicted) {
  Places p;
  for (int i = 0; i < 128; ++i) ASSERT_TRUE(p.come(fmt::format("{}", i / 16), 1s, i));
  ASSERT_TRUE(p.come("new", 1s, 200));
  EXPECT_FALSE(p.holds(127));
  EXPECT_TRUE(p.holds(0)) << "it has come furthest";
  for (int i = 0; i < 200; ++i) p.come("new", 1s, 201 + i);
  EXPECT_LE(p.of("new"), 15u);
  EXPECT_GE(p.of("new"), 13u);
  for (int s = 0; s < 8; ++s) EXPECT_GE(p.of(fmt::format("{}", s)), 14u) << "equal shares";
}

/// Strangers cannot keep out a host that has connected before, from however many addresses; strangers do not
/// get that priority.
TEST(HalfOpen, KnownSourcesTakePrecedenceOverUnknownOnes) {
  Places p;
  for (int i = 0; i < 128; ++i) ASSERT_TRUE(p.come(fmt::format("{}", i), 1s, i));
  EXPECT_FALSE(p.come("new", 1s, 200));
  EXPECT_TRUE(p.come("old", 1s, 201, true));
  p.now += 3s;
  for (int i = 0; i < 127; ++i) ASSERT_TRUE(p.come(fmt::format("{}", 1000 + i), 1s, 300 + i));
  EXPECT_TRUE(p.holds(201)) << "those not known go first";
}

}  // namespace
}  // namespace ouro::rt
