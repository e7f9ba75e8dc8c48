// Federated averages compared with the formula: strategies as data, values, weights, filters, streams,
// refusals; and a layout with wrong groups, whose values must be detected as wrong.
#include "ouro/train/federation.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/api/train/arrays.h"
#include "tests/api/train/federation_cases.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::train {
namespace {

using test::kStrategies;
using test::run_threads;

using Layers = std::vector<std::vector<std::size_t>>;  // by bucket

Layers layers_of(const std::vector<Bucket>& all) {
  Layers result;
  for (const Bucket& b : all) result.push_back(b.layers);
  return result;
}

TEST(Buckets, EachStrategyGivesItsExpectedBuckets) {
  const std::vector<std::size_t> sizes = {3, 4, 1, 8, 2};  // 18 in all; with three streams, 6 each
  const auto of = [&](Strategy s, int n) { return buckets(s, sizes, n); };
  EXPECT_EQ(layers_of(of(Strategy::bucket_coalesced, 2)), (Layers{{0, 2, 4}, {1, 3}}));
  EXPECT_EQ(layers_of(of(Strategy::bucket_flatten, 3)), (Layers{{0, 3}, {1, 4}, {2}}));
  EXPECT_EQ(layers_of(of(Strategy::bucket_optimized_coalesced, 3)), (Layers{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(layers_of(of(Strategy::bucket_optimized_flatten, 1)), (Layers{{0, 1, 2, 3, 4}}));
  const auto one = of(Strategy::layer_by_layer, 2), runs = of(Strategy::layer_by_layer_optimized, 3);
  ASSERT_EQ(one.size(), 5u);
  for (std::size_t k = 0; k < 5; ++k) EXPECT_EQ(one[k], (Bucket{static_cast<int>(k % 2), {k}, false}));
  std::vector<int> streams;
  for (const Bucket& b : runs) streams.push_back(b.stream);
  EXPECT_EQ(streams, (std::vector<int>{0, 0, 1, 1, 2}));
  EXPECT_TRUE(of(Strategy::bucket_flatten, 2)[0].flat);
  EXPECT_FALSE(of(Strategy::bucket_coalesced, 2)[0].flat);
}

TEST(Buckets, EachLayerIsInOneBucketOfAnExistingStream) {
  for (const Strategy s : kStrategies)
    for (int n = 1; n <= 4; ++n)
      for (std::size_t layers = 0; layers <= 9; ++layers) {
        std::vector<std::size_t> sizes(layers);
        for (std::size_t k = 0; k < layers; ++k) sizes[k] = (7 * k + 3) % 5;  // some are empty
        std::vector<int> seen(layers);
        for (const Bucket& b : buckets(s, sizes, n)) {
          EXPECT_TRUE(b.stream >= 0 && b.stream < n) << name(s);
          EXPECT_FALSE(b.layers.empty()) << name(s);
          for (const std::size_t k : b.layers) ++seen[k];
        }
        EXPECT_EQ(seen, std::vector<int>(layers, 1)) << name(s) << ' ' << n << " streams";
      }
}

struct Case {
  std::vector<int> sizes;
  std::optional<int> hsdp;
};
const Case kCases[] = {{{2, 2}, {}},   {{2, 2}, 1},  {{4, 2}, 2}, {{4, 2}, 1}, {{3, 1}, 1},
                       {{2, 2, 2}, 2}, {{1, 1}, {}}, {{4}, 2},    {{1}, {}}};
int world_of(const Case& c) { return std::accumulate(c.sizes.begin(), c.sizes.end(), 0); }

/// S_f[p] from the definition of the layout, not from its code.
int sender(const Case& c, std::size_t f, int p) {
  const int before = std::accumulate(c.sizes.begin(), c.sizes.begin() + static_cast<std::ptrdiff_t>(f), 0);
  const int width = c.hsdp.value_or(c.sizes[f]);
  return before + p % (c.sizes[f] / width) * width + p;
}
int shard_of(const Case& c, int rank) {
  std::size_t f = 0;
  int l = rank;
  while (l >= c.sizes[f]) l -= c.sizes[f++];
  return l % c.hsdp.value_or(c.sizes[f]);
}

TEST(Aggregate, IsTheFormulaForEveryStrategyStreamCountAndNumberOfLayers) {
  for (const Case& c : kCases)
    for (const FederatedGroups kind : {FederatedGroups::senders, FederatedGroups::all_replicas})
      EXPECT_EQ("", run_threads(world_of(c), [&](Context& context) -> std::string {
                  const auto value = [](int rank, std::size_t layer, std::size_t i) {
                    return rank + 0.25 * static_cast<double>(layer) + std::sin(static_cast<double>(i) + rank);
                  };
                  const int p = shard_of(c, context.rank());
                  for (int streams = 1; streams <= 4; ++streams) {
                    auto groups = test::groups_of(context, c.sizes, c.hsdp, streams, kind);
                    OURO_RANK_OK(groups);
                    for (const Strategy strategy : kStrategies)
                      for (std::size_t layers = 0; layers <= 9; ++layers) {
                        test::NamedArrays<double> model;
                        for (std::size_t k = 0; k < layers; ++k) {
                          std::vector<double> x((5 * k + 2) % 7);
                          for (std::size_t i = 0; i < x.size(); ++i) x[i] = value(context.rank(), k, i);
                          model.add(fmt::format("layer{}", k), std::move(x));
                        }
                        const auto params = model.params();
                        OURO_RANK_OK(aggregate(*groups, params, {.strategy = strategy, .streams = streams}));
                        for (std::size_t k = 0; k < layers; ++k)
                          for (std::size_t i = 0; i < model.at(k).size(); ++i) {
                            double mean = 0;
                            for (std::size_t f = 0; f < c.sizes.size(); ++f)
                              mean += value(sender(c, f, p), k, i);
                            mean /= static_cast<double>(c.sizes.size());
                            OURO_RANK_CHECK(std::abs(model.at(k)[i] - mean) <= 1e-12 * std::abs(mean) + 1e-15,
                                            "sizes {} {} streams {} layer {}: {} for {}", c.sizes,
                                            name(strategy), streams, k, model.at(k)[i], mean);
                          }
                      }
                  }
                  return "";
                }));
}

TEST(Aggregate, WithoutFederationAveragesReplicas) {
  EXPECT_EQ(
      "", run_threads(4, [](Context& c) -> std::string {
        for (const std::optional<int> hsdp : {std::optional<int>(2), std::optional<int>()}) {
          auto groups = test::groups_of(c, {}, hsdp, 1);
          OURO_RANK_OK(groups);
          test::NamedArrays<float> model;
          model.add("w", {static_cast<float>(c.rank()), 10});
          OURO_RANK_OK(aggregate(*groups, model.params()));
          const float want = hsdp ? static_cast<float>(c.rank() % 2) + 1.0F : static_cast<float>(c.rank());
          OURO_RANK_CHECK(model.at(0) == (std::vector<float>{want, 10}), "{} for {}", model.at(0), want);
        }
        return "";
      }));
}

/// 6 MiB per rank: many messages, whose stages overlap. All numbers are exact, whatever the order of sums.
TEST(Aggregate, LongLayersPassBothStagesInPieces) {
  EXPECT_EQ("", run_threads(6, [](Context& c) -> std::string {
              auto stream = Stream::create();
              OURO_RANK_OK(stream);
              for (const Strategy strategy : kStrategies)
                for (const int streams : {1, 2}) {
                  auto groups = test::groups_of(c, {4, 2}, 2, streams);
                  OURO_RANK_OK(groups);
                  test::NamedArrays<float> model;
                  for (const std::size_t size : {700'001u, 3u, 800'000u, 70'000u})
                    model.add(fmt::format("layer of {}", size),
                              std::vector<float>(size, static_cast<float>(4 * c.rank() + 1)));
                  auto plan =
                      plan_aggregation(*groups, model.params(), {.strategy = strategy, .streams = streams});
                  OURO_RANK_OK(plan);
                  // The second round is on a stream, between writes on it.
                  for (int round = 0; round < 2; ++round) {
                    if (round == 0) {
                      OURO_RANK_OK(plan->run());
                    } else {
                      (void)stream->run([&] {
                        for (std::size_t k = 0; k < model.size(); ++k)
                          for (float& x : model.at(k)) x += static_cast<float>(4 * c.rank());
                        return Status{};
                      });
                      OURO_RANK_OK(plan->run(*stream));
                      OURO_RANK_OK(stream->synchronize());
                    }
                    const int p = c.rank() % 2;
                    const int mean = (sender({{4, 2}, 2}, 0, p) + sender({{4, 2}, 2}, 1, p)) / 2;
                    const auto want = static_cast<float>(round == 0 ? 4 * mean + 1 : 8 * mean + 1);
                    for (std::size_t k = 0; k < model.size(); ++k)
                      for (const float x : model.at(k))
                        OURO_RANK_CHECK(x == want, "{}, {} streams, round {}: {} for {}", name(strategy),
                                        streams, round, x, want);
                  }
                }
              return "";
            }));
}

TEST(Aggregate, OnlySendersCrossSites) {
  const std::size_t elements = 500;
  std::vector<AggregateTraffic> traffic(6);
  EXPECT_EQ("", run_threads(6, [&](Context& c) -> std::string {
              auto groups = test::groups_of(c, {4, 2}, 2, 1);
              OURO_RANK_OK(groups);
              test::NamedArrays<float> model;
              model.add("w", std::vector<float>(elements));
              auto plan = plan_aggregation(*groups, model.params(), {});
              OURO_RANK_OK(plan);
              traffic[static_cast<std::size_t>(c.rank())] = plan->traffic();
              return "";
            }));
  std::size_t from_first_site = 0;
  for (std::size_t r = 0; r < 4; ++r) from_first_site += traffic[r].across;
  EXPECT_EQ(from_first_site, 2 * elements * sizeof(float));  // the arrays of the L = 2 senders
  EXPECT_EQ(traffic[0].inside, elements * sizeof(float));
  EXPECT_EQ(traffic[4].inside, 0u);  // it is the only rank with its shard
}

TEST(Aggregate, WeighsEachSiteByItsGivenWeight) {
  EXPECT_EQ("", run_threads(4, [](Context& c) -> std::string {
              auto groups = test::groups_of(c, {3, 1}, 1, 2);
              OURO_RANK_OK(groups);
              for (const Strategy strategy : kStrategies) {
                test::NamedArrays<double> model;
                model.add("w", {static_cast<double>(c.rank()), 1});
                OURO_RANK_OK(aggregate(*groups, model.params(),
                                       {.strategy = strategy, .streams = 2, .site_weights = {100, 300}}));
                OURO_RANK_CHECK(std::abs(model.at(0)[0] - 2.25) < 1e-15 && model.at(0)[1] == 1, "{}",
                                model.at(0));
              }
              return "";
            }));
}

TEST(Aggregate, SixteenBitsAreSummedInFloat) {
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              auto groups = test::groups_of(c, {1, 1}, {}, 1);
              OURO_RANK_OK(groups);
              // bf16 1.0 and 1.0078125: their mean is between two bf16 values, and is rounded once, to even.
              std::vector<std::uint16_t> x(3, c.rank() == 0 ? 0x3f80 : 0x3f81);
              const Param p{.name = "w", .value = {x.data(), x.size(), DType::bf16}, .grad = {}};
              OURO_RANK_OK(aggregate(*groups, {&p, 1}));
              OURO_RANK_CHECK(x == std::vector<std::uint16_t>(3, 0x3f80), "{}", x);
              return "";
            }));
}

TEST(Aggregate, FiltersAndCountsTiedParametersOnce) {
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              auto groups = test::groups_of(c, {1, 1}, {}, 1);
              OURO_RANK_OK(groups);
              const auto mine = static_cast<double>(c.rank());
              test::NamedArrays<double> model;
              model.add("layer1.w", {mine}), model.add("layer2.w", {mine}), model.add("layer1.b", {mine});
              std::vector<Param> params = model.params();
              params.push_back(params[0]);
              params.back().name = "head.w";  // tied weights
              const auto first = [](const Param& p) { return p.name.starts_with("layer1"); };
              OURO_RANK_OK(aggregate(*groups, params, {.filter = first}));
              OURO_RANK_CHECK(model.at(0)[0] == 0.5 && model.at(1)[0] == mine && model.at(2)[0] == 0.5,
                              "{} {} {}", model.at(0)[0], model.at(1)[0], model.at(2)[0]);
              auto plan = plan_aggregation(*groups, params, {});
              OURO_RANK_OK(plan);
              OURO_RANK_CHECK(plan->buckets().size() == 1 && plan->buckets()[0].layers.size() == 3,
                              "tied twice");
              // If nothing is selected, only the comparison is sent; it detects a rank that
              // selects otherwise.
              const auto none = [](const Param&) { return false; };
              OURO_RANK_OK(aggregate(*groups, params, {.filter = none}));
              const Status s =
                  c.rank() == 0 ? aggregate(*groups, params, {.filter = none}) : aggregate(*groups, params);
              OURO_RANK_CHECK(s.code() == Code::invalid, "{}", s.ok() ? "ok" : s.message());
              return "";
            }));
}

