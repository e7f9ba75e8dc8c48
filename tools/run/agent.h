// ouro-run's hidden sub-command: starts the ranks of one host for a launcher elsewhere. Used by main.cc.
#pragma once

namespace ouro::run {

inline constexpr const char* kAgentCommand = "__agent";  ///< its name, the only argument

/// Takes orders from standard input, answers on standard output (messages.h). All ranks and what they started
/// are gone when it returns: when they ended, when standard input ends because the launcher died or the
/// connection broke, or on SIGTERM. Returns the exit code of the agent; the job's goes to the launcher.
///
/// The job's secret arrives in the orders. Ranks read it from OURO_SECRET_FILE, which names an inherited
/// descriptor of memory that only this user can open; it is in no command line, environment or file system.
int agent_main();

}  // namespace ouro::run
