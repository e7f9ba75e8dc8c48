// Local steps with full, bf16 and int8 deltas, ranks that differ, means that fail, saved states.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <thread>

#include "ouro/train/outer.hpp"
#include "tests/api/train/arrays.h"
#include "tests/api/train/federation_cases.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::train {
namespace {

using test::numbers;
using test::run_threads;

using MakeServer = std::function<Result<std::unique_ptr<Optimizer>>()>;

/// 16-bit and 8-bit deltas follow the full ones within their rounding; all ranks have the same bits.
TEST(LocalSteps, CompressedDeltasStayCloseToExactOnes) {
  constexpr std::size_t kCount = 700;  // three blocks, one of them short
  std::vector<float> results[3];
  AggregateTraffic traffic[3];
  for (const DeltaFormat format : {DeltaFormat::exact, DeltaFormat::bf16, DeltaFormat::int8}) {
    const auto f = static_cast<std::size_t>(format);
    ASSERT_EQ(
        "", run_threads(6, [&](Context& c) -> std::string {
          auto groups = test::groups_of(c, {4, 2}, 1, 1);
          OURO_RANK_OK(groups);
          test::NamedArrays<float> model;
          model.add("w", numbers<float>(kCount, 3));
          model.add("b", numbers<float>(5, 4));
          auto server = diloco();
          OURO_RANK_OK(server);
          auto local =
              LocalSteps::create(*groups, model.params(), std::move(*server),
                                 {.inner_steps = 4, .delta = format, .aggregate = {.site_weights = {1, 3}}});
          OURO_RANK_OK(local);
          for (int t = 0; t < 12; ++t) {
            for (std::size_t k = 0; k < 2; ++k)
              for (std::size_t i = 0; i < model.at(k).size(); ++i)
                model.at(k)[i] =
                    static_cast<float>(test::moved(model.at(k)[i], groups->layout.federation->rank, t, i));
            auto outer = local->step();
            OURO_RANK_OK(outer);
            OURO_RANK_CHECK(*outer == ((t + 1) % 4 == 0), "step {}", t);
            if (!*outer) continue;
            std::vector<float> all(6 * kCount);
            OURO_RANK_OK(all_gather(c.world(), std::span<const float>(model.at(0)), std::span<float>(all)));
            for (std::size_t i = 0; i < all.size(); ++i)
              OURO_RANK_CHECK(all[i] == all[i % kCount], "step {}, rank {} has other bits", t, i / kCount);
          }
          OURO_RANK_CHECK(local->rounds() == 3, "{} rounds", local->rounds());
          if (c.rank() == 0) results[f] = model.at(0), traffic[f] = local->traffic();
          return "";
        }));
  }
  double moved_by = 0, bf16 = 0, int8 = 0;
  const std::vector<float> start = numbers<float>(kCount, 3);
  for (std::size_t i = 0; i < kCount; ++i) {
    moved_by = std::max(moved_by, std::abs(double{results[0][i]} - double{start[i]}));
    bf16 = std::max(bf16, std::abs(double{results[1][i]} - double{results[0][i]}));
    int8 = std::max(int8, std::abs(double{results[2][i]} - double{results[0][i]}));
  }
  EXPECT_GT(moved_by, 0.2);
  EXPECT_GT(bf16, 0);
  EXPECT_LT(bf16, 0.02 * moved_by);
  EXPECT_GT(int8, 0);
  EXPECT_LT(int8, 0.04 * moved_by);
  EXPECT_EQ(traffic[0].across, (kCount + 5) * 4);
  EXPECT_EQ(traffic[1].across, (kCount + 5) * 2);
  EXPECT_EQ(traffic[2].across, kCount + 5 + 4 * (3 + 1));
}

TEST(LocalSteps, Int8DeltaSkipsABlockThatIsNotFinite) {
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              auto groups = test::groups_of(c, {1, 1}, {}, 1);
              OURO_RANK_OK(groups);
              test::NamedArrays<float> model;
              model.add("w", std::vector<float>(512, 1));
              auto local = LocalSteps::create(*groups, model.params(), *fed_avg(),
                                              {.inner_steps = 1, .delta = DeltaFormat::int8});
              OURO_RANK_OK(local);
              for (float& x : model.at(0)) x = 2;
              if (c.rank() == 1) model.at(0)[3] = INFINITY;
              OURO_RANK_OK(local->step());
              OURO_RANK_CHECK(model.at(0)[0] == 1 && std::abs(model.at(0)[300] - 2) < 1e-6, "{} {}",
                              model.at(0)[0], model.at(0)[300]);
              return "";
            }));
}

