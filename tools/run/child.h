// One rank as a process: its two output pipes, when it has ended, and how it ended. Used by the launcher.
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
  /// pidfd is readable when the process has ended; the system may have none. out and err are
  /// non-blocking read ends.
  Fd pidfd, out, err;
  std::optional<Ending> ending;
  int memory_error = 0;  ///< errno with which the system refused to prefer the memory of the place; 0: none

  /// Sends to the whole process group. The leader is not reaped before its last kill, so its process id
  /// cannot have been reused.
  void signal_group(int number) const;
  /// Whether the process has ended, `seen` being what poll has said about pidfd. Does not reap it.
  bool has_ended(const pollfd& seen) const;
  /// The time that poll may wait; a moment if there is no pidfd.
  When next() const { return pid == 0 || ending || pidfd ? When() : soon(); }
  /// Call once it has ended: kills what is left of the group, then reaps and sets `ending`.
  void reap();
};

/// Why a program could not be started: an errno, from the system call that binds to a place (`binding`) or
/// from execvp. EINTR or ETIME if the program did not start before Patience ran out.
struct StartError {
  int error = 0;
  bool binding = false;
};

/// How long to wait for the system to execute a program; a file system that hangs can block this for ever.
struct Patience {
  Signals* signals = nullptr;  ///< a signal that ends the job also ends the wait
  When limit = {};
};

/// Starts a process at `place`. The process leads a process group of its own, gets `death_signal` when this
/// thread ends, and has the default signal mask and the limit of open files that this process was started
/// with (open_files.h). Signals that this process was started to ignore stay ignored. `stdin_fd` becomes its
/// standard input; the caller keeps its own descriptor. Holds a StartError if the program cannot be executed.
Result<std::variant<Child, StartError>> spawn(const std::vector<std::string>& argv,
                                              const Environment& environment, int stdin_fd,
                                              const rt::Placement& place, int death_signal = SIGKILL,
                                              Patience patience = {});

}  // namespace ouro::run
