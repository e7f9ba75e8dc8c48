// The arguments of the one launch that serves all ranks, from their arrival records. See leader_path.h.
#include "runtime/exec/gpu/leader_path.h"

namespace ouro::rt {

Status LeaderPath::fill(const Plan& plan, bool capturing, gpu::FusedArgs* a) {
  const Operation& op = plan.op;
  a->collective = op.collective;
  a->dtype = op.dtype(team_.rank);
  a->op = op.reduces() ? op.op.kind : OpKind::sum;
  a->ranks = team_.size;
  a->root = op.root;
  a->uneven = op.uneven;
  a->stop = arrivals_.stop_word();
  if (op.collective == Collective::barrier) return {};
  const auto n = static_cast<std::size_t>(team_.size);
  std::vector<std::size_t> in_counts(n), out_counts(n);
  if (!op.uneven) {
    a->count = unit_count(op, team_.rank, team_.size);
    in_counts.assign(n, op.traits().in.elements(a->count, team_.size));
    out_counts.assign(n, op.traits().out.elements(a->count, team_.size));
  } else if (op.collective == Collective::all_to_all) {
    for (int r = 0; r < team_.size; ++r) {
      const GpuArrival arrival = arrivals_.record(r);
      const auto i = static_cast<std::size_t>(r);
      for (std::size_t b = 0; b < n; ++b) {
        a->send_offsets[r][b + 1] = a->send_offsets[r][b] + arrival.send_counts[b];
        a->recv_offsets[r][b + 1] = a->recv_offsets[r][b] + arrival.recv_counts[b];
        in_counts[i] += arrival.send_counts[b], out_counts[i] += arrival.recv_counts[b];
      }
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
  return find_buffers(plan, capturing, a, in_counts, out_counts);
}

/// Counts: elements that rank r reads and writes, at r.
Status LeaderPath::find_buffers(const Plan& plan, bool capturing, gpu::FusedArgs* a,
                                const std::vector<std::size_t>& in_counts,
                                const std::vector<std::size_t>& out_counts) {
  const Operation& op = plan.op;
  const std::size_t elem = size_of(op.dtype(team_.rank));
  for (int r = 0; r < team_.size; ++r) {
    const GpuArrival arrival = arrivals_.record(r);
    const auto resolve = [&](const GpuRef& ref, std::size_t count) -> Result<std::byte*> {
      if (r == team_.rank) return reinterpret_cast<std::byte*>(ref.address);
      OURO_ASSIGN(auto at, team_.context.device_memory().resolve_ref(team_.world_rank(r), ref, count * elem));
      if (capturing) team_.retire(std::move(at.keep));  // a replay finds it as long as the group lives
      return at.data;
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

}  // namespace ouro::rt
