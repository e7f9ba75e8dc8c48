// The launcher's loop: one thread, one poll over signals, processes and pipes. Used through launcher.h.
#include "tools/run/launcher.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <variant>

#include "tools/run/child.h"
#include "tools/run/guards.h"
#include "tools/run/lines.h"

namespace ouro::run {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kGrace{1000};            // for survivors to report their own error and leave
constexpr milliseconds kTermToKill{2000};       // between SIGTERM and SIGKILL
constexpr milliseconds kForwardToKill{10'000};  // after a signal from outside: time to write a checkpoint

Status system_error(const char* what) {
  return Status(Reason::resource, fmt::format("{}: {}", what, std::strerror(errno)));
}

Result<std::string> random_id() {
  std::array<unsigned char, 16> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return system_error("cannot get random bytes");
  }
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

/// A port that nobody listens on now.
Result<int> free_port() {
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket || ::bind(socket.get(), generic, size) != 0 ||
      ::getsockname(socket.get(), generic, &size) != 0) {
    return system_error("cannot find a free port on 127.0.0.1");
  }
  return static_cast<int>(ntohs(address.sin_port));
}

/// Returns false when nobody reads any more.
bool put(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd wait{fd, POLLOUT, 0};
      ::poll(&wait, 1, 1000);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

class Job {
 public:
  explicit Job(const RunOptions& options)
      : options_(options), ranks_(static_cast<std::size_t>(options.ranks)) {}
  ~Job() { kill_all(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// The exit code if the job could not start because of the program.
  Result<std::optional<int>> start(const std::vector<std::string>& argv);
  int run(Signals& signals);

 private:
  struct Rank {
    Child child;
    LineSplitter out, err;
    std::string last_warning, last_error_line;
    bool alive() const { return child.pid != 0 && !child.ending; }
  };

  void say(std::string_view text) { put(STDERR_FILENO, fmt::format("{}: {}\n", options_.name, text)); }
  bool bound() const { return options_.bind != rt::Bind::none; }
  rt::Place place_of(int rank) const {
    return bound() ? rt::machine().place(rank, options_.ranks, options_.bind) : rt::Place{};
  }
  int rank_of(const Rank& r) const { return static_cast<int>(&r - ranks_.data()); }
  bool any_alive() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.alive(); });
  }
  void signal_all(int number);
  void kill_all();
  void line(Rank& r, bool is_error, std::string_view text, bool complete);
  void drain(Rank& r);
  void drain(Rank& r, bool is_error);
  void collect(const std::vector<Rank*>& ended);
  void report(Rank& culprit);
  void forward(int number);
  void stop(milliseconds until_term);
  void on_time();
  std::string alive_list() const;

  const RunOptions& options_;
  std::vector<Rank> ranks_;
  std::optional<int> code_;  // set by the first failure
  std::optional<Clock::time_point> timeout_, term_, kill_;
  bool forwarded_ = false, reader_gone_ = false;
};

Result<std::optional<int>> Job::start(const std::vector<std::string>& argv) {
  const Result<std::string> id = random_id();
  const Result<int> port = free_port();
  if (!id.ok()) return id.status();
  if (!port.ok()) return port.status();
  const Fd empty(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!empty) return system_error("cannot open /dev/null");
  if (place_of(options_.ranks - 1).shared)
    say(fmt::format("{} ranks take the hardware threads ({}) in turn", options_.ranks,
                    rt::machine().threads()));
  bool memory_told = false;  // the system refuses all ranks alike
  const bool own_input = ::isatty(STDIN_FILENO) == 0 && ::fcntl(STDIN_FILENO, F_GETFD) >= 0;
  for (Rank& r : ranks_) {
    const int rank = rank_of(r);
    Environment variables = process_environment();
    for (const auto& [key, value] : options_.extra) variables[key] = value;
    for (const auto& [key, value] : rank_environment(rank, options_.ranks, *id, *port))
      variables[key] = value;
    const rt::Place place = place_of(rank);
    if (bound()) variables["OURO_BIND"] = name(rt::Bind::none);
    auto child = spawn(argv, variables, rank == 0 && own_input ? STDIN_FILENO : empty.get(), place);
    if (!child.ok()) return child.status();
    if (const StartError* failed = std::get_if<StartError>(&*child)) {
      if (failed->binding)
        return Status(Reason::resource, fmt::format("cannot bind rank {} to hardware threads {}: {}", rank,
                                                    rt::to_text(place.cpus), std::strerror(failed->error)));
      say(fmt::format("cannot run {}: {}", argv[0], std::strerror(failed->error)));
      return std::optional<int>(failed->error == ENOENT ? 127 : 126);
    }
    r.child = std::move(std::get<Child>(*child));
    if (r.child.memory_error != 0 && !std::exchange(memory_told, true))
      say(fmt::format("memory of NUMA node {} cannot be preferred for rank {}: {}", place.node, rank,
                      std::strerror(r.child.memory_error)));
  }
  if (options_.timeout_s > 0) {
    timeout_ = Clock::now() +
               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.timeout_s));
  }
  return std::optional<int>();
}

