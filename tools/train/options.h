// The options and the report of ouro-train: one struct each for all strategies. Used by the command line, the
// strategies and tests of the trainers.
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
  ddp,           ///< gradients are averaged; every rank updates all parameters
  fsdp,          ///< gradients are averaged; every rank updates its shard
  federated,     ///< sites train by themselves; their parameters are averaged at intervals
  diloco,        ///< federated, with the mean of the sites as the gradient of a Nesterov step
  decentralised  ///< every rank trains its own copy and averages it with its neighbours'
};
enum class SmallModel : std::uint8_t { digits, charlm };
enum class Rule : std::uint8_t { sgd, adam, adamw, accum_adam, accum_adamw };
enum class Curve : std::uint8_t {
  constant,
  cosine  ///< ten steps of warm-up, then a cosine over all steps
};
/// The use of the mean of the sites: it replaces the parameters (avg), or it is the gradient of an outer
/// optimiser: FedAdam, FedYogi, or Nesterov momentum (DiLoCo).
enum class Server : std::uint8_t { avg, adam, yogi, nesterov };

const char* name(Strategy);
const char* name(SmallModel);
const char* name(Rule);
const char* name(Curve);
const char* name(Server);
const char* name(models::NetworkKind);

/// Figures of one step.
struct Step {
  int number = 0;        ///< from 1
  double loss = 0;       ///< mean over the samples of all ranks, before the update
  double consensus = 0;  ///< after the update; 0: ddp, fsdp
  double rate = 0;       ///< learning rate of the update
};

/// Must be equal on all ranks. The default of an optional member depends on other options; see `settle`.
struct TrainOptions {
  Strategy strategy = Strategy::ddp;
  SmallModel model = SmallModel::digits;
  std::optional<models::NetworkKind> network = {};  ///< charlm: text; digits: cnn if decentralised, else mlp
  int steps = 240;                                  ///< length of the schedule in steps
  int stop_after = 0;                               ///< number of these steps to take; 0: all
  /// Samples per step, over all ranks. ddp, fsdp: exactly this many; otherwise each rank takes batch / ranks,
  /// rounded up.
  std::optional<int> batch = {};
  std::optional<Rule> optimizer = {};
  std::optional<double> lr = {};
  std::optional<double> momentum = {};  ///< sgd only; like all state of optimisers it is never averaged
  std::optional<double> weight_decay = {};
  std::optional<int> accum = {};  ///< steps in one window of accum_*
  std::optional<Curve> schedule = {};
  /// Which parameters decay, if there is weight decay; default: standard.
  std::optional<train::DecayRule> decay = {};

  // federated, diloco
  int sites = 2;  ///< number of sites of consecutive ranks; if sizes differ, the first ones are larger
  std::vector<int> site_ranks = {};  ///< ranks of each site; replaces `sites`
  int local_steps = 5;               ///< steps between two averages
  Server server = Server::avg;
  train::DeltaFormat delta = train::DeltaFormat::exact;
  bool weigh_by_ranks = false;  ///< a site counts once for each of its ranks; otherwise once

  // decentralised
  std::string topology = "ring";
  train::TopologyOptions topology_options = {};
  train::RoundOrder order = train::RoundOrder::sequential;
  std::optional<double> adaptive = {};  ///< share of the mix; default: 1, or the value in a checkpoint

  // ddp, fsdp, decentralised
  double bucket_mb = 25, clip_norm = 0;
  int shards = 0;  ///< fsdp: number of ranks that share one copy of the state; 0: all

  std::optional<DType> dtype = {};  ///< type of parameters, gradients and optimiser: f32 or f64
  Numerics numerics = Numerics::inherit;
  bool device = false;     ///< ddp, fsdp: everything except the network's own arithmetic is on the rank's GPU
  std::uint32_t seed = 0;  ///< of the order of the training samples; 0: the order of the data set itself
  /// Stems of file names, to which ".rank0" and so on is appended: `save` is written at the end, `resume` is
  /// read before the first step.
  std::string save = {}, resume = {};
  /// Called after each step.
  std::function<void(const Step&)> on_step = {};
};

struct TrainReport {
  TrainOptions options;  ///< settled
  int ranks = 0;
  int first_step = 0;               ///< above 0 if the run resumed from a file
  std::vector<double> losses = {};  ///< of each step: mean over the samples of all ranks, before the update
  /// The figures of each step, after the update: sqrt(sum of ||x_r - mean||^2 / ranks); empty: ddp, fsdp.
  std::vector<double> consensus = {};
  std::vector<double> rates = {};  ///< learning rate of each update
  /// For the mean model after the last step; test_rows is 0 if there was no test.
  std::int64_t correct = 0, test_rows = 0;
  double test_loss = 0, test_accuracy = 0;
  double seconds = 0;  ///< time of the steps, without loading and testing

  std::vector<int> sites = {};   ///< ranks of each site
  std::int64_t rounds = 0;       ///< number of averages of sites
  std::size_t bytes_across = 0;  ///< bytes that a site sends to the others in one round
  std::vector<double> parameters =
      {};  ///< federated: parameters of this rank, before the sites are averaged for the test

  std::vector<std::size_t> blocks = {};  ///< lengths of the buckets, in elements
  double final_norm = 0;                 ///< decentralised: norm of the mean model's parameters
  double distance = 0;                   ///< decentralised: distance of this rank from the mean at the end
};

/// Fills in all optional members. lr: sgd 0.2 (mlp), 0.05 (cnn, text), else 4e-3 on digits and 2e-3 on text.
/// Momentum 0.9. Weight decay 0, 1/32768 (adam, accum_adam), 0.1 (the decoupled ones). Windows of 4 steps.
/// Optimiser: text accum_adamw; digits accum_adam if decentralised, else sgd. Cosine for text and
/// decentralised, else constant. Batch: 64 digits, or 16 per rank if decentralised; 8 texts per rank. dtype
/// f64 if decentralised, else f32. Errors: invalid, naming the option: out of range, or without meaning for
/// the chosen strategy.
Result<TrainOptions> settle(TrainOptions, int ranks);

/// For settled options: everything that determines what a run computes, with the names of the command line.
nlohmann::ordered_json to_json(const TrainOptions&, int ranks);

/// Takes settled options.
train::OptimizerFactory optimizer_of(const TrainOptions&);
Result<train::Schedule> schedule_of(const TrainOptions&);

}  // namespace ouro::tools