TEST(LocalSteps, LayersThatAreFilteredOutStayLocal) {
  EXPECT_EQ(
      "", run_threads(2, [](Context& c) -> std::string {
        auto groups = test::groups_of(c, {1, 1}, {}, 1);
        OURO_RANK_OK(groups);
        const auto mine = static_cast<double>(c.rank());
        test::NamedArrays<double> model;
        model.add("body", {0}), model.add("head", {0});
        auto local = LocalSteps::create(
            *groups, model.params(), *fed_avg(),
            {.inner_steps = 1, .aggregate = {.filter = [](const Param& p) { return p.name == "body"; }}});
        OURO_RANK_OK(local);
        model.at(0)[0] = model.at(1)[0] = mine;
        OURO_RANK_OK(local->step());
        OURO_RANK_CHECK(model.at(0)[0] == 0.5 && model.at(1)[0] == mine, "{} {}", model.at(0)[0],
                        model.at(1)[0]);
        return "";
      }));
}

/// Ranks of a round that do not match: all get an error, whatever the format of the delta, and keep
/// their parameters.
TEST(LocalSteps, DifferingRanksAreRefusedAndKeepTheirParameters) {
  using Change =
      std::function<void(test::NamedArrays<float>&, LocalStepsOptions&, std::unique_ptr<Optimizer>&)>;
  const Change changes[] = {
      [](auto& model, auto&, auto&) { model.at(0).resize(8); },
      [](auto&, auto& o, auto&) { o.inner_steps = 2; },
      [](auto&, auto& o, auto&) { o.outer.clip_norm = 1; },
      [](auto&, auto&, auto& optimizer) { optimizer = *fed_avg(1, 0.5); },
      [](auto&, auto&, auto& optimizer) { optimizer = *fed_adam(); },
  };
  for (const DeltaFormat format : {DeltaFormat::exact, DeltaFormat::bf16, DeltaFormat::int8})
    EXPECT_EQ("", run_threads(3, [&](Context& c) -> std::string {
                auto groups = test::groups_of(c, {2, 1}, 1, 1);
                OURO_RANK_OK(groups);
                for (const Change& change : changes) {
                  test::NamedArrays<float> model;
                  model.add("w", std::vector<float>(9, 1));
                  LocalStepsOptions o{.inner_steps = 1, .delta = format};
                  std::unique_ptr<Optimizer> optimizer = *fed_avg();
                  if (c.rank() == 1) change(model, o, optimizer);
                  auto local = LocalSteps::create(*groups, model.params(), std::move(optimizer), o);
                  OURO_RANK_OK(local);
                  const std::vector<float> trained(model.at(0).size(), static_cast<float>(2 + c.rank()));
                  model.at(0).assign(trained.begin(), trained.end());
                  Result<bool> s = false;
                  for (std::int64_t t = 0; t < o.inner_steps; ++t) s = local->step();
                  OURO_RANK_CHECK(s.status().code() == Code::invalid, "change {}: {}", &change - changes,
                                  s.ok() ? "ok" : s.status().message());
                  OURO_RANK_CHECK(model.at(0) == trained, "change {}: {} is left", &change - changes,
                                  model.at(0)[0]);
                }
                return "";
              }));
}

/// A mean that fails in a GPU's stream must not become a step.
TEST(LocalSteps, AMeanThatFailsOnAGpuIsNoStep) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              auto groups = test::groups_of(c, {1, 1}, {}, 1);
              OURO_RANK_OK(groups);
              test::Array x(c.device(), std::vector<float>(100, 1));
              const Param p{.name = "w", .value = x.view(), .grad = {}};
              auto stream = Stream::create(c.device());
              OURO_RANK_OK(stream);
              auto local = LocalSteps::create(*groups, {&p, 1}, *fed_avg(), {.inner_steps = 1});
              OURO_RANK_OK(local);
              OURO_RANK_OK(local->step(*stream));
              if (c.rank() == 1) {  // never enters the second round
                std::this_thread::sleep_for(std::chrono::milliseconds(200));
                groups->federated[0].abort("enough");
                return "";
              }
              const Result<bool> s = local->step(*stream);
              OURO_RANK_CHECK(!s.ok(), "a step without a mean");
              OURO_RANK_CHECK(local->rounds() == 1, "{} rounds", local->rounds());
              return "";
            }));
}

