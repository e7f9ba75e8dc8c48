// Data lines: the connections of the tcp fabric to ranks on other hosts. Used by Network, on its thread.
#pragma once
#include <map>

#include "runtime/network/network_options.h"
#include "runtime/network/remote_peers.h"
#include "transport/net/tcp/tcp.h"

namespace ouro::rt {

/// Makes as many connections as the tcp fabric wants: of two ranks the higher dials, the other takes. A rank
/// to which none can be made for twice the time of silence is given up, although its control line lives.
class DataLines {
 public:
  DataLines(asio::io_context& io, const NetworkOptions& options, const Identity& identity, RemotePeers& peers,
            transport::TcpFabric& fabric)
      : io_(io), options_(options), identity_(identity), peers_(peers), fabric_(fabric) {}

  /// Dials, if that is this rank's part and the fabric still wants a connection.
  void dial_peer(int rank);
  /// A line that a peer has dialled.
  void take(RemotePeer& peer, Line line) { adopt(peer, std::move(line), false); }
  /// No line is made any more.
  void cut() { cut_ = true; }

 private:
  struct Dialing {
    bool now = false;                   // or soon
    Clock::time_point failing_since{};  // no connection could be made
    Clock::time_point due{};            // of the next one, were they kEach apart
  };
  void dial_later(int rank, Clock::time_point when);
  void adopt(RemotePeer&, Line, bool dialled);
  void dialled(int rank, Result<Line>);

  asio::io_context& io_;
  const NetworkOptions& options_;
  const Identity& identity_;
  RemotePeers& peers_;
  transport::TcpFabric& fabric_;
  std::map<int, Dialing> dialing_;  // by rank
  bool cut_ = false;
};

}  // namespace ouro::rt
