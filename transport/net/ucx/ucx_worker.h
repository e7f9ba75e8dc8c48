// One UCX context with one worker, set up for frames as active messages. Used by the ucx fabric.
#pragma once
#include <string>
#include <vector>

#include "transport/net/ucx/ucx_api.h"

namespace ouro::transport {

/// The RDMA devices behind a network interface, in UCX's notation ("mlx5_0:1"), sorted: those with a port
/// that lists the interface below `root`.
std::vector<std::string> rdma_devices(const std::string& interface,
                                      const std::string& root = "/sys/class/infiniband");

class UcxWorker {
 public:
  static constexpr unsigned kFrame = 0;  ///< the identifier of ouro's active messages
  /// Payloads up to kEager are sent in one segment, without a rendezvous.
  static constexpr std::size_t kSegment = 256 << 10, kEager = kSegment - 1024;

  UcxWorker() = default;
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;
  ~UcxWorker();
  /// Leaves the worker to the end of the process: UCX 1.13 crashes when a worker is destroyed after some of
  /// its connections have been made anew, or while a peer connects to it.
  void abandon() { worker_ = nullptr, context_ = nullptr; }

  /// Whether UCX's transports for memory of CUDA are used as well, if it has them.
  enum class Cuda : std::uint8_t { never, beside_rdma, always };
  /// `take` is called with `arg` and each message. Uses RDMA if the interface `devices` has it, else TCP.
  /// Errors: unsupported, resource.
  Status open(int world, const std::string& devices, Cuda cuda, ucp_am_recv_callback_t take, void* arg);
  /// Whether RDMA is certain to be used: UCX's own variables may choose other transports.
  bool rdma() const { return rdma_; }
  /// Whether UCX reports that it takes memory of CUDA.
  bool takes_cuda() const;
  const UcxApi* operator->() const { return ucx_; }
  operator ucp_worker_h() const { return worker_; }
  std::string what(ucs_status_t s) const { return ucx_->ucs_status_string(s); }
  /// A descriptor that becomes readable when something has arrived, after arm().
  int events() const { return events_; }
  /// Returns false if there is something to process already.
  bool arm() { return ucx_->ucp_worker_arm(worker_) == UCS_OK; }
  bool progress() { return ucx_->ucp_worker_progress(worker_) != 0; }
  std::vector<std::uint8_t> address() const;

 private:
  Status failed(const char* call, ucs_status_t) const;
  Status make_context(int world, const std::string& transports, const std::string& devices);
  /// Replaces the context by one that also has transports for memory of CUDA, if that can be made.
  void add_cuda(int world, const std::string& transports, const std::string& devices);
  Status configure(ucp_config_t*, const std::string& transports, const std::string& devices) const;

  const UcxApi* ucx_ = nullptr;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int events_ = -1;
  bool rdma_ = false;
};

}  // namespace ouro::transport
