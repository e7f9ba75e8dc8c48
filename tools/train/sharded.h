// Data-parallel training of the small models, plain and sharded: one global batch, split among the ranks.
// Used by ouro-train and its tests.
#pragma once
#include "tools/train/options.h"

namespace ouro::tools {

/// The numbers of the samples that a rank computes in a step: step * batch + k for k = rank, rank + ranks,
/// ... below `batch`.
std::vector<std::int64_t> numbers_of_step(int step, int batch, int rank, int ranks);

/// Collective over the context's world group, for Strategy::ddp and Strategy::fsdp. Sample k of step t is
/// number t * batch + k of the training set, cyclically, whatever the number of ranks: if the network has no
/// batch norm, losses for different numbers of ranks, shards and buckets differ only by rounding. Losses on a
/// device equal those on the host, bit for bit, if the reductions give equal bits (canonical numerics do).
/// The report is the same on all ranks, except `seconds`. Errors: invalid (options, files), unsupported (no
/// GPU), resource (files), else those of the trainer.
Result<TrainReport> train_sharded(Context&, TrainOptions);

}  // namespace ouro::tools
