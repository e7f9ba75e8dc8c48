// Decentralised training: each rank has its own model and averages it with its neighbours' on a ring.
// The exchange of the parameters overlaps the computation of the next gradient. Run it with: ouro-run -n
// 4 example-gossip-training
#include <cmath>
#include <cstdio>
#include <iostream>
#include <vector>

#include "ouro/train/gossip.hpp"

namespace {

namespace train = ouro::train;

constexpr int kSteps = 200;
constexpr std::size_t kCount = 1000;  // elements of the model

/// Each rank's loss is |w - rank|^2 / 2, so the mean of all rank numbers minimises their sum.
ouro::Status train_model(ouro::Context& c) {
  std::vector<float> w(kCount, 1.0F), gradient(kCount);
  auto topology = train::Topology::make("ring", c.world_size());
  OURO_TRY(topology.status());
  auto trainer = train::GossipTrainer::create(
      c.world(), {{"w", std::span(w), std::span(gradient), {kCount}}}, {},
      {.topology = *topology, .optimizer = train::optim_fn_sgd({.lr = 0.1}), .schedule = [](auto) {
         return train::cosine_with_warmup(0.1, kSteps, 10);
       }});
  OURO_TRY(trainer.status());
  for (int step = 0; step < kSteps; ++step) {
    OURO_TRY(trainer->begin_step());  // the exchange of the parameters is already running
    // After the first step, values may have moved into blocks of the trainer; params() says where they are.
    const auto* x = static_cast<const float*>(trainer->params()[0].value.data);
    for (std::size_t i = 0; i < kCount; ++i) gradient[i] = x[i] - static_cast<float>(c.rank());
    OURO_TRY(trainer->grad_ready(0));   // mixes and updates as soon as the neighbours' values have arrived
    OURO_TRY(trainer->end_backward());  // collective; starts the next exchange
  }
  // The mean over all ranks, in effect until `mean` is destroyed or revert() is called.
  auto mean = trainer->global_average({.distance = true});
  OURO_TRY(mean.status());
  const float value = static_cast<const float*>(trainer->params()[0].value.data)[0];
  const float wanted = static_cast<float>(c.world_size() - 1) / 2;
  if (c.rank() == 0)
    std::printf("mean model %.3f, wanted %.3f; distance of rank 0 from it %.4f\n", value, wanted,
                mean->distance);
  if (std::abs(value - wanted) > 0.05F) return {ouro::Reason::data_corrupt, "the ranks did not agree"};
  OURO_TRY(mean->revert());
  return trainer->close();
}

ouro::Status run() {
  ouro::Result<ouro::Context> context = ouro::Context::from_env();
  if (!context) return context.status();
  OURO_TRY(train_model(*context));
  return context->close();
}

}  // namespace

int main() {
  const ouro::Status outcome = run();
  if (!outcome) std::cerr << outcome.message() << '\n';
  return outcome ? 0 : 1;
}
