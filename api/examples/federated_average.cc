// Federated averaging: two sites train on their own data and average after every ten steps. Inside a site,
// the gradients are averaged in each step; across sites, only the parameters travel. Run it with: ouro-run -n
// 4 example-federated-average
#include <cmath>
#include <iostream>
#include <utility>
#include <vector>

#include "ouro/train/average.hpp"
#include "ouro/train/outer.hpp"

namespace {

namespace train = ouro::train;

constexpr int kRounds = 30, kLocalSteps = 10;
constexpr std::size_t kCount = 256;

ouro::Status run() {
  ouro::Result<ouro::Context> context = ouro::Context::from_env();
  if (!context) return context.status();
  const int size = context->world_size();
  if (size < 2 || size % 2 != 0) return ouro::invalid("this example needs an even number of ranks");

  // The layout follows from integers alone. hsdp = 1: each rank holds a whole model.
  auto layout = train::ParallelLayout::make(
      {.rank = context->rank(), .world_size = size, .federations = {size / 2, size / 2}, .hsdp = 1});
  if (!layout) return layout.status();
  auto groups = train::create_groups(*context, *layout);
  if (!groups) return groups.status();
  const int site = layout->federation->rank;

  std::vector<float> w(kCount), g(kCount);
  const std::vector<train::Param> params = {{"w", std::span(w), std::span(g), {kCount}}};
  auto inner = train::make_optimizer(train::SgdOptions{.lr = 0.2});
  if (!inner) return inner.status();
  auto server = train::fed_avg();  // alternatives: fed_adam, fed_yogi, diloco
  if (!server) return server.status();
  auto local = train::LocalSteps::create(*groups, params, std::move(*server),
                                         // Site 1 has three times as many samples as site 0.
                                         {.inner_steps = kLocalSteps, .aggregate = {.site_weights = {1, 3}}});
  if (!local) return local.status();

  for (int step = 0; step < kRounds * kLocalSteps; ++step) {
    // Site 0 pulls towards 0, site 1 towards 4; the ranks of a site add noise that cancels out in their mean.
    const float noise = layout->federation->local_rank % 2 == 0 ? 0.5F : -0.5F;
    const float spread = size == 2 ? 0 : noise;
    for (std::size_t i = 0; i < kCount; ++i) g[i] = w[i] - 4 * static_cast<float>(site) + spread;
    OURO_TRY(train::average_gradients(*groups->replica, params));  // inside the site
    OURO_TRY((*inner)->step(params));
    const ouro::Result<bool> met = local->step();  // true in every tenth call: the sites have averaged
    if (!met) return met.status();
  }

  if (context->rank() == 0)
    std::cout << local->rounds() << " rounds, w = " << w[0] << ", " << local->traffic().across
              << " bytes of a sender across sites in a round\n";
  if (std::abs(w[0] - 3) > 0.05F) return {ouro::Reason::data_corrupt, "expected the weighted mean, 3"};
  return context->close();
}

}  // namespace

int main() {
  const ouro::Status outcome = run();
  if (!outcome) std::cerr << outcome.message() << '\n';
  return outcome ? 0 : 1;
}
