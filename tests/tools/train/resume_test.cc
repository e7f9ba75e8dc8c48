// A run in two halves equals the run in one piece, for every strategy; files that do not fit are refused by
// all ranks.
#include <gmock/gmock.h>

#include "tests/tools/train/programs.h"

namespace ouro::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

void expect_same_in_halves(int ranks, const std::string& options) {
  const Scratch scratch;
  const json whole = report_of(ranks, options + " --steps 12");
  const json first =
      report_of(ranks, fmt::format("{} --steps 12 --stop-after 6 --save {}", options, scratch / "s"));
  const json second = report_of(ranks, fmt::format("{} --steps 12 --resume {}", options, scratch / "s"));
  ASSERT_EQ(whole.at("losses").size(), 12u);
  EXPECT_EQ(first.at("losses").size(), 6u);
  EXPECT_EQ(second.at("first_step"), 6);
  for (const char* curve : {"losses", "consensus", "rates"}) {
    if (!whole.contains(curve)) continue;
    json both = first.at(curve);
    for (const json& x : second.at(curve)) both.push_back(x);
    EXPECT_EQ(both, whole.at(curve)) << options << ", " << curve;
  }
  if (whole.contains("test_loss")) {
    EXPECT_EQ(second.at("test_loss"), whole["test_loss"]) << options;
  }
}

TEST(Resume, ContinuesBitForBit) {
  const std::string digits = "digits --network cnn --optimizer accum_adamw --strategy ";
  for (const char* strategy :
       {"ddp", "fsdp", "fsdp --shards 2", "decentralised --topology base-k",
        "federated --sites 2 --local-steps 3", "federated --server adam --local-steps 3",
        "diloco --local-steps 2 --delta int8"})
    expect_same_in_halves(4, digits + strategy);
  for (const char* strategy : {"fsdp", "decentralised", "diloco --local-steps 2"})
    expect_same_in_halves(2, std::string("charlm --strategy ") + strategy);
  expect_same_in_halves(3, "digits");
}

class Refusal : public ::testing::Test {
 protected:
  void SetUp() override {
    const Outcome o = train(2, fmt::format("{} --save {}", kRun, stem_));
    ASSERT_EQ(o.exit, 0) << o.text;
  }
  /// All ranks must end, and one reports why.
  void expect_refused(const std::string& words, const std::string& options, int ranks = 2) {
    const Outcome o = train(ranks, fmt::format("{} --quiet --resume {}", options, stem_), "", 30);
    EXPECT_EQ(o.exit, 1) << options << '\n' << o.text;
    EXPECT_THAT(o.text, HasSubstr(words)) << options;
  }
  void overwrite(const std::string& file, const std::string& text) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
  }

  static constexpr const char* kRun =
      "digits --strategy decentralised --network mlp --steps 8 --stop-after 4";
  const Scratch scratch_;
  const std::string stem_ = scratch_ / "state", second_ = stem_ + ".rank1";
};

TEST_F(Refusal, StateOfAnotherRunIsRefused) {
  const std::string base = "digits --strategy decentralised --network mlp --steps 8";
  expect_refused("another run: strategy was \"decentralised\" and is \"fsdp\"", "digits --strategy fsdp");
  expect_refused("another run: model was \"digits\" and is \"charlm\"", "charlm");
  expect_refused("another run: optimizer was", base + " --optimizer sgd");
  expect_refused("another run: topology was \"ring\" and is \"complete\"", base + " --topology complete");
  expect_refused("another run: steps was 8 and is 9",
                 "digits --strategy decentralised --network mlp --steps 9");
  expect_refused("another run: seed was 0 and is 3", base + " --seed 3");
  expect_refused("another run: ranks was 2 and is 1", base, 1);
  expect_refused("it is at step 4, the last one is 4", base + " --stop-after 4");
}

