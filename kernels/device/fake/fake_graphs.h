// Captures and graphs of a FakeGpu in one process. Used by fake_gpu.cc.
#pragma once
#include "kernels/device/fake/fake_streams.h"

namespace ouro::gpu::fake {

/// Begins and ends captures, and keeps and launches the resulting graphs.
class Graphs {
 public:
  Graphs(std::shared_ptr<Control> control, Handles& handles, Streams& streams)
      : control_(std::move(control)), handles_(handles), streams_(streams) {}

  Result<std::uint64_t> capturing(Stream);
  Status begin(Stream);
  Result<Graph> end(Stream);
  Status launch(Graph, Stream);
  Status destroy(Graph);
  /// Operations that the graph has, or that the stream's capture has so far (0: it is in none);
  /// events are none.
  Result<std::size_t> nodes(Graph);
  Result<std::size_t> nodes(Stream);
  int count();

 private:
  struct State {
    std::shared_ptr<const Recording> recording;
    std::shared_ptr<Mark> last;  ///< launch: a graph runs once at a time, wherever it is launched
  };
  const std::shared_ptr<Control> control_;
  Handles& handles_;
  Streams& streams_;
  std::unordered_map<void*, State> graphs_;  // under the lock of the streams
};

}  // namespace ouro::gpu::fake
