// Averages, list reductions, uneven gathers and selective averaging; the errors if ranks differ.
#include "ouro/train/average.hpp"

#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "ouro/train/window.hpp"
#include "tests/api/train/arrays.h"
#include "tests/golden_data.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::train {
namespace {

using nlohmann::json;
using test::run_threads;

bool refused(const Status& s) { return s.code() == Code::invalid; }
std::string text(const Status& s) { return s.ok() ? "ok" : s.message(); }

TEST(AverageGolden, AveragedModelsMatchTheRecord) {
  test::CasesRun cases{"averaged models"};
  const json file = test::golden("torchgfn_behaviour.json");
  if (!file.contains("average_models")) return;
  const json& golden = file["average_models"];
  const auto weights = golden.at("weights").get<std::vector<double>>();
  const auto members = golden.at("group").get<std::vector<int>>();
  const double want = golden.at("correct_result");
  cases.add("averaged models");
  EXPECT_EQ("", run_threads(golden.at("world_size"), [&](Context& c) -> std::string {
              if (std::find(members.begin(), members.end(), c.rank()) == members.end()) return "";
              auto group = c.group(members, "agents");
              OURO_RANK_OK(group);
              std::vector<double> x = {weights[static_cast<std::size_t>(c.rank())]};
              const Param p{.name = "w", .value = std::span(x), .grad = {}};
              OURO_RANK_OK(average_models(*group, {&p, 1}));
              OURO_RANK_CHECK(x[0] == want, "{} for {}", x[0], want);
              return "";
            }));
}

TEST(AverageGolden, GatheredRowsMatchTheRecord) {
  test::CasesRun cases{"gathers"};
  const json file = test::golden("torchgfn_behaviour.json");
  if (!file.contains("gather_distributed_data")) return;
  const json& golden = file["gather_distributed_data"];
  const json& inputs = golden.at("inputs_by_rank");
  const auto rows = [](const auto& type, const json& values) {
    using T = std::remove_cvref_t<decltype(type)>;
    std::vector<T> all;
    for (const json& row : values)
      for (const json& x : row) all.push_back(static_cast<T>(x.get<int>()));
    return all;
  };
  const auto check = [&](auto type) {
    using T = decltype(type);
    cases.add("gathers");
    EXPECT_EQ("", run_threads(static_cast<int>(inputs.size()), [&](Context& c) -> std::string {
                const json& mine = inputs.at(static_cast<std::size_t>(c.rank()));
                const auto in = rows(type, mine);
                const std::int64_t shape[] = {static_cast<std::int64_t>(mine.size()), 2};
                auto out = gather_rows(c.world(), std::span<const T>(in), shape);
                OURO_RANK_OK(out);
                OURO_RANK_CHECK(out->has_value() == (c.rank() == 0), "where the result is");
                if (c.rank() != 0) return "";
                const auto want = rows(type, golden.at("rank0"));
                const auto got = (*out)->template as<T>();
                OURO_RANK_CHECK(std::equal(got.begin(), got.end(), want.begin(), want.end()), "{}", got);
                OURO_RANK_CHECK((*out)->shape()[0] == static_cast<std::int64_t>(golden.at("rank0").size()),
                                "rows");
                return "";
              }));
  };
  check(std::int64_t{}), check(double{}), check(float{}), check(std::uint8_t{});
}

TEST(GatherRows, GathersUnevenAndEmptyBlocksOfSeveralTypes) {
  EXPECT_EQ("", run_threads(4, [](Context& c) -> std::string {
              // 300 rows in all, none from rank 1; 3 x 2 elements per row; gathered at rank 2.
              const std::int64_t mine = c.rank() == 1 ? 0 : 100;
              for (const DType t : {DType::bf16, DType::u8, DType::f64, DType::boolean}) {
                std::vector<std::byte> in(static_cast<std::size_t>(mine) * 6 * size_of(t),
                                          std::byte(c.rank() + 1));
                const std::int64_t shape[] = {mine, 3, 2};
                auto out =
                    gather_rows(c.world(), CView(in.data(), static_cast<std::size_t>(mine) * 6, t), shape, 2);
                OURO_RANK_OK(out);
                if (c.rank() != 2) continue;
                OURO_RANK_CHECK((*out)->shape()[0] == 300 && (*out)->shape()[2] == 2, "shape");
                const auto* at = static_cast<const std::byte*>((*out)->view().data);
                std::size_t k = 0;
                for (const int from : {0, 2, 3})
                  for (std::size_t i = 0; i < 600 * size_of(t); ++i)
                    OURO_RANK_CHECK(at[k++] == std::byte(from + 1), "byte {} of type {}", k, name(t));
              }
              const std::int64_t nothing[] = {0, 7};
              auto empty = gather_rows(c.world(), CView(nullptr, 0, DType::f32), nothing);
              OURO_RANK_OK(empty);
              OURO_RANK_CHECK(c.rank() != 0 || ((*empty)->shape()[0] == 0 && (*empty)->shape()[1] == 7),
                              "nothing at all");
              return "";
            }));
}

TEST(GatherRows, MismatchedShapeTypeOrRootIsRefusedOnEveryRank) {
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              std::vector<float> x(12);
              const bool odd = c.rank() == 1;
              const auto with = [&](std::vector<std::int64_t> shape, std::size_t count, DType t, int root) {
                return gather_rows(c.world(), CView(x.data(), count, t), shape, root).status();
              };
              const Status all[] = {
                  with({odd ? 3 : 2, odd ? 2 : 3}, 6, DType::f32, 0),
                  with({2, 3}, 6, odd ? DType::i32 : DType::f32, 0),
                  with({2, 3}, 6, DType::f32, odd ? 1 : 0),
                  with({2, odd ? 4 : 3}, 6, DType::f32, 0),
                  with({2, 3}, 6, DType::f32, 5),
                  odd ? with({}, 1, DType::f32, 0) : with({1}, 1, DType::f32, 0),
              };
              for (const Status& s : all) OURO_RANK_CHECK(refused(s), "case {}: {}", &s - all, text(s));
              OURO_RANK_OK(with({2, 3}, 6, DType::f32, 0));
              return "";
            }));
}

