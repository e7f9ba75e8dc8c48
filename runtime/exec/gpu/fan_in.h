// What ranks that are threads of one process share on the leader's path: events by which their streams notify
// the leader's that they have reached an operation, and the stream in which it launches.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/exec/gpu/gpu_words.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// The events of a group, all of whose ranks are in this process: of each rank, one for each operation that
/// it may be ahead. They live as long as one rank of the group, so none is recorded for something else while
/// the leader may still wait for it. Not in a capture: an event of one capture cannot be waited for
/// in another.
class FanIn {
 public:
  /// The one of a group, whose ranks share it and `device`. Each of them holds the words as long as this.
  static Result<std::shared_ptr<FanIn>> of(const GpuWords&, int ranks, int device);
  FanIn(int ranks, std::shared_ptr<GpuStream> launches)
      : events_(static_cast<std::size_t>(ranks * GpuWords::kArrivals)), launches_(std::move(launches)) {}

  /// The stream in which the leader launches, of high priority. One is enough, as the operations of a group
  /// follow each other, and a stream for each rank would take a hardware queue from the user's.
  const std::shared_ptr<GpuStream>& launches() const { return launches_; }

  /// Marks that a rank's stream has reached operation `op`. Before the rank counts itself in, and once there
  /// is room for its record (GpuArrivals::await_room): then the event's last mark is not waited for any more.
  Status come(int rank, std::uint64_t op, const gpu::Stream&);
  /// Work enqueued later on the stream starts after the streams of all ranks have reached operation `op`. All
  /// have counted themselves in, and their records have not been released.
  Status wait_for_all(std::uint64_t op, const gpu::Stream&) const;

 private:
  std::size_t place(std::size_t rank, std::uint64_t op) const {
    return rank * GpuWords::kArrivals + static_cast<std::size_t>(op % GpuWords::kArrivals);
  }
  std::vector<std::shared_ptr<PooledEvent>> events_;  // of each rank in turn; each is made by its rank
  const std::shared_ptr<GpuStream> launches_;
};

}  // namespace ouro::rt
