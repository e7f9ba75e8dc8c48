// What follows from figures.
#include "runtime/calibration/choose.h"

#include <gtest/gtest.h>

#include "tests/runtime/calibration/invented.h"

namespace ouro::rt {
namespace {

using kernels::CopyKind, kernels::CopyKinds, kernels::kDefaultCopyKinds;

constexpr auto kRep = static_cast<std::size_t>(CopyKind::rep),
               kStream = static_cast<std::size_t>(CopyKind::stream);

TEST(Choose, WhereRepIsSlowStoresGoPastTheCaches) {
  EXPECT_EQ(copy_kinds_by(far_zen3()),
            (CopyKinds{CopyKind::rep, CopyKind::stream, CopyKind::stream, CopyKind::stream}));
}

TEST(Choose, WhatTheReaderPaysCounts) {
  Calibration c = far_zen3();
  for (auto& size : c.pair[0].copies) size[kStream].read *= 4;  // out of memory, not out of a cache
  EXPECT_EQ(copy_kinds_by(c)[1], CopyKind::rep);
}

TEST(Choose, LessThanAFifthMayBeNoise) {
  Calibration c = far_zen3();
  c.pair[0].copies[1][kRep] = {1000, 1000};
  c.pair[0].copies[1][kStream] = {600, 1000};
  EXPECT_EQ(copy_kinds_by(c)[1], CopyKind::rep);
  c.pair[0].copies[1][kStream] = {599, 1000};
  EXPECT_EQ(copy_kinds_by(c)[1], CopyKind::stream);
}

TEST(Choose, TheFarthestCoresDecide) {
  Calibration c = invented_record();
  c.pair[0].copies[1][kStream] = {1, 1};  // near, where nobody asks
  EXPECT_EQ(copy_kinds_by(c), kDefaultCopyKinds);
  c.pair[1].copies[1][kStream] = {1, 1};
  EXPECT_EQ(copy_kinds_by(c)[1], CopyKind::stream);
}

TEST(Choose, WithoutFiguresWhatIsBuiltInStays) {
  EXPECT_EQ(copy_kinds_by({}), kDefaultCopyKinds);
  Calibration c = far_zen3();
  for (auto& size : c.pair[0].copies) size[kRep] = {};  // nothing to compare with
  EXPECT_EQ(copy_kinds_by(c), kDefaultCopyKinds);
}

}  // namespace
}  // namespace ouro::rt
