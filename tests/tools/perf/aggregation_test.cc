// ouro-perf aggregation: its flags, its model, its rows; every strategy is right on symmetric and asymmetric
// sites, and wrong averages are detected. Run by ctest.
#include "tools/perf/aggregation.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/device/gpu.h"
#include "tests/runtime/group/ranks.h"
#include "tools/perf/json_report.h"
#include "tools/perf/report.h"

namespace ouro::perf {
namespace {

using test::run_threads;
using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const AggregationFlags& flags) {
  const auto parsed = parse_aggregation(flags);
  return parsed ? "" : parsed.status().message();
}

TEST(AggregationOptions, ListsAndNamesAreParsedAndWrongOnesRefused) {
  const auto o =
      parse_aggregation({.sites = "4,2,8", .strategy = "bucket_flatten", .streams = "3", .hsdp = 2});
  ASSERT_TRUE(o) << o.status().message();
  EXPECT_THAT(o->sites, ElementsAre(4, 2, 8));
  EXPECT_THAT(o->strategies, ElementsAre(train::Strategy::bucket_flatten));
  EXPECT_THAT(o->streams, ElementsAre(3));
  EXPECT_EQ(o->hsdp, 2);
  const auto usual = parse_aggregation({});
  ASSERT_TRUE(usual);
  EXPECT_EQ(usual->strategies.size(), 6u);
  EXPECT_THAT(usual->streams, ElementsAre(1, 4));
  EXPECT_FALSE(usual->hsdp);
  for (const char* wrong : {"0", "2,", ",2", "two", "-1", "2;2", "99999999999", "1025"})
    EXPECT_THAT(refusal({.sites = wrong}), HasSubstr("--sites")) << wrong;
  EXPECT_THAT(refusal({.streams = "65"}), HasSubstr("from 1 to 64"));
  EXPECT_THAT(refusal({.strategy = "fastest"}), HasSubstr("bucket_optimized_coalesced"));
  EXPECT_THAT(refusal({.groups = "everybody"}), HasSubstr("all_replicas"));
}

TEST(AggregationOptions, SitesAreTwoHalvesUnlessGiven) {
  EXPECT_THAT(*sites_of({}, 6), ElementsAre(3, 3));
  EXPECT_THAT(*sites_of({.sites = {4, 1}}, 6), ElementsAre(4, 1));  // the layout refuses it later
  EXPECT_FALSE(sites_of({}, 5));
  EXPECT_FALSE(sites_of({}, 1));
  EXPECT_FALSE(sites_of({.sites = {6}}, 6));
  EXPECT_TRUE(sites_of({.sites = {3, 3}, .groups = train::FederatedGroups::all_replicas}, 6));
  EXPECT_FALSE(sites_of({.sites = {4, 2}, .groups = train::FederatedGroups::all_replicas}, 6));
}

TEST(AggregationModel, LayersAreUnevenAndAddUpToTheWhole) {
  EXPECT_THAT(layer_counts(100, 4), ElementsAre(10, 20, 30, 40));
  for (const std::size_t count : {0u, 1u, 7u, 70'000u})
    for (const int layers : {1, 3, 16, 100}) {
      const auto counts = layer_counts(count, layers);
      EXPECT_EQ(counts.size(), static_cast<std::size_t>(layers));
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::size_t{0}), count);
    }
}

Options quick(std::vector<int> sites, std::optional<int> hsdp) {
  Options o;
  o.max_bytes = 5 << 18;  // two messages, if there are two stages
  o.iters = 2;
  o.dtypes = {DType::f32};
  o.aggregation = *parse_aggregation({.streams = "1,3"});
  o.aggregation->sites = std::move(sites);
  o.aggregation->hsdp = hsdp;
  o.aggregation->layers = 6;
  return o;
}

struct Case {
  std::vector<int> sites;
  std::optional<int> hsdp;
  train::FederatedGroups groups = train::FederatedGroups::senders;
};

TEST(Aggregation, EveryStrategyIsRight) {
  const Case cases[] = {{{2, 2}, {}},
                        {{2, 2}, 1},
                        {{4, 2}, 2},
                        {{3, 1, 1}, 1},
                        {{2, 2}, 1, train::FederatedGroups::all_replicas}};
  for (const Case& k : cases) {
    Options o = quick(k.sites, k.hsdp);
    o.aggregation->groups = k.groups;
    const int ranks = std::accumulate(k.sites.begin(), k.sites.end(), 0);
    EXPECT_EQ("", run_threads(ranks, [&](Context& c) -> std::string {
                auto bench = AggregationBench::make(o, c);
                OURO_RANK_OK(bench);
                for (const train::Strategy s : o.aggregation->strategies)
                  for (const int streams : o.aggregation->streams)
                    for (const auto& [size, type] :
                         {std::pair{0u, DType::f32}, {5000u, DType::bf16}, {5u << 18, DType::f64}}) {
                      const auto row = bench->row(size, type, s, streams);
                      OURO_RANK_OK(row);
                      OURO_RANK_CHECK(row->out_of_place.wrong == 0u && row->in_place->wrong == 0u,
                                      "{} {} of {}: {} and {}", train::name(s), streams, size,
                                      *row->out_of_place.wrong, *row->in_place->wrong);
                      OURO_RANK_CHECK(row->size == size && row->strategy == train::name(s), "{}", row->size);
                      const auto f = static_cast<double>(k.sites.size()), factor = 2 * (f - 1) / f;
                      OURO_RANK_CHECK(std::abs(row->in_place->busbw - factor * row->in_place->algbw) < 1e-9,
                                      "{} GB/s", row->in_place->busbw);
                    }
                return "";
              }));
  }
}

/// Wrong averages that must be detected: nothing done at all, no broadcast, replicas that contribute, a byte
/// written outside of a layer.
TEST(Aggregation, WrongAveragesAreDetected) {
  const Options o = quick({3, 1}, 1);
  EXPECT_EQ("", run_threads(4, [&](Context& c) -> std::string {
              auto bench = AggregationBench::make(o, c);
              OURO_RANK_OK(bench);
              const auto params = bench->cut(5000, DType::f32);
              const std::size_t all = 5000 / sizeof(float);
              train::LayoutGroups& g = bench->groups();
              const bool sends = g.layout.is_sender;
              const auto each = [&](auto&& f) -> Status {
                for (const train::Param& p : params) OURO_TRY(f(p.value));
                return {};
              };
              const auto across = [&](const View& v) {
                return sends ? all_reduce(g.federated[0], v, v, ReduceOp::avg) : Status();
              };
              auto wrong = bench->check_once([] { return Status(); });
              OURO_RANK_OK(wrong);
              OURO_RANK_CHECK(*wrong > all / 2, "nothing at all: {}", *wrong);
              wrong = bench->check_once([&] { return each(across); });
              OURO_RANK_OK(wrong);
              OURO_RANK_CHECK(*wrong == (sends ? 0 : all), "without the broadcast: {}", *wrong);
              wrong = bench->check_once([&] {
                return each([&](const View& v) { return all_reduce(c.world(), v, v, ReduceOp::avg); });
              });
              OURO_RANK_OK(wrong);
              OURO_RANK_CHECK(*wrong == all, "replicas that are heard: {}", *wrong);
              wrong = bench->check_once([&] {
                const View first = params[0].value;
                static_cast<std::byte*>(first.data)[first.bytes()] = std::byte{0};
                return train::aggregate(g, params);
              });
              OURO_RANK_OK(wrong);
              OURO_RANK_CHECK(*wrong == 1, "a byte beside a layer: {}", *wrong);
              return "";
            }));
}

TEST(Aggregation, InvalidFederationsAreRefused) {
  const auto refused = [](std::vector<int> sites, std::optional<int> hsdp) {
    return run_threads(4, [&](Context& c) -> std::string {
      const Status s = AggregationBench::make(quick(sites, hsdp), c).status();
      return s.code() == Code::invalid ? "" : "not refused";
    });
  };
  EXPECT_EQ("", refused({2, 3}, 1));
  EXPECT_EQ("", refused({3, 1}, {}));
  EXPECT_EQ("", refused({3, 1}, 2));
  EXPECT_EQ("", refused({4}, 1));
}

/// On a fake device in ctest.
TEST(PerfDevice, AggregatesOnADevice) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  Options o = quick({2, 1}, 1);
  o.device = true;
  EXPECT_EQ("", run_threads(3, [&](Context& c) -> std::string {
              auto bench = AggregationBench::make(o, c);
              OURO_RANK_OK(bench);
              for (const train::Strategy s : o.aggregation->strategies) {
                const auto row = bench->row(100'000, DType::f16, s, 3);
                OURO_RANK_OK(row);
                OURO_RANK_CHECK(row->out_of_place.wrong == 0u && row->in_place->wrong == 0u, "{}",
                                train::name(s));
              }
              return "";
            }));
}

// ---- output ----------------------------------------------------------------------------------------

Row sample_row() {
  Row r;
  r.size = 1048576, r.count = 262144;
  r.type = "float", r.redop = "avg";
  r.strategy = "bucket_optimized_coalesced", r.streams = 4;
  r.out_of_place = half_of(Kind::all_reduce, r.size, 2, 100e-6);
  r.in_place = half_of(Kind::all_reduce, r.size, 2, 200e-6);
  r.out_of_place.wrong = r.in_place->wrong = 0;
  return r;
}

TEST(AggregationReport, NamesStrategyStreamsAndBothSides) {
  Options o = quick({4, 2}, 2);
  const std::string head = header(o), row = format_row(o, sample_row());
  const std::string names = head.substr(head.find("# ", head.find("planned")));
  EXPECT_THAT(head, HasSubstr("at once"));
  EXPECT_EQ(names.find("strategy") + 8, row.find("bucket_optimized_coalesced") + 26);
  EXPECT_EQ(names.find('\n'), row.find('\n'));
  const std::vector<RankInfo> ranks(6);
  EXPECT_THAT(banner(o, ranks, "", ""),
              HasSubstr("sites of 4, 2 ranks, 2 a replica; groups across sites: senders"));
  o.output = Output::csv;
  const auto commas = [](const std::string& s) { return std::count(s.begin(), s.end(), ','); };
  EXPECT_EQ(commas(header(o)), commas(format_row(o, sample_row())));
  EXPECT_THAT(header(o), HasSubstr("root,strategy,streams,planned_time_us,"));
  EXPECT_THAT(format_row(o, sample_row()), HasSubstr("avg,-1,bucket_optimized_coalesced,4,100.000,"));
  const std::vector rows{sample_row()};
  const auto j = nlohmann::json::parse(json_document(o, rows, summarize(rows, 0), {"", "", "", ranks, 6, 0}));
  EXPECT_EQ(j["config"]["collective"], "aggregation");
  EXPECT_EQ(j["config"]["sites"], (std::vector{4, 2}));
  EXPECT_EQ(j["results"][0]["strategy"], "bucket_optimized_coalesced");
  EXPECT_EQ(j["results"][0]["streams"], 4);
  EXPECT_NEAR(j["results"][0]["planned"]["bus_bw"].get<double>(), 10.48576, 1e-9);
  EXPECT_NEAR(j["results"][0]["at_once"]["time"].get<double>(), 200, 1e-9);
}

}  // namespace
}  // namespace ouro::perf
