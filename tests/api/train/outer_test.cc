// Outer optimisers compared with the formulas, computed serially.
#include "ouro/train/outer.hpp"

#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <memory>
#include <thread>

#include "tests/api/train/arrays.h"
#include "tests/api/train/federation_cases.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::train {
namespace {

using test::numbers;
using test::run_threads;

/// A serial federation of two sites: x_o, and the rule of the server, one element at a time.
template <class Rule>
std::vector<double> serial(std::vector<double> x, int rounds, Rule&& rule) {
  for (int t = 0; t < rounds; ++t)
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double mean = (test::moved(x[i], 0, t, i) + test::moved(x[i], 1, t, i)) / 2;
      x[i] = rule(i, x[i], x[i] - mean);
    }
  return x;
}

/// Enqueued work keeps what it uses alive.
TEST(OuterOptimizer, MayBeDestroyedBeforeItsStepHasRun) {
  std::vector<double> x(1 << 16, 1.0);
  const Param p{.name = "x", .value = std::span(x), .grad = {}};
  Stream stream = *Stream::create();
  {
    auto outer = OuterOptimizer::create({&p, 1}, *make_optimizer(SgdOptions{.lr = 0.5}));
    ASSERT_TRUE(outer.ok());
    for (double& v : x) v = 3;
    (void)stream.run([] {
      std::this_thread::sleep_for(Milliseconds(50));
      return Status{};
    });
    ASSERT_TRUE(outer->step(stream).ok());
  }
  ASSERT_TRUE(stream.synchronize().ok());
  EXPECT_EQ(x[77], 2.0);  // 1 - 0.5 (1 - 3)
}

using MakeServer = std::function<Result<std::unique_ptr<Optimizer>>()>;

std::string federated(Context& c, const MakeServer& make, const std::vector<double>& want, int rounds,
                      double tolerance, OuterOptions options = {}, bool on_stream = false) {
  auto groups = test::groups_of(c, {2, 1}, 1, 1);
  OURO_RANK_OK(groups);
  const std::vector<double> start = numbers<double>(5, 3);
  test::NamedArrays<double> model;
  model.add("a", {start.begin(), start.begin() + 2}), model.add("b", {start.begin() + 2, start.end()});
  const auto params = model.params();
  auto server = make();
  OURO_RANK_OK(server);
  auto outer = OuterOptimizer::create(params, std::move(*server), std::move(options));
  OURO_RANK_OK(outer);
  Stream stream;
  if (on_stream) stream = *Stream::create();
  for (int t = 0; t < rounds; ++t) {
    std::size_t i = 0;
    for (std::size_t k = 0; k < model.size(); ++k)
      for (double& x : model.at(k)) x = test::moved(x, groups->layout.federation->rank, t, i++);
    OURO_RANK_OK(aggregate(*groups, params, {}, stream));
    OURO_RANK_OK(outer->step(stream));
    if (on_stream) OURO_RANK_OK(stream.synchronize());
  }
  std::size_t i = 0;
  for (std::size_t k = 0; k < model.size(); ++k)
    for (const double x : model.at(k)) {
      OURO_RANK_CHECK(std::abs(x - want[i]) <= tolerance, "element {}: {} for {}", i, x, want[i]);
      ++i;
    }
  OURO_RANK_CHECK(outer->steps() == rounds, "{} steps", outer->steps());
  return "";
}

TEST(OuterOptimizer, SgdOfRateOneIsTheMean) {
  const auto want = serial(numbers<double>(5, 3), 6, [](std::size_t, double x, double g) { return x - g; });
  for (const bool on_stream : {false, true})
    EXPECT_EQ("", run_threads(3, [&](Context& c) {
                return federated(
                    c, [] { return fed_avg(); }, want, 6, 1e-14, {}, on_stream);
              }));
}

