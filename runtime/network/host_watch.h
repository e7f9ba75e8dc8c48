// Watches the network path to each other host, over all connections of this rank to the ranks there. It warns
// about lost packets, and lists the hosts to which data moves slowly, for messages about late operations.
// Used by ControlLines.
#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/network/remote_peers.h"
#include "runtime/network/tcp_watch.h"

namespace ouro::rt {

/// A host to which data moves slowly.
struct SlowHost {
  std::string host;        ///< "10.0.0.7"
  std::vector<int> ranks;  ///< the job's ranks on that host
  RateWatch::Slow what;
  std::string text() const;
};

class HostWatch {
 public:
  /// Takes the changes of all peers' connections. Called with each heartbeat, on the network thread. Warns
  /// about a host to which packets are lost, and repeats the warning as Repeat allows.
  void take(RemotePeers&, Clock::time_point now);
  /// The slow hosts, as of the last heartbeat. Thread-safe; a single load if there is none.
  std::vector<SlowHost> slow() const;

 private:
  struct Host {
    std::vector<int> ranks;
    std::vector<TcpChange> all;       // since the last heartbeat
    std::vector<TcpChange> answered;  // of these, those of ranks that are not silent
    LossWatch loss;
    RateWatch rate;
    Repeat said;
  };
  std::map<std::string, Host, std::less<>> hosts_;
  std::atomic<bool> any_slow_{false};
  mutable std::mutex mutex_;
  std::vector<SlowHost> slow_;
};

}  // namespace ouro::rt
