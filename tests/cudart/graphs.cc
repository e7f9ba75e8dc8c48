// Capture and graphs. Functions of the CUDA runtime of the tests.
#include <memory>

#include "world.h"

namespace {

/// A captured graph, or one that can be launched: with the fake both are one, which ends with the last of
/// them.
using Graph = std::shared_ptr<ouro::gpu::Graph>;

template <class Handle>
Handle handle_of(Graph g) {
  return reinterpret_cast<Handle>(new Graph(std::move(g)));
}
template <class Handle>
Graph& graph_of(Handle h) {
  return *reinterpret_cast<Graph*>(h);
}

}  // namespace

using namespace ouro::test::cudart;
using ouro::Status;
using ouro::gpu::FakeGpu;
using ouro::gpu::Stream;

/// Which calls of other threads break a capture differs by mode; here none does.
OURO_CUDART(cudaStreamBeginCapture, cudaStream_t stream, cudaStreamCaptureMode) {
  return serve("cudaStreamBeginCapture", stream, [](FakeGpu& g, Stream s) { return g.begin_capture(s); });
}
OURO_CUDART(cudaThreadExchangeStreamCaptureMode, cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode t_mode = cudaStreamCaptureModeGlobal;
  std::swap(*mode, t_mode);
  return cudaSuccess;
}

OURO_CUDART(cudaStreamEndCapture, cudaStream_t stream, cudaGraph_t* out) {
  *out = nullptr;
  return serve("cudaStreamEndCapture", stream, [&](FakeGpu& g, Stream s) -> Status {
    OURO_ASSIGN(const auto made, g.end_capture(s));
    *out = handle_of<cudaGraph_t>(Graph(new ouro::gpu::Graph(made), [&g](ouro::gpu::Graph* last) {
      (void)g.destroy_graph(*last).ok();
      delete last;
    }));
    return {};
  });
}

OURO_CUDART(cudaStreamIsCapturing, cudaStream_t stream, cudaStreamCaptureStatus* out) {
  return cudaStreamGetCaptureInfo(stream, out, nullptr, nullptr, nullptr, nullptr, nullptr);
}

/// What a capture contains is not told.
OURO_CUDART(cudaStreamGetCaptureInfo, cudaStream_t stream, cudaStreamCaptureStatus* out,
            unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
            const cudaGraphEdgeData** edges, size_t* count) {
  if (graph) *graph = nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return serve("cudaStreamGetCaptureInfo", stream, [&](FakeGpu& g, Stream s) -> Status {
    const auto capture = g.capturing(s);
    if ((graph || dependencies || edges || count) && capture.ok() && *capture != 0)
      return ouro::unsupported("the graph and the dependencies of a capture are not told");
    *out = !capture.ok()   ? cudaStreamCaptureStatusInvalidated
           : *capture == 0 ? cudaStreamCaptureStatusNone
                           : cudaStreamCaptureStatusActive;
    if (id && capture.ok()) *id = *capture;
    return {};
  });
}

OURO_CUDART(cudaGraphInstantiate, cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  if (!graph) return keep(cudaErrorInvalidValue);
  *out = handle_of<cudaGraphExec_t>(graph_of(graph));
  return cudaSuccess;
}
OURO_CUDART(cudaGraphInstantiateWithFlags, cudaGraphExec_t* out, cudaGraph_t graph,
            unsigned long long flags) {
  return cudaGraphInstantiate(out, graph, flags);
}
OURO_CUDART(cudaGraphLaunch, cudaGraphExec_t exec, cudaStream_t stream) {
  return serve("cudaGraphLaunch", stream, [&](FakeGpu& g, Stream s) { return g.launch(*graph_of(exec), s); });
}
OURO_CUDART(cudaGraphUpload, cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
OURO_CUDART(cudaGraphDestroy, cudaGraph_t graph) { return delete &graph_of(graph), cudaSuccess; }
OURO_CUDART(cudaGraphExecDestroy, cudaGraphExec_t exec) { return delete &graph_of(exec), cudaSuccess; }
