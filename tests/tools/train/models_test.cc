// Tests of tools/models: the digits split, the parser's errors, the perceptron against finite differences and
// against recorded federated training, all networks behind their interface.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <tuple>

#include "tests/golden_data.h"
#include "tools/models/digits.h"
#include "tools/models/mlp.h"
#include "tools/models/network.h"

namespace ouro::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Digits& digits() {
  static const Digits set = [] {
    Result<Digits> loaded = load_digits();
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return loaded ? std::move(*loaded) : Digits{};
  }();
  return set;
}

/// A well-formed text of all-zero images, with row `row` replaced.
std::string text_with_row(std::uint32_t row, const std::string& line) {
  std::string zeros, text;
  for (int i = 0; i < Digits::kPixels; ++i) zeros += "0,";
  for (std::uint32_t i = 0; i < Digits::kRows; ++i) text += (i == row ? line : zeros + "0") + "\n";
  return text;
}

TEST(Digits, SplitIsTheRecordedOne) {
  const auto order = lcg_permutation(Digits::kRows, 12345);
  EXPECT_THAT(std::span(order).first(5), ElementsAre(20, 1350, 276, 1614, 896));
  const auto labels = std::span(digits().labels);
  ASSERT_EQ(labels.size(), Digits::kRows);
  EXPECT_THAT(labels.first(8), ElementsAre(0, 3, 0, 5, 5, 1, 4, 5));
  EXPECT_THAT(labels.subspan(Digits::kTrainRows, 4), ElementsAre(4, 8, 0, 8));
  const double sum = std::accumulate(digits().pixels.begin(), digits().pixels.end(), 0.0);
  EXPECT_EQ(sum * 16, 561718);
}

TEST(Digits, PermutationContainsEveryIndexOnce) {
  auto order = lcg_permutation(1437, 7);
  std::sort(order.begin(), order.end());
  for (std::uint32_t i = 0; i < order.size(); ++i) ASSERT_EQ(order[i], i);
  EXPECT_TRUE(lcg_permutation(0, 1).empty());
  EXPECT_THAT(lcg_permutation(1, 1), ElementsAre(0));
}

TEST(Digits, ParserErrorNamesRowColumnAndValue) {
  const auto error = [](const std::string& text) {
    const Result<Digits> r = parse_digits(text, "toy.csv");
    EXPECT_EQ(r.status().code(), Code::invalid);
    return r.status().failure() ? r.status().failure()->text : "";
  };
  std::string zeros;
  for (int i = 0; i < Digits::kPixels; ++i) zeros += "0,";
  EXPECT_TRUE(parse_digits(text_with_row(5, zeros + "9"), "toy.csv").ok());
  EXPECT_TRUE(parse_digits(text_with_row(5, zeros + "9\r"), "toy.csv").ok());
  EXPECT_EQ(error(text_with_row(6, "0,17," + zeros.substr(4) + "1")),
            "toy.csv: row 7, column 2: expected a pixel 0..16, found \"17\"");
  EXPECT_THAT(error(text_with_row(0, "0,x," + zeros.substr(4) + "1")), HasSubstr("row 1, column 2"));
  EXPECT_THAT(error(text_with_row(0, "0,," + zeros.substr(4) + "1")), HasSubstr("found \"\""));
  EXPECT_THAT(error(text_with_row(3, zeros + "10")),
              HasSubstr("column 65: expected a label 0..9, found \"10\""));
  EXPECT_THAT(error(text_with_row(3, zeros + "-1")), HasSubstr("found \"-1\""));
  EXPECT_THAT(error(text_with_row(3, zeros + "1,1")), HasSubstr("expected 65 columns, found more"));
  EXPECT_THAT(error(text_with_row(3, "0,0")), HasSubstr("row 4, column 2: the row ends here"));
  EXPECT_THAT(error("0,0\n"), HasSubstr("row 1"));
  EXPECT_THAT(error(""), HasSubstr("expected 1797 rows, found 0"));
  EXPECT_THAT(error(text_with_row(0, zeros + "1") + zeros + "1\n"), HasSubstr("rows, found more"));
}

