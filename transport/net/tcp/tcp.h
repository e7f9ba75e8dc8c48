// The tcp fabric: frames of an exchange over TCP connections, several per peer, received directly into slots.
// Used by the runtime's network, which makes the connections and authenticates their other ends.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/core/fd.h"
#include "transport/net/fabric.h"
#include "transport/net/pipe.h"

namespace ouro::transport {

class TcpFabric final : public Fabric {
 public:
  struct Options {
    int world = 1;
    int connections = 1;  ///< to each peer
    bool checks = true;   ///< checksums of chunks
    /// All three are called under a lock of the fabric: they must only pass the event on.
    std::function<void(int peer)> need;  ///< there are links to a peer, but too few connections
    std::function<void(int peer, Status)>
        failed;  ///< the peer sent something invalid: data-corrupt, ring-corrupt
    std::function<void(int peer, std::string)> lost;  ///< a connection has ended; the text gives the reason
  };
  explicit TcpFabric(Options);
  ~TcpFabric() override;

  /// Takes over a non-blocking connection whose other end is authenticated as `peer`. With `tls` all data
  /// is encrypted.
  void adopt(int peer, Fd socket, const std::optional<TlsEnd>& tls = {});
  /// Number of connections to `peer` that are still missing.
  int wanted(int peer);

  const char* name() const override { return "tcp"; }
  Exchange& exchange() override;
  void progress() override;
  void rest(std::chrono::microseconds at_most) override;
  void kick(int peer) override;
  void moved(int peer, const NetLink::Move&) override;
  void drop(int peer) override;
  void sample(int peer, std::vector<TcpSample>* samples) override;
  void cut() override;

 private:
  void left() override;
  struct Engine;
  std::unique_ptr<Engine> engine_;
};

}  // namespace ouro::transport
