// What a job prints, in the same words on one host and on several. Used by launcher.cc and remote.cc.
#pragma once
#include <fmt/format.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include "tools/run/launcher.h"
#include "tools/run/system.h"

namespace ouro::run {

inline void print_message(const RunOptions& options, std::string_view text) {
  put(STDERR_FILENO, fmt::format("{}: {}\n", options.name, text));
}

/// A line of a rank's output. False when nobody reads any more.
inline bool print_line(const RunOptions& options, int rank, bool is_error, std::string_view text,
                       bool complete) {
  std::string whole;
  if (options.prefix) whole = fmt::format("[{}] ", rank);
  whole += text;
  if (complete || options.prefix) whole += '\n';
  return put(is_error ? STDERR_FILENO : STDOUT_FILENO, whole);
}

inline std::string passed_on(int number) {
  return fmt::format("signal {} ({}) passed on to all ranks", number, ::strsignal(number));
}

inline std::string timed_out(const RunOptions& options, const std::vector<int>& alive) {
  return fmt::format("timeout after {} s; still running: rank {}", options.timeout_s, fmt::join(alive, ", "));
}

/// The end of the job's time; 0 seconds: never.
inline When after(double seconds) {
  if (seconds <= 0) return {};
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace ouro::run
