// Operations of a batch that run as one give the same results as one by one, whatever their sizes and kinds.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

class Fused : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, Fused, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

// Elements per tensor; some are empty, some too large to be fused. Together they take several rounds of the
// staging buffers.
const std::size_t kCounts[] = {1, 3, 0, 1000, 17, 5, 30'000, 64, 2, 20'011, 7, 40'000, 9, 13};

float value(int rank, std::size_t tensor, std::size_t i) {
  return static_cast<float>((static_cast<std::size_t>(rank) * 7 + tensor * 3 + i) % 1000);
}

/// One buffer per tensor, followed by a guard element.
struct Tensors {
  std::vector<std::vector<float>> in, out;
  explicit Tensors(int rank) {
    std::size_t t = 0;
    for (const std::size_t count : kCounts) {
      in.emplace_back(count + 1, -1.0f), out.emplace_back(count + 1, -2.0f);
      for (std::size_t i = 0; i < count; ++i) in.back()[i] = value(rank, t, i);
      ++t;
    }
  }
};

TEST_P(Fused, FusedBatchGivesTheResultsOfSingleCalls) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  for (const int n : {1, 2, 3, 5}) {
    const std::string outcome = run(GetParam(), n, [](Context& c) -> std::string {
      Group& g = c.world();
      for (const Collective what : {Collective::all_reduce, Collective::reduce, Collective::broadcast})
        for (const bool in_place : {false, true})
          for (const bool streamed : {false, true}) {
            const int root = g.size() - 1;
            Tensors mine(c.rank());
            auto stream = Stream::create();
            OURO_RANK_OK(stream);
            std::vector<Work> works;
            group_start();
            for (std::size_t t = 0; t < std::size(kCounts); ++t) {
              const CView in(mine.in[t].data(), kCounts[t], DType::f32);
              const View out((in_place ? mine.in : mine.out)[t].data(), kCounts[t], DType::f32);
              const Stream on = streamed ? *stream : Stream();
              auto work = what == Collective::all_reduce ? all_reduce(g, in, out, ReduceOp::sum, on)
                          : what == Collective::reduce   ? reduce(g, in, out, ReduceOp::sum, root, on)
                                                         : broadcast(g, in, out, root, on);
              OURO_RANK_OK(work);
              works.push_back(*work);
            }
            OURO_RANK_OK(group_end());
            for (const Work& w : works) OURO_RANK_OK(w.wait());
            for (std::size_t t = 0; t < std::size(kCounts); ++t) {
              const auto& got = (in_place ? mine.in : mine.out)[t];
              const bool here = what != Collective::reduce || g.rank() == root;
              for (std::size_t i = 0; i < kCounts[t]; ++i) {
                float sum = 0;
                for (int r = 0; r < g.size(); ++r) sum += value(r, t, i);
                const float expected = what == Collective::broadcast ? value(root, t, i)
                                       : here                        ? sum
                                       : in_place                    ? value(g.rank(), t, i)
                                                                     : -2.0f;
                OURO_RANK_CHECK(got[i] == expected, "{} in place {} tensor {} element {}: {} in place of {}",
                                name(what), in_place, t, i, got[i], expected);
              }
              OURO_RANK_CHECK(got[kCounts[t]] == (in_place ? -1.0f : -2.0f), "guard of {}", t);
            }
          }
      return "";
    });
    EXPECT_EQ(outcome, "") << n << " ranks";
  }
}

/// Operations that differ in more than their buffers are not fused, and the order is kept.
TEST_P(Fused, UnlikeOperationsAreNotFusedAndKeepOrder) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    Group& g = c.world();
    const int r = c.rank();
    double a = r + 1, b = 0;
    std::int32_t k = r + 1, most = 0, all = 0;
    float x = static_cast<float>(r + 1), y = 0, z = 0, scaled = 0;
    std::vector<float> gathered(3);
    group_start();
    OURO_RANK_OK(all_reduce(g, CView(&a, 1, DType::f64), View(&b, 1, DType::f64)));
    OURO_RANK_OK(all_reduce(g, CView(&k, 1, DType::i32), View(&most, 1, DType::i32), ReduceOp::max));
    OURO_RANK_OK(all_reduce(g, CView(&k, 1, DType::i32), View(&all, 1, DType::i32)));
    OURO_RANK_OK(all_reduce(g, CView(&x, 1, DType::f32), View(&y, 1, DType::f32)));
    OURO_RANK_OK(all_reduce(g, CView(&y, 1, DType::f32), View(&z, 1, DType::f32)));  // reads y
    OURO_RANK_OK(all_gather(g, CView(&z, 1, DType::f32), View(gathered.data(), 3, DType::f32)));
    OURO_RANK_OK(
        all_reduce(g, CView(&x, 1, DType::f32), View(&scaled, 1, DType::f32), ReduceOp::premul(2.0)));
    OURO_RANK_OK(group_end());
    OURO_RANK_CHECK(b == 6 && most == 3 && all == 6 && y == 6 && z == 18 && scaled == 12, "{} {} {} {} {} {}",
                    b, most, all, y, z, scaled);
    for (float v : gathered) OURO_RANK_CHECK(v == 18, "{}", v);
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Ranks whose batches are divided differently get an error, even if their total lengths agree.
TEST(FusedThreads, DifferentDivisionOfABatchIsAMismatch) {
  const std::string outcome = run_threads(2, [](Context& c) -> std::string {
    std::vector<float> x(8), y(8);
    const std::size_t first = c.rank() == 0 ? 3 : 5;
    group_start();
    OURO_RANK_OK(
        all_reduce(c.world(), CView(x.data(), first, DType::f32), View(y.data(), first, DType::f32)));
    OURO_RANK_OK(all_reduce(c.world(), CView(x.data() + first, 8 - first, DType::f32),
                            View(y.data() + first, 8 - first, DType::f32)));
    const Status s = group_end();
    OURO_RANK_CHECK(s.reason() == Reason::mismatch, "{}", s.message());
    OURO_RANK_CHECK(hosts_of(2) > 1 || s.message().find("batch") != std::string::npos, "{}", s.message());
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test
