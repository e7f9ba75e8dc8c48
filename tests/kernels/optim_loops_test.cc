// The optimiser loops against the scalar arithmetic, bit for bit, on every instruction set of this machine;
// fused operations against the separate calls; what they must refuse and leave alone.
#include <gtest/gtest.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>
#include <vector>

#include "kernels/host/host_job.h"
#include "tests/float_modes.h"
#include "tests/kernels/optim_cases.h"

namespace ouro::kernels::optim {
namespace {

class OptimLoops : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!use_instruction_set(GetParam())) GTEST_SKIP() << "this processor has no " << GetParam();
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, OptimLoops, testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& info) { return std::string(info.param); });

TEST(OptimCases, CoverEveryRule) {
  std::vector<bool> seen;
#define OURO_X(e, Rule) seen.push_back(false);
  OURO_UPDATES(OURO_X)
#undef OURO_X
  for (const Call& c : all_calls()) {
    seen[static_cast<std::size_t>(c.update)] = true;
    if (c.update >= Update::accum_first) {
      EXPECT_EQ(arith::accum_update(c.recipe.step, c.recipe.accum_iter, c.lazy_zero), c.update) << c.name;
    }
  }
  for (std::size_t k = 0; k < seen.size(); ++k) EXPECT_TRUE(seen[k]) << k;
}

TEST_P(OptimLoops, EqualTheScalarRules) {
  const Fused plain, scaled{.scale = {.inverse = 1.0 / 3, .clip = 0.7}};
  for (const Call& call : all_calls())
    for (const Layout layout : kLayouts)
      for (const std::size_t count : {0, 1, 2, 7, 15, 16, 17, 31, 33, 64, 100, 1023, 1025, 2500})
        for (const std::size_t shift : {0, 1, 6}) {
          Arrays want(layout, count, shift, count + shift), got = want;
          const Exchange there = want.exchange(), here = got.exchange();
          for (const bool mixed : {false, true}) {
            Fused a = count % 2 == 0 ? scaled : plain, b = a;
            if (mixed) a.exchange = &there, b.exchange = &here;
            const bool finite = oracle(call, want, a);
            const Result<Report> report = perform(call, got, b);
            ASSERT_TRUE(report.ok()) << report.status().message();
            EXPECT_EQ(report->finite, finite);
            ASSERT_TRUE(got == want) << call.name << ", " << label(layout) << ", " << count << " elements, "
                                     << shift << " bytes off, " << (mixed ? "mixed" : "not mixed");
          }
        }
}

/// The caller's floating-point mode has no part in a step, and comes back after it.
TEST_P(OptimLoops, UpdatesIgnoreTheCallersFloatingPointMode) {
  const Fused scaled{.scale = {.inverse = 1.0 / 3, .clip = 0.7}};
  for (const test::FloatMode& mode : test::kFloatModes)
    for (const Call& call : all_calls())
      for (const Layout layout : kLayouts) {
        Arrays want(layout, 100, 0, 3), got = want;
        const Exchange there = want.exchange(), here = got.exchange();
        Fused a = scaled, b = scaled;
        a.exchange = &there, b.exchange = &here;
        ASSERT_TRUE(perform(call, want, a).ok());
        {
          const test::InFloatMode other(mode);
          ASSERT_TRUE(perform(call, got, b).ok());
          ASSERT_TRUE(other.holds()) << mode.name;
        }
        ASSERT_TRUE(got == want) << call.name << ", " << label(layout) << ", " << mode.name;
      }
}

