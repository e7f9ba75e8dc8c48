// Data-parallel training of the small models, plain and sharded: one global batch, cut among the ranks.
// Used by ouro-train and its tests.
#pragma once
#include "tools/train/options.h"

namespace ouro::tools {

/// Which samples of a step rank r of n computes: numbers r, r + n, ... below `batch`, of step * batch on.
std::vector<std::int64_t> numbers_of_step(int step, int batch, int rank, int ranks);

/// Collective over the context's world group, for Strategy::ddp and Strategy::fsdp. Sample k of step t is
/// number t * batch + k of the training set, over and over, whatever the number of ranks: where the network
/// has no batch norm, losses for different numbers of ranks, shards and buckets differ by rounding alone.
/// Losses on a device are those on the host, bit for bit, if the reductions give equal bits (canonical
/// numerics do). The report is the same on all ranks, up to `seconds`. Errors: invalid (options, files),
/// unsupported (no GPU), resource (files), else those of the trainer.
Result<TrainReport> train_sharded(Context&, TrainOptions);

}  // namespace ouro::tools
