// The loop of federated training: inner steps of a site, outer steps of all. See federated.h.
#include "tools/train/federated.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <numeric>

#include "ouro/train/average.hpp"
#include "tools/models/digits.h"
#include "tools/models/mlp.h"

namespace ouro::tools {
namespace {

using models::Digits;
using models::Mlp;

Status check(const FederatedOptions& o) {
  const auto at_least_one = [](const char* what, int found) {
    return found >= 1 ? Status{} : invalid(fmt::format("{} must be at least 1, found {}", what, found));
  };
  OURO_TRY(at_least_one("--steps", o.steps));
  OURO_TRY(at_least_one("--batch", o.batch));
  OURO_TRY(at_least_one("--local-steps", o.local_steps));
  if (!(o.lr > 0) || !std::isfinite(o.lr))
    return invalid(fmt::format("--lr must be positive and finite, found {}", o.lr));
  if (o.dtype != DType::f32 && o.dtype != DType::f64)
    return invalid(fmt::format("training runs in f32 or f64, not in {}", name(o.dtype)));
  return {};
}

Result<std::unique_ptr<train::Optimizer>> make_server(Server s) {
  switch (s) {
    case Server::avg:
      return train::fed_avg();
    case Server::adam:
      return train::fed_adam();
    case Server::yogi:
      return train::fed_yogi();
    case Server::nesterov:
      return train::diloco();
  }
  return invalid("no such server");
}

/// The training rows of this rank's site, and which of them it takes in a step.
struct Share {
  std::vector<std::uint32_t> rows;
  std::size_t ranks = 1, rank = 0, each = 1;

  Share(const train::ParallelLayout& l, const FederatedOptions& o)
      : ranks(l.site.size()),
        rank(static_cast<std::size_t>(l.federation->local_rank)),
        each(static_cast<std::size_t>((o.batch + l.world_size - 1) / l.world_size)) {
    std::vector<std::uint32_t> order(Digits::kTrainRows);
    std::iota(order.begin(), order.end(), 0u);
    if (o.seed != 0) order = models::lcg_permutation(Digits::kTrainRows, o.seed);
    for (auto k = static_cast<std::size_t>(l.federation->rank); k < order.size();
         k += static_cast<std::size_t>(l.federation->count))
      rows.push_back(order[k]);
  }
  std::vector<std::uint32_t> of_step(int t) const {
    std::vector<std::uint32_t> mine;
    for (std::size_t k = 0; k < each; ++k)
      mine.push_back(rows[((static_cast<std::size_t>(t) * ranks + rank) * each + k) % rows.size()]);
    return mine;
  }
};

/// Test rows that the mean of the sites gets right, counted by all ranks together.
template <class T>
Result<std::int64_t> evaluate(Context& c, const train::LayoutGroups& groups, const Digits& digits,
                              std::vector<T> x) {
  const train::Param all[] = {{.name = "mlp", .value = std::span(x), .grad = {}}};
  OURO_TRY(train::aggregate(groups, all));
  std::int64_t mine = 0, sum = 0;
  for (auto row = Digits::kTrainRows + static_cast<std::uint32_t>(c.rank()); row < Digits::kRows;
       row += static_cast<std::uint32_t>(c.world_size()))
    mine += models::mlp_predict<T>(digits, row, x) == digits.labels[row];
  OURO_TRY(all_reduce(c.world(), CView(&mine, 1, DType::i64), View(&sum, 1, DType::i64)));
  return sum;
}

template <class T>
Result<FederatedReport> train_as(Context& c, const FederatedOptions& o, const Digits& digits) {
  const auto sizes = site_sizes(c.world_size(), o.sites);
  OURO_TRY(sizes.status());
  const auto layout = train::ParallelLayout::make(
      {.rank = c.rank(), .world_size = c.world_size(), .federations = *sizes, .hsdp = 1});
  OURO_TRY(layout.status());
  auto groups = create_groups(c, *layout, {.deadline = Milliseconds(0), .numerics = o.numerics});
  OURO_TRY(groups.status());

  std::vector<T> x = models::mlp_initial_parameters<T>(), g(x.size());
  const train::Param all[] = {{.name = "mlp", .value = std::span(x), .grad = std::span(g)}};
  auto inner = train::make_optimizer(train::SgdOptions{.lr = o.lr, .momentum = o.momentum});
  OURO_TRY(inner.status());
  auto server = make_server(o.server);
  OURO_TRY(server.status());
  train::LocalStepsOptions options{.inner_steps = o.local_steps, .delta = o.delta};
  if (o.weigh_by_ranks) options.aggregate.site_weights.assign(sizes->begin(), sizes->end());
  auto outer = train::LocalSteps::create(*groups, all, std::move(*server), options);
  OURO_TRY(outer.status());

  const Share share(*layout, o);
  FederatedReport report;
  report.ranks = c.world_size();
  report.test_rows = Digits::kTestRows;
  report.sites = *sizes;
  std::vector<double> sums(x.size());
  const auto start = std::chrono::steady_clock::now();
  for (int t = 0; t < o.steps; ++t) {
    std::fill(sums.begin(), sums.end(), 0.0);
    const std::vector<std::uint32_t> rows = share.of_step(t);
    const auto count = static_cast<double>(rows.size());
    double loss = models::mlp_add_gradients<T>(digits, rows, x, sums) / count;
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = static_cast<T>(sums[i] / count);
    OURO_TRY(train::average_gradients(*groups->federation, all));
    OURO_TRY((*inner)->step(all));
    OURO_TRY(outer->step().status());
    const View mean(&loss, 1, DType::f64);
    OURO_TRY(all_reduce(c.world(), mean, mean, ReduceOp::avg));
    report.losses.push_back(loss);
    if (o.on_step) o.on_step(t, loss);
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.rounds = outer->rounds();
  std::size_t across = c.rank() == 0 ? outer->traffic().across : 0;  // rank 0 is its site's only sender
  const View bytes(&across, 1, DType::u64);
  OURO_TRY(broadcast(c.world(), bytes, bytes, 0));
  report.bytes_across = across;
  report.parameters.assign(x.begin(), x.end());
  const auto correct = evaluate<T>(c, *groups, digits, x);
  OURO_TRY(correct.status());
  report.correct = *correct;
  return report;
}

}  // namespace

Result<std::vector<int>> site_sizes(int ranks, int sites) {
  if (sites < 1 || sites > ranks)
    return invalid(fmt::format("--sites {}: expected 1 to {}, one rank a site at least", sites, ranks));
  std::vector<int> sizes(static_cast<std::size_t>(sites), ranks / sites);
  for (int s = 0; s < ranks % sites; ++s) ++sizes[static_cast<std::size_t>(s)];
  return sizes;
}

Result<FederatedReport> train_federated(Context& c, const FederatedOptions& o) {
  OURO_TRY(check(o));
  const Result<Digits> digits = models::load_digits();
  OURO_TRY(digits.status());
  return o.dtype == DType::f64 ? train_as<double>(c, o, *digits) : train_as<float>(c, o, *digits);
}

}  // namespace ouro::tools