TEST_P(OptimLoops, SurveysIgnoreTheCallersFloatingPointMode) {
  std::vector<float> gradient(100'003);
  for (std::size_t i = 0; i < gradient.size(); ++i)
    gradient[i] =
        std::ldexp(1.0F + static_cast<float>(i % 1013) / 1013, i % 7 == 0 ? -140 : -static_cast<int>(i % 20));
  const auto survey_all = [&] {
    return survey(DType::f32, gradient.data(), gradient.size(), {1.0 / 3, 0.7})->squares;
  };
  const double want = survey_all();
  for (const test::FloatMode& mode : test::kFloatModes) {
    const test::InFloatMode other(mode);
    EXPECT_EQ(survey_all(), want) << mode.name;
  }
}

/// The scalar rules are compiled for this processor too; this number was computed on x86-64.
TEST_P(OptimLoops, BitsAreThoseOfEveryProcessor) {
  std::uint64_t digest = 0;
  for (const Call& call : all_calls())
    for (const Layout layout : kLayouts) {
      Arrays a(layout, 1025, 0, 77);
      const Exchange here = a.exchange();
      const Fused fused{.scale = {.inverse = 1.0 / 3, .clip = 0.7}, .exchange = &here};
      ASSERT_TRUE(perform(call, a, fused).ok());
      for (const Bytes* b : {&a.value, &a.master, &a.state[0], &a.state[1], &a.state[2], &a.message})
        digest = XXH3_64bits_withSeed(b->data(), b->size(), digest);
    }
  EXPECT_EQ(digest, 14024576799556597907u);
}

TEST_P(OptimLoops, FusedCallEqualsMixUpdateAndPack) {
  for (const Call& call : all_calls())
    for (const Layout layout : kLayouts) {
      Arrays fused(layout, 1500, 0, 11), separate = fused;
      const Exchange here = fused.exchange(), there = separate.exchange();
      ASSERT_TRUE(perform(call, fused, {.exchange = &here}).ok());
      ASSERT_TRUE(mix(separate.parameters(), there).ok());
      ASSERT_TRUE(perform(call, separate).ok());
      ASSERT_TRUE(pack(separate.parameters(), there).ok());
      ASSERT_TRUE(fused == separate) << call.name << ", " << label(layout);
    }
}

/// The next message may overwrite the neighbours' values.
TEST_P(OptimLoops, ExchangeInPlaceEqualsSeparateBuffers) {
  for (const Layout layout : kLayouts) {
    Arrays apart(layout, 1500, 0, 12), one = apart;
    const Call call = all_calls().back();
    const Exchange there = apart.exchange();
    Exchange here = one.exchange();
    here.message = one.at(one.neighbours);
    ASSERT_TRUE(perform(call, apart, {.exchange = &there}).ok());
    ASSERT_TRUE(perform(call, one, {.exchange = &here}).ok());
    EXPECT_EQ(one.value, apart.value);
    EXPECT_EQ(one.neighbours, apart.message);
  }
}

TEST_P(OptimLoops, MasterIsTheUnroundedParameter) {
  for (const DType t : {DType::bf16, DType::f16}) {
    Arrays half({t, true}, 3000, 0, 5, false), full({DType::f32, false}, 3000, 0, 5, false);
    full.value = half.master;
    for (std::size_t i = 0; i < half.count; ++i)  // the gradients that 16 bits can represent
      reference::store(
          DType::f32, full.at(full.gradient), i,
          reference::encode(DType::f32, reference::decode(t, reference::load(t, half.at(half.gradient), i))));
    for (const Call& call : all_calls()) {
      ASSERT_TRUE(perform(call, half).ok());
      ASSERT_TRUE(perform(call, full).ok());
      ASSERT_EQ(half.master, full.value) << call.name;
      for (std::size_t i = 0; i < half.count; ++i)
        ASSERT_EQ(
            reference::load(t, half.at(half.value), i),
            reference::encode(
                t, reference::decode(DType::f32, reference::load(DType::f32, half.at(half.master), i))));
    }
  }
}

/// A gradient that is infinite or not a number leaves its element unchanged and does not affect any
/// other element.
TEST_P(OptimLoops, NonfiniteGradientsAreSkippedAndReported) {
  for (const Layout layout : kLayouts)
    for (const Call& call : all_calls()) {
      const bool starts = call.update == Update::sgd_start || call.update == Update::accum_first;
      const bool closes = call.update == Update::accum_last || call.update == Update::accum_only ||
                          call.update == Update::accum_last_zero;
      Arrays clean(layout, 37, 0, 3, false);
      const Arrays before = clean;
      ASSERT_TRUE(perform(call, clean)->finite);
      for (const double strange : {double(INFINITY), double(-INFINITY), double(NAN)})
        for (const std::size_t where : {0, 16, 36}) {
          Arrays got = before;
          reference::store(layout.dtype, got.at(got.gradient), where,
                           reference::encode(layout.dtype, strange));
          ASSERT_FALSE(perform(call, got)->finite) << call.name << ", " << label(layout);
          const auto same = [&](const Bytes& now, const Bytes& then, const Bytes& moved, DType t) {
            Bytes want = moved;
            std::memcpy(want.data() + where * size_of(t), then.data() + where * size_of(t), size_of(t));
            return now == want;
          };
          const DType wide = layout.dtype == DType::f64 ? DType::f64 : DType::f32;
          // With a master, the parameter becomes the rounded master; the two differ before the first call.
          if (!layout.master) {
            ASSERT_TRUE(same(got.value, before.value, clean.value, layout.dtype)) << call.name;
          }
          ASSERT_TRUE(same(got.master, before.master, clean.master, DType::f32));
          // The oracle checks states that start at zero and windows that end here.
          if (starts || closes) continue;
          for (int k = 0; k < 3; ++k)
            ASSERT_TRUE(same(got.state[k], before.state[k], clean.state[k], wide)) << call.name << k;
        }
    }
}

TEST_P(OptimLoops, OverflowOfTheScaledGradientIsReported) {
  std::vector<float> p(40, 1.0f), g(40, 1.0f), m(40), v(40);
  g[39] = 3e38f;
  const Parameters run{DType::f32, p.data(), g.data(), nullptr, 40};
  const auto report = adam(run, m.data(), v.data(), {}, 1, {.scale = {.inverse = 2}});
  EXPECT_FALSE(report->finite);
  EXPECT_EQ(p[39], 1.0f);
  EXPECT_LT(p[38], 1.0f);
}

TEST_P(OptimLoops, LazyZeroEqualsPlainZero) {
  for (const Layout layout : kLayouts)
    for (const int window : {1, 2, 3, 4, 7}) {
      const std::size_t n = 203;
      Arrays plain(layout, n, 0, 21, false);
      std::fill(plain.state[2].begin(), plain.state[2].end(), std::byte{0});
      Arrays lazy = plain;
      // NaN, which would show if anything read it.
      std::fill(lazy.state[2].begin(), lazy.state[2].end(), std::byte{0xff});
      AccumAdamOptions options{.adam = {.weight_decay = 0.1, .decoupled = true}, .accum_iter = window};
      for (std::int64_t step = 1; step <= 3 * window + 2; ++step) {
        // Includes unusual values: infinities at the first, the middle and the last step of windows.
        plain.gradient = lazy.gradient =
            Arrays(layout, n, 0, 100 + static_cast<std::uint64_t>(step)).gradient;
        const auto run = [&](Arrays& a, bool lazily) {
          options.lazy_zero = lazily;
          return accum_adam(a.parameters(), a.at(a.state[0]), a.at(a.state[1]), a.at(a.state[2]), options,
                            step)
              ->finite;
        };
        ASSERT_EQ(run(plain, false), run(lazy, true));
        ASSERT_EQ(plain.value, lazy.value) << label(layout) << " K " << window << " step " << step;
        ASSERT_EQ(plain.master, lazy.master);
        ASSERT_EQ(plain.state[0], lazy.state[0]);
        ASSERT_EQ(plain.state[1], lazy.state[1]);
        const std::size_t bytes = n * (layout.dtype == DType::f64 ? 8 : 4);
        if (accumulator_is_zero(step, window))
          ASSERT_EQ(Bytes(bytes), Bytes(plain.state[2].begin(),
                                        plain.state[2].begin() + static_cast<std::ptrdiff_t>(bytes)));
        else
          ASSERT_EQ(std::memcmp(plain.state[2].data(), lazy.state[2].data(), bytes), 0);
      }
    }
}

/// A window of one step equals Adam: the accumulating form stores the moments already decayed.
TEST_P(OptimLoops, WindowOfOneEqualsAdam) {
  for (const Layout layout : kLayouts)
    for (const bool decoupled : {false, true}) {
      Arrays one(layout, 500, 0, 31, false);
      for (Bytes& s : one.state) std::fill(s.begin(), s.end(), std::byte{0});
      Arrays two = one;
      const AdamOptions options{.lr = 0.01, .weight_decay = 0.1, .decoupled = decoupled};
      for (std::int64_t step = 1; step <= 20; ++step) {
        one.gradient = two.gradient =
            Arrays(layout, 500, 0, 50 + static_cast<std::uint64_t>(step), false).gradient;
        ASSERT_TRUE(adam(one.parameters(), one.at(one.state[0]), one.at(one.state[1]), options, step).ok());
        ASSERT_TRUE(accum_adam(two.parameters(), two.at(two.state[0]), two.at(two.state[1]),
                               two.at(two.state[2]), {.adam = options, .accum_iter = 1}, step)
                        .ok());
        ASSERT_EQ(one.value, two.value) << label(layout) << " step " << step;
        ASSERT_EQ(one.master, two.master);
      }
    }
}

TEST_P(OptimLoops, SurveyFindsEveryNonfiniteGradient) {
  for (const Layout layout : {kLayouts[0], kLayouts[1], kLayouts[2], kLayouts[4]})
    for (const std::size_t count : {1, 63, 65, 200, 4097}) {
      Arrays a(layout, count, 1, 41, false);
      long double squares = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const long double g =
            reference::decode(layout.dtype, reference::load(layout.dtype, a.at(a.gradient), i));
        squares += g * g;
      }
      const auto found = survey(layout.dtype, a.at(a.gradient), count);
      EXPECT_TRUE(found->finite);
      EXPECT_NEAR(found->squares, static_cast<double>(squares), 1e-13 * static_cast<double>(squares));
      const auto quarter = survey(layout.dtype, a.at(a.gradient), count, {.inverse = 0.5});
      EXPECT_EQ(quarter->squares, found->squares / 4);
      use_instruction_set("baseline");
      EXPECT_EQ(survey(layout.dtype, a.at(a.gradient), count)->squares, found->squares) << "other bits";
      use_instruction_set(GetParam());
      for (std::size_t i = 0; i<count; i += count> 300 ? 61 : 1)
        for (const double strange : {double(INFINITY), double(NAN)}) {
          const reference::Bits kept = reference::load(layout.dtype, a.at(a.gradient), i);
          reference::store(layout.dtype, a.at(a.gradient), i, reference::encode(layout.dtype, strange));
          const auto after = survey(layout.dtype, a.at(a.gradient), count);
          EXPECT_FALSE(after->finite) << i;
          EXPECT_FALSE(std::isfinite(after->squares));
          reference::store(layout.dtype, a.at(a.gradient), i, kept);
        }
    }
  EXPECT_EQ(survey(DType::f32, nullptr, 0)->squares, 0);
}

