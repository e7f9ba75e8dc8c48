// The programs as users run them: ouro-run with ouro-train, ranks as processes, losses read from the JSON
// files.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;

/// Runs a job of `ranks` processes and reads what rank 0 wrote.
nlohmann::json train(int ranks, const std::string& options) {
  std::string directory = fs::temp_directory_path() / "ouro-train-XXXXXX";
  EXPECT_NE(::mkdtemp(directory.data()), nullptr);
  const std::string file = directory + "/report.json";
  const std::string command = fmt::format("timeout 60 {} -n {} {} digits --quiet {} --json {} > {}/out 2>&1",
                                          OURO_RUN, ranks, OURO_TRAIN, options, file, directory);
  const int status = std::system(command.c_str());
  std::ifstream out(directory + "/out");
  EXPECT_EQ(status, 0) << command << '\n' << out.rdbuf();
  std::ifstream json(file);
  nlohmann::json report = nlohmann::json::parse(json, nullptr, false);
  fs::remove_all(directory);
  EXPECT_FALSE(report.is_discarded());
  return report;
}

void expect_close(const nlohmann::json& a, const nlohmann::json& b, double tolerance) {
  ASSERT_EQ(a.at("losses").size(), b.at("losses").size());
  for (std::size_t t = 0; t < a.at("losses").size(); ++t)
    ASSERT_LE(std::abs(a["losses"][t].get<double>() - b["losses"][t].get<double>()), tolerance)
        << "step " << t;
}

TEST(TrainProcesses, FourRanksTrainAsOneDoes) {
  const auto one = train(1, "--steps 200"), four = train(4, "--steps 200"), again = train(4, "--steps 200");
  ASSERT_EQ(one.at("losses").size(), 200u);
  EXPECT_EQ(four.at("ranks"), 4);
  EXPECT_GT(four.at("accuracy").get<double>(), 0.92);
  expect_close(one, four, 1e-5);
  EXPECT_EQ(four.at("losses"), again.at("losses"));
}

TEST(TrainProcesses, CanonicalDouble) {
  const std::string options = "--steps 200 --numerics canonical --dtype f64";
  expect_close(train(1, options), train(4, options), 1e-12);
}

}  // namespace
