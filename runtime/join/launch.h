// Launch: which rank of the job this process is, from the variables of the launcher that started it. Used by
// Context::from_env and by the tools.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/core/env.h"
#include "runtime/core/status.h"

namespace ouro {

struct Launch {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  ///< among the ranks of this host
  std::string launcher =
      "none";              ///< "ouro", "torchrun", "openmpi", "pmix", "pmi", "mvapich", "slurm", "none"
  std::string job_key;     ///< equal on all ranks of the job, different for any other job
  std::string rendezvous;  ///< where hosts meet: "host:port", "[address]:port", "file:PATH"; "": not known
  int node = -1;           ///< index of this host as the launcher counts hosts; -1: not known
  std::uint64_t generation = 0;  ///< how often the launcher has restarted this job
  bool several_hosts() const { return local_size < size; }
};

/// Names for a process and its parent that no other process has had since the host was booted.
struct Identity {
  std::string self, parent;
};
/// The names of this process and its parent, from /proc: process id and start time.
Identity identity();

/// Finds rank and size. The first launcher whose variables are set wins, in the order of Launch::launcher;
/// without any, the job has one rank. If the variables of several are set, they must agree on rank and size,
/// unless one launcher is known to have been started by a rank of the other, which it then overrules:
/// ouro-run overrules those in whose environment it ran itself (OURO_OUTER_LAUNCHERS), torchrun (recognised
/// by TORCHELASTIC_RUN_ID) all but ouro-run, mpirun SLURM. OURO_LAUNCHER forces the choice. Pure.
///
/// OURO_JOB_ID, if set, is the job key under any launcher. If the launcher gives no name that all hosts see,
/// the key of a job on one host is the common parent process, and that of a job over several hosts is the
/// host:port of the rendezvous; with a file there, a missing OURO_JOB_ID is `invalid`.
///
/// The rendezvous is OURO_RENDEZVOUS, else under torchrun port MASTER_PORT+1 of MASTER_ADDR (its agent holds
/// MASTER_PORT), else under SLURM the step's first host, where rank 0 lives, with a port computed from the
/// numbers of job and step, else MASTER_ADDR and MASTER_PORT as set by hand. A job over several hosts without
/// a rendezvous is `invalid`: mpirun passes OURO_RENDEZVOUS on with -x.
///
/// Errors: invalid (variables missing, not numbers, out of range, or of launchers that disagree; the text
/// names them).
Result<Launch> discover(const Environment&, const Identity&);

/// Rank and size of a process with these variables according to each launcher among them: "slurm
/// 0/2,torchrun 1/4".
std::string outer_launchers(const Environment&);

/// The same for this process. Logs the winner, and OURO_* variables that are unknown.
Result<Launch> discover();

}  // namespace ouro
