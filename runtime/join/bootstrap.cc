// Joining: rank 0 is the root that gathers all ranks and hands out the table; the others send requests.
// See bootstrap.h.
#include "runtime/join/bootstrap.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "runtime/core/deadline.h"
#include "runtime/core/log.h"
#include "runtime/core/process.h"
#include "runtime/health/control_page.h"
#include "runtime/join/admission.h"
#include "runtime/join/bootstrap_parts.h"
#include "runtime/join/descriptors.h"
#include "runtime/join/local_listener.h"
#include "runtime/join/local_socket.h"
#include "runtime/join/rendezvous.h"
#include "runtime/join/roll.h"
#include "runtime/network/asio.h"
#include "runtime/network/network.h"
#include "transport/wire/codec.h"

namespace ouro::rt {
namespace {

// A rank waits this long beyond its own deadline for the gathering rank's verdict, which names more than the
// rank knows.
constexpr std::chrono::milliseconds kPatience{1000};
constexpr std::chrono::milliseconds kRollCall{200};
constexpr std::chrono::milliseconds kPollCancel{100};

}  // namespace

Result<Peer> make_peer(std::int32_t pid, std::string host, std::string server, std::vector<Fd> fds,
                       std::size_t control_bytes) {
  if (fds.empty()) return Status(Reason::refused, "a rank joined without its control segment");
  auto control = SharedSegment::attach(std::move(fds[0]), control_bytes);
  if (!control.ok()) return control.status();
  const std::uint64_t process = reinterpret_cast<const ControlPage*>((*control)->data())->process;
  Peer peer{pid, process, std::move(host), std::move(server), Fd{}, std::move(*control)};
  if (fds.size() > 1 && process != process_number()) peer.pidfd = std::move(fds[1]);
  return peer;
}

Result<Peer> make_remote(const wire::Member& m, std::size_t control_bytes) {
  if (m.endpoint.empty()) return Status(Reason::refused, fmt::format("rank {} sent no address", m.rank));
  auto control = SharedSegment::create(control_bytes, "copies of control pages");
  if (!control.ok()) return control.status();
  auto& page = *reinterpret_cast<ControlPage*>((*control)->data());
  page.magic = kControlMagic;
  page.rank = m.rank;
  page.pid = m.pid;
  page.state.set(static_cast<std::uint32_t>(ContextState::active));
  Peer peer{m.pid, 0, m.host, "", Fd{}, std::move(*control)};
  peer.node = static_cast<int>(m.node);
  peer.endpoint = m.endpoint;
  peer.address = m.address;
  return peer;
}

Status send_table(int line, const std::vector<Peer>& peers) {
  const Fd mine = self_pidfd();
  for (std::size_t r = 0; r < peers.size(); ++r) {
    const Peer& p = peers[r];
    std::vector<int> fds;
    if (!p.remote()) {
      fds.push_back(p.control->fd());
      const int pidfd = p.process == process_number() ? mine.get() : p.pidfd.get();
      if (pidfd >= 0) fds.push_back(pidfd);
    }
    OURO_TRY(send_frame(line,
                        wire::Member{static_cast<std::uint32_t>(r), p.pid, p.host, p.server,
                                     static_cast<std::uint32_t>(p.node), p.endpoint, p.address},
                        fds));
  }
  return {};
}

Status objection_of(const wire::Refuse& said) {
  return {Reason::refused, wire::printable(wire::view(said.text), wire::kMaxText)};
}

namespace {

using namespace std::chrono_literals;

/// The same for each rank, though most need less than the gathering rank: then all of them report a limit
/// that is too low, and none waits for the one that does.
Status check_limits(const JoinOptions& o) {
  if (o.world == 1) return {};
  const int lines = !o.network                             ? 0
                    : o.network->options().fabric == "ucx" ? 2
                                                           : o.network->options().connections;
  return provide_descriptors(descriptors_to_join(o.world, o.network != nullptr, lines),
                             fmt::format("a job of {} ranks", o.world).c_str());
}

Status cancelled() { return {Reason::revoked, "joining was cancelled by the program"}; }

/// The sockets around Admission, on rank 0.
class Hub {
 public:
  Hub(const JoinOptions& options, Fd listener, Peer self)
      : options_(options),
        listener_(io_, std::move(listener),
                  [this](const Line& line, Incoming said) { receive(line, std::move(said)); }),
        late_(io_),
        admission_(options.job, options.world, options.settings, self.host, self.pid),
        peers_(static_cast<std::size_t>(options.world)),
        lines_(peers_.size()) {
    peers_[0] = std::move(self);
  }

