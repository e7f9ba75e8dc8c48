// What ouro-train is told and what it reports: one struct each for all strategies. Used by the command line,
// the strategies and tests of the trainers.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ouro/train/gossip.hpp"
#include "ouro/train/outer.hpp"
#include "tools/models/network.h"

namespace ouro::tools {

enum class Strategy : std::uint8_t {
  ddp,           ///< gradients are averaged, every rank updates everything
  fsdp,          ///< gradients are averaged, every rank updates its shard
  federated,     ///< sites train by themselves; now and then their parameters are averaged
  diloco,        ///< federated, and the mean of the sites is the gradient of a Nesterov step
  decentralised  ///< every rank trains its own copy and averages it with its neighbours'
};
enum class SmallModel : std::uint8_t { digits, charlm };
enum class Rule : std::uint8_t { sgd, adam, adamw, accum_adam, accum_adamw };
enum class Curve : std::uint8_t {
  constant,
  cosine  ///< ten steps of warm-up, then a cosine over all steps
};
/// What becomes of the mean of the sites: it replaces the parameters (avg), or is the gradient of an outer
/// optimiser: FedAdam, FedYogi, or Nesterov momentum (DiLoCo).
enum class Server : std::uint8_t { avg, adam, yogi, nesterov };

const char* name(Strategy);
const char* name(SmallModel);
const char* name(Rule);
const char* name(Curve);
const char* name(Server);
const char* name(models::NetworkKind);

/// What is known after a step.
struct Step {
  int number = 0;        ///< from 1
  double loss = 0;       ///< mean over the samples of all ranks, before the update
  double consensus = 0;  ///< after it; 0: ddp, fsdp
  double rate = 0;       ///< of the update
};

/// Equal on all ranks. What is optional depends on other options unless it is given; `settle` says how.
struct TrainOptions {
  Strategy strategy = Strategy::ddp;
  SmallModel model = SmallModel::digits;
  std::optional<models::NetworkKind> network = {};  ///< charlm: text; digits: cnn if decentralised, else mlp
  int steps = 240;                                  ///< that the schedule is for
  int stop_after = 0;                               ///< steps to take of them; 0: all
  /// Samples a step, over all ranks. ddp, fsdp: exactly; else each rank takes batch / ranks, rounded up.
  std::optional<int> batch = {};
  std::optional<Rule> optimizer = {};
  std::optional<double> lr = {};
  std::optional<double> momentum = {};  ///< sgd; like all state of optimisers it is never averaged
  std::optional<double> weight_decay = {};
  std::optional<int> accum = {};  ///< steps of a window of accum_*
  std::optional<Curve> schedule = {};
  std::optional<train::DecayRule> decay = {};  ///< which parameters decay, where they do; default: standard

  // federated, diloco
  int sites = 2;                     ///< of consecutive ranks, the first ones larger where sizes differ
  std::vector<int> site_ranks = {};  ///< ranks of each, in place of `sites`
  int local_steps = 5;               ///< between two averages
  Server server = Server::avg;
  train::DeltaFormat delta = train::DeltaFormat::exact;
  bool weigh_by_ranks = false;  ///< a site counts as often as it has ranks; else once

  // decentralised
  std::string topology = "ring";
  train::TopologyOptions topology_options = {};
  train::RoundOrder order = train::RoundOrder::sequential;
  std::optional<double> adaptive = {};  ///< share of the mix; default: 1, or what a saved file says

  // ddp, fsdp, decentralised
  double bucket_mb = 25, clip_norm = 0;
  int shards = 0;  ///< fsdp: ranks that share one copy of the state; 0: all

  std::optional<DType> dtype = {};  ///< of parameters, gradients and optimiser: f32 or f64
  Numerics numerics = Numerics::inherit;
  bool device = false;     ///< ddp, fsdp: all but the network's own arithmetic on the rank's GPU
  std::uint32_t seed = 0;  ///< order of the training samples; 0: the order of the data set itself
  /// Stems of files, ".rank0" and so on is appended: written at the end, read before the first step.
  std::string save = {}, resume = {};
  /// Called after each step.
  std::function<void(const Step&)> on_step = {};
};

struct TrainReport {
  TrainOptions options;  ///< settled
  int ranks = 0;
  int first_step = 0;                  ///< above 0 where it went on from a file
  std::vector<double> losses = {};     ///< mean over the samples of all ranks, before the update of each step
  std::vector<double> consensus = {};  ///< after it: sqrt(sum of ||x_r - mean||^2 / ranks); empty: ddp, fsdp
  std::vector<double> rates = {};      ///< of each update
  std::int64_t correct = 0, test_rows = 0;  ///< of the mean model after the last step; no rows: no test
  double test_loss = 0, test_accuracy = 0;
  double seconds = 0;  ///< of the steps, without loading and testing

  std::vector<int> sites = {};   ///< ranks of each
  std::int64_t rounds = 0;       ///< averages of sites
  std::size_t bytes_across = 0;  ///< that a site sends to the others in a round
  std::vector<double> parameters =
      {};  ///< federated: of this rank, before the sites are averaged for the test

  std::vector<std::size_t> blocks = {};  ///< lengths of buckets, in elements
  double final_norm = 0;                 ///< decentralised: of the mean model's parameters
  double distance = 0;                   ///< decentralised: of this rank from the mean, at the end
};

/// All optionals filled in. lr: sgd 0.2 (mlp), 0.05 (cnn, text), else 4e-3 on digits and 2e-3 on text.
/// Momentum 0.9. Weight decay 0, 1/32768 (adam, accum_adam), 0.1 (the decoupled ones). Windows of 4 steps.
/// Optimiser: text accum_adamw; digits accum_adam if decentralised, else sgd. Cosine for text and
/// decentralised, else constant. Batch: 64 digits, or 16 a rank if decentralised; 8 texts a rank. dtype f64
/// if decentralised, else f32. Errors: invalid, naming the option: out of range, or without meaning for what
/// was chosen.
Result<TrainOptions> settle(TrainOptions, int ranks);

/// Of settled options: all that decides what a run computes, in the words of the command line.
nlohmann::ordered_json to_json(const TrainOptions&, int ranks);

/// Of settled options.
train::OptimizerFactory optimizer_of(const TrainOptions&);
Result<train::Schedule> schedule_of(const TrainOptions&);

}  // namespace ouro::tools