TEST(AverageGradients, IsTheMeanOverTheGroup) {
  EXPECT_EQ(
      "", run_threads(3, [](Context& c) -> std::string {
        auto stream = Stream::create();
        OURO_RANK_OK(stream);
        for (const bool on_stream : {false, true}) {
          std::vector<double> x(3), g(3, c.rank() * 3.0), y(2), h(2);
          std::vector<float> z(1), k(1, static_cast<float>(c.rank()));
          const Param params[] = {{.name = "x", .value = std::span(x), .grad = std::span(g)},
                                  {.name = "y", .value = std::span(y), .grad = {}},
                                  {.name = "z", .value = std::span(z), .grad = std::span(k)}};
          const Status missing = average_gradients(c.world(), params);
          OURO_RANK_CHECK(refused(missing) && text(missing).find("'y' has no gradient") != std::string::npos,
                          "{}", text(missing));
          OURO_RANK_CHECK(g[0] == c.rank() * 3.0, "averaged all the same");
          OURO_RANK_OK(
              average_gradients(c.world(), params, {.skip_missing = true}, on_stream ? *stream : Stream()));
          OURO_RANK_OK(stream->synchronize());
          OURO_RANK_CHECK(g == std::vector<double>(3, 3) && k[0] == 1 && x == std::vector<double>(3), "{} {}",
                          g, k);
        }
        // One rank lacks a gradient that others have: all get an error.
        std::vector<double> x(3), g(3);
        Param p{.name = "x", .value = std::span(x), .grad = std::span(g)};
        if (c.rank() == 2) p.grad = {};
        const Status some = average_gradients(c.world(), {&p, 1}, {.skip_missing = true});
        OURO_RANK_CHECK(refused(some), "{}", text(some));
        return "";
      }));
}

TEST(AverageModels, MismatchIsRefusedOnEveryRankAndTheGroupStaysUsable) {
  for (int odd = 0; odd < 3; ++odd)
    EXPECT_EQ("", run_threads(3, [&](Context& c) -> std::string {
                std::vector<double> x(4, 1);
                std::vector<float> f(4);
                std::vector<std::int32_t> i(4);
                using Change = std::function<void(Param&)>;
                const Change changes[] = {[](Param& p) { p.name = "v"; },
                                          [](Param& p) { p.value.count = 3; },
                                          [&](Param& p) { p.value = std::span(f); },
                                          [&](Param& p) { p.value = std::span(i); },
                                          [](Param& p) { p.value.data = nullptr; },
                                          [](Param& p) {
                                            p.shape = {2, 2};
                                          },
                                          [](Param& p) { p.shape = {5}; },
                                          [](Param& p) {
                                            p.shape = {-2, -2};
                                          }};
                for (const Change& change : changes) {
                  Param p{.name = "w", .value = std::span(x), .grad = {}};
                  if (c.rank() == odd) change(p);
                  const Status s = average_models(c.world(), {&p, 1});
                  OURO_RANK_CHECK(refused(s), "odd {}, change {}: {}", odd, &change - changes, text(s));
                }
                Param p{.name = "w", .value = std::span(x), .grad = {}};
                OURO_RANK_OK(average_models(c.world(), {&p, 1}));
                return "";
              }));
}

