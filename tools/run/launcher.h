// Starts the ranks of a job on this host or on several, relays their output and ends them all if one fails.
// Used by ouro-run and by `ouro-perf --ranks`.
#pragma once
#include <string>
#include <vector>

#include "runtime/context/machine.h"
#include "runtime/core/env.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"
#include "tools/run/hosts.h"

namespace ouro::run {

inline constexpr int kTimeoutCode = 124;                         ///< as timeout(1)
inline constexpr double kMinTimeout = 0.001, kMaxTimeout = 1e9;  ///< seconds; more would overflow the clock

struct RunOptions {
  int ranks = 1;         ///< 1 to kMaxRanks; more than there are cores is fine
  double timeout_s = 0;  ///< end the job after so many seconds, kMinTimeout to kMaxTimeout; 0: never
  rt::Bind bind = rt::Bind::none;  ///< what each rank may run on, on its host; see Machine::place
  bool prefix = true;              ///< "[rank] " before each line of output
  std::string name = "ouro-run";   ///< in the launcher's own messages, which go to stderr
  Environment extra;               ///< added to the environment of all ranks
  std::vector<Host> hosts;         ///< empty: this host, without an agent
  std::string agent =
      kSshAgent;  ///< command that runs a command on {host}, which it names; "": every host is this one
};

/// Runs `argv` as ranks 0..n-1 with the variables of torchrun and OURO_*, and returns the exit code of the
/// job: 0 if all ranks returned 0, else that of the first rank that failed (128 + signal if a signal killed
/// it), kTimeoutCode after the timeout, 127 or 126 if the program does not exist or cannot be executed.
///
/// After a failure the others have a second to report and leave by themselves, then get SIGTERM, and SIGKILL
/// two seconds later. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to all ranks; a second one kills
/// them. SIGUSR1, SIGUSR2, SIGTSTP (which stops this process, too) and SIGCONT are passed on, and the job
/// goes on. Signals that this process was started to ignore stay ignored, here and in the ranks. Each rank
/// leads a process group of its own; nothing that it started survives it, nor the death of this process
/// (guardian.h). Rank 0 gets this process's standard input unless that is a terminal, the others an empty
/// one.
///
/// Whoever reads standard output or standard error slowly holds up the ranks that write there, by full pipes,
/// and nothing else: deaths, signals and the timeout are acted upon. After the last rank this waits for the
/// reader as any program does; a signal or the timeout ends that, and it is told how many bytes were dropped.
/// An output that fails ends the job with 1 and a word, or with 128 + SIGPIPE where nobody reads any more. A
/// line that stands unfinished for a quarter of a second is shown as it is.
///
/// A rank is bound before the program starts, with all threads that it will have. Bound ranks get
/// OURO_BIND=none, since it is done.
///
/// With hosts, ranks follow the order of hosts and fill the slots of each. On each host an agent (agent.h),
/// started by `agent`, starts that host's ranks; all of the above holds across hosts, but for standard input,
/// which is empty for all ranks. An agent that dies, or loses its connection, ends the ranks of its host and
/// is a failure like that of a rank; when this process dies, all agents do. Ranks get OURO_RENDEZVOUS (an
/// address of the first host that all other hosts have reached), OURO_HOSTID (the host's name in `hosts`) and
/// OURO_SECRET_FILE (a random secret of this job, which travels on the standard input of agents only).
///
/// The soft limit of open files is raised as far as needed (three for a rank); ranks get it as it was.
///
/// Blocks; forks, so the caller should have no other threads. Changes the calling thread's signal mask and
/// the process's child-subreaper mark until it returns. Errors: invalid (options), resource (the system
/// refuses processes, pipes, descriptors, ports or a binding).
Result<int> run_ranks(const RunOptions& options, const std::vector<std::string>& argv);

/// Where a rank is in the job.
struct Seat {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  int node = 0, nodes = 1;
};

/// What all ranks of a job know.
struct Rendezvous {
  std::string job;                    ///< the job's id
  std::string address = "127.0.0.1";  ///< of the host of rank 0
  int port = 0;                       ///< free there, for programs that use MASTER_PORT
  std::string rendezvous;             ///< "address:port" of another one, for ouro; "": all ranks on one host
};

/// This process's variables as ranks get them: OURO_OUTER_LAUNCHERS says whose rank this process itself is,
/// so that nobody takes those variables for its own.
Environment own_environment();
/// Those of this process that are settings of the whole job, which are OURO_* but for what makes a rank of it
/// and what is secret, and those of the options.
Environment exported(const RunOptions& options);
/// OURO_SOCKET_IFNAME as the ranks will see it; "": what the first host itself says.
std::string interfaces_of(const RunOptions& options);
/// The variables that a rank gets on top of its parent's.
Environment rank_environment(const Seat& seat, const Rendezvous& rendezvous);

}  // namespace ouro::run