TEST(OuterOptimizer, DiLoCoFollowsItsNesterovFormula) {
  std::vector<double> v(5);
  const auto want = serial(numbers<double>(5, 3), 8, [&](std::size_t i, double x, double g) {
    v[i] = 0.9 * v[i] + g;
    return x - 0.7 * (g + 0.9 * v[i]);
  });
  EXPECT_EQ("", run_threads(3, [&](Context& c) {
              return federated(
                  c, [] { return diloco(); }, want, 8, 1e-13);
            }));
}

TEST(OuterOptimizer, FollowsItsScheduleAndClips) {
  std::vector<double> x = numbers<double>(5, 3), g(5);
  for (int t = 0; t < 4; ++t) {
    double squares = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      g[i] = x[i] - (test::moved(x[i], 0, t, i) + test::moved(x[i], 1, t, i)) / 2;
      squares += g[i] * g[i];
    }
    const double clip = std::min(1.0, 0.05 / (std::sqrt(squares) + 1e-6));
    for (std::size_t i = 0; i < 5; ++i) x[i] -= (1.0 - 0.1 * t) * clip * g[i];
  }
  EXPECT_EQ("", run_threads(3, [&](Context& c) {
              return federated(
                  c, [] { return fed_avg(); }, x, 4, 1e-13,
                  {.schedule = Schedule([](std::int64_t u) { return 1.0 - 0.1 * static_cast<double>(u); }),
                   .clip_norm = 0.05});
            }));
}

TEST(OuterOptimizer, ServerRulesAreThoseOfThePaper) {
  for (const ServerRule rule : {ServerRule::adagrad, ServerRule::adam, ServerRule::yogi}) {
    const double lr = 0.03, b1 = 0.8, b2 = 0.95, tau = 1e-2;
    std::vector<double> m(5), v(5, tau * tau);
    const auto want = serial(numbers<double>(5, 3), 10, [&](std::size_t i, double x, double g) {
      const double delta = -g, d2 = delta * delta;
      m[i] = b1 * m[i] + (1 - b1) * delta;
      const double sign = v[i] > d2 ? 1 : v[i] < d2 ? -1 : 0;
      v[i] = rule == ServerRule::adagrad ? v[i] + d2
             : rule == ServerRule::adam  ? b2 * v[i] + (1 - b2) * d2
                                         : v[i] - (1 - b2) * d2 * sign;
      return x + lr * m[i] / (std::sqrt(v[i]) + tau);
    });
    const auto make = [&] {
      return make_optimizer(ServerOptions{.rule = rule, .lr = lr, .beta1 = b1, .beta2 = b2, .tau = tau});
    };
    EXPECT_EQ("", run_threads(3, [&](Context& c) { return federated(c, make, want, 10, 1e-13); }))
        << static_cast<int>(rule);
  }
}

TEST(ServerRules, SaveAndLoadContinueBitForBit) {
  std::vector<float> x = numbers<float>(300, 1), y, g = numbers<float>(300, 2);
  const auto step = [&](Optimizer& o, std::vector<float>& values) {
    const Param p[] = {{.name = "w", .value = std::span(values), .grad = std::span(g)}};
    return o.step(p);
  };
  auto a = fed_yogi(), b = fed_yogi(), other = fed_adam();
  ASSERT_TRUE(test::ok(step(**a, x)));
  auto saved = (*a)->save();
  ASSERT_TRUE(test::ok(saved));
  ASSERT_TRUE(test::ok((*b)->load(*saved)));
  EXPECT_EQ((*other)->load(*saved).code(), Code::invalid);  // another rule
  y = x;
  ASSERT_TRUE(test::ok(step(**a, x)));
  ASSERT_TRUE(test::ok(step(**b, y)));
  EXPECT_EQ(x, y);
  auto fresh = fed_yogi();
  ASSERT_TRUE(test::ok(step(**fresh, y)));
  EXPECT_NE(x, y);
}

