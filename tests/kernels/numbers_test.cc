// The pitfalls of collective arithmetic, one by one, with literal results.
#include <gtest/gtest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/arith/reduce.h"
#include "kernels/host/host_job.h"
#include "kernels/host/host_loops.h"
#include "tests/kernels/reference.h"

namespace ouro::kernels {
namespace {

template <class T>
std::vector<T> folded(DType t, OpKind op, const std::vector<std::vector<T>>& in) {
  std::vector<const void*> sources;
  for (const auto& v : in) sources.push_back(v.data());
  std::vector<T> out(in[0].size());
  fold({t, op, static_cast<int>(in.size()), {}}, out.data(), sources, {}, out.size());
  return out;
}

class Numbers : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!use_instruction_set(GetParam())) GTEST_SKIP() << "this processor has no " << GetParam();
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, Numbers, testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& info) { return std::string(info.param); });

constexpr std::uint16_t kBf16One = 0x3f80, kHalfOne = 0x3c00;

TEST_P(Numbers, Bf16SumsRoundOnce) {
  const std::vector<std::vector<std::uint16_t>> ones(1024, std::vector<std::uint16_t>(37, kBf16One));
  for (std::uint16_t x : folded(DType::bf16, OpKind::sum, ones)) EXPECT_EQ(x, 0x4480);  // 1024
}

TEST_P(Numbers, AverageOfOnesIsOne) {
  for (std::size_t n : {1, 2, 3, 7, 100, 192, 1000}) {
    const std::vector<std::vector<std::uint16_t>> bf16(n, std::vector<std::uint16_t>(37, kBf16One));
    for (std::uint16_t x : folded(DType::bf16, OpKind::avg, bf16)) ASSERT_EQ(x, kBf16One) << n;
    const std::vector<std::vector<std::uint16_t>> f16(n, std::vector<std::uint16_t>(37, kHalfOne));
    for (std::uint16_t x : folded(DType::f16, OpKind::avg, f16)) ASSERT_EQ(x, kHalfOne) << n;
    const std::vector<std::vector<float>> f32(n, std::vector<float>(37, 1.0f));
    for (float x : folded(DType::f32, OpKind::avg, f32)) ASSERT_EQ(x, 1.0f) << n;
  }
}

/// NaN of either sign and any payload, at every position of every rank, beyond one vector and one block.
template <class F>
void nan_everywhere(DType t, F canonical, std::initializer_list<F> nans, F one) {
  for (OpKind op : {OpKind::max, OpKind::min, OpKind::sum, OpKind::prod, OpKind::avg})
    for (std::size_t n : {2, 3, 5})
      for (std::size_t rank = 0; rank < n; ++rank)
        for (std::size_t place : {0, 1, 15, 16, 31, 36, 1023, 1024})
          for (F nan : nans) {
            std::vector<std::vector<F>> in(n, std::vector<F>(1030, one));
            in[rank][place] = nan;
            const std::vector<F> out = folded(t, op, in);
            for (std::size_t i = 0; i < out.size(); ++i)
              ASSERT_EQ(out[i] == canonical, i == place)
                  << name(t) << ' ' << name(op) << " rank " << rank << ' ' << i;
          }
}
TEST_P(Numbers, NanPropagatesCanonically) {
  nan_everywhere<std::uint32_t>(DType::f32, 0x7fc00000, {0x7fc00000, 0xffc12345, 0x7f800001}, 0x3f800000);
  nan_everywhere<std::uint64_t>(DType::f64, 0x7ff8000000000000, {0xfff8000000000000, 0x7ff0000000000001},
                                0x3ff0000000000000);
  nan_everywhere<std::uint16_t>(DType::bf16, 0x7fc0, {0x7fc0, 0xffff, 0x7f81}, kBf16One);
  nan_everywhere<std::uint16_t>(DType::f16, 0x7e00, {0x7e00, 0xffff, 0x7c01}, kHalfOne);
  nan_everywhere<std::uint8_t>(DType::f8e4m3, 0x7f, {0x7f, 0xff}, 0x38);
  nan_everywhere<std::uint8_t>(DType::f8e5m2, 0x7f, {0x7d, 0xfe}, 0x3c);
}