  Result<Joined> run() {
    const auto end = deadline_after(options_.deadline);
    warn_later();
    while (!admission_.complete() && outcome_.ok()) {
      if (Clock::now() >= end)
        outcome_ = admission_.expired(std::chrono::duration<double>(options_.deadline).count());
      else
        io_.run_one_until(std::min(end, Clock::now() + (options_.cancel ? kPollCancel
                                                        : options_.roll ? kRollCall
                                                                        : 1s)));
      if (outcome_.ok() && options_.roll) call_roll();
      if (outcome_.ok() && options_.cancelled()) outcome_ = cancelled();
    }
    if (outcome_.ok()) outcome_ = hand_out();
    if (!outcome_.ok()) {
      for (auto& line : lines_)
        if (line) listener_.refuse(line, outcome_);
      // Ranks that arrive a moment later receive the same reason instead of a closed connection.
      const auto until =
          Clock::now() +
          (outcome_.reason() == Reason::never_joined || options_.cancelled() ? 0ms : kTellLatecomers);
      while (listener_.refused() + 1 < options_.world && Clock::now() < until) io_.run_one_until(until);
      return outcome_;
    }
    return Joined{std::move(peers_), listener_.release()};
  }

 private:
  using Line = LocalListener::Line;

  /// Fails if a missing rank has ended, because it will not join any more.
  void call_roll() {
    for (const int rank : admission_.missing())
      if (const auto code = options_.roll->code(rank)) {
        outcome_ = admission_.absent(rank, *code);
        return;
      }
  }

  void warn_later() {
    late_.expires_at(deadline_after(options_.late_after));
    late_.async_wait([this](error_code e) {
      if (e) return;
      OURO_WARN("waiting for ranks {{{}}}; joined {}/{}", fmt::join(admission_.missing(), ","),
                admission_.admitted(), options_.world);
      warn_later();
    });
  }

  void receive(const Line& line, Incoming said) {
    if (const auto* no = std::get_if<wire::Refuse>(&said.frame)) {
      if (outcome_.ok()) outcome_ = objection_of(*no);
      return;
    }
    auto* join = std::get_if<wire::Join>(&said.frame);
    if (!join)
      return listener_.refuse(line, Status(Reason::refused, "the first frame was not a request to join"));
    consider(line, *join, std::move(said.fds));
  }

  void consider(const Line& line, wire::Join& join, std::vector<Fd> fds) {
    if (!outcome_.ok()) return listener_.refuse(line, outcome_);
    Admission::Decision decision = admission_.consider(join);
    if (decision.verdict == Admission::Verdict::admitted) {
      auto peer = make_peer(join.pid, std::move(join.host), std::move(join.server), std::move(fds),
                            peers_[0].control->bytes());
      if (peer.ok()) return member(static_cast<int>(join.rank), line, std::move(*peer));
      admission_.vacate(static_cast<int>(join.rank));
      decision = {Admission::Verdict::turn_away, peer.status()};
    }
    listener_.refuse(line, decision.why);
    if (decision.verdict == Admission::Verdict::give_up && outcome_.ok()) outcome_ = decision.why;
  }

  void member(int rank, const Line& line, Peer peer) {
    peers_[static_cast<std::size_t>(rank)] = std::move(peer);
    lines_[static_cast<std::size_t>(rank)] = line;
    // A rank sends nothing until it has received the table: if its line becomes readable before, the
    // rank has ended.
    when_readable(*line, [this, rank](error_code e) {
      if (!e && outcome_.ok() && !admission_.complete()) outcome_ = admission_.lost(rank);
    });
  }

