// Capture and graphs. Functions of the tests' CUDA runtime.
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "world.h"

namespace {

/// A user object: opaque data that graphs retain until they are destroyed, when a callback releases it.
struct UserObject {
  void* data;
  cudaHostFn_t destroy;
  std::atomic<unsigned> references;

  void release(unsigned count) {
    if (references.fetch_sub(count) == count) {
      destroy(data);
      delete this;
    }
  }
};
UserObject& object_of(cudaUserObject_t h) { return *reinterpret_cast<UserObject*>(h); }

/// A graph that is being captured, has been captured, or can be launched. On emulated devices the last two
/// are the same object, which is destroyed with its last handle.
struct Content {
  ouro::gpu::FakeGpu& devices;
  ouro::gpu::Stream captured;            ///< the capture's origin stream, while capturing
  std::optional<ouro::gpu::Graph> made;  ///< set when the capture has ended
  std::vector<std::pair<UserObject*, unsigned>> kept;

  Content(ouro::gpu::FakeGpu& of, ouro::gpu::Stream origin) : devices(of), captured(origin) {}
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;
  ~Content() {
    if (made) (void)devices.destroy_graph(*made).ok();
    for (const auto& [object, count] : kept) object->release(count);
  }
};
using Graph = std::shared_ptr<Content>;

template <class Handle>
Handle handle_of(Graph g) {
  return reinterpret_cast<Handle>(new Graph(std::move(g)));
}
template <class Handle>
Graph& graph_of(Handle h) {
  return *reinterpret_cast<Graph*>(h);
}

/// The graphs of ongoing captures, by capture id: a query returns the handle with which the capture will end.
struct Growing {
  std::mutex mutex;
  std::map<unsigned long long, cudaGraph_t> graphs;

  cudaGraph_t of(unsigned long long capture, ouro::gpu::FakeGpu& devices, ouro::gpu::Stream stream) {
    const std::lock_guard lock(mutex);
    auto& graph = graphs[capture];
    if (!graph) graph = handle_of<cudaGraph_t>(std::make_shared<Content>(devices, stream));
    return graph;
  }
  /// Removes and returns the graph of a capture; nullptr if no query has created it.
  cudaGraph_t take(unsigned long long capture) {
    const std::lock_guard lock(mutex);
    const auto node = graphs.extract(capture);
    return node.empty() ? nullptr : node.mapped();
  }
};
Growing& growing() {
  static auto& all = *new Growing;
  return all;
}

}  // namespace

using namespace ouro::test::cudart;
using ouro::Status;
using ouro::gpu::FakeGpu;
using ouro::gpu::Stream;

/// In CUDA the mode decides which calls of other threads invalidate a capture; here none does.
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
    const auto capture = g.capturing(s);
    const cudaGraph_t asked_for = capture.ok() && *capture != 0 ? growing().take(*capture) : nullptr;
    const auto made = g.end_capture(s);
    if (!made.ok()) {
      if (asked_for) delete &graph_of(asked_for);
      return made.status();
    }
    *out = asked_for ? asked_for : handle_of<cudaGraph_t>(std::make_shared<Content>(g, s));
    graph_of(*out)->made = *made;
    return {};
  });
}

OURO_CUDART(cudaStreamIsCapturing, cudaStream_t stream, cudaStreamCaptureStatus* out) {
  return cudaStreamGetCaptureInfo(stream, out, nullptr, nullptr, nullptr, nullptr, nullptr);
}

/// Does not report the nodes that the capture contains so far.
OURO_CUDART(cudaStreamGetCaptureInfo, cudaStream_t stream, cudaStreamCaptureStatus* out,
            unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
            const cudaGraphEdgeData** edges, size_t* count) {
  if (graph) *graph = nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return serve("cudaStreamGetCaptureInfo", stream, [&](FakeGpu& g, Stream s) -> Status {
    const auto capture = g.capturing(s);
    if ((dependencies || edges || count) && capture.ok() && *capture != 0)
      return ouro::unsupported("the dependencies of a capture are not told");
    *out = !capture.ok()   ? cudaStreamCaptureStatusInvalidated
           : *capture == 0 ? cudaStreamCaptureStatusNone
                           : cudaStreamCaptureStatusActive;
    if (id && capture.ok()) *id = *capture;
    if (graph && capture.ok() && *capture != 0) *graph = growing().of(*capture, g, s);
    return {};
  });
}

/// Returns the number of nodes; the nodes themselves are not supported.
OURO_CUDART(cudaGraphGetNodes, cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  if (!graph || !count) return keep(cudaErrorInvalidValue);
  if (nodes) return not_supported("cudaGraphGetNodes", "to tell the nodes of a graph");
  return serve("cudaGraphGetNodes", [&](FakeGpu& g) -> Status {
    const Content& content = *graph_of(graph);
    OURO_ASSIGN(*count, content.made ? g.nodes(*content.made) : g.nodes(content.captured));
    return {};
  });
}

OURO_CUDART(cudaUserObjectCreate, cudaUserObject_t* out, void* data, cudaHostFn_t destroy,
            unsigned references, unsigned flags) {
  if (!out || !destroy || references == 0 || flags != cudaUserObjectNoDestructorSync)
    return keep(cudaErrorInvalidValue);
  *out = reinterpret_cast<cudaUserObject_t>(new UserObject{data, destroy, {references}});
  return cudaSuccess;
}
OURO_CUDART(cudaUserObjectRetain, cudaUserObject_t object, unsigned count) {
  return object_of(object).references += count, cudaSuccess;
}
OURO_CUDART(cudaUserObjectRelease, cudaUserObject_t object, unsigned count) {
  return object_of(object).release(count), cudaSuccess;
}
OURO_CUDART(cudaGraphRetainUserObject, cudaGraph_t graph, cudaUserObject_t object, unsigned count,
            unsigned flags) {
  if (!graph || !object || count == 0) return keep(cudaErrorInvalidValue);
  if (flags != cudaGraphUserObjectMove) object_of(object).references += count;
  graph_of(graph)->kept.emplace_back(&object_of(object), count);
  return cudaSuccess;
}

OURO_CUDART(cudaGraphInstantiate, cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  if (!graph || !graph_of(graph)->made) return keep(cudaErrorInvalidValue);
  *out = handle_of<cudaGraphExec_t>(graph_of(graph));
  return cudaSuccess;
}
OURO_CUDART(cudaGraphInstantiateWithFlags, cudaGraphExec_t* out, cudaGraph_t graph,
            unsigned long long flags) {
  return cudaGraphInstantiate(out, graph, flags);
}
OURO_CUDART(cudaGraphLaunch, cudaGraphExec_t exec, cudaStream_t stream) {
  return serve("cudaGraphLaunch", stream,
               [&](FakeGpu& g, Stream s) { return g.launch(*graph_of(exec)->made, s); });
}
OURO_CUDART(cudaGraphUpload, cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
OURO_CUDART(cudaGraphDestroy, cudaGraph_t graph) { return delete &graph_of(graph), cudaSuccess; }
OURO_CUDART(cudaGraphExecDestroy, cudaGraphExec_t exec) { return delete &graph_of(exec), cudaSuccess; }