TEST_P(Numbers, InfinityMinusInfinityIsTheSameNan) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& in : {std::vector<std::vector<float>>{{inf}, {-inf}}, {{-inf}, {inf}}}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(folded(DType::f32, OpKind::sum, in)[0]), 0x7fc00000u);
  }
}

TEST_P(Numbers, NegativeZeroIsLessThanPositiveZero) {
  const std::vector<std::vector<float>> a = {std::vector<float>(33, 0.0f), std::vector<float>(33, -0.0f)};
  const std::vector<std::vector<float>> b = {a[1], a[0]};
  for (const auto& in : {a, b}) {
    for (float x : folded(DType::f32, OpKind::max, in)) EXPECT_FALSE(std::signbit(x));
    for (float x : folded(DType::f32, OpKind::min, in)) EXPECT_TRUE(std::signbit(x));
  }
}

TEST_P(Numbers, SubnormalsAreKept) {
  const float least = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(folded<float>(DType::f32, OpKind::sum, {{least}, {least}})[0], 2 * least);
  EXPECT_EQ(folded<std::uint16_t>(DType::bf16, OpKind::sum, {{1}, {2}})[0], 3);
  EXPECT_EQ(folded<std::uint16_t>(DType::f16, OpKind::sum, {{1}, {2}})[0], 3);
  EXPECT_EQ(folded<std::uint8_t>(DType::f8e4m3, OpKind::sum, {{1}, {2}})[0], 3);
}

TEST_P(Numbers, Float8Saturates) {
  EXPECT_EQ(folded<std::uint8_t>(DType::f8e4m3, OpKind::sum, {{0x7e}, {0x7e}})[0], 0x7e);
  EXPECT_EQ(folded<std::uint8_t>(DType::f8e4m3, OpKind::prod, {{0xfe}, {0x7e}})[0], 0xfe);
  EXPECT_EQ(folded<std::uint8_t>(DType::f8e5m2, OpKind::sum, {{0x7b}, {0x7c}})[0], 0x7b);
  // Chosen, so it is not converted.
  EXPECT_EQ(folded<std::uint8_t>(DType::f8e5m2, OpKind::max, {{0x7b}, {0x7c}})[0], 0x7c);
}

TEST_P(Numbers, IntegerAveragesTruncateAndDoNotOverflow) {
  using I8 = std::vector<std::vector<std::int8_t>>;
  EXPECT_EQ(folded(DType::i8, OpKind::avg, I8(8, {100}))[0], 100);
  EXPECT_EQ(folded(DType::i8, OpKind::sum, I8(8, {100}))[0], 32);   // wraps
  EXPECT_EQ(folded(DType::i8, OpKind::avg, I8{{-7}, {0}})[0], -3);  // toward zero
  EXPECT_EQ(folded(DType::i8, OpKind::avg, I8{{7}, {0}})[0], 3);
  EXPECT_EQ(folded<std::int32_t>(DType::i32, OpKind::avg, {{-1}, {-2}, {-2}})[0], -1);
  constexpr std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                         high = std::numeric_limits<std::int64_t>::max();
  constexpr std::uint64_t top = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t n : {1, 2, 3, 8, 100}) {
    EXPECT_EQ(folded(DType::i64, OpKind::avg, std::vector(n, std::vector<std::int64_t>{low, high, -1})),
              (std::vector<std::int64_t>{low, high, -1}));
    EXPECT_EQ(folded(DType::u64, OpKind::avg, std::vector(n, std::vector<std::uint64_t>{top, 0, top - 1})),
              (std::vector<std::uint64_t>{top, 0, top - 1}));
  }
  EXPECT_EQ(folded<std::int64_t>(DType::i64, OpKind::avg, {{low}, {high}})[0], 0);
  EXPECT_EQ(folded<std::uint64_t>(DType::u64, OpKind::avg, {{top}, {top - 3}})[0], top - 2);
}

