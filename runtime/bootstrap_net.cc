// Joining over several hosts: the first rank of a host gathers its ranks and brings them to the rendezvous;
// rank 0, which leads its host, serves it. See bootstrap.h.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <optional>

#include "runtime/bootstrap_parts.h"
#include "runtime/core/log.h"
#include "runtime/local_socket.h"
#include "runtime/network.h"
#include "runtime/rendezvous.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;

/// The two ends of the rendezvous, seen from the first rank of a host.
class Meeting {
 public:
  static Result<Meeting> open(Network& net, RendezvousOptions options) {
    Meeting m;
    if (options.identity.rank == 0) {
      auto server = RendezvousServer::open(net.io(), std::move(options));
      if (!server.ok()) return server.status();
      m.server_ = std::move(*server);
    } else {
      NetSeat own = options.self;
      m.client_ = std::make_shared<RendezvousClient>(net.io(), std::move(options));
      m.client_->bring(std::move(own));
    }
    return m;
  }
  void bring(NetSeat seat, std::function<void(Status)> refused) {
    if (server_)
      server_->bring(std::move(seat), std::move(refused));
    else
      client_->bring(std::move(seat), std::move(refused));
  }
  void lost(int rank) { server_ ? server_->lost(rank) : client_->lost(rank); }
  void async_table(TableCallback f) {
    if (server_)
      server_->async_table(std::move(f));
    else
      client_->async_table(std::move(f));
  }
  /// It outlives the joining, as the network's affair.
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

class HostHub {
 public:
  HostHub(const JoinOptions& options, Fd listener, Peer self, Meeting meeting)
      : options_(options),
        net_(*options.network),
        listener_(net_.io(), dup(listener.get())),
        listener_fd_(std::move(listener)),
        self_(std::move(self)),
        meeting_(std::move(meeting)) {}

  Result<Joined> run() {
    meeting_.hand_to(net_);
    accept();
    std::optional<Result<std::vector<NetSeat>>> table;
    meeting_.async_table([&](Result<std::vector<NetSeat>> t) { table.emplace(std::move(t)); });
    // The rendezvous has the deadline; a little patience beyond it, should its answer be on its way.
    const auto end = Clock::now() + options_.deadline + 2 * kFirstFrame;
    while (!table && Clock::now() < end) net_.io().run_one_for(100ms);
    error_code ignored;
    listener_.close(ignored);
    if (!table) table.emplace(Status(Reason::never_joined, "the rendezvous did not answer in time"));
    auto joined = table->ok() ? use(**table) : Result<Joined>(table->status());
    if (!joined.ok())
      for (auto& [rank, guest] : guests_) refuse(*guest.line, joined.status());
    return joined;
  }

 private:
  using Descriptor = asio::posix::stream_descriptor;
  struct Guest {
    std::shared_ptr<Descriptor> line;
    Peer peer;
  };

  void accept() {
    listener_.async_wait(Descriptor::wait_read, [this](error_code e) {
      if (e) return;
      for (int i = 0; i < 64; ++i) {
        const int fd = accept4(listener_fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) break;
        hear(std::make_shared<Descriptor>(net_.io(), fd));
      }
      accept();
    });
  }

  void refuse(Descriptor& line, const Status& why) {
    (void)send_frame(line.native_handle(),
                     wire::Refuse{why.reason(), why.failure()->rank, why.failure()->text})
        .ok();
  }

  void hear(std::shared_ptr<Descriptor> line) {
    if (Status s = check_peer(line->native_handle()); !s.ok()) return refuse(*line, s);
    auto timer = std::make_shared<asio::steady_timer>(net_.io(), kFirstFrame);
    timer->async_wait([line](error_code e) {
      if (!e) line->cancel();
    });
    when_readable(*line, [this, line, timer, alive = std::weak_ptr(alive_)](error_code e) {
      timer->cancel();
      if (e || alive.expired()) return;
      auto incoming = recv_frame(line->native_handle(), Clock::now());
      if (!incoming.ok()) return refuse(*line, incoming.status());
      auto* join = std::get_if<wire::Join>(&incoming->frame);
      if (!join) return refuse(*line, Status(Reason::refused, "the first frame was not a request to join"));
      seat(line, *join, std::move(incoming->fds));
    });
  }

  void seat(const std::shared_ptr<Descriptor>& line, wire::Join& join, std::vector<Fd> fds) {
    const int rank = static_cast<int>(join.rank);
    if (join.job != options_.job || join.world != static_cast<std::uint32_t>(options_.world) ||
        join.rank >= join.world || rank == options_.rank || guests_.contains(rank))
      return refuse(
          *line, Status(Reason::refused,
                        fmt::format("rank {} of {} on a host of a job of {} ranks whose first rank here is "
                                    "{} (pid {}): duplicate-rank, rank-range or another world size",
                                    join.rank, join.world, options_.world, options_.rank, self_.pid)));
    auto peer = make_peer(join.pid, join.host, join.server, std::move(fds), self_.control->bytes());
    if (!peer.ok()) return refuse(*line, peer.status());
    NetSeat seat{rank,          join.pid,      join.host,   net_.options().host_id,
                 join.endpoint, join.settings, join.address};
    guests_[rank] = {line, std::move(*peer)};
    meeting_.bring(std::move(seat), [this, rank, alive = std::weak_ptr(alive_)](Status why) {
      if (alive.expired()) return;
      const auto it = guests_.find(rank);
      if (it == guests_.end()) return;
      refuse(*it->second.line, why);
      guests_.erase(it);
    });
    // Until the table goes out a rank has nothing to say: what comes now is its end.
    when_readable(*line, [this, rank, alive = std::weak_ptr(alive_)](error_code e) {
      if (!e && !alive.expired() && guests_.contains(rank)) meeting_.lost(rank);
    });
  }

  Result<Joined> use(const std::vector<NetSeat>& table) {
    const std::size_t control_bytes = self_.control->bytes();
    std::vector<std::string> hosts;
    Joined joined;
    for (const NetSeat& s : table) {
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
      if (!send_table(guest.line->native_handle(), joined.peers, options_.rank).ok())
        return Status(Failure{.reason = Reason::peer_dead,
                              .text = "it ended while the job was forming",
                              .rank = rank,
                              .detector = "socket"});
    joined.rendezvous = std::move(listener_fd_);
    return joined;
  }

  const JoinOptions& options_;
  Network& net_;
  Descriptor listener_;
  Fd listener_fd_;
  Peer self_;
  Meeting meeting_;
  std::map<int, Guest> guests_;
  std::shared_ptr<char> alive_ =
      std::make_shared<char>();  // what is still to be called may come after this object
};

}  // namespace

Result<Joined> gather_host(const JoinOptions& options, Fd listener, Peer self) {
  Network& net = *options.network;
  RendezvousOptions meet;
  meet.identity = net.identity();
  meet.place = net.meeting_place();
  meet.self = {options.rank,   self.pid,         self.host,    net.options().host_id,
               net.endpoint(), options.settings, net.address()};
  meet.deadline = options.deadline;
  meet.late_after = options.late_after;
  auto meeting = Meeting::open(net, std::move(meet));
  if (!meeting.ok()) return meeting.status();
  HostHub hub(options, std::move(listener), std::move(self), std::move(*meeting));
  return hub.run();
}

}  // namespace ouro::rt
