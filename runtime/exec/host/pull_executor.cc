// Steps over private buffers. See pull_executor.h; their meaning is in kernels/flow/step.h.
#include "runtime/exec/host/pull_executor.h"

#include "kernels/flow/list.h"
#include "runtime/plan/cost.h"

namespace ouro::rt {

using flow::Step;

namespace {

/// Whether other ranks read this rank's input.
bool gives(const Members& members, const Operation& o) {
  const flow::Buffers needs = flow::pull_buffers(o.collective);
  return needs.inputs && (!needs.root_input_only || members.rank() == o.root);
}

}  // namespace

bool PullExecutor::on_huge_pages(Context& context, const Members& members, const Operation& o) {
  HostMemory& memory = context.host_memory();
  return (!gives(members, o) || memory.on_huge_pages(o.in.data, o.in.bytes())) &&
         (o.out.count == 0 || memory.on_huge_pages(o.out.data, o.out.bytes()));
}

bool PullExecutor::offer(Context& context, const Members& members, const Operation& o, bool any_pages,
                         Arrival& record) {
  if (o.collective == Collective::all_to_all && o.in.data == o.out.data) return false;
  // Copying between processes pins every page that it touches: with small pages, staging buffers are faster
  // on most hosts.
  if (!any_pages && !on_huge_pages(context, members, o)) return false;
  if (!context.host_memory().reaches(members.world_ranks())) return false;
  record.in = {kAddress, reinterpret_cast<std::uint64_t>(o.in.data)};
  record.out = {kAddress, reinterpret_cast<std::uint64_t>(o.out.data)};
  return true;
}

/// The addresses in a peer's record are only used to read that peer's own memory.
Status PullExecutor::bring(int from, bool result, std::size_t offset, void* to, std::size_t bytes) const {
  const Arrival& record = h_.rounds.of(from).arrival(h_.rounds.current());
  const std::uint64_t at = (result ? record.out : record.in).offset + offset;
  Status s = h_.context.host_memory().copy(h_.members.world_rank(from), at, to, bytes);
  if (s.ok()) return s;
  Failure f = *s.failure();
  f.rank = from;
  return Status(std::move(f));
}

Status PullExecutor::barrier() {
  if (chunks.streams) kernels::stream_fence();
  return h_.rounds.barrier();
}

Status PullExecutor::fetch(const Step& s) {
  const std::size_t elem = chunks.plan.elem;
  const Extent out = chunks.out(s.chunk), at = chunks.op.blocks() ? chunks.in(s.at) : out;
  return bring(s.from, (s.verb & flow::kResult) != 0, at.offset * elem, chunks.out_at(out), out.count * elem);
}

/// Copies the parts of the other ranks into tiles that fit into the cache, one at a time, and folds them
/// from there.
Status PullExecutor::reduce(const Step& s) {
  Scratch& scratch = h_.scratch;
  const std::size_t elem = chunks.plan.elem, some = kPullTile / elem;
  const Extent out = chunks.out(s.chunk), in = chunks.in(s.at);
  const bool premul = chunks.plan.reduction.op == OpKind::premulsum;
  std::byte* const tiles = scratch.need(static_cast<std::size_t>(n_) * kPullTile);
  for (std::size_t done = 0; done < out.count; done += some) {
    const std::size_t count = std::min(some, out.count - done);
    for (int r = 0; r < n_; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const Extent part{in.offset + done, count};
      if (premul)
        scratch.factors[i] = r == me_ ? chunks.op.op.scalar : h_.rounds.factor_of(r, h_.rounds.current());
      if (r == me_) {
        scratch.sources[i] = chunks.in_at(part);
        continue;
      }
      std::byte* const tile = tiles + i * kPullTile;
      OURO_TRY(bring(r, false, part.offset * elem, tile, count * elem));
      scratch.sources[i] = tile;
    }
    chunks.fold(chunks.out_at({out.offset + done, count}), count);
  }
  return {};
}

}  // namespace ouro::rt
