// Walks through the tree of choices. See search.h.
#include "tests/explore/engine/search.h"

#include <bit>
#include <utility>

namespace explore {
namespace {
FiberSet only(int fiber) { return FiberSet{1} << fiber; }
int first_of(FiberSet s) { return std::countr_zero(s); }
}  // namespace

bool Search::begin() {
  if (plan_.kind == Plan::Kind::reduced || plan_.kind == Plan::Kind::all) {
    if (execution_ > 0 && !advance()) {
      complete_ = true;
      return false;
    }
  } else if (plan_.kind == Plan::Kind::repeat && execution_ > 0) {
    return false;
  }
  if (plan_.kind == Plan::Kind::random) {
    nodes_.clear();
    for (std::uint32_t& w : weights_) w = 1u << 2 * (random_() & 3);
  }
  ++execution_;
  depth_ = 0;
  last_ = -1;
  made_.assign(1, {});
  for (Steps& s : seen_) s = {};
  if (places_.empty()) places_.resize(kPlaces);
  path_.clear();
  last_footprint_.count = 0;
  return true;
}

/// Advances to the next path, at the last node with an untried alternative.
bool Search::advance() {
  while (!nodes_.empty()) {
    Node& n = nodes_.back();
    if (!n.schedules) {
      if (n.chosen + 1 < n.count) {
        ++n.chosen;
        return true;
      }
    } else {
      n.done |= only(n.chosen);
      if (const FiberSet left = n.todo & ~n.done & ~n.asleep) {
        n.chosen = static_cast<std::uint16_t>(first_of(left));
        return true;
      }
    }
    nodes_.pop_back();
  }
  return false;
}

int Search::pick(int n) {
  if (n <= 1) return 0;
  std::uint16_t chosen = 0;
  const std::size_t i = depth_++;
  if (plan_.kind == Plan::Kind::random) {
    const std::uint64_t r = random_();
    chosen = static_cast<std::uint16_t>(r & 1 ? 0 : (r >> 1) % static_cast<unsigned>(n));
  } else if (plan_.kind == Plan::Kind::repeat) {
    chosen = i < plan_.choices.size() ? plan_.choices[i] : std::uint16_t{0};
    if (chosen >= n) chosen = 0;
  } else {
    if (i == nodes_.size())
      nodes_.push_back({.schedules = false, .chosen = 0, .count = static_cast<std::uint16_t>(n)});
    chosen = nodes_[i].chosen;
  }
  path_.push_back(chosen);
  return chosen;
}

/// The sleep set of the new node: fibers that were tried, or slept, at the previous node, and whose next step
/// commutes with the step made there.
FiberSet Search::asleep_now(const Footprint* const* next) const {
  if (last_ < 0) return 0;
  const Node& before = nodes_[static_cast<std::size_t>(last_)];
  FiberSet asleep = 0;
  for (FiberSet s = (before.asleep | before.done) & ~only(before.chosen); s; s &= s - 1) {
    const int f = first_of(s);
    if (next[f]->commutes(last_footprint_)) asleep |= only(f);
  }
  return asleep;
}

int Search::schedule(FiberSet enabled, int current, const Footprint* const* next) {
  const std::size_t i = depth_++;
  int chosen = 0;
  if (plan_.kind == Plan::Kind::random) {
    std::uint32_t all = 0;
    for (FiberSet s = enabled; s; s &= s - 1) all += weights_[first_of(s)];
    auto r = static_cast<std::int64_t>(random_() % all);
    FiberSet s = enabled;
    for (; (r -= weights_[first_of(s)]) >= 0; s &= s - 1) {
    }
    chosen = first_of(s);
  } else if (plan_.kind == Plan::Kind::repeat) {
    chosen = i < plan_.choices.size() ? plan_.choices[i] : first_of(enabled);
    if (!(enabled & only(chosen))) chosen = first_of(enabled);
  } else {
    if (i == nodes_.size()) {
      const bool reduced = plan_.kind == Plan::Kind::reduced;
      Node n{.schedules = true, .enabled = enabled, .asleep = reduced ? asleep_now(next) : 0};
      const FiberSet awake = enabled & ~n.asleep;
      if (!awake) {
        --depth_;
        return -1;
      }
      n.chosen = static_cast<std::uint16_t>(awake & only(current) ? current : first_of(awake));
      n.todo = reduced ? only(n.chosen) : enabled;
      nodes_.push_back(n);
    }
    chosen = nodes_[i].chosen;
  }
  last_ = static_cast<int>(i);
  path_.push_back(static_cast<std::uint16_t>(chosen));
  last_footprint_.assign(*next[chosen]);
  return chosen;
}

Search::Place& Search::place(int i) {
  Place& p = places_[static_cast<std::size_t>(i)];
  if (p.execution != execution_) {
    p = {};
    p.execution = execution_;
  }
  return p;
}

/// The initials of the reversed race: the fibers that could make the first step of the sequence that is made
/// of the steps after `step` that do not depend on it, and then of the next step of `fiber`.
FiberSet Search::initials(int step, int fiber, const Steps& now) const {
  FiberSet first = 0, present = 0;
  const int by = made_[static_cast<std::size_t>(step)].fiber;
  const auto end = static_cast<int>(made_.size());
  kept_.clear();
  const auto free = [&](const Steps& s) {  // of everything kept so far
    for (const int k : kept_)
      if (s.at[made_[static_cast<std::size_t>(k)].fiber] >= k) return false;
    return true;
  };
  for (int j = step + 1; j < end; ++j) {
    const Made& m = made_[static_cast<std::size_t>(j)];
    if (m.seen.at[by] >= step) continue;
    if (!(present & only(m.fiber))) {
      present |= only(m.fiber);
      if (free(m.seen)) first |= only(m.fiber);
    }
    kept_.push_back(j);
  }
  if (!(present & only(fiber)) && free(now)) first |= only(fiber);
  return first;
}

/// For the last steps of other fibers that do not commute with this one, and do not precede it anyway,
/// schedules the reversed order as well.
void Search::race(int fiber, const Footprint& f, const Steps& now) {
  const auto try_behind = [&](int step, int by) {
    if (step == 0 || by == fiber || seen_[fiber].at[by] >= step) return;
    Node& n = nodes_[static_cast<std::size_t>(made_[static_cast<std::size_t>(step)].node)];
    if (std::has_single_bit(n.enabled) || n.todo == n.enabled) return;
    const FiberSet first = initials(step, fiber, now);
    if (first & n.todo) return;
    const FiberSet one = first & only(fiber) ? only(fiber) : first & ~(first - 1);
    n.todo |= n.enabled & one ? one : n.enabled;
  };
  for (int i = 0; i < f.count; ++i) {
    const Place& p = place(f.at[i].place);
    try_behind(p.changed, p.changed_by);
    if (f.at[i].changes)
      for (int r = 0; r < kFibers; ++r) try_behind(p.read[r], r);
  }
}

/// The steps that precede the next step of `fiber`, if it has this footprint.
Search::Steps Search::before(int fiber, const Footprint& f) {
  Steps s = seen_[fiber];
  for (int i = 0; i < f.count; ++i) {
    const Place& p = place(f.at[i].place);
    join(&s, p.change);
    if (f.at[i].changes) join(&s, p.reads);
  }
  return s;
}

void Search::pending(int fiber, const Footprint& f) {
  if (plan_.kind == Plan::Kind::reduced && f.count > 0) race(fiber, f, before(fiber, f));
}

void Search::account(int fiber, const Footprint& f) {
  if (plan_.kind != Plan::Kind::reduced) return;
  Steps now = before(fiber, f);
  race(fiber, f, now);
  const auto step = static_cast<int>(made_.size());
  now.at[fiber] = step;
  seen_[fiber] = now;
  made_.push_back({fiber, last_, now});
  for (int i = 0; i < f.count; ++i) {
    Place& p = place(f.at[i].place);
    if (f.at[i].changes) {
      p.changed = step;
      p.changed_by = fiber;
      p.change = now;
      p.reads = {};
      std::fill_n(p.read, kFibers, 0);
    } else {
      p.read[fiber] = step;
      join(&p.reads, now);
    }
  }
}

}  // namespace explore
