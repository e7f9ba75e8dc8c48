// A stream of the group's own that takes part in operations on a stream of the user. Used by the paths that
// have work run beside that stream, or instead of it.
#pragma once
#include <memory>
#include <vector>

#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

/// The stream outside captures, and one for each capture that is under way: what is captured follows nothing
/// that is not, and a stream in a capture takes nothing else.
class SideStream {
 public:
  SideStream(int device, int priority) : device_(device), priority_(priority) {}
  /// Makes the stream outside captures, or takes `shared` for it, and the events, once. Before other ranks
  /// wait for this one: a driver may wait for all work of the process.
  Status prepare(std::shared_ptr<GpuStream> shared = nullptr);
  bool prepared() const { return joins_ != nullptr; }
  /// The one for work of `stream`; it is made for the first capture, and for those that overlap.
  Result<gpu::Stream> beside(const gpu::Stream& stream, bool capturing);
  /// What `side` is given from now on starts after what `stream` has been given.
  Status fork(const gpu::Stream& side, const gpu::Stream& stream) const;
  /// The other way round.
  Status join(const gpu::Stream& side, const gpu::Stream& stream) const;

 private:
  const int device_, priority_;
  std::shared_ptr<GpuStream> eager_;
  std::vector<std::shared_ptr<GpuStream>> captured_;
  std::shared_ptr<PooledEvent> forks_, joins_;
};

}  // namespace ouro::rt