TEST_F(Refusal, DamagedStateIsRefused) {
  const std::string base = "digits --strategy decentralised --network mlp --steps 8", good = text_of(second_);
  ASSERT_GT(good.size(), 1000u);
  for (const std::size_t length : {std::size_t{0}, std::size_t{10}, good.find('\n') + 1, good.size() - 1}) {
    overwrite(second_, good.substr(0, length));
    expect_refused("damaged", base);
  }
  // Also in the heading and in a value there: this must not be reported as "another run".
  for (const std::size_t at : {std::size_t{1}, good.find("\"lr\":") + 7, good.find("\"seed\":") + 7,
                               good.find("\"topology\":\"") + 13, good.find('\n') + 100, good.size() - 1}) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    overwrite(second_, bad);
    expect_refused("damaged", base);
  }
  const std::string version = "\"ouro-train state\":4";
  ASSERT_NE(good.find(version), std::string::npos);
  std::string older = good;
  older.replace(good.find(version), version.size(), "\"ouro-train state\":1");
  overwrite(second_, older);
  expect_refused("damaged: its version", base);
  overwrite(second_, text_of(stem_ + ".rank0"));
  expect_refused("another run: rank was 0 and is 1", base);
  fs::remove(second_);
  expect_refused("cannot be read", base);
  expect_refused("rank 1 cannot continue, and prints the reason", base);
}

/// The numerical contract in force must match, however it was chosen; the device on which the run resumes
/// need not.
TEST(Resume, NumericsMustMatchButTheDeviceMayDiffer) {
  const Scratch scratch;
  const std::string n = scratch / "n", canonical = "OURO_NUMERICS=canonical", json_file = scratch / "j";
  const auto go_on = [&](const std::string& options, const std::string& environment = "") {
    return train(2, fmt::format("digits --steps 6 --quiet --resume {} {}", n, options), environment, 30);
  };
  for (const std::string strategy : {"ddp", "federated --local-steps 3", "decentralised --network mlp"}) {
    const std::string how = "--strategy " + strategy;
    ASSERT_EQ(train(2, fmt::format("digits --steps 6 --stop-after 3 --save {} {}", n, how), canonical).exit,
              0);
    const Outcome other = go_on(how, "OURO_NUMERICS=fast");
    EXPECT_EQ(other.exit, 1) << other.text;
    EXPECT_THAT(other.text, HasSubstr(R"(another run: numerics was "canonical" and is "fast")"));
    EXPECT_EQ(go_on(how, canonical).exit, 0) << how;
    if (strategy.starts_with("dec")) continue;
    const Outcome same = go_on(fmt::format("{} --numerics canonical --json {}", how, json_file));
    EXPECT_EQ(same.exit, 0) << same.text;
    EXPECT_EQ(json::parse(text_of(json_file)).at("numerics"), "canonical");
    EXPECT_EQ(go_on(how + " --numerics fast", canonical).exit, 1) << how;
  }
  ASSERT_EQ(train(2, fmt::format("digits --steps 6 --stop-after 3 --save {}", n)).exit, 0);
  const Outcome device = go_on("--device cuda", "OURO_FAKE_GPUS=1");
  EXPECT_EQ(device.exit, 0) << device.text;
}

TEST(Resume, DifferentStepsAndUnfinishedRoundsAreRefused) {
  const Scratch scratch;
  const std::string run = "digits --steps 8", a = scratch / "a", b = scratch / "b";
  ASSERT_EQ(train(2, fmt::format("{} --stop-after 3 --save {}", run, a)).exit, 0);
  ASSERT_EQ(train(2, fmt::format("{} --stop-after 4 --save {}", run, b)).exit, 0);
  fs::copy_file(b + ".rank1", a + ".rank1", fs::copy_options::overwrite_existing);
  Outcome o = train(2, fmt::format("{} --resume {}", run, a), "", 30);
  EXPECT_EQ(o.exit, 1);
  EXPECT_THAT(o.text, HasSubstr("it is at step 4, rank 0's file at 3"));
  o = train(2, fmt::format("digits --strategy federated --local-steps 5 --steps 8 --save {}", a), "", 30);
  EXPECT_EQ(o.exit, 2);
  EXPECT_THAT(o.text, HasSubstr("must be a multiple of --local-steps, 5"));
  o = train(2, fmt::format("{} --save /nonexistent/a", run), "", 30);
  EXPECT_EQ(o.exit, 1);
  EXPECT_THAT(o.text, HasSubstr("--save /nonexistent/a.rank0: cannot be written"));
}

}  // namespace
}  // namespace ouro::test
