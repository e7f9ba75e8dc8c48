// The choices that follow from the figures of a record.
#include "runtime/calibration/choose.h"

#include <gtest/gtest.h>

#include "tests/runtime/calibration/invented.h"

namespace ouro::rt {
namespace {

using kernels::CopyKind, kernels::CopyKinds, kernels::kDefaultCopyKinds;

constexpr auto kRep = static_cast<std::size_t>(CopyKind::rep),
               kStream = static_cast<std::size_t>(CopyKind::stream);

TEST(Choose, SlowRepMovsbSelectsNonTemporalStores) {
  EXPECT_EQ(slot_kinds_by(far_zen3()),
            (CopyKinds{CopyKind::rep, CopyKind::stream, CopyKind::stream, CopyKind::stream}));
}

TEST(Choose, ReadersCostDecidesTheCopyKindToo) {
  Calibration c = far_zen3();
  for (auto& size : c.pair[0].copies) size[kStream].read *= 4;  // from memory instead of from a cache
  EXPECT_EQ(slot_kinds_by(c)[1], CopyKind::rep);
}

TEST(Choose, SlotsKeepTheBuiltInKindUnlessAnotherSavesAFifth) {
  Calibration c = far_zen3();
  c.pair[0].copies[1][kRep] = {1000, 1000};
  c.pair[0].copies[1][kStream] = {600, 1000};
  EXPECT_EQ(slot_kinds_by(c)[1], CopyKind::rep);
  c.pair[0].copies[1][kStream] = {599, 1000};
  EXPECT_EQ(slot_kinds_by(c)[1], CopyKind::stream);
}

TEST(Choose, BuffersKeepTheBuiltInKindUnlessAnotherSavesHalf) {
  Calibration c = far_zen3();
  c.pair[0].copies[1][kRep] = {1000, 1000};
  c.pair[0].copies[1][kStream] = {500, 500};
  EXPECT_EQ(slot_kinds_by(c)[1], CopyKind::stream);
  EXPECT_EQ(buffer_kinds_by(c)[1], CopyKind::rep);
  c.pair[0].copies[1][kStream] = {500, 499};
  EXPECT_EQ(buffer_kinds_by(c)[1], CopyKind::stream);
}

TEST(Choose, RingIsUsedIfNotSlowerThanTheBestSlots) {
  Calibration c = far_zen3();
  EXPECT_FALSE(ring_pays(c)) << "nothing is known";
  EXPECT_FALSE(ring_pays({}));
  c.pair[0].copies[1][kStream] = {1000, 1000};
  c.pair[0].ring = {1000, 1001};
  EXPECT_FALSE(ring_pays(c));
  c.pair[0].ring = {1000, 1000};
  EXPECT_TRUE(ring_pays(c));
  c.pair[0].together_slots = {900, 1000};  // faster than alone, as in no measurement
  EXPECT_FALSE(ring_pays(c));
  c.pair[0].ring = {3000, 3000}, c.pair[0].together_slots = {3000, 3000};
  EXPECT_TRUE(ring_pays(c)) << "both cores copy in most operations";
  EXPECT_EQ(slot_kinds_by(c)[1], CopyKind::stream);
}

/// Two threads of one core: a copy takes twice as long while the other copies, in a slot and round a ring.
TEST(Choose, RingIsAssumedToSlowUnderContentionAsSlotsDo) {
  Calibration c = far_zen3();
  c.pair[0].copies[1][kRep] = {1000, 1000};
  c.pair[0].together = {2000, 2000};
  c.pair[0].ring = {1000, 1100};
  EXPECT_FALSE(ring_pays(c));
  c.pair[0].ring = {1000, 1000};
  EXPECT_TRUE(ring_pays(c));
}

TEST(Choose, CopiesOfSeveralPiecesCostAsUncachedRingCopies) {
  Calibration c = far_zen3();
  EXPECT_EQ(cost_of(c.pair[0], CopyKind::rep, 2), (CopyCost{43'000, (256 << 10) / 13}));
  c.pair[0].ring = {2'000, 2'500};
  EXPECT_EQ(cost_of(c.pair[0], CopyKind::rep, 1), (CopyCost{10'900, (64 << 10) / 13})) << "a single piece";
  EXPECT_EQ(cost_of(c.pair[0], CopyKind::rep, 2), (CopyCost{8'000, 10'000}));
  EXPECT_EQ(cost_of(c.pair[0], CopyKind::stream, 2), (CopyCost{12'000, (256 << 10) / 13}));
  c.pair[0].ring = {200'000, 2'500};
  EXPECT_EQ(cost_of(c.pair[0], CopyKind::rep, 2), (CopyCost{43'000, (256 << 10) / 13})) << "never more";
  // So non-temporal stores have to be faster than that.
  c.pair[0].ring = {2'000, 2'500};
  EXPECT_EQ(slot_kinds_by(c)[1], CopyKind::stream);
  EXPECT_EQ(slot_kinds_by(c)[2], CopyKind::rep);
}

TEST(Choose, SlotKindsFollowTheFarthestCores) {
  Calibration c = invented_record();
  c.pair[0].copies[1][kStream] = {1, 1};  // for near cores, which the choice does not use
  EXPECT_EQ(slot_kinds_by(c), kDefaultCopyKinds);
  c.pair[1].copies[1][kStream] = {1, 1};
  EXPECT_EQ(slot_kinds_by(c)[1], CopyKind::stream);
}

TEST(Choose, WithoutFiguresTheBuiltInKindsStay) {
  EXPECT_EQ(slot_kinds_by({}), kDefaultCopyKinds);
  Calibration c = far_zen3();
  for (auto& size : c.pair[0].copies) size[kRep] = {};  // no figure to compare with
  EXPECT_EQ(slot_kinds_by(c), kDefaultCopyKinds);
}

TEST(ChoosePatience, ARankWithItsOwnCoreSpinsForSixteenWakes) {
  using std::chrono::microseconds;
  Calibration c = invented_record();
  EXPECT_EQ(patience_by(c, true).spin, microseconds(240));
  c.wake = 3'000;  // spinning takes the core from nobody, so the wait is never shorter than the built-in one
  EXPECT_EQ(patience_by(c, true).spin, microseconds(50));
  c.wake = 9'000'000;
  EXPECT_EQ(patience_by(c, true).spin, microseconds(1000));
  EXPECT_EQ(patience_by(c, false).spin, microseconds(0));
}

TEST(ChoosePatience, ARankThatSharesACorePollsForFourHandoffsOrASwitch) {
  Calibration c = invented_record();
  EXPECT_EQ(patience_by(c, false).polls, 4 * 200 / 20);
  c.context_switch = 500;
  EXPECT_EQ(patience_by(c, false).polls, 500 / 20);
  c.context_switch = 0;  // the system did not allow the measurement
  EXPECT_EQ(patience_by(c, false).polls, 4 * 200 / 20);
  c.pair[1].handoff = 20'000;
  EXPECT_EQ(patience_by(c, false).polls, 100);
  c.pair[1].handoff = 5;
  EXPECT_EQ(patience_by(c, false).polls, 4);
}

TEST(ChoosePatience, WithoutFiguresTheBuiltInPatienceStays) {
  Calibration older = invented_record();
  older.wake = older.pause = older.cache_kib = older.caches = 0;
  for (const Calibration& c : {Calibration{}, older}) {
    EXPECT_EQ(patience_by(c, true).spin, Patience::with_own_cores().spin);
    EXPECT_EQ(patience_by(c, false).polls, Patience{}.polls);
    EXPECT_FALSE(cached_bytes(c, 2, 8));
  }
}

TEST(ChooseCached, CachedBytesGrowWithTheNumberOfCaches) {
  EXPECT_EQ(cached_bytes(invented_record(), 1, 2), std::size_t{32} << 20);
  EXPECT_EQ(cached_bytes(invented_record(), 8, 2), std::size_t{256} << 20);
}

TEST(ChooseCached, LargeMeshCacheCountsByTheShareOfItsProcessors) {
  constexpr std::size_t kMiB = 1 << 20;
  EXPECT_EQ(share_of_cache(260 * kMiB, 1), 32 * kMiB);
  EXPECT_EQ(share_of_cache(260 * kMiB, 2), 32 * kMiB);
  EXPECT_EQ(share_of_cache(260 * kMiB, 8), 128 * kMiB);
  EXPECT_EQ(share_of_cache(260 * kMiB, 64), 260 * kMiB);
  EXPECT_EQ(share_of_cache(32 * kMiB, 1), 32 * kMiB) << "of a few cores, with or without other machines";
  EXPECT_EQ(share_of_cache(33 * kMiB, 1), 32 * kMiB);
  Calibration c = invented_record();
  c.cache_kib = 260 << 10;
  EXPECT_EQ(cached_bytes(c, 1, 2), 32 * kMiB);
  c.pair[0].handoff = 160;
  EXPECT_TRUE(shares_caches(c));
}

TEST(ChooseCached, CoresWithASlowHandOffShareNoCache) {
  Calibration c = invented_record();
  EXPECT_TRUE(shares_caches(c));
  EXPECT_TRUE(shares_caches({})) << "nothing is known";
  c.pair[0].handoff = 200;
  EXPECT_FALSE(shares_caches(c));
  c.pair[0].distance = Distance::node;
  EXPECT_TRUE(shares_caches(c)) << "the system does not say that these two share one";
}

}  // namespace
}  // namespace ouro::rt