TEST(ServerRules, ElementsWithNonFiniteGradientsAreNotChanged) {
  std::vector<float> x = {1, 2, 3}, g = {0.5F, std::nanf(""), INFINITY};
  auto rule = fed_adam();
  const Param p[] = {{.name = "w", .value = std::span(x), .grad = std::span(g)}};
  ASSERT_TRUE(test::ok((*rule)->step(p)));
  EXPECT_NE(x[0], 1);
  EXPECT_EQ(x[1], 2);
  EXPECT_EQ(x[2], 3);
}

TEST(OuterOptimizer, OnAGpuGivesTheBitsOfTheHost) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  const std::vector<float> start = numbers<float>(1000, 5);
  auto stream = Stream::create(test::kGpu);
  ASSERT_TRUE(test::ok(stream));
  const MakeServer servers[] = {[] { return diloco(); }, [] { return fed_adam(); }};
  for (const MakeServer& make : servers)
    for (const bool on_host : {false, true})
      for (const bool on_stream : {false, true}) {
        std::vector<float> host = start;
        test::Array gpu(test::kGpu, start);
        const Param here{.name = "w", .value = std::span(host), .grad = {}},
            there{.name = "w", .value = gpu.view(), .grad = {}};
        auto a = OuterOptimizer::create({&here, 1}, *make());
        auto b = OuterOptimizer::create({&there, 1}, *make(), {.on_host = on_host});
        ASSERT_TRUE(test::ok(a));
        ASSERT_TRUE(test::ok(b));
        Status s;
        for (unsigned t = 0; t < 3 && s.ok(); ++t) {
          const std::vector<float> noise = numbers<float>(1000, 10 + t, -0.1, 0.1);
          auto values = gpu.read<float>();
          for (std::size_t i = 0; i < host.size(); ++i) host[i] += noise[i], values[i] += noise[i];
          gpu.write(values);
          ASSERT_TRUE(test::ok(a->step()));
          s = b->step(on_stream ? *stream : Stream());
          ASSERT_TRUE(test::ok(stream->synchronize()));
        }
        if (&make == &servers[1] && !on_host) {
          EXPECT_EQ(s.code(), Code::unsupported);
          continue;
        }
        ASSERT_TRUE(test::ok(s));
        EXPECT_EQ(gpu.read<float>(), host);
      }
}

TEST(OuterOptimizer, StepsFromGivenModelsWithoutAGroup) {
  std::vector<double> base = {1, -2, 0.5}, one = {1.4, -2, 0.1}, two = {1.2, -2.6, 0.5};
  const auto param = [](std::vector<double>& v) {
    return Param{.name = "w", .value = std::span(v), .grad = {}};
  };
  const Param models[] = {param(one), param(two)};
  const std::span<const Param> all[] = {{&models[0], 1}, {&models[1], 1}};
  const double g[] = {-0.3, 0.3, 0.2};
  const double clip = std::min(1.0, 1 / (std::sqrt(0.22) + 1e-6));
  std::vector<double> want = base;
  for (std::size_t i = 0; i < 3;
       ++i) {  // the first step of AdamW: m / (1 - b1) = g, sqrt(v / (1 - b2)) = |g|
    const double x = g[i] * clip;
    want[i] -= 0.1 * x / (std::abs(x) + 1e-8);
  }
  Param to = param(base);
  ASSERT_TRUE(test::ok(outer_step_from_models({&to, 1}, all)));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(base[i], want[i], 1e-12);

  std::vector<double> shorter(2);
  const Param wrong = param(shorter);
  const std::span<const Param> bad[] = {{&models[0], 1}, {&wrong, 1}};
  const Status s = outer_step_from_models({&to, 1}, bad);
  EXPECT_EQ(s.code(), Code::invalid);
  EXPECT_THAT(s.message(), ::testing::HasSubstr("of model 1 is 'w', 2 elements"));
  EXPECT_EQ(outer_step_from_models({&to, 1}, {}).code(), Code::invalid);
}