TEST(Aggregate, RunsOnMemoryOfAGpu) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  EXPECT_EQ(
      "", run_threads(6, [](Context& c) -> std::string {
        auto stream = Stream::create(c.device());
        OURO_RANK_OK(stream);
        for (const Strategy strategy : kStrategies)
          for (const int streams : {1, 2}) {
            auto groups = test::groups_of(c, {4, 2}, 2, streams);
            OURO_RANK_OK(groups);
            const int p = c.rank() % 2;
            const auto want = static_cast<float>((sender({{4, 2}, 2}, 0, p) + sender({{4, 2}, 2}, 1, p)) / 2);
            for (const bool on_stream : {false, true}) {
              const std::vector<float> start(400'000, static_cast<float>(c.rank()));
              test::Array a(c.device(), start),
                  b(c.device(), std::vector<float>(7, static_cast<float>(c.rank())));
              const Param params[] = {{.name = "a", .value = a.view(), .grad = {}},
                                      {.name = "b", .value = b.view(), .grad = {}}};
              OURO_RANK_OK(aggregate(*groups, params, {.strategy = strategy, .streams = streams},
                                     on_stream ? *stream : Stream()));
              OURO_RANK_OK(stream->synchronize());
              OURO_RANK_CHECK(a.read<float>() == std::vector<float>(start.size(), want) &&
                                  b.read<float>() == std::vector<float>(7, want),
                              "{} {}: {} for {}", name(strategy), streams, a.read<float>()[0], want);
            }
          }
        return "";
      }));
}