  Status hand_out() {
    for (std::size_t to = 1; to < peers_.size(); ++to)
      if (!send_table(lines_[to]->native_handle(), peers_).ok()) return admission_.lost(static_cast<int>(to));
    return {};
  }

  const JoinOptions& options_;
  asio::io_context io_;
  LocalListener listener_;
  asio::steady_timer late_;
  Admission admission_;
  std::vector<Peer> peers_;
  std::vector<Line> lines_;
  Status outcome_;
};

std::string host_of(const JoinOptions& o) { return o.network ? o.network->options().host_id : ""; }

/// Joining for every rank that does not gather: repeats the request until it is answered, then
/// reads the table.
Result<Joined> ask(const JoinOptions& options, const Peer& self, const wire::Join& join) {
  const auto end = deadline_after(options.deadline);
  // The gathering rank gives its verdict at its own deadline, and that of another host takes time to arrive.
  const auto verdict_by = end + (options.network ? 3 : 1) * kPatience;
  const std::string hub_name = options.network ? "the first rank of this host" : "rank 0";
  const auto dead_root = [&](int pid) {
    return Status(Failure{.reason = Reason::peer_dead,
                          .text = options.network ? hub_name + " ended while the job was forming"
                                                  : "it ended while the job was forming",
                          .rank = options.network ? -1 : 0,
                          .pid = pid,
                          .detector = "socket"});
  };
  const auto receive = [&](int line) -> Result<Incoming> {
    for (;;) {
      if (options.cancelled()) return cancelled();
      auto said =
          recv_frame(line, options.cancel ? std::min(verdict_by, Clock::now() + kPollCancel) : verdict_by);
      if (said.ok() || said.status().reason() != Reason::deadline || Clock::now() >= verdict_by) return said;
    }
  };
  const Fd pidfd = self_pidfd();
  std::vector<int> fds{self.control->fd()};
  if (pidfd) fds.push_back(pidfd.get());
  // The gathering rank is determined by the launcher's count of hosts.
  const int gatherer = options.network && options.roll ? options.roll->first() : 0;
  Fd line;
  int root = 0;  // pid of the gathering rank, once it has listened
  // A root that closes the connection without an answer has either ended or completed the job meanwhile; the
  // next attempt shows which.
  std::optional<Incoming> first;
  for (auto pause = 1ms; !first; pause = std::min<std::chrono::milliseconds>(pause * 2, 20ms)) {
    line = connect_local(rendezvous_name(options.job, host_of(options)));
    if (!line && descriptors_lack(errno)) return no_descriptor("joining");
    if (line) {
      OURO_TRY(check_peer(line.get()));
      root = credentials(line.get()).pid;
      auto answer =
          send_frame(line.get(), join, fds).ok() ? receive(line.get()) : Result<Incoming>(dead_root(root));
      if (answer.ok()) {
        first = std::move(*answer);
        break;
      }
      if (answer.status().reason() == Reason::deadline)
        return Status(Reason::never_joined, hub_name + " waits for other ranks, and not all joined in time");
      if (answer.status().reason() != Reason::peer_dead) return answer.status();
    } else if (root != 0) {
      return dead_root(root);
    }
    if (const auto code = options.roll ? options.roll->code(gatherer) : std::nullopt)
      return Status(Failure{.reason = Reason::never_joined,
                            .text = fmt::format("it ended with exit code {} before all had joined", *code),
                            .rank = gatherer,
                            .detector = "launcher"});
    if (options.cancelled()) return cancelled();
    if (Clock::now() >= end)
      return Status(
          Reason::never_joined,
          fmt::format(
              "{} did not open the rendezvous within {} s (never started, another host, or a stale id)",
              hub_name, std::chrono::duration<double>(options.deadline).count()));
    std::this_thread::sleep_for(pause);
  }
  std::vector<Peer> peers(static_cast<std::size_t>(options.world));
  for (int i = 0; i < options.world; ++i) {
    auto incoming = i == 0 ? Result<Incoming>(std::move(*first)) : recv_frame(line.get(), verdict_by);
    if (!incoming.ok()) {
      const Reason why = incoming.status().reason();
      return why == Reason::refused || why == Reason::resource ? incoming.status() : dead_root(root);
    }
    if (auto* no = std::get_if<wire::Refuse>(&incoming->frame))
      return Status(Failure{
          .reason = no->reason == Reason::none ? Reason::refused : no->reason,
          .text = wire::printable({reinterpret_cast<const std::uint8_t*>(no->text.data()), no->text.size()},
                                  wire::kMaxText),
          .rank = no->rank});
    auto* member = std::get_if<wire::Member>(&incoming->frame);
    if (!member || member->rank >= join.world)
      return Status(Reason::refused, "rank 0 answered with something else than the table of ranks");
    auto peer = incoming->fds.empty() && options.network
                    ? make_remote(*member, self.control->bytes())
                    : make_peer(member->pid, member->host, member->server, std::move(incoming->fds),
                                self.control->bytes());
    if (!peer.ok()) return peer.status();
    peer->node = static_cast<int>(member->node);
    peers[member->rank] = std::move(*peer);
  }
  for (std::size_t r = 0; r < peers.size(); ++r)
    if (!peers[r].control)
      return Status(Reason::refused, fmt::format("rank 0 named a rank twice and left out rank {}", r));
  return Joined{std::move(peers), Fd{}};
}

}  // namespace

std::string rendezvous_name(const wire::Nonce& n, const std::string& host_id) {
  if (host_id.empty()) return "ouro/" + wire::hex(n);
  wire::Nonce digest = n;  // an abstract name holds at most 107 bytes
  for (std::size_t i = 0; i < host_id.size(); ++i)
    digest[i % digest.size()] = static_cast<std::uint8_t>(digest[i % digest.size()] * 31 + host_id[i]);
  return "ouro/" + wire::hex(n) + "/" + wire::hex(digest);
}

Result<Joined> join(const JoinOptions& options, const std::string& server,
                    std::shared_ptr<SharedSegment> control) {
  OURO_TRY(check_limits(options));
  Peer self{static_cast<int>(getpid()), process_number(), log::host_name(), server, Fd{}, std::move(control)};
  Network* const net = options.network;
  if (net ? !options.leads_host : options.rank != 0) {
    const wire::Join join{options.job,
                          static_cast<std::uint32_t>(options.rank),
                          static_cast<std::uint32_t>(options.world),
                          self.pid,
                          self.host,
                          self.server,
                          options.settings,
                          net ? net->endpoint() : "",
                          net ? net->address() : wire::Bytes{}};
    OURO_TRY(check(join));
    return ask(options, self, join);
  }
  if (options.world == 1) {
    Joined alone;
    alone.peers.push_back(std::move(self));
    return alone;
  }
  const std::string name = rendezvous_name(options.job, host_of(options));
  auto listener = listen_local(name);
  if (!listener.ok()) {
    if (listener.status().reason() != Reason::refused) return listener.status();
    Fd other = connect_local(name);
    const Credentials holder = other ? credentials(other.get()) : Credentials{0, geteuid()};
    if (holder.uid != geteuid())
      return Status(Reason::refused,
                    fmt::format("user {} (pid {}) holds the name '@{}' of this job; expected user {}. "
                                "Another name of the job keeps it out, a random one best (UniqueId)",
                                holder.uid, holder.pid, name, geteuid()));
    const Status taken =
        net ? Status(Reason::refused,
                     fmt::format(
                         "duplicate-rank: pid {} is the first rank of this job on {}, and rank {} (pid {}) "
                         "says that it is; expected one for each host",
                         holder.pid, self.host, options.rank, self.pid))
            : Admission::twice(0, self.host, holder.pid, self.host, self.pid);
    // The ranks that gather there need not wait: some rank of this job has two processes, so another has
    // none. If the job has formed already, the message is late and is ignored.
    if (other)
      (void)send_frame(other.get(), wire::Refuse{Reason::refused, options.rank, taken.failure()->text}).ok();
    return taken;
  }
  if (net) return gather_host(options, std::move(*listener), std::move(self));
  return Hub(options, std::move(*listener), std::move(self)).run();
}

}  // namespace ouro::rt
