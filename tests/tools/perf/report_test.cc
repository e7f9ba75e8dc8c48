// The text and the JSON of ouro-perf, compared with the table of nccl-tests. Run by ctest.
#include "tools/perf/report.h"

#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tools/cli/files.h"
#include "tools/perf/compare.h"
#include "tools/perf/json_report.h"
#include "tools/perf/verdict.h"

namespace ouro::perf {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

Row sample_row() {
  Row r;
  r.size = 1048576;
  r.count = 262144;
  r.type = "float";
  r.redop = "sum";
  r.out_of_place = half_of(Kind::all_reduce, 1048576, 4, 100.25e-6);
  r.out_of_place.wrong = 0;
  r.in_place = half_of(Kind::all_reduce, 1048576, 4, 12345e-6);
  r.in_place->wrong = 7;
  return r;
}

TEST(Table, RowHasTheFormatOfNcclTests) {
  EXPECT_EQ(format_row({}, sample_row()),
            "     1048576        262144     float     sum      -1"
            "    100.2   10.46   15.69       0    12345    0.08    0.13       7\n");
}

TEST(Table, UncheckedAndMissingSidesAreNotAvailable) {
  Row r = sample_row();
  r.out_of_place.wrong.reset();
  r.in_place.reset();
  EXPECT_THAT(format_row({}, r), HasSubstr("15.69     N/A      N/A     N/A     N/A     N/A\n"));
}

TEST(Table, NumbersKeepTheirWidth) {
  EXPECT_EQ(format_time(0.071), "0.07");
  EXPECT_EQ(format_time(99.99), "99.99");
  EXPECT_EQ(format_time(99.996), "100.0");
  EXPECT_EQ(format_time(1234.56), "1234.6");
  EXPECT_EQ(format_time(9999.97), "10000");
  EXPECT_EQ(format_bandwidth(999.99), "999.99");
  EXPECT_EQ(format_bandwidth(1234.5), "1234.5");
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> list;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) list.push_back(line);
  return list;
}

TEST(Table, HeaderIsCommentAndLinesUpWithTheRows) {
  for (const bool stats : {false, true}) {
    Options o;
    o.iteration_stats = stats;
    Row r = sample_row();
    if (stats) r.out_of_place.samples = r.in_place->samples = SampleStats{1, 2, 2, 3};
    const auto head = lines(header(o));
    ASSERT_EQ(head.size(), 4u);
    for (const std::string& line : head) EXPECT_EQ(line[0], '#');
    const std::string row = lines(format_row(o, r))[0];
    EXPECT_EQ(head[2].size(), row.size());
    for (const char* column : {"size", "redop", "root", "busbw", "#wrong"}) {
      const auto end = head[2].find(column) + std::string(column).size();
      EXPECT_NE(row[end - 1], ' ') << column;
      EXPECT_TRUE(end == row.size() || row[end] == ' ') << column;
    }
    EXPECT_EQ(head[2].find("i_cv%") != std::string::npos, stats);
  }
}

Row distributed_row() {
  Row r = sample_row();
  r.out_of_place.distribution = Distribution{99, 100, 120.5, 1.02, 0, 10};
  r.in_place->distribution = Distribution{12000, 12345, 13000, 1.31, 3, 10};
  return r;
}

TEST(Table, DistributionFollowsTheColumnsOfNcclTests) {
  Options o;
  o.distribution = true;
  const std::string row = format_row(o, distributed_row());
  EXPECT_TRUE(row.starts_with(format_row({}, sample_row()).substr(0, row.find("       7") + 8))) << row;
  EXPECT_THAT(
      row,
      HasSubstr(
          "       7    99.00    100.0    120.5    1.02      0    12000    12345    13000   1.31!     3!\n"));
  for (const bool stamped : {false, true}) {
    o.timestamps = stamped;
    Row r = distributed_row();
    if (stamped) r.timestamp = "2026-11-21 12:30:31";
    const auto head = lines(header(o));
    EXPECT_EQ(head[2].size(), lines(format_row(o, r))[0].size());
    EXPECT_EQ(head[3].size(), head[2].size());
  }
  EXPECT_THAT(footer(o, summarize(std::vector{distributed_row()}, 0)),
              HasSubstr("# Marked with !        : 1 of"));
  EXPECT_THAT(footer(o, summarize(std::vector{sample_row()}, 0)), Not(HasSubstr("Marked")));
}

