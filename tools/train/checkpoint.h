// Files from which a training run goes on, one a rank: what run it is, how far it is, and parts that the
// strategy knows. Used by the strategies of ouro-train.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
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

/// What the file at `path` holds, whose text is `all`, of a run that describes itself by `run`. Pure. Errors:
/// invalid, as above.
Result<Checkpoint> parse_checkpoint(const std::string& path, std::string_view all,
                                    const nlohmann::ordered_json& run, std::size_t parts);

/// Collective, where options name a file: what `trainer` (GossipTrainer or ShardedTrainer) and `task` hold
/// comes from it, or goes there. Errors: on all ranks; those of load_checkpoint or save_checkpoint, trainer
/// and task.
template <class Trainer>
Status resume_from_file(Group& world, const TrainOptions& o, Trainer& trainer, Task& task) {
  if (o.resume.empty()) return {};
  const auto state = load_checkpoint(world, o, 2);
  OURO_TRY(state.status());
  OURO_TRY(agree(world, trainer.load(state->parts[0])));
  return agree(world, task.set_statistics(state->parts[1]));
}
template <class Trainer>
Status save_to_file(Group& world, const TrainOptions& o, Trainer& trainer, Task& task) {
  if (o.save.empty()) return {};
  auto state = trainer.save();
  OURO_TRY(agree(world, state.status()));
  return save_checkpoint(world, o, {trainer.steps(), {std::move(*state), task.statistics()}});
}

/// The last step to take + 1.
int end_of(const TrainOptions&);

}  // namespace ouro::tools
