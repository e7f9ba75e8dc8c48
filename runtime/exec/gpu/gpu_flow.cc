// The stream-ordered path: a listener that turns each step of a flow into waits, a kernel and writes on a
// stream. Slots lie in the receiver's device memory, the words that guard them in the staging buffer. See
// gpu_executor.h.
#include <fmt/format.h>

#include <bit>

#include "kernels/flow/list.h"
#include "kernels/host/host_loops.h"
#include "runtime/exec/gpu/gpu_executor.h"
#include "runtime/plan/partition.h"

namespace ouro::rt {
namespace {

using flow::Step;
using gpu::gpu;
using gpu::MemOp;

constexpr int kSlots = 4;                        // a link; at least two, see LinkView
constexpr std::size_t kSlotBytes = 1 << 20;      // of groups up to 8 ranks
constexpr std::size_t kInboundBytes = 64 << 20;  // of a rank in larger ones, about
constexpr std::size_t kLine = 256;               // pieces begin on such a boundary, for wide accesses

std::size_t slot_bytes(int n) {
  if (n <= 8) return kSlotBytes;
  return std::max<std::size_t>(4096, kInboundBytes / static_cast<std::size_t>(n * kSlots) / kLine * kLine);
}

}  // namespace

class GpuFlow {
 public:
  GpuFlow(GpuExecutor& e, const Plan& plan, GpuStream& stream)
      : e_(e),
        op_(plan.op),
        stream_(stream.get()),
        partition_(plan.op, e.rank_, e.n_),
        sent_(static_cast<std::size_t>(e.n_)),
        received_(static_cast<std::size_t>(e.n_)) {
    const DType t = op_.dtype(e.rank_);
    elem_ = op_.collective == Collective::barrier ? 1 : size_of(t);
    acc_ = op_.reduces() ? kernels::accumulator_bytes(t, op_.op.kind) : elem_;
    pairs_ = op_.uneven && op_.collective == Collective::all_to_all;
  }

  template <class Flow>
  Status run() {
    const std::size_t capacity = slot_bytes(e_.n_) / std::max(elem_, acc_);
    const auto chunks = static_cast<std::size_t>(Flow{}.chunks({e_.rank_, e_.n_, op_.root, 1}));
    partition_.cut(static_cast<int>(chunks), capacity, Flow::kPipelined,
                   std::max<std::size_t>(1, kLine / elem_));
    capacity_ = capacity, pipelined_ = Flow::kPipelined;
    if constexpr (Flow::kKeeps) OURO_TRY(need_scratch((pipelined_ ? 1 : chunks) * capacity * acc_));
    Status outcome;
    const auto listen = [&](const Step& s) {
      if (outcome.ok()) outcome = hop(s);
    };
    const flow::Place at{e_.rank_, e_.n_, op_.root, partition_.rounds()};
    if constexpr (Flow::kPipelined) {
      Flow{}(at, listen);
    } else {
      for (; round_ < partition_.rounds() && outcome.ok(); ++round_) Flow{}(at, listen);
    }
    return outcome;
  }

 private:
  Status need_scratch(std::size_t bytes) {
    if (e_.scratch_ && e_.scratch_->bytes() >= bytes) return {};
    auto made = transport::GpuBlock::create(e_.device_, std::bit_ceil(bytes));
    if (!made.ok()) return made.status();
    e_.retire(e_.scratch_);
    e_.scratch_ = std::move(*made);
    return {};
  }
  std::byte* accumulator(int chunk) const {
    return e_.scratch_->data() + (pipelined_ ? 0 : static_cast<std::size_t>(chunk)) * capacity_ * acc_;
  }
  const std::byte* in_at(Extent x) const {
    return static_cast<const std::byte*>(op_.in.data) + x.offset * elem_;
  }
  std::byte* out_at(Extent x) const { return static_cast<std::byte*>(op_.out.data) + x.offset * elem_; }
  /// Where slot i of the link from -> to lies, as this rank reaches it.
  Result<std::byte*> slot(int from, int to, std::size_t i) {
    auto& base = e_.slots_[static_cast<std::size_t>(to)];
    const std::size_t one = slot_bytes(e_.n_), inbound = static_cast<std::size_t>(e_.n_ * kSlots) * one;
    if (!base) {
      auto block = e_.context_.gpu_block(e_.host_.world_rank(to),
                                         e_.key_ + static_cast<std::uint64_t>(to) + 1, inbound);
      if (!block.ok()) return block.status();
      base = block->data;
      e_.retire(block->keep);  // the owner may leave first
    }
    return base + (static_cast<std::size_t>(from * kSlots) + i % kSlots) * one;
  }

