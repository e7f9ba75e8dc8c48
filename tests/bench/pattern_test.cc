// The inputs whose results are known: exact results pass, and each kind of damage is counted.
// Part of test_compare.
#include "bench/comparison/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace ouro::compare {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kBlock = 100'000;
constexpr std::uint32_t kSalt = 5;

/// Moves keep the vectors' memory, so `call` stays right.
struct Data {
  std::vector<float> in, out;
  Call call;
  Data(Collective collective, std::size_t ins, std::size_t outs) : in(ins), out(outs) {
    call = {.collective = collective,
            .in = in.data(),
            .out = out.data(),
            .block = kBlock,
            .in_count = ins,
            .out_count = outs};
  }
};

/// What an all-reduce leaves.
Data reduced() {
  Data d(Collective::all_reduce, kBlock, kBlock);
  for (int r = 0; r < kRanks; ++r) {
    Data of(Collective::all_reduce, kBlock, kBlock);
    fill(of.call, r, kSalt);
    for (std::size_t i = 0; i < kBlock; ++i) d.out[i] += of.in[i];
  }
  return d;
}

TEST(Pattern, OutputsStartAsNanAndAreAllWrong) {
  Data d(Collective::all_reduce, kBlock, kBlock);
  fill(d.call, 0, kSalt);
  EXPECT_TRUE(std::all_of(d.out.begin(), d.out.end(), [](float f) { return std::isnan(f); }));
  EXPECT_EQ(wrong(d.call, 0, kRanks, kSalt), static_cast<std::int64_t>(kBlock));
}

TEST(Pattern, ExactSumsPassAndOneWrongElementIsCounted) {
  Data d = reduced();
  EXPECT_EQ(wrong(d.call, 1, kRanks, kSalt), 0);
  EXPECT_GT(wrong(d.call, 1, kRanks, kSalt + 1), 0) << "a result of another call must not pass";
  d.out[kBlock - 1] += 1;
  EXPECT_EQ(wrong(d.call, 1, kRanks, kSalt), 1);
}

TEST(Pattern, SwappedBlocksAreDetected) {
  Data d(Collective::all_gather, kBlock, kRanks * kBlock);
  for (int r = 0; r < kRanks; ++r) {
    Data of(Collective::all_reduce, kBlock, kBlock);
    fill(of.call, r, kSalt);
    std::copy(of.in.begin(), of.in.end(), d.out.begin() + r * static_cast<std::ptrdiff_t>(kBlock));
  }
  EXPECT_EQ(wrong(d.call, 0, kRanks, kSalt), 0);
  std::swap_ranges(d.out.begin(), d.out.begin() + kBlock, d.out.begin() + kBlock);
  EXPECT_GT(wrong(d.call, 0, kRanks, kSalt), 0);
  std::swap_ranges(d.out.begin(), d.out.begin() + kBlock, d.out.begin() + kBlock);
  std::swap_ranges(d.out.begin(), d.out.begin() + 16384, d.out.begin() + 16384);  // slices of 64 KiB
  EXPECT_GT(wrong(d.call, 0, kRanks, kSalt), 0);
}

TEST(Pattern, RewriteChangesEveryByteOfAnySize) {
  for (std::size_t bytes : {2UL, 4UL, 6UL, 1000UL, 1002UL}) {
    std::vector<unsigned char> a(bytes + 1, 0xff), b(bytes + 1, 0xff);
    rewrite(a.data(), bytes, 0);
    rewrite(b.data(), bytes, 1);
    EXPECT_EQ(a.back(), 0xff);
    EXPECT_NE(a, b);
    EXPECT_EQ(std::count(a.begin(), a.end() - 1, 0xff), 0);
  }
}

}  // namespace
}  // namespace ouro::compare
