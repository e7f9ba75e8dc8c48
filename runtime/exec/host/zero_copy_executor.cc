// Steps over registered buffers. See zero_copy_executor.h; their meaning is in kernels/flow/step.h.
#include "runtime/exec/host/zero_copy_executor.h"

#include <cstring>

#include "kernels/flow/list.h"

namespace ouro::rt {

using flow::Step;

// Bytes of a block that is reduced, then written to all outputs: few enough to fit into the L1 cache.
constexpr std::size_t kMulticastBytes = 32 << 10;

bool ZeroCopyExecutor::offer(const Context& context, const Operation& o, int rank, Arrival& record) {
  if (o.collective == Collective::all_to_all && o.in.data == o.out.data) return false;
  const flow::Buffers needs = flow::zero_copy_buffers(o.collective);
  const bool in = needs.inputs && (!needs.root_input_only || rank == o.root);
  if (in) record.in = context.host_memory().reference_to(o.in.data, o.in.bytes());
  if (needs.outputs) record.out = context.host_memory().reference_to(o.out.data, o.out.bytes());
  return (!in || record.in.id != 0) && (!needs.outputs || record.out.id != 0);
}

Status ZeroCopyExecutor::begin(const InFlight&) {
  const Operation& o = chunks.op;
  const flow::Buffers needs = flow::zero_copy_buffers(o.collective);
  const auto n = static_cast<std::size_t>(n_);
  scratch_.inputs.assign(n, {});
  scratch_.outputs.assign(n, {});
  const CollectiveTraits traits = traits_of(o.collective);
  const std::size_t in_bytes = traits.in.elements(chunks.cut.unit(), n_) * chunks.plan.elem;
  const std::size_t out_bytes = traits.out.elements(chunks.cut.unit(), n_) * chunks.plan.elem;
  for (int r = 0; r < n_; ++r) {
    // Copies only the references, not the whole record: its owner may reach the barrier and update the
    // record's word while this rank still reads it.
    const Arrival& record = h_.rounds.of(r).arrival(h_.rounds.current());
    const MemoryRef in = record.in, out = record.out;
    const auto i = static_cast<std::size_t>(r);
    const int world = h_.members.world_rank(r);
    if (needs.inputs && (!needs.root_input_only || r == o.root)) {
      OURO_ASSIGN(scratch_.inputs[i], h_.context.host_memory().resolve(world, in, in_bytes));
    }
    if (needs.outputs) {
      OURO_ASSIGN(scratch_.outputs[i], h_.context.host_memory().resolve(world, out, out_bytes));
    }
  }
  return {};
}

Status ZeroCopyExecutor::barrier() {
  if (chunks.streams) kernels::stream_fence();
  return h_.rounds.barrier();
}

void ZeroCopyExecutor::gather_sources(const Step& s, Extent at) {
  const bool premul = chunks.plan.reduction.op == OpKind::premulsum;
  for (int r = 0; r < n_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    scratch_.sources[i] = r == me_ ? chunks.in_at(chunks.in(s.at)) : input_of(r, at);
    if (premul)
      scratch_.factors[i] = r == me_ ? chunks.op.op.scalar : h_.rounds.factor_of(r, h_.rounds.current());
  }
}

/// Works block by block, so that the data written to all outputs is still in the L1 cache.
Status ZeroCopyExecutor::multicast(const Step& s) {
  const ExecutionPlan& plan = chunks.plan;
  const Extent out = chunks.out(s.chunk);
  const bool reduces = (s.verb & flow::kPosted) != 0 && s.from == flow::kEveryone;
  // If the calls are in place, this rank has just read the lines that it writes to the others. Then the
  // built-in kind is as fast between far cores and four times as fast between near ones (Zen 4).
  const bool has_read = reduces && chunks.op.in.data == chunks.op.out.data;
  const std::byte* source = nullptr;
  if (reduces)
    gather_sources(s, source_of(s));
  else
    source = s.verb & flow::kInput ? chunks.in_at(chunks.in(s.chunk)) : input_of(s.from, out);
  const std::size_t block =
      std::max<std::size_t>(1, (chunks.streams ? Scratch::kTile : kMulticastBytes) / plan.elem);
  for (std::size_t from = 0; from < out.count; from += block) {
    const Extent e{out.offset + from, std::min(block, out.count - from)};
    const std::size_t bytes = e.count * plan.elem;
    if (reduces) {
      std::byte* const to = chunks.streams ? scratch_.tile : chunks.out_at(e);
      plan.fold(to, scratch_.sources, scratch_.factors, e.count);
      for (const void*& in : scratch_.sources) in = static_cast<const std::byte*>(in) + bytes;
      source = to;
    }
    for (int d = 0; d < n_; ++d) {
      const auto r = static_cast<std::size_t>(flow::wrap(me_ + d, n_));
      std::byte* const to = scratch_.outputs[r].data + e.offset * plan.elem;
      if (to == source) continue;
      if (chunks.streams)
        kernels::copy_stream(to, source, bytes);
      else if (d == 0)
        std::memcpy(to, source, bytes);
      else if (has_read)
        kernels::copy_built_in(to, source, bytes);
      else
        kernels::copy_buffer(to, source, bytes);
    }
    if (!reduces) source += bytes;
  }
  return {};
}

Status ZeroCopyExecutor::reduce(const Step& s) {
  gather_sources(s, source_of(s));
  const Extent out = chunks.out(s.chunk);
  chunks.fold(chunks.out_at(out), out.count);
  return {};
}

Status ZeroCopyExecutor::fetch(const Step& s) {
  const Extent out = chunks.out(s.chunk);
  chunks.deliver(chunks.out_at(out), input_of(s.from, source_of(s)), out.count * chunks.plan.elem);
  return {};
}

}  // namespace ouro::rt
