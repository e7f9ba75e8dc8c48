// Whose turn it is in a training step, and what a failure becomes. The states of GossipTrainer and
// ShardedTrainer begin with it.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ouro/ouro.hpp"
#include "ouro/train/param.hpp"

namespace ouro::train {

struct StepGuard {
  explicit StepGuard(const char* its_name) : trainer(its_name) {}

  const char* trainer;
  int world_rank = 0;
  std::int64_t steps = 0;  // that were completed
  bool accumulating = false, open = false, closed = false;
  bool averaged = false;  // an Average is in force
  Status failure;         // the first

  // Of the step under way.
  std::vector<bool> ready;      // by parameter
  std::vector<Event> events;    // by parameter: when its gradient is there
  std::size_t ready_count = 0;  // gradients that are there

  void expect(std::size_t parameters) { ready.resize(parameters), events.resize(parameters); }

  // Calls in their turn: nothing is changed where one is refused.
  Status usable() const;
  Status begin_step(bool training);
  /// Notes the gradient. False: it is only summed up.
  Result<bool> grad_ready(std::span<const Param>, int param, const Stream&);
  Result<bool> end_backward() const;  ///< False: gradients are only summed up.
  void end_step();                    ///< Counts it; the next one may begin.
  /// For what must not be done within a step, or under an average.
  Status between_steps(std::string_view call) const;
  Status before_steps(std::string_view call) const;  ///< A state is loaded into a new trainer only.

  /// Keeps the first failure, as its cause: misuse by one rank is `mismatch` on all. Returns with what the
  /// groups are to be ended, so that no rank waits for this one and the others learn the cause.
  std::string keep(const Status&);

 private:
  Status in_step(std::string_view call) const;
};

}  // namespace ouro::train
