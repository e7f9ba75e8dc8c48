// What belongs to a shard and what to all ranks: memory, frozen parameters, the norm, the loss scale,
// schedules. Ranks are threads.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>

#include "tests/api/train/shard_ranks.h"

namespace ouro::train {
namespace {

using namespace ouro::test;  // NOLINT

TEST(ShardMemory, EachElementIsUpdatedOnOneRankOnly) {
  const auto body = [](Context& c) -> std::string {
    constexpr std::size_t kElements = 4096;
    ShardModel<float> model({{"w", {64, 64}}, {"v", {3}}});
    std::atomic<std::size_t> updated{0}, offered{0};
    ShardOptions o = shard_options();
    const OptimizerFactory rule = counting(o.optimizer, updated);
    o.optimizer = [&](std::span<const Param> mine) -> Result<std::unique_ptr<Optimizer>> {
      for (const Param& p : mine) offered += p.value.count;
      return rule(mine);
    };
    auto made = make_trainer(c, c.world_size(), model.params(), o);
    OURO_RANK_OK(made);
    OURO_RANK_OK(shard_step<float>(*made, c.rank(), 0));
    std::size_t mine = 0;
    for (const Param& p : made->shard()) mine += p.value.count;
    OURO_RANK_CHECK(updated == mine && offered == mine, "{} of {} updated, {} offered", updated.load(), mine,
                    offered.load());
    const auto n = static_cast<std::size_t>(c.world_size());
    OURO_RANK_CHECK(mine <= (kElements + 32 + 32 * n) / n, "{} of {} elements on one of {} ranks", mine,
                    kElements, n);
    std::uint64_t all = mine;
    OURO_RANK_OK(all_reduce(c.world(), std::span<const std::uint64_t>(&all, 1), std::span(&all, 1)));
    OURO_RANK_CHECK(all == kElements + 3, "{} elements on all ranks", all);
    for (const BucketLayout& b : made->buckets())
      OURO_RANK_CHECK(b.length % (32 * n) == 0, "a block of {} elements for {} ranks", b.length, n);
    return text(made->close()) == "ok" ? "" : "close";
  };
  for (const int n : {1, 3, 4}) EXPECT_EQ(run_threads(n, body), "") << n;
}

TEST(ShardMemory, SavedStateHasTheSizeOfTheShard) {
  const auto body = [](Context& c) -> std::string {
    ShardModel<float> model({{"w", {128, 128}}});
    auto made = make_trainer(c, 4, model.params(), shard_options());
    OURO_RANK_OK(made);
    OURO_RANK_OK(shard_step<float>(*made, c.rank(), 0));
    const auto saved = made->save();
    OURO_RANK_OK(saved);
    const std::size_t shard = 128 * 128 / 4 * 3 * sizeof(float);  // value and two moments
    OURO_RANK_CHECK(saved->size() >= shard && saved->size() < shard + 512, "{} bytes for {}", saved->size(),
                    shard);
    return text(made->close()) == "ok" ? "" : "close";
  };
  EXPECT_EQ(run_threads(4, body), "");
}

TEST(ShardMemory, ValuesLieInTheBucketOnlyIfTheOptionSaysSo) {
  const auto body = [](Context& c) -> std::string {
    for (const bool in_bucket : {true, false}) {
      ShardModel<float> model;
      const std::vector<std::vector<float>> before = model.values;
      ShardOptions o = shard_options();
      o.params_in_bucket = o.grads_in_bucket = in_bucket;
      auto made = make_trainer(c, c.world_size(), model.params(), o);
      OURO_RANK_OK(made);
      OURO_RANK_OK(shard_step<float>(*made, c.rank(), 0));
      for (std::size_t i = 0; i < model.values.size(); ++i) {
        const Param& p = made->params()[i];
        OURO_RANK_CHECK((p.value.data != model.values[i].data()) == in_bucket, "value {}", i);
        OURO_RANK_CHECK((p.grad.data != model.grads[i].data()) == in_bucket, "gradient {}", i);
        OURO_RANK_CHECK((model.values[i] == before[i]) == in_bucket, "value {} was {} touched", i,
                        in_bucket ? "" : "not");
      }
      OURO_RANK_OK(made->close());
    }
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

TEST(ShardMemory, FrozenParametersAreTakenFromRankZeroOnlyIfSyncAll) {
  const auto body = [](Context& c) -> std::string {
    for (const bool sync_all : {true, false})
      for (const int shards : {4, 2, 1}) {
        ShardModel<float> model;
        for (auto& v : model.values) v[0] += static_cast<float>(c.rank());  // rank 0's values are used
        float frozen = static_cast<float>(c.rank());
        std::vector<Param> params = model.params();
        params.insert(params.begin() + 2, {"frozen", std::span<float>(&frozen, 1), {}, {1}});
        ShardOptions o = shard_options();
        o.sync_all = sync_all;
        auto made = make_trainer(c, shards, params, o);
        OURO_RANK_OK(made);
        std::vector<Param> trained(made->params().begin(), made->params().end());
        trained.erase(trained.begin() + 2);
        OURO_RANK_CHECK(same_bits(flat<float>(trained), flat<float>(ShardModel<float>().params())),
                        "not rank 0's values");
        OURO_RANK_OK(shard_step<float>(*made, c.rank(), 0));
        OURO_RANK_CHECK(frozen == (sync_all ? 0.f : static_cast<float>(c.rank())), "{}", frozen);
        OURO_RANK_CHECK(says(made->grad_ready(2), "is frozen"), "");
        OURO_RANK_OK(made->close());
      }
    return "";
  };
  EXPECT_EQ(run_threads(4, body), "");
}

// ---- clipping, scaling, schedules -----------------------------------------------------------------

TEST(ShardClip, TakesTheNormOfAllShards) {
  const auto body = [](Context& c) -> std::string {
    for (const int shards : {c.world_size(), 2, 1}) {
      ShardModel<double> model;
      ShardOptions o = shard_options(0.001);
      o.optimizer = optim_fn_sgd({.lr = 0.1});
      o.clip_norm = 1;
      auto made = make_trainer(c, shards, model.params(), o);
      OURO_RANK_OK(made);
      OURO_RANK_CHECK(std::isnan(made->grad_norm()), "");
      Serial<double> alone(c.world_size(), shards, o.optimizer);
      for (int step = 0; step < 3; ++step) {
        OURO_RANK_OK(shard_step<double>(*made, c.rank(), step));
        alone.gradients(step);
        const double norm = alone.norm();
        OURO_RANK_CHECK(norm > 1.5 && std::abs(made->grad_norm() - norm) < 1e-13 * norm, "{} for {}",
                        made->grad_norm(), norm);
        OURO_RANK_OK(alone.step(step, {.scale = {.clip = 1 / (norm + 1e-6)}}));
        const std::vector<double> got = flat<double>(made->params()), want = alone.values();
        for (std::size_t k = 0; k < got.size(); ++k)
          OURO_RANK_CHECK(std::abs(got[k] - want[k]) < 1e-13, "{} for {}", got[k], want[k]);
        std::vector<double> most(got);
        OURO_RANK_OK(all_reduce(c.world(), std::span<const double>(got), std::span(most), ReduceOp::max));
        OURO_RANK_CHECK(same_bits(most, got), "other bits on another rank");
      }
      OURO_RANK_OK(made->close());
    }
    return "";
  };
  EXPECT_EQ(run_threads(4, body), "");
}
TEST(ShardClip, LeavesSmallGradientsAlone) {
  const auto body = [](Context& c) -> std::string {
    ShardModel<float> model;
    ShardOptions o = shard_options();
    o.clip_norm = 1e6;
    auto made = make_trainer(c, 3, model.params(), o);
    OURO_RANK_OK(made);
    Serial<float> alone(3, 3, o.optimizer);
    OURO_RANK_OK(shard_step<float>(*made, c.rank(), 0));
    OURO_RANK_OK(alone.step(0));
    OURO_RANK_CHECK(same_bits(flat<float>(made->params()), alone.values()), "");
    return text(made->close()) == "ok" ? "" : "close";
  };
  EXPECT_EQ(run_threads(3, body), "");
}

/// An infinity in one element on one rank: no rank updates, the scale is halved everywhere, and the schedule
/// does not advance.
TEST(ShardScaler, OverflowOnOneRankSkipsTheStepOnAllRanks) {
  const auto body = [](Context& c) -> std::string {
    for (const int shards : {c.world_size(), 2, 1}) {
      ShardModel<float> model;
      ShardOptions o = shard_options(0.001);
      o.scaler = GradScaler{.scale = 8, .interval = 3};
      o.schedule = [](auto) { return cosine_with_warmup(0.01, 10, 2); };
      o.clip_norm = 2;
      auto made = make_trainer(c, shards, model.params(), o);
      OURO_RANK_OK(made);
      double scale = 8;
      int clean = 0, updates = 0;
      for (int step = 0; step < 6; ++step) {
        OURO_RANK_CHECK(made->scale() == scale, "{} for {}", made->scale(), scale);
        OURO_RANK_CHECK(made->lr() == cosine_with_warmup(0.01, 10, 2)->at(updates), "lr of update {}",
                        updates);
        const bool overflow = step == 2;
        OURO_RANK_OK(made->begin_step());
        fill_gradients<float>(made->params(), c.rank(), step, scale);
        if (overflow && c.rank() == 1)
          static_cast<float*>(made->params()[3].grad.data)[98] = std::numeric_limits<float>::infinity();
        const std::vector<float> before = flat<float>(made->params());
        for (int i = 0; i < 7; ++i) OURO_RANK_OK(made->grad_ready(i));
        OURO_RANK_OK(made->end_backward());
        OURO_RANK_CHECK(same_bits(before, flat<float>(made->params())) == overflow, "step {}", step);
        if (overflow) {
          scale /= 2, clean = 0;
        } else {
          ++updates;
          if (++clean == 3) scale *= 2, clean = 0;
        }
      }
      OURO_RANK_CHECK(made->steps() == 6, "{}", made->steps());
      OURO_RANK_OK(made->close());
    }
    return "";
  };
  EXPECT_EQ(run_threads(4, body), "");
}
TEST(ShardScaler, ScaleDoesNotChangeTheResult) {
  const auto body = [](Context& c) -> std::string {
    ShardModel<float> model;
    ShardOptions o = shard_options();
    o.scaler = GradScaler{.scale = 1024};
    auto made = make_trainer(c, 3, model.params(), o);
    OURO_RANK_OK(made);
    Serial<float> alone(3, 3, o.optimizer);
    for (int step = 0; step < 3; ++step) {
      OURO_RANK_OK(shard_step<float>(*made, c.rank(), step));
      OURO_RANK_OK(alone.step(step, {.scale = {.inverse = 1.0 / 1024}}, 1024));
    }
    OURO_RANK_CHECK(same_bits(flat<float>(made->params()), alone.values()), "");
    return text(made->close()) == "ok" ? "" : "close";
  };
  EXPECT_EQ(run_threads(3, body), "");
}

TEST(ShardStep, FollowsItsSchedule) {
  const auto body = [](Context& c) -> std::string {
    ShardModel<float> model;
    ShardOptions o = shard_options(0);
    o.schedule = [](auto) { return cosine_with_warmup(0.02, 5, 2); };
    auto made = make_trainer(c, 2, model.params(), o);
    OURO_RANK_OK(made);
    Serial<float> alone(2, 2, o.optimizer);
    const Schedule schedule = *cosine_with_warmup(0.02, 5, 2);
    for (int step = 0; step < 4; ++step) {
      OURO_RANK_CHECK(made->lr() == schedule.at(step), "{}", made->lr());
      OURO_RANK_OK(shard_step<float>(*made, c.rank(), step));
      OURO_RANK_OK(alone.step(step, {.lr = schedule.at(step)}));
    }
    OURO_RANK_CHECK(same_bits(flat<float>(made->params()), alone.values()), "");
    return text(made->close()) == "ok" ? "" : "close";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

}  // namespace
}  // namespace ouro::train
