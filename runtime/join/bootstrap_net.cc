// Joining over several hosts: the first rank of a host gathers its ranks and brings them to the rendezvous;
// rank 0, which leads its host, serves it. See bootstrap.h.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "runtime/core/deadline.h"
#include "runtime/join/admission.h"
#include "runtime/join/bootstrap_parts.h"
#include "runtime/join/local_listener.h"
#include "runtime/join/local_socket.h"
#include "runtime/join/rendezvous.h"
#include "runtime/join/roll.h"
#include "runtime/network/network.h"
#include "transport/wire/codec.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
constexpr auto kGatherPatience = 2s;

/// The rendezvous as the first rank of a host uses it: the server on rank 0, else a client.
class HostRendezvous {
 public:
  static Result<HostRendezvous> open(Network& net, RendezvousOptions options) {
    HostRendezvous m;
    if (options.identity.rank == 0) {
      auto server = RendezvousServer::open(net.io(), std::move(options));
      if (!server.ok()) return server.status();
      m.server_ = std::move(*server);
    } else {
      MemberRecord own = options.self;
      m.client_ = std::make_shared<RendezvousClient>(net.io(), std::move(options));
      m.client_->bring(std::move(own));
    }
    return m;
  }
  void bring(MemberRecord member, std::function<void(Status)> refused, std::uint32_t world) {
    if (server_)
      server_->bring(std::move(member), std::move(refused), world);
    else
      client_->bring(std::move(member), std::move(refused), world);
  }
  void lost(int rank) { server_ ? server_->lost(rank) : client_->lost(rank); }
  void give_up(const MemberRecord& by, const Status& why) {
    server_ ? server_->give_up(why) : client_->give_up(by, why);
  }
  void absent(int rank, int code) {
    if (server_)
      server_->absent(rank, code);
    else if (rank == 0)
      client_->root_absent(code);
  }
  void async_table(TableCallback f) {
    if (server_)
      server_->async_table(std::move(f));
    else
      client_->async_table(std::move(f));
  }
  /// Hands the rendezvous to the network, as it outlives joining.
  void hand_to(Network& net) {
    net.keep([s = server_, c = client_] { return s ? s->served() : c->served(); },
             [c = client_](Line line) {
               if (c) c->serve(std::move(line));
             });
  }

 private:
  std::shared_ptr<RendezvousServer> server_;
  std::shared_ptr<RendezvousClient> client_;
};

class HostRoot {
 public:
  HostRoot(const JoinOptions& options, Fd listener, Peer self, HostRendezvous rendezvous)
      : options_(options),
        net_(*options.network),
        listener_(net_.io(), std::move(listener),
                  [this](const Line& line, Incoming said) { receive(line, std::move(said)); }),
        self_(std::move(self)),
        own_{.rank = options.rank, .pid = self_.pid, .host = self_.host},
        rendezvous_(std::move(rendezvous)) {}

  Result<Joined> run() {
    rendezvous_.hand_to(net_);
    std::optional<Result<std::vector<MemberRecord>>> table;
    rendezvous_.async_table([&](Result<std::vector<MemberRecord>> t) { table.emplace(std::move(t)); });
    // The rendezvous observes the deadline; this waits a little longer in case its answer is in flight.
    const auto end = deadline_after(options_.deadline) + kGatherPatience;
    while (!table && Clock::now() < end) {
      net_.io().run_one_for(100ms);
      call_roll();
    }
    if (!table) table.emplace(Status(Reason::never_joined, "the rendezvous did not answer in time"));
    auto joined = table->ok() ? use(**table) : Result<Joined>(table->status());
    if (joined.ok()) return joined;
    outcome_ = joined.status();
    for (auto& [rank, guest] : guests_) listener_.refuse(guest.line, outcome_);
    const auto until = Clock::now() + kTellLatecomers;
    while (Clock::now() < until) net_.io().run_one_until(until);
    return joined;
  }

 private:
  using Line = LocalListener::Line;

  /// Reports the ranks that have ended, each once; the rendezvous knows which ranks have joined.
  void call_roll() {
    if (!options_.roll || Clock::now() < next_call_) return;
    next_call_ = Clock::now() + 100ms;
    for (int rank = 0; rank < options_.world; ++rank)
      if (const auto code = options_.roll->code(rank); code && ended_.insert(rank).second)
        rendezvous_.absent(rank, *code);
  }

  struct Guest {
    Line line;
    Peer peer;
  };

  void receive(const Line& line, Incoming said) {
    if (const auto* no = std::get_if<wire::Refuse>(&said.frame)) return give_up(objection_of(*no));
    const auto* join = std::get_if<wire::Join>(&said.frame);
    if (!join)
      return listener_.refuse(line, Status(Reason::refused, "the first frame was not a request to join"));
    if (!outcome_.ok()) return listener_.refuse(line, outcome_);
    if (Status s = objection(*join); !s.ok()) return listener_.refuse(line, s);
    if (Status s = duplicate(*join); !s.ok()) {
      listener_.refuse(line, s);
      return give_up(s);
    }
    auto peer = make_peer(join->pid, join->host, join->server, std::move(said.fds), self_.control->bytes());
    if (!peer.ok()) return listener_.refuse(line, peer.status());
    member(line, *join, std::move(*peer));
  }

