// The launcher's loop over agents: starts them on all hosts, finds the meeting place of the ranks, sends
// orders, relays output, ends the job. Used through remote.h.
#include "tools/run/remote.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <utility>

#include "runtime/network/net_address.h"
#include "tools/run/agent.h"
#include "tools/run/agent_link.h"
#include "tools/run/console.h"
#include "tools/run/job.h"
#include "tools/run/open_files.h"
#include "tools/run/rendezvous_choice.h"

namespace ouro::run {
namespace {

constexpr milliseconds kCall{60'000};  // for all agents to answer, including authentication
constexpr milliseconds kEcho{100};  // wait after a rank returned an error: a death elsewhere may be its cause
constexpr milliseconds kFarewell{3000};  // after the last SIGKILL; then the agents themselves are killed

class HostsJob : public AgentLink::Audience {
 public:
  HostsJob(const RunOptions& options, const std::vector<std::string>& argv, const std::vector<Host>& hosts);
  HostsJob(const HostsJob&) = delete;
  HostsJob& operator=(const HostsJob&) = delete;
  /// Starts all agents. Holds an exit code if they cannot be run.
  Result<std::optional<int>> call(Console& console, Signals& signals);
  int run(Signals& signals);

  void on_message(AgentLink& agent, const Message& message) override;
  void error_line(AgentLink& agent, std::string_view text) override;
  void garbled(AgentLink& agent, const std::string& text) override;

 private:
  void say(std::string_view text) { console_->say(text); }
  void say(const AgentLink& a, std::string_view text) { say(fmt::format("host {}: {}", a.host.name, text)); }
  void gone(AgentLink& a);
  void proceed();
  void settle(const Message& offers);
  void choose();
  void order(const Offer& place);
  void fail(int code, std::string text);
  void report_culprit();
  void stop_all(milliseconds until_term);
  void forward(int number);
  void end_at_once();
  void hold();
  void on_time();
  std::vector<int> alive() const;

  const RunOptions& options_;
  const std::vector<std::string>& argv_;
  std::deque<AgentLink> agents_;
  Console* console_ = nullptr;  // set by call()
  RendezvousChoice place_;
  std::string token_, id_, secret_;
  enum class Phase { calling, offering, reaching, running } phase_ = Phase::calling;
  struct Culprit {
    int code;
    std::string text;
  };
  std::optional<Culprit> culprit_;
  When timeout_, call_limit_, verdict_, give_up_;
  bool reported_ = false, forwarded_ = false;
};

std::vector<std::string> names_of(const std::vector<Host>& hosts) {
  std::vector<std::string> names;
  for (const Host& h : hosts) names.push_back(h.name);
  return names;
}

HostsJob::HostsJob(const RunOptions& options, const std::vector<std::string>& argv,
                   const std::vector<Host>& hosts)
    : options_(options), argv_(argv), place_(names_of(hosts)) {
  int rank = 0;
  for (const Host& h : hosts) {
    agents_.emplace_back(h, agents_.size(), rank, *this);
    rank += h.slots;
  }
}

Result<std::optional<int>> HostsJob::call(Console& console, Signals& signals) {
  constexpr std::size_t kEach = 4, kWhileStarting = 16;
  console_ = &console;
  OURO_TRY(
      make_room(kEach * agents_.size() + kWhileStarting, fmt::format("calling {} hosts", agents_.size())));
  timeout_ = after(options_.timeout_s);
  for (std::string* text : {&token_, &id_, &secret_}) {
    OURO_ASSIGN(*text, random_hex(text == &secret_ ? 32 : 16));
  }
  OURO_ASSIGN(const auto program, agent_program());
  for (AgentLink& a : agents_) {
    std::vector<std::string> command = agent_command(options_.agent, a.host.name);
    command.push_back(program);
    command.push_back(kAgentCommand);
    OURO_ASSIGN(const auto error, a.call(command, {&signals, timeout_}));
    if (error && (*error == EINTR || *error == ETIME)) {
      const int number = *error == EINTR ? signals.take() : 0;
      say(fmt::format("{} is not executed yet: given up", command[0]));
      return std::optional<int>(number != 0 ? 128 + number : kTimeoutCode);
    }
    if (error) {
      say(fmt::format("cannot run {}: {}", command[0], std::strerror(*error)));
      return std::optional<int>(*error == ENOENT ? 127 : 126);
    }
  }
  call_limit_ = Clock::now() + kCall;
  return std::optional<int>();
}

void HostsJob::error_line(AgentLink& a, std::string_view text) { console_->host_says(a.host.name, text); }

void HostsJob::garbled(AgentLink& a, const std::string& text) {
  fail(1, fmt::format("host {}: {}", a.host.name, text));
}

void HostsJob::on_message(AgentLink& a, const Message& m) {
  const auto text = [&m](std::size_t i) { return i < m.fields.size() ? m.fields[i] : std::string(); };
  switch (m.kind) {
    case Kind::hello:
      a.state = AgentLink::State::ready;
      if (text(0) != OURO_VERSION)
        return fail(1,
                    fmt::format("host {} has ouro-run {}, this host {}", a.host.name, text(0), OURO_VERSION));
      return proceed();
    case Kind::offers:
      return settle(m);
    case Kind::reached: {
      std::vector<int> indexes;
      for (std::size_t i = 0; i < m.fields.size(); ++i)
        if (const Result<int> index = number_of(m, i, 0, kMaxRanks); index.ok()) indexes.push_back(*index);
      place_.reached(a.node, indexes);
      return choose();
    }
    case Kind::refused: {
      const Result<int> code = number_of(m, 0, 1, 255);
      a.alive.assign(a.alive.size(), 0);
      return fail(code.ok() ? *code : 1,
                  text(1).empty() ? "" : fmt::format("host {}: {}", a.host.name, text(1)));
    }
    case Kind::line:
      if (const Result<int> rank = number_of(m, 0, 0, kMaxRanks - 1); rank.ok())
        console_->rank_says(*rank, text(1) == "e", text(3),
                            text(2) == "1"   ? LineEnd::line
                            : text(2) == "2" ? LineEnd::piece
                                             : LineEnd::output);
      return;
    case Kind::ended:
      if (const Result<int> rank = number_of(m, 0, a.first_rank, a.first_rank + a.host.slots - 1);
          rank.ok()) {
        a.alive[static_cast<std::size_t>(*rank - a.first_rank)] = 0;
        for (AgentLink& other : agents_)
          if (&other != &a) other.send({Kind::left, {text(0), text(1)}});
      }
      return;
    case Kind::failed: {
      const Result<int> code = number_of(m, 0, 1, 255);
      return fail(code.ok() ? *code : 1, fmt::format("host {}: {}", a.host.name, text(1)));
    }
    case Kind::say:
      return say(a, text(0));
    case Kind::over:
      a.state = AgentLink::State::over;
      return a.in.reset();
    default:
      return fail(1, fmt::format("host {}: unexpected message {}", a.host.name, static_cast<int>(m.kind)));
  }
}

/// Makes the first agent listen where other hosts may reach it, once all agents are ready.
void HostsJob::proceed() {
  const auto is_ready = [](const AgentLink& a) { return a.state == AgentLink::State::ready; };
  if (phase_ != Phase::calling || culprit_ || !std::all_of(agents_.begin(), agents_.end(), is_ready)) return;
  phase_ = Phase::offering;
  agents_[0].send(
      {Kind::offer, {agents_.size() > 1 ? agents_[1].host.name : "", token_, interfaces_of(options_)}});
}

void HostsJob::settle(const Message& message) {
  Result<std::vector<Offer>> offers = to_offers(message, 0);
  if (!offers.ok() || offers->empty() || phase_ != Phase::offering)
    return fail(1, "no offers of the first host");
  place_.offer(std::move(*offers));
  phase_ = Phase::reaching;
  for (std::size_t i = 1; i < agents_.size(); ++i)
    agents_[i].send(to_message(Kind::reach, {token_}, place_.offers()));
  choose();
}

/// Picks the meeting place once all hosts have answered.
void HostsJob::choose() {
  if (phase_ != Phase::reaching || culprit_ || !place_.complete()) return;
  const Result<Offer> place = place_.choose();
  if (!place.ok()) return fail(1, place.status().failure()->text);
  order(*place);
}

void HostsJob::order(const Offer& place) {
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::current_path(error);
  if (error)  // on one host ranks could still run, but the other hosts need a name of the directory
    return fail(1, fmt::format("the working directory has no name ({}): ranks cannot be started in it",
                               error.message()));
  phase_ = Phase::running;
  call_limit_.reset();
  Orders o{.directory = directory.string(),
           .host = {},
           .secret = secret_,
           .bind = options_.bind,
           .size = options_.ranks,
           .nodes = static_cast<int>(agents_.size()),
           .rendezvous = {.job = id_, .address = place.address, .port = place.second_port, .rendezvous = {}},
           .variables = exported(options_),
           .argv = argv_};
  if (agents_.size() > 1) o.rendezvous.rendezvous = rt::with_port(place.address, place.port);
  for (AgentLink& a : agents_) {
    o.host = a.host.name;
    o.first_rank = a.first_rank;
    o.local_size = a.host.slots;
    a.send(to_message(o));
    a.state = AgentLink::State::running;
    ++o.node;
  }
}

/// The agent's process has ended.
void HostsJob::gone(AgentLink& a) {
  const std::vector<int> lost = a.bury();
  if (a.state == AgentLink::State::over || culprit_) return;
  const int code = a.child.ending->exit_code();
  std::string text =
      fmt::format("host {}: {} (pid {}){} {}, and with it rank {}", a.host.name,
                  a.state < AgentLink::State::ready ? "its agent" : "the connection to its agent",
                  a.child.pid, a.state < AgentLink::State::ready ? ", which never answered," : "",
                  a.child.ending->text(), fmt::join(lost, ", "));
  if (!a.last_error_line.empty()) text += fmt::format("; its last line on stderr: {}", a.last_error_line);
  fail(code == 0 ? 1 : code, std::move(text));
}

/// The first failure ends the job. If a death is reported at about the same time, it replaces an error
/// as the cause.
void HostsJob::fail(int code, std::string text) {
  constexpr int kSignal = 128;
  if (reported_ || (culprit_ && (code <= kSignal || culprit_->code > kSignal))) return;
  const bool first = !culprit_;
  culprit_ = Culprit{code, std::move(text)};
  if (!first) return report_culprit();
  if (!forwarded_) stop_all(kGrace);
  verdict_ = Clock::now() + (code > kSignal || phase_ != Phase::running ? milliseconds(0) : kEcho);
}

void HostsJob::report_culprit() {
  if (!culprit_ || std::exchange(reported_, true)) return;
  if (!culprit_->text.empty()) say(culprit_->text);
}

void HostsJob::stop_all(milliseconds until_term) {
  timeout_.reset();
  call_limit_.reset();
  give_up_ = Clock::now() + until_term + kTermToKill + kFarewell;
  for (AgentLink& a : agents_) {
    if (a.state == AgentLink::State::running) {
      a.send({Kind::stop, {std::to_string(until_term.count())}});
    } else {
      a.in.reset();
      if (a.present()) a.child.signal_group(SIGTERM);  // it may be waiting for the network
    }
  }
}

void HostsJob::forward(int number) {
  if (number == SIGKILL) return end_at_once();
  if (!ends_the_job(number)) {
    for (AgentLink& a : agents_)
      if (a.state == AgentLink::State::running) a.send({Kind::signal, {std::to_string(number)}});
    return;
  }
  if (phase_ != Phase::running) return fail(128 + number, fmt::format("ended by signal {}", number));
  if (!std::exchange(forwarded_, true)) say(passed_on(number));
  timeout_.reset();
  give_up_ = Clock::now() + kForwardToKill + kFarewell;
  for (AgentLink& a : agents_) a.send({Kind::signal, {std::to_string(number)}});
}

/// The process above is dead, so no process reads the reason. Closes the orders of all agents, which makes
/// them end their ranks.
void HostsJob::end_at_once() {
  reported_ = true;
  culprit_ = Culprit{128 + SIGKILL, ""};
  timeout_.reset();
  call_limit_.reset();
  give_up_ = Clock::now() + kFarewell;
  for (AgentLink& a : agents_) a.in.reset();
}

/// Orders agents to stop reading a stream for which there is no room here, and to resume when there is.
void HostsJob::hold() {
  for (AgentLink& a : agents_)
    for (const bool is_error : {false, true}) {
      bool& held = a.held[is_error ? 1 : 0];
      if (a.state != AgentLink::State::running || held == console_->full(is_error)) continue;
      held = !held;
      a.send({Kind::hold, {is_error ? "e" : "o", held ? "1" : "0"}});
    }
}

std::vector<int> HostsJob::alive() const {
  std::vector<int> ranks;
  for (const AgentLink& a : agents_) a.append_alive(ranks);
  return ranks;
}

void HostsJob::on_time() {
  if (const std::optional<int> broken = console_->broken(); broken && !culprit_) {
    culprit_ = Culprit{*broken, ""};
    report_culprit();  // the console has printed the reason; how ranks end from now on is not the cause
    stop_all(milliseconds(0));
  }
  if (due(timeout_)) {
    culprit_ = Culprit{kTimeoutCode, timed_out(options_, alive())};
    report_culprit();
    stop_all(milliseconds(0));
  }
  if (due(call_limit_)) {
    std::vector<std::string> silent;
    for (const AgentLink& a : agents_)
      if (a.state < AgentLink::State::ready || (phase_ == Phase::reaching && !place_.has_answered(a.node)))
        silent.push_back(a.host.name);
    fail(1, fmt::format("no answer within {} s from the agent of host {}", kCall.count() / 1000,
                        fmt::join(silent, ", ")));
  }
  if (due(verdict_)) report_culprit();
  if (due(give_up_)) {
    for (AgentLink& a : agents_) {
      if (!a.present()) continue;
      say(a, "its agent does not leave; its connection is cut");
      a.in.reset();
      a.child.signal_group(SIGKILL);
    }
  }
}

int HostsJob::run(Signals& signals) {
  constexpr std::size_t kEach = 4;
  const auto present = [](const AgentLink& a) { return a.present(); };
  while (std::any_of(agents_.begin(), agents_.end(), present)) {
    for (int number; (number = signals.take()) != 0;) forward(number);
    on_time();
    hold();
    std::vector<pollfd> fds;
    signals.watch(fds);
    console_->watch(fds);
    const std::size_t own = fds.size();
    for (const AgentLink& a : agents_) {  // poll ignores -1
      fds.push_back({a.child.pidfd.get(), POLLIN, 0});
      fds.push_back({a.child.out.get(), POLLIN, 0});
      fds.push_back({a.child.err.get(), POLLIN, 0});
      fds.push_back({a.unsent() ? a.in.get() : -1, POLLOUT, 0});
    }
    When first = earliest({timeout_, call_limit_, verdict_, give_up_, signals.next()});
    for (const AgentLink& a : agents_) first = earliest({first, a.child.next()});
    const int wait = wait_ms({first});
    if (::poll(fds.data(), fds.size(), wait) < 0 && errno != EINTR) break;
    console_->reset_news();
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      const pollfd* fd = &fds[own + kEach * i];
      if (fd[1].revents != 0) agents_[i].drain();
      if (fd[2].revents != 0) agents_[i].drain_errors();
      if (fd[3].revents != 0) agents_[i].flush();
      if (agents_[i].child.has_ended(fd[0])) gone(agents_[i]);
    }
  }
  report_culprit();
  const bool from_outside = forwarded_ || (culprit_ && culprit_->code == kTimeoutCode);
  return console_->drain(culprit_ ? culprit_->code : 0, from_outside, timeout_, signals);
}

}  // namespace

Result<int> run_on_hosts(const RunOptions& options, const std::vector<std::string>& argv, Signals& signals) {
  OURO_ASSIGN(auto hosts, place(options.hosts, options.ranks));
  OURO_ASSIGN(const auto console, Console::open(options));
  HostsJob job(options, argv, hosts);
  OURO_ASSIGN(const auto refused, job.call(*console, signals));
  if (refused) return console->drain(*refused, true, {}, signals);
  return job.run(signals);
}

}  // namespace ouro::run
