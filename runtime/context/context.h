// Context: one rank's membership in a job. Used by groups; the public handle is ouro::Context.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/context/core_share.h"
#include "runtime/context/faults.h"
#include "runtime/context/host_calibration.h"
#include "runtime/context/host_memory.h"
#include "runtime/context/own_records.h"
#include "runtime/context/peer_probe.h"
#include "runtime/core/fork.h"
#include "runtime/device_memory/device_memory.h"
#include "runtime/job/job_members.h"
#include "runtime/job/memory_requests.h"
#include "runtime/job/observers.h"
#include "runtime/network/network_options.h"
#include "runtime/plan/cost.h"
#include "runtime/plan/rules.h"

namespace ouro::rt {

// Not included: their headers include Boost.Asio, which takes longer to compile than all else here.
class Network;
class Watch;

/// Registered memory, of the host or of this rank's GPU: the exporter's side. Freed with the last handle.
class Allocation {
 public:
  Allocation(std::shared_ptr<class Context> owner, HostMemory::Registered memory)
      : owner_(std::move(owner)), id_(memory.id), segment_(std::move(memory.segment)) {}
  Allocation(std::shared_ptr<class Context> owner, std::uint64_t id, std::shared_ptr<GpuBlock> block)
      : owner_(std::move(owner)), id_(id), block_(std::move(block)) {}
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  std::byte* data() const { return block_ ? block_->data() : segment_->data(); }
  std::size_t bytes() const { return block_ ? block_->bytes() : segment_->bytes(); }
  const std::shared_ptr<SharedSegment>& segment() const { return segment_; }  ///< nullptr: memory of a GPU
  Device device() const { return block_ ? Device{Device::Kind::cuda, block_->device()} : Device{}; }

 private:
  std::shared_ptr<class Context> owner_;
  std::uint64_t id_;
  std::shared_ptr<SharedSegment> segment_;
  std::shared_ptr<GpuBlock> block_;
};

/// The registration of memory of this rank's GPU that the program allocated. The destructor ends it,
/// and does not wait for other processes.
class Registration {
 public:
  Registration(std::shared_ptr<class Context> owner, std::uint64_t number)
      : owner_(std::move(owner)), number_(number) {}
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  /// Ends the registration. If other processes may have opened the memory by a legacy handle, waits up to
  /// `patience` until they have closed it; with a patience of 0, asks them once. May be called again after an
  /// error. Not thread-safe.
  Status release(std::chrono::milliseconds patience);

 private:
  Status end();
  std::shared_ptr<class Context> owner_;
  std::uint64_t number_;             // 0: ended
  std::vector<std::uint64_t> open_;  // exports that other processes may have open
};

struct ContextSpec {
  JoinOptions join;
  int local_rank = 0, local_size = 1;
  int gpu = -1;        ///< this rank's device, or -1: none
  int gpu_blocks = 0;  ///< of a kernel that waits for others, at most; 0: no limit
  std::string gpu_path = "auto";
  std::size_t gpu_copy_bytes = std::size_t{256} << 20;  ///< OURO_GPU_COPY_BYTES
  std::size_t gpu_direct_bytes = 256 << 10;             ///< OURO_GPU_DIRECT_BYTES
  std::chrono::milliseconds deadline{600'000};
  bool deadline_chosen = false;                 ///< chosen by the user, not this default
  std::chrono::milliseconds silent_fail{5000};  ///< on this host; between hosts: NetworkOptions
  Numerics numerics = Numerics::fast;
  std::uint32_t slot_bytes = 128 << 10;  ///< per slot of a link
  std::size_t page_bytes = 0;            ///< per slot of a staging buffer; 0: depends on the number of ranks
  Rules rules = built_in_rules();
  CalibrationMode calibration;
  std::optional<NetworkOptions>
      network;                ///< only for a job on several hosts; rank, world and job are taken from `join`
  std::vector<Fault> faults;  ///< those of all ranks
  std::optional<std::chrono::microseconds> spin;  ///< unset: 50 us if every local rank can have a core
};

/// One rank's membership in a job: it joins, leaves, and owns this rank's parts of the job. Code that needs
/// only one part takes that part.
class Context : public std::enable_shared_from_this<Context> {
 public:
  static Result<std::shared_ptr<Context>> create(const ContextSpec&);
  /// Loads the kernels on a device, as create() does. Errors: unsupported (the build has no code for it),
  /// those of the device.
  static Status load_gpu(int device);
  ~Context();

  int rank() const { return spec_.join.rank; }
  int size() const { return spec_.join.world; }
  const ContextSpec& spec() const { return spec_; }

  JobMembers& members() { return members_; }
  const JobMembers& members() const { return members_; }
  Observers& observers() { return observers_; }
  OwnRecords& records() { return records_; }
  const CoreShare& cores() const { return *cores_; }
  CoreShare& cores() { return *cores_; }
  /// The record of this host, the same on all of its ranks.
  const Calibration& calibration() const { return calibration_; }
  CostRows& cost_rows() const { return cost_rows_; }
  PeerProbes& probes() { return probes_; }
  HostMemory& host_memory() { return host_memory_; }
  const HostMemory& host_memory() const { return host_memory_; }
  DeviceMemory& device_memory() { return device_memory_; }
  /// The faults that this rank causes to itself (OURO_FAULT); nullptr: none.
  Faults* faults() const { return faults_.get(); }
  /// The network between hosts; nullptr if all ranks are on this one.
  Network* network() const { return network_.get(); }

  /// `forked` in a child of the process that joined, `revoked` after close.
  Status usable() const;
  /// The same without the reason; costs two loads.
  bool ready() const { return !inherited() && active(); }
  /// Whether this is a forked child's copy: its threads do not run here, and its locks may be held forever.
  bool inherited() const { return forks_ != forks(); }
  bool active() const { return !closed_.load(std::memory_order_acquire); }
  /// Waits until others have taken what was sent to them, at most until the deadline of the context.
  void close();
  /// The same for destructors, which wait two seconds.
  void leave();

  /// Call after changing something on this rank's page that others wait for: ranks on other hosts are
  /// notified at once.
  void notify_other_hosts();
  /// Errors: those of usable(), invalid (the size, or not this rank's GPU), resource.
  Result<std::shared_ptr<Allocation>> allocate(std::size_t bytes, Device = {});
  /// Errors: those of usable() and of DeviceMemory::register_range, invalid (no bytes, or not this rank's
  /// GPU), unsupported (memory of the host).
  Result<std::shared_ptr<Registration>> register_memory(const void* data, std::size_t bytes, Device);

 private:
  Context(ContextSpec, std::vector<Peer>, std::unique_ptr<Network>, std::unique_ptr<Faults>);
  void start_network();
  void close(std::chrono::milliseconds linger);
  /// Serves a peer's request; called on the watch thread.
  Status serve(int line, const wire::Fetch&, std::span<const Fd> given);

  const ContextSpec spec_;
  const unsigned forks_ = forks();
  std::atomic<bool> closed_{false};
  JobMembers members_;
  Observers observers_;
  OwnRecords records_;
  MemoryRequests requests_;
  HostMemory host_memory_;
  DeviceMemory device_memory_;
  const std::unique_ptr<Faults> faults_;
  std::optional<CoreShare> cores_;  // set once the pages are complete, like calibration_
  Calibration calibration_{};
  mutable CostRows cost_rows_;
  PeerProbes probes_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Watch> watch_;  // last, so that it stops first: its thread uses all members above
};

}  // namespace ouro::rt