TEST(AllReduceList, ConcatenatesReducesAndWritesBack) {
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              std::vector<float> a = {static_cast<float>(c.rank()), 1}, b = {5};
              const CView inputs[] = {std::span<const float>(a), CView(nullptr, 0, DType::f32),
                                      std::span<const float>(b)};
              auto sum = all_reduce_list(c.world(), inputs);
              OURO_RANK_OK(sum);
              const auto got = sum->as<float>();
              OURO_RANK_CHECK(got.size() == 3 && got[0] == 3 && got[1] == 3 && got[2] == 15, "{}", got);
              OURO_RANK_CHECK(a[0] == static_cast<float>(c.rank()), "the input was written");
              const View both[] = {std::span<float>(a), std::span<float>(b)};
              OURO_RANK_OK(all_reduce_list(c.world(), both, ReduceOp::max, {}));
              OURO_RANK_CHECK(a == (std::vector<float>{2, 1}) && b[0] == 5, "{} {}", a, b);
              bool flags[] = {c.rank() == 1, true, false};
              const CView bools[] = {CView(flags, 3, DType::boolean)};
              auto any = all_reduce_list(c.world(), bools),
                   all = all_reduce_list(c.world(), bools, ReduceOp::min);
              OURO_RANK_OK(any);
              OURO_RANK_OK(all);
              OURO_RANK_CHECK(any->as<bool>()[0] && any->as<bool>()[1] && !any->as<bool>()[2], "OR");
              OURO_RANK_CHECK(!all->as<bool>()[0] && all->as<bool>()[1] && !all->as<bool>()[2], "AND");

              std::vector<double> d(1);
              const CView mixed[] = {std::span<const float>(a), std::span<const double>(d)};
              const Status types =
                  all_reduce_list(c.world(), c.rank() == 1 ? std::span<const CView>(mixed) : inputs).status();
              OURO_RANK_CHECK(refused(types), "mixed types: {}", text(types));
              const Status none = all_reduce_list(c.world(), std::span<const CView>{}).status();
              OURO_RANK_CHECK(refused(none), "no inputs: {}", text(none));
              const Status undefined = all_reduce_list(c.world(), inputs, ReduceOp::band).status();
              OURO_RANK_CHECK(refused(undefined), "bitwise on floats: {}", text(undefined));
              return "";
            }));
}

TEST(GatherInto, HasTheShapeThatWasAskedFor) {
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              const std::vector<std::int32_t> in = {c.rank(), 10};
              const std::int64_t shape[] = {3, 2};
              auto out = gather_into(c.world(), std::span<const std::int32_t>(in), shape);
              OURO_RANK_OK(out);
              OURO_RANK_CHECK(out->as<std::int32_t>()[4] == 2 && out->shape().size() == 2, "{}",
                              out->as<std::int32_t>());
              const std::int64_t other[] = {2, 3}, wrong[] = {7};
              OURO_RANK_OK(gather_into(c.world(), std::span<const std::int32_t>(in), other));
              const Status s = gather_into(c.world(), std::span<const std::int32_t>(in),
                                           c.rank() == 0 ? wrong : std::span<const std::int64_t>(shape))
                                   .status();
              OURO_RANK_CHECK(refused(s), "{}", text(s));
              return "";
            }));
}

/// More rows than an address can count, which only the root knows: all get an error, and the group continues.
TEST(GatherRows, TooManyRowsForTheRootIsAnErrorOnAllRanks) {
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              double x = 0;
              const std::int64_t rows[] = {std::int64_t{1} << 59};
              const Status s =
                  gather_rows(c.world(), CView(&x, std::size_t{1} << 59, DType::f64), rows, 1).status();
              OURO_RANK_CHECK(refused(s), "{}", text(s));
              const std::int64_t one[] = {1};
              OURO_RANK_OK(gather_rows(c.world(), std::span<const double>(&x, 1), one, 1));
              return "";
            }));
}

