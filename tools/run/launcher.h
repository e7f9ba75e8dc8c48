// Starts the ranks of a job on this host, relays their output and ends them all if one fails.
// Used by ouro-run and by `ouro-perf --ranks`.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/env.h"
#include "runtime/core/status.h"
#include "runtime/machine.h"

namespace ouro::run {

inline constexpr int kMaxRanks = 4096;
inline constexpr int kTimeoutCode = 124;  ///< as timeout(1)

struct RunOptions {
  int ranks = 1;                   ///< 1 to kMaxRanks; more than there are cores is fine
  double timeout_s = 0;            ///< end the job after this many seconds; 0: never
  rt::Bind bind = rt::Bind::none;  ///< what each rank may run on; see Machine::place
  bool prefix = true;              ///< "[rank] " before each line of output
  std::string name = "ouro-run";   ///< in the launcher's own messages, which go to stderr
  Environment extra;               ///< added to the environment of all ranks
};

/// Runs `argv` as ranks 0..n-1 with the variables of torchrun and OURO_*, and returns the exit code of the
/// job: 0 if all ranks returned 0, else that of the first rank that failed (128 + signal if a signal killed
/// it), kTimeoutCode after the timeout, 127 or 126 if the program does not exist or cannot be executed.
///
/// After a failure the others have a second to report and leave by themselves, then get SIGTERM, and SIGKILL
/// two seconds later. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to all ranks; a second one kills
/// them. Each rank leads a process group of its own; nothing that it started survives it. Rank 0 gets this
/// process's standard input unless that is a terminal, the others an empty one.
///
/// A rank is bound before the program starts, with all threads that it will have. Bound ranks get
/// OURO_BIND=none, since it is done.
///
/// Blocks. Changes the calling thread's signal mask and the process's child-subreaper mark until it returns.
/// Errors: invalid (options), resource (the system refuses processes, pipes, ports or a binding).
Result<int> run_ranks(const RunOptions& options, const std::vector<std::string>& argv);

/// The variables that rank `rank` gets on top of its parent's. `job` is the job's id, `port` a free TCP port.
Environment rank_environment(int rank, int ranks, const std::string& job, int port);

}  // namespace ouro::run