TEST(Table, BannerNamesEveryRank) {
  const std::vector<RankInfo> ranks{{0, 0, 17, "node1", "Some CPU"}, {1, 1, 18, "node1", "Some CPU"}};
  const std::string text = banner({}, ranks, "0.1.0", "2026-01-01 00:00:00");
  EXPECT_THAT(text, HasSubstr("# Collective test starting: all_reduce_perf\n"));
  EXPECT_THAT(text,
              HasSubstr("# nThread 1 nGpus 1 minBytes 33554432 maxBytes 33554432 step: 1048576(bytes) "));
  EXPECT_THAT(text, HasSubstr("#  Rank  1 Group  1 Pid     18 on      node1 device  0 [host] Some CPU\n"));
  for (const std::string& line : lines(text)) EXPECT_EQ(line[0], '#');
}

TEST(Table, BannerNamesEveryGpu) {
  const std::vector<RankInfo> ranks{{0, 0, 17, "node1", "NVIDIA H200", 0, 0, "0000:17:00.0"},
                                    {1, 0, 18, "node1", "NVIDIA H200", 0, 3, "0000:9d:00.0"}};
  Options o;
  o.device = true;
  o.blocking = Blocking::stream;
  o.graph = 5;
  o.gpus = 2;
  o.events = true;
  const std::string text = banner(o, ranks, "0.1.0", "2026-01-01 00:00:00");
  EXPECT_THAT(text, HasSubstr("# nThread 1 nGpus 2 "));
  EXPECT_THAT(text, HasSubstr("graph: 5\n"));
  EXPECT_THAT(text,
              HasSubstr("all iterations in a graph, launched 5 times; time by events of the GPU: mean"));
  EXPECT_THAT(
      text, HasSubstr("#  Rank  1 Group  0 Pid     18 on      node1 device  3 [0000:9d:00.0] NVIDIA H200\n"));
}

TEST(Table, FooterAndExitCodeReportWrongResults) {
  const std::vector rows{sample_row()};
  Summary s = summarize(rows, 0);
  EXPECT_EQ(s.wrong, 7u);
  EXPECT_EQ(s.exit_code(), 1);
  EXPECT_THAT(footer({}, s), HasSubstr("# Out of bounds values : 7 FAILED\n"));
  std::vector good{sample_row()};
  good[0].in_place->wrong = 0;
  s = summarize(good, 0);
  EXPECT_EQ(s.exit_code(), 0);
  EXPECT_THAT(footer({}, s), HasSubstr("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 7.9"));
  EXPECT_THAT(footer({}, s), HasSubstr("# Collective test concluded: all_reduce_perf\n"));
  EXPECT_EQ(summarize(good, s.average_busbw / 0.91).exit_code(), 0);
  EXPECT_EQ(summarize(good, s.average_busbw / 0.89).exit_code(), 1);
}

TEST(Formats, CsvHasAsManyFieldsAsItsHeader) {
  for (const bool stats : {false, true})
    for (const bool both : {false, true}) {
      Options o;
      o.distribution = stats != both;
      o.output = Output::csv;
      o.iteration_stats = stats;
      o.timestamps = true;
      Row r = o.distribution ? distributed_row() : sample_row();
      r.timestamp = "now";
      if (stats) r.out_of_place.samples = r.in_place->samples = SampleStats{1, 2, 2, 3};
      if (!both) r.in_place.reset();
      const auto commas = [](const std::string& s) { return std::count(s.begin(), s.end(), ','); };
      EXPECT_EQ(commas(header(o)), commas(format_row(o, r)));
    }
}

TEST(Formats, OsuRowsBeginWithTheSize) {
  Options o;
  o.output = Output::osu;
  EXPECT_THAT(header(o), HasSubstr("# Size       Avg Latency(us)"));
  EXPECT_THAT(format_row(o, sample_row()), MatchesRegex("1048576 +100\\.25 +20\n"));
}

TEST(Samples, SummaryHasNearestRankPercentileAndDeviation) {
  std::vector<double> s;
  for (int i = 1; i <= 200; ++i) s.push_back(i);
  const SampleStats stats = summarize(s);
  EXPECT_EQ(stats.min, 1);
  EXPECT_EQ(stats.max, 200);
  EXPECT_EQ(stats.p99, 198);
  EXPECT_NEAR(stats.cv, 57.45, 0.01);
  EXPECT_EQ(summarize(std::vector<double>{5}).p99, 5);
  const double by_rank[] = {3, 1, 5};
  EXPECT_EQ(combine(by_rank, Average::rank0), 3);
  EXPECT_EQ(combine(by_rank, Average::mean), 3);
  EXPECT_EQ(combine(by_rank, Average::min), 1);
  EXPECT_EQ(combine(by_rank, Average::max), 5);
}

