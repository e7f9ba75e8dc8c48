// Operations that keep missing their prediction are distinguished from noise.
#include "runtime/calibration/misses.h"

#include <gtest/gtest.h>

#include <random>

namespace ouro::rt {
namespace {

/// Number of samples until the record is to be checked; 0: not within `most` samples.
template <class Ratio>
int until_heard(Misses& misses, int most, Ratio&& ratio) {
  for (int i = 1; i <= most; ++i)
    if (misses.add(ratio(i))) return i;
  return 0;
}

TEST(Misses, FirstCheckIsDueAfterOneWindow) {
  Misses slower, faster;
  EXPECT_EQ(until_heard(slower, 100, [](int) { return 5.0; }), Misses::kWindow);
  EXPECT_EQ(until_heard(faster, 100, [](int) { return 0.2; }), Misses::kWindow);
}

TEST(Misses, WindowWithOneFastSampleTriggersNoCheck) {
  Misses misses;
  EXPECT_EQ(until_heard(misses, 10'000, [](int i) { return i % Misses::kWindow == 3 ? 1.1 : 500.0; }), 0);
}

TEST(Misses, RandomDelaysTriggerNoCheck) {
  Misses misses;
  std::mt19937 random(7);
  std::lognormal_distribution<double> late(-0.5, 0.8);
  EXPECT_EQ(until_heard(misses, 100'000, [&](int) { return 1 + late(random); }), 0);
}

TEST(Misses, ConfirmedRatioTriggersNoFurtherCheck) {
  Misses misses;
  ASSERT_EQ(until_heard(misses, 100, [](int) { return 5.0; }), Misses::kWindow);
  misses.record_holds();
  EXPECT_EQ(until_heard(misses, 10'000, [](int) { return 6.0; }), 0);
  EXPECT_NE(until_heard(misses, 100, [](int) { return 13.0; }), 0) << "it has changed";
}

TEST(Misses, FailedChecksAreRepeatedAtGrowingIntervals) {
  Misses misses;
  int before = 0;
  for (int i = 0; i < 5; ++i) {
    const int now = until_heard(misses, 1000, [](int) { return 5.0; });
    ASSERT_GT(now, before);
    misses.nothing_found();
    before = now;
  }
}

/// The ratios change after every check, and each following check takes twice as many windows as the
/// one before.
TEST(Misses, ChecksThatFindNothingBecomeRare) {
  Misses misses;
  int checks = 0;
  double ratio = 4;
  for (int i = 0; i < 100'000; ++i)
    if (misses.add(ratio)) misses.record_holds(), ++checks, ratio = ratio > 10 ? 4 : 40;
  EXPECT_GE(checks, 5);
  EXPECT_LE(checks, 33) << "2^9 windows a check, after the first ten";
}

TEST(Misses, RepetitionsTriggerACheckAtASmallerRatio) {
  const auto heard = [](double ratio) {
    Misses misses = Misses::of_repetitions();
    return until_heard(misses, 1000, [ratio](int) { return ratio; }) == Misses::kWindow;
  };
  EXPECT_FALSE(heard(1.4));
  EXPECT_FALSE(heard(0.7));
  EXPECT_TRUE(heard(1.6));
  EXPECT_TRUE(heard(0.6));
}

/// A record that was in force for a long time is replaced as soon as the first was.
TEST(Misses, MovesFarApartAreEachDetectedInOneWindow) {
  Misses misses;
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(until_heard(misses, 1000, [](int) { return 9.0; }), Misses::kWindow) << "move " << i;
    misses.record_changed();
    ASSERT_EQ(until_heard(misses, 20 * Misses::kWindow, [](int) { return 1.2; }), 0);
  }
}

TEST(Misses, LongCalmResetsTheBackOff) {
  Misses misses;
  for (int i = 0; i < 5; ++i) {
    ASSERT_NE(until_heard(misses, 1000, [](int) { return 9.0; }), 0);
    misses.record_changed();
  }
  EXPECT_GT(until_heard(misses, 1000, [](int) { return 9.0; }), 8 * Misses::kWindow);
  misses.record_changed();
  ASSERT_EQ(until_heard(misses, 64 * Misses::kWindow, [](int) { return 1.2; }), 0);
  EXPECT_EQ(until_heard(misses, 1000, [](int) { return 9.0; }), Misses::kWindow);
}

}  // namespace
}  // namespace ouro::rt
