// The output of a job, worded alike for one host and for several. Used by launcher.cc and remote.cc.
#pragma once
#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/run/launcher.h"
#include "tools/run/lines.h"
#include "tools/run/outlet.h"
#include "tools/run/signals.h"
#include "tools/run/system.h"

namespace ouro::run {

/// Standard output and standard error of the launcher. The only function that waits for a reader is `drain`.
class Console {
 public:
  static constexpr std::size_t kWatched = 2;  ///< number of descriptors that watch() appends

  /// `options` must outlive the console. Errors: resource.
  static Result<std::unique_ptr<Console>> open(const RunOptions& options);

  /// Prints what a rank has written, after its "[rank] ". If another rank's output interrupts a line, the
  /// rest of the line is printed on a new one.
  void rank_says(int rank, bool is_error, std::string_view text, LineEnd end);
  /// Prints a line of an agent's standard error.
  void host_says(const std::string& host, std::string_view text);
  /// Prints a message of the launcher itself.
  void say(std::string_view text);

  /// Too much output is pending: the caller must stop reading for this stream until this returns false.
  bool full(bool is_error) const { return outlet(is_error).full(); }
  /// The exit code of the job once an output has failed: 128 + SIGPIPE, without a message, if nobody reads
  /// any more; otherwise 1, and the first call prints the reason.
  std::optional<int> broken();

  void watch(std::vector<pollfd>& fds) const;
  void reset_news();

  /// Call when all ranks have ended. Waits until all output is written, as any program does; with `hurry`
  /// at most a second. A signal that ends jobs, or the end of the job's time, ends the wait; the bytes
  /// dropped then are reported. Returns `code` if that is not 0; otherwise 0, or the exit code for what
  /// went wrong here.
  int drain(int code, bool hurry, When timeout, Signals& signals);

 private:
  Console(const RunOptions& options, std::unique_ptr<Outlet> out, std::unique_ptr<Outlet> err)
      : options_(options), out_(std::move(out)), err_(std::move(err)) {}
  const Outlet& outlet(bool is_error) const { return is_error || !out_ ? *err_ : *out_; }
  Outlet& outlet(bool is_error) { return is_error || !out_ ? *err_ : *out_; }
  std::string& open_line(bool is_error) { return open_[is_error || !out_ ? 1 : 0]; }
  void close_line(bool is_error);

  const RunOptions& options_;
  std::unique_ptr<Outlet> out_, err_;  ///< null if both streams are one file, so that their order is kept
  std::string open_[2];  ///< per stream, the writer of the unfinished line: "3", "3e", or "" if there is none
  bool told_ = false;
};

std::string passed_on(int number);
std::string timed_out(const RunOptions& options, const std::vector<int>& alive);
/// The time point at which a job of this duration ends; 0 seconds: never.
When after(double seconds);

}  // namespace ouro::run
