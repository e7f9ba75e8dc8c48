// One rank of a simulated job: it joins, reduces step by step, and goes on with those who are left after a
// failure, as a program of a user's would. Used by the run.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "tests/simulate/job/scenario.h"

namespace simulate {

/// What came of one call.
struct Call {
  enum class Kind : std::uint8_t { join, group, reduce, shrink, close } kind = Kind::join;
  std::uint64_t generation = 0;
  std::vector<int> members;  ///< world ranks, of the group that was called; of shrink() that came of it
  Nanos began = 0, ended = -1;
  ouro::Status outcome;
  bool right = true;  ///< the result, of a call that succeeded
};

class Rank {
 public:
  Rank(const Scenario& scenario, int rank);
  /// On a fiber of its own.
  void run();

  Process process;
  std::vector<Call> calls;
  bool over = false;
  bool complete = false;                               ///< all steps were made
  std::size_t descriptors_left = 0, threads_left = 0;  ///< at the end of the program
  std::size_t lingering = 0, unanswered = 0;           ///< of groups that have ended everywhere, long after

 private:
  template <class F>
  ouro::Status call(Call::Kind, std::uint64_t generation, std::vector<int> members, F);
  const Scenario& scenario_;
};

}  // namespace simulate