TEST(Json, HasTheKeysOfNcclTests) {
  Options o;
  o.ops = {OpKind::sum};
  o.dtypes = {DType::f32};
  o.args = {"ouro-perf", "all_reduce"};
  ::setenv("OURO_SECRET_KEY", "hush", 1);
  const std::vector rows{sample_row()};
  const std::vector<RankInfo> ranks{{0, 0, 17, "node1", "Some CPU"}};
  const std::string text = json_document(o, rows, summarize(rows, 0), {"a", "b", "0.1.0", ranks, 4, 0});
  ::unsetenv("OURO_SECRET_KEY");
  const auto j = nlohmann::json::parse(text);
  for (const char* key : {"start_time", "end_time", "args", "env", "nccl_version", "config", "results",
                          "out_of_bounds", "average_bus_bandwidth", "errors"})
    EXPECT_TRUE(j.contains(key)) << key;
  EXPECT_EQ(j["version"], 3);
  const auto& row = j["results"][0];
  EXPECT_EQ(row["size"], 1048576);
  EXPECT_EQ(row["count"], 262144);
  EXPECT_EQ(row["type"], "float");
  EXPECT_EQ(row["redop"], "sum");
  EXPECT_EQ(row["root"], -1);
  EXPECT_NEAR(row["out_of_place"]["time"], 100.25, 1e-9);
  EXPECT_NEAR(row["out_of_place"]["bus_bw"], 15.69, 0.01);
  EXPECT_EQ(row["in_place"]["nwrong"], 7);
  EXPECT_EQ(j["out_of_bounds"]["okay"], "false");
  EXPECT_EQ(j["average_bus_bandwidth"]["okay"], "true");
  EXPECT_THAT(text, Not(HasSubstr("hush")));
}

TEST(Json, DistributionHasItsKeys) {
  const std::vector rows{distributed_row()};
  const auto j =
      nlohmann::json::parse(json_document({}, rows, summarize(rows, 0), {"a", "b", "0", {}, 4, 0}));
  const auto& side = j["results"][0]["in_place"];
  EXPECT_EQ(side["min"], 12000);
  EXPECT_EQ(side["median"], 12345);
  EXPECT_EQ(side["p95"], 13000);
  EXPECT_EQ(side["maps"], 3);
  EXPECT_EQ(side["warmup"], 10);
  EXPECT_EQ(side["marked"], "true");
  EXPECT_EQ(j["results"][0]["out_of_place"]["marked"], "false");
}

TEST(Json, FilesAreNeverOverwritten) {
  using tools::reserve_file, tools::write_file;
  const auto dir = std::filesystem::temp_directory_path() / ("ouro-perf-test-" + std::to_string(::getpid()));
  std::filesystem::create_directory(dir);
  const std::string path = dir / "out.json";
  EXPECT_EQ(*reserve_file(path), path);
  EXPECT_EQ(*reserve_file(path), path + ".0");
  EXPECT_EQ(*reserve_file(path), path + ".1");
  EXPECT_TRUE(write_file(path, "{}").ok());
  EXPECT_EQ(std::filesystem::file_size(path), 2u);
  EXPECT_FALSE(reserve_file((dir / "missing" / "x").string()));
  std::filesystem::remove_all(dir);
}

TEST(Compare, RatiosAreOfTheRowsThatBothRunsHave) {
  std::vector rows{sample_row()};
  const std::string base = json_document({}, rows, summarize(rows, 0), {"then", "", "", {}, 4, 0});
  rows[0].out_of_place.us /= 2;
  rows.push_back(sample_row());
  rows[1].size = 8;
  const auto baseline = Baseline::parse(base, "base.json");
  ASSERT_TRUE(baseline) << baseline.status().message();
  const std::string text = baseline->compare(rows, 4);
  EXPECT_THAT(text, HasSubstr("base.json (then)"));
  EXPECT_THAT(text, HasSubstr("   float     sum      -1          2.00      1.00\n"));
  EXPECT_THAT(text, HasSubstr("1 rows: 2.00\n# Without a partner: 1 rows\n"));
  EXPECT_THAT(text, Not(HasSubstr("ranks; these are")));
  EXPECT_THAT(baseline->compare(rows, 8), HasSubstr("# It is a result of 4 ranks; these are 8.\n"));
  EXPECT_TRUE(baseline->check("all_reduce"));
  EXPECT_THAT(baseline->check("all_gather").message(),
              HasSubstr("base.json: it is a result of all_reduce, this run is of all_gather"));
  const auto other = Baseline::parse(R"({"config":{"collective":"AllGather"},"results":[]})", "nccl.json");
  ASSERT_TRUE(other) << other.status().message();
  EXPECT_TRUE(other->check("all_gather"));
  EXPECT_FALSE(Baseline::parse(R"({"config":{"collective":1},"results":[]})", "x"));
  EXPECT_FALSE(Baseline::parse("{}", "x"));
  EXPECT_FALSE(Baseline::parse("[", "x"));
  EXPECT_FALSE(Baseline::parse(R"({"results":[{"size":"big"}]})", "x"));
  EXPECT_FALSE(Baseline::read("/does/not/exist"));
}

