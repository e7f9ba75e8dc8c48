// RemotePeers: the state of the ranks on other hosts as this rank knows it, and which of them it has given
// up. Used by the parts of Network, on its thread.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/health/control_page.h"
#include "runtime/network/frame_stream.h"
#include "runtime/network/lost_rank.h"
#include "runtime/network/tcp_watch.h"
#include "transport/net/fabric.h"

namespace ouro::rt {

/// A rank of another host, as in the table of the job.
struct RemoteRank {
  int rank = 0;
  std::string endpoint;         ///< where it listens
  wire::Bytes address;          ///< of its fabric
  ControlPage* copy = nullptr;  ///< the replica of its page here
};

/// Successive attempts to connect to one rank. Each may take longer than the failed one before it, for
/// slow paths.
class DialAttempts {
 public:
  /// Returns when the next attempt is given up; none takes longer than `longest`, or 20 s if that is more.
  Clock::time_point end(std::chrono::milliseconds longest) const;
  /// Records the outcome of an attempt. `who`: for the log; a lack of resources here causes one warning.
  void note(const Status& outcome, const std::string& who);
  const std::string& last_failure() const { return last_failure_; }  ///< "" after a success

 private:
  int failed_ = 0;
  std::string last_failure_;
};

/// One rank of another host: its control lines and its signs of life.
struct RemotePeer {
  RemoteRank remote;
  std::vector<std::shared_ptr<FrameStream>> lines;  ///< control lines; all are read, the newest is written to
  Clock::time_point last_received{};
  bool spoke = false;  ///< something has arrived since the rank started: from then on its silence counts
  bool lost = false, fenced = false, dialing = false;
  bool met = false;                ///< there has been a line to it
  std::uint64_t newest = 0;        ///< order of its newest note
  TcpChanges connections;          ///< control lines and data connections
  std::vector<TcpChange> changes;  ///< of the connections, as of the last heartbeat
  SilenceWatch silence;
  std::set<Way> said;    ///< the verdicts that warnings about the current silence have reported
  bool resends = false;  ///< data is being retransmitted, for want of acknowledgements
  DialAttempts attempts;
  std::string who() const;        ///< "rank 3 (10.0.0.7:4711)"
  std::string_view host() const;  ///< "10.0.0.7"
  ContextState state() const { return static_cast<ContextState>(remote.copy->state.get()); }
  bool closed() const { return state() == ContextState::closed; }
};

/// All ranks of other hosts, and the only place where one of them is given up. Losses that occur together are
/// reported together.
class RemotePeers {
 public:
  RemotePeers(asio::io_context& io, transport::Fabric& fabric) : fabric_(fabric), gather_(io) {}

  void add(RemoteRank);
  void when_lost(std::function<void(std::vector<LostRank>)> report) { report_ = std::move(report); }
  /// nullptr: the rank is on this host, or not in the job.
  RemotePeer* peer_of(int rank);
  std::map<int, std::unique_ptr<RemotePeer>>& all() { return peers_; }
  /// Gives a rank up, for good: its lines are closed and its data is dropped.
  void lose(int rank, Reason, std::string text, std::string detector);
  /// Takes samples of all connections to ranks that are still there. Called with each heartbeat.
  void sample(Clock::time_point now);
  /// Hosts to which data is being retransmitted, for want of acknowledgements; views into the
  /// peers' endpoints.
  std::set<std::string_view> unanswered();
  /// Handles a failure that the fabric has found, unless the rank has left in good order, which also
  /// ends connections.
  void fabric_failed(int rank, const Status& why);

 private:
  transport::Fabric& fabric_;
  std::map<int, std::unique_ptr<RemotePeer>> peers_;
  std::function<void(std::vector<LostRank>)> report_;
  std::vector<LostRank> losses_;
  asio::steady_timer gather_;
};

}  // namespace ouro::rt
