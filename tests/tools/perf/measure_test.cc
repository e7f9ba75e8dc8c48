// The measuring loop with real ranks as threads: every collective is right, and a wrong one is detected. Run
// by ctest.
#include "tools/perf/measure.h"

#include <gtest/gtest.h>

#include <thread>

namespace ouro::perf {
namespace {

/// Runs `f(bench, rank)` on n threads that share a job.
template <class F>
void on_ranks(int n, const Options& o, F f) {
  auto contexts = Context::threads(n);
  ASSERT_TRUE(contexts) << contexts.status().message();
  std::vector<std::jthread> ranks;
  for (Context& c : *contexts)
    ranks.emplace_back([&] {
      auto bench = Bench::make(o, c, c.world(), c.world());
      ASSERT_TRUE(bench) << bench.status().message();
      f(*bench, c.rank());
      EXPECT_TRUE(c.close().ok());
    });
}

Options quick(Kind k) {
  Options o;
  o.kind = k;
  o.max_bytes = 70'000;
  o.iters = 2;
  o.ops = {OpKind::sum};
  o.dtypes = {DType::f32};
  return o;
}

TEST(Measure, EveryCollectiveIsRight) {
  for (const KindInfo& k : all_kinds())
    on_ranks(3, quick(k.kind), [&](Bench& bench, int) {
      for (const std::size_t size : {0u, 4u, 1000u, 70'000u})
        for (const int root : {0, 2}) {
          const auto row = bench.row(size, DType::f32, OpKind::sum, root);
          ASSERT_TRUE(row) << k.name << ": " << row.status().message();
          EXPECT_EQ(row->out_of_place.wrong, 0u) << k.name << ' ' << size;
          if (row->in_place) {
            EXPECT_EQ(row->in_place->wrong, 0u) << k.name << ' ' << size << " in place";
          }
          EXPECT_GT(row->out_of_place.us, 0);
        }
    });
}

TEST(Measure, SamplesAreSummarised) {
  Options o = quick(Kind::all_reduce);
  o.iteration_stats = true;
  o.iters = 10;
  o.skip_samples = 3;
  on_ranks(2, o, [](Bench& bench, int) {
    const auto row = bench.row(1000, DType::f32, OpKind::sum, 0);
    ASSERT_TRUE(row);
    ASSERT_TRUE(row->out_of_place.samples);
    EXPECT_GT(row->out_of_place.samples->min, 0);
    EXPECT_LE(row->out_of_place.samples->p99, row->out_of_place.samples->max);
  });
}

TEST(Measure, EveryMethodHasADistribution) {
  for (const Blocking blocking :
       {Blocking::back_to_back, Blocking::barrier, Blocking::stream, Blocking::stream_wait}) {
    Options o = quick(Kind::all_reduce);
    o.distribution = true;
    o.iters = 10, o.warmup = 2, o.blocking = blocking;
    on_ranks(2, o, [](Bench& bench, int) {
      const auto row = bench.row(1000, DType::f32, OpKind::sum, 0);
      ASSERT_TRUE(row) << row.status().message();
      for (const Half* h : {&row->out_of_place, &*row->in_place}) {
        ASSERT_TRUE(h->distribution);
        EXPECT_GT(h->distribution->min, 0);
        EXPECT_LE(h->distribution->min, h->distribution->median);
        EXPECT_LE(h->distribution->median, h->distribution->p95);
        EXPECT_LE(h->distribution->min, h->us);
        EXPECT_GE(h->distribution->halves, 1);
        EXPECT_GE(h->distribution->warmup, 2);
        EXPECT_LE(h->distribution->warmup, 20);
        EXPECT_EQ(h->distribution->maps, 0u);
      }
    });
  }
}

TEST(Measure, CopyBandwidthIsPositiveAndEqualOnAllRanks) {
  double seen[2] = {};
  on_ranks(2, quick(Kind::all_reduce), [&](Bench& bench, int rank) {
    const auto gbs = bench.copy_bandwidth();
    ASSERT_TRUE(gbs);
    seen[rank] = gbs->gbs;
    EXPECT_EQ(gbs->gpus, 0);
  });
  EXPECT_GT(seen[0], 0);
  EXPECT_EQ(seen[0], seen[1]);
}

}  // namespace
}  // namespace ouro::perf
