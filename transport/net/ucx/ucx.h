// The ucx fabric: frames of an exchange as active messages of UCX, for clusters whose network is trusted,
// because UCX does not authenticate peers. Used by the runtime's network, which exchanges the addresses.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "transport/net/fabric.h"

namespace ouro::transport {

/// Loads UCX and checks that this build and this machine have it. Errors: unsupported.
Status ucx_usable();

/// Connects by itself when it sends the first frame to a peer.
class UcxFabric : public Fabric {
 public:
  struct Options {
    int rank = 0, world = 1;
    bool checks = false;  ///< checksums of chunks
    std::string
        devices;  ///< interfaces to use, in the format of UCX_NET_DEVICES, which takes precedence; "": all
    /// A connection that ends is made anew, and no data is lost; whether the peer is alive is decided
    /// elsewhere. If no connection can be made for this long, the peer has failed.
    std::chrono::milliseconds patience{10'000};
    /// Called once per peer, under a lock of the fabric: it must only pass the event on. link-lost: it cannot
    /// be connected; data-corrupt, ring-corrupt: it sent something invalid; peer-unresponsive: it did not
    /// take data whose owner wants its memory back. No data moves to or from the peer any more.
    std::function<void(int peer, Status)> failed;
  };
  /// Errors: unsupported (a build or a machine without UCX), resource.
  static Result<std::unique_ptr<UcxFabric>> create(Options);
  const char* name() const final { return "ucx"; }
};

}  // namespace ouro::transport
