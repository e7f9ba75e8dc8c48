// The parts of ouro-perf that concern a GPU, except collectives: copies from and to the host, event timing,
// graphs, and the copy that limits are measured against. Used by the measuring loop and by the rank program.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/gpu.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace ouro::perf {

/// Copies bytes between the host and the memory that holds the buffers; each call waits until the copy
/// is complete.
class Mover {
 public:
  Mover() = default;  ///< for buffers on the host: plain copies
  static Result<Mover> make(Device);
  bool on_device() const { return stream_ != nullptr; }
  Status write(void* there, const void* from, std::size_t bytes) const;
  Status read(void* to, const void* there, std::size_t bytes) const;
  Status set(void* there, int byte, std::size_t bytes) const;

 private:
  std::shared_ptr<const gpu::Stream> stream_;  ///< destroyed with the last copy of this object
};

/// Marks (events) in a stream, and the time between two of them by the clock of the device.
class EventClock {
 public:
  static Result<std::unique_ptr<EventClock>> make(gpu::Stream, int marks);
  ~EventClock();
  EventClock(const EventClock&) = delete;
  EventClock& operator=(const EventClock&) = delete;
  Status mark(int i);
  /// Call once the stream has passed both marks.
  Result<double> seconds(int from, int to) const;

 private:
  explicit EventClock(gpu::Stream s) : stream_(s) {}
  gpu::Stream stream_;
  std::vector<gpu::Event> events_;
};

/// A graph of the work that `enqueue` puts into the stream, captured once. All ranks of a group must capture
/// and launch alike.
class CapturedGraph {
 public:
  static Result<std::unique_ptr<CapturedGraph>> capture(gpu::Stream, const std::function<Status()>& enqueue);
  ~CapturedGraph() { (void)gpu::gpu().destroy_graph(graph_).ok(); }  // a failure here loses nothing
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  Status launch() { return gpu::gpu().launch(graph_, stream_); }

 private:
  CapturedGraph(gpu::Stream s, gpu::Graph g) : stream_(s), graph_(g) {}
  gpu::Stream stream_;
  gpu::Graph graph_;
};

/// For example "NVIDIA H200", or a description of an emulated device.
std::string describe(const gpu::Properties&);

/// The rate of copies inside one device, by its own clock: reads and writes are counted, and the best of a
/// few rounds is taken.
struct DeviceCopy {
  double gbs = 0;
  std::size_t bytes = 0;  ///< size of one copy: 1 GiB, less if memory is short, 16 MiB on an emulated device
};
Result<DeviceCopy> measure_copy(int device);

}  // namespace ouro::perf
