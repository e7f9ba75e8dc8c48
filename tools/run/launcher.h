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

inline constexpr int kTimeoutCode = 124;  ///< the same as timeout(1)
/// Seconds; a larger value would overflow the clock.
inline constexpr double kMinTimeout = 0.001, kMaxTimeout = 1e9;

struct RunOptions {
  int ranks = 1;         ///< 1 to kMaxRanks; may exceed the number of cores
  double timeout_s = 0;  ///< seconds after which the job is ended, kMinTimeout to kMaxTimeout; 0: never
  /// Which cores and memory each rank is bound to on its host; see Machine::place.
  rt::Bind bind = rt::Bind::none;
  bool prefix = true;             ///< "[rank] " before each line of output
  std::string name = "ouro-run";  ///< prefix of the launcher's own messages, which go to stderr
  Environment extra;              ///< added to the environment of all ranks
  std::vector<Host> hosts;        ///< empty: the job runs on this host, without an agent
  std::string agent = kSshAgent;  ///< command that runs a command on {host}, which it must contain; "": every
                                  ///< host is this one
};

/// Runs `argv` as ranks 0..n-1 with the variables of torchrun and OURO_*, and returns the exit code of the
/// job: 0 if all ranks returned 0, else that of the first rank that failed (128 + signal if a signal killed
/// it), kTimeoutCode after the timeout, 127 or 126 if the program does not exist or cannot be executed.
///
/// After a failure the other ranks have a second to report and exit by themselves; then they get SIGTERM, and
/// SIGKILL two seconds later. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to all ranks; a second one
/// kills them. SIGUSR1, SIGUSR2, SIGTSTP (which also stops this process) and SIGCONT are passed on, and the
/// job continues. Signals that this process was started to ignore remain ignored, here and in the ranks. Each
/// rank leads a process group of its own; no process that it started survives it or the death of this process
/// (guardian.h). Rank 0 gets this process's standard input unless that is a terminal; the others get
/// an empty one.
///
/// A slow reader of standard output or standard error holds up, through full pipes, only the ranks that write
/// there: deaths, signals and the timeout are still acted upon. After the last rank has ended, this function
/// waits for the reader as any program does; a signal or the timeout ends this wait, and the number of
/// dropped bytes is reported. A failed output ends the job with exit code 1 and a message, or with 128 +
/// SIGPIPE if no process reads it any more. A line that is unterminated for a quarter of a second is
/// shown as it is.
///
/// A rank is bound before the program starts, and with it all threads that it will have. Bound ranks get
/// OURO_BIND=none, because they are already bound.
///
/// With hosts, ranks follow the order of the hosts and fill the slots of each. On each host an agent
/// (agent.h), started by `agent`, starts that host's ranks. All of the above holds across hosts, except that
/// standard input is empty for all ranks. An agent that dies, or loses its connection, ends the ranks of its
/// host and counts as a failure like that of a rank; when this process dies, all agents end. Ranks get
/// OURO_RENDEZVOUS (an address of the first host that all other hosts have reached), OURO_HOSTID (the host's
/// name in `hosts`) and OURO_SECRET_FILE (a random secret of this job, which is sent only over the standard
/// input of agents).
///
/// The soft limit of open files is raised as far as needed (three for each rank); ranks get the
/// original limit.
///
/// Blocks; forks, so the caller should have no other threads. Changes the calling thread's signal mask and
/// the process's child-subreaper attribute until it returns. Errors: invalid (options), resource (the system
/// refuses processes, pipes, descriptors, ports or a binding).
Result<int> run_ranks(const RunOptions& options, const std::vector<std::string>& argv);

/// The position of a rank in the job.
struct Seat {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  int node = 0, nodes = 1;
};

/// The values that are the same for all ranks of a job.
struct Rendezvous {
  std::string job;                    ///< the job's id
  std::string address = "127.0.0.1";  ///< address of the host of rank 0
  int port = 0;                       ///< a free port there, for programs that use MASTER_PORT
  std::string rendezvous;  ///< "address:port" with another free port, for ouro; "": all ranks are on one host
};

/// This process's variables as ranks get them. OURO_OUTER_LAUNCHERS records the launchers whose rank this
/// process itself is, so that no rank takes their variables for its own.
Environment own_environment();
/// The variables that are settings of the whole job: this process's OURO_* variables, except those that
/// identify a rank and those that are secret, and the variables of the options.
Environment exported(const RunOptions& options);
/// OURO_SOCKET_IFNAME as the ranks will see it; "": the setting of the first host itself applies.
std::string interfaces_of(const RunOptions& options);
/// The variables that a rank gets in addition to its parent's.
Environment rank_environment(const Seat& seat, const Rendezvous& rendezvous);

}  // namespace ouro::run
