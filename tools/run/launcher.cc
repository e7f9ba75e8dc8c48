// A job on this host: one thread, one poll over signals, processes and pipes. Used through launcher.h.
#include "tools/run/launcher.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <utility>

#include "tools/run/console.h"
#include "tools/run/guards.h"
#include "tools/run/job.h"
#include "tools/run/remote.h"

namespace ouro::run {
namespace {

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

/// Prints what the ranks of this host do, and holds the exit code of the job.
class Printer : public Audience {
 public:
  explicit Printer(const RunOptions& options) : options_(options) {}
  void line(int rank, bool is_error, std::string_view text, bool complete) override {
    if (!print_line(options_, rank, is_error, text, complete)) reader_gone = true;
  }
  void ended(int) override {}
  void failed(int first, const std::string& text) override {
    if (code) return;
    code = first;
    say(text);
  }
  void say(std::string_view text) override { print_message(options_, text); }

  std::optional<int> code;
  bool reader_gone = false;

 private:
  const RunOptions& options_;
};

int supervise(const RunOptions& options, Job& job, Printer& printer, Signals& signals) {
  When timeout = after(options.timeout_s);
  bool forwarded = false;
  while (job.any_alive()) {
    std::vector<pollfd> fds{{signals.fd().get(), POLLIN, 0}};
    job.watch(fds);
    if (::poll(fds.data(), fds.size(), wait_ms({timeout, job.next()})) < 0 && errno != EINTR) break;
    job.handle(fds.data() + 1);
    for (int number; (number = signals.take()) != 0;) {
      if (number == SIGPIPE) continue;  // seen as a failed write
      if (!std::exchange(forwarded, true)) printer.say(passed_on(number));
      job.forward(number);
    }
    if (forwarded || printer.code) timeout.reset();
    if (printer.reader_gone && !printer.code) {
      printer.code = 128 + SIGPIPE;
      job.stop(milliseconds(0));
    }
    if (due(timeout)) {
      printer.say(timed_out(options, job.alive()));
      printer.code = kTimeoutCode;
      job.stop(milliseconds(0));
    }
    job.on_time();
  }
  job.finish();
  return printer.code.value_or(0);
}

Result<int> run_here(const RunOptions& options, const std::vector<std::string>& argv, Signals& signals) {
  const Result<std::string> id = random_hex(16);
  const Result<int> port = free_port();
  if (!id.ok()) return id.status();
  if (!port.ok()) return port.status();
  const Meeting meeting{.job = *id, .port = *port, .rendezvous = {}};
  Job::Spec spec{.argv = argv, .environments = {}, .bind = options.bind};
  for (int r = 0; r < options.ranks; ++r) {
    Environment variables = process_environment();
    for (const auto& [key, value] : options.extra) variables[key] = value;
    const Seat seat{.rank = r, .size = options.ranks, .local_rank = r, .local_size = options.ranks};
    for (const auto& [key, value] : rank_environment(seat, meeting)) variables[key] = value;
    spec.environments.push_back(std::move(variables));
  }
  const bool own_input = ::isatty(STDIN_FILENO) == 0 && ::fcntl(STDIN_FILENO, F_GETFD) >= 0;
  if (own_input) spec.input = STDIN_FILENO;
  Printer printer(options);
  Job job(std::move(spec), printer);
  const Result<std::optional<int>> refused = job.start();
  if (!refused.ok()) return refused.status();
  if (*refused) return **refused;
  return supervise(options, job, printer, signals);
}

}  // namespace

Environment rank_environment(const Seat& seat, const Meeting& meeting) {
  const std::string rank = std::to_string(seat.rank), size = std::to_string(seat.size);
  const std::string local_rank = std::to_string(seat.local_rank),
                    local_size = std::to_string(seat.local_size);
  Environment e{
      {"RANK", rank},
      {"WORLD_SIZE", size},
      {"LOCAL_RANK", local_rank},
      {"LOCAL_WORLD_SIZE", local_size},
      {"NODE_RANK", std::to_string(seat.node)},
      {"GROUP_RANK", std::to_string(seat.node)},
      {"GROUP_WORLD_SIZE", std::to_string(seat.nodes)},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", size},
      {"MASTER_ADDR", meeting.address},
      {"MASTER_PORT", std::to_string(meeting.port)},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", meeting.job},
      {"OURO_RANK", rank},
      {"OURO_WORLD_SIZE", size},
      {"OURO_LOCAL_RANK", local_rank},
      {"OURO_LOCAL_SIZE", local_size},
      {"OURO_JOB_ID", meeting.job},
  };
  if (!meeting.rendezvous.empty()) e["OURO_RENDEZVOUS"] = meeting.rendezvous;
  return e;
}

Result<int> run_ranks(const RunOptions& options, const std::vector<std::string>& argv) {
  if (options.ranks < 1 || options.ranks > kMaxRanks) {
    return invalid(fmt::format("{} ranks: expected 1 to {}", options.ranks, kMaxRanks));
  }
  if (options.timeout_s != 0 && !(options.timeout_s >= kMinTimeout && options.timeout_s <= kMaxTimeout))
    return invalid(fmt::format("timeout of {} s: expected {} to {}, or 0 for none", options.timeout_s,
                               kMinTimeout, kMaxTimeout));
  if (!options.hosts.empty()) OURO_TRY(check_agent(options.agent));
  if (options.bind != rt::Bind::none && rt::machine().invented)
    return invalid("ranks cannot be bound to the machine that HWLOC_XMLFILE or HWLOC_SYNTHETIC describes");
  if (argv.empty() || argv[0].empty()) return invalid("no program to run");
  const Subreaper subreaper;  // ends last, when the ranks are gone
  Signals signals;
  if (!signals.fd()) return system_error("cannot watch signals (signalfd)");
  return options.hosts.empty() ? run_here(options, argv, signals) : run_on_hosts(options, argv, signals);
}

}  // namespace ouro::run
