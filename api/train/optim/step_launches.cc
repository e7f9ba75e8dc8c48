// Groups the parameters of a step into shared launches. See step_launches.h.
#include "api/train/optim/step_launches.h"

#include <fmt/format.h>

#include <algorithm>

namespace ouro::train {

std::vector<StepLaunches::Part> StepLaunches::parts_of(const std::vector<StepItem>& items) {
  std::vector<Part> parts;
  for (const StepItem& i : items) {
    const Update& u = i.update;
    Part one;
    one.kin = {i.updates, u.run.master != nullptr, u.run.dtype,
               u.family == gpu::Family::sgd ? u.recipe.sgd.weight_decay : u.recipe.adam.weight_decay,
               u.device};
    if (i.updates) {
      one.cohort = i.state->cohort();
      one.steps = one.cohort ? one.cohort->steps : i.state->host_step;
    }
    auto at = std::find_if(parts.begin(), parts.end(), [&](const Part& p) {
      return p.kin == one.kin && p.cohort == one.cohort && p.steps == one.steps;
    });
    if (at == parts.end()) at = parts.insert(parts.end(), std::move(one));
    at->items.push_back(&i);
  }
  return parts;
}

/// Merges parts of one kin at the same step, except those whose steps a graph counts.
void StepLaunches::merge(std::vector<Part>& parts) {
  const auto fixed = [](const Part& p) { return p.items.empty() || (p.cohort && p.cohort->captured); };
  for (std::size_t k = 0; k < parts.size(); ++k)
    for (std::size_t other = k + 1; other < parts.size(); ++other) {
      Part &p = parts[k], &q = parts[other];
      if (fixed(p) || fixed(q) || !(p.kin == q.kin) || p.steps != q.steps) continue;
      if (!p.cohort) p.cohort = q.cohort;  // keeps an existing cohort, if there is one
      p.items.insert(p.items.end(), q.items.begin(), q.items.end());
      q.items.clear();
    }
  std::erase_if(parts, [](const Part& p) { return p.items.empty(); });
}

Result<std::shared_ptr<Cohort>> StepLaunches::counter(const Part& p, Queue queue, bool captured,
                                                      std::optional<std::int64_t>* begin) {
  const auto idle = [&](const auto& c) {
    return c->members == 0 && !c->captured && c->device() == p.kin.device && c->last.value_or(queue) == queue;
  };
  auto at = captured ? made_.end() : std::find_if(made_.begin(), made_.end(), idle);
  if (at == made_.end()) {
    // A graph would write the count at each replay, so it is written now; otherwise it is written in
    // stream order.
    OURO_ASSIGN(auto made, Cohort::make(p.kin.device, captured ? p.steps : 0));
    at = made_.insert(made_.end(), std::move(made));
  }
  if (!captured) *begin = p.steps;
  (*at)->steps = p.steps;
  return *at;
}

Result<std::shared_ptr<Cohort>> StepLaunches::mixer(const Kin& kin, Queue queue, bool captured) {
  const auto at = std::find_if(mixed_.begin(), mixed_.end(),
                               [&](const Mixer& m) { return !captured && m.kin == kin && m.queue == queue; });
  if (at != mixed_.end()) return at->cohort;
  OURO_ASSIGN(auto made, Cohort::make(kin.device, 0));
  mixed_.push_back({kin, captured ? std::nullopt : std::optional(queue), made});
  return made;
}

Result<StepLaunch> StepLaunches::launch_of(Part& p, const Stream& stream, bool captured) {
  StepLaunch launch{.counts = p.kin.updates};
  if (!p.kin.updates) {
    OURO_ASSIGN(p.cohort, mixer(p.kin, queue_of(stream), captured));
  } else if (!p.cohort) {
    OURO_ASSIGN(p.cohort, counter(p, queue_of(stream), captured, &launch.begin));
  }
  launch.cohort = p.cohort;
  for (const StepItem* i : p.items) {
    if (p.kin.updates && i->state->cohort() != p.cohort) i->state->join(p.cohort);
    launch.updates.push_back(i->update);
    launch.states.push_back(i->state);
  }
  if (!stream.valid() || stream.device() == p.kin.device) {
    OURO_ASSIGN(launch.staged, p.cohort->stage(launch.updates, captured));
  }
  return launch;
}

Result<std::vector<StepLaunch>> StepLaunches::launches_of(std::vector<Part>& parts, const Stream& stream,
                                                          bool captured) {
  std::vector<StepLaunch> launches;
  for (Part& p : parts) {
    OURO_ASSIGN(auto launch, launch_of(p, stream, captured));
    launches.push_back(std::move(launch));
  }
  return launches;
}

Result<std::vector<StepLaunch>> StepLaunches::of(
    const std::vector<StepItem>& items, const Stream& stream, bool captured,
    const std::function<std::string(const OptimizerState&)>& name) {
  std::vector<Part> parts = parts_of(items);
  const auto partial = [](const Part& p) { return p.cohort && p.items.size() < p.cohort->members; };
  for (const Part& p : parts)
    if (partial(p) && p.cohort->captured)
      return invalid(
          fmt::format("a captured graph steps {} parameters together, this step has {} of them, such as {}: "
                      "step all of them, or give an optimiser of its own to what steps apart",
                      p.cohort->members, p.items.size(), name(*p.items[0]->state)));
  for (Part& p : parts)
    if (partial(p)) p.cohort.reset();  // they leave the cohort for the one they join below
  merge(parts);
  auto launches = launches_of(parts, stream, captured);
  if (!launches.ok()) {  // the device has not received the initial counts of these
    for (const StepItem& i : items)
      if (i.updates && i.state->cohort() && !i.state->cohort()->captured) i.state->leave();
    return launches.status();
  }
  for (const StepLaunch& l : *launches) {
    if (!captured) l.cohort->last = queue_of(stream);
    if (!l.counts) continue;
    l.cohort->captured |= captured;
    l.cohort->steps += !captured;
  }
  return launches;
}

}  // namespace ouro::train
