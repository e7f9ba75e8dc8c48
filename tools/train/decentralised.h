// Decentralised training of the small models over any number of ranks, as a function.
// Used by ouro-train and by tests of the trainers.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ouro/train/gossip.hpp"

namespace ouro::tools {

enum class SmallModel { digits, charlm };

/// Digits: the convolutional network (8 and 16 channels), 16 rows a rank and step, AccumAdam of lr 4e-3.
/// charlm: the transformer on the text of a licence, 8 sequences a rank and step, AccumAdamW of lr 2e-3,
/// weight decay 0.1. Both: f64, windows of 4 steps, ten steps of warm-up, then a cosine.
struct DecentralisedOptions {
  SmallModel model = SmallModel::digits;
  int steps = 240;
  int stop_after = 0;  ///< steps to take of those that the schedule is for; 0: all
  std::string topology = "ring";
  train::TopologyOptions topology_options = {};
  train::RoundOrder order = train::RoundOrder::sequential;
  train::DecayRule decay = train::DecayRule::standard;
  double bucket_mb = 25, clip_norm = 0;
  std::optional<double> adaptive = {};  ///< default: 1, or what the file says
  /// Stems of files, ".rank0" and so on is appended: written at the end, read before the first step.
  std::string save = {}, resume = {};
  /// Called after each step with the step's number, its mean loss and the consensus after it.
  std::function<void(int step, double loss, double consensus)> on_step = {};
};

struct DecentralisedReport {
  int first_step = 0;             ///< above 0 where it went on from a file
  std::vector<double> losses;     ///< mean over ranks, before the update of each step
  std::vector<double> consensus;  ///< after it: sqrt(sum of ||x_r - mean||^2 / ranks)
  std::vector<std::size_t> blocks;
  double final_norm = 0;                    ///< of the mean model's parameters
  double test_loss = 0, test_accuracy = 0;  ///< of the mean model, on digits; charlm has none
  double distance = 0;                      ///< of this rank from the mean, at the end
  double seconds = 0;
};

/// Collective over the context's world group; the report is the same on all ranks, up to `seconds` and
/// `distance`. Errors: invalid (options, files), resource (files), else those of the trainer.
Result<DecentralisedReport> train_decentralised(Context&, const DecentralisedOptions&);

}  // namespace ouro::tools
