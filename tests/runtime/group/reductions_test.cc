// all_reduce of every element type with every reduction, compared with the independent arithmetic of the
// kernels' tests; NaN, averages, and scalars that differ by rank.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/kernels/reference.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

namespace ref = reference;
constexpr int kRanks = 3;
constexpr std::size_t kCount = 301;

/// Elements for which the order of a reduction does not matter: small, and never rounded.
std::vector<std::byte> exact_elements(DType t, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(kCount * size_of(t));
  for (std::size_t i = 0; i < kCount; ++i) {
    const double small[] = {-2, -1, -0.5, 0.5, 1, 2};
    ref::store(t, out.data(), i, is_float(t) ? ref::encode(t, small[random() % std::size(small)]) : random());
  }
  return out;
}

ReduceOp op_of(OpKind kind, int rank) {
  constexpr std::int64_t scalars[kRanks] = {2, 3, -1};
  if (kind != OpKind::premulsum) return {kind, {}};
  return ReduceOp::premul(scalars[rank]);
}

/// The inputs of all ranks and the expected output.
struct Sample {
  std::vector<std::vector<std::byte>> in;
  std::vector<std::byte> expected;

  Sample(DType t, OpKind op, bool exact) : expected(kCount * size_of(t)) {
    std::vector<Scalar> scalars;
    for (int r = 0; r < kRanks; ++r) {
      const auto seed = static_cast<std::uint64_t>(r + 7 * static_cast<int>(t) + 100 * static_cast<int>(op));
      in.push_back(exact ? exact_elements(t, seed) : ref::random_elements(t, kCount, seed));
      scalars.push_back(op_of(op, r).scalar);
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      std::vector<ref::Bits> column;
      for (const auto& x : in) column.push_back(ref::load(t, x.data(), i));
      ref::store(t, expected.data(), i, ref::reduce(t, op, column, scalars, kRanks));
    }
  }
};

class Reductions : public testing::TestWithParam<Mode> {};

TEST_P(Reductions, EveryOpOnEveryTypeIsExact) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), kRanks, [](Context& c) -> std::string {
    const int r = c.rank();
    for (DType t : ref::kAllTypes)
      for (OpKind op : ref::kAllOps) {
        std::vector<std::byte> out(kCount * size_of(t) + 1);
        if (!applies(op, t)) {
          const Status s =
              all_reduce(c.world(), CView(out.data(), kCount, t), View(out.data(), kCount, t), {op, {}});
          OURO_RANK_CHECK(s.reason() == Reason::invalid, "{} {}: {}", name(t), name(op), s.message());
          continue;
        }
        for (bool exact : {false, true}) {
          const Sample sample(t, op, exact);
          const auto& mine = sample.in[static_cast<std::size_t>(r)];
          for (const char* algorithm : {"inline", "oneshot", "direct", "pull", "chain", "ring"}) {
            if (!serves_here(Collective::all_reduce, algorithm)) continue;
            if (!exact && std::string_view(algorithm) == "ring") continue;  // its order gives other bits
            const std::size_t count = std::string_view(algorithm) == "inline" ? 7 : kCount;
            std::fill(out.begin(), out.end(), std::byte{0xCD});
            OURO_RANK_OK(all_reduce(c.world(), CView(mine.data(), count, t), View(out.data(), count, t),
                                    op_of(op, r), {.algorithm = algorithm}));
            for (std::size_t i = 0; i < count; ++i)
              OURO_RANK_CHECK(ref::load(t, out.data(), i) == ref::load(t, sample.expected.data(), i),
                              "{} {} {} exact {} element {}: {:x} in place of {:x}", name(t), name(op),
                              algorithm, exact, i, ref::load(t, out.data(), i),
                              ref::load(t, sample.expected.data(), i));
            OURO_RANK_CHECK(out.back() == std::byte{0xCD}, "{}", "wrote too far");
          }
        }
      }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// reduce and reduce_scatter use the same kernels on another path.
TEST_P(Reductions, ReduceAndReduceScatterAreExact) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), kRanks, [](Context& c) -> std::string {
    const auto r = static_cast<std::size_t>(c.rank());
    constexpr std::size_t block = kCount / kRanks;
    for (DType t : {DType::bf16, DType::f16, DType::f8e4m3, DType::i8, DType::f64})
      for (OpKind op : {OpKind::sum, OpKind::avg, OpKind::premulsum, OpKind::max}) {
        const Sample sample(t, op, true);
        const std::byte* expected = sample.expected.data();
        std::vector<std::byte> out(kCount * size_of(t));
        for (const char* algorithm : {"", "chain", "tree"}) {
          const int root = algorithm[0] == 'c' ? 1 : 2;
          OURO_RANK_OK(reduce(c.world(), CView(sample.in[r].data(), kCount, t), View(out.data(), kCount, t),
                              op_of(op, c.rank()), root, {.algorithm = algorithm}));
          OURO_RANK_CHECK(c.rank() != root || std::memcmp(out.data(), expected, out.size()) == 0, "{} {} {}",
                          name(t), name(op), algorithm);
        }
        for (const char* algorithm : {"direct", "ring"}) {
          if (!serves_here(Collective::reduce_scatter, algorithm)) continue;
          OURO_RANK_OK(reduce_scatter(c.world(), CView(sample.in[r].data(), block * kRanks, t),
                                      View(out.data(), block, t), op_of(op, c.rank()),
                                      {.algorithm = algorithm}));
          OURO_RANK_CHECK(std::memcmp(out.data(), expected + r * block * size_of(t), block * size_of(t)) == 0,
                          "{} {} {}", name(t), name(op), algorithm);
        }
      }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Whichever rank has the NaN, and whatever its bits, every rank gets the canonical NaN. -0 orders before +0.
TEST_P(Reductions, NanIsCanonicalAndSignedZerosAreOrdered) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), kRanks, [](Context& c) -> std::string {
    for (DType t : ref::kAllTypes) {
      if (!is_float(t)) continue;
      const ref::Bits nan = ref::encode(t, std::nan("")), sign = ref::encode(t, -0.0);
      for (bool greatest : {true, false})
        for (const char* algorithm : {"oneshot", "direct", "ring", "tree", "halving"}) {
          if (!serves_here(Collective::all_reduce, algorithm)) continue;
          std::vector<std::byte> in(5 * size_of(t)), out(in.size());
          for (int k = 0; k < 3; ++k)  // element k: a negative NaN on rank k
            ref::store(t, in.data(), static_cast<std::size_t>(k),
                       c.rank() == k ? nan | sign : ref::encode(t, k - 1.0));
          ref::store(t, in.data(), 3, c.rank() == 1 ? sign : 0);  // one -0
          ref::store(t, in.data(), 4, c.rank() == 1 ? 0 : sign);  // one +0
          OURO_RANK_OK(all_reduce(c.world(), CView(in.data(), 5, t), View(out.data(), 5, t),
                                  greatest ? ReduceOp::max : ReduceOp::min, {.algorithm = algorithm}));
          const ref::Bits zero = greatest ? 0 : sign;
          const ref::Bits expected[] = {nan, nan, nan, zero, zero};
          for (std::size_t i = 0; i < 5; ++i)
            OURO_RANK_CHECK(ref::load(t, out.data(), i) == expected[i], "{} {} max {} element {}: {:x}",
                            name(t), algorithm, greatest, i, ref::load(t, out.data(), i));
        }
    }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

INSTANTIATE_TEST_SUITE_P(All, Reductions, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

}  // namespace
}  // namespace ouro::test