// ---- saved states ------------------------------------------------------------------------------------

/// Interrupted in every inner step, saved, and continued by others: the bits of an uninterrupted run.
TEST(LocalStepsSave, ResumesBitForBit) {
  const MakeServer servers[] = {[] { return diloco(); }, [] { return fed_yogi(); }};
  for (const MakeServer& make : servers)
    for (const DeltaFormat format : {DeltaFormat::exact, DeltaFormat::bf16, DeltaFormat::int8})
      EXPECT_EQ("", run_threads(2, [&](Context& c) -> std::string {
                  auto groups = test::groups_of(c, {1, 1}, {}, 1);
                  OURO_RANK_OK(groups);
                  const LocalStepsOptions o{.inner_steps = 3,
                                            .delta = format,
                                            .outer = {.schedule = Schedule([](std::int64_t u) {
                                                        return 1 / (1.0 + static_cast<double>(u));
                                                      }),
                                                      .clip_norm = 0.5}};
                  test::NamedArrays<float> straight, broken;
                  for (auto* m : {&straight, &broken})
                    m->add("w", numbers<float>(300, 3)), m->add("b", {1, 2});
                  auto a = LocalSteps::create(*groups, straight.params(), *make(), o);
                  OURO_RANK_OK(a);
                  Bytes state;
                  for (int t = 0; t < 10; ++t) {
                    auto b = LocalSteps::create(*groups, broken.params(), *make(), o);
                    OURO_RANK_OK(b);
                    if (t > 0) OURO_RANK_OK(b->load(state));
                    for (auto* m : {&straight, &broken})
                      for (std::size_t k = 0; k < 2; ++k)
                        for (std::size_t i = 0; i < m->at(k).size(); ++i)
                          m->at(k)[i] = static_cast<float>(test::moved(m->at(k)[i], c.rank(), t, i));
                    auto one = a->step(), two = b->step();
                    OURO_RANK_OK(one);
                    OURO_RANK_OK(two);
                    OURO_RANK_CHECK(*one == *two && a->rounds() == b->rounds(), "step {}", t);
                    for (std::size_t k = 0; k < 2; ++k)
                      OURO_RANK_CHECK(straight.at(k) == broken.at(k), "step {}: other bits", t);
                    auto saved = b->save();
                    OURO_RANK_OK(saved);
                    state = std::move(*saved);
                  }
                  Bytes damaged = state;
                  damaged[damaged.size() / 2] ^= std::byte{1};
                  auto other = LocalSteps::create(*groups, broken.params(), *fed_avg(), o);
                  OURO_RANK_OK(other);
                  for (const Bytes& bad : {damaged, Bytes(), state})  // the last is of another rule
                    OURO_RANK_CHECK(other->load(bad).code() == Code::invalid, "{} bytes", bad.size());
                  OURO_RANK_CHECK(other->rounds() == 0, "{} rounds", other->rounds());
                  return "";
                }));
}

TEST(LocalStepsSave, StatesOfDifferentRoundsAreRefused) {
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              auto groups = test::groups_of(c, {1, 1}, {}, 1);
              OURO_RANK_OK(groups);
              test::NamedArrays<float> model;
              model.add("w", {1, 2, 3});
              const auto make = [&] {
                return LocalSteps::create(*groups, model.params(), *fed_avg(), {.inner_steps = 1});
              };
              auto first = make();
              OURO_RANK_OK(first);
              auto before = first->save();
              OURO_RANK_OK(before);
              OURO_RANK_OK(first->step());
              auto after = first->save();
              OURO_RANK_OK(after);
              auto second = make();
              OURO_RANK_OK(second);
              OURO_RANK_OK(second->load(c.rank() == 0 ? *before : *after));
              const Status s = second->step().status();
              OURO_RANK_CHECK(s.code() == Code::invalid, "{}", s.ok() ? "ok" : s.message());
              return "";
            }));
}

}  // namespace
}  // namespace ouro::train
