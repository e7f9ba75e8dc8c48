// The ranks of one host: started, watched, their output split into lines, ended together.
// Used by the launcher for a job on its own host, and by the agent on each host of a larger one.
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

inline constexpr milliseconds kGrace{1000};            ///< for survivors to report their own error and leave
inline constexpr milliseconds kTermToKill{2000};       ///< between SIGTERM and SIGKILL
inline constexpr milliseconds kForwardToKill{10'000};  ///< after a signal from outside: time for a checkpoint

inline constexpr milliseconds kUnfinished{250};  ///< until a line without an end is shown

/// Who hears what becomes of the ranks. Ranks are named by their rank in the whole job. Nothing of it may
/// wait.
class Audience {
 public:
  virtual ~Audience() = default;
  virtual void line(int rank, bool is_error, std::string_view text, LineEnd end) = 0;
  /// No more of this stream for now: the ranks' pipes fill, and then the ranks wait.
  virtual bool full(bool is_error) const = 0;
  virtual void ended(int rank, int code) = 0;
  /// Once: the first failure, its exit code and "rank 3 (pid 77) exited with code 2; its last warning: ...".
  virtual void failed(int code, const std::string& text) = 0;
  virtual void say(std::string_view text) = 0;
};

/// One thread calls: start, then watch, poll, handle and on_time while any_alive, then finish.
class Job {
 public:
  struct Spec {
    std::vector<std::string> argv;
    std::vector<Environment> environments;  ///< whole, one for each rank
    int first_rank = 0;                     ///< of those on this host, which follow each other
    rt::Bind bind = rt::Bind::none;
    int input = -1;  ///< standard input of the first rank here; -1: empty, as that of the others
  };

  Job(Spec spec, Audience& audience)
      : spec_(std::move(spec)), audience_(audience), ranks_(spec_.environments.size()) {}
  ~Job() { kill_all(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// An exit code if the program cannot be run, or not before a signal comes or `limit`; the audience has
  /// heard why.
  Result<std::optional<int>> start(Signals& signals, When limit);

  bool any_alive() const;
  std::vector<int> alive() const;
  /// Of the first rank that failed.
  std::optional<int> code() const { return code_; }

  void watch(std::vector<pollfd>& fds) const;  ///< appends three for each rank
  void handle(const pollfd* fds);              ///< those that watch appended, after poll
  When next() const { return earliest({term_, kill_, show_}); }
  void on_time();

  /// SIGTERM to all after `until_term`, SIGKILL kTermToKill later.
  void stop(milliseconds until_term);
  /// A signal from outside for all ranks. Of those that end jobs the second one kills them, and so does
  /// SIGKILL.
  void forward(int number);
  /// Lines that have no end yet. Whoever still holds a pipe is about to be ended.
  void finish();

 private:
  struct Rank {
    Child child;
    LineSplitter out, err;
    When out_since, err_since;  // their last bytes, where these are no whole line and not shown
    std::string last_warning, last_error_line;
    bool alive() const { return child.pid != 0 && !child.ending; }
  };

  bool bound() const { return spec_.bind != rt::Bind::none; }
  rt::Place place_of(int index) const;
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
