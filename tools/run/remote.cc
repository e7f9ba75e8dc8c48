// The launcher's loop over agents: calls all hosts, finds where ranks meet, gives orders, relays, ends. Used
// through remote.h.
#include "tools/run/remote.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>
#include <variant>

#include "tools/run/agent.h"
#include "tools/run/child.h"
#include "tools/run/console.h"
#include "tools/run/job.h"
#include "tools/run/messages.h"

namespace ouro::run {
namespace {

constexpr milliseconds kCall{60'000};    // for all agents to answer, whatever authentication takes
constexpr milliseconds kEcho{100};       // after a rank returned an error: a death elsewhere may be the cause
constexpr milliseconds kFarewell{3000};  // after the last SIGKILL: then agents are ended themselves

struct Agent {
  Host host;
  int first_rank = 0;
  Child child;
  Fd in;
  std::string outgoing;  // not yet taken by the pipe
  MessageReader reader;
  LineSplitter errors;
  std::string last_error_line;
  enum class State { called, greeted, ready, running, over } state = State::called;
  std::vector<int> reached;
  bool answered = false;
  std::vector<char> alive;  // of its ranks: 1 or 0
  bool present() const { return child.pid != 0 && !child.ending; }
};

class HostsJob {
 public:
  HostsJob(const RunOptions& options, const std::vector<std::string>& argv, std::vector<Host> hosts);
  ~HostsJob();
  HostsJob(const HostsJob&) = delete;
  HostsJob& operator=(const HostsJob&) = delete;
  /// The exit code if agents cannot be run.
  Result<std::optional<int>> call();
  int run(Signals& signals);

 private:
  void say(std::string_view text) { print_message(options_, text); }
  void say(const Agent& a, std::string_view text) { say(fmt::format("host {}: {}", a.host.name, text)); }
  void send(Agent& a, const Message& message);
  void flush(Agent& a);
  void drain(Agent& a);
  void drain_errors(Agent& a);
  void hear(Agent& a, const Message& message);
  void error_line(Agent& a, std::string_view text);
  void gone(Agent& a);
  void proceed();
  void settle(const Message& offers);
  void choose();
  void order(const Offer& place);
  void fail(int code, std::string text);
  void tell();
  void stop_all(milliseconds until_term);
  void forward(int number);
  void on_time();
  std::vector<int> alive() const;

  const RunOptions& options_;
  const std::vector<std::string>& argv_;
  std::vector<Agent> agents_;
  std::string token_, id_, secret_;
  std::vector<Offer> offers_;
  enum class Phase { calling, offering, reaching, running } phase_ = Phase::calling;
  struct Culprit {
    int code;
    std::string text;
  };
  std::optional<Culprit> culprit_;
  When timeout_, call_limit_, verdict_, give_up_;
  bool told_ = false, forwarded_ = false, reader_gone_ = false;
};

HostsJob::HostsJob(const RunOptions& options, const std::vector<std::string>& argv, std::vector<Host> hosts)
    : options_(options), argv_(argv), agents_(hosts.size()) {
  int rank = 0;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    agents_[i].host = std::move(hosts[i]);
    agents_[i].first_rank = rank;
    agents_[i].alive.assign(static_cast<std::size_t>(agents_[i].host.slots), 1);
    rank += agents_[i].host.slots;
  }
}

HostsJob::~HostsJob() {
  for (Agent& a : agents_) {
    a.in.reset();
    if (a.present()) a.child.reap();
  }
}

/// Orders travel on standard input; the path is the only text that a remote shell reads.
Result<std::string> agent_program() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Status(Reason::resource, "cannot read /proc/self/exe");
  std::string path = self.parent_path() / "ouro-run";
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("/._+-,=@").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!std::all_of(path.begin(), path.end(), plain))
    return invalid(
        fmt::format("{}: a remote shell might misread this path; install ouro-run elsewhere", path));
  return path;
}