TEST(OptimChecks, RefuseInvalidArgumentsBeforeAnyWrite) {
  std::vector<float> p(8, 1), g(8, 1), m(8), v(8), a(8);
  const Parameters good{DType::f32, p.data(), g.data(), nullptr, 8};
  Parameters integers = good, mastered = good, empty = good, blind = good;
  integers.dtype = DType::i32;
  mastered.master = a.data();
  empty.value = nullptr;
  blind.gradient = nullptr;
  const auto code = [&](const Parameters& x, const AdamOptions& o = {}, std::int64_t step = 1,
                        void* state = nullptr, const Fused& fused = {}) {
    return adam(x, state != nullptr ? state : m.data(), v.data(), o, step, fused).status().code();
  };
  EXPECT_EQ(code(integers), Code::invalid);
  EXPECT_EQ(code(mastered), Code::invalid);
  EXPECT_EQ(code(empty), Code::invalid);
  EXPECT_EQ(code(blind), Code::invalid);
  EXPECT_EQ(code(good, {}, 0), Code::invalid);
  EXPECT_EQ(code(good, {.beta1 = 1}), Code::invalid);
  EXPECT_EQ(code(good, {.beta2 = -0.1}), Code::invalid);
  EXPECT_EQ(code(good, {.beta2 = NAN}), Code::invalid);
  EXPECT_EQ(code(good, {.eps = -1}), Code::invalid);
  const Exchange half{.neighbours = a.data()};
  EXPECT_EQ(code(good, {}, 1, nullptr, {.exchange = &half}), Code::invalid);
  EXPECT_EQ(adam(good, nullptr, v.data(), {}, 1).status().code(), Code::invalid);
  EXPECT_EQ(sgd(good, nullptr, {.momentum = 0.9}, 1).status().code(), Code::invalid);
  EXPECT_EQ(sgd(good, m.data(), {.nesterov = true}, 1).status().code(), Code::invalid);
  EXPECT_EQ(sgd(good, m.data(), {.momentum = 0.9, .dampening = 0.1, .nesterov = true}, 1).status().code(),
            Code::invalid);
  const auto accumulate = [&](int window, std::int64_t step) {
    return accum_adam(good, m.data(), v.data(), a.data(), {.accum_iter = window}, step).status().code();
  };
  EXPECT_EQ(accumulate(0, 1), Code::invalid);
  EXPECT_EQ(accumulate(4, 0), Code::invalid);
  EXPECT_EQ(accum_adam(good, m.data(), v.data(), nullptr, {}, 1).status().code(), Code::invalid);
  EXPECT_EQ(mix(good, {}).code(), Code::invalid);
  EXPECT_EQ(pack(good, {}).code(), Code::invalid);
  EXPECT_EQ(survey(DType::i8, g.data(), 8).status().code(), Code::invalid);
  EXPECT_EQ(survey(DType::f32, nullptr, 8).status().code(), Code::invalid);
  EXPECT_EQ(p, std::vector<float>(8, 1));
  EXPECT_EQ(m, std::vector<float>(8));
  EXPECT_EQ(code(good), Code::ok);
  empty.count = blind.count = 0;  // without elements no arrays are needed
  EXPECT_EQ(code(empty), Code::ok);
  EXPECT_EQ(code(blind), Code::ok);
}

}  // namespace
}  // namespace ouro::kernels::optim