  /// Checks what can be checked on this host. World sizes, settings and ranks out of range are checked by
  /// rank 0, which notifies all ranks.
  Status objection(const wire::Join& join) const {
    if (join.job != options_.job) return {Reason::refused, "wrong-job: another job is gathered here"};
    if (join.rank >= wire::kMaxWorld)
      return {Reason::refused, fmt::format("rank-range: rank {} of {}", join.rank, join.world)};
    return {};
  }
  Status duplicate(const wire::Join& join) const {
    const int rank = static_cast<int>(join.rank);
    const auto guest = guests_.find(rank);
    if (rank != options_.rank && guest == guests_.end()) return {};
    const Peer& first = rank == options_.rank ? self_ : guest->second.peer;
    return Admission::twice(rank, first.host, first.pid, join.host, join.pid);
  }

  /// Rank 0 decides, because it alone knows whether the job has formed, and refuses all ranks.
  void give_up(const Status& why) { rendezvous_.give_up(own_, why); }

  void member(const Line& line, const wire::Join& join, Peer peer) {
    const int rank = static_cast<int>(join.rank);
    guests_[rank] = {line, std::move(peer)};
    MemberRecord member{rank,          join.pid,      join.host,   net_.options().host_id,
                        join.endpoint, join.settings, join.address};
    auto refused = [this, rank, alive = std::weak_ptr(alive_)](const Status& why) {
      if (alive.expired()) return;
      const auto it = guests_.find(rank);
      if (it == guests_.end()) return;
      listener_.refuse(it->second.line, why);
      guests_.erase(it);
    };
    rendezvous_.bring(std::move(member), std::move(refused), join.world);
    // A rank sends nothing until it has received the table: if its line becomes readable before, the
    // rank has ended.
    when_readable(*line, [this, rank, alive = std::weak_ptr(alive_)](error_code e) {
      if (!e && !alive.expired() && guests_.contains(rank)) rendezvous_.lost(rank);
    });
  }

  Result<Joined> use(const std::vector<MemberRecord>& table) {
    const std::size_t control_bytes = self_.control->bytes();
    std::vector<std::string> hosts;
    Joined joined;
    for (const MemberRecord& s : table) {
      auto host = std::find(hosts.begin(), hosts.end(), s.host_id);
      if (host == hosts.end()) host = hosts.insert(hosts.end(), s.host_id);
      const auto node = static_cast<std::uint32_t>(host - hosts.begin());
      if (s.rank == options_.rank) {
        joined.peers.push_back(std::move(self_));
      } else if (s.host_id == net_.options().host_id) {
        const auto guest = guests_.find(s.rank);
        if (guest == guests_.end())
          return Status(Reason::refused,
                        fmt::format("rank {} says that it is on this host, and is not", s.rank));
        joined.peers.push_back(std::move(guest->second.peer));
      } else {
        auto peer = make_remote(
            {static_cast<std::uint32_t>(s.rank), s.pid, s.host, "", node, s.endpoint, s.blob}, control_bytes);
        if (!peer.ok()) return peer.status();
        joined.peers.push_back(std::move(*peer));
      }
      joined.peers.back().node = static_cast<int>(node);
    }
    for (auto& [rank, guest] : guests_)
      if (!send_table(guest.line->native_handle(), joined.peers).ok())
        return Status(Failure{.reason = Reason::peer_dead,
                              .text = "it ended while the job was forming",
                              .rank = rank,
                              .detector = "socket"});
    joined.rendezvous = listener_.release();
    return joined;
  }

  const JoinOptions& options_;
  Network& net_;
  LocalListener listener_;
  Peer self_;
  const MemberRecord own_;
  HostRendezvous rendezvous_;
  std::map<int, Guest> guests_;
  Status outcome_;       // a failure, which is sent to ranks that arrive from now on
  std::set<int> ended_;  // ranks that have ended, as the launcher reports
  Clock::time_point next_call_{};
  // Callbacks may be called after the end of this object.
  std::shared_ptr<char> alive_ = std::make_shared<char>();
};

}  // namespace

Result<Joined> gather_host(const JoinOptions& options, Fd listener, Peer self) {
  Network& net = *options.network;
  RendezvousOptions how;
  how.identity = net.identity();
  how.place = net.rendezvous_place();
  how.self = {options.rank,   self.pid,         self.host,    net.options().host_id,
              net.endpoint(), options.settings, net.address()};
  how.deadline = options.deadline;
  how.late_after = options.late_after;
  auto rendezvous = HostRendezvous::open(net, std::move(how));
  if (!rendezvous.ok()) return rendezvous.status();
  HostRoot root(options, std::move(listener), std::move(self), std::move(*rendezvous));
  return root.run();
}

}  // namespace ouro::rt
