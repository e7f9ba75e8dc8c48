// Decentralised training and tensors that it does not train: frozen parameters and buffers of every type, at
// the start and in a global average. Ranks are threads.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/arith/floats.h"
#include "tests/api/train/gossip_ranks.h"

namespace ouro::train {
namespace {

using namespace ouro::test;  // NOLINT
using arith::BFloat16;
using arith::Half;

/// One element of each type that a model may contain, with a value that depends on the rank.
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

/// Trainable parameters are always taken from rank 0; other tensors only on request.
TEST(GossipStart, TrainableParametersAreTakenFromRankZero) {
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

/// With three ranks, the mean is rank 1's value, in every floating-point type; integers are left unchanged.
TEST(GossipAverage, AveragesBuffersOfEveryFloatingType) {
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

/// Steps whose gradients are at other addresses each time, and one step with the trainer's own memory, train
/// like steps that always use the trainer's memory.
TEST(GossipGradients, GradientsInOtherMemoryTrainAlike) {
  const auto trained = [](Context& c, bool elsewhere) -> Result<std::vector<double>> {
    Model model = two_vectors();
    OURO_ASSIGN(auto trainer,
                GossipTrainer::create(c.world(), model.params(), {}, options(c.world_size(), "complete")));
    for (int step = 0; step < 4; ++step) {
      const auto gradient = [&](int p) {
        std::vector<double> g(kCount);
        for (std::size_t k = 0; k < kCount; ++k) g[k] = 1 + step + 2 * p + static_cast<double>(k) + c.rank();
        return g;
      };
      OURO_TRY(trainer.begin_step());
      std::vector<std::vector<double>> given;  // freed after the step
      for (const int p : kOrder) {
        if (elsewhere && step != 2) {
          given.push_back(gradient(p));
          OURO_TRY(trainer.grad_ready(p, std::span<const double>(given.back())));
        } else {
          std::ranges::copy(gradient(p), model.grads[static_cast<std::size_t>(p)].begin());
          OURO_TRY(trainer.grad_ready(p));
        }
      }
      OURO_TRY(trainer.end_backward());
      for (std::size_t p = 0; p < 2; ++p)
        if (trainer.params()[p].grad.data != model.grads[p].data())
          return invalid("after a step the gradient is not in its own memory");
    }
    std::vector<double> x = flat(trainer);
    OURO_TRY(trainer.close());
    return x;
  };
  EXPECT_EQ(run_threads(2,
                        [&](Context& c) -> std::string {
                          const auto own = trained(c, false), other = trained(c, true);
                          OURO_RANK_OK(own);
                          OURO_RANK_OK(other);
                          OURO_RANK_CHECK(*own == *other, "{} in place of {}", (*other)[0], (*own)[0]);
                          return "";
                        }),
            "");
}

TEST(GossipGradients, OtherCountTypeOrNullIsRefused) {
  const auto body = [](Context& c) -> std::string {
    for (const bool in_bucket : {false, true}) {
      Model model = two_vectors();
      GossipOptions o = options(c.world_size());
      o.grads_in_bucket = in_bucket;
      auto made = GossipTrainer::create(c.world(), model.params(), {}, o);
      OURO_RANK_OK(made);
      OURO_RANK_OK(made->begin_step());
      const std::vector<double> good(kCount), few(kCount - 1);
      const std::vector<float> narrow(kCount);
      OURO_RANK_CHECK(says(made->grad_ready(0, std::span<const double>(few)), "another count"), "count");
      OURO_RANK_CHECK(says(made->grad_ready(0, std::span<const float>(narrow)), "another count"), "type");
      OURO_RANK_CHECK(says(made->grad_ready(0, CView(nullptr, kCount, DType::f64)), "null"), "null");
      OURO_RANK_CHECK(says(made->grad_ready(7, std::span<const double>(good)), "parameter 7 of 2"), "number");
      const Status s = made->grad_ready(0, std::span<const double>(good));
      OURO_RANK_CHECK(in_bucket ? says(s, "grads_in_bucket") : s.ok(), "{}", text(s));
    }
    return "";
  };
  EXPECT_EQ(run_threads(2, body), "");
}

}  // namespace
}  // namespace ouro::train
