// The two contracts about bits: canonical (a function of inputs and ranks only) and fast (repeatable, equal
// on all ranks).
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

constexpr std::size_t kCount = OURO_TEST_TSAN ? 40'001 : 150'001;

/// Values of widely different magnitudes, so that another order of additions changes the bits.
std::vector<float> values(int rank, std::size_t count = kCount) {
  std::mt19937 random(static_cast<unsigned>(rank) + 11);
  std::vector<float> v(count);
  for (float& x : v)
    x = std::ldexp(static_cast<float>(static_cast<int>(random() % 20001) - 10000),
                   static_cast<int>(random() % 24) - 12);
  return v;
}

/// ((x0 + x1) + x2) + ... in fp32.
std::vector<float> serial_sum(int n) {
  std::vector<float> sum = values(0);
  for (int r = 1; r < n; ++r) {
    const std::vector<float> next = values(r);
    for (std::size_t i = 0; i < kCount; ++i) {
      volatile float rounded = sum[i] + next[i];
      sum[i] = rounded;
    }
  }
  return sum;
}

std::string same_bits(std::span<const float> got, std::span<const float> expected) {
  for (std::size_t i = 0; i < got.size(); ++i)
    OURO_RANK_CHECK(std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(expected[i]),
                    "element {} of {}: {:a} in place of {:a}", i, got.size(), got[i], expected[i]);
  return "";
}

class NumericsOf : public testing::TestWithParam<Mode> {};

/// For all sizes, offsets, algorithms, kinds of memory and modes, the bits are those of the serial sum.
TEST_P(NumericsOf, CanonicalIsTheSerialSum) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  for (int n : {2, 3, 5}) {
    const std::vector<float> expected = serial_sum(n);
    const auto body = [&](Context& c) -> std::string {
      const std::vector<float> in = values(c.rank());
      std::vector<float> own(kCount);
      auto from = c.alloc(4 * kCount), to = c.alloc(4 * kCount);
      OURO_RANK_OK(from);
      OURO_RANK_OK(to);
      std::memcpy(from->data(), in.data(), 4 * kCount);
      struct Range {
        std::size_t offset, count;
      };
      for (Range range : {Range{0, 1}, Range{3, 17}, Range{1, 1000}, Range{777, 40'000 / 3},
                          Range{5, kCount - 5}, Range{0, kCount}})
        for (const char* algorithm : {"", "oneshot", "direct", "chain", "zerocopy"})
          for (bool registered : {false, true}) {
            if (!serves_here(Collective::all_reduce, algorithm)) continue;
            if (!registered && algorithm == std::string_view("zerocopy")) continue;
            const auto cut = [&](std::span<float> all) { return all.subspan(range.offset, range.count); };
            const std::span<float> out = cut(registered ? to->as<float>() : own);
            std::fill(out.begin(), out.end(), 0.f);
            const std::span<const float> source = registered ? std::span<const float>(from->as<float>()) : in;
            OURO_RANK_OK(all_reduce(c.world(), source.subspan(range.offset, range.count), out, ReduceOp::sum,
                                    {Numerics::canonical, algorithm}));
            std::string said = same_bits(out, std::span(expected).subspan(range.offset, range.count));
            if (!said.empty()) return fmt::format("n {} '{}' from {}: {}", n, algorithm, range.offset, said);
          }
      // The other reductions give the same numbers.
      for (const char* algorithm : {"", "chain", "direct"}) {
        if (!serves_here(Collective::reduce, algorithm)) continue;
        OURO_RANK_OK(reduce(c.world(), std::span<const float>(in), std::span<float>(own), ReduceOp::sum,
                            n - 1, {Numerics::canonical, algorithm}));
        if (c.rank() != n - 1) continue;
        if (std::string said = same_bits(own, expected); !said.empty())
          return fmt::format("reduce '{}': {}", algorithm, said);
      }
      const std::size_t block = kCount / static_cast<std::size_t>(n),
                        mine = block * static_cast<std::size_t>(c.rank());
      OURO_RANK_OK(reduce_scatter(
          c.world(), std::span<const float>(in).first(block * static_cast<std::size_t>(n)),
          std::span<float>(own).first(block), ReduceOp::sum, {.numerics = Numerics::canonical}));
      return same_bits(std::span<const float>(own).first(block), std::span(expected).subspan(mine, block));
    };
    ASSERT_EQ(run(GetParam(), n, body), "");
  }
}

