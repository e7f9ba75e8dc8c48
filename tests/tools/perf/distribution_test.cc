// Percentiles, halves, the sizes of samples and the end of a warm-up. Run by ctest.
#include "tools/perf/distribution.h"

#include <gtest/gtest.h>

#include <vector>

namespace ouro::perf {
namespace {

TEST(Distribution, IsOfSortedSamples) {
  std::vector<double> us;
  for (int i = 100; i > 0; --i) us.push_back(i);
  const Distribution d = distribution_of(us);
  EXPECT_EQ(d.min, 1);
  EXPECT_EQ(d.median, 50.5);
  EXPECT_EQ(d.p95, 95);
  EXPECT_EQ(distribution_of({7}).p95, 7);
  EXPECT_EQ(distribution_of({}).median, 0);
}

TEST(Distribution, HalvesAreInTheOrderOfTheLoop) {
  EXPECT_DOUBLE_EQ(distribution_of({4, 4, 2, 2}).halves, 2);
  EXPECT_DOUBLE_EQ(distribution_of({2, 2, 4, 4}).halves, 2);
  EXPECT_DOUBLE_EQ(distribution_of({2, 4, 4, 2}).halves, 1);
  EXPECT_DOUBLE_EQ(distribution_of({2, 99, 3}).halves, 1.5)
      << "the middle of an odd number is in neither half";
  EXPECT_EQ(distribution_of({2}).halves, 0);
}

TEST(Distribution, UnevenHalvesAndMappingsAreMarked) {
  EXPECT_FALSE(distribution_of({10, 13}).marked());
  EXPECT_TRUE(distribution_of({10, 13.1}).marked());
  EXPECT_TRUE((Distribution{.maps = 1}).marked());
  EXPECT_FALSE((Distribution{.warmup = 5}).marked());
}

struct Sizes {
  int calls, samples;
};
Sizes sizes_of(int iters, Blocking blocking, bool device, int graph = 0) {
  Options o;
  o.distribution = true;
  o.iters = iters, o.blocking = blocking, o.device = device, o.graph = graph;
  return {calls_per_sample(o), samples_of(o)};
}

TEST(Samples, CallsThatWaitAreTimedOneByOne) {
  for (const Blocking b : {Blocking::back_to_back, Blocking::barrier, Blocking::stream_wait}) {
    EXPECT_EQ(sizes_of(500, b, false).calls, 1);
    EXPECT_EQ(sizes_of(500, b, false).samples, 500);
  }
  EXPECT_EQ(sizes_of(10'000, Blocking::stream_wait, true).samples, 3334) << "bounded";
}

TEST(Samples, CallsInARowAreTimedInBlocks) {
  for (const auto& [iters, calls, samples] : {std::tuple{500, 25, 20},
                                              {20, 5, 4},
                                              {7, 4, 2},
                                              {3, 2, 2},
                                              {2, 1, 2},
                                              {1, 1, 1},
                                              {1 << 30, 53687092, 20}}) {
    const Sizes s = sizes_of(iters, Blocking::stream, true);
    EXPECT_EQ(s.calls, calls) << iters;
    EXPECT_EQ(s.samples, samples) << iters;
  }
  EXPECT_EQ(sizes_of(500, Blocking::stream, true, 6).samples, 6) << "launches of the graph";
}

TEST(Samples, OnlyGpusMarkTheirStreams) {
  Options o;
  o.blocking = Blocking::stream;
  o.distribution = true;
  EXPECT_FALSE(marks_samples(o));
  EXPECT_TRUE(waits_for_samples(o));
  o.device = true;
  EXPECT_TRUE(marks_samples(o));
  EXPECT_FALSE(waits_for_samples(o));
  o.blocking = Blocking::stream_wait;
  EXPECT_FALSE(marks_samples(o)) << "each call is timed by the host's clock";
  o.distribution = false;
  EXPECT_EQ(samples_of(o), 1);
}

/// The blocks that a warm-up runs while a block takes `us(its number)` for one call.
template <class F>
std::vector<int> blocks(int least, F us, double seconds_of_block = 0) {
  WarmUp rule(least);
  std::vector<int> all;
  while (const int calls = rule.next()) {
    all.push_back(calls);
    rule.add(us(all.size()), seconds_of_block * static_cast<double>(all.size()));
  }
  int sum = 0;
  for (const int calls : all) sum += calls;
  EXPECT_EQ(rule.calls(), sum);
  return all;
}

TEST(WarmUp, EndsWhenTwoBlocksTakeTheSameTime) {
  EXPECT_EQ(blocks(100, [](auto) { return 8.0; }), (std::vector<int>{50, 50}));
  EXPECT_EQ(blocks(5, [](auto n) { return n < 3 ? 80.0 / static_cast<double>(n) : 20.0; }),
            (std::vector<int>{3, 3, 3, 3}));
  EXPECT_EQ(blocks(2, [](auto n) { return n == 1 ? 1.0 : 1.04; }), (std::vector<int>{1, 1}));
  EXPECT_EQ(blocks(0, [](auto) { return 1.0; }), std::vector<int>{});
}

TEST(WarmUp, IsBounded) {
  const auto slower = [](auto n) { return static_cast<double>(1 << n); };
  EXPECT_EQ(blocks(5, slower).size(), 17u) << "50 calls";
  EXPECT_EQ(blocks(1, slower).size(), 10u);
  EXPECT_EQ(blocks(100, slower, 0.9).size(), 3u) << "no block begins after 2 s";
  EXPECT_EQ(blocks(100, slower, 60).size(), 2u) << "-w is the minimum";
}

}  // namespace
}  // namespace ouro::perf