Result<std::optional<int>> HostsJob::call() {
  for (std::string* text : {&token_, &id_, &secret_}) {
    Result<std::string> random = random_hex(text == &secret_ ? 32 : 16);
    if (!random.ok()) return random.status();
    *text = std::move(*random);
  }
  const Result<std::string> program = agent_program();
  if (!program.ok()) return program.status();
  for (Agent& a : agents_) {
    std::vector<std::string> command = agent_command(options_.agent, a.host.name);
    command.push_back(*program);
    command.push_back(kAgentCommand);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return system_error("cannot make a pipe");
    const Fd read_end(ends[0]);
    a.in = Fd(ends[1]);
    ::fcntl(a.in.get(), F_SETFL, O_NONBLOCK);
    // SIGTERM, not SIGKILL, should this process die: an agent ends its ranks and ssh its connection.
    auto child = spawn(command, process_environment(), read_end.get(), {}, SIGTERM);
    if (!child.ok()) return child.status();
    if (const StartError* failed = std::get_if<StartError>(&*child)) {
      say(fmt::format("cannot run {}: {}", command[0], std::strerror(failed->error)));
      return std::optional<int>(failed->error == ENOENT ? 127 : 126);
    }
    a.child = std::move(std::get<Child>(*child));
  }
  timeout_ = after(options_.timeout_s);
  call_limit_ = Clock::now() + kCall;
  return std::optional<int>();
}

void HostsJob::send(Agent& a, const Message& message) {
  if (!a.in) return;
  a.outgoing += encode(message);
  flush(a);
}

