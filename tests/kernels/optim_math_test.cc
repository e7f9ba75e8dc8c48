// The mathematics of the optimisers: golden trajectories, textbook formulas in double precision, and the
// scalars behind them.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/golden_data.h"
#include "tests/kernels/optim_cases.h"

namespace ouro::kernels::optim {
namespace {

using Doubles = std::vector<double>;

TEST(OptimScalars, PowersAgreeWithLongDouble) {
  for (const double b : {0.9, 0.999, 0.98, 0.974, 0.5, 0.9999999, 1e-3})
    for (const std::int64_t t : {0, 1, 2, 3, 7, 10, 100, 1000, 12345, 1000000}) {
      const double want =
          static_cast<double>(std::pow(static_cast<long double>(b), static_cast<long double>(t)));
      // long double has eleven extra bits, minus what pow loses with large exponents.
      if (want < 1e-290) continue;
      EXPECT_NEAR(arith::power(b, t), want, want * 3e-16) << b << '^' << t;
    }
  EXPECT_EQ(arith::power(0.9, 3), 0.7290000000000001);
  EXPECT_EQ(arith::power(0.9, INT64_MAX), 0);
  EXPECT_EQ(arith::power(0, 0), 1);
  EXPECT_EQ(arith::power(0, 5), 0);
  EXPECT_EQ(arith::power(1, 1 << 30), 1);
}

TEST(OptimScalars, ClipFactorLimitsTheNorm) {
  EXPECT_EQ(arith::clip_factor(2, 0), 1);
  EXPECT_EQ(arith::clip_factor(0.5, 1), 1);
  EXPECT_EQ(arith::clip_factor(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(arith::clip_factor(INFINITY, 1), 0);
  EXPECT_TRUE(std::isnan(arith::clip_factor(NAN, 1)));
}

/// fp64: two units in the last place. fp32: 4e-6, and what rounding leaves where terms cancel.
bool near_golden(double got, double want) {
  return std::fabs(got - want) <= 2 * (std::nextafter(std::fabs(want), INFINITY) - std::fabs(want));
}
bool near_golden(float got, double want) { return std::fabs(got - want) <= 4e-6 * std::fabs(want) + 1e-8; }

/// Replays a golden file in T and checks every field after every step.
template <class T>
void replay(const char* file) {
  const std::string kind = fmt::format("{} cases of the host loops in {}", file, name(DTypeOf<T>::value));
  test::CasesRun cases{kind};
  const nlohmann::json golden = test::golden(file);
  for (const auto& c : golden.at("cases")) {
    cases.add(kind);
    const auto& config = c.at("config");
    AccumAdamOptions options;
    options.adam = {.lr = config.at("lr"),
                    .beta1 = config.at("betas")[0],
                    .beta2 = config.at("betas")[1],
                    .eps = config.at("eps"),
                    .weight_decay = config.at("weight_decay"),
                    .decoupled = config.at("kind") == "adamw"};
    options.accum_iter = config.at("accum_iter");
    std::vector<T> p = c.at("p0"), m(p.size()), v(p.size()), a(p.size());
    std::int64_t step = 0;
    for (const auto& want : c.at("trajectory")) {
      const std::vector<T> g = c.at("grads")[static_cast<std::size_t>(step)];
      const Parameters run{DTypeOf<T>::value, p.data(), g.data(), nullptr, p.size()};
      ASSERT_TRUE(accum_adam(run, m.data(), v.data(), a.data(), options, ++step).ok());
      const std::int64_t updates = (step - 1) / options.accum_iter + 1;
      EXPECT_EQ(updates, want.at("bias_step"));
      EXPECT_EQ(1 - arith::power(options.adam.beta1, updates), want.at("bias_correction1"));
      EXPECT_EQ(1 - arith::power(options.adam.beta2, updates), want.at("bias_correction2"));
      EXPECT_EQ(accumulator_is_zero(step, options.accum_iter), want.at("committed"));
      const auto near = [&](const std::vector<T>& got, const char* field) {
        for (std::size_t i = 0; i < got.size(); ++i) {
          const double x = want.at(field)[i];
          EXPECT_TRUE(near_golden(got[i], x)) << file << ' ' << config << ' ' << field << " step " << step;
        }
      };
      near(p, "param");
      near(m, "exp_avg");
      near(v, "exp_avg_sq");
      near(accumulator_is_zero(step, options.accum_iter) ? std::vector<T>(p.size()) : a, "accum_grad");
    }
  }
}
TEST(OptimGolden, AccumAdamInDoubleFollowsTheTrajectory) { replay<double>("accum_adam.json"); }
TEST(OptimGolden, AccumAdamWInDoubleFollowsTheTrajectory) { replay<double>("accum_adamw.json"); }
TEST(OptimGolden, AccumAdamInFloatFollowsTheTrajectory) { replay<float>("accum_adam.json"); }
TEST(OptimGolden, AccumAdamWInFloatFollowsTheTrajectory) { replay<float>("accum_adamw.json"); }

/// One short run: decoupled, K = 4, g(s) = sin(0.7 s) / 4.
TEST(OptimTextbook, PrintedExampleIsReproduced) {
  double p = 1, m = 0, v = 0, a = 0;
  const AccumAdamOptions options{
      .adam = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.98, .weight_decay = 0.1, .decoupled = true}};
  for (std::int64_t step = 1; step <= 5; ++step) {
    const double g = std::sin(0.7 * static_cast<double>(step)) / 4;
    ASSERT_TRUE(accum_adam({DType::f64, &p, &g, nullptr, 1}, &m, &v, &a, options, step).ok());
    if (step == 1) {
      EXPECT_DOUBLE_EQ(p, 0.98900000062090809);
    }
    if (step == 4) {
      EXPECT_DOUBLE_EQ(p, 0.95606595869213751);
      EXPECT_DOUBLE_EQ(m, 0.015906740253923982);
      EXPECT_DOUBLE_EQ(v, 0.00061225653776713512);
    }
  }
  EXPECT_DOUBLE_EQ(p, 0.9524091338614642);
}

/// Textbook forms, written with mean gradients and bias-corrected moments instead of coefficients.
struct Textbook {
  double p, momentum = 0, m = 0, v = 0;
  Doubles window = {};
  std::int64_t step = 0;

  void sgd(double g, const SgdOptions& o) {
    ++step;
    g += o.weight_decay * p;
    momentum = step == 1 ? g : o.momentum * momentum + (1 - o.dampening) * g;
    const double direction = o.momentum == 0 ? g : o.nesterov ? g + o.momentum * momentum : momentum;
    p -= o.lr * direction;
  }
  /// With a window of one step this is Adam.
  void adam(double g, const AdamOptions& o, int accum_iter) {
    ++step;
    if (o.decoupled)
      p -= o.lr * o.weight_decay * p;
    else
      g += o.weight_decay * p;
    const double updates = std::ceil(static_cast<double>(step) / accum_iter);
    const auto next = [](double old, double beta, double x) { return beta * old + (1 - beta) * x; };
    const double m_hat = next(m, o.beta1, g) / (1 - std::pow(o.beta1, updates));
    const double v_hat = next(v, o.beta2, g * g) / (1 - std::pow(o.beta2, updates));
    p -= o.lr * m_hat / (std::sqrt(v_hat) + o.eps);
    window.push_back(g);
    if (static_cast<int>(window.size()) < accum_iter) return;
    const double mean = std::accumulate(window.begin(), window.end(), 0.0) / accum_iter;
    m = next(m, o.beta1, mean);
    v = next(v, o.beta2, mean * mean);
    window.clear();
  }
};

/// Runs 25 steps of one rule in T beside the textbook form. Tolerance: relative to 1, the size of
/// the parameters.
template <class T>
void beside_textbook(double tolerance) {
  const std::size_t n = 40;
  const SgdOptions sgds[] = {{.lr = 0.05},
                             {.lr = 0.05, .weight_decay = 0.1},
                             {.lr = 0.02, .momentum = 0.9, .weight_decay = 0.01},
                             {.lr = 0.02, .momentum = 0.9, .dampening = 0.5},
                             {.lr = 0.02, .momentum = 0.8, .nesterov = true}};
  std::vector<std::pair<AdamOptions, int>> adams;
  for (const double decay : {0.0, 0.1})
    for (const bool decoupled : {false, true})
      for (const int window : {0, 1, 2, 4})
        adams.push_back({{.lr = 0.01, .weight_decay = decay, .decoupled = decoupled}, window});
  const std::size_t rules = std::size(sgds) + adams.size();
  for (std::size_t rule = 0; rule < rules; ++rule) {
    std::vector<T> p(n), g(n), s(n), m(n), v(n), a(n);
    std::vector<Textbook> book(n);
    for (std::size_t i = 0; i < n; ++i)
      book[i].p = p[i] = static_cast<T>(std::cos(1.7 * static_cast<double>(i)));
    for (std::int64_t step = 1; step <= 25; ++step) {
      for (std::size_t i = 0; i < n; ++i)
        g[i] = static_cast<T>(0.6 + std::sin(0.9 * static_cast<double>(step) + 2.3 * static_cast<double>(i)));
      const Parameters run{DTypeOf<T>::value, p.data(), g.data(), nullptr, n};
      if (rule < std::size(sgds)) {
        ASSERT_TRUE(sgd(run, s.data(), sgds[rule], step).ok());
        for (std::size_t i = 0; i < n; ++i) book[i].sgd(g[i], sgds[rule]);
      } else {
        const auto& [options, window] = adams[rule - std::size(sgds)];  // 0: adam itself
        ASSERT_TRUE((window == 0 ? adam(run, m.data(), v.data(), options, step)
                                 : accum_adam(run, m.data(), v.data(), a.data(), {options, window}, step))
                        .ok());
        for (std::size_t i = 0; i < n; ++i) book[i].adam(g[i], options, std::max(window, 1));
      }
      for (std::size_t i = 0; i < n; ++i)
        ASSERT_NEAR(p[i], book[i].p, tolerance) << "rule " << rule << " step " << step << " element " << i;
    }
  }
}
TEST(OptimTextbook, UpdatesInDoubleFollowTheFormulas) { beside_textbook<double>(1e-13); }
TEST(OptimTextbook, UpdatesInFloatFollowTheFormulas) { beside_textbook<float>(4e-6); }

/// Unscaling and clipping inside the pass give the same bits as scaling the gradient before it.
TEST(OptimTextbook, ScalingInThePassEqualsScalingBefore) {
  Arrays inside({DType::f32, false}, 300, 0, 9, false), before = inside;
  for (std::size_t i = 0; i < inside.count; ++i) {
    float g;
    std::memcpy(&g, before.at(before.gradient) + 4 * i, 4);
    g = g * 0.0625f * 0.3f;
    std::memcpy(before.at(before.gradient) + 4 * i, &g, 4);
  }
  for (const Call& call : all_calls()) {
    ASSERT_TRUE(perform(call, inside, {.scale = {.inverse = 0.0625, .clip = 0.3}}).ok());
    ASSERT_TRUE(perform(call, before).ok());
    ASSERT_EQ(inside.value, before.value) << call.name;
  }
}

/// keep*x + take*n, then send*x, in the types of the run.
TEST(OptimTextbook, MixAndPackFollowTheirFormulas) {
  double x = 3, n = 5, out = 0;
  ASSERT_TRUE(mix({DType::f64, &x, nullptr, nullptr, 1}, {&n, nullptr, {.keep = 0.25, .take = 0.5}}).ok());
  EXPECT_EQ(x, 3.25);
  ASSERT_TRUE(pack({DType::f64, &x, nullptr, nullptr, 1}, {nullptr, &out, {.send = 2}}).ok());
  EXPECT_EQ(out, 6.5);

  float master = 1 + 1.0f / 1024;  // bf16 cannot represent it
  std::uint16_t value = 0, three = 0x4040, message = 0;
  const Parameters run{DType::bf16, &value, nullptr, &master, 1};
  ASSERT_TRUE(mix(run, {&three, nullptr, {.keep = 1, .take = 1}}).ok());
  EXPECT_EQ(master, 4 + 1.0f / 1024);
  EXPECT_EQ(value, 0x4080);  // 4
  ASSERT_TRUE(pack(run, {nullptr, &message, {.send = 1024}}).ok());
  EXPECT_EQ(message, 0x4580);  // 4096
}

}  // namespace
}  // namespace ouro::kernels::optim
