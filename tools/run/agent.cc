// The agent on one host: first helps to find the meeting place of the ranks, then runs the ranks of its host.
// Used through agent.h.
#include "tools/run/agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <optional>
#include <utility>

#include "runtime/join/roll.h"
#include "tools/run/guardian.h"
#include "tools/run/guards.h"
#include "tools/run/job.h"
#include "tools/run/messages.h"
#include "tools/run/outlet.h"
#include "tools/run/rendezvous.h"

namespace ouro::run {
namespace {

constexpr milliseconds kReachLimit{3000};

/// Descriptor of sealed memory that holds the secret. It deliberately lacks close-on-exec: ranks inherit it.
Result<Fd> secret_memory(const std::string& secret) {
  Fd fd(::memfd_create("ouro-secret", MFD_ALLOW_SEALING));
  if (!fd || ::fchmod(fd.get(), 0600) != 0 || !put(fd.get(), secret) ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)
    return system_error("cannot keep the job's secret in memory (memfd)");
  return fd;
}

class Agent : public Audience {
 public:
  Agent(Fd in, std::unique_ptr<Outlet> out) : in_(std::move(in)), out_(std::move(out)) {}
  int run(int above);

  void line(int rank, bool is_error, std::string_view text, LineEnd end) override {
    send(Kind::line, {std::to_string(rank), is_error ? "e" : "o", std::string(1, static_cast<char>(end)),
                      std::string(text)});
  }
  bool full(bool is_error) const override { return held_[is_error ? 1 : 0] || out_->full(); }
  void ended(int rank, int code) override {
    roll_->ended(rank, code);
    send(Kind::ended, {std::to_string(rank), std::to_string(code)});
  }
  void failed(int code, const std::string& text) override {
    send(Kind::failed, {std::to_string(code), text});
  }
  void say(std::string_view text) override { send(Kind::say, {std::string(text)}); }

 private:
  void send(Kind kind, std::vector<std::string> fields) { send(Message{kind, std::move(fields)}); }
  void send(const Message& message) { out_->add(encode(message)); }
  void watch(std::vector<pollfd>& fds, const Signals& signals) const;
  void handle_events(const pollfd* fds, Signals& signals);
  void say_all(Signals& signals);
  void receive();
  std::optional<Message> next();
  void help(const Message& request);
  void refuse(int code, std::string text) { send(Kind::refused, {std::to_string(code), std::move(text)}); }
  Result<std::vector<Environment>> environments(const Orders& orders);
  void obey(const Orders& orders, Signals& signals);
  void supervise(Job& job, Signals& signals);