/// As an option of the job or of a group, canonical applies to every call.
TEST_P(NumericsOf, CanonicalOptionOfJobOrGroupAppliesToEveryCall) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::vector<float> expected = serial_sum(3);
  for (bool by_job : {true, false}) {
    InitOptions o = quick_options();
    if (by_job) o.numerics = Numerics::canonical;
    const auto body = [&](Context& c) -> std::string {
      auto group =
          c.world().split(0, c.rank(), {.numerics = by_job ? Numerics::inherit : Numerics::canonical});
      OURO_RANK_OK(group);
      const std::vector<float> in = values(c.rank());
      std::vector<float> out(kCount);
      OURO_RANK_OK(all_reduce(*group, std::span<const float>(in), std::span<float>(out)));
      if (std::string said = same_bits(out, expected); !said.empty()) return said;
      const Status s = all_reduce(*group, std::span<const float>(in), std::span<float>(out), ReduceOp::sum,
                                  {.algorithm = "ring"});
      OURO_RANK_CHECK(s.reason() == Reason::invalid, "{}", s.message());
      return "";
    };
    ASSERT_EQ(run(GetParam(), 3, body, o), "");
  }
}

/// A hundred repetitions of a call give the same bits on every rank.
TEST_P(NumericsOf, FastRepeatsItself) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    const std::size_t n = 3;
    for (const char* algorithm : {"", "ring", "tree", "halving", "chain", "oneshot", "direct"})
      for (std::size_t count : {std::size_t{257}, std::size_t{9001}}) {
        if (!serves_here(Collective::all_reduce, algorithm)) continue;
        const std::vector<float> in = values(c.rank(), count);
        std::vector<float> first(count), again(count), all(n * count);
        OURO_RANK_OK(all_reduce(c.world(), std::span<const float>(in), std::span<float>(first), ReduceOp::sum,
                                {.algorithm = algorithm}));
        for (int i = 0; i < 100; ++i) {
          OURO_RANK_OK(all_reduce(c.world(), std::span<const float>(in), std::span<float>(again),
                                  ReduceOp::sum, {.algorithm = algorithm}));
          if (std::string said = same_bits(again, first); !said.empty())
            return fmt::format("'{}' turn {}: {}", algorithm, i, said);
        }
        OURO_RANK_OK(all_gather(c.world(), std::span<const float>(first), std::span<float>(all)));
        for (std::size_t r = 0; r < n; ++r)
          if (std::string said = same_bits(std::span<const float>(all).subspan(r * count, count), first);
              !said.empty())
            return fmt::format("'{}' differs from rank {}: {}", algorithm, r, said);
      }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

INSTANTIATE_TEST_SUITE_P(All, NumericsOf, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

TEST(Numerics, CanonicalRefusesOtherOrders) {
  const std::string outcome = run_threads(2, [](Context& c) -> std::string {
    std::vector<float> v(100);
    const std::span<float> s(v);
    for (const char* algorithm : {"ring", "tree", "halving"}) {
      const Status refused = all_reduce(c.world(), s, s, ReduceOp::sum, {Numerics::canonical, algorithm});
      OURO_RANK_CHECK(refused.reason() == Reason::invalid, "{}", refused.message());
      for (const char* other : {"chain", "oneshot", "direct", "zerocopy"})
        if (serves_here(Collective::all_reduce, other))
          OURO_RANK_CHECK(refused.message().find(other) != std::string::npos, "'{}' lacks {}",
                          refused.message(), other);
    }
    OURO_RANK_OK(all_reduce(c.world(), s, s, ReduceOp::sum, {.numerics = Numerics::canonical}));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test