TEST(Digits, GivenDataDirectoryHasNoFallback) {
  ::setenv("OURO_DATA_DIR", "/nonexistent", 1);
  const Result<Digits> r = load_digits();
  ::unsetenv("OURO_DATA_DIR");
  ASSERT_FALSE(r.ok());
  EXPECT_THAT(r.status().failure()->text, HasSubstr("/nonexistent/digits.csv"));
}

TEST(Mlp, GradientMatchesFiniteDifferences) {
  const std::vector<std::uint32_t> rows = {0, 17, 400};
  std::vector<double> p = mlp_initial_parameters<double>(), gradient(Mlp::kParameters),
                      unused(Mlp::kParameters);
  mlp_add_gradients<double>(digits(), rows, p, gradient);
  const double h = 1e-6;
  for (std::size_t i = 0; i < p.size(); i += 7) {
    const double at = p[i];
    p[i] = at + h;
    const double above = mlp_add_gradients<double>(digits(), rows, p, unused);
    p[i] = at - h;
    const double below = mlp_add_gradients<double>(digits(), rows, p, unused);
    p[i] = at;
    ASSERT_NEAR(gradient[i], (above - below) / (2 * h), 2e-8) << "parameter " << i;
  }
}

TEST(Mlp, GradientsAreSumsOverRows) {
  const std::vector<std::uint32_t> both = {3, 8}, first = {3}, second = {8};
  const std::vector<float> p = mlp_initial_parameters<float>();
  std::vector<double> together(Mlp::kParameters), apart(Mlp::kParameters);
  const double loss = mlp_add_gradients<float>(digits(), both, p, together);
  const double l1 = mlp_add_gradients<float>(digits(), first, p, apart);
  const double l2 = mlp_add_gradients<float>(digits(), second, p, apart);
  EXPECT_EQ(loss, l1 + l2);
  EXPECT_EQ(together, apart);
  EXPECT_EQ(mlp_add_gradients<float>(digits(), {}, p, apart), 0);
}

TEST(Network, AllThreeNetworksServeOneInterface) {
  for (const auto& [kind, samples, tested] : {std::tuple{NetworkKind::mlp, 1437u, true},
                                              {NetworkKind::cnn, 1437u, true},
                                              {NetworkKind::text, 35116u, false}}) {
    auto made = make_network(kind);
    ASSERT_TRUE(made.ok()) << made.status().message();
    Network& n = **made;
    EXPECT_EQ(n.samples(), samples);
    const std::vector<Tensor> tensors = n.tensors();
    std::vector<int> order = n.ready_order();
    std::sort(order.begin(), order.end());
    std::vector<std::vector<double>> values, first, second;
    std::vector<const double*> p;
    std::vector<double*> g, h;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(order.at(i), static_cast<int>(i));
      values.push_back(initial_values(tensors[i], i));
      first.emplace_back(values[i].size()), second.emplace_back(values[i].size());
    }
    for (std::size_t i = 0; i < tensors.size(); ++i)
      p.push_back(values[i].data()), g.push_back(first[i].data()), h.push_back(second[i].data());
    const std::vector<std::uint32_t> some = {3, samples - 1};
    const double loss = n.train(p, some, g);
    EXPECT_GT(loss, 1);
    EXPECT_EQ(n.train(p, some, h), loss);
    n.train(p, some, h);  // gradients are added, not replaced
    for (std::size_t i = 0; i < first.size(); ++i)
      for (std::size_t k = 0; k < first[i].size(); ++k) ASSERT_NEAR(second[i][k], 2 * first[i][k], 1e-12);

    const Network::Score whole = n.test(p, 0, 1);
    EXPECT_EQ(whole.rows, tested ? 360 : 0);
    Network::Score sum;
    for (std::uint32_t part = 0; part < 7; ++part) {
      const Network::Score s = n.test(p, part, 7);
      sum.loss += s.loss, sum.correct += s.correct, sum.rows += s.rows;
    }
    EXPECT_EQ(sum.rows, whole.rows);
    EXPECT_EQ(sum.correct, whole.correct);
    EXPECT_NEAR(sum.loss, whole.loss, 1e-9);
  }
}