void HostsJob::flush(Agent& a) {
  while (!a.outgoing.empty() && a.in) {
    const ssize_t n = ::write(a.in.get(), a.outgoing.data(), a.outgoing.size());
    if (n >= 0) {
      a.outgoing.erase(0, static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      a.in.reset();  // its end is seen elsewhere
    }
  }
}

void HostsJob::error_line(Agent& a, std::string_view text) {
  if (!text.empty()) a.last_error_line = text;
  put(STDERR_FILENO,
      options_.prefix ? fmt::format("[{}] {}\n", a.host.name, text) : fmt::format("{}\n", text));
}

void HostsJob::drain_errors(Agent& a) {
  char buffer[16384];
  while (a.child.err) {
    const ssize_t n = ::read(a.child.err.get(), buffer, sizeof buffer);
    const auto print = [&](std::string_view text) { error_line(a, text); };
    if (n > 0) {
      a.errors.add({buffer, static_cast<std::size_t>(n)}, print);
    } else if (n < 0 && errno == EAGAIN) {
      return;
    } else if (n == 0 || errno != EINTR) {
      a.errors.finish(print);
      a.child.err.reset();
    }
  }
}

/// Reads what is there, some of it at a time, so that all hosts have their turn.
void HostsJob::drain(Agent& a) {
  constexpr int kReads = 16;
  char buffer[65536];
  for (int i = 0; i < kReads && a.child.out; ++i) {
    const ssize_t n = ::read(a.child.out.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return a.child.out.reset();
    a.reader.add({buffer, static_cast<std::size_t>(n)});
    while (a.state == Agent::State::called) {
      const std::optional<std::string> line = a.reader.next_line();
      if (!line) break;
      if (*line == kGreeting) {
        a.state = Agent::State::greeted;
      } else {
        error_line(a, *line);  // what the remote shell says
      }
    }
    while (a.state != Agent::State::called && a.child.out) {
      const Result<std::optional<Message>> message = a.reader.next();
      if (!message.ok()) {
        fail(1, fmt::format("host {}: {}", a.host.name, message.status().failure()->text));
        return a.child.out.reset();
      }
      if (!*message) break;
      hear(a, **message);
    }
  }
}

void HostsJob::hear(Agent& a, const Message& m) {
  const auto text = [&m](std::size_t i) { return i < m.fields.size() ? m.fields[i] : std::string(); };
  switch (m.kind) {
    case Kind::hello:
      a.state = Agent::State::ready;
      if (text(0) != OURO_VERSION)
        return fail(1,
                    fmt::format("host {} has ouro-run {}, this host {}", a.host.name, text(0), OURO_VERSION));
      return proceed();
    case Kind::offers:
      return settle(m);
    case Kind::reached:
      for (std::size_t i = 0; i < m.fields.size(); ++i)
        if (const Result<int> index = number_of(m, i, 0, static_cast<int>(offers_.size()) - 1); index.ok())
          a.reached.push_back(*index);
      a.answered = true;
      return choose();
    case Kind::refused: {
      const Result<int> code = number_of(m, 0, 1, 255);
      a.alive.assign(a.alive.size(), 0);
      return fail(code.ok() ? *code : 1,
                  text(1).empty() ? "" : fmt::format("host {}: {}", a.host.name, text(1)));
    }
    case Kind::line:
      if (const Result<int> rank = number_of(m, 0, 0, kMaxRanks - 1); rank.ok())
        if (!print_line(options_, *rank, text(1) == "e", text(3), text(2) == "1")) reader_gone_ = true;
      return;
    case Kind::ended:
      if (const Result<int> rank = number_of(m, 0, a.first_rank, a.first_rank + a.host.slots - 1); rank.ok())
        a.alive[static_cast<std::size_t>(*rank - a.first_rank)] = 0;
      return;
    case Kind::failed: {
      const Result<int> code = number_of(m, 0, 1, 255);
      return fail(code.ok() ? *code : 1, fmt::format("host {}: {}", a.host.name, text(1)));
    }
    case Kind::say:
      return say(a, text(0));
    case Kind::over:
      a.state = Agent::State::over;
      return a.in.reset();
    default:
      return fail(1, fmt::format("host {}: unexpected message {}", a.host.name, static_cast<int>(m.kind)));
  }
}

/// All agents are there: the first one listens where others may reach it.
void HostsJob::proceed() {
  const auto is_ready = [](const Agent& a) { return a.state == Agent::State::ready; };
  if (phase_ != Phase::calling || culprit_ || !std::all_of(agents_.begin(), agents_.end(), is_ready)) return;
  phase_ = Phase::offering;
  send(agents_[0], {Kind::offer, {agents_.size() > 1 ? agents_[1].host.name : "", token_}});
}

void HostsJob::settle(const Message& message) {
  Result<std::vector<Offer>> offers = to_offers(message, 0);
  if (!offers.ok() || offers->empty() || phase_ != Phase::offering)
    return fail(1, "no offers of the first host");
  offers_ = std::move(*offers);
  phase_ = Phase::reaching;
  for (std::size_t i = 0; i < offers_.size(); ++i) agents_[0].reached.push_back(static_cast<int>(i));
  agents_[0].answered = true;
  for (std::size_t i = 1; i < agents_.size(); ++i)
    send(agents_[i], to_message(Kind::reach, {token_}, offers_));
  choose();
}

/// The first address that all hosts have reached.
void HostsJob::choose() {
  const auto answered = [](const Agent& a) { return a.answered; };
  if (phase_ != Phase::reaching || culprit_ || !std::all_of(agents_.begin(), agents_.end(), answered)) return;
  for (int i = 0; i < static_cast<int>(offers_.size()); ++i) {
    const auto reaches = [i](const Agent& a) {
      return std::find(a.reached.begin(), a.reached.end(), i) != a.reached.end();
    };
    if (std::all_of(agents_.begin(), agents_.end(), reaches))
      return order(offers_[static_cast<std::size_t>(i)]);
  }
  std::string text = fmt::format("no address of host {} is reached by all others:", agents_[0].host.name);
  for (std::size_t i = 0; i < offers_.size(); ++i) {
    std::vector<std::string> by;
    for (const Agent& a : agents_)
      if (&a != agents_.data() && std::count(a.reached.begin(), a.reached.end(), static_cast<int>(i)) != 0)
        by.push_back(a.host.name);
    text += fmt::format(" {} by {};", offers_[i].address,
                        by.empty() ? "none" : fmt::format("{}", fmt::join(by, ", ")));
  }
  text.pop_back();
  fail(1, std::move(text));
}

/// OURO_* of this process are settings of the job, but for those that make a rank of it and what is secret.
Environment exported(const RunOptions& options) {
  Environment chosen;
  for (const auto& [key, value] : process_environment()) {
    const std::string_view k = key;
    const bool own = k.starts_with("OURO_SECRET") || k == "OURO_HOSTID" || k == "OURO_RENDEZVOUS";
    if (k.starts_with("OURO_") && !own) chosen[key] = value;
  }
  for (const auto& [key, value] : options.extra) chosen[key] = value;
  return chosen;
}

void HostsJob::order(const Offer& place) {
  phase_ = Phase::running;
  call_limit_.reset();
  Orders o{.directory = std::filesystem::current_path().string(),
           .host = {},
           .secret = secret_,
           .bind = options_.bind,
           .size = options_.ranks,
           .nodes = static_cast<int>(agents_.size()),
           .meeting = {.job = id_, .address = place.address, .port = place.second_port, .rendezvous = {}},
           .variables = exported(options_),
           .argv = argv_};
  if (agents_.size() > 1) o.meeting.rendezvous = endpoint_text(place.address, place.port);
  for (Agent& a : agents_) {
    o.host = a.host.name;
    o.first_rank = a.first_rank;
    o.local_size = a.host.slots;
    send(a, to_message(o));
    a.state = Agent::State::running;
    ++o.node;
  }
}

/// The agent's process has ended.
void HostsJob::gone(Agent& a) {
  drain_errors(a);
  for (int i = 0; i < 1000 && a.child.out && a.state != Agent::State::over;
       ++i) {  // a pipe holds a few reads
    pollfd more{a.child.out.get(), POLLIN, 0};
    if (::poll(&more, 1, 0) <= 0) break;
    drain(a);
  }
  a.child.reap();
  a.in.reset();
  std::vector<int> lost;
  for (std::size_t i = 0; i < a.alive.size(); ++i)
    if (std::exchange(a.alive[i], char{0}) != 0) lost.push_back(a.first_rank + static_cast<int>(i));
  if (a.state == Agent::State::over || culprit_) return;
  const int code = a.child.ending->exit_code();
  std::string text = fmt::format(
      "host {}: {} (pid {}) {}, and with it rank {}", a.host.name,
      a.state < Agent::State::ready ? "its agent, which never answered," : "the connection to its agent",
      a.child.pid, a.child.ending->text(), fmt::join(lost, ", "));
  if (!a.last_error_line.empty()) text += fmt::format("; its last line on stderr: {}", a.last_error_line);
  fail(code == 0 ? 1 : code, std::move(text));
}

/// The first failure ends the job. A death that is heard of at the same time is the cause of an error
/// elsewhere.
void HostsJob::fail(int code, std::string text) {
  constexpr int kSignal = 128;
  if (told_ || (culprit_ && (code <= kSignal || culprit_->code > kSignal))) return;
  const bool first = !culprit_;
  culprit_ = Culprit{code, std::move(text)};
  if (!first) return tell();
  if (!forwarded_) stop_all(kGrace);
  verdict_ = Clock::now() + (code > kSignal || phase_ != Phase::running ? milliseconds(0) : kEcho);
}

void HostsJob::tell() {
  if (!culprit_ || std::exchange(told_, true)) return;
  if (!culprit_->text.empty()) say(culprit_->text);
}

void HostsJob::stop_all(milliseconds until_term) {
  timeout_.reset();
  call_limit_.reset();
  give_up_ = Clock::now() + until_term + kTermToKill + kFarewell;
  for (Agent& a : agents_) {
    if (a.state == Agent::State::running) {
      send(a, {Kind::stop, {std::to_string(until_term.count())}});
    } else {
      a.in.reset();
      if (a.present()) a.child.signal_group(SIGTERM);  // it may wait for an answer of the network
    }
  }
}

void HostsJob::forward(int number) {
  if (number == SIGPIPE) return;  // seen as a failed write
  if (phase_ != Phase::running) return fail(128 + number, fmt::format("ended by signal {}", number));
  if (!std::exchange(forwarded_, true)) say(passed_on(number));
  timeout_.reset();
  give_up_ = Clock::now() + kForwardToKill + kFarewell;
  for (Agent& a : agents_) send(a, {Kind::signal, {std::to_string(number)}});
}

std::vector<int> HostsJob::alive() const {
  std::vector<int> ranks;
  for (const Agent& a : agents_)
    for (std::size_t i = 0; i < a.alive.size(); ++i)
      if (a.alive[i] != 0) ranks.push_back(a.first_rank + static_cast<int>(i));
  return ranks;
}

void HostsJob::on_time() {
  if (reader_gone_ && !culprit_) {
    culprit_ = Culprit{128 + SIGPIPE, ""};
    stop_all(milliseconds(0));
  }
  if (due(timeout_)) {
    culprit_ = Culprit{kTimeoutCode, timed_out(options_, alive())};
    tell();
    stop_all(milliseconds(0));
  }
  if (due(call_limit_)) {
    std::vector<std::string> silent;
    for (const Agent& a : agents_)
      if (a.state < Agent::State::ready || (phase_ == Phase::reaching && !a.answered))
        silent.push_back(a.host.name);
    fail(1, fmt::format("no answer within {} s from the agent of host {}", kCall.count() / 1000,
                        fmt::join(silent, ", ")));
  }
  if (due(verdict_)) tell();
  if (due(give_up_)) {
    for (Agent& a : agents_) {
      if (!a.present()) continue;
      say(a, "its agent does not leave; its connection is cut");
      a.in.reset();
      a.child.signal_group(SIGKILL);
    }
  }
}

int HostsJob::run(Signals& signals) {
  constexpr std::size_t kEach = 4;
  const auto present = [](const Agent& a) { return a.present(); };
  while (std::any_of(agents_.begin(), agents_.end(), present)) {
    std::vector<pollfd> fds{{signals.fd().get(), POLLIN, 0}};
    for (const Agent& a : agents_) {  // poll ignores -1
      fds.push_back({a.child.pidfd.get(), POLLIN, 0});
      fds.push_back({a.child.out.get(), POLLIN, 0});
      fds.push_back({a.child.err.get(), POLLIN, 0});
      fds.push_back({a.outgoing.empty() ? -1 : a.in.get(), POLLOUT, 0});
    }
    const int wait = wait_ms({timeout_, call_limit_, verdict_, give_up_});
    if (::poll(fds.data(), fds.size(), wait) < 0 && errno != EINTR) break;
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      const pollfd* fd = &fds[1 + kEach * i];
      if (fd[1].revents != 0) drain(agents_[i]);
      if (fd[2].revents != 0) drain_errors(agents_[i]);
      if (fd[3].revents != 0) flush(agents_[i]);
      if (fd[0].revents != 0) gone(agents_[i]);
    }
    for (int number; (number = signals.take()) != 0;) forward(number);
    on_time();
  }
  tell();
  return culprit_ ? culprit_->code : 0;
}

}  // namespace

Result<int> run_on_hosts(const RunOptions& options, const std::vector<std::string>& argv, Signals& signals) {
  Result<std::vector<Host>> hosts = place(options.hosts, options.ranks);
  if (!hosts.ok()) return hosts.status();
  HostsJob job(options, argv, std::move(*hosts));
  const Result<std::optional<int>> refused = job.call();
  if (!refused.ok()) return refused.status();
  if (*refused) return **refused;
  return job.run(signals);
}

}  // namespace ouro::run
