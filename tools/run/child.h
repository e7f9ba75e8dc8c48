// One rank as a process: its pidfd, its two output pipes, and how it ended. Used by the launcher.
#pragma once
#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/context/machine.h"
#include "runtime/core/env.h"
#include "runtime/core/fd.h"
#include "runtime/core/status.h"
#include "tools/run/signals.h"
#include "tools/run/system.h"

namespace ouro::run {

/// How a process ended: by returning, or killed by a signal.
struct Ending {
  int code = 0;  ///< exit code, if signal == 0
  int signal = 0;
  bool failed() const { return code != 0 || signal != 0; }
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
  std::string text() const;  ///< "exited with code 3", "was killed by signal 11 (Segmentation fault)"
};

struct Child {
  pid_t pid = 0;
  Fd pidfd, out, err;  ///< readable when the process has ended; non-blocking read ends
  std::optional<Ending> ending;
  int memory_error = 0;  ///< errno of the system's refusal to prefer the memory of its place; 0: none

  /// To the whole process group. The leader is not reaped before its last kill, so the id is still its own.
  void signal_group(int number) const;
  /// Once pidfd is readable: ends what is left of the group, then reaps and fills `ending`.
  void reap();
};

/// Why a program could not be started: an errno, from the system call that binds to a place or from execvp;
/// EINTR or ETIME where it did not start before Patience was over.
struct StartError {
  int error = 0;
  bool binding = false;
};

/// How long to wait for the system to execute a program, which a file system that hangs can hold up for ever.
struct Patience {
  Signals* signals = nullptr;  ///< one that ends jobs ends the wait
  When limit = {};
};

/// Starts a process at `place` that leads a group of its own, gets `death_signal` when this thread ends, and
/// has the default signal mask and this process's limit of open files as it was given (open_files.h). Signals
/// that this process was started to ignore stay ignored. `stdin_fd` is handed on; the caller keeps it. Holds
/// a StartError if the program cannot be executed.
Result<std::variant<Child, StartError>> spawn(const std::vector<std::string>& argv,
                                              const Environment& environment, int stdin_fd,
                                              const rt::Place& place, int death_signal = SIGKILL,
                                              Patience patience = {});

/// Ends and reaps the processes that were left to this one by ranks that died (children that are not in
/// `before`). Bounded to about a second.
void end_orphans(const std::vector<pid_t>& before);
std::vector<pid_t> children_of_this_process();

}  // namespace ouro::run
