// The ranks of one host: starts them, watches them, splits their output into lines and ends them together.
// Used by the launcher for a job on its own host, and by the agent on each host of a larger job.
#pragma once
#include <poll.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/context/machine.h"
#include "runtime/core/env.h"
#include "runtime/core/status.h"
#include "tools/run/child.h"
#include "tools/run/lines.h"
#include "tools/run/system.h"

namespace ouro::run {

/// Time for survivors of a failure to report their own error and exit.
inline constexpr milliseconds kGrace{1000};
inline constexpr milliseconds kTermToKill{2000};  ///< between SIGTERM and SIGKILL
/// Between a signal from outside and SIGKILL: time for a checkpoint.
inline constexpr milliseconds kForwardToKill{10'000};

/// How long an unterminated line is held back before it is shown.
inline constexpr milliseconds kUnfinished{250};

/// Receives events about the ranks, which are named by their rank in the whole job. Its members
/// must not block.
class Audience {
 public:
  virtual ~Audience() = default;
  virtual void line(int rank, bool is_error, std::string_view text, LineEnd end) = 0;
  /// No more of this stream can be taken for now: the job stops reading, the ranks' pipes fill, and then the
  /// ranks block.
  virtual bool full(bool is_error) const = 0;
  virtual void ended(int rank, int code) = 0;
  /// Called once: the exit code of the first failure and, for example, "rank 3 (pid 77) exited with code 2;
  /// its last warning: ...".
  virtual void failed(int code, const std::string& text) = 0;
  virtual void say(std::string_view text) = 0;
};

/// Must be used from one thread: start; then watch, poll, handle and on_time while any_alive; then finish.
class Job {
 public:
  struct Spec {
    std::vector<std::string> argv;
    std::vector<Environment> environments;  ///< the complete environment of each rank
    int first_rank = 0;  ///< rank of the first one on this host; the others follow consecutively
    rt::Bind bind = rt::Bind::none;
    int input = -1;  ///< standard input of the first rank here; -1: empty, as for all other ranks
  };

  Job(Spec spec, Audience& audience)
      : spec_(std::move(spec)), audience_(audience), ranks_(spec_.environments.size()) {}
  ~Job() { kill_all(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Holds an exit code if the program cannot be run, or did not start before a signal arrived or `limit`
  /// passed; the audience has then received the reason.
  Result<std::optional<int>> start(Signals& signals, When limit);

  bool any_alive() const;
  std::vector<int> alive() const;
  /// Exit code of the first rank that failed.
  std::optional<int> code() const { return code_; }

  void watch(std::vector<pollfd>& fds) const;  ///< appends three for each rank
  void handle(const pollfd* fds);              ///< takes the entries that watch() appended, after poll
  When next() const;
  void on_time();

  /// Sends SIGTERM to all ranks after `until_term`, and SIGKILL kTermToKill later.
  void stop(milliseconds until_term);
  /// Passes a signal from outside on to all ranks. The second signal that ends jobs kills them, and so
  /// does SIGKILL.
  void forward(int number);
  /// Passes on unterminated lines. Any process that still holds a pipe is about to be killed.
  void finish();

 private:
  struct Rank {
    Child child;
    LineSplitter out, err;
    // Time of the last bytes, if an unterminated line is pending and not yet shown.
    When out_since, err_since;
    std::string last_warning, last_error_line;
    bool alive() const { return child.pid != 0 && !child.ending; }
  };

  bool bound() const { return spec_.bind != rt::Bind::none; }
  rt::Placement place_of(int index) const;
  int rank_of(const Rank& r) const { return spec_.first_rank + static_cast<int>(&r - ranks_.data()); }
  void signal_all(int number);
  void kill_all();
  void line(Rank& r, bool is_error, std::string_view text, std::size_t shown, LineEnd end);
  void show_unfinished();
  void drain(Rank& r);
  void drain(Rank& r, bool is_error, bool all);
  void collect(const std::vector<Rank*>& ended);
  std::string obituary(const Rank& culprit) const;

  const Spec spec_;
  Audience& audience_;
  std::vector<Rank> ranks_;
  std::optional<int> code_;  // set by the first failure
  When term_, kill_, show_;
  bool forwarded_ = false;
};

}  // namespace ouro::run
