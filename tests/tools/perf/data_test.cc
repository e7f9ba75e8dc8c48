// The oracle of ouro-perf: encodings, reference reductions, tiles and expected layouts.
// Run by ctest.
#include "tools/perf/data.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <set>

namespace ouro::perf {
namespace {

using testing::ElementsAre;

std::uint32_t bits(DType t, double x) {
  std::byte raw[8] = {};
  encode(t, {x, static_cast<std::int64_t>(x)}, raw);
  std::uint32_t b = 0;
  std::memcpy(&b, raw, size_of(t));
  return b;
}

TEST(Encode, ValuesHaveTheirKnownBitPatterns) {
  EXPECT_EQ(bits(DType::f32, 1.0), 0x3f800000u);
  EXPECT_EQ(bits(DType::f16, 1.0), 0x3c00u);
  EXPECT_EQ(bits(DType::f16, -2.5), 0xc100u);
  EXPECT_EQ(bits(DType::f16, 65504), 0x7bffu);
  EXPECT_EQ(bits(DType::f16, 65520), 0x7c00u);
  EXPECT_EQ(bits(DType::f16, std::ldexp(1, -24)), 0x0001u);
  EXPECT_EQ(bits(DType::f16, std::ldexp(1, -25)), 0x0000u);
  EXPECT_EQ(bits(DType::bf16, 1.0), 0x3f80u);
  EXPECT_EQ(bits(DType::bf16, 257), 0x4380u);  // a tie, rounded to even
  EXPECT_EQ(bits(DType::bf16, 259), 0x4382u);
  EXPECT_EQ(bits(DType::f8e4m3, 1.0), 0x38u);
  EXPECT_EQ(bits(DType::f8e4m3, 448), 0x7eu);
  EXPECT_EQ(bits(DType::f8e4m3, 17), 0x58u);  // a tie between 16 and 18
  EXPECT_EQ(bits(DType::f8e4m3, 19), 0x5au);
  EXPECT_EQ(bits(DType::f8e5m2, 1.0), 0x3cu);
  EXPECT_EQ(bits(DType::f8e5m2, -9), 0xc8u);  // a tie between 8 and 10
  EXPECT_EQ(bits(DType::i8, -3), 0xfdu);
}

#if defined(__FLT16_MAX__)
TEST(Encode, HalfAgreesWithTheCompiler) {
  for (int i = 0; i < 200'000; ++i) {
    const double x = std::ldexp(1 + (i * 7919 % 65536) / 65536.0, i % 45 - 27) * (i % 2 ? 1 : -1);
    const auto h = static_cast<_Float16>(x);
    std::uint16_t expected = 0;
    std::memcpy(&expected, &h, 2);
    ASSERT_EQ(bits(DType::f16, x), expected) << x;
  }
}
#endif

Value reduce_list(DType t, OpKind op, std::vector<double> in) {
  std::vector<Value> values;
  for (const double x : in) values.push_back({x, static_cast<std::int64_t>(x)});
  return reduce_values(t, op, values);
}

TEST(Reference, IntegersWrapAndAveragesTruncate) {
  EXPECT_EQ(reduce_list(DType::i8, OpKind::sum, {100, 100}).integer, -56);
  EXPECT_EQ(reduce_list(DType::u8, OpKind::sum, {200, 100}).integer, 44);
  EXPECT_EQ(reduce_list(DType::i8, OpKind::avg, {100, 101}).integer, 100);
  EXPECT_EQ(reduce_list(DType::i32, OpKind::avg, {-5, 0}).integer, -2);
  EXPECT_EQ(reduce_list(DType::i32, OpKind::prod, {-3, 5}).integer, -15);
  EXPECT_EQ(reduce_list(DType::i32, OpKind::premulsum, {1, 10, 100}).integer, 321);
  EXPECT_EQ(reduce_list(DType::i32, OpKind::bxor, {6, 3}).integer, 5);
  EXPECT_EQ(reduce_list(DType::i32, OpKind::land, {6, 3}).integer, 1);
  EXPECT_EQ(reduce_list(DType::i32, OpKind::lxor, {6, 3}).integer, 0);
  const Value top{0, -1};  // as uint64 it is the largest number
  EXPECT_EQ(reduce_values(DType::u64, OpKind::max, std::vector{Value{0, 1}, top}).integer, -1);
  EXPECT_EQ(reduce_values(DType::i64, OpKind::max, std::vector{Value{0, 1}, top}).integer, 1);
  EXPECT_EQ(static_cast<std::uint64_t>(reduce_values(DType::u64, OpKind::avg, std::vector{top, top}).integer),
            ~0ull);
}

TEST(Reference, BooleansAndFloatsReduceAsSpecified) {
  EXPECT_EQ(reduce_list(DType::boolean, OpKind::sum, {1, 1}).integer, 1);
  EXPECT_EQ(reduce_list(DType::boolean, OpKind::prod, {1, 0}).integer, 0);
  EXPECT_EQ(reduce_list(DType::boolean, OpKind::bxor, {1, 1}).integer, 0);
  EXPECT_EQ(reduce_list(DType::f32, OpKind::avg, {1, 0, 0}).real, static_cast<double>(1.0f / 3.0f));
  EXPECT_EQ(reduce_list(DType::f64, OpKind::avg, {1, 0, 0}).real, 1.0 / 3.0);
  EXPECT_EQ(reduce_list(DType::f32, OpKind::premulsum, {1, 10, 100}).real, 321);
}

// The precondition of comparing bit for bit: an input survives encoding, and no order of summation rounds.
TEST(Inputs, AreExactInEveryTypeAndVary) {
  for (int d = 0; d < kDTypes; ++d)
    for (int p = 0; p < kOps; ++p) {
      const auto t = static_cast<DType>(d);
      const auto op = static_cast<OpKind>(p);
      if (!applies(op, t)) continue;
      std::set<std::pair<double, std::int64_t>> seen;
      for (int rank = 0; rank < 8; ++rank)
        for (std::size_t i = 0; i < 500; ++i) {
          const Value v = input_value(t, op, rank, 8, i, 3);
          seen.insert({v.real, v.integer});
          if (!is_float(t)) continue;
          ASSERT_LE(std::fabs(v.real), 8);
          ASSERT_EQ(v.real * 2, std::floor(v.real * 2));
          // Three significant bits: exact even in f8e5m2.
          int exponent = 0;
          const double m = std::frexp(v.real, &exponent) * 8;
          ASSERT_EQ(m, std::floor(m)) << name(t) << ' ' << name(op);
        }
      EXPECT_GE(seen.size(), 2u) << name(t) << ' ' << name(op);
    }
}

TEST(Tiles, FillAndCompareAtAnyOffset) {
  const OpKind op = OpKind::sum;
  for (const DType t : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
    const Tile tile = Tile::input(t, &op, 1, 4, 9);
    std::vector<std::byte> buffer((3 * kTile + 17) * size_of(t));
    const std::size_t n = buffer.size() / size_of(t);
    tile.fill(buffer.data(), n, 1234);
    EXPECT_EQ(tile.wrong(buffer.data(), n, 1234), 0u);
    EXPECT_EQ(tile.wrong(buffer.data() + 5 * size_of(t), n - 5, 1239), 0u);
    EXPECT_GT(tile.wrong(buffer.data(), n, 1235), n / 4);
    for (const std::size_t at : {std::size_t{0}, kTile - 1, kTile, n - 1})
      buffer[at * size_of(t)] ^= std::byte{1};
    EXPECT_EQ(tile.wrong(buffer.data(), n, 1234), 4u);
  }
}

TEST(Tiles, DifferByRankSeedAndPosition) {
  std::vector<std::byte> a(kTile * 4);
  Tile::input(DType::f32, nullptr, 0, 2, 1).fill(a.data(), kTile, 0);
  EXPECT_GT(Tile::input(DType::f32, nullptr, 1, 2, 1).wrong(a.data(), kTile, 0), kTile - 10);
  EXPECT_GT(Tile::input(DType::f32, nullptr, 0, 2, 2).wrong(a.data(), kTile, 0), kTile - 10);
}

TEST(Tiles, ReducedTileIsTheSumOfTheInputs) {
  const OpKind op = OpKind::sum;
  std::vector<float> sum(100, 0), one(100);
  for (int r = 0; r < 3; ++r) {
    Tile::input(DType::f32, &op, r, 3, 5).fill(one.data(), 100, 0);
    for (std::size_t i = 0; i < 100; ++i) sum[i] += one[i];
  }
  EXPECT_EQ(Tile::reduced(DType::f32, op, 3, 5).wrong(sum.data(), 100, 0), 0u);
}

std::vector<std::tuple<int, std::size_t, std::size_t>> flat(Kind k, int rank, int root) {
  std::vector<std::tuple<int, std::size_t, std::size_t>> list;
  for (const Segment& s : expected(k, layout(k, 24, 4, 3), rank, 3, root))
    list.emplace_back(s.source, s.start, s.count);
  return list;
}

TEST(Expected, LayoutOfEachCollectiveIsAsSpecified) {
  using T = std::tuple<int, std::size_t, std::size_t>;
  EXPECT_THAT(flat(Kind::all_reduce, 1, 0), ElementsAre(T{-1, 0, 6}));
  EXPECT_THAT(flat(Kind::reduce, 1, 1), ElementsAre(T{-1, 0, 6}));
  EXPECT_THAT(flat(Kind::reduce, 1, 0), ElementsAre());
  EXPECT_THAT(flat(Kind::reduce_scatter, 2, 0), ElementsAre(T{-1, 4, 2}));
  EXPECT_THAT(flat(Kind::all_gather, 2, 0), ElementsAre(T{0, 0, 2}, T{1, 0, 2}, T{2, 0, 2}));
  EXPECT_THAT(flat(Kind::broadcast, 2, 1), ElementsAre(T{1, 0, 6}));
  EXPECT_THAT(flat(Kind::gather, 0, 1), ElementsAre());
  EXPECT_THAT(flat(Kind::gather, 1, 1), ElementsAre(T{0, 0, 2}, T{1, 0, 2}, T{2, 0, 2}));
  EXPECT_THAT(flat(Kind::scatter, 2, 1), ElementsAre(T{1, 4, 2}));
  EXPECT_THAT(flat(Kind::alltoall, 1, 0), ElementsAre(T{0, 2, 2}, T{1, 2, 2}, T{2, 2, 2}));
  EXPECT_THAT(flat(Kind::sendrecv, 0, 0), ElementsAre(T{2, 0, 6}));
}

}  // namespace
}  // namespace ouro::perf
