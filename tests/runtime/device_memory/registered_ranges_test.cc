// The index of registered address ranges without memory behind the addresses: which export is found around a
// buffer, what a run is, and which exports a removal leaves without users.
#include "runtime/device_memory/registered_ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ouro::rt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::byte* at(std::size_t address) { return reinterpret_cast<const std::byte*>(address); }

class RegisteredRangesIndex : public ::testing::Test {
 protected:
  std::uint64_t add(std::size_t begin, std::size_t end, std::uint64_t export_id) {
    return ranges_.add_range(at(begin), at(end), export_id, 0);
  }
  std::uint64_t found(std::size_t begin, std::size_t end) {
    return ranges_.export_around(at(begin), end - begin);
  }
  /// The exports of what is removed with a registration.
  std::vector<std::uint64_t> removed_with(std::uint64_t registration) {
    std::vector<std::uint64_t> exports;
    ranges_.remove_range(registration, [&](std::uint64_t id) { exports.push_back(id); });
    return exports;
  }
  RegisteredRanges ranges_;
};

TEST_F(RegisteredRangesIndex, FindsTheOldestOfTheRangesThatHoldABuffer) {
  const auto inner = add(120, 130, 1);
  add(100, 200, 2);
  add(110, 140, 3);
  EXPECT_EQ(found(122, 128), 1u);
  EXPECT_EQ(found(115, 128), 2u);
  EXPECT_EQ(found(150, 201), 0u);
  EXPECT_EQ(found(99, 101), 0u);
  EXPECT_THAT(removed_with(inner), ElementsAre(1));
  EXPECT_EQ(found(122, 128), 2u);
}

TEST_F(RegisteredRangesIndex, ARunHasAllAdjacentRangesAndEndsAtAGap) {
  add(100, 110, 1), add(110, 120, 2), add(115, 130, 3), add(131, 140, 4);
  const auto run = ranges_.run_around(at(105), 20);
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->begin, at(100));
  EXPECT_EQ(run->end, at(130));
  std::vector<std::uint64_t> exports;
  ranges_.for_each_range(*run, [&](const RegisteredRanges::Range& r) { exports.push_back(r.export_id); });
  EXPECT_THAT(exports, ElementsAre(1, 2, 3));
  EXPECT_FALSE(ranges_.run_around(at(125), 10).has_value()) << "across the gap";
  EXPECT_FALSE(ranges_.run_around(at(90), 5).has_value()) << "before the first";
}

TEST_F(RegisteredRangesIndex, AForbiddenUnionIsConsideredAgainAfterAChange) {
  add(100, 110, 1), add(110, 120, 2);
  ranges_.forbid_union(*ranges_.run_around(at(105), 10));
  EXPECT_FALSE(ranges_.run_around(at(105), 10).has_value());
  add(120, 130, 3);
  EXPECT_TRUE(ranges_.run_around(at(105), 10).has_value());
}

TEST_F(RegisteredRangesIndex, AUnionEndsWithEachOfItsRangesAndNotWithLaterOnes) {
  const auto first = add(100, 110, 1), second = add(110, 120, 2);
  ranges_.add_union(*ranges_.run_around(at(105), 10), 7);
  const auto later = add(105, 115, 3);
  EXPECT_EQ(found(102, 118), 7u);
  EXPECT_EQ(ranges_.size(), 4u);
  EXPECT_THAT(removed_with(later), ElementsAre(3));
  EXPECT_EQ(found(102, 118), 7u);
  EXPECT_THAT(removed_with(first), ElementsAre(7, 1));
  EXPECT_EQ(found(102, 118), 0u);
  EXPECT_EQ(found(112, 118), 2u);
  EXPECT_THAT(removed_with(second), ElementsAre(2));
  EXPECT_TRUE(ranges_.empty());
}

TEST_F(RegisteredRangesIndex, ARegistrationOutlivesItsRangeUntilItIsEnded) {
  const auto a = add(100, 110, 1), b = add(100, 110, 2);
  EXPECT_EQ(ranges_.registration_after(0), a);
  EXPECT_EQ(ranges_.registration_after(a), b);
  EXPECT_EQ(ranges_.registration_after(b), a) << "a cycle";
  EXPECT_THAT(removed_with(a), ElementsAre(1));
  EXPECT_EQ(ranges_.range_of(a), nullptr);
  EXPECT_EQ(ranges_.range_of(b)->export_id, 2u);
  EXPECT_TRUE(ranges_.has_registration(a));
  EXPECT_THAT(removed_with(a), IsEmpty());
  ranges_.end_registration(a);
  EXPECT_FALSE(ranges_.has_registration(a));
  EXPECT_EQ(ranges_.registration_after(b), b);
}

}  // namespace
}  // namespace ouro::rt
