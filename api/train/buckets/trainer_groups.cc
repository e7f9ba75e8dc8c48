// Makes and ends the groups of a trainer. See trainer_groups.h.
#include "api/train/buckets/trainer_groups.h"

namespace ouro::train {

Status TrainerGroups::connect(Group& group) {
  const auto split = [&](Group& to) -> Status {
    OURO_ASSIGN(to, group.split(0, group.rank()));
    return {};
  };
  OURO_TRY(split(control));
  for (int lane = 0; lane < StreamPool::kDefaultSize; ++lane) OURO_TRY(split(lanes.emplace_back()));
  return {};
}

void TrainerGroups::abort(const std::string& why) {
  control.abort(why);
  for (Group& lane : lanes) lane.abort(why);
}

Status TrainerGroups::close() {
  for (Group& lane : lanes) OURO_TRY(lane.close());
  return control.close();
}

}  // namespace ouro::train
