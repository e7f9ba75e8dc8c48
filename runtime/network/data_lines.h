// Data lines: the connections of the tcp fabric to ranks on other hosts. Used by Network, on its thread.
#pragma once
#include <map>

#include "runtime/network/network_options.h"
#include "runtime/network/remote_peers.h"
#include "transport/net/tcp/tcp.h"

namespace ouro::rt {

/// Makes as many connections as the tcp fabric wants: of two ranks the higher dials, the other accepts. A
/// rank to which none can be made for 2 * OURO_SILENT_FAIL is given up, even if its control line lives.
class DataLines {
 public:
  DataLines(asio::io_context& io, const NetworkOptions& options, const Identity& identity, RemotePeers& peers,
            transport::TcpFabric& fabric)
      : io_(io), options_(options), identity_(identity), peers_(peers), fabric_(fabric) {}

  /// Dials, if that is this rank's part and the fabric still wants a connection.
  void dial_peer(int rank);
  /// Takes a line that a peer has dialled.
  void take(RemotePeer& peer, Line line) { adopt(peer, std::move(line), false); }
  /// From now on no line is made.
  void cut() { cut_ = true; }

 private:
  struct Dialing {
    bool now = false;                   // dials now, or soon
    Clock::time_point failing_since{};  // no connection could be made since then
    Clock::time_point due{};            // when the next one would be due if they were kEach apart
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
