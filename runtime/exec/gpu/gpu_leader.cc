// The leader: whoever comes last launches one kernel over the buffers of all ranks, between waits for their
// words. See gpu_executor.h.
#include <algorithm>
#include <bit>

#include "runtime/exec/gpu/gpu_executor.h"

namespace ouro::rt {

using gpu::gpu;
using gpu::MemOp;
using transport::GpuBlock;
using transport::GpuRef;

/// Where others find a buffer of mine: itself, or a stand-in that is copied from before and to after.
Status GpuExecutor::refer(const void* p, std::size_t bytes, bool capturing, Bounce* bounce, GpuRef* ref,
                          bool* stands_in) {
  if (bytes == 0) return {};
  auto found = context_.gpu_exports().find(p, bytes, device_);
  if (!found.ok()) return found.status();
  *ref = *found;
  if (found->id != 0 || !abroad_) return {};
  if (capturing)
    return unsupported(
        "a graph needs memory that other processes can map: from Context::alloc, or from cudaMalloc where "
        "legacy "
        "IPC works");
  if (!bounce->block || bounce->block->bytes() < bytes) {
    auto block = GpuBlock::create(device_, std::bit_ceil(bytes));
    if (!block.ok()) return block.status();
    retire(bounce->block);
    *bounce = {*block, context_.gpu_exports().add(*block)};
  }
  if (bounce->id == 0) return unsupported("this GPU's memory cannot be shared between processes");
  *ref = {bounce->id, 0, reinterpret_cast<std::uint64_t>(bounce->block->data())};
  *stands_in = true;
  return {};
}

Status GpuExecutor::run_leader(const Plan& plan, std::uint64_t seq, GpuStream& stream, bool capturing) {
  const Operation& op = plan.op;
  const std::size_t in_bytes = op.read_bytes(rank_), out_bytes = op.written_bytes(rank_);
  const auto* in_begin = static_cast<const std::byte*>(op.in.data);
  const auto* out_begin = static_cast<const std::byte*>(op.out.data);
  const bool apart = in_bytes == 0 || out_bytes == 0 || in_begin + in_bytes <= out_begin ||
                     out_begin + out_bytes <= in_begin;
  GpuRef in, out;
  bool in_stands = false, out_stands = false;
  if (apart) {
    OURO_TRY(refer(op.in.data, in_bytes, capturing, &bounce_in_, &in, &in_stands));
    OURO_TRY(refer(op.out.data, out_bytes, capturing, &bounce_out_, &out, &out_stands));
  } else {  // in place: one stand-in serves both, at the same distance
    const auto* outer = in_bytes >= out_bytes ? in_begin : out_begin;
    GpuRef both;
    OURO_TRY(refer(outer, std::max(in_bytes, out_bytes), capturing, &bounce_in_, &both, &in_stands));
    out_stands = in_stands;
    const auto at = [&](const std::byte* p) {
      const auto by = static_cast<std::uint64_t>(p - outer);
      return GpuRef{both.id, both.offset + by, both.address + by};
    };
    in = at(in_begin), out = at(out_begin);
  }
  if (in_stands)
    OURO_TRY(gpu().copy(reinterpret_cast<void*>(in.address), op.in.data, in_bytes, stream.get()));
  bool last = false;
  OURO_TRY(post(plan, seq, capturing, in, out, &last));
  OURO_TRY(last ? lead(plan, stream) : follow(stream));
  if (out_stands)
    OURO_TRY(gpu().copy(op.out.data, reinterpret_cast<void*>(out.address), out_bytes, stream.get()));
  return {};
}

Status GpuExecutor::follow(GpuStream& stream) {
  const MemOp ops[] = {{MemOp::Kind::write, 1, staging_->ready(rank_).device},
                       {MemOp::Kind::wait_equal, 1, staging_->done(rank_).device},
                       {MemOp::Kind::write, 0, staging_->done(rank_).device}};
  return enqueue(ops, stream.get());
}

Status GpuExecutor::lead(const Plan& plan, GpuStream& stream) {
  gpu::FusedArgs args;
  OURO_TRY(fill(plan, &args));
  publish(staging_->led(), ops_);
  // Where other ranks are threads here, their streams wait for this one's word, and a device gives streams of
  // a process a limited number of queues: the kernel goes to a stream of high priority, whose queue is
  // another.
  std::shared_ptr<GpuStream> launches;
  if (shares_process_) {
    if (!lead_stream_) {
      auto made = GpuStream::create(device_, 1);
      if (!made.ok()) return made.status();
      lead_stream_ = std::move(*made);
    }
    launches = lead_stream_;
    auto event = PooledEvent::take(device_);
    if (!event.ok()) return event.status();
    OURO_TRY(gpu().record((*event)->get(), stream.get()));
    OURO_TRY(gpu().wait(launches->get(), (*event)->get()));
  }
  const gpu::Stream on = launches ? launches->get() : stream.get();
  std::vector<MemOp> before, after;
  for (int r = 0; r < n_; ++r) {
    if (r == rank_) continue;
    before.push_back({MemOp::Kind::wait_equal, 1, staging_->ready(r).device});
    before.push_back({MemOp::Kind::write, 0, staging_->ready(r).device});
    after.push_back({MemOp::Kind::write, 1, staging_->done(r).device});
  }
  OURO_TRY(enqueue(before, on));
  OURO_TRY(launch(args, on));
  OURO_TRY(enqueue(after, on));
  if (launches) {
    auto event = PooledEvent::take(device_);
    if (!event.ok()) return event.status();
    OURO_TRY(gpu().record((*event)->get(), on));
    OURO_TRY(gpu().wait(stream.get(), (*event)->get()));
  }
  return {};
}

Status GpuExecutor::launch(const gpu::FusedArgs& args, const gpu::Stream& on) {
  const gpu::Launch l = gpu::fused(args, multiprocessors());
  return l.kernel ? gpu().launch(*l.kernel, l.shape, &args, on) : Status();
}

/// The arguments of one launch for all ranks, from their arrival records.
Status GpuExecutor::fill(const Plan& plan, gpu::FusedArgs* a) {
  const Operation& op = plan.op;
  const std::uint64_t k = ops_ - 1;
  const std::size_t elem = op.collective == Collective::barrier ? 1 : size_of(op.dtype(rank_));
  a->collective = op.collective;
  a->dtype = op.dtype(rank_);
  a->op = op.reduces() ? op.op.kind : OpKind::sum;
  a->ranks = n_;
  a->root = op.root;
  a->uneven = op.uneven;
  a->stop = stop_word_;
  if (op.collective == Collective::barrier) return {};
  const auto n = static_cast<std::size_t>(n_);
  std::vector<std::size_t> in_counts(n), out_counts(n);
  if (!op.uneven) {
    a->count = unit_count(op, rank_, n_);
    in_counts.assign(n, op.traits().in.elements(a->count, n_));
    out_counts.assign(n, op.traits().out.elements(a->count, n_));
  } else if (op.collective == Collective::all_to_all) {
    for (int r = 0; r < n_; ++r)
      for (int b = 0; b < n_; ++b) {
        const auto i = static_cast<std::size_t>(r), j = static_cast<std::size_t>(b);
        a->send_offsets[r][b + 1] = a->send_offsets[r][b] + staging_->arrival(r, k).send_counts[b];
        a->recv_offsets[r][b + 1] = a->recv_offsets[r][b] + staging_->arrival(r, k).recv_counts[b];
        in_counts[i] += staging_->arrival(r, k).send_counts[j],
            out_counts[i] += staging_->arrival(r, k).recv_counts[j];
      }
  } else {
    const bool gathers = op.collective == Collective::all_gather;
    const auto& counts = gathers ? op.out_counts : op.in_counts;
    for (std::size_t b = 0; b < n; ++b) a->offsets[b + 1] = a->offsets[b] + counts[b];
    for (std::size_t b = 0; b < n; ++b) {
      (gathers ? in_counts : out_counts)[b] = counts[b];
      (gathers ? out_counts : in_counts)[b] = a->offsets[n];
    }
  }
  for (int r = 0; r < n_; ++r)  // mappings that are about to be renewed may still be in use
    if (context_.gpu_stale(host_.world_rank(r)) && last_mark_) last_mark_->wait();
  for (int r = 0; r < n_; ++r) {
    const GpuArrival arrival = staging_->arrival(r, k);  // a copy: a peer could change it under us
    const auto resolve = [&](const GpuRef& ref, std::size_t count) {
      return r == rank_ ? Result<std::byte*>(reinterpret_cast<std::byte*>(ref.address))
                        : context_.resolve_gpu(host_.world_rank(r), ref, count * elem);
    };
    const auto i = static_cast<std::size_t>(r);
    if (op.reads(r) && in_counts[i] > 0) {
      auto at = resolve(arrival.in, in_counts[i]);
      if (!at.ok()) return at.status();
      a->in[r] = *at;
    }
    if (op.writes(r) && out_counts[i] > 0) {
      auto at = resolve(arrival.out, out_counts[i]);
      if (!at.ok()) return at.status();
      a->out[r] = *at;
    }
    a->premul[r] = arrival.premul;
  }
  return {};
}

/// A group of one rank: the kernel over its own buffers.
Status GpuExecutor::run_alone(const Plan& plan, GpuStream& stream) {
  const Operation& op = plan.op;
  if (op.collective == Collective::barrier) return {};
  gpu::FusedArgs a;
  a.collective = op.collective;
  a.dtype = op.dtype(rank_);
  a.op = op.reduces() ? op.op.kind : OpKind::sum;
  a.count = op.uneven ? op.in.count : unit_count(op, rank_, 1);
  a.in[0] = static_cast<const std::byte*>(op.in.data);
  a.out[0] = static_cast<std::byte*>(op.out.data);
  a.premul[0] = op.op.scalar;
  return launch(a, stream.get());
}

}  // namespace ouro::rt
