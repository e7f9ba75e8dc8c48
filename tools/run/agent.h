// ouro-run's hidden sub-command, which starts the ranks of one host for a launcher on another. Used
// by main.cc.
#pragma once

namespace ouro::run {

inline constexpr const char* kAgentCommand = "__agent";  ///< name of the sub-command; it is the only argument

/// Reads orders from standard input and answers on standard output (messages.h). Returns once all ranks and
/// all processes that they started have ended: after they have ended by themselves, after standard input
/// closes because the launcher died or the connection broke, or after SIGTERM. Returns the exit code of the
/// agent; the exit code of the job is sent to the launcher.
///
/// The job's secret arrives in the orders. Ranks read it from OURO_SECRET_FILE, which names an inherited
/// descriptor of memory that only this user can open; the secret appears in no command line, environment or
/// file system.
int agent_main();

}  // namespace ouro::run
