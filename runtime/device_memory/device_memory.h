// Memory of GPUs between the ranks of a host, the centre of this room. Used by Context and the GPU executors.
//
// For each kind of memory: its owner, what an importer holds, who uses it, and when it ends.
//
// - Context::alloc. Owner: the Allocation and its export share a GpuBlock. Import: a mapping by
//   descriptor. Users: operations that name it. End: its export ends when the process is idle after the
//   Allocation was destroyed; the memory is freed when the last process has unmapped it.
//
// - Block of a group. Owner: GroupBlocks. Import: a mapping by descriptor, until the importer's part of
//   the group is destroyed. Users: streams and kernels of the group. End: drop_group_block, then as above.
//
// - Stand-in or scratch memory. Owner: a path of the GPU executor, which exports the GpuBlock. Import: a
//   mapping by descriptor. Users: operations of the group. End: with the group, then as above.
//
// - Registered memory of cuMemMap. Owner: the program; the export retains the pieces. Import: a mapping
//   of all pieces. Users: operations that name it, and the program. End: the program may unmap it at any
//   time; it is freed after the export and the last mapping have ended.
//
// - Registered memory of cudaMalloc. Owner: the program. Import: a mapping by legacy handle. Users: the
//   same. End: the program may free it when await_closed has returned ok: then no process maps it.
//
// - Other memory of cudaMalloc. Owner: the program. Import: a mapping by legacy handle, of an export
//   that the leader's path makes on first use. Users: operations of that path. End: the program frees it
//   at any time; a later call detects that and ends the export.
//
// - Multicast object. Owner: the GpuMulticast of each rank, which binds a GpuBlock. Import: the object's
//   descriptor. Users: resident kernels, once all ranks have bound memory. End: with the last part.
//
// - Pinned segment. Owner: the results of pin_segment, which share one pin. Import: each process maps
//   and pins the segment itself. Users: hosts, streams and kernels. End: with the last result.
//
// CUDA keeps memory that is mapped by descriptor until the last mapping ends. It does not keep memory
// that is mapped by legacy handle. Ranks of one process import nothing: they use addresses, and a
// shared_ptr keeps blocks. What a driver may wait for is freed, unmapped and unpinned when the process
// is idle (deferred_free.h).
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"
#include "runtime/core/wait.h"
#include "runtime/device_memory/deferred_free.h"
#include "runtime/device_memory/export_handles.h"
#include "runtime/device_memory/gpu_exports.h"
#include "runtime/device_memory/gpu_imports.h"
#include "runtime/device_memory/group_blocks.h"
#include "runtime/device_memory/multicast_objects.h"
#include "runtime/device_memory/peer_imports.h"
#include "runtime/job/job_members.h"
#include "runtime/job/memory_requests.h"
#include "runtime/job/observers.h"

namespace ouro::rt {

/// One rank's part in the device memory that the ranks of a host share: its exports, its imports, the blocks
/// that it provides to groups, and its parts in multicast objects. Thread-safe.
class DeviceMemory final : public DeviceObserver {
 public:
  /// `device`: this rank's GPU, or -1.
  DeviceMemory(JobMembers&, const MemoryRequests&, int device);
  /// Fills in the record that a rank publishes about its GPU: which one it is, and which others it can map.
  /// Errors: invalid (no such device), those of the device.
  static Status survey(int device, GpuRecord*);

  const GpuRecord& record(int r) const { return members_.page(r).gpu; }
  const JobMembers& members() const { return members_; }
  GpuExports& exports() { return exports_; }
  PeerImports& imports() { return imports_; }
  MulticastObjects& multicasts() { return multicasts_; }

  /// Returns the local address of device memory of rank r of the job; for ranks of this process this is the
  /// memory's own address. It is valid for operations that are on the device (OperationOnDevice) now, and
  /// beyond them as long as `keep` lives.
  Result<GpuImports::Mapped> resolve_ref(int r, const GpuRef&, std::size_t bytes);

  /// Allocates memory of this rank's GPU, after it has freed everything that can be freed now. Errors:
  /// those of GpuBlock::create.
  Result<std::shared_ptr<GpuBlock>> make_block(std::size_t bytes);
  struct BlockAt {
    std::byte* data;             ///< an address of this rank
    std::shared_ptr<void> keep;  ///< the memory lives at least as long, and stays mapped
  };
  /// Returns the block `key` of rank r's device memory, which is made there on first demand.
  Result<BlockAt> group_block(int r, std::uint64_t key, std::size_t bytes);
  void drop_group_block(std::uint64_t key);

  /// Registers memory of this rank's GPU that the program allocated. Returns the number of the registration.
  /// Errors: those of GpuExports::register_range.
  Result<std::uint64_t> register_range(const void* p, std::size_t bytes);
  /// Ends a registration. Returns the exports that other processes may have open by a legacy handle, which
  /// they must close before the program frees the memory (await_closed).
  Result<std::vector<std::uint64_t>> deregister(std::uint64_t registration);
  /// Waits until these exports have ended and no other process has one open; removes the closed ones from the
  /// list. With a timeout of 0, asks each peer once. A query can take 100 ms and may overrun the timeout.
  /// Error deadline: a rank, which the text names, has one open or has not answered.
  Status await_closed(std::vector<std::uint64_t>* ids, std::chrono::milliseconds timeout);

  /// Lets other ranks of this process find this one. Must be withdrawn before this is destroyed.
  void publish_in_process();
  void withdraw_in_process();
  /// Releases imports whose exports have ended since the last call; called on the watch thread.
  void poll_device() override;
  /// Answers a peer's request; called on the watch thread.
  Status serve(int line, const wire::Fetch&, std::span<const Fd> given);
  /// Called before the context closes. Maps nothing from now on (revoked), and releases all mappings of other
  /// processes' exports, except those that an owner keeps for a graph. They are unmapped when the process is
  /// idle (free_when_idle); the control page says how many are left.
  void close();

 private:
  Result<GroupBlocks::Exported> own_block(std::uint64_t key, std::size_t bytes);
  /// Returns ok if export `id` has ended and rank r does not have it open: the rank says so, is of
  /// this process, has no GPU, has left, or has died. For this rank itself: if the export has
  /// ended. Error deadline.
  Status closed_by(int r, std::uint64_t id, Clock::time_point until);

  JobMembers& members_;
  const MemoryRequests& requests_;
  const int device_;
  GpuExports exports_;
  PeerImports imports_;
  GroupBlocks blocks_;
  MulticastObjects multicasts_;
  const std::shared_ptr<DeferredFreeThread> free_thread_;  // last: it may free memory of the members above
};

}  // namespace ouro::rt
