// The stream-ordered path: a flow as waits, kernels or copies, and writes of the stream. Slots lie in the
// receiver's device memory, the words that guard them are those of the group, each of which is in the memory
// of the GPU whose stream waits for it, where devices can. Used by the GPU executor.
#pragma once
#include <deque>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/flow/list.h"
#include "runtime/exec/gpu/gpu_arrivals.h"
#include "runtime/exec/gpu/gpu_team.h"
#include "runtime/exec/gpu/side_stream.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// Runs a flow over links by what streams can do themselves: nothing spins on a device.
class StreamPath {
 public:
  StreamPath(GpuTeam& team, GpuArrivals& arrivals) : team_(team), arrivals_(arrivals) {}
  ~StreamPath();
  StreamPath(const StreamPath&) = delete;
  StreamPath& operator=(const StreamPath&) = delete;

  /// `copies`: by the copy engines of the devices, through larger slots; see copies_algorithm.
  Status run(const Plan&, std::uint64_t seq, GpuStream&, bool capturing, bool copies);

 private:
  friend class StreamFlow;
  /// Slot i of the link from -> to, as this rank reaches it.
  Result<std::byte*> slot(int from, int to, std::size_t i);
  /// The same where a rank has one link to it, for copies.
  Result<std::byte*> copy_slot(int to, std::size_t i);
  std::size_t copy_slot_bytes() const;
  Status prepare_copies();
  /// Makes all that a flow of a collective needs. Before anything is enqueued: a driver may wait for all work
  /// of the process when it makes memory, that of ranks which are threads and wait for this one among it. So
  /// whichever of them is first makes it for all.
  Status prepare(const Operation&, flow::Algorithm);
  Result<std::byte*> inbound(int r);  ///< the slots of all links to rank r
  /// Memory of rank r that belongs to the group, as this rank reaches it.
  Result<std::byte*> block(std::uint64_t what, int r, std::size_t bytes);
  void drop(std::uint64_t what);

  /// Counts a call that enqueues. A device's queue holds about a thousand of them, and who finds it full
  /// waits in the driver, where other threads of the process wait for the same lock: the ranks that this one
  /// waits for among them. So where there are such ranks it waits here, before the queue is full.
  Status enqueued(const gpu::Stream&, bool capturing, int hops = 1);

  GpuTeam& team_;
  GpuArrivals& arrivals_;
  int calls_ = 0;                                    // since the last of these:
  std::deque<std::shared_ptr<PooledEvent>> passed_;  // points in the streams, that have not all been passed
  std::vector<std::byte*> slots_;  // by rank: where its inbound slots lie, as this rank reaches them
  std::vector<std::byte*> copy_slots_;
  SideStream beside_{team_.device, 0};  // for copies beside those to the next rank
  std::byte* scratch_ = nullptr;        // for accumulators
  std::set<std::tuple<Collective, flow::Algorithm, int>> prepared_;
};

}  // namespace ouro::rt
