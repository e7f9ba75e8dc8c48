// Decentralised training of the small models over any number of ranks, as a function.
// Used by ouro-train and by tests of the trainers.
#pragma once
#include "tools/train/options.h"

namespace ouro::tools {

/// Collective over the context's world group. Rank r of n has the training samples r, r + n, ...; sample k of
/// step t is number t * (batch / n) + k of them, cyclically. The report is the same on all ranks, except
/// `seconds` and `distance`. Errors: invalid (options, files), resource (files), else those of the trainer.
Result<TrainReport> train_decentralised(Context&, TrainOptions);

}  // namespace ouro::tools
