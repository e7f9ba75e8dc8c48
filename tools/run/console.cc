// The launcher's two outputs. Used through console.h.
#include "tools/run/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string.h>
#include <sys/stat.h>

#include <utility>

namespace ouro::run {
namespace {

constexpr milliseconds kHurry{1000};    // how long to wait for a reader if the job was ended from outside
constexpr milliseconds kLastWord{200};  // time for the message about dropped bytes to be written

/// A closed descriptor that is merely occupied (runtime/core/fd.h) is not the file that it appears to be.
bool same_file(int a, int b) {
  struct stat x {
  }, y{};
  return ((::fcntl(a, F_GETFL) ^ ::fcntl(b, F_GETFL)) & O_PATH) == 0 && ::fstat(a, &x) == 0 &&
         ::fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

}  // namespace

Result<std::unique_ptr<Console>> Console::open(const RunOptions& options) {
  OURO_ASSIGN(auto err, Outlet::open(STDERR_FILENO));
  std::unique_ptr<Outlet> own;
  if (!same_file(STDOUT_FILENO, STDERR_FILENO)) {
    OURO_ASSIGN(own, Outlet::open(STDOUT_FILENO));
  }
  return std::unique_ptr<Console>(new Console(options, std::move(own), std::move(err)));
}

void Console::close_line(bool is_error) {
  if (!std::exchange(open_line(is_error), "").empty()) outlet(is_error).add("\n");
}

void Console::rank_says(int rank, bool is_error, std::string_view text, LineEnd end) {
  std::string whole;
  if (options_.prefix) {
    const std::string who = fmt::format("{}{}", rank, is_error ? "e" : "");
    if (open_line(is_error) != who) {
      close_line(is_error);
      whole = fmt::format("[{}] ", rank);
    }
    open_line(is_error) = end == LineEnd::piece ? who : "";
  }
  whole += text;
  if (end == LineEnd::line || (end == LineEnd::output && options_.prefix)) whole += '\n';
  outlet(is_error).add(whole);
}

void Console::host_says(const std::string& host, std::string_view text) {
  close_line(true);
  outlet(true).add(options_.prefix ? fmt::format("[{}] {}\n", host, text) : fmt::format("{}\n", text));
}

void Console::say(std::string_view text) {
  close_line(true);
  outlet(true).add(fmt::format("{}: {}\n", options_.name, text));
}

std::optional<int> Console::broken() {
  for (const bool is_error : {false, true}) {
    const int error = outlet(is_error).broken();
    if (error == EPIPE) return 128 + SIGPIPE;
    if (error == 0) continue;
    if (!std::exchange(told_, true))
      say(fmt::format("cannot write to standard {}: {}", is_error && out_ ? "error" : "output",
                      file_error(error)));
    return 1;
  }
  return {};
}

void Console::watch(std::vector<pollfd>& fds) const {
  fds.push_back({out_ ? out_->news().get() : -1, POLLIN, 0});
  fds.push_back({err_->news().get(), POLLIN, 0});
}

void Console::reset_news() {
  if (out_) out_->reset_news();
  err_->reset_news();
}

int Console::drain(int code, bool hurry, When timeout, Signals& signals) {
  When limit = hurry ? When(Clock::now() + kHurry) : timeout;
  const auto waiting = [this] { return (out_ ? out_->waiting() : 0) + err_->waiting(); };
  for (const bool is_error : {false, true}) close_line(is_error);
  while (waiting() > 0) {
    std::vector<pollfd> fds;
    signals.watch(fds);
    watch(fds);
    if (::poll(fds.data(), fds.size(), wait_ms({limit, signals.next()})) < 0 && errno != EINTR) break;
    reset_news();
    for (int number; (number = signals.take()) != 0;) {
      if (!ends_the_job(number)) continue;
      if (code == 0) code = 128 + number;
      limit = Clock::now();
    }
    if (due(limit)) {
      if (code == 0) code = kTimeoutCode;
      break;
    }
  }
  if (const std::optional<int> failed = broken(); failed && code == 0) code = *failed;
  if (const std::size_t dropped = out_ ? out_->waiting() : 0; dropped > 0)
    say(fmt::format("{} bytes of standard output are dropped: they were not read in time", dropped));
  const When last = Clock::now() + kLastWord;
  while (err_->waiting() > 0 && Clock::now() < *last) {
    pollfd news{err_->news().get(), POLLIN, 0};
    ::poll(&news, 1, wait_ms({last}));
    err_->reset_news();
  }
  return code;
}

std::string passed_on(int number) {
  return fmt::format("signal {} ({}) passed on to all ranks", number, ::strsignal(number));
}

std::string timed_out(const RunOptions& options, const std::vector<int>& alive) {
  return fmt::format("timeout after {} s; still running: rank {}", options.timeout_s, fmt::join(alive, ", "));
}

When after(double seconds) {
  if (seconds <= 0) return {};
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace ouro::run
