// Chunks: where the chunks of a running flow are in the caller's buffers, and the steps that involve no other
// rank. Used by the host executors.
#pragma once
#include <algorithm>
#include <cstring>

#include "kernels/flow/step.h"
#include "kernels/host/copy.h"
#include "runtime/exec/host/host_resources.h"

namespace ouro::rt {

inline void place(void* to, const void* from, std::size_t bytes) {
  if (to != from && !kernels::copy_few(to, from, bytes)) std::memcpy(to, from, bytes);
}

/// Maps the chunks of a running flow to elements of the caller's buffers, and reads and writes them.
class Chunks {
 public:
  Chunks(const InFlight& f, const FlowPlan& flow, Scratch& scratch)
      : op(f.plan->op), plan(*f.plan->host), cut(flow.cut), streams(flow.streams), scratch_(scratch) {}

  const Operation& op;
  const ExecutionPlan& plan;
  const Partition& cut;
  const bool streams;  ///< outputs are written past the caches
  int round = 0;       ///< current round of a flow that is called once per round

  Extent in(int chunk) const { return cut.in(chunk, round); }
  Extent out(int chunk) const { return cut.out(chunk, round); }
  const std::byte* in_at(Extent e) const {
    return static_cast<const std::byte*>(op.in.data) + e.offset * plan.elem;
  }
  std::byte* out_at(Extent e) const { return static_cast<std::byte*>(op.out.data) + e.offset * plan.elem; }
  /// Calls f(in, out, done, count) for each part of an extent that is contiguous in one buffer; `done`
  /// elements of the extent precede it.
  template <class F>
  void parts(Extent e, F&& f) const {
    if (op.segments.empty()) return f(in_at(e), out_at(e), std::size_t{0}, e.count);
    const auto& all = op.segments;
    auto s = std::upper_bound(all.begin(), all.end(), e.offset,
                              [](std::size_t offset, const Segment& x) { return offset < x.offset; });
    --s;
    for (std::size_t done = 0; done < e.count; ++s) {
      const std::size_t skip = e.offset + done - s->offset;
      const std::size_t count = std::min(s->count - skip, e.count - done);
      f(s->in ? s->in + skip * plan.elem : nullptr, s->out ? s->out + skip * plan.elem : nullptr, done,
        count);
      done += count;
    }
  }

  /// Copies to the output, with non-temporal stores if the plan streams its outputs.
  void deliver(void* to, const void* from, std::size_t bytes) const {
    if (to == from || bytes == 0) return;
    if (streams)
      kernels::copy_stream(to, from, bytes);
    else
      std::memcpy(to, from, bytes);
  }
  /// Folds `count` elements of Scratch::sources into `out`. If the plan streams its outputs, it also advances
  /// the sources by `count` elements.
  void fold(std::byte* out, std::size_t count) const;
  /// Executes a step that involves no other rank: from this rank's input to its output.
  void local(const flow::Step&) const;

 private:
  Scratch& scratch_;
};

}  // namespace ouro::rt
