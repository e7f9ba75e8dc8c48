// The work on a piece on the device, before its copy down and after its copy up. See hierarchy_path.h.
#include "runtime/exec/gpu/hierarchy_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/gpu/collect.h"
#include "runtime/exec/gpu/hierarchy_cut.h"

namespace ouro::rt {

class HierarchyPath::Mover final : public PieceMover {
 public:
  Mover(HierarchyPath& path, const Plan& plan, const HierarchyCut& cut)
      : path_(path),
        plan_(plan),
        op_(plan.op),
        cut_(cut),
        rank_(path.here_.rank),
        in_(static_cast<const std::byte*>(op_.in.data)),
        out_(static_cast<std::byte*>(op_.out.data)),
        from_here_(op_.collective == Collective::broadcast && path.team_.members.local(op_.root) >= 0) {}

  bool in_stream() const override { return true; }
  Status before(std::size_t k, GpuStream&) override;
  Status down(std::size_t k, std::byte* slot, const gpu::Stream&) override;
  Status up(std::size_t k, const std::byte* slot, const gpu::Stream&) override;
  Status after(std::size_t k, GpuStream&) override;

 private:
  /// Where the share of piece k is on the device between the host's part and that of the GPUs.
  std::byte* share_of(std::size_t k) const {
    return path_.shares_.data() +
           k % StagedCut::kSlots * std::max(cut_.host.in_bytes(), cut_.host.out_bytes());
  }
  std::byte* piece() const { return path_.piece_.data(); }
  /// An input as it is added up.
  Status widen(std::byte* to, const std::byte* from, std::size_t count, const gpu::Stream&) const;
  /// A sum as it is given out.
  Status finish(std::byte* to, const std::byte* from, std::size_t count, const gpu::Stream&) const;
  Status within(Collective, std::size_t k, const std::byte* in, std::size_t in_count, std::byte* out,
                std::size_t out_count, DType, GpuStream&) const;
  /// Calls f(block of `piece`, block of the whole) for the blocks of all ranks.
  template <class F>
  Status each_block(std::size_t k, F&& f) const;
  Status gather_region(std::size_t k, const std::byte* share, GpuStream&) const;
  bool sums() const { return op_.reduces(); }
  static Status launch(const gpu::HopArgs& a, const gpu::Stream& s, int multiprocessors) {
    const gpu::Launch l = gpu::hop(a, multiprocessors);
    return l.kernel ? gpu::gpu().launch(*l.kernel, l.shape, &a, s) : Status();
  }

