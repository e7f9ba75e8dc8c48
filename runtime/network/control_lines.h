// Control lines: signs of life of the ranks on other hosts, and changes of control pages both ways. Used by
// Network, on its thread.
#pragma once
#include <atomic>
#include <functional>
#include <string>

#include "runtime/health/replica.h"
#include "runtime/network/host_watch.h"
#include "runtime/network/network_options.h"
#include "runtime/network/remote_peers.h"

namespace ouro::rt {

/// One authenticated line to each rank of another host. It carries a heartbeat and the changes of this rank's
/// control page; what others send is applied to the replicas of their pages. A rank is given up when it has
/// been silent for too long, or when nothing or another program listens where it did. A path may pass small
/// packets and drop large ones, which carry the data. So signs of life fill a packet if data is being
/// retransmitted or a sign of life is missing, and on a line that follows another.
class ControlLines {
 public:
  struct Events {
    std::function<void()> news;       ///< a replica has changed
    std::function<void(int)> fenced;  ///< the given rank continues without this one
  };
  /// `interface` is the one through which this host reaches the others, for the error when it is down; "" if
  /// not known. `mine`: the page whose changes are sent.
  ControlLines(asio::io_context&, const NetworkOptions&, const Identity&, std::string interface, RemotePeers&,
               transport::Exchange&, const ControlPage& mine, Events);
  /// Dials the ranks below this one; the others dial.
  void start();
  /// Sends a heartbeat now, and one every 250 ms from then on.
  void beat();
  /// Takes a line that a peer has dialled.
  void take(RemotePeer& peer, Line line) { adopt(peer, std::move(line), false); }
  /// Called when the others have agreed to continue without a rank. It is notified now, if it has a line, and
  /// whenever it connects again.
  void fence(RemotePeer& peer);
  /// From now on nothing is sent or received, and no rank is dialled.
  void cut() { cut_ = true; }
  /// Requests that the changes of the page be sent soon. Thread-safe.
  void kick();
  /// Whether there has been a line to each rank that is still there: without one, a rank is not notified when
  /// this one leaves.
  bool met_all() const;
  /// The state of the network path to each other host, as of the last heartbeat.
  const HostWatch& hosts() const { return hosts_; }
  /// Sends the last changes and ends all lines. Called repeatedly; true once everything has arrived.
  bool say_goodbye();

 private:
  void dial_peer(RemotePeer&);
  void adopt(RemotePeer&, Line, bool dialled);
  void hung_up(RemotePeer&, const std::shared_ptr<FrameStream>&, const Status& how);
  void on_frame(RemotePeer&, const wire::NetFrame&);
  void judge_silence(RemotePeer&, Clock::time_point now);
  void send_changes();

  asio::io_context& io_;
  const NetworkOptions& options_;
  const Identity& identity_;
  const std::string interface_;
  RemotePeers& peers_;
  HostWatch hosts_;
  transport::Exchange& exchange_;
  ReplicaPublisher publisher_;
  const Events events_;
  asio::steady_timer timer_;
  Clock::time_point last_beat_{};
  std::atomic<bool> kicked_{false};
  bool cut_ = false;
};

}  // namespace ouro::rt
