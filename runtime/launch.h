// Who am I in the job? Rank and size from the variables of whatever launcher started this process.
// Used by Context::from_env and by the tools.
#pragma once
#include <string>

#include "runtime/core/env.h"
#include "runtime/core/status.h"

namespace ouro {

struct Launch {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  ///< among the ranks of this host
  std::string launcher =
      "none";           ///< "ouro", "torchrun", "openmpi", "pmix", "pmi", "mvapich", "slurm", "none"
  std::string job_key;  ///< equal on all ranks of the job, different for any other job
};

/// Names for a process and its parent that no other process has had since the host was booted.
struct Identity {
  std::string self, parent;
};
/// Of this process, from /proc: process id and start time.
Identity identity();

/// The first launcher whose variables are there wins, in the order of the list above; none: one rank. Pure.
/// OURO_JOB_ID, where set, is the job key whatever the launcher. Where a launcher says nothing that all hosts
/// see, the key is the common parent process, and a job over several hosts is `invalid` without OURO_JOB_ID.
/// Errors: invalid (variables missing, not numbers, or out of range; the text names them).
Result<Launch> discover(const Environment&, const Identity&);

/// Of this process; the winner is logged, and so are OURO_* variables that nobody reads.
Result<Launch> discover();

}  // namespace ouro
