// Sharded data parallel training: gradients are reduce-scattered bucket by bucket during the backward pass,
// each rank updates its shard, and all ranks gather the values. Then a checkpoint is saved and resumed. Run
// it with: ouro-run -n 4 example-sharded-training
#include <cmath>
#include <iostream>
#include <utility>
#include <vector>

#include "ouro/train/shard.hpp"

namespace {

namespace train = ouro::train;

/// A model of two tensors whose gradient pulls each element towards a number that depends on the rank.
struct Model {
  std::vector<float> weight = std::vector<float>(64 * 32), bias = std::vector<float>(32);
  std::vector<float> weight_grad = std::vector<float>(64 * 32), bias_grad = std::vector<float>(32);
  std::vector<train::Param> params() {
    return {{"weight", std::span(weight), std::span(weight_grad), {64, 32}},
            {"bias", std::span(bias), std::span(bias_grad), {32}}};
  }
};

ouro::Result<train::ShardedTrainer> make_trainer(ouro::Group& world, Model& model) {
  return train::ShardedTrainer::create(world, model.params(),
                                       {.optimizer = train::optim_fn_adamw({.lr = 0.05, .weight_decay = 0.0}),
                                        .bucket_mb = 0,  // one bucket per parameter
                                        .numerics = ouro::Numerics::canonical});
}

ouro::Status steps(train::ShardedTrainer& trainer, int count, int rank) {
  for (int i = 0; i < count; ++i) {
    OURO_TRY(trainer.begin_step());
    for (int k = 1; k >= 0; --k) {  // a backward pass: the last layer's gradient is ready first
      const train::Param& p = trainer.params()[k];
      const auto* x = static_cast<const float*>(p.value.data);
      auto* g = static_cast<float*>(p.grad.data);
      for (std::size_t e = 0; e < p.value.count; ++e) g[e] = x[e] - static_cast<float>(rank);
      OURO_TRY(trainer.grad_ready(k));  // starts its reduction, overlapped with the rest of the backward pass
    }
    OURO_TRY(trainer.end_backward());  // all values are final when this returns
  }
  return {};
}

std::vector<float> values(const train::ShardedTrainer& trainer) {
  std::vector<float> all;
  for (const train::Param& p : trainer.params()) {
    const auto* x = static_cast<const float*>(p.value.data);
    all.insert(all.end(), x, x + p.value.count);
  }
  return all;
}

ouro::Status run() {
  ouro::Result<ouro::Context> context = ouro::Context::from_env();
  if (!context) return context.status();
  ouro::Group& world = context->world();

  Model straight;
  auto a = make_trainer(world, straight);
  if (!a) return a.status();
  OURO_TRY(steps(*a, 100, world.rank()));
  ouro::Result<ouro::Bytes> saved = a->save();  // this rank's shard, and the state of its optimisers
  if (!saved) return saved.status();
  OURO_TRY(steps(*a, 100, world.rank()));

  Model resumed;
  auto b = make_trainer(world, resumed);
  if (!b) return b.status();
  OURO_TRY(b->load(*saved));  // collective
  OURO_TRY(steps(*b, 100, world.rank()));
  if (values(*a) != values(*b)) return {ouro::Reason::data_corrupt, "the resumed run has other bits"};

  const float wanted = static_cast<float>(world.size() - 1) / 2, got = values(*a).front();
  if (std::abs(got - wanted) > 0.05F) return {ouro::Reason::data_corrupt, "training did not converge"};
  std::size_t mine = 0;
  for (const train::Param& p : a->shard()) mine += p.value.count;
  std::cout << "rank " + std::to_string(world.rank()) + " updates " + std::to_string(mine) + " of " +
                   std::to_string(values(*a).size()) + " elements; the resumed run has the same bits\n";
  OURO_TRY(a->close());
  OURO_TRY(b->close());
  return context->close();
}

}  // namespace

int main() {
  const ouro::Status outcome = run();
  if (!outcome) std::cerr << outcome.message() << '\n';
  return outcome ? 0 : 1;
}
