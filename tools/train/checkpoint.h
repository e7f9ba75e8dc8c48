// Checkpoint files of a training run, one for each rank: the identity of the run, its progress, and parts
// that only the strategy interprets. Used by the strategies of ouro-train.
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
  std::int64_t step = 0;  ///< number of completed steps
  std::vector<Bytes> parts;
};

/// Collective: writes FILE.rank0, FILE.rank1, ... under a temporary name each, then renames it, so that a
/// file is either complete or unchanged. Errors: the same on all ranks (agree); resource, naming the file.
Status save_checkpoint(Group& world, const TrainOptions&, const Checkpoint&);

/// Collective: checks, before there is anything to lose, whether `save_checkpoint` could write its files.
/// Errors: those of save_checkpoint.
Status try_checkpoint(Group& world, const TrainOptions&);

/// Collective: every rank reads its own file; all must be of the same step, which must be before the last
/// one. Errors: the same on all ranks; resource (no file), invalid (damaged; of other options than these,
/// naming the first that differs; of another step than rank 0's; no steps left).
Result<Checkpoint> load_checkpoint(Group& world, const TrainOptions&, std::size_t parts);

/// Parses `all`, the content of the file at `path`, for a run with the identity `run`. Pure. Errors: invalid,
/// as for load_checkpoint.
Result<Checkpoint> parse_checkpoint(const std::string& path, std::string_view all,
                                    const nlohmann::ordered_json& run, std::size_t parts);

/// Collective: if the options name a file to resume from or to save to, loads the state of `trainer`
/// (GossipTrainer or ShardedTrainer) and `task` from it, or saves it there. Errors: the same on all ranks;
/// those of load_checkpoint or save_checkpoint, trainer and task.
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

/// One past the last step to take.
int end_of(const TrainOptions&);

}  // namespace ouro::tools
