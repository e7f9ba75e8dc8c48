// The ucx fabric: frames of an exchange as active messages of UCX, for clusters whose network is trusted,
// because UCX does not authenticate peers. Used by the runtime's network, which exchanges the addresses.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "transport/net/fabric.h"

namespace ouro::transport {

/// Loads UCX and checks that this build and this machine have it. Errors: unsupported.
Status ucx_usable();

/// Whether memory of this process's device is handed to UCX. automatic: if UCX takes it and RDMA can carry it
/// (over TCP UCX would copy it through the host itself), or the device is emulated.
enum class HandsOver : std::uint8_t { never, automatic, always };

/// What decides whether memory of a device is handed to UCX.
struct DeviceQuery {
  HandsOver wanted = HandsOver::automatic;
  bool device = false;    ///< this rank has one
  bool emulated = false;  ///< its memory is memory of the host
  bool rdma = false;      ///< the worker has a transport by RDMA
  bool cuda = false;      ///< UCX reports that it takes memory of CUDA
  Status flush = {};      ///< of Gpu::flush_arrivals
};
/// Errors: unsupported, with the reason why memory of the device is copied through the host.
Status hands_over(const DeviceQuery&);

/// Connects by itself when it sends the first frame to a peer.
class UcxFabric : public Fabric {
 public:
  struct Options {
    int rank = 0, world = 1;
    bool checks = false;                          ///< checksums of chunks
    int device = -1;                              ///< the GPU of this rank, or -1
    HandsOver hands_over = HandsOver::automatic;  ///< memory of that GPU
    /// Replaces, in tests, UCX's answer whether it takes memory of the GPU.
    std::function<bool()> takes = {};
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
  /// Errors: unsupported (a build or a machine without UCX; HandsOver::always where UCX does not take memory
  /// of the GPU), resource.
  static Result<std::unique_ptr<UcxFabric>> create(Options);
  const char* name() const final { return "ucx"; }
  /// The reason why memory of this rank's GPU is not handed to UCX; ok if it is, to peers that do the same.
  virtual const Status& device_ability() const = 0;
  /// Payload bytes of all chunks that were sent from, and received in, memory of a device.
  virtual std::uint64_t device_bytes_sent() const = 0;
  virtual std::uint64_t device_bytes_received() const = 0;
};

}  // namespace ouro::transport