  Fd in_, secret_;
  std::unique_ptr<Outlet> out_;
  std::shared_ptr<rt::Roll> roll_;  // set once ranks run
  bool held_[2] = {false, false};   // the launcher has no room for [0] output, [1] errors
  MessageReader reader_;
  std::optional<Listeners> listeners_;
  bool gone_ = false;  // the launcher has ended, or this agent has to stop
};

void Agent::receive() {
  char buffer[65536];
  const ssize_t n = ::read(in_.get(), buffer, sizeof buffer);
  if (n > 0) reader_.add({buffer, static_cast<std::size_t>(n)});
  if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) gone_ = true;
}

std::optional<Message> Agent::next() {
  Result<std::optional<Message>> message = reader_.next();
  if (message.ok()) return std::move(*message);
  gone_ = true;
  return std::nullopt;
}

/// Number of descriptors that watch() appends and handle_events() handles.
constexpr std::size_t kWatched = Signals::kWatched + 2;
void Agent::watch(std::vector<pollfd>& fds, const Signals& signals) const {
  fds.push_back({in_.get(), POLLIN, 0});
  fds.push_back({out_->news().get(), POLLIN, 0});
  signals.watch(fds);
}

void Agent::handle_events(const pollfd* fds, Signals& signals) {
  if (fds[0].revents != 0) receive();
  out_->reset_news();
  if (out_->broken() != 0 || signals.take() != 0) gone_ = true;
}

/// Blocks until the launcher has read all messages, or has ended.
void Agent::say_all(Signals& signals) {
  while (!gone_ && out_->waiting() > 0) {
    std::vector<pollfd> fds;
    watch(fds, signals);
    if (::poll(fds.data(), fds.size(), wait_ms({signals.next()})) < 0 && errno != EINTR) return;
    handle_events(fds.data(), signals);
  }
}

void Agent::help(const Message& request) {
  if (request.kind == Kind::offer && request.fields.size() == 3) {
    Result<Listeners> listeners = Listeners::open(request.fields[0], request.fields[1], request.fields[2]);
    if (!listeners.ok()) return refuse(1, listeners.status().failure()->text);
    listeners_ = std::move(*listeners);
    return send(to_message(Kind::offers, {}, listeners_->offers()));
  }
  if (request.kind != Kind::reach || request.fields.empty()) return;
  const Result<std::vector<Offer>> offers = to_offers(request, 1);
  if (!offers.ok()) return refuse(1, offers.status().failure()->text);
  Message answer{Kind::reached, {}};
  for (const int index : reach(*offers, request.fields[0], kReachLimit))
    answer.fields.push_back(std::to_string(index));
  send(answer);
}

Result<std::vector<Environment>> Agent::environments(const Orders& o) {
  OURO_ASSIGN(secret_, secret_memory(o.secret));
  std::vector<Environment> all;
  for (int i = 0; i < o.local_size; ++i) {
    Environment e = own_environment();
    for (const auto& [key, value] : o.variables) e[key] = value;
    const Seat seat{.rank = o.first_rank + i,
                    .size = o.size,
                    .local_rank = i,
                    .local_size = o.local_size,
                    .node = o.node,
                    .nodes = o.nodes};
    for (const auto& [key, value] : rank_environment(seat, o.rendezvous)) e[key] = value;
    e.erase("OURO_SECRET");  // the job has a secret of its own
    e["OURO_SECRET_FILE"] = fmt::format("/proc/self/fd/{}", secret_.get());
    e["OURO_HOSTID"] = o.host;
    e["OURO_ROLL"] = roll_->place();
    all.push_back(std::move(e));
  }
  return all;
}

void Agent::supervise(Job& job, Signals& signals) {
  while (job.any_alive() && !gone_) {
    while (const std::optional<Message> m = next()) {
      if (m->kind == Kind::hold && m->fields.size() == 2) held_[m->fields[0] == "e"] = m->fields[1] == "1";
      if (m->kind == Kind::left)
        if (const Result<int> rank = number_of(*m, 0, 0, kMaxRanks - 1), code = number_of(*m, 1, 0, 255);
            rank.ok() && code.ok())
          roll_->ended(*rank, *code);
      const Result<int> number = number_of(*m, 0, 0, 3'600'000);
      if (!number.ok()) continue;
      if (m->kind == Kind::stop) job.stop(milliseconds(*number));
      if (m->kind == Kind::signal) job.forward(*number);
    }
    std::vector<pollfd> fds;
    watch(fds, signals);
    job.watch(fds);
    if (::poll(fds.data(), fds.size(), wait_ms({job.next(), signals.next()})) < 0 && errno != EINTR) break;
    handle_events(fds.data(), signals);
    job.handle(fds.data() + kWatched);
    job.on_time();
  }
  if (!gone_) job.finish();
}

void Agent::obey(const Orders& orders, Signals& signals) {
  listeners_.reset();
  if (::chdir(orders.directory.c_str()) != 0)
    return refuse(1, fmt::format("cannot work in {} here: {}", orders.directory, std::strerror(errno)));
  Result<std::shared_ptr<rt::Roll>> roll =
      rt::Roll::create(orders.rendezvous.job, orders.size, orders.first_rank);
  if (!roll.ok()) return refuse(1, roll.status().failure()->text);
  roll_ = std::move(*roll);
  Result<std::vector<Environment>> variables = environments(orders);
  if (!variables.ok()) return refuse(1, variables.status().failure()->text);
  const Subreaper subreaper;  // kills what ranks have left before `over` is sent
  Job job({.argv = orders.argv,
           .environments = std::move(*variables),
           .first_rank = orders.first_rank,
           .bind = orders.bind},
          *this);
  const Result<std::optional<int>> code = job.start(signals, {});
  if (!code.ok()) return refuse(1, code.status().failure()->text);
  if (*code) return refuse(**code, "");
  supervise(job, signals);
}

int Agent::run(int above) {
  Signals signals(Signals::Which::ending, above);
  out_->add(fmt::format("{}\n", kGreeting));
  send(Kind::hello, {OURO_VERSION});
  while (!gone_) {
    while (const std::optional<Message> m = next()) {
      if (m->kind != Kind::start) {
        help(*m);
        continue;
      }
      const Result<Orders> orders = to_orders(*m);
      if (orders.ok()) {
        obey(*orders, signals);
      } else {
        refuse(1, orders.status().failure()->text);
      }
      // The job was cut short, so `over` is not sent; the launcher, if it still exists, reports this.
      if (gone_) return 1;
      send(Kind::over, {});
      say_all(signals);
      return 0;
    }
    std::vector<pollfd> fds;
    watch(fds, signals);
    if (listeners_) listeners_->watch(fds);
    if (::poll(fds.data(), fds.size(), wait_ms({signals.next()})) < 0 && errno != EINTR) return 1;
    handle_events(fds.data(), signals);
    if (listeners_ && fds.size() > kWatched) listeners_->handle(fds.data() + kWatched);
  }
  return 1;
}

}  // namespace

int agent_main() {
  // Output that a library might print is written to the user's standard error, not between messages.
  Fd in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)), out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  const Fd empty(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!in || !out || !empty || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0 ||
      ::dup2(empty.get(), STDIN_FILENO) < 0)
    return 1;
  const Result<int> code = guarded("ouro-run", [&](int above) -> Result<int> {
    OURO_ASSIGN(auto outlet, Outlet::open(out.get()));
    out.reset();
    return Agent(std::move(in), std::move(outlet)).run(above);
  });
  return code.ok() ? *code : 1;
}

}  // namespace ouro::run
