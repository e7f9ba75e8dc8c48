// Captures and graphs of a FakeGpu. See fake_graphs.h.
#include "kernels/device/fake/fake_graphs.h"

#include "kernels/device/fake/fake_work.h"

namespace ouro::gpu::fake {
namespace {

std::size_t nodes_of(const Recording& recording) {
  std::size_t nodes = 0;
  for (const auto& lane : recording.lanes)
    for (const auto& op : lane.ops) nodes += op.kind != FakeOp::record && op.kind != FakeOp::wait;
  return nodes;
}

}  // namespace

Result<std::uint64_t> Graphs::capturing(Stream stream) {
  OURO_TRY(control_->check(stream.device));
  std::lock_guard lock(streams_.lock());
  auto q = streams_.find(stream);
  if (!q.ok()) return q.status();
  if ((*q)->capture == nullptr) return std::uint64_t{0};
  if (!(*q)->capture->broken.empty())
    return invalid("the capture of this stream is broken: " + (*q)->capture->broken);
  return (*q)->capture->id;
}

Status Graphs::begin(Stream stream) {
  OURO_TRY(control_->admit(FakeOp::capture, stream.device));
  if (is_legacy(stream.handle)) return invalid("the legacy stream cannot be captured");
  std::lock_guard lock(streams_.lock());
  auto q = streams_.find(stream);
  if (!q.ok()) return q.status();
  if ((*q)->capture != nullptr) return (*q)->capture->break_off("a capture was begun in a capture");
  auto c = std::make_shared<Capture>();
  c->id = handles_.number();
  Capture::join(c, **q);
  return {};
}

Result<Graph> Graphs::end(Stream stream) {
  OURO_TRY(control_->admit(FakeOp::capture, stream.device));
  std::lock_guard lock(streams_.lock());
  auto q = streams_.find(stream);
  if (!q.ok()) return q.status();
  const auto c = (*q)->capture;
  if (c == nullptr) return invalid("this stream is not being captured");
  if ((*q)->lane != 0) return c->break_off("a capture was ended on a stream that only joined it");
  streams_.end_capture(c);
  if (!c->broken.empty()) return invalid("the capture is broken: " + c->broken);
  if (!c->joined()) return invalid("work of a stream that joined the capture is not waited for at its end");
  void* const handle = handles_.make(handles_.number());
  graphs_[handle].recording = std::make_shared<const Recording>(std::move(c->recording));
  return Graph{handle};
}

Result<std::size_t> Graphs::nodes(Graph graph) {
  std::lock_guard lock(streams_.lock());
  const auto it = graphs_.find(graph.handle);
  if (it == graphs_.end()) return handles_.unknown("graph", graph.handle);
  return nodes_of(*it->second.recording);
}

Result<std::size_t> Graphs::nodes(Stream stream) {
  std::lock_guard lock(streams_.lock());
  auto q = streams_.find(stream);
  if (!q.ok()) return q.status();
  const auto& capture = (*q)->capture;
  return capture == nullptr ? 0 : nodes_of(capture->recording);
}

Status Graphs::launch(Graph graph, Stream stream) {
  OURO_TRY(control_->admit(FakeOp::graph, stream.device));
  std::lock_guard lock(streams_.lock());
  auto it = graphs_.find(graph.handle);
  if (it == graphs_.end()) return handles_.unknown("graph", graph.handle);
  auto q = streams_.find(stream);
  if (!q.ok()) return q.status();
  if (control_->take_fault(FakeOp::graph)) return streams_.push(**q, {FakeOp::graph, fault_work()});
  const auto recording = it->second.recording;
  if ((*q)->capture != nullptr)
    return streams_.push(**q, {FakeOp::graph, [recording](const Run& run) { replay(*recording, run); }});
  auto mark = std::make_shared<Mark>(stream.device);
  OURO_TRY(streams_.push(**q, {FakeOp::graph, [recording, mark, last = it->second.last](const Run& run) {
                                 if (last != nullptr) last->wait_on_stream(run.control, run.device);
                                 replay(*recording, run);
                                 mark->pass();
                               }}));
  it->second.last = std::move(mark);
  return {};
}

Status Graphs::destroy(Graph graph) {
  OURO_TRY(Control::allowed_here());
  std::lock_guard lock(streams_.lock());
  if (graphs_.erase(graph.handle) == 0) return handles_.unknown("graph", graph.handle);
  return {};
}

int Graphs::count() {
  std::lock_guard lock(streams_.lock());
  return static_cast<int>(graphs_.size());
}

}  // namespace ouro::gpu::fake