TEST(Verdict, RelatesTheBestBandwidthToTheMemoryLimit) {
  std::vector rows{sample_row()};
  rows[0].in_place->wrong = 0;
  // 2 * 4 ranks * 1 MiB in 100.25 us: 83.7 GB/s.
  const std::string text = verdict({}, rows, summarize(rows, 0), {100, 1 << 20, 4, 1, 2, 0.5});
  EXPECT_THAT(text, HasSubstr("Results: right."));
  EXPECT_THAT(text, HasSubstr("best bus bandwidth 15.69 GB/s (1 MiB of float sum, out of place)"));
  EXPECT_THAT(text, HasSubstr("83.7 GB/s"));
  EXPECT_THAT(text, HasSubstr("84 % of the 100.0 GB/s"));
  EXPECT_THAT(text, HasSubstr("do not trust"));
  rows[0].in_place->wrong = 3;
  EXPECT_THAT(verdict({}, rows, summarize(rows, 0), {}), HasSubstr("Results: WRONG. 3 elements"));
}

TEST(Limit, IsTheTimeOfACopyInsideTheGpu) {
  // 2 * 4 ranks * 1 MiB at 4000 GB/s: 2.10 us.
  const Ceiling ceiling{.copy_gbs = 4000, .copy_bytes = 1 << 30, .group_size = 4, .gpus = 1};
  std::vector rows{sample_row()};
  rows[0].in_place.reset();
  const std::string text = limit_lines({}, rows, ceiling);
  EXPECT_THAT(text, HasSubstr("# Limit: 4000.0 GB/s that copies inside 1 GPU reached of 1 GiB"));
  EXPECT_THAT(text, MatchesRegex("(.|\n)*\n# +1048576 +float +sum +8388608 +2\\.10 +2\\.1 % +N/A\n"));
  for (const std::string& line : lines(text)) EXPECT_EQ(line[0], '#');
  EXPECT_THAT(verdict({}, rows, summarize(rows, 0), ceiling),
              HasSubstr("2 % of the 4000.0 GB/s that copies inside 1 GPU reached of 1 GiB"));
}

/// A plot of `n` series over the sizes 8 and 1 MiB; `last` is the ratio of the bandwidths of the large and
/// the small size.
std::string plot_of(int n, double last) {
  std::vector<Row> rows;
  for (int k = 0; k < n; ++k)
    for (const bool large : {false, true}) {
      Row& r = rows.emplace_back(sample_row());
      r.in_place.reset();
      r.type = "type" + std::to_string(k);
      r.size = large ? 1 << 20 : 8;
      r.out_of_place.busbw = (1 + k) * (large ? last : 1);
    }
  return plot_svg({}, rows);
}

TEST(Verdict, WideRangesArePlottedOnALogarithmicAxis) {
  EXPECT_THAT(plot_of(1, 1000), HasSubstr("bus bandwidth (GB/s) (log)"));
  EXPECT_THAT(plot_of(1, 10), Not(HasSubstr("(log)")));
}

TEST(Verdict, PlotNamesOnlyTheFastestLines) {
  const std::string svg = plot_of(300, 2);
  EXPECT_THAT(svg, HasSubstr(">276 others<"));
  EXPECT_THAT(svg, HasSubstr(">type299 ")) << "the fastest has its name";
  EXPECT_THAT(svg, Not(HasSubstr(">type0 ")));
  double height = 0;
  ASSERT_EQ(std::sscanf(svg.c_str() + svg.find("height="), "height=\"%lf", &height), 1);
  EXPECT_LT(height, 700);
}

TEST(Verdict, OneEmptyRowIsPlottedWithoutNan) {
  EXPECT_THAT(plot_svg({}, std::vector{sample_row()}), HasSubstr("float sum, in place</text>"));
  Row empty = sample_row();
  empty.size = 0;
  EXPECT_THAT(plot_svg({}, std::vector{empty}), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace ouro::perf
