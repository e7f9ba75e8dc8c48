// Files from which a training run goes on, one a rank: what run it is, how far it is, and parts that the
// strategy knows. Used by the strategies of ouro-train.
#pragma once
#include <cstdint>
#include <vector>

#include "tools/train/task.h"

namespace ouro::tools {

struct Checkpoint {
  std::int64_t step = 0;  ///< steps that were taken
  std::vector<Bytes> parts;
};

/// Collective: FILE.rank0, FILE.rank1, ... by way of a second name, so that a file is whole or as it was.
/// Errors: on all ranks (agree); resource, naming the file.
Status save_checkpoint(Group& world, const TrainOptions&, const Checkpoint&);

/// Collective: whether `save_checkpoint` could write its files, before there is anything to lose. Errors: as
/// there.
Status try_checkpoint(Group& world, const TrainOptions&);

/// Collective: all ranks read theirs, of the same step, which is below the last one. Errors: on all ranks;
/// resource (no file), invalid (damaged; of other options than these, naming the first; of another step than
/// rank 0's; nothing left to do).
Result<Checkpoint> load_checkpoint(Group& world, const TrainOptions&, std::size_t parts);

/// The last step to take + 1.
int end_of(const TrainOptions&);

}  // namespace ouro::tools
