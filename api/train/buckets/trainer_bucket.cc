// Makes the parts of a bucket. See trainer_bucket.h.
#include "api/train/buckets/trainer_bucket.h"

namespace ouro::train {

Status TrainerBucket::make(Block& block) const {
  OURO_ASSIGN(block, Block::make(layout.dtype, layout.device, layout.length));
  return {};
}

Status TrainerBucket::move(View& view, const Block& to, std::size_t i) const {
  const View there = to.view(layout.offsets[i], view.count);
  OURO_TRY(copy_view(there, view));
  view = there;
  return {};
}

Status TrainerBucket::make_rule(const OptimizerFactory& factory, std::span<const Param> updated,
                                const ScheduleFactory& schedules) {
  OURO_ASSIGN(optimizer, make_optimizer(factory, updated));
  if (!schedules) return {};
  OURO_ASSIGN(schedule, schedules(params));
  return {};
}

void TrainerBucket::add_rule(Digest* d) const {
  d->add(optimizer->digest());
  d->add(schedule.has_value());
  if (!schedule) return;
  for (const std::int64_t update : {0, 1, 2, 5, 10, 100, 1'000, 10'000, 100'000, 1'000'000})
    if (update < schedule->known()) d->add(schedule->at(update));
}

Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerFactory& factory,
                                                  std::span<const Param> params) {
  auto made = factory(params);
  if (made.ok() && *made == nullptr) return invalid("the optimiser's factory made none");
  return made;
}

}  // namespace ouro::train