  HierarchyPath& path_;
  const Plan& plan_;
  const Operation& op_;
  const HierarchyCut& cut_;
  const int rank_;  // on this host
  const std::byte* const in_;
  std::byte* const out_;
  const bool from_here_;  // of a broadcast, the root is on this host
};

Status HierarchyPath::Mover::widen(std::byte* to, const std::byte* from, std::size_t count,
                                   const gpu::Stream& s) const {
  if (!cut_.converts) return gpu::gpu().copy(to, from, count * cut_.size(), s);
  gpu::HopArgs a;
  a.dtype = cut_.type, a.op = op_.op.kind, a.ranks = path_.team_.size, a.premul = op_.op.scalar;
  a.count = count;
  a.mine = from, a.keep = to;
  return launch(a, s, path_.here_.multiprocessors());
}

Status HierarchyPath::Mover::finish(std::byte* to, const std::byte* from, std::size_t count,
                                    const gpu::Stream& s) const {
  gpu::HopArgs a;
  a.dtype = cut_.type, a.op = op_.op.kind, a.ranks = path_.team_.size;
  a.count = count;
  a.incoming = from, a.incoming_wide = true, a.store = to;
  return launch(a, s, path_.here_.multiprocessors());
}

Status HierarchyPath::Mover::within(Collective c, std::size_t k, const std::byte* in, std::size_t in_count,
                                    std::byte* out, std::size_t out_count, DType type,
                                    GpuStream& stream) const {
  const Device device{Device::Kind::cuda, path_.here_.device};
  Operation op;
  op.collective = c;
  op.in = CView(in, in_count, type, device), op.out = View(out, out_count, type, device);
  if (op.reduces()) op.op = ReduceOp{cut_.kind};
  op.root = from_here_ ? path_.team_.members.local(op_.root) : 0;
  op.numerics = Numerics::fast;
  return path_.within(plan_, 2 * k + (c == Collective::all_gather), op, stream);
}

template <class F>
Status HierarchyPath::Mover::each_block(std::size_t k, F&& f) const {
  const flow::HostLayout ranks = path_.team_.members.layout();
  const std::size_t count = cut_.count(k);
  for (std::size_t i = 0; i < cut_.mates; ++i)
    for (std::size_t q = 0; q < cut_.hosts; ++q) {
      const auto r = static_cast<std::size_t>(ranks.order[q * cut_.mates + i]);
      OURO_TRY(f((i * cut_.hosts + q) * count, r * cut_.total + cut_.at(k)));
    }
  return {};
}

Status HierarchyPath::Mover::before(std::size_t k, GpuStream& stream) {
  const std::size_t count = cut_.count(k), share = cut_.share(k);
  switch (op_.collective) {
    case Collective::all_reduce: {
      const std::byte* from = in_ + cut_.at(k) * cut_.size();
      if (cut_.converts || cut_.padded(k)) {
        OURO_TRY(widen(piece(), from, count, stream.get()));
        from = piece();
      }
      return within(Collective::reduce_scatter, k, from, cut_.mates * share, share_of(k), share, cut_.wide,
                    stream);
    }
    case Collective::reduce_scatter: {
      const auto put = [&](std::size_t to, std::size_t from) {
        return widen(piece() + to * cut_.wide_size(), in_ + from * cut_.size(), count, stream.get());
      };
      OURO_TRY(each_block(k, put));
      const std::size_t mine = cut_.hosts * count;
      return within(Collective::reduce_scatter, k, piece(), cut_.mates * mine, share_of(k), mine, cut_.wide,
                    stream);
    }
    case Collective::broadcast: {
      if (!from_here_) return {};
      const std::size_t at = cut_.at(k) * cut_.size();
      const bool root = rank_ == path_.team_.members.local(op_.root);
      return within(Collective::broadcast, k, root ? in_ + at : nullptr, root ? count : 0, out_ + at, count,
                    cut_.type, stream);
    }
    default:
      return {};
  }
}

Status HierarchyPath::Mover::down(std::size_t k, std::byte* slot, const gpu::Stream& s) {
  if (op_.collective == Collective::broadcast) {
    const std::size_t share = cut_.share(k), at = static_cast<std::size_t>(rank_) * share,
                      all = cut_.count(k);
    if (!from_here_ || at >= all) return {};
    return gpu::gpu().copy(slot, out_ + (cut_.at(k) + at) * cut_.size(),
                           std::min(share, all - at) * cut_.size(), s);
  }
  const std::byte* const from = sums() ? share_of(k) : in_ + cut_.at(k) * cut_.size();
  return gpu::gpu().copy(slot, from, cut_.host.in_blocks * cut_.share(k) * cut_.wide_size(), s);
}

Status HierarchyPath::Mover::up(std::size_t k, const std::byte* slot, const gpu::Stream& s) {
  if (from_here_) return {};
  const bool straight = op_.collective == Collective::reduce_scatter && !cut_.converts;
  std::byte* const to = straight ? out_ + cut_.at(k) * cut_.size() : share_of(k);
  return gpu::gpu().copy(to, slot, cut_.host.out_blocks * cut_.share(k) * cut_.wide_size(), s);
}

Status HierarchyPath::Mover::gather_region(std::size_t k, const std::byte* share, GpuStream& stream) const {
  std::byte* const out = out_ + cut_.at(k) * cut_.size();
  std::byte* const to = cut_.padded(k) ? piece() : out;
  OURO_TRY(within(Collective::all_gather, k, share, cut_.share(k), to, cut_.mates * cut_.share(k), cut_.type,
                  stream));
  return to == out ? Status() : gpu::gpu().copy(out, to, cut_.count(k) * cut_.size(), stream.get());
}

Status HierarchyPath::Mover::after(std::size_t k, GpuStream& stream) {
  switch (op_.collective) {
    case Collective::all_reduce:
      if (!cut_.converts) return gather_region(k, share_of(k), stream);
      OURO_TRY(finish(path_.finished_.data(), share_of(k), cut_.share(k), stream.get()));
      return gather_region(k, path_.finished_.data(), stream);
    case Collective::reduce_scatter:
      if (!cut_.converts) return {};
      return finish(out_ + cut_.at(k) * cut_.size(), share_of(k), cut_.count(k), stream.get());
    case Collective::all_gather: {
      const std::size_t mine = cut_.hosts * cut_.count(k), bytes = cut_.count(k) * cut_.size();
      OURO_TRY(within(Collective::all_gather, k, share_of(k), mine, piece(), cut_.mates * mine, cut_.type,
                      stream));
      return each_block(k, [&](std::size_t from, std::size_t to) {
        return gpu::gpu().copy(out_ + to * cut_.size(), piece() + from * cut_.size(), bytes, stream.get());
      });
    }
    default:
      return from_here_ ? Status() : gather_region(k, share_of(k), stream);
  }
}

static_assert(2 * StagedPieces::kRoom <= GpuWords::kArrivals, "no call waits for mates who are behind");

HierarchyPath::~HierarchyPath() {
  for (Scratch* s : {&shares_, &piece_, &finished_}) drop(s);
  for (Scratch& s : outgrown_) drop(&s);
}

void HierarchyPath::drop(Scratch* s) {
  if (s->id != 0) team_.context.device_memory().exports().withdraw(s->id);
  team_.retire(std::move(s->block));
  *s = {};
}

Status HierarchyPath::need(std::size_t bytes, Scratch* s) {
  if (bytes == 0 || (s->block && s->block->bytes() >= bytes)) return {};
  OURO_ASSIGN(auto block, GpuBlock::create(team_.device, std::bit_ceil(bytes)));
  if (s->block) outgrown_.push_back(std::exchange(*s, {}));
  s->id = team_.context.device_memory().exports().add(block);
  s->block = std::move(block);
  return {};
}

Status HierarchyPath::within(const Plan& whole, std::uint64_t tag, const Operation& op, GpuStream& stream) {
  Plan plan;
  plan.op = op;
  plan.folded = whole.folded + (tag + 1) * 0x9e3779b97f4a7c15u;
  OURO_ASSIGN(const GpuPath path, chooser_.choose(op, plan.choice));
  ++number_;
  OperationEnd none;  // of a part
  if (path == GpuPath::leader) return leader_.run(plan, number_, stream, false, false, &none);
  if (path == GpuPath::resident) return resident_.run(plan, number_, stream, false, false, &none);
  return unsupported(fmt::format("a piece of {} elements takes the path {}", op.out.count, name(path)));
}

Status HierarchyPath::make_ready(const Operation& op, const HierarchyCut& cut) {
  Operation even;
  even.collective = Collective::all_reduce;
  OURO_ASSIGN(const GpuPath path, chooser_.choose(even, {}));
  if (path != GpuPath::leader) return resident_.make_ready();
  // Buffers of the user that others reach: of regions, where they are not widened or filled up.
  const bool direct = cut.region && !(cut.pieces == 1 && cut.padded(0));
  const bool given = direct && !cut.converts && op.reads(team_.rank), in_place = op.in.data == op.out.data;
  const bool one = in_place && op.collective == Collective::broadcast;  // one operation has both
  return leader_.make_ready(given ? op.in.data : nullptr, direct && !(given && one) ? op.out.data : nullptr,
                            cut.each * cut.size());
}

Status HierarchyPath::run(const Plan& plan, std::uint64_t seq, const std::shared_ptr<GpuStream>& stream,
                          StagedPath::RunOnHost between, std::shared_ptr<WorkState>* work) {
  const HierarchyCut cut(plan.op, team_.rank, team_.size, team_.members.here());
  const Operation& op = plan.op;
  OURO_TRY(make_ready(op, cut));
  const std::size_t slots = std::min(cut.pieces, StagedCut::kSlots);
  const std::size_t most = cut.region ? cut.mates * cut.host.each : cut.mates * cut.hosts * cut.each;
  OURO_TRY(need(slots * std::max(cut.host.in_bytes(), cut.host.out_bytes()), &shares_));
  if (cut.converts || !cut.region || cut.padded(cut.pieces - 1))
    OURO_TRY(need(most * cut.wide_size(), &piece_));
  if (cut.converts && cut.region) OURO_TRY(need(cut.host.each * cut.size(), &finished_));
  // Of the ranks of this index: hosts are counted in the order of their first ranks.
  const flow::HostLayout ranks = team_.members.layout();
  const int host = ranks.host[static_cast<std::size_t>(team_.rank)];
  Operation shares;
  shares.collective = op.collective;
  if (op.reduces()) shares.op = ReduceOp{cut.kind};
  if (op.collective == Collective::broadcast) shares.root = ranks.host[static_cast<std::size_t>(op.root)];
  shares.in.dtype = shares.out.dtype = cut.wide;
  shares.in.count = cut.host.in_blocks * cut.share(0), shares.out.count = cut.host.out_blocks * cut.share(0);
  Mover mover(*this, plan, cut);
  return staged_.run_in_pieces({.op = shares,
                                .reads = shares.reads(host),
                                .writes = shares.writes(host),
                                .in_place = cut.host.in_blocks == cut.host.out_blocks,
                                .cut = cut.host,
                                .mover = mover,
                                .watched = &plan,
                                .seq = seq,
                                .room = cut.room()},
                               stream, std::move(between), work);
}

}  // namespace ouro::rt
