// The choices of executions: which fiber goes on, which store a load reads. Tries all of them, or draws them
// from a seed, or repeats those that it is given. Used by the machine.
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

/// What a step touches. Two steps that touch one place, one of them to change it, do not commute.
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

/// How executions are chosen.
struct Plan {
  enum class Kind : std::uint8_t {
    reduced,  ///< all, but one of those that differ in the order of steps that commute only: dynamic
              ///< partial-order reduction by source sets (Abdulla et al. 2014), with sleep sets
    all,      ///< all, each order of steps; to check `reduced` against
    random,
    repeat
  } kind = Kind::reduced;
  std::uint64_t seed = 1;
  std::vector<std::uint16_t> choices = {};  ///< of `repeat`
  bool was_random = false;                  ///< with `repeat`: the execution was a random one
};

/// Walks through the tree of choices, one path an execution.
class Search {
 public:
  explicit Search(Plan plan) : plan_(std::move(plan)), random_(plan_.seed) {}
  /// A new execution. False: there is none left.
  bool begin();
  /// The fiber that makes the next step, or -1: what follows has been seen before. `next`: by fiber.
  int schedule(FiberSet enabled, int current, const Footprint* const* next);
  /// One of `n`, of which the first is the usual one.
  int pick(int n);
  /// The fiber that was chosen last makes its step.
  void account(int fiber, const Footprint&);
  /// All that `waker` did up to now comes before what `woken` does next.
  void order(int waker, int woken) { join(&seen_[woken], seen_[waker]); }
  /// At the end of an execution: steps that could not be made any more because of others' order.
  void pending(int fiber, const Footprint& next);
  /// The choices of this execution, to repeat it.
  const Kept<std::uint16_t>& path() const { return path_; }
  /// Whether executions are dropped for which others stand.
  bool exhaustive() const {
    return plan_.kind != Plan::Kind::random && !(plan_.kind == Plan::Kind::repeat && plan_.was_random);
  }
  bool complete() const { return complete_; }  ///< all has been tried

 private:
  static constexpr int kPlaces = 2 * kLocations + kFibers + 1;
  struct Node {
    bool schedules;
    std::uint16_t chosen, count;  // of data: of `count`
    FiberSet enabled, todo, done, asleep;
  };
  struct Steps {
    int at[kFibers] = {};
  };
  struct Place {
    std::uint64_t execution;
    int changed;  // step; 0: none
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
  std::size_t depth_ = 0;  // nodes of this execution so far
  int last_ = -1;          // node of the last step
  struct Made {
    int fiber = 0, node = -1;
    Steps seen;
  };
  Kept<Made> made_;         // steps; from 1
  mutable Kept<int> kept_;  // scratch
  Steps seen_[kFibers];     // by fiber: steps of others that come before its next one
  Kept<Place> places_;
  Kept<std::uint16_t> path_;
  Footprint last_footprint_;
  std::uint32_t weights_[kFibers] = {};  // of a random execution: some fibers are faster than others
};

}  // namespace explore