// ---- a layout with a wrong group ---------------------------------------------------------------------

/// (4,2) with L = 2: shard 1 is sent by rank 3 of the first site. Here rank 1 replaces it in every field that
/// names the sender; nothing else is wrong, all groups match and no rank reports an error.
TEST(Aggregate, AWrongGroupOfAnAsymmetricFederationGivesOtherValues) {
  std::vector<double> right(6), wrong(6);
  for (const bool broken : {false, true})
    EXPECT_EQ("", run_threads(6, [&](Context& c) -> std::string {
                auto layout = ParallelLayout::make(
                    {.rank = c.rank(), .world_size = 6, .federations = {4, 2}, .hsdp = 2});
                OURO_RANK_OK(layout);
                if (broken && (c.rank() == 1 || c.rank() == 3)) {
                  layout->is_sender = c.rank() == 1;
                  layout->receive_from = c.rank() == 3 ? std::optional(1) : std::nullopt;
                  layout->federated_group = c.rank() == 1 ? std::vector{1, 5} : std::vector{3};
                }
                if (broken && c.rank() == 5) layout->federated_group = {1, 5};
                auto groups = create_groups(c, *layout);
                OURO_RANK_OK(groups);
                test::NamedArrays<double> model;
                model.add("w", {static_cast<double>(c.rank())});
                OURO_RANK_OK(aggregate(*groups, model.params()));
                (broken ? wrong : right)[static_cast<std::size_t>(c.rank())] = model.at(0)[0];
                return "";
              }));
  EXPECT_EQ(right, (std::vector<double>{2, 4, 2, 4, 2, 4}));
  EXPECT_EQ(wrong,
            (std::vector<double>{2, 3, 2, 3, 2, 3}));  // (1 + 5) / 2, which the other tests would refuse
}

TEST(MeanLoss, WeighsByLength) {
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              auto mean = mean_loss(c.world(), 2.0 * (c.rank() + 1), c.rank() + 1);
              OURO_RANK_OK(mean);
              OURO_RANK_CHECK(*mean == 2.0, "{}", *mean);
              const Status empty = mean_loss(c.world(), 1, 0).status();
              OURO_RANK_CHECK(empty.code() == Code::invalid, "no length: {}",
                              empty.ok() ? "ok" : empty.message());
              const Status negative = mean_loss(c.world(), 1, c.rank() == 1 ? -4 : 7).status();
              OURO_RANK_CHECK(negative.code() == Code::invalid, "negative: {}",
                              negative.ok() ? "ok" : negative.message());
              return "";
            }));
}

}  // namespace
}  // namespace ouro::train
