// The stream-ordered path: a flow as waits, kernels and writes of the stream. Slots lie in the receiver's
// device memory, the words that guard them are those of the group. Used by the GPU executor.
#pragma once
#include <memory>
#include <vector>

#include "runtime/exec/gpu/gpu_arrivals.h"
#include "runtime/exec/gpu/gpu_team.h"

namespace ouro::rt {

/// Runs a flow over links by what streams can do themselves: nothing spins on a device.
class StreamPath {
 public:
  StreamPath(GpuTeam& team, GpuArrivals& arrivals) : team_(team), arrivals_(arrivals) {}
  ~StreamPath();
  StreamPath(const StreamPath&) = delete;
  StreamPath& operator=(const StreamPath&) = delete;

  Status run(const Plan&, std::uint64_t seq, GpuStream&, bool capturing);

 private:
  friend class StreamFlow;
  /// Slot i of the link from -> to, as this rank reaches it.
  Result<std::byte*> slot(int from, int to, std::size_t i);
  /// At least `bytes` of device memory for accumulators, which *at then names.
  Status scratch(std::size_t bytes, std::byte** at);

  GpuTeam& team_;
  GpuArrivals& arrivals_;
  std::vector<std::byte*> slots_;  // by rank: where its inbound slots lie, as this rank reaches them
  std::shared_ptr<transport::GpuBlock> scratch_;
};

}  // namespace ouro::rt
