// Control lines: signs of life of the ranks on other hosts, and news of control pages both ways. Used by
// Network, on its thread.
#pragma once
#include <atomic>
#include <functional>
#include <string>

#include "runtime/health/replica.h"
#include "runtime/network/network_options.h"
#include "runtime/network/remote_peers.h"

namespace ouro::rt {

/// One authenticated line to each rank of another host. A heartbeat runs over it, what changes on this rank's
/// control page is sent, and what others send is applied to the replicas of theirs. A rank is given up when
/// its silence has lasted too long, or when nobody or somebody else listens where it did. A path may let
/// small packets through and swallow large ones, of which data is made: where data is sent again or a sign of
/// life is missed, and on a line that follows another, signs of life fill a packet.
class ControlLines {
 public:
  struct Events {
    std::function<void()> news;       ///< a replica has changed
    std::function<void(int)> fenced;  ///< this rank has gone on without us
  };
  /// `interface`: by which this host reaches the others, for what is said when it is down; "" if not known.
  /// `mine`: the page that the others hear of.
  ControlLines(asio::io_context&, const NetworkOptions&, const Identity&, std::string interface, RemotePeers&,
               transport::Exchange&, const ControlPage& mine, Events);
  /// Dials the ranks below this one; the others dial.
  void start();
  /// One heartbeat now, and one each 250 ms from then on.
  void beat();
  /// A line that a peer has dialled.
  void take(RemotePeer& peer, Line line) { adopt(peer, std::move(line), false); }
  /// The others have agreed to go on without it: it is told so, now if it has a line, and whenever it comes
  /// back.
  void fence(RemotePeer& peer);
  /// From now on nothing is said or heard, and nobody is dialled.
  void cut() { cut_ = true; }
  /// From any thread: something on the page should be known to others soon.
  void kick();
  /// Whether there has been a line to each rank that is still there: nobody else hears how this one leaves.
  bool met_all() const;
  /// The last news and the end of all lines, called again and again; true once all has arrived.
  bool say_goodbye();

 private:
  void dial_peer(RemotePeer&);
  void adopt(RemotePeer&, Line, bool dialled);
  void hung_up(RemotePeer&, const std::shared_ptr<FrameStream>&, const Status& how);
  void heard(RemotePeer&, const wire::NetFrame&);
  void judge_silence(RemotePeer&, Clock::time_point now);
  void tell();

  asio::io_context& io_;
  const NetworkOptions& options_;
  const Identity& identity_;
  const std::string interface_;
  RemotePeers& peers_;
  transport::Exchange& exchange_;
  ReplicaPublisher publisher_;
  const Events events_;
  asio::steady_timer timer_;
  Clock::time_point last_beat_{};
  std::atomic<bool> kicked_{false};
  bool cut_ = false;
};

}  // namespace ouro::rt
