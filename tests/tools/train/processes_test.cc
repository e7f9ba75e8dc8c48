// The program as users run it: every strategy with both models and every optimiser, its files, and failures.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/tools/train/programs.h"

namespace ouro::test {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

void expect_close(const json& a, const json& b, double tolerance) {
  ASSERT_EQ(a.at("losses").size(), b.at("losses").size());
  for (std::size_t t = 0; t < a.at("losses").size(); ++t)
    ASSERT_LE(std::abs(a["losses"][t].get<double>() - b["losses"][t].get<double>()), tolerance)
        << "step " << t;
}

TEST(TrainProcesses, FourRanksTrainAsOneDoes) {
  const auto one = report_of(1, "digits --steps 200"), four = report_of(4, "digits --steps 200"),
             again = report_of(4, "digits --steps 200");
  ASSERT_EQ(one.at("losses").size(), 200u);
  EXPECT_EQ(four.at("ranks"), 4);
  EXPECT_GT(four.at("accuracy").get<double>(), 0.92);
  expect_close(one, four, 1e-5);
  EXPECT_EQ(four.at("losses"), again.at("losses"));
}

TEST(TrainProcesses, CanonicalDoubleMatchesOneRankClosely) {
  const std::string options = "digits --steps 200 --numerics canonical --dtype f64";
  expect_close(report_of(1, options), report_of(4, options), 1e-12);
}

TEST(TrainProcesses, ShardsAndReplicasTrainAsOneRankDoes) {
  for (const char* model : {"digits --steps 60", "charlm --steps 12 --batch 16"}) {
    const json one = report_of(1, fmt::format("{} --strategy ddp --dtype f64", model));
    for (const char* how : {"ddp", "ddp --bucket-mb 0.01", "fsdp", "fsdp --shards 2", "fsdp --bucket-mb 0"})
      expect_close(report_of(4, fmt::format("{} --strategy {} --dtype f64", model, how)), one, 1e-10);
  }
}

TEST(TrainProcesses, EveryStrategyLearnsWithEveryOptimiser) {
  for (const char* strategy :
       {"ddp", "fsdp", "federated --sites 2,1", "diloco --delta bf16", "decentralised"})
    for (const char* optimizer : {"sgd", "adam", "adamw", "accum_adam", "accum_adamw"})
      for (const char* model : {"digits --steps 40", "charlm --steps 16 --batch 6 --schedule constant"}) {
        const json r =
            report_of(3, fmt::format("{} --strategy {} --optimizer {}", model, strategy, optimizer));
        EXPECT_EQ(r.at("optimizer"), optimizer);
        EXPECT_LT(r["losses"].back().get<double>(), 0.95 * r["losses"].front().get<double>())
            << strategy << ' ' << optimizer << ' ' << model;
      }
}

TEST(TrainProcesses, RatesAndDecaysReachTheOptimiser) {
  const json r = report_of(1, "digits --steps 30 --lr 0.01 --schedule cosine");
  EXPECT_EQ(r["rates"][10], 0.01);  // after ten steps of warm-up
  EXPECT_LT(r["rates"][29].get<double>(), r["rates"][11].get<double>());
  const std::string few = "digits --steps 20 --dtype f64 --strategy ";
  for (const std::string strategy : {"ddp", "fsdp", "federated", "decentralised"}) {
    const json plain = report_of(2, few + strategy + " --optimizer accum_adamw");
    for (const char* other : {"--lr 1e-4", "--weight-decay 3", "--accum 1", "--decay upstream-inverted",
                              "--seed 5", "--batch 10"})
      EXPECT_NE(report_of(2, few + strategy + " --optimizer accum_adamw " + other).at("losses"),
                plain.at("losses"))
          << strategy << ' ' << other;
    EXPECT_NE(report_of(2, few + strategy + " --optimizer sgd --momentum 0").at("losses"),
              report_of(2, few + strategy + " --optimizer sgd").at("losses"));
  }
}

TEST(TrainProcesses, SitesAgreeOnlyAfterEachRound) {
  const json r = report_of(3, "digits --strategy federated --sites 2,1 --local-steps 4 --steps 12");
  EXPECT_EQ(r.at("sites"), json({2, 1}));
  EXPECT_EQ(r.at("rounds"), 3);
  for (std::size_t t = 0; t < 12; ++t)
    EXPECT_EQ(r["consensus"][t].get<double>() < 1e-6, (t + 1) % 4 == 0) << "step " << t;
  EXPECT_EQ(report_of(3, "digits --strategy diloco --sites 3 --steps 5").at("sites"), json({1, 1, 1}));
}

TEST(TrainProcesses, CurvesHoldTheValuesOfTheReport) {
  const Scratch scratch;
  const json r =
      report_of(2, fmt::format("digits --strategy decentralised --network mlp --steps 12 --csv {} --plot {}",
                               scratch / "a.csv", scratch / "a.svg"));
  std::istringstream csv(text_of(scratch / "a.csv"));
  std::string line;
  std::getline(csv, line);
  EXPECT_EQ(line, "step,loss,consensus,lr");
  for (std::size_t t = 0; t < 12; ++t) {
    std::getline(csv, line);
    EXPECT_EQ(line, fmt::format("{},{},{},{}", t + 1, r["losses"][t].get<double>(),
                                r["consensus"][t].get<double>(), r["rates"][t].get<double>()));
  }
  EXPECT_FALSE(std::getline(csv, line));
  const std::string svg = text_of(scratch / "a.svg");
  for (const char* part : {"<svg", "digits: 2 ranks, decentralised, ring", ">step<", ">loss<",
                           ">consensus distance (log)<", "<polyline", "</svg>"})
    EXPECT_THAT(svg, HasSubstr(part));
  report_of(1, fmt::format("digits --steps 3 --csv {}", scratch / "b.csv"));
  EXPECT_THAT(text_of(scratch / "b.csv"), ContainsRegex("^step,loss,lr\n1,[0-9.]+,0.2\n"));
}

TEST(TrainProcesses, FailedRunKeepsOldFilesAndItsLosses) {
  const Scratch scratch;
  const std::string csv = scratch / "a.csv", report = scratch / "a.json";
  const std::string run = fmt::format("digits --steps 30 --csv {} --json {} ", csv, report);
  for (const std::string& file : {csv, report}) std::ofstream(file) << "old";
  const auto expect_kept = [&](const Outcome& o) {
    EXPECT_NE(o.exit, 0) << o.text;
    EXPECT_EQ(text_of(csv) + text_of(report), "oldold");
    EXPECT_THAT(text_of(csv + ".part"), ContainsRegex("^step,loss,lr\n1,[0-9.]+,[0-9.e+]+\n"));
    fs::remove(csv + ".part");
  };
  const Outcome diverged = train(2, run + "--lr 1e300");
  EXPECT_THAT(diverged.text, HasSubstr(fmt::format("are in {}.part", csv)));
  expect_kept(diverged);
  expect_kept(train(2, run, "OURO_FAULT=kill:rank=0,op=60"));
  EXPECT_EQ(train(2, run).exit, 0);
  EXPECT_THAT(text_of(csv), HasSubstr("\n30,"));
  EXPECT_TRUE(json::parse(text_of(report), nullptr, false).contains("losses"));
  EXPECT_FALSE(fs::exists(csv + ".part") || fs::exists(report + ".part"));
}

/// Every rank must end, with this exit code and this text in the output.
void expect_failure(int exit, const std::string& words, int ranks, const std::string& options,
                    const std::string& environment = "") {
  const Outcome o = train(ranks, options, environment, 30);
  EXPECT_EQ(o.exit, exit) << options << '\n' << o.text;
  EXPECT_THAT(o.text, HasSubstr(words)) << options;
}

TEST(TrainProcesses, WrongCommandLinesFailTheJob) {
  expect_failure(2, "--strategy: gossip not in", 2, "digits --strategy gossip");
  expect_failure(2, "--momentum has no meaning with --optimizer adam", 2,
                 "digits --optimizer adam --momentum 0.5");
  expect_failure(2, "expected a number of sites", 3, "digits --strategy federated --sites 2,");
}

TEST(TrainProcesses, OptionsThatDoNotFitTheJobFailIt) {
  const Scratch scratch;
  expect_failure(1, "one-peer-exp", 3, "digits --strategy decentralised --topology one-peer-exp");
  expect_failure(1, "--sites 4,2: 6 ranks, but the job has 3", 3, "digits --strategy federated --sites 4,2");
  expect_failure(1, "--sites 4: expected 1 to 3", 3, "charlm --strategy diloco --sites 4");
  expect_failure(1, "--shards 2: does not divide the 3 ranks", 3, "digits --strategy fsdp --shards 2");
  expect_failure(1, "rank 0 has no GPU", 2, "digits --device cuda", "OURO_FAKE_GPUS=0");
  expect_failure(1, "OURO_DATA_DIR", 2, "charlm --steps 2", "OURO_DATA_DIR=" + (scratch / "none"));
  expect_failure(1, "--csv /nonexistent/a.csv: cannot be written", 2, "digits --csv /nonexistent/a.csv");
  expect_failure(1, "--plot /nonexistent/a.svg: cannot be written", 2, "charlm --plot /nonexistent/a.svg");
  expect_failure(1, "--json /nonexistent/a.json: cannot be written", 2, "charlm --json /nonexistent/a.json");
}

TEST(TrainProcesses, RanksWithOtherOptionsAreNamed) {
  const Outcome o =
      run(3, fmt::format("sh -c 'exec {} digits --steps $((5 + RANK / 2))'", OURO_TRAIN), "", 30);
  EXPECT_EQ(o.exit, 1) << o.text;
  for (const char* rank : {"[0]", "[1]", "[2]"})
    EXPECT_THAT(o.text,
                HasSubstr(fmt::format("{} ouro: invalid: rank 2 was given other options than rank 0", rank)));
}

}  // namespace
}  // namespace ouro::test
