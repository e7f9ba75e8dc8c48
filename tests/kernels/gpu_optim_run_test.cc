// Launches of the optimiser kernels that are replayed: steps, windows, rates, skips and weights change in
// device memory between replays; the golden trajectories.
#include "tests/golden_data.h"
#include "tests/kernels/gpu_optim.h"

namespace ouro::gpu {
namespace {

using kernels::optim::label;

/// Nine replays of one launch beside nine calls: families, windows, lazily or not, mixed or not; gradients
/// with infinities; the rate, the scale and the weights change; some steps are skipped.
void replay(Family family, kernels::optim::Layout layout, int window, bool lazily, bool mixed) {
  const arith::SgdOptions sgd{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1};
  const arith::AdamOptions adam{.lr = 0.01, .beta2 = 0.98, .weight_decay = 0.1, .decoupled = window != 2};
  Arrays want(layout, 2500, 0, 8, false);
  for (Bytes& s : want.state) std::fill(s.begin(), s.end(), std::byte{0});
  if (lazily)
    // NaN, which would show if anything read it.
    std::fill(want.state[2].begin(), want.state[2].end(), std::byte{0xff});
  Arrays got = want;
  Control control;
  std::uint32_t skip = 0;
  arith::GradientScale scale;
  kernels::Exchange there = want.exchange();
  arith::MixWeights weights = there.weights;
  UpdateArgs args{.family = family,
                  .form = mixed ? Form::exchange : Form::plain,
                  .dtype = layout.dtype,
                  .master = layout.master,
                  .lazy_zero = lazily,
                  .recipe = {.sgd = sgd, .adam = adam, .accum_iter = window},
                  .control = &control,
                  .skip = &skip,
                  .scale_at = &scale,
                  .weights_at = &weights};
  args.one[0] = tensor_of(got);
  const Result<Launch> launch = update(args, 2);
  ASSERT_TRUE(launch.ok());
  std::int64_t step = 1;
  for (std::uint64_t k = 1; k <= 11; ++k) {
    const Bytes gradient = Arrays(layout, 2500, 0, 100 + k, k % 3 == 0).gradient;
    // In place, because the launch contains the address.
    std::copy(gradient.begin(), gradient.end(), got.gradient.begin());
    want.gradient = gradient;
    control.lr = 0.01 / static_cast<double>(k);
    scale = {.inverse = 1.0 / static_cast<double>(k), .clip = 0.5};
    weights.keep = there.weights.keep = 1 - 0.05 * static_cast<double>(k);
    weights.take = there.weights.take = 0.05 * static_cast<double>(k);
    skip = k == 3 || k == 6;
    run(*launch, &args);

    bool finite = true;
    const kernels::Fused fused{.scale = scale, .exchange = mixed ? &there : nullptr};
    if (skip != 0) {
      if (mixed) {
        ASSERT_TRUE(kernels::mix(want.parameters(), there).ok());
        ASSERT_TRUE(kernels::pack(want.parameters(), there).ok());
      }
    } else {
      arith::SgdOptions s = sgd;
      arith::AdamOptions a = adam;
      s.lr = a.lr = control.lr;
      const auto state = [&](int i) { return want.at(want.state[i]); };
      const auto report = family == Family::sgd ? kernels::sgd(want.parameters(), state(0), s, step, fused)
                          : family == Family::adam
                              ? kernels::adam(want.parameters(), state(0), state(1), a, step, fused)
                              : kernels::accum_adam(want.parameters(), state(0), state(1), state(2),
                                                    {a, window, lazily}, step, fused);
      ASSERT_TRUE(report.ok()) << report.status().message();
      finite = report->finite;
      ++step;
    }
    EXPECT_EQ(control.step, step - 1);
    EXPECT_EQ(control.nonfinite == 0, finite);
    ASSERT_TRUE(got == want) << label(layout) << ", launch " << k << ", window " << window;
  }
  EXPECT_EQ(control.step, 9);
}
TEST(GpuOptimReplay, ReplaysOfOneLaunchEqualSeparateCalls) {
  for (const auto layout : kLayouts)
    for (const bool mixed : {false, true}) {
      replay(Family::sgd, layout, 1, true, mixed);
      replay(Family::adam, layout, 1, true, mixed);
      replay(Family::adam, layout, 2, true, mixed);
      for (const int window : {1, 2, 4})
        for (const bool lazily : {false, true}) replay(Family::accum_adam, layout, window, lazily, mixed);
    }
}

/// A skipped step of a plain update must not touch anything.
TEST(GpuOptimReplay, SkippedPlainStepsTouchNothing) {
  for (const auto layout : kLayouts)
    for (const Call& call : kernels::optim::all_calls()) {
      Arrays got(layout, 100, 0, 4);
      const Arrays before = got;
      Control control;
      control.nonfinite = 1;  // set by the launch before
      UpdateArgs args = args_of(call, layout, control);
      args.one[0] = tensor_of(got);
      const std::uint32_t skip = 7;
      args.skip = &skip;
      EXPECT_TRUE(launch_update(args));
      EXPECT_TRUE(got == before);
      EXPECT_EQ(control.step, call.recipe.step - 1);
    }
}

/// The sequence of a loss scaler, all in device memory: a survey, then an update that is skipped or clipped
/// according to its result.
TEST(GpuOptimReplay, SurveySkipsOrClipsTheUpdate) {
  const kernels::optim::Layout layout = kLayouts[1];
  Arrays got(layout, 5000, 0, 2, false), want = got;
  SurveyState state;
  Control control;
  control.lr = 0.01;
  arith::GradientScale scale{.inverse = 0.25};
  UpdateArgs args{.dtype = DType::f32, .control = &control, .skip = &state.nonfinite, .scale_at = &scale};
  args.one[0] = tensor_of(got);
  const SurveyArgs look{.dtype = DType::f32,
                        .scale_at = &scale,
                        .clip_norm = 0.5,
                        .state = &state,
                        .gradient = args.one[0].gradient,
                        .count = got.count};
  const auto both = [&] {
    run(*survey(look), &look);
    launch_update(args);
  };
  both();
  const double norm =
      std::sqrt(kernels::survey(DType::f32, want.at(want.gradient), 5000, {.inverse = 0.25})->squares);
  const kernels::Fused fused{.scale = {.inverse = 0.25, .clip = arith::clip_factor(norm, 0.5)}};
  EXPECT_LT(fused.scale.clip, 1);
  ASSERT_TRUE(
      kernels::adam(want.parameters(), want.at(want.state[0]), want.at(want.state[1]), {.lr = 0.01}, 1, fused)
          .ok());
  EXPECT_TRUE(got == want);
  reference::store(DType::f32, got.at(got.gradient), 4321, 0x7f800000);
  want.gradient = got.gradient;
  both();
  EXPECT_TRUE(got == want) << "not skipped";
  EXPECT_EQ(control.step, 1);
}

/// fp64: two units in the last place; fp32: 4e-6, and what rounding leaves where terms cancel.
bool near_golden(double got, double want) {
  return std::fabs(got - want) <= 2 * (std::nextafter(std::fabs(want), INFINITY) - std::fabs(want));
}
bool near_golden(float got, double want) { return std::fabs(got - want) <= 4e-6 * std::fabs(want) + 1e-8; }

/// Replays a golden file with one launch for each case, and checks every field after every step; the host
/// loops must have the same bits.
template <class T>
void replay_golden(const char* file) {
  const std::string kind = fmt::format("{} cases of the GPU bodies in {}", file, name(DTypeOf<T>::value));
  test::CasesRun cases{kind};
  const nlohmann::json all = test::golden(file);
  for (const auto& c : all.at("cases")) {
    cases.add(kind);
    const auto& config = c.at("config");
    const arith::AdamOptions adam{.lr = config.at("lr"),
                                  .beta1 = config.at("betas")[0],
                                  .beta2 = config.at("betas")[1],
                                  .eps = config.at("eps"),
                                  .weight_decay = config.at("weight_decay"),
                                  .decoupled = config.at("kind") == "adamw"};
    const int window = config.at("accum_iter");
    std::vector<T> p = c.at("p0"), g(p.size()), m(p.size()), v(p.size()), a(p.size());
    std::vector<T> host_p = p, host_m = m, host_v = v, host_a = a;
    Control control;
    control.lr = adam.lr;
    UpdateArgs args{.family = Family::accum_adam,
                    .dtype = DTypeOf<T>::value,
                    .recipe = {.adam = adam, .accum_iter = window},
                    .control = &control};
    args.one[0] = {
        .value = p.data(), .gradient = g.data(), .state = {m.data(), v.data(), a.data()}, .count = p.size()};
    const Result<Launch> launch = update(args, 1);
    ASSERT_TRUE(launch.ok());
    for (const auto& want : c.at("trajectory")) {
      const std::vector<T> next = c.at("grads")[static_cast<std::size_t>(control.step)];
      std::copy(next.begin(), next.end(), g.begin());
      run(*launch, &args);
      EXPECT_EQ(control.step, want.at("step"));
      const kernels::Parameters run_of{DTypeOf<T>::value, host_p.data(), g.data(), nullptr, p.size()};
      ASSERT_TRUE(kernels::accum_adam(run_of, host_m.data(), host_v.data(), host_a.data(), {adam, window},
                                      control.step)
                      .ok());
      EXPECT_EQ(p, host_p);
      EXPECT_EQ(m, host_m);
      EXPECT_EQ(v, host_v);
      const bool zero = kernels::accumulator_is_zero(control.step, window);
      if (!zero) {
        EXPECT_EQ(a, host_a);
      }
      const auto near = [&](const std::vector<T>& got, const char* field) {
        for (std::size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(near_golden(got[i], want.at(field)[i].template get<double>()))
              << file << ' ' << config << ' ' << field << " step " << control.step;
      };
      near(p, "param");
      near(m, "exp_avg");
      near(v, "exp_avg_sq");
      near(zero ? std::vector<T>(p.size()) : a, "accum_grad");
    }
  }
}
TEST(GpuOptimGolden, AccumAdamInDoubleFollowsTheTrajectory) { replay_golden<double>("accum_adam.json"); }
TEST(GpuOptimGolden, AccumAdamWInDoubleFollowsTheTrajectory) { replay_golden<double>("accum_adamw.json"); }
TEST(GpuOptimGolden, AccumAdamInFloatFollowsTheTrajectory) { replay_golden<float>("accum_adam.json"); }
TEST(GpuOptimGolden, AccumAdamWInFloatFollowsTheTrajectory) { replay_golden<float>("accum_adamw.json"); }

}  // namespace
}  // namespace ouro::gpu
