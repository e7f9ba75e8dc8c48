// A job on this host: one thread and one poll over signals, processes and pipes. Used through launcher.h.
#include "tools/run/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <utility>

#include "runtime/join/launch.h"
#include "runtime/join/roll.h"
#include "runtime/network/net_address.h"
#include "tools/run/console.h"
#include "tools/run/guardian.h"
#include "tools/run/guards.h"
#include "tools/run/job.h"
#include "tools/run/remote.h"

namespace ouro::run {
namespace {

struct Place {
  std::string address;
  int port = 0;
};

/// A port of a loopback address that has no listener at the moment.
Result<Place> free_port(const char* loopback) {
  OURO_ASSIGN(rt::NetAddress at, rt::parse_address(rt::with_port(loopback, 0)));
  const Fd socket(::socket(at.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto* generic = reinterpret_cast<sockaddr*>(&at.at);
  if (!socket || ::bind(socket.get(), generic, at.length) != 0 ||
      ::getsockname(socket.get(), generic, &at.length) != 0)
    return system_error(fmt::format("cannot find a free port on {}", loopback));
  const bool ipv6 = at.at.ss_family == AF_INET6;
  return Place{loopback, ntohs(ipv6 ? reinterpret_cast<sockaddr_in6&>(at.at).sin6_port
                                    : reinterpret_cast<sockaddr_in&>(at.at).sin_port)};
}

/// The address for MASTER_ADDR and MASTER_PORT of programs on one host. A host, or a container, may
/// have IPv6 only.
Result<Place> free_place() {
  const Result<Place> older = free_port("127.0.0.1"), newer = older.ok() ? older : free_port("::1");
  if (newer.ok()) return newer;
  return Status(Reason::resource,
                fmt::format("{}; {}", older.status().failure()->text, newer.status().failure()->text));
}

/// Whether rank 0 gets this process's standard input: not if it is a terminal, closed (or merely occupied)
/// or write-only.
bool reads_input() {
  const int mode = ::fcntl(STDIN_FILENO, F_GETFL);
  return ::isatty(STDIN_FILENO) == 0 && mode >= 0 && (mode & O_PATH) == 0 && (mode & O_ACCMODE) != O_WRONLY;
}

/// Prints what the ranks of this host do, and holds the exit code of the job.
class Printer : public Audience {
 public:
  Printer(Console& console, rt::Roll& roll) : console_(console), roll_(roll) {}
  void line(int rank, bool is_error, std::string_view text, LineEnd end) override {
    console_.rank_says(rank, is_error, text, end);
  }
  bool full(bool is_error) const override { return console_.full(is_error); }
  void ended(int rank, int exit_code) override { roll_.ended(rank, exit_code); }
  void failed(int first, const std::string& text) override {
    if (code) return;
    code = first;
    say(text);
  }
  void say(std::string_view text) override { console_.say(text); }

  std::optional<int> code;

 private:
  Console& console_;
  rt::Roll& roll_;
};

int supervise(const RunOptions& options, Job& job, Printer& printer, Console& console, When timeout,
              Signals& signals) {
  bool forwarded = false;
  while (job.any_alive()) {
    for (int number; (number = signals.take()) != 0;) {
      if (ends_the_job(number) && !std::exchange(forwarded, true)) printer.say(passed_on(number));
      job.forward(number);
    }
    if (due(timeout) && !forwarded && !printer.code) {
      printer.say(timed_out(options, job.alive()));
      printer.code = kTimeoutCode;
      job.stop(milliseconds(0));
    }
    if (const std::optional<int> broken = console.broken(); broken && !printer.code) {
      printer.code = broken;
      job.stop(milliseconds(0));
    }
    job.on_time();
    const When limit = forwarded || printer.code ? When() : timeout;
    std::vector<pollfd> fds;
    signals.watch(fds);
    console.watch(fds);
    const std::size_t own = fds.size();
    job.watch(fds);
    if (::poll(fds.data(), fds.size(), wait_ms({limit, job.next(), signals.next()})) < 0 && errno != EINTR)
      break;
    console.reset_news();
    job.handle(fds.data() + own);
  }
  job.finish();
  const bool from_outside = forwarded || printer.code == kTimeoutCode;
  return console.drain(printer.code.value_or(0), from_outside, timeout, signals);
}

Result<int> run_here(const RunOptions& options, const std::vector<std::string>& argv, Signals& signals) {
  const Result<std::string> id = random_hex(16);
  const Result<Place> place = free_place();
  if (!id.ok()) return id.status();
  if (!place.ok()) return place.status();
  OURO_ASSIGN(const auto console, Console::open(options));
  OURO_ASSIGN(const auto roll, rt::Roll::create(*id, options.ranks, 0));
  const Rendezvous rendezvous{.job = *id, .address = place->address, .port = place->port, .rendezvous = {}};
  Job::Spec spec{.argv = argv, .environments = {}, .bind = options.bind};
  const Environment mine = own_environment();
  for (int r = 0; r < options.ranks; ++r) {
    Environment variables = mine;
    for (const auto& [key, value] : options.extra) variables[key] = value;
    const Seat seat{.rank = r, .size = options.ranks, .local_rank = r, .local_size = options.ranks};
    for (const auto& [key, value] : rank_environment(seat, rendezvous)) variables[key] = value;
    variables["OURO_ROLL"] = roll->place();
    spec.environments.push_back(std::move(variables));
  }
  if (reads_input()) spec.input = STDIN_FILENO;
  Printer printer(*console, *roll);
  Job job(std::move(spec), printer);
  const When timeout = after(options.timeout_s);
  OURO_ASSIGN(const auto refused, job.start(signals, timeout));
  if (refused) return console->drain(*refused, true, {}, signals);
  return supervise(options, job, printer, *console, timeout, signals);
}

}  // namespace

Environment own_environment() {
  Environment mine = process_environment();
  const std::string outer = outer_launchers(mine);
  mine.erase("OURO_LAUNCHER");  // it chose among the launchers around this process
  mine["OURO_OUTER_LAUNCHERS"] = outer.empty() ? "none" : outer;
  return mine;
}

Environment exported(const RunOptions& options) {
  Environment chosen;
  for (const auto& [key, value] : process_environment()) {
    const std::string_view k = key;
    const bool own = k.starts_with("OURO_SECRET") || k == "OURO_HOSTID" || k == "OURO_RENDEZVOUS" ||
                     k == "OURO_ROLL" || k == "OURO_LAUNCHER" || k == "OURO_OUTER_LAUNCHERS";
    if (k.starts_with("OURO_") && !own) chosen[key] = value;
  }
  for (const auto& [key, value] : options.extra) chosen[key] = value;
  return chosen;
}

std::string interfaces_of(const RunOptions& options) {
  const Environment chosen = exported(options);
  for (const char* key : {"OURO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"})
    if (const auto it = chosen.find(key); it != chosen.end()) return it->second;
  return "";
}

Environment rank_environment(const Seat& seat, const Rendezvous& rendezvous) {
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
      {"MASTER_ADDR", rendezvous.address},
      {"MASTER_PORT", std::to_string(rendezvous.port)},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", rendezvous.job},
      {"OURO_RANK", rank},
      {"OURO_WORLD_SIZE", size},
      {"OURO_LOCAL_RANK", local_rank},
      {"OURO_LOCAL_SIZE", local_size},
      {"OURO_JOB_ID", rendezvous.job},
  };
  if (!rendezvous.rendezvous.empty()) e["OURO_RENDEZVOUS"] = rendezvous.rendezvous;
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
  return guarded(options.name, [&](int above) -> Result<int> {
    const Subreaper subreaper;  // destroyed last, when the ranks have ended
    Signals signals(Signals::Which::all, above);
    return options.hosts.empty() ? run_here(options, argv, signals) : run_on_hosts(options, argv, signals);
  });
}

}  // namespace ouro::run
