// Federated training of the digits perceptron: sites that train by themselves and meet now and then.
// Used by ouro-train and its tests.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ouro/train/outer.hpp"

namespace ouro::tools {

/// What becomes of the mean of the sites: it replaces the parameters (avg), or is the gradient of an outer
/// optimiser: FedAdam, FedYogi, or Nesterov momentum (DiLoCo).
enum class Server { avg, adam, yogi, nesterov };

struct FederatedOptions {
  int steps = 240;
  int batch = 64;  ///< rows a step, over all ranks; each takes batch / ranks of them, rounded up
  double lr = 0.2;
  double momentum = 0.9;  ///< of the ranks' own SGD; its state is not averaged
  int sites = 2;          ///< of consecutive ranks; the first ones are the larger, where sizes differ
  int local_steps = 5;    ///< between two averages
  Server server = Server::avg;
  train::DeltaFormat delta = train::DeltaFormat::exact;
  bool weigh_by_ranks = false;  ///< a site counts as often as it has ranks; else once
  DType dtype = DType::f32;     ///< f32 or f64
  Numerics numerics = Numerics::inherit;
  std::uint32_t seed = 0;  ///< order of the training rows; 0: the order of the data set itself
  std::function<void(int step, double loss)> on_step = {};
};

struct FederatedReport {
  std::vector<double> losses;  ///< mean over ranks, before the update of each step
  std::int64_t correct = 0;    ///< test rows that the mean of the sites classifies right after the last step
  std::int64_t test_rows = 0;
  double seconds = 0;
  int ranks = 0;
  std::vector<int> sites;          ///< ranks of each
  std::int64_t rounds = 0;         ///< averages
  std::size_t bytes_across = 0;    ///< that a site sends to the others in a round
  std::vector<double> parameters;  ///< of this rank, at the end, before the sites are averaged for the test
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(test_rows); }
};

/// ranks / sites each, the first ranks mod sites of them one more. Errors: invalid unless 1 <= sites <=
/// ranks.
Result<std::vector<int>> site_sizes(int ranks, int sites);

/// Collective over the context's world group. Site s of F has training rows s, s + F, ...; sample k of its
/// q-th of n ranks in step t is its row ((t n + q) rows + k) mod the number of its rows. Gradients are
/// averaged over the ranks of a site in every step. The report is the same on all ranks, up to `seconds` and
/// `parameters`. Errors: invalid (options, data file), else those of the collectives.
Result<FederatedReport> train_federated(Context&, const FederatedOptions&);

}  // namespace ouro::tools
