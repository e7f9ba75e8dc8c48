// Defaults of ouro-train's options, and combinations that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tools/train/options.h"

namespace ouro::tools {
namespace {

using models::NetworkKind;
using ::testing::HasSubstr;

TrainOptions settled(TrainOptions o, int ranks = 4) {
  auto result = settle(std::move(o), ranks);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result ? std::move(*result) : TrainOptions{};
}

std::string error(TrainOptions o) {
  const Status s = settle(std::move(o), 4).status();
  EXPECT_EQ(s.code(), Code::invalid);
  return s.failure() ? s.failure()->text : "";
}

TEST(TrainOptions, DefaultsFollowStrategyAndModel) {
  const TrainOptions ddp = settled({});
  EXPECT_EQ(*ddp.network, NetworkKind::mlp);
  EXPECT_EQ(*ddp.optimizer, Rule::sgd);
  EXPECT_EQ(*ddp.lr, 0.2);
  EXPECT_EQ(*ddp.momentum, 0.9);
  EXPECT_EQ(*ddp.batch, 64);
  EXPECT_EQ(*ddp.dtype, DType::f32);
  EXPECT_EQ(*ddp.schedule, Curve::constant);
  const TrainOptions gossip = settled({.strategy = Strategy::decentralised});
  EXPECT_EQ(*gossip.network, NetworkKind::cnn);
  EXPECT_EQ(*gossip.optimizer, Rule::accum_adam);
  EXPECT_EQ(*gossip.lr, 4e-3);
  EXPECT_EQ(*gossip.weight_decay, 1.0 / 32768);
  EXPECT_EQ(*gossip.batch, 64);  // 16 per rank
  EXPECT_EQ(*gossip.dtype, DType::f64);
  const TrainOptions text = settled({.strategy = Strategy::diloco, .model = SmallModel::charlm}, 3);
  EXPECT_EQ(*text.optimizer, Rule::accum_adamw);
  EXPECT_EQ(*text.lr, 2e-3);
  EXPECT_EQ(*text.accum, 4);
  EXPECT_EQ(*text.batch, 24);
  EXPECT_EQ(*text.schedule, Curve::cosine);
  EXPECT_EQ(text.server, Server::nesterov);
}

TEST(TrainOptions, ContradictoryOptionsAreRefused) {
  EXPECT_THAT(error({.optimizer = Rule::adam, .momentum = 0.5}), HasSubstr("--momentum has no meaning"));
  EXPECT_THAT(error({.optimizer = Rule::adamw, .accum = 2}), HasSubstr("--accum has no meaning"));
  EXPECT_THAT(error({.decay = train::DecayRule::standard}), HasSubstr("--decay has no meaning"));
  EXPECT_THAT(error({.model = SmallModel::charlm, .network = NetworkKind::mlp}), HasSubstr("--network mlp"));
  EXPECT_THAT(error({.network = NetworkKind::text}), HasSubstr("--network text"));
  EXPECT_THAT(error({.strategy = Strategy::federated, .device = true}), HasSubstr("--device cuda"));
  EXPECT_THAT(error({.strategy = Strategy::federated, .steps = 7, .save = "a"}), HasSubstr("--local-steps"));
}

TEST(TrainOptions, OutOfRangeIsRefused) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(error({.steps = 0}), HasSubstr("--steps"));
  EXPECT_THAT(error({.stop_after = -1}), HasSubstr("--stop-after"));
  EXPECT_THAT(error({.batch = 0}), HasSubstr("--batch"));
  for (const double lr : {0.0, -1.0, kNan}) EXPECT_THAT(error({.lr = lr}), HasSubstr("--lr"));
  for (const double m : {1.0, -0.1, kNan}) EXPECT_THAT(error({.momentum = m}), HasSubstr("--momentum"));
  for (const double d : {-0.1, kNan}) EXPECT_THAT(error({.weight_decay = d}), HasSubstr("--weight-decay"));
  EXPECT_THAT(error({.optimizer = Rule::accum_adam, .accum = 0}), HasSubstr("--accum"));
  EXPECT_THAT(error({.sites = 0}), HasSubstr("--sites"));
  EXPECT_THAT(error({.site_ranks = {2, 0}}), HasSubstr("--sites"));
  EXPECT_THAT(error({.local_steps = 0}), HasSubstr("--local-steps"));
  EXPECT_THAT(error({.adaptive = 1.5}), HasSubstr("--adaptive"));
  EXPECT_THAT(error({.clip_norm = -1}), HasSubstr("--clip"));
  EXPECT_THAT(error({.shards = -1}), HasSubstr("--shards"));
  EXPECT_THAT(error({.dtype = DType::bf16}), HasSubstr("f32 or f64"));
}

}  // namespace
}  // namespace ouro::tools
