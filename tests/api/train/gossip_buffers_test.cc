// What decentralised training does with tensors that it does not train: frozen parameters and buffers of
// every type, at the start and under a global average. Ranks are threads.
#include <gtest/gtest.h>

#include "kernels/arith/floats.h"
#include "tests/api/train/gossip_ranks.h"

namespace ouro::train {
namespace {

using namespace ouro::test;  // NOLINT
using arith::BFloat16;
using arith::Half;

/// One element of each type that a model may carry along, its value a function of the rank.
struct Others {
  double frozen, f64;
  float f32;
  Half f16;
  BFloat16 bf16;
  std::int64_t i64;

  explicit Others(int rank)
      : frozen(rank),
        f64(10.0 * rank),
        f32(20.0F * static_cast<float>(rank)),
        f16(arith::narrow<Half>(4.0F * static_cast<float>(rank))),
        bf16(arith::narrow<BFloat16>(8.0F * static_cast<float>(rank))),
        i64(100 + rank) {}
  Param parameter() { return {"frozen", std::span<double>(&frozen, 1), {}, {1}}; }
  std::vector<Buffer> buffers() {
    return {{"f64", View(&f64, 1, DType::f64)},
            {"f32", View(&f32, 1, DType::f32)},
            {"f16", View(&f16, 1, DType::f16)},
            {"bf16", View(&bf16, 1, DType::bf16)},
            {"i64", View(&i64, 1, DType::i64)}};
  }
  std::vector<double> numbers() const {
    return {frozen, f64, f32, arith::widen(f16), arith::widen(bf16), static_cast<double>(i64)};
  }
};

Result<GossipTrainer> trainer(Context& c, Model& model, Others& others, bool sync_all, bool average_buffers) {
  std::vector<Param> params = model.params();
  params.push_back(others.parameter());
  GossipOptions o = options(c.world_size());
  o.sync_all = sync_all, o.average_buffers = average_buffers;
  return GossipTrainer::create(c.world(), params, others.buffers(), o);
}

/// Trainable parameters are rank 0's in any case; what else there is, where it is asked for.
TEST(GossipStart, RankZerosTensorsAreEverybodys) {
  for (const bool sync_all : {true, false}) {
    const auto body = [&](Context& c) -> std::string {
      Model model = two_vectors();
      model.values[0].assign(kCount, c.rank());
      Others others(c.rank());
      auto made = trainer(c, model, others, sync_all, false);
      OURO_RANK_OK(made);
      OURO_RANK_CHECK(model.values[0] == std::vector<double>(kCount, 0), "{}", model.values[0][0]);
      const std::vector<double> want = Others(sync_all ? 0 : c.rank()).numbers();
      OURO_RANK_CHECK(others.numbers() == want, "{} in place of {}", fmt::join(others.numbers(), " "),
                      fmt::join(want, " "));
      return text(made->close()) == "ok" ? "" : "close";
    };
    EXPECT_EQ(run_threads(3, body), "") << sync_all;
  }
}

/// Of three ranks: the mean is that of rank 1, in every floating-point type; integers are left alone.
TEST(GossipAverage, TakesBuffersOfEveryFloatingType) {
  for (const bool average_buffers : {true, false}) {
    const auto body = [&](Context& c) -> std::string {
      Model model = two_vectors();
      Others others(c.rank());
      auto made = trainer(c, model, others, false, average_buffers);
      OURO_RANK_OK(made);
      const std::vector<double> mine = Others(c.rank()).numbers(), mean = Others(1).numbers();
      std::vector<double> want = average_buffers ? mean : mine;
      want.front() = mean.front(), want.back() = mine.back();
      auto average = made->global_average();
      OURO_RANK_OK(average);
      OURO_RANK_CHECK(others.numbers() == want, "{} in place of {}", fmt::join(others.numbers(), " "),
                      fmt::join(want, " "));
      OURO_RANK_OK(average->revert());
      OURO_RANK_CHECK(others.numbers() == mine, "{} after", fmt::join(others.numbers(), " "));
      return text(made->close()) == "ok" ? "" : "close";
    };
    EXPECT_EQ(run_threads(3, body), "") << average_buffers;
  }
}

}  // namespace
}  // namespace ouro::train