TEST_P(Numbers, AnyNonzeroByteIsTrue) {
  using B = std::vector<std::vector<std::uint8_t>>;
  const B in = {{0, 0, 2, 128}, {0, 4, 0, 64}};
  EXPECT_EQ(folded(DType::boolean, OpKind::sum, in), (std::vector<std::uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(folded(DType::boolean, OpKind::prod, in), (std::vector<std::uint8_t>{0, 0, 0, 1}));
  EXPECT_EQ(folded(DType::boolean, OpKind::lxor, in), (std::vector<std::uint8_t>{0, 1, 1, 0}));
  EXPECT_EQ(folded(DType::boolean, OpKind::band, B{{2, 0}}), (std::vector<std::uint8_t>{1, 0}));
  EXPECT_EQ(folded(DType::i32, OpKind::land, std::vector<std::vector<std::int32_t>>{{5}, {-2}})[0], 1);
}

TEST_P(Numbers, RepeatsGiveEqualBits) {
  const auto in = reference::random_elements(DType::f32, 4099, 1),
             other = reference::random_elements(DType::f32, 4099, 2);
  const void* sources[] = {in.data(), other.data(), in.data(), other.data(), other.data()};
  std::vector<std::byte> first(in.size()), again(in.size());
  fold({DType::f32, OpKind::sum, 5, {}}, first.data(), sources, {}, 4099);
  for (int i = 0; i < 1000; ++i) {
    fold({DType::f32, OpKind::sum, 5, {}}, again.data(), sources, {}, 4099);
    ASSERT_EQ(first, again);
  }
}

template <DType kType, OpKind kOp>
void check_accumulator() {
  if constexpr (applies(kOp, kType)) {
    EXPECT_EQ(accumulator_bytes(kType, kOp), sizeof(typename arith::ReductionFor<kType, kOp>::Acc));
  }
}
template <std::size_t... I>
void check_accumulators(std::index_sequence<I...>) {
  (check_accumulator<static_cast<DType>(I / kOps), static_cast<OpKind>(I % kOps)>(), ...);
}
TEST(Accumulators, HaveTheAdvertisedSize) {
  check_accumulators(std::make_index_sequence<kDTypes * kOps>());
  EXPECT_EQ(accumulator_bytes(DType::bf16, OpKind::sum), 4u);
  EXPECT_EQ(accumulator_bytes(DType::bf16, OpKind::max), 2u);
  EXPECT_EQ(accumulator_bytes(DType::u64, OpKind::avg), 16u);
  EXPECT_EQ(accumulator_bytes(DType::i8, OpKind::avg), 8u);
}

TEST(Wire, BytesOfMessagesFollowFromTheFormat) {
  const arith::Wire sums = arith::Wire::reducing(DType::bf16, OpKind::sum);
  EXPECT_EQ(sums.bytes(true, 3), 12u) << "partial sums are fp32";
  EXPECT_EQ(sums.bytes(false, 3), 6u);
  EXPECT_EQ(sums.capacity(1024), 256u) << "whatever a message carries, it fits";
  const arith::Wire moved = arith::Wire::moving(2);
  EXPECT_EQ(moved.bytes(false, 3), 6u);
  EXPECT_EQ(moved.capacity(1024), 512u);
  EXPECT_NE(sums.code(), moved.code());
  EXPECT_EQ(arith::Wire::reducing(DType::u64, OpKind::avg).capacity(1024), 64u);
}

/// The reference is compiled for this processor too; this digest was computed on x86-64.
TEST_P(Numbers, BitsAreThoseOfEveryProcessor) {
  const std::size_t count = 4099;
  std::uint64_t digest = 0;
  for (DType t : reference::kAllTypes)
    for (OpKind op : reference::kAllOps) {
      if (!applies(op, t)) continue;
      std::vector<std::vector<std::byte>> in;
      std::vector<const void*> sources;
      std::vector<Scalar> factors;
      for (std::size_t k = 0; k < 5; ++k) {
        in.push_back(reference::random_elements(t, count, 900 + k));
        sources.push_back(in.back().data());
        factors.push_back({0.3 + 0.7 * static_cast<double>(k), static_cast<std::int64_t>(5 * k + 3)});
      }
      std::vector<std::byte> out(count * size_of(t));
      fold({t, op, 5, {}}, out.data(), sources, factors, count);
      digest = XXH3_64bits_withSeed(out.data(), out.size(), digest);
    }
  EXPECT_EQ(digest, 4555885608725039585u);
}

}  // namespace
}  // namespace ouro::kernels
