// The record as JSON and back, and what is refused as a record.
#include "runtime/calibration/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "tests/runtime/calibration/invented.h"

namespace ouro::rt {
namespace {

using testing::HasSubstr;

TEST(Record, SurvivesARoundTripThroughJson) {
  const Calibration c = invented_record();
  EXPECT_TRUE(c.complete());
  std::string key;
  const auto back = parse_calibration(to_json(c, "a machine"), &key);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(*back, c);
  EXPECT_EQ(key, "a machine");
}

TEST(Record, UnknownFiguresAreOmittedFromJson) {
  Calibration c = invented_record();
  c.pairs = 1, c.pair[1] = {}, c.context_switch = 0, c.wake = 0, c.cache_kib = 0;
  c.pair[0].copies[2][1] = {}, c.pair[0].pull[3] = 0;
  EXPECT_FALSE(c.complete());
  const auto back = parse_calibration(to_json(c, ""));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(*back, c);
}

TEST(Record, MissingFiguresMarkADisturbedMeasurement) {
  const Calibration whole = invented_record();
  EXPECT_TRUE(whole.undisturbed());
  const auto without = [&](auto&& leave_out) {
    Calibration c = whole;
    leave_out(c, c.pair[1]);  // the farthest
    return c.complete() && !c.undisturbed();
  };
  EXPECT_TRUE(without([](Calibration& c, PairCosts&) { c.wake = 0; }));
  EXPECT_TRUE(without([](Calibration& c, PairCosts&) { c.context_switch = 0; }));
  EXPECT_TRUE(without([](Calibration&, PairCosts& far) { far.ring = {}; }));
  EXPECT_TRUE(without([](Calibration&, PairCosts& far) { far.together = {}; }));
  EXPECT_TRUE(without([](Calibration&, PairCosts& far) { far.large = {}; }));
  EXPECT_TRUE(without([](Calibration&, PairCosts& far) { far.large_local = 0; }));
  EXPECT_TRUE(without([](Calibration&, PairCosts& far) { far.stores[1] = {}; }));
  EXPECT_TRUE(without([](Calibration&, PairCosts& far) { far.loads[2] = {}; }));
  EXPECT_TRUE(without([](Calibration&, PairCosts& far) { far.pull_together = 0; }));
  Calibration c = whole;
  c.pair[0].ring = {}, c.pair[0].large_local = 0;
  EXPECT_TRUE(c.undisturbed()) << "nearer cores have copies alone";
  for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s) c.pair[1].pull[s] = c.pair[1].pull_huge[s] = 0;
  c.pair[1].pull_together = 0;
  EXPECT_TRUE(c.undisturbed()) << "the system forbids pulls";
}

TEST(Record, AllZeroCountsAsUnknown) {
  EXPECT_FALSE(Calibration{}.known());
  EXPECT_FALSE(Calibration{}.complete());
  EXPECT_EQ(Calibration{}.digest(), 0u);
}

TEST(Record, DigestCoversFiguresButNotProcessorNumbers) {
  const Calibration c = invented_record();
  Calibration other = c;
  other.pair[1].cpus[1] = 77;
  EXPECT_EQ(other.digest(), c.digest());
  other.pair[1].copies[3][2].read += 1;
  EXPECT_NE(other.digest(), c.digest());
  for (std::uint32_t PairCosts::*figure : {&PairCosts::pull_together, &PairCosts::large_local}) {
    other = c, other.pair[0].*figure += 1;
    EXPECT_NE(other.digest(), c.digest());
    EXPECT_EQ(*parse_calibration(to_json(other, "")), other);
  }
  for (CopyCost PairCosts::*figure :
       {&PairCosts::ring, &PairCosts::together, &PairCosts::together_slots, &PairCosts::large}) {
    other = c, (other.pair[0].*figure).read += 1;
    EXPECT_NE(other.digest(), c.digest());
    EXPECT_EQ(*parse_calibration(to_json(other, "")), other);
  }
  for (AccessCost(PairCosts::*figures)[kAccessSizes.size()] : {&PairCosts::stores, &PairCosts::loads})
    for (std::size_t s = 0; s < kAccessSizes.size(); ++s) {
      other = c, (other.pair[0].*figures)[s].alone += 1;
      EXPECT_NE(other.digest(), c.digest());
      EXPECT_EQ(*parse_calibration(to_json(other, "")), other);
    }
  for (const auto figure : {&Calibration::context_switch, &Calibration::wake, &Calibration::pause,
                            &Calibration::cache_kib, &Calibration::caches}) {
    other = c, other.*figure += 1;
    EXPECT_NE(other.digest(), c.digest());
  }
}

TEST(Record, AbsurdFiguresBecomeUnknown) {
  Calibration c = invented_record();
  c.pair[0].copies[3][0].write = 1;    // a MiB in a nanosecond
  c.pair[0].pull[0] = 4'000'000'000u;  // 4 KiB in four seconds
  c.pair[0].large.read = 400;          // 4 MiB in no time
  c.pair[0].together.read = 3, c.pair[0].pull_together = 3, c.pair[0].stores[0].alone = 3;
  c.pair[0].loads[2].after = 4'000'000'000u;
  c.pair[0].together_slots.write = 3, c.pair[0].ring.read = 3, c.pair[0].large_local = 400;
  c.pair[1].handoff = 1'000'000;  // a line in a millisecond
  c.context_switch = 3, c.wake = 20'000'000, c.pause = 5'000, c.cache_kib = 3, c.caches = 5'000;
  const Calibration sane = without_absurd(c);
  EXPECT_EQ(sane.pairs, 1u);
  EXPECT_FALSE(sane.pair[0].copies[3][0].known());
  EXPECT_TRUE(sane.pair[0].copies[3][1].known());
  EXPECT_EQ(sane.pair[0].pull[0], 0u);
  EXPECT_FALSE(sane.pair[0].large.known());
  EXPECT_FALSE(sane.pair[0].together.known());
  EXPECT_EQ(sane.pair[0].pull_together, 0u);
  EXPECT_FALSE(sane.pair[0].together_slots.known());
  EXPECT_FALSE(sane.pair[0].ring.known());
  EXPECT_EQ(sane.pair[0].large_local, 0u);
  EXPECT_FALSE(sane.pair[0].stores[0].known());
  EXPECT_TRUE(sane.pair[0].stores[1].known());
  EXPECT_FALSE(sane.pair[0].loads[2].known());
  EXPECT_EQ(sane.pair[0].pull[1], c.pair[0].pull[1]);
  EXPECT_EQ(sane.context_switch + sane.wake + sane.pause + sane.cache_kib + sane.caches, 0u);
  c = invented_record();
  c.pair[1].distance = c.pair[0].distance;
  EXPECT_EQ(without_absurd(c).pairs, 1u) << "the second is not beyond the first";
  c.pairs = 4'000'000'000u;  // as on a page that somebody has overwritten
  EXPECT_LE(without_absurd(c).pairs, static_cast<std::uint32_t>(kDistances));
}

/// Earlier versions measured stores to 64 KiB alone.
TEST(Record, OldStoreFigureIsScaledToEverySize) {
  const auto old = parse_calibration(
      R"({"ouro_calibration": 1, "pairs": [{"distance": "cache", "handoff_ns": 50, "stores": [6400, 1600]}]})");
  ASSERT_TRUE(old.ok()) << old.status().message();
  const PairCosts& pair = old->pair[0];
  EXPECT_EQ(pair.stores[0], (AccessCost{400, 100}));
  EXPECT_EQ(pair.stores[1], (AccessCost{3200, 800}));
  EXPECT_EQ(pair.stores[2], (AccessCost{12'800, 3200}));
  EXPECT_FALSE(pair.loads[0].known());
}

TEST(Record, InvalidJsonIsRefusedWithThePlace) {
  const auto pair = [](const std::string& rest) {
    return R"({"ouro_calibration": 1, "pairs": [{"distance": "cache", )" + rest + "}]}";
  };
  for (
      const auto& [text, says] : {
          std::tuple{std::string("nonsense"), "not a JSON object"},
          {"[]", "not a JSON object"},
          {"{}", "\"ouro_calibration\": 1 is missing"},
          {R"({"ouro_calibration": 2, "pairs": []})", "\"ouro_calibration\": 1 is missing"},
          {R"({"ouro_calibration": 1})", "pairs is not a list of 1 to 3"},
          {R"({"ouro_calibration": 1, "pairs": []})", "pairs is not a list of 1 to 3"},
          {R"({"ouro_calibration": 1, "pairs": [5]})", "pair 0: a pair is not an object"},
          {R"({"ouro_calibration": 1, "pairs": [{"distance": "far"}]})", "pair 0: distance is not"},
          {pair(R"("handoff_ns": -3)"), "pair 0: handoff_ns is not 5 to 20000"},
          {pair(R"("handoff_ns": 50}, {"distance": "cache", "handoff_ns": 60)"),
           "pair 1: its distance is not"},
          {R"({"ouro_calibration": 1, "pairs": [{"distance": "node", "handoff_ns": 90}, {"distance": "cache", "handoff_ns": 50}]})",
           "pair 1: its distance is not beyond"},
          {pair(R"("handoff_ns": 50, "cpus": [1])"), "cpus is not two numbers"},
          {pair(R"("handoff_ns": 50, "together": [1])"), "together is not [write, read]"},
          {pair(R"("handoff_ns": 50, "pull_together": "x")"), "pull_together is not"},
          {pair(R"("handoff_ns": 50, "stores": [1, -1])"), "stores is not [after, alone]"},
          {pair(R"("handoff_ns": 50, "accesses": {})"), "accesses is not a list"},
          {pair(R"("handoff_ns": 50, "accesses": [7])"), "a row of accesses is not an object"},
          {pair(R"("handoff_ns": 50, "accesses": [{"bytes": 64}])"), "none of the sizes of accesses"},
          {pair(R"("handoff_ns": 50, "accesses": [{"bytes": 4096, "loads": [1]}])"), "not [after, alone]"},
          {pair(R"("handoff_ns": 50, "copies": 3)"), "copies is not a list"},
          {pair(R"("handoff_ns": 50, "copies": [{"bytes": 5}])"), "none of the sizes"},
          {pair(R"("handoff_ns": 50, "copies": [{"bytes": 4096, "rep": [1, "x"]}])"), "not [write, read]"},
          {pair(R"("handoff_ns": 50, "copies": [{"bytes": 4096, "pull": 1e99}])"), "pull is not"},
          {R"({"ouro_calibration": 1, "pairs": [{"distance": "cache", "handoff_ns": 50}], "context_switch_ns": []})",
           "context_switch_ns is not"},
      }) {
    const auto parsed = parse_calibration(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(parsed.status().message(), HasSubstr(says)) << text;
  }
}

TEST(Record, FilesThatCannotBeReadAreNamed) {
  const auto none = load_calibration("/nowhere/record.json");
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.status().message(), HasSubstr("/nowhere/record.json: cannot be read"));
  const auto endless = load_calibration("/dev/zero");
  ASSERT_FALSE(endless.ok());
  EXPECT_THAT(endless.status().message(), HasSubstr("/dev/zero: "));
}

}  // namespace
}  // namespace ouro::rt
