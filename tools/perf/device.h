// What ouro-perf does with a GPU besides collectives: bytes that come and go through the host, clocks, graphs
// and the copy that limits are measured against. Used by the measuring loop and by the rank program.
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

/// Moves bytes between the host and where buffers are, and waits until they are there.
class Mover {
 public:
  Mover() = default;  ///< of the host: plain copies
  static Result<Mover> make(Device);
  bool on_device() const { return stream_ != nullptr; }
  Status write(void* there, const void* from, std::size_t bytes) const;
  Status read(void* to, const void* there, std::size_t bytes) const;
  Status set(void* there, int byte, std::size_t bytes) const;

 private:
  std::shared_ptr<const gpu::Stream> stream_;  ///< ends with the last copy
};

/// Marks in a stream, and the time between two of them on the clock of the device.
class EventClock {
 public:
  static Result<std::unique_ptr<EventClock>> make(gpu::Stream, int marks);
  ~EventClock();
  EventClock(const EventClock&) = delete;
  EventClock& operator=(const EventClock&) = delete;
  Status mark(int i);
  /// Once the stream has passed both.
  Result<double> seconds(int from, int to) const;

 private:
  explicit EventClock(gpu::Stream s) : stream_(s) {}
  gpu::Stream stream_;
  std::vector<gpu::Event> events_;
};

/// What `enqueue` puts into the stream, recorded once. All ranks of a group capture and launch alike.
class CapturedGraph {
 public:
  static Result<std::unique_ptr<CapturedGraph>> capture(gpu::Stream, const std::function<Status()>& enqueue);
  ~CapturedGraph() { (void)gpu::gpu().destroy_graph(graph_).ok(); }  // nothing is lost if that fails
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  Status launch() { return gpu::gpu().launch(graph_, stream_); }

 private:
  CapturedGraph(gpu::Stream s, gpu::Graph g) : stream_(s), graph_(g) {}
  gpu::Stream stream_;
  gpu::Graph graph_;
};

/// "NVIDIA H200", or what a fake one is.
std::string describe(const gpu::Properties&);

/// Copies inside one device, by its own clock: reads and writes counted, the best of a few rounds.
struct DeviceCopy {
  double gbs = 0;
  std::size_t bytes = 0;  ///< of one copy: 1 GiB, less where memory is short, 16 MiB on a fake device
};
Result<DeviceCopy> measure_copy(int device);

}  // namespace ouro::perf