void Job::signal_all(int number) {
  for (Rank& r : ranks_) {
    if (r.alive()) r.child.signal_group(number);
  }
}

void Job::kill_all() {
  signal_all(SIGKILL);
  for (Rank& r : ranks_) {
    if (r.alive()) r.child.reap();
  }
}

void Job::line(Rank& r, bool is_error, std::string_view text, bool complete) {
  constexpr std::string_view kMark = " OURO WARN ";
  if (const std::size_t mark = text.find(kMark); mark != std::string_view::npos) {
    r.last_warning = text.substr(mark + kMark.size());
  }
  if (is_error && !text.empty()) r.last_error_line = text;
  std::string whole;
  if (options_.prefix) whole = fmt::format("[{}] ", rank_of(r));
  whole += text;
  if (complete || options_.prefix) whole += '\n';
  if (!put(is_error ? STDERR_FILENO : STDOUT_FILENO, whole)) reader_gone_ = true;
}

/// Reads what is there. At the end of the stream the pipe is closed.
void Job::drain(Rank& r, bool is_error) {
  Fd& fd = is_error ? r.child.err : r.child.out;
  LineSplitter& lines = is_error ? r.err : r.out;
  constexpr int kReads = 16;  // then the other ranks have their turn
  char buffer[16384];
  for (int i = 0; i < kReads && fd; ++i) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n > 0) {
      lines.add({buffer, static_cast<std::size_t>(n)},
                [&](std::string_view text) { line(r, is_error, text, true); });
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      lines.finish([&](std::string_view text) { line(r, is_error, text, false); });
      fd.reset();
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

void Job::drain(Rank& r) {
  drain(r, false);
  drain(r, true);
}

/// Where several ranks ended at once, one that a signal killed is the cause and the others the echo.
void Job::collect(const std::vector<Rank*>& ended) {
  Rank* culprit = nullptr;
  for (Rank* r : ended) {
    r->child.reap();
    drain(*r);
    if (!r->child.ending->failed()) continue;
    if (culprit == nullptr || (r->child.ending->signal != 0 && culprit->child.ending->signal == 0))
      culprit = r;
  }
  if (culprit == nullptr || code_) return;
  code_ = culprit->child.ending->exit_code();
  report(*culprit);
  if (!forwarded_) stop(kGrace);
}

void Job::report(Rank& culprit) {
  std::string text =
      fmt::format("rank {} (pid {}) {}", rank_of(culprit), culprit.child.pid, culprit.child.ending->text());
  if (!culprit.last_warning.empty()) {
    text += fmt::format("; its last warning: {}", culprit.last_warning);
  } else if (!culprit.last_error_line.empty()) {
    text += fmt::format("; its last line on stderr: {}", culprit.last_error_line);
  }
  say(text);
}

void Job::stop(milliseconds until_term) {
  term_ = Clock::now() + until_term;
  timeout_.reset();
}

void Job::forward(int number) {
  if (number == SIGPIPE) return;  // seen as a failed write
  if (forwarded_) {
    signal_all(SIGKILL);
    return;
  }
  forwarded_ = true;
  say(fmt::format("signal {} ({}) passed on to all ranks", number, ::strsignal(number)));
  signal_all(number);
  term_.reset();
  timeout_.reset();
  kill_ = Clock::now() + kForwardToKill;
}

std::string Job::alive_list() const {
  std::vector<int> alive;
  for (const Rank& r : ranks_) {
    if (r.alive()) alive.push_back(rank_of(r));
  }
  return fmt::format("{}", fmt::join(alive, ", "));
}

void Job::on_time() {
  const auto now = Clock::now();
  const auto due = [now](std::optional<Clock::time_point>& t) {
    if (!t || now < *t) return false;
    t.reset();
    return true;
  };
  if (reader_gone_ && !code_) {
    code_ = 128 + SIGPIPE;
    stop(milliseconds(0));
  }
  if (due(timeout_)) {
    say(fmt::format("timeout after {} s; still running: rank {}", options_.timeout_s, alive_list()));
    code_ = kTimeoutCode;
    stop(milliseconds(0));
  }
  if (due(term_)) {
    signal_all(SIGTERM);
    signal_all(SIGCONT);  // a stopped process cannot act on SIGTERM
    kill_ = now + kTermToKill;
  }
  if (due(kill_)) signal_all(SIGKILL);
}

int Job::run(Signals& signals) {
  while (any_alive()) {
    std::vector<pollfd> fds{{signals.fd().get(), POLLIN, 0}};
    for (const Rank& r : ranks_) {  // poll ignores -1
      fds.push_back({r.child.pidfd.get(), POLLIN, 0});
      fds.push_back({r.child.out.get(), POLLIN, 0});
      fds.push_back({r.child.err.get(), POLLIN, 0});
    }
    int wait_ms = -1;
    for (const auto& t : {timeout_, term_, kill_}) {
      if (!t) continue;
      const auto left = std::chrono::ceil<milliseconds>(*t - Clock::now()).count();
      const int bounded = static_cast<int>(std::clamp<long long>(left, 0, 3'600'000));
      wait_ms = wait_ms < 0 ? bounded : std::min(wait_ms, bounded);
    }
    if (::poll(fds.data(), fds.size(), wait_ms) < 0 && errno != EINTR) break;
    std::vector<Rank*> ended;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (fds[3 * i + 2].revents != 0) drain(ranks_[i], false);
      if (fds[3 * i + 3].revents != 0) drain(ranks_[i], true);
      if (fds[3 * i + 1].revents != 0) ended.push_back(&ranks_[i]);
    }
    collect(ended);
    for (int number; (number = signals.take()) != 0;) forward(number);
    on_time();
  }
  // Whoever still holds a pipe is about to be ended: what has been written so far is all there is.
  for (Rank& r : ranks_) {
    drain(r);
    r.out.finish([&](std::string_view text) { line(r, false, text, false); });
    r.err.finish([&](std::string_view text) { line(r, true, text, false); });
  }
  return code_.value_or(0);
}

}  // namespace

