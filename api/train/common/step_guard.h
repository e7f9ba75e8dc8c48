// The order of calls in a training step, and the conversion of failures. Base of the states of GossipTrainer
// and ShardedTrainer.
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
  std::int64_t steps = 0;  // completed steps
  bool accumulating = false, open = false, closed = false;
  bool averaged = false;  // an Average is in effect
  Status failure;         // the first failure

  // The state of the current step.
  std::vector<bool> ready;      // by parameter: its gradient is complete
  std::vector<Event> events;    // by parameter: passed when its gradient is complete
  std::size_t ready_count = 0;  // number of complete gradients

  void expect(std::size_t parameters) { ready.resize(parameters), events.resize(parameters); }

  // Checks of the order of calls: a refused call changes nothing.
  Status usable() const;
  Status begin_step(bool training);
  /// Records the gradient. False: it is only accumulated.
  Result<bool> grad_ready(std::span<const Param>, int param, const Stream&);
  Result<bool> end_backward() const;  ///< false: gradients are only accumulated
  void end_step();                    ///< counts the step; the next one may begin
  /// For calls that are not allowed within a step or while an average is in effect.
  Status between_steps(std::string_view call) const;
  Status before_steps(std::string_view call) const;  ///< for loading: only a new trainer accepts a state

  /// Stores the first failure as its cause: misuse by one rank is `mismatch` on all others. Returns the text
  /// with which to abort the groups, so that no rank waits for this one and the others receive the cause.
  std::string keep(const Status&);

 private:
  Status in_step(std::string_view call) const;
};

}  // namespace ouro::train