TEST(OuterRefuses, WrongArguments) {
  EXPECT_EQ(
      "", run_threads(1, [](Context& c) -> std::string {
        auto groups = test::groups_of(c, {1}, {}, 1);
        OURO_RANK_OK(groups);
        std::vector<double> x(4);
        const Param p{.name = "w", .value = std::span(x), .grad = {}};
        const auto refused = [](const auto& r) { return r.status().code() == Code::invalid; };
        OURO_RANK_CHECK(refused(OuterOptimizer::create({&p, 1}, nullptr)), "no optimiser");
        OURO_RANK_CHECK(refused(OuterOptimizer::create({&p, 1}, *fed_avg(), {.clip_norm = -1})), "clip_norm");
        const Param twice[] = {p, p};
        OURO_RANK_CHECK(refused(OuterOptimizer::create(twice, *fed_avg())), "names");
        OURO_RANK_CHECK(refused(LocalSteps::create(*groups, {&p, 1}, *fed_avg(), {.inner_steps = 0})),
                        "steps");
        OURO_RANK_CHECK(refused(make_optimizer(ServerOptions{.beta2 = 1})), "beta");
        OURO_RANK_CHECK(refused(make_optimizer(ServerOptions{.tau = 0})), "tau");
        OURO_RANK_CHECK(refused(make_optimizer(ServerOptions{.rule = static_cast<ServerRule>(7)})), "rule");
        return "";
      }));
}

/// An optimiser that fails at first.
class Unwilling final : public Optimizer {
 public:
  Status step(std::span<const Param> params, const StepOptions& o, const Stream& s) override {
    return ++calls_ == 1 ? unsupported("not now") : inner_->step(params, o, s);
  }
  double lr() const override { return inner_->lr(); }
  Result<Bytes> save() override { return inner_->save(); }
  Status load(CBytes b) override { return inner_->load(b); }

 private:
  int calls_ = 0;
  std::unique_ptr<Optimizer> inner_ = *fed_avg(0.5);
};

TEST(OuterOptimizer, AStepThatIsRefusedChangesNothing) {
  std::vector<float> x(5, 1);
  const Param p{.name = "w", .value = std::span(x), .grad = {}};
  auto outer = OuterOptimizer::create({&p, 1}, std::make_unique<Unwilling>());
  ASSERT_TRUE(test::ok(outer));
  x.assign(5, 3);
  EXPECT_EQ(outer->step().code(), Code::unsupported);
  EXPECT_EQ(x, std::vector<float>(5, 3));
  EXPECT_EQ(outer->steps(), 0);
  ASSERT_TRUE(test::ok(outer->step()));
  EXPECT_EQ(x, std::vector<float>(5, 2));
}

/// A step in the caller runs after those that are enqueued in a stream.
TEST(ServerRules, StepInTheCallerWaitsForStepsOnAStream) {
  std::vector<float> want = numbers<float>(50, 1), x = want;
  const std::vector<float> first = numbers<float>(50, 2), second = numbers<float>(50, 3);
  const auto step = [](Optimizer& o, std::vector<float>& values, const std::vector<float>& gradient,
                       const Stream& s) {
    std::vector<float>& g = const_cast<std::vector<float>&>(gradient);  // only read
    const Param p{.name = "w", .value = std::span(values), .grad = std::span(g)};
    return o.step({&p, 1}, {}, s);
  };
  auto a = fed_adam(), b = fed_adam();
  ASSERT_TRUE(test::ok(step(**a, want, first, {})) && test::ok(step(**a, want, second, {})));
  auto stream = Stream::create();
  ASSERT_TRUE(test::ok(stream));
  (void)stream->run([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return Status{};
  });
  ASSERT_TRUE(test::ok(step(**b, x, first, *stream)));
  ASSERT_TRUE(test::ok(step(**b, x, second, {})));
  EXPECT_EQ(x, want);
  ASSERT_TRUE(test::ok(stream->synchronize()));
}

}  // namespace
}  // namespace ouro::train
