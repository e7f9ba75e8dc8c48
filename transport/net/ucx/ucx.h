// The ucx fabric: frames of an exchange as active messages of UCX, for clusters whose network is trusted: UCX
// proves nothing about who reaches its ports. Used by the runtime's network, which carries the addresses.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "transport/net/fabric.h"

namespace ouro::transport {

/// Whether this build and this machine have UCX, which is loaded. Errors: unsupported.
Status ucx_usable();

/// Connects by itself, with the first frame to a peer.
class UcxFabric : public Fabric {
 public:
  struct Options {
    int rank = 0, world = 1;
    bool checks = false;  ///< checksums over chunks
    std::string devices;  ///< interfaces to use, as UCX_NET_DEVICES, which goes before it; "": all
    /// A connection that ends is made anew, and nothing is lost: whether a peer lives is for others to say.
    /// If none can be made for so long, the peer has failed.
    std::chrono::milliseconds patience{10'000};
    /// Called once a peer, under a lock of the fabric's: it only hands on. link-lost: it cannot be connected;
    /// data-corrupt, ring-corrupt: what it sent cannot be; peer-unresponsive: it did not take what its owner
    /// wants back. Nothing moves to or from it any more.
    std::function<void(int peer, Status)> failed;
  };
  /// Errors: unsupported (a build or a machine without UCX), resource.
  static Result<std::unique_ptr<UcxFabric>> create(Options);
  const char* name() const final { return "ucx"; }
};

}  // namespace ouro::transport