TEST(Network, RefusesATextThatIsTooShort) {
  std::string directory = std::filesystem::temp_directory_path() / "ouro-models-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  std::ofstream(directory + "/GPL-3.txt") << std::string(33, 'x');
  ::setenv("OURO_DATA_DIR", directory.c_str(), 1);
  const Status s = make_network(NetworkKind::text).status();
  ::unsetenv("OURO_DATA_DIR");
  std::filesystem::remove_all(directory);
  EXPECT_EQ(s.code(), Code::invalid);
  ASSERT_NE(s.failure(), nullptr);
  EXPECT_THAT(s.failure()->text, HasSubstr("expected 34 to"));
}

/// Replays recorded federated training serially: `sites[s]` ranks at site s, with an average over sites every
/// k steps.
void replay(const nlohmann::json& recorded, const std::vector<int>& sites, int k_steps) {
  struct Site {
    std::vector<double> p = mlp_initial_parameters<double>(),
                        momentum = std::vector<double>(Mlp::kParameters);
  };
  const auto close = [](double got, double want, std::size_t t) {
    const double relative = t <= 10 ? 1e-10 : 1e-8;
    EXPECT_NEAR(got, want, std::abs(want) < 1e-4 ? 1e-12 : relative * std::abs(want)) << "step " << t;
  };
  std::vector<Site> state(sites.size());
  const auto f = static_cast<std::uint32_t>(sites.size());
  const auto& trajectory = recorded.at("trajectory");
  for (std::size_t t = 0; t < trajectory.size(); ++t) {
    std::size_t rank = 0;
    for (std::uint32_t s = 0; s < f; ++s) {
      const std::uint32_t owned = (Digits::kTrainRows - s + f - 1) / f;
      const auto n = static_cast<std::size_t>(sites[s]);
      std::vector<double> mean(Mlp::kParameters);
      for (std::size_t q = 0; q < n; ++q, ++rank) {
        std::vector<std::uint32_t> rows;
        for (std::size_t k = 0; k < 8; ++k)
          rows.push_back(s + f * static_cast<std::uint32_t>(((t * n + q) * 8 + k) % owned));
        std::vector<double> gradient(Mlp::kParameters);
        const double loss = mlp_add_gradients<double>(digits(), rows, state[s].p, gradient) / 8;
        close(loss, trajectory[t][0][rank].get<double>(), t);
        for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += gradient[i] / 8 / static_cast<double>(n);
      }
      for (std::size_t i = 0; i < mean.size(); ++i) {
        state[s].momentum[i] = 0.9 * state[s].momentum[i] + mean[i];
        state[s].p[i] -= 0.2 * state[s].momentum[i];
      }
    }
    if ((t + 1) % static_cast<std::size_t>(k_steps) == 0)
      for (std::size_t i = 0; i < Mlp::kParameters; ++i) {
        double sum = 0;
        for (const Site& site : state) sum += site.p[i];
        for (Site& site : state) site.p[i] = sum / f;
      }
    rank = 0;
    for (std::uint32_t s = 0; s < f; rank += static_cast<std::size_t>(sites[s++])) {
      double square = 0, sum = 0;
      for (const double x : state[s].p) square += x * x, sum += x;
      close(std::sqrt(square), trajectory[t][1][rank].get<double>(), t);
      close(sum, trajectory[t][2][rank].get<double>(), t);
    }
    if (::testing::Test::HasFailure()) return;  // after one wrong step all later ones are wrong
  }
  std::size_t rank = 0;
  for (std::uint32_t s = 0; s < f; rank += static_cast<std::size_t>(sites[s++])) {
    int correct = 0;
    for (std::uint32_t row = Digits::kTrainRows; row < Digits::kRows; ++row)
      correct += mlp_predict<double>(digits(), row, state[s].p) == digits().labels[row];
    EXPECT_NEAR(correct / double{Digits::kTestRows}, recorded.at("test_acc_per_rank")[rank].get<double>(),
                1e-9);
  }
}

TEST(MlpGolden, ReplaysRecordedFederatedTraining) {
  test::CasesRun cases{"federated digits, serially"};
  test::for_each_run("xffl_federated_digits.json", [&](int, const std::string& name, const auto& recorded) {
    test::NameParts parts(name);  // "[2, 2]/K5"
    const auto sites = nlohmann::json::parse(parts.first()).template get<std::vector<int>>();
    const int every = parts.required("K");
    parts.expect_none_left();
    cases.add("federated digits, serially");
    replay(recorded, sites, every);
  });
}

}  // namespace
}  // namespace ouro::models
