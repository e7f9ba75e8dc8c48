// Makes the choices of executions: which fiber runs next, which store a load reads. Tries all of them, draws
// them from a seed, or repeats given ones. Used by the machine.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/explore/engine/heap.h"
#include "tests/explore/engine/knowledge.h"

namespace explore {

using FiberSet = std::uint32_t;

/// The places that a step touches. Two steps that touch the same place, at least one of them changing it, do
/// not commute.
struct Footprint {
  static constexpr int kPlaces = 64;
  struct Touch {
    std::int16_t place;
    bool changes;
  };
  Touch at[kPlaces];
  int count = 0;
  void add(int place, bool changes) {
    if (count == kPlaces) std::abort();
    at[count++] = {static_cast<std::int16_t>(place), changes};
  }
  void assign(const Footprint& o) {
    count = o.count;
    std::copy_n(o.at, o.count, at);
  }
  bool commutes(const Footprint& o) const {
    for (int i = 0; i < count; ++i)
      for (int j = 0; j < o.count; ++j)
        if (at[i].place == o.at[j].place && (at[i].changes || o.at[j].changes)) return false;
    return true;
  }
};

/// How choices are made.
struct Plan {
  enum class Kind : std::uint8_t {
    reduced,  ///< all executions, but only one of those that differ only in the order of commuting steps:
              ///< dynamic partial-order reduction by source sets (Abdulla et al. 2014), with sleep sets
    all,      ///< all executions in every order of steps; to check `reduced` against
    random,
    repeat
  } kind = Kind::reduced;
  std::uint64_t seed = 1;
  std::vector<std::uint16_t> choices = {};  ///< for `repeat`
  bool was_random = false;                  ///< for `repeat`: the execution came from a random search
};

/// Walks through the tree of choices, one path for each execution.
class Search {
 public:
  explicit Search(Plan plan) : plan_(std::move(plan)), random_(plan_.seed) {}
  /// Starts a new execution. False: there is none left.
  bool begin();
  /// The fiber that makes the next step, or -1 if the rest is redundant. `next`: the footprints of the next
  /// steps, by fiber.
  int schedule(FiberSet enabled, int current, const Footprint* const* next);
  /// Chooses one of `n` alternatives, the first of which is the usual one.
  int pick(int n);
  /// Records that the fiber chosen last makes its step.
  void account(int fiber, const Footprint&);
  /// Records that all steps of `waker` so far precede the next step of `woken`.
  void order(int waker, int woken) { join(&seen_[woken], seen_[waker]); }
  /// Call at the end of an execution: records a step that was not made because of the order of others.
  void pending(int fiber, const Footprint& next);
  /// The choices of this execution, for repeating it.
  const Kept<std::uint16_t>& path() const { return path_; }
  /// Whether executions are dropped that others represent.
  bool exhaustive() const {
    return plan_.kind != Plan::Kind::random && !(plan_.kind == Plan::Kind::repeat && plan_.was_random);
  }
  bool complete() const { return complete_; }  ///< all executions have been tried

 private:
  static constexpr int kPlaces = 2 * kLocations + kFibers + 1;
  struct Node {
    bool schedules;
    std::uint16_t chosen, count;  // for data: the alternative chosen of `count`
    FiberSet enabled, todo, done, asleep;
  };
  struct Steps {
    int at[kFibers] = {};
  };
  struct Place {
    std::uint64_t execution;
    int changed;  // last step that changed it; 0: none
    int changed_by;
    int read[kFibers];
    Steps change, reads;
  };
  static void join(Steps* a, const Steps& b) {
    for (int i = 0; i < kFibers; ++i) a->at[i] = std::max(a->at[i], b.at[i]);
  }
  Place& place(int i);
  bool advance();
  Steps before(int fiber, const Footprint&);
  FiberSet initials(int step, int fiber, const Steps& now) const;
  void race(int fiber, const Footprint&, const Steps& now);
  FiberSet asleep_now(const Footprint* const* next) const;

  Plan plan_;
  std::mt19937_64 random_;
  std::uint64_t execution_ = 0;
  bool complete_ = false;
  Kept<Node> nodes_;
  std::size_t depth_ = 0;  // number of nodes of this execution so far
  int last_ = -1;          // node of the last step
  struct Made {
    int fiber = 0, node = -1;
    Steps seen;
  };
  Kept<Made> made_;         // steps; indices from 1
  mutable Kept<int> kept_;  // scratch
  Steps seen_[kFibers];     // by fiber: the steps of others that precede its next one
  Kept<Place> places_;
  Kept<std::uint16_t> path_;
  Footprint last_footprint_;
  std::uint32_t weights_[kFibers] = {};  // for random executions: some fibers are faster than others
};

}  // namespace explore