  Status hop(const Step& s) {
    const Extent in = s.verb & flow::kInput ? partition_.in(s.chunk, round_) : Extent{};
    const Extent out = s.verb & (flow::kStore | flow::kResult) ? partition_.out(s.chunk, round_) : Extent{};
    const bool receives = s.verb & flow::kRecv, sends = s.verb & flow::kSend;
    std::size_t count = s.verb & (flow::kStore | flow::kResult) ? out.count
                        : s.verb & flow::kInput                 ? in.count
                                                                : partition_.in(s.chunk, round_).count;
    // Uneven pairs run for different numbers of rounds: both ends know that an empty piece does not travel.
    if (pairs_ && round_ > 0 && count == 0) return {};

    gpu::HopArgs a;
    a.dtype = op_.collective == Collective::barrier ? DType::u8 : op_.dtype(e_.rank_);
    a.op = op_.reduces() ? op_.op.kind : OpKind::sum;
    a.ranks = e_.n_;
    a.premul = op_.op.scalar;
    a.weight = s.weight;
    a.stop = e_.stop_word_;
    a.count = count;
    a.incoming_wide = s.verb & flow::kWideIn && receives;
    a.send_wide = s.verb & flow::kWideOut;
    if (s.verb & flow::kAcc) {
      a.mine = accumulator(s.chunk);
      a.mine_wide = true;
    } else if (s.verb & flow::kInput) {
      a.mine = in_at(in);
    } else if (s.verb & flow::kResult) {
      a.mine = out_at(out);
    }
    if (s.verb & flow::kStore) a.store = out_at(out);
    if (s.verb & flow::kKeep) a.keep = accumulator(s.chunk);
    // store_input(): a reduction over this rank alone, which still finishes.
    finishes_ = !receives && (s.verb & flow::kWideIn);

    std::vector<MemOp> before, after;
    if (receives) {
      auto& i = received_[static_cast<std::size_t>(s.from)];
      auto at = slot(s.from, e_.rank_, i);
      if (!at.ok()) return at.status();
      a.incoming = *at;
      void* word = e_.staging_->full(s.from, e_.rank_, static_cast<int>(i++ % kSlots)).device;
      before.push_back({MemOp::Kind::wait_equal, 1, word});
      after.push_back({MemOp::Kind::write, 0, word});
    }
    if (sends) {
      auto& i = sent_[static_cast<std::size_t>(s.to)];
      auto at = slot(e_.rank_, s.to, i);
      if (!at.ok()) return at.status();
      a.send = *at;
      void* word = e_.staging_->full(e_.rank_, s.to, static_cast<int>(i++ % kSlots)).device;
      before.push_back({MemOp::Kind::wait_equal, 0, word});
      after.push_back({MemOp::Kind::write, 1, word});
    }
    OURO_TRY(e_.enqueue(before, stream_));
    OURO_TRY(move(a));
    return e_.enqueue(after, stream_);
  }

  Status move(gpu::HopArgs& a) {
    if (a.count == 0) return {};
    if (!a.incoming && !a.mine_wide && a.mine && a.mine == a.store && !a.send && !a.keep && !finishes_)
      return {};
    if (finishes_) {  // one rank only, by the fused kernel's rules: lift, finish
      gpu::FusedArgs f;
      f.collective = Collective::all_reduce;
      f.dtype = a.dtype, f.op = a.op, f.ranks = 1, f.count = a.count, f.stop = a.stop;
      f.in[0] = a.mine, f.out[0] = a.store, f.premul[0] = a.premul;
      return e_.launch(f, stream_);
    }
    const gpu::Launch l = gpu::hop(a, e_.multiprocessors());
    return l.kernel ? gpu().launch(*l.kernel, l.shape, &a, stream_) : Status();
  }

  GpuExecutor& e_;
  const Operation& op_;
  gpu::Stream stream_;
  Partition partition_;
  int round_ = 0;                             // the one at hand, where the flow is called once a round
  std::vector<std::size_t> sent_, received_;  // slots of this operation; each begins again with slot 0
  std::size_t elem_ = 1, acc_ = 1, capacity_ = 1;
  bool pairs_ = false, pipelined_ = false, finishes_ = false;
};

namespace {

/// What is told by no rule: on device memory links are all there is.
flow::Algorithm by_links(Collective c) {
  switch (c) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
    case Collective::all_gather:
      return flow::Algorithm::ring;
    case Collective::broadcast:
    case Collective::reduce:
      return flow::Algorithm::chain;
    case Collective::gather:
    case Collective::scatter:
      return flow::Algorithm::linear;
    case Collective::all_to_all:
      return flow::Algorithm::pairwise;
    default:
      return flow::Algorithm::dissemination;
  }
}

}  // namespace

Status GpuExecutor::run_flow(const Plan& plan, std::uint64_t seq, GpuStream& stream, bool capturing) {
  bool last = false;
  OURO_TRY(post(plan, seq, capturing, {}, {}, &last));
  if (last) publish(staging_->led(), ops_);
  if (slots_.empty()) slots_.resize(static_cast<std::size_t>(n_));
  const Operation& op = plan.op;
  // Rank order needs the chain, where nobody asked for another flow that has it.
  const bool chain = op.numerics == Numerics::canonical && op.reduces();
  const flow::Algorithm algorithm = plan.choice.forced && !plan.choice.staging ? plan.choice.algorithm
                                    : chain && op.collective == Collective::all_reduce
                                        ? flow::Algorithm::chain
                                        : by_links(op.collective);
  Status outcome = invalid(fmt::format("{}: no flow '{}' over links", name(op.collective), name(algorithm)));
  flow::visit(op.collective, algorithm, [&]<class Flow>(Flow) {
    if constexpr (!Flow::kStaging) outcome = GpuFlow(*this, plan, stream).run<Flow>();
  });
  return outcome;
}

}  // namespace ouro::rt
