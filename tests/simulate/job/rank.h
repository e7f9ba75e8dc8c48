// One rank of a simulated job: it joins, reduces step by step, and continues with the survivors after a
// failure, as a user's program would. Used by the run.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "tests/simulate/job/scenario.h"

namespace simulate {

/// The result of one call.
struct Call {
  enum class Kind : std::uint8_t { join, group, reduce, shrink, close } kind = Kind::join;
  std::uint64_t generation = 0;
  /// World ranks of the group that was called; for shrink(), of the resulting group.
  std::vector<int> members;
  Nanos began = 0, ended = -1;
  ouro::Status outcome;
  bool right = true;  ///< for a call that succeeded: whether the result was right
};

class Rank {
 public:
  Rank(const Scenario& scenario, int rank);
  /// Runs on a fiber of its own.
  void run();

  Process process;
  std::vector<Call> calls;
  bool over = false;
  bool complete = false;                               ///< all steps were completed
  std::size_t descriptors_left = 0, threads_left = 0;  ///< left at the end of the program
  std::size_t lingering = 0, unanswered = 0;           ///< left from groups that ended everywhere long before

 private:
  template <class F>
  ouro::Status call(Call::Kind, std::uint64_t generation, std::vector<int> members, F);
  const Scenario& scenario_;
};

}  // namespace simulate
