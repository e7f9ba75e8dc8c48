// The tcp fabric: frames of an exchange over TCP connections, several a peer, received straight into slots.
// Used by the runtime's network, which makes the connections and proves who is at their other ends.
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "runtime/core/fd.h"
#include "transport/net/fabric.h"
#include "transport/net/tls/pipe.h"

namespace ouro::transport {

class TcpFabric final : public Fabric {
 public:
  struct Options {
    int world = 1;
    int connections = 1;  ///< to each peer
    bool checks = true;   ///< checksums over chunks
    /// All three are called under a lock of the fabric's: they only hand on.
    std::function<void(int peer)> need;  ///< too few connections to a peer that there are links to
    std::function<void(int peer, Status)>
        failed;  ///< what came from there cannot be: data-corrupt, ring-corrupt
    std::function<void(int peer, std::string)> lost;  ///< a connection has ended; the text says how
  };
  explicit TcpFabric(Options);
  ~TcpFabric() override;

  /// A connection whose other end is known to be `peer`; non-blocking. With `tls` all of it is encrypted.
  void adopt(int peer, Fd socket, const std::optional<TlsEnd>& tls = {});
  /// Connections to `peer` that are still wanted.
  int wanted(int peer);

  const char* name() const override { return "tcp"; }
  Exchange& exchange() override;
  void progress() override;
  void rest(std::chrono::microseconds at_most) override;
  void kick(int peer) override;
  void moved(int peer, const NetLink::Move&) override;
  void drop(int peer) override;
  bool resends(int peer) override;
  void cut() override;

 private:
  void left() override;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ouro::transport
