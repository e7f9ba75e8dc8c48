// What a job prints, in the same words on one host and on several. Used by launcher.cc and remote.cc.
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

/// Standard output and standard error of the launcher. Nothing here waits for a reader but `drain`.
class Console {
 public:
  static constexpr std::size_t kWatched = 2;  ///< descriptors that watch appends

  /// `options` outlives it. Errors: resource.
  static Result<std::unique_ptr<Console>> open(const RunOptions& options);

  /// What a rank has written, after its "[rank] ". A line that another rank's interrupts is continued on a
  /// new one.
  void rank_says(int rank, bool is_error, std::string_view text, LineEnd end);
  /// A line of an agent's standard error.
  void host_says(const std::string& host, std::string_view text);
  /// The launcher's own.
  void say(std::string_view text);

  /// More is waiting than should be: whoever reads for this stream stops for a while.
  bool full(bool is_error) const { return outlet(is_error).full(); }
  /// Once an output has failed, the exit code of the job; 128 + SIGPIPE where nobody reads any more, which
  /// needs no word. The first call says what else it was.
  std::optional<int> broken();

  void watch(std::vector<pollfd>& fds) const;
  void hear();

  /// The ranks are over. Waits, as any program would, until all is written; with `hurry` at most a second. A
  /// signal that ends jobs, or the end of the job's time, ends the wait. What is dropped then is told.
  /// Returns the exit code, which is `code` unless all went well until here.
  int drain(int code, bool hurry, When timeout, Signals& signals);

 private:
  Console(const RunOptions& options, std::unique_ptr<Outlet> out, std::unique_ptr<Outlet> err)
      : options_(options), out_(std::move(out)), err_(std::move(err)) {}
  const Outlet& outlet(bool is_error) const { return is_error || !out_ ? *err_ : *out_; }
  Outlet& outlet(bool is_error) { return is_error || !out_ ? *err_ : *out_; }
  std::string& open_line(bool is_error) { return open_[is_error || !out_ ? 1 : 0]; }
  void close_line(bool is_error);

  const RunOptions& options_;
  std::unique_ptr<Outlet> out_, err_;  ///< out_ is none where both are one file, so that the order stays
  std::string open_[2];                ///< who wrote the line that stands open: "3", "3e", or ""
  bool told_ = false;
};

std::string passed_on(int number);
std::string timed_out(const RunOptions& options, const std::vector<int>& alive);
/// The end of the job's time; 0 seconds: never.
When after(double seconds);

}  // namespace ouro::run
