// Optimiser steps on views: the same bits everywhere, and fused as well as separate; forms that must agree,
// surveys, and every refusal.
#include <cmath>
#include <limits>

#include "tests/api/train/arrays.h"

namespace ouro::train {
namespace {

using namespace ouro::test;

constexpr std::size_t kCount = 1003;

/// A type of parameters. Elements of bf16 are handled as bit patterns.
struct Layout {
  DType dtype;
  bool master = false;
  const char* name;
};
constexpr Layout kLayouts[] = {{DType::f64, false, "f64"},
                               {DType::f32, false, "f32"},
                               {DType::bf16, false, "bf16"},
                               {DType::bf16, true, "bf16 with master"}};

enum class Rule { sgd, momentum, adam, adamw, accum, accum_lazy };
constexpr Rule kRules[] = {Rule::sgd, Rule::momentum, Rule::adam, Rule::adamw, Rule::accum, Rule::accum_lazy};

void fill(Array& a, unsigned seed) {
  const std::size_t n = a.view().count;
  if (a.view().dtype == DType::f64) return a.write(numbers<double>(n, seed));
  if (a.view().dtype == DType::f32) return a.write(numbers<float>(n, seed));
  a.write(bf16_numbers(n, seed));
}

/// Parameters, gradient, neighbours and all states of one run.
struct Room {
  static DType wide(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }
  Layout layout;
  Device device;
  Array p, g, neighbours, message, step, s0, s1, s2, master;

