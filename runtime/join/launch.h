// Who am I in the job? Rank and size from the variables of whatever launcher started this process.
// Used by Context::from_env and by the tools.
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
  std::string rendezvous;  ///< where hosts meet: "host:port", "[address]:port", "file:PATH"; "": not told
  int node = -1;           ///< index of this host as the launcher counts them; -1: not told
  std::uint64_t generation = 0;  ///< how often the launcher has started this job again
  bool several_hosts() const { return local_size < size; }
};

/// Names for a process and its parent that no other process has had since the host was booted.
struct Identity {
  std::string self, parent;
};
/// Of this process, from /proc: process id and start time.
Identity identity();

/// The first launcher whose variables are there wins, in the order of the list above; none: one rank. Pure.
/// Where several are there they must agree about rank and size, unless one is known to have been started by a
/// rank of the other, which it then overrules: ouro-run over what it found around itself
/// (OURO_OUTER_LAUNCHERS), torchrun (by TORCHELASTIC_RUN_ID) over all but ouro-run, mpirun over SLURM.
/// OURO_LAUNCHER chooses regardless.
///
/// OURO_JOB_ID, where set, is the job key whatever the launcher. Where a launcher says nothing that all hosts
/// see, the key of a job on one host is the common parent process, and that of a job over several hosts the
/// host:port of OURO_RENDEZVOUS; with a file there it is `invalid` without OURO_JOB_ID.
///
/// The rendezvous is OURO_RENDEZVOUS, else under torchrun port MASTER_PORT+1 of MASTER_ADDR (its agent holds
/// MASTER_PORT), else under SLURM the step's first host, where rank 0 lives, with a port made of the numbers
/// of job and step. A job over several hosts that has none is `invalid`: mpirun carries OURO_RENDEZVOUS with
/// -x.
///
/// Errors: invalid (variables missing, not numbers, out of range, or of launchers that disagree; the text
/// names them).
Result<Launch> discover(const Environment&, const Identity&);

/// "slurm 0/2,torchrun 1/4": whose rank a process with these variables is, by every launcher among them.
std::string outer_launchers(const Environment&);

/// Of this process; the winner is logged, and so are OURO_* variables that nobody reads.
Result<Launch> discover();

}  // namespace ouro