TEST(Averages, RunOnMemoryOfAGpu) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              test::Array a(c.device(), std::vector<float>(5, static_cast<float>(c.rank()))),
                  b(c.device(), std::vector<float>{4});
              const Param params[] = {{.name = "a", .value = a.view(), .grad = {}},
                                      {.name = "b", .value = b.view(), .grad = {}}};
              OURO_RANK_OK(average_models(c.world(), params));
              OURO_RANK_CHECK(a.read<float>() == std::vector<float>(5, 1) && b.read<float>()[0] == 4, "{}",
                              a.read<float>());
              const CView list[] = {a.view(), b.view()};
              auto sum = all_reduce_list(c.world(), list);
              OURO_RANK_OK(sum);
              std::vector<float> got(6);
              auto stream = Stream::create(c.device());
              OURO_RANK_OK(gpu::gpu().copy(got.data(), sum->view().data, 24,
                                           {c.device().index, stream->cuda_handle()}));
              OURO_RANK_OK(gpu::gpu().synchronize(gpu::Stream{c.device().index, stream->cuda_handle()}));
              OURO_RANK_CHECK(got == (std::vector<float>{3, 3, 3, 3, 3, 12}), "{}", got);
              const std::int64_t shape[] = {15};
              OURO_RANK_OK(gather_into(c.world(), a.view(), shape));
              const std::int64_t rows[] = {5};
              OURO_RANK_OK(gather_rows(c.world(), a.view(), rows, 1));
              return "";
            }));
}

TEST(ChooseReplaced, NamesTheWorstAndTheirDonors) {
  const double metric[] = {3, 1, 4, 1, 5};
  const auto mean = choose_replaced(metric, 0.5, Averaging::mean);
  ASSERT_TRUE(test::ok(mean));
  EXPECT_EQ(mean->replaced, (std::vector<int>{1, 3}));
  EXPECT_EQ(mean->donors, (std::vector<int>{0, 2, 4}));
  for (const double w : mean->weights) EXPECT_DOUBLE_EQ(w, 1.0 / 3);
  const auto weighted = choose_replaced(metric, 0, Averaging::weighted_mean);  // at least one
  EXPECT_EQ(weighted->replaced, (std::vector<int>{1}));
  EXPECT_EQ(weighted->donors, (std::vector<int>{0, 2, 3, 4}));
  EXPECT_DOUBLE_EQ(weighted->weights[3], 5.0 / 13);
  const auto best = choose_replaced(metric, 0.4, Averaging::best_only);
  EXPECT_EQ(best->donors, (std::vector<int>{4}));
  EXPECT_EQ(best->weights, (std::vector<double>{1}));
  EXPECT_TRUE(choose_replaced(metric, 0.4, Averaging::reset_weights)->donors.empty());
  EXPECT_TRUE(choose_replaced(metric, 1, Averaging::mean)->donors.empty());
  const double zeros[] = {0, 0}, bad[] = {1, std::nan("")}, negative[] = {1, -1};
  EXPECT_EQ(choose_replaced(zeros, 0.5, Averaging::weighted_mean)->weights, (std::vector<double>{1}));
  EXPECT_TRUE(refused(choose_replaced(metric, 1.5, Averaging::mean).status()));
  EXPECT_TRUE(refused(choose_replaced(metric, std::nan(""), Averaging::mean).status()));
  EXPECT_TRUE(refused(choose_replaced({}, 0.5, Averaging::mean).status()));
  EXPECT_TRUE(refused(choose_replaced(bad, 0.5, Averaging::mean).status()));
  EXPECT_TRUE(refused(choose_replaced(negative, 0.5, Averaging::weighted_mean).status()));
  EXPECT_TRUE(choose_replaced(negative, 0.5, Averaging::mean).ok());
}

TEST(Averages, OneRankAloneKeepsItsValues) {
  EXPECT_EQ("", run_threads(1, [](Context& c) -> std::string {
              std::vector<float> x = {1, 2};
              const Param p{.name = "w", .value = std::span(x), .grad = std::span(x)};
              OURO_RANK_OK(average_models(c.world(), {&p, 1}));
              OURO_RANK_OK(average_gradients(c.world(), {&p, 1}));
              const std::int64_t shape[] = {2};
              auto rows = gather_rows(c.world(), std::span<const float>(x), shape);
              OURO_RANK_OK(rows);
              auto w = Window::create(c.world(), std::span<const float>(x));
              OURO_RANK_OK(w);
              OURO_RANK_CHECK(x == (std::vector<float>{1, 2}) && (*rows)->as<float>()[1] == 2, "{}", x);
              return "";
            }));
}

}  // namespace
}  // namespace ouro::train