  Room(Layout l, Device d, std::size_t n = kCount)
      : layout(l),
        device(d),
        p(d, n, l.dtype),
        g(d, n, l.dtype),
        neighbours(d, n, l.dtype),
        message(d, n, l.dtype),
        step(d, 1, DType::i64),
        s0(d, n, wide(l.dtype)),
        s1(d, n, wide(l.dtype)),
        s2(d, n, wide(l.dtype)),
        master(d, n, DType::f32) {
    fill(p, 1);
    fill(neighbours, 3);
    std::vector<float> copy(n);
    if (l.dtype == DType::bf16) {
      const auto bits = p.read<std::uint16_t>();
      for (std::size_t i = 0; i < n; ++i) {
        const std::uint32_t wider = static_cast<std::uint32_t>(bits[i]) << 16;
        std::memcpy(&copy[i], &wider, 4);
      }
    }
    master.write(copy);
  }
  std::optional<View> master_view() const {
    return layout.master ? std::optional<View>(master.view()) : std::nullopt;
  }
  std::vector<std::vector<std::byte>> contents(bool accumulator = true) const {
    std::vector<std::vector<std::byte>> all{p.bytes(),  g.bytes(),  message.bytes(), step.bytes(),
                                            s0.bytes(), s1.bytes(), master.bytes()};
    if (accumulator) all.push_back(s2.bytes());
    return all;
  }
};

const Row kRow{.self = 0.625, .in = {{1, 0.375}}, .out = {1}};
constexpr double kAdaptive = 0.3;

/// One step of a rule; with `mixed`, the mix is done in the same pass.
Status perform(Rule rule, Room& r, bool mixed, const Stream& stream) {
  const GradientScale scale{.inverse = 0.5, .clip = 0.75};
  const View p = r.p.view(), message = r.message.view();
  const CView g = r.g.view(), n = r.neighbours.view();
  if (rule <= Rule::momentum) {
    const SgdOptions o{.lr = 0.05,
                       .momentum = rule == Rule::sgd ? 0 : 0.9,
                       .dampening = rule == Rule::sgd ? 0 : 0.25,
                       .weight_decay = 0.1,
                       .scale = scale};
    SgdState s{r.step.view(), r.s0.view(), r.master_view()};
    return mixed ? mix_sgd(p, g, kRow, n, kAdaptive, message, s, o, stream) : sgd(p, g, s, o, stream);
  }
  if (rule <= Rule::adamw) {
    const AdamOptions o{.lr = 0.01, .beta2 = 0.98, .weight_decay = 0.1, .scale = scale};
    AdamState s{r.step.view(), r.s0.view(), r.s1.view(), r.master_view()};
    if (rule == Rule::adam)
      return mixed ? mix_adam(p, g, kRow, n, kAdaptive, message, s, o, stream) : adam(p, g, s, o, stream);
    return mixed ? mix_adamw(p, g, kRow, n, kAdaptive, message, s, o, stream) : adamw(p, g, s, o, stream);
  }
  const AccumAdamOptions o{.lr = 0.01,
                           .beta2 = 0.98,
                           .weight_decay = 0.1,
                           .accum_iter = 3,
                           .decoupled = true,
                           .lazy_zero = rule == Rule::accum_lazy,
                           .scale = scale};
  AccumAdamState s{r.step.view(), r.s0.view(), r.s1.view(), r.s2.view(), r.master_view()};
  return mixed ? mix_accum_adam(p, g, kRow, n, kAdaptive, message, s, o, stream)
               : accum_adam(p, g, s, o, stream);
}

TEST(OptimSteps, BitsAreTheSameOnHostAndGpu) {
  for (const Layout& layout : kLayouts)
    for (const Rule rule : kRules)
      for (const bool mixed : {false, true}) {
        Room want(layout, {});
        std::vector<std::vector<std::vector<std::byte>>> steps;
        for (unsigned t = 0; t < 7; ++t) {
          fill(want.g, 100 + t);
          ASSERT_TRUE(ok(perform(rule, want, mixed, {})));
          steps.push_back(want.contents());
        }
        EXPECT_EQ(want.step.read<std::int64_t>()[0], 7);
        for (const Where where : kEverywhere) {
          if (where == Where::host) continue;
          Room got(layout, device_of(where));
          for (unsigned t = 0; t < 7; ++t) {
            fill(got.g, 100 + t);
            ASSERT_TRUE(ok(perform(rule, got, mixed, stream_of(where))));
            ASSERT_TRUE(ok(stream_of(where).synchronize()));
            ASSERT_EQ(got.contents(), steps[t])
                << layout.name << ", rule " << static_cast<int>(rule) << " on " << name(where) << ", step "
                << t + 1 << (mixed ? ", mixed" : "");
          }
        }
      }
}

/// Adaptive mix, update and packing of the message: one pass gives the same bits as three.
TEST(OptimSteps, FusedPassGivesTheBitsOfSeparatePasses) {
  for (const Layout& layout : kLayouts)
    for (const Rule rule : kRules)
      for (const Where where : {Where::host, Where::gpu}) {
        Room fused(layout, device_of(where)), apart(layout, device_of(where));
        for (unsigned t = 0; t < 4; ++t) {
          for (Room* r : {&fused, &apart}) {
            fill(r->g, 50 + t);
            fill(r->neighbours, 70 + t);
          }
          ASSERT_TRUE(ok(perform(rule, fused, true, {})));
          const auto mix = [&](double adaptive, const Row& row) {
            return mix_and_pack(apart.p.view(), apart.master_view(), row, apart.neighbours.view(), adaptive,
                                apart.message.view());
          };
          ASSERT_TRUE(ok(mix(kAdaptive, kRow)));
          ASSERT_TRUE(ok(perform(rule, apart, false, {})));
          // The message is the updated parameter; for bf16 with a master, rounded once, like the parameter.
          EXPECT_EQ(fused.message.bytes(), apart.p.bytes());
          ASSERT_TRUE(ok(mix(0, kRow)));  // a mix of 0 moves nothing and only packs
          EXPECT_EQ(fused.contents(), apart.contents()) << layout.name << ", rule " << static_cast<int>(rule)
                                                        << " on " << name(where) << ", step " << t;
        }
      }
}

TEST(OptimSteps, MixFollowsTheFormula) {
  Array p({}, std::vector<double>{3}), n({}, std::vector<double>{5}), message({}, 1, DType::f64);
  ASSERT_TRUE(ok(mix_and_pack(p.view(), {}, {.self = 0.5}, n.view(), 0.5, message.view())));
  EXPECT_EQ(p.read<double>()[0], 0.75 * 3 + 0.5 * 5);
  EXPECT_EQ(message.read<double>()[0], p.read<double>()[0]);
}

/// A window of one step equals Adam, or AdamW, bit for bit in f64.
TEST(OptimSteps, WindowOfOneStepEqualsAdam) {
  for (const bool decoupled : {false, true})
    for (const Where where : {Where::host, Where::gpu}) {
      Room one(kLayouts[0], device_of(where)), other(kLayouts[0], device_of(where));
      AdamState a{one.step.view(), one.s0.view(), one.s1.view(), {}};
      AccumAdamState b{other.step.view(), other.s0.view(), other.s1.view(), other.s2.view(), {}};
      for (unsigned t = 0; t < 20; ++t) {
        fill(one.g, t);
        fill(other.g, t);
        const AdamOptions o{.lr = 0.01, .weight_decay = 0.1, .decoupled = decoupled};
        ASSERT_TRUE(ok(adam(one.p.view(), one.g.view(), a, o)));
        ASSERT_TRUE(
            ok(accum_adam(other.p.view(), other.g.view(), b,
                          {.lr = 0.01, .weight_decay = 0.1, .accum_iter = 1, .decoupled = decoupled})));
        ASSERT_EQ(one.p.read<double>(), other.p.read<double>()) << "step " << t;
      }
    }
}

/// Without a step count, the momentum starts at zero, which is the undamped start.
TEST(OptimSteps, SgdWithoutStepCountStartsMomentumAtZero) {
  for (const Where where : kEverywhere) {
    Room counted(kLayouts[1], device_of(where)), plain(kLayouts[1], device_of(where));
    const SgdOptions o{.lr = 0.05, .momentum = 0.9, .nesterov = true};
    SgdState s{counted.step.view(), counted.s0.view(), {}};
    for (unsigned t = 0; t < 5; ++t) {
      fill(counted.g, t);
      fill(plain.g, t);
      ASSERT_TRUE(ok(sgd(counted.p.view(), counted.g.view(), s, o, stream_of(where))));
      ASSERT_TRUE(ok(sgd(plain.p.view(), plain.g.view(), plain.s0.view(), o, stream_of(where))));
      ASSERT_TRUE(ok(stream_of(where).synchronize()));
      ASSERT_EQ(counted.p.read<float>(), plain.p.read<float>()) << name(where) << " step " << t;
      ASSERT_EQ(counted.s0.read<float>(), plain.s0.read<float>());
    }
  }
}

/// A master copy follows the f32 run; the parameter is the rounded master.
TEST(OptimSteps, MasterCopyFollowsTheFloatRun) {
  Room low(kLayouts[3], {}), high(kLayouts[1], {});
  high.p.write(low.master.read<float>());
  for (unsigned t = 0; t < 12; ++t) {
    low.g.write(bf16_numbers(kCount, t));
    std::vector<float> same;
    for (const std::uint16_t bits : low.g.read<std::uint16_t>()) {
      const std::uint32_t wider = static_cast<std::uint32_t>(bits) << 16;
      std::memcpy(&same.emplace_back(), &wider, 4);
    }
    high.g.write(same);
    ASSERT_TRUE(ok(perform(Rule::accum, low, false, {})));
    ASSERT_TRUE(ok(perform(Rule::accum, high, false, {})));
    ASSERT_EQ(low.master.read<float>(), high.p.read<float>()) << "step " << t;
  }
}

/// A gradient that is not finite: its element is handled as if there were no gradient; the step counts.
TEST(OptimSteps, ElementWithNonFiniteGradientIsNotChanged) {
  Room r(kLayouts[0], {});
  auto g = numbers<double>(kCount, 5);
  g[7] = std::numeric_limits<double>::infinity();
  r.g.write(g);
  const auto before = r.p.read<double>();
  ASSERT_TRUE(ok(perform(Rule::adamw, r, false, {})));
  const auto after = r.p.read<double>();
  EXPECT_EQ(after[7], before[7]);
  EXPECT_NE(after[8], before[8]);
  EXPECT_EQ(r.step.read<std::int64_t>()[0], 1);
}

TEST(OptimSurvey, NormIsTheSameOnHostAndGpu) {
  const auto a = numbers<float>(10000, 1), b = numbers<float>(77, 2);
  double squares = 0;
  for (const auto* v : {&a, &b})
    for (const float x : *v) squares += 0.0625 * static_cast<double>(x) * static_cast<double>(x);
  std::optional<double> norm;
  for (const Where where : kEverywhere) {
    Array one(device_of(where), a), two(device_of(where), b), none(device_of(where), 0, DType::f32);
    const CView list[] = {one.view(), two.view(), none.view()};
    auto found = survey_gradients(list, 0.25, stream_of(where));
    ASSERT_TRUE(ok(found)) << name(where);
    EXPECT_TRUE(found->finite);
    EXPECT_NEAR(found->norm, std::sqrt(squares), 1e-6);
    EXPECT_EQ(found->norm, norm.value_or(found->norm)) << name(where);
    norm = found->norm;
    EXPECT_EQ(found->clip_factor(0), 1);
    EXPECT_EQ(found->clip_factor(1), 1 / (*norm + 1e-6));
    auto bad = a;
    bad[9999] = std::numeric_limits<float>::quiet_NaN();
    one.write(bad);
    found = survey_gradients(list, 0.25, stream_of(where));
    ASSERT_TRUE(ok(found));
    EXPECT_FALSE(found->finite) << name(where);
  }
  EXPECT_EQ(survey_gradients({})->norm, 0);
}

TEST(OptimRefuses, InvalidArgumentsAndChangesNothing) {
  for (const Where where : {Where::host, Where::gpu}) {
    const Device d = device_of(where);
    Room r(kLayouts[1], d);
    const auto before = r.contents();
    AccumAdamState good{r.step.view(), r.s0.view(), r.s1.view(), r.s2.view(), {}};
    const auto refused = [&](const char* what, const Status& s) {
      EXPECT_EQ(s.code(), Code::invalid) << what << " on " << name(where) << ": " << s.message();
      EXPECT_EQ(r.contents(), before) << what;
    };
    const auto with = [&](const AccumAdamOptions& o) { return accum_adam(r.p.view(), r.g.view(), good, o); };
    const double nan = std::numeric_limits<double>::quiet_NaN();
    refused("K = 0", with({.accum_iter = 0}));
    refused("eps < 0", with({.eps = -1e-8}));
    refused("eps NaN", with({.eps = nan}));
    refused("lr NaN", with({.lr = nan}));
    refused("beta1 = 1", with({.beta1 = 1}));
    refused("beta2 < 0", with({.beta2 = -0.1}));
    const auto of = [&](View p, CView g, AccumAdamState s) { return accum_adam(p, g, s, {}); };
    const auto shorter = [](View v) { return View(v.data, v.count - 1, v.dtype, v.device); };
    const auto retyped = [](View v, DType t) { return View(v.data, v.count, t, v.device); };
    const auto moved = [](View v) {
      return View(v.data, v.count, v.dtype, v.device.kind == Device::Kind::host ? kGpu : Device{});
    };
    const auto nowhere = [](View v) { return View(nullptr, v.count, v.dtype, v.device); };
    refused("short gradient", of(r.p.view(), shorter(r.g.view()), good));
    refused("type of the gradient", of(r.p.view(), retyped(r.g.view(), DType::f16), good));
    refused("place of the gradient", of(r.p.view(), moved(r.g.view()), good));
    refused("no gradient", of(r.p.view(), nowhere(r.g.view()), good));
    refused("no parameter", of(nowhere(r.p.view()), r.g.view(), good));
    refused("integers", of(retyped(r.p.view(), DType::i32), retyped(r.g.view(), DType::i32), good));
    for (View AccumAdamState::*field :
         {&AccumAdamState::exp_avg, &AccumAdamState::exp_avg_sq, &AccumAdamState::accum_grad})
      for (const auto& change : {+shorter, +nowhere, +moved}) {
        AccumAdamState bad = good;
        bad.*field = change(bad.*field);
        refused("a state", of(r.p.view(), r.g.view(), bad));
      }
    AccumAdamState bad = good;
    bad.step = retyped(bad.step, DType::f64);
    refused("type of step", of(r.p.view(), r.g.view(), bad));
    bad.step = View(r.step.view().data, 0, DType::i64, d);
    refused("no step", of(r.p.view(), r.g.view(), bad));
    bad = good;
    bad.master = r.master.view();
    refused("master of f32", of(r.p.view(), r.g.view(), bad));
    for (const double a : {-0.1, 1.1, nan})
      refused("adaptive", mix_accum_adam(r.p.view(), r.g.view(), kRow, r.neighbours.view(), a,
                                         r.message.view(), good, {}));
    refused("short neighbours", mix_accum_adam(r.p.view(), r.g.view(), kRow, shorter(r.neighbours.view()), 1,
                                               r.message.view(), good, {}));
    refused("short message", mix_accum_adam(r.p.view(), r.g.view(), kRow, r.neighbours.view(), 1,
                                            shorter(r.message.view()), good, {}));
    refused("damped start", sgd(r.p.view(), r.g.view(), r.s0.view(), {.momentum = 0.9, .dampening = 0.1}));
    SgdState s{r.step.view(), r.s0.view(), {}};
    refused("Nesterov", sgd(r.p.view(), r.g.view(), s, {.nesterov = true}));
    refused("no momentum", sgd(r.p.view(), r.g.view(), nowhere(r.s0.view()), {.momentum = 0.9}));
    const CView mixed[] = {r.g.view(), retyped(r.p.view(), DType::bf16)};
    refused("survey of two types", survey_gradients(mixed).status());
  }
}

}  // namespace
}  // namespace ouro::train