Environment rank_environment(int rank, int ranks, const std::string& job, int port) {
  const std::string r = std::to_string(rank), n = std::to_string(ranks);
  return {
      {"RANK", r},
      {"WORLD_SIZE", n},
      {"LOCAL_RANK", r},
      {"LOCAL_WORLD_SIZE", n},
      {"GROUP_RANK", "0"},
      {"GROUP_WORLD_SIZE", "1"},
      {"ROLE_RANK", r},
      {"ROLE_WORLD_SIZE", n},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", job},
      {"OURO_RANK", r},
      {"OURO_WORLD_SIZE", n},
      {"OURO_LOCAL_RANK", r},
      {"OURO_LOCAL_SIZE", n},
      {"OURO_JOB_ID", job},
  };
}

Result<int> run_ranks(const RunOptions& options, const std::vector<std::string>& argv) {
  if (options.ranks < 1 || options.ranks > kMaxRanks) {
    return invalid(fmt::format("{} ranks: expected 1 to {}", options.ranks, kMaxRanks));
  }
  if (!(options.timeout_s >= 0))
    return invalid(fmt::format("timeout of {} s: expected 0 or more", options.timeout_s));
  if (options.bind != rt::Bind::none && rt::machine().invented)
    return invalid("ranks cannot be bound to the machine that HWLOC_XMLFILE or HWLOC_SYNTHETIC describes");
  if (argv.empty() || argv[0].empty()) return invalid("no program to run");
  const Subreaper subreaper;  // ends last, when the ranks are gone
  Signals signals;
  if (!signals.fd()) return system_error("cannot watch signals (signalfd)");
  Job job(options);
  const Result<std::optional<int>> refused = job.start(argv);
  if (!refused.ok()) return refused.status();
  if (*refused) return **refused;
  return job.run(signals);
}

}  // namespace ouro::run
