// The listener that turns each step of a flow into work of a stream. See stream_path.h.
#include "runtime/exec/gpu/stream_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <thread>
#include <utility>

#include "kernels/flow/list.h"
#include "kernels/flow/step.h"
#include "kernels/gpu/collect.h"
#include "kernels/host/host_loops.h"
#include "runtime/exec/gpu/gpu_path.h"
#include "runtime/plan/partition.h"

namespace ouro::rt {
namespace {

using flow::Step;
using gpu::MemOp;

constexpr std::uint64_t kScratchOf = 0x7363726174636800;  // distinguishes it from the slots of a group
constexpr std::uint64_t kCopiesOf = 0x636f706965730000;
constexpr int kSlots = GpuWords::kLinkWords;     // a link; at least two, see LinkView
constexpr std::size_t kSlotBytes = 1 << 20;      // of groups up to 8 ranks
constexpr std::size_t kInboundBytes = 64 << 20;  // of a rank in larger ones, about
constexpr std::size_t kBoundary = 256;           // where pieces begin, for wide accesses

std::size_t slot_bytes(int n) {
  if (n <= 8) return kSlotBytes;
  return std::max<std::size_t>(4096,
                               kInboundBytes / static_cast<std::size_t>(n * kSlots) / kBoundary * kBoundary);
}

/// The flow where no rule names one: on device memory all flows are over links.
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

flow::Algorithm algorithm_for(const Plan& plan) {
  if (plan.choice.forced && !plan.choice.staging) return plan.choice.algorithm;
  // Rank order needs the chain, where no other flow that has it was named.
  if (plan.op.numerics == Numerics::canonical && plan.op.collective == Collective::all_reduce)
    return flow::Algorithm::chain;
  return by_links(plan.op.collective);
}

}  // namespace

/// Carries one operation out: a wait, a kernel and a write of the stream for each step.
class StreamFlow {
 public:
  StreamFlow(StreamPath& path, const Plan& plan, GpuStream& stream, bool capturing, bool copies)
      : path_(path),
        capturing_(capturing),
        copies_(copies),
        team_(path.team_),
        words_(*path.arrivals_.words()),
        op_(plan.op),
        wire_(wire_of(plan.op, team_.rank)),
        stream_(stream.get()),
        partition_(plan.op, team_.rank, team_.size),
        sent_(static_cast<std::size_t>(team_.size)),
        received_(static_cast<std::size_t>(team_.size)) {
    elem_ = wire_.element;
    pairs_ = op_.uneven_pairs();
  }

  template <class Flow>
  Status run() {
    const std::size_t slot = copies_ ? path_.copy_slot_bytes() : slot_bytes(team_.size);
    const std::size_t capacity = wire_.capacity(slot);
    const auto chunks = static_cast<std::size_t>(Flow{}.chunks({team_.rank, team_.size, op_.root, 1}));
    partition_.cut(static_cast<int>(chunks), capacity, Flow::kPipelined,
                   std::max<std::size_t>(1, kBoundary / elem_));
    capacity_ = capacity, pipelined_ = Flow::kPipelined;
    scratch_ = path_.scratch_;  // room for a slot a rank, and no flow over links has more chunks than ranks
    if (copies_) {
      OURO_ASSIGN(beside_, path_.beside_.beside(stream_, capturing_));
    }
    Status outcome;
    const auto listen = [&](const Step& s) {
      if (outcome.ok()) outcome = hop(s);
    };
    const flow::Place at{team_.rank, team_.size, op_.root, partition_.rounds()};
    if constexpr (Flow::kPipelined) {
      Flow{}(at, listen);
    } else {
      for (; round_ < partition_.rounds() && outcome.ok(); ++round_) Flow{}(at, listen);
    }
    return outcome;
  }

 private:
  std::byte* accumulator(int chunk) const {
    return scratch_ + (pipelined_ ? 0 : static_cast<std::size_t>(chunk)) * capacity_ * wire_.accumulator;
  }
  const std::byte* in_at(Extent x) const {
    return static_cast<const std::byte*>(op_.in.data) + x.offset * elem_;
  }
  std::byte* out_at(Extent x) const { return static_cast<std::byte*>(op_.out.data) + x.offset * elem_; }

  Status hop(const Step& s) {
    const Extent in = s.verb & flow::kInput ? partition_.in(s.chunk, round_) : Extent{};
    const Extent out = s.verb & (flow::kStore | flow::kResult) ? partition_.out(s.chunk, round_) : Extent{};
    const bool receives = s.verb & flow::kRecv, sends = s.verb & flow::kSend;
    const std::size_t count = s.verb & (flow::kStore | flow::kResult) ? out.count
                              : s.verb & flow::kInput                 ? in.count
                                                                      : partition_.in(s.chunk, round_).count;
    // Uneven pairs run for different numbers of rounds: both ends know that an empty piece does not travel.
    if (pairs_ && round_ > 0 && count == 0) return {};

    gpu::HopArgs a;
    a.dtype = op_.collective == Collective::barrier ? DType::u8 : op_.dtype(team_.rank);
    a.op = op_.reduces() ? op_.op.kind : OpKind::sum;
    a.ranks = team_.size;
    a.premul = op_.op.scalar;
    a.weight = s.weight;
    a.stop = path_.arrivals_.stop_word();
    a.count = count;
    a.incoming_wide = s.verb & flow::kPartialIn && receives;
    a.send_wide = s.verb & flow::kPartialOut;
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

    std::vector<MemOp> before, after;
    if (receives) {
      auto& i = received_[static_cast<std::size_t>(s.from)];
      auto at = copies_ ? path_.copy_slot(team_.rank, i) : path_.slot(s.from, team_.rank, i);
      if (!at.ok()) return at.status();
      a.incoming = *at;
      const int k = static_cast<int>(i++ % kSlots);
      void* const word = words_.full(s.from, team_.rank, k).device;
      before.push_back({MemOp::Kind::wait_equal, 1, word});
      // The sender sets it again once taken() is 0.
      if (words_.tells_apart()) before.push_back({MemOp::Kind::write, 0, word});
      after.push_back({MemOp::Kind::write, 0, words_.taken(s.from, team_.rank, k).device});
    }
    if (sends) {
      auto& i = sent_[static_cast<std::size_t>(s.to)];
      auto at = copies_ ? path_.copy_slot(s.to, i) : path_.slot(team_.rank, s.to, i);
      if (!at.ok()) return at.status();
      a.send = *at;
      const int k = static_cast<int>(i++ % kSlots);
      void* const word = words_.taken(team_.rank, s.to, k).device;
      before.push_back({MemOp::Kind::wait_equal, 0, word});
      if (words_.tells_apart()) before.push_back({MemOp::Kind::write, 1, word});
      after.push_back({MemOp::Kind::write, 1, words_.full(team_.rank, s.to, k).device});
    }
    OURO_TRY(path_.enqueued(stream_, capturing_, copies_ ? 3 : 1));
    OURO_TRY(enqueue(before, stream_));
    // store_input(): a reduction over this rank alone, which still finishes.
    if (copies_)
      OURO_TRY(copy(a));
    else
      OURO_TRY(!receives && (s.verb & flow::kPartialIn) ? finish(a) : move(a));
    return enqueue(after, stream_);
  }

  /// One rank's input by the fused kernel's rules: widened, finished.
  Status finish(const gpu::HopArgs& a) {
    gpu::FusedArgs f;
    f.collective = Collective::all_reduce;
    f.dtype = a.dtype, f.op = a.op, f.ranks = 1, f.count = a.count, f.stop = a.stop;
    f.in[0] = a.mine, f.out[0] = a.store, f.premul[0] = a.premul;
    return launch(gpu::fused(f, team_.multiprocessors()), &f);
  }
  Status move(const gpu::HopArgs& a) {
    if (a.count == 0) return {};
    if (!a.incoming && !a.mine_wide && a.mine && a.mine == a.store && !a.send && !a.keep) return {};
    return launch(gpu::hop(a, team_.multiprocessors()), &a);
  }
  /// What moves and is not reduced: from the one source that a step of these flows has, to the next rank, and
  /// at the same time as that to this rank's own output. No copy checks the stop word. It need not: none
  /// touches memory of another rank's user, and this rank's operation ends behind them.
  Status copy(const gpu::HopArgs& a) {
    const std::byte* const from = a.incoming ? a.incoming : a.mine;
    const std::size_t bytes = a.count * elem_;
    if (bytes == 0) return {};
    const bool stores = a.store && a.store != from, both = stores && a.send;
    const gpu::Stream other = both ? beside_ : stream_;
    if (both) OURO_TRY(path_.beside_.fork(other, stream_));
    if (stores) OURO_TRY(gpu::gpu().copy(a.store, from, bytes, other));
    if (a.send) OURO_TRY(gpu::gpu().copy(a.send, from, bytes, stream_));
    return both ? path_.beside_.join(other, stream_) : Status();
  }
  Status launch(const gpu::Launch& l, const void* args) {
    return l.kernel ? gpu::gpu().launch(*l.kernel, l.shape, args, stream_) : Status();
  }

  StreamPath& path_;
  const bool capturing_, copies_;
  GpuTeam& team_;
  const GpuWords& words_;
  const Operation& op_;
  const arith::Wire wire_;
  gpu::Stream stream_, beside_;
  Partition partition_;
  int round_ = 0;                             // the one at hand, where the flow is called once a round
  std::vector<std::size_t> sent_, received_;  // slots of this operation; each begins again with slot 0
  std::size_t elem_ = 1, capacity_ = 1;
  std::byte* scratch_ = nullptr;
  bool pairs_ = false, pipelined_ = false;
};

void StreamPath::drop(std::uint64_t what) {
  team_.context.device_memory().drop_group_block(team_.key + what + static_cast<std::uint64_t>(team_.rank) +
                                                 1);
}

StreamPath::~StreamPath() {
  if (!copy_slots_.empty()) drop(kCopiesOf);
  if (slots_.empty()) return;
  drop(0);
  drop(kScratchOf);
}

Result<std::byte*> StreamPath::block(std::uint64_t what, int r, std::size_t bytes) {
  if (!team_.record(r).device_words) OURO_TRY(team_.reach(r));  // else blocks are open to all devices
  OURO_ASSIGN(const auto block,
              team_.context.device_memory().group_block(
                  team_.world_rank(r), team_.key + what + static_cast<std::uint64_t>(r) + 1, bytes));
  team_.retire(block.keep);  // the owner may leave first
  return block.data;
}

Result<std::byte*> StreamPath::inbound(int r) {
  std::byte*& base = slots_[static_cast<std::size_t>(r)];
  if (!base) {
    OURO_ASSIGN(base, block(0, r, static_cast<std::size_t>(team_.size * kSlots) * slot_bytes(team_.size)));
  }
  return base;
}

Status StreamPath::prepare(const Operation& op, flow::Algorithm algorithm) {
  if (prepared_.contains({op.collective, algorithm, op.root})) return {};
  slots_.resize(static_cast<std::size_t>(team_.size));
  std::vector<bool> meets(static_cast<std::size_t>(team_.size));
  bool keeps = false;
  for (int r = 0; r < team_.size; ++r) meets[static_cast<std::size_t>(r)] = team_.here(r);
  flow::visit(op.collective, algorithm, [&]<class Flow>(Flow) {
    if constexpr (!Flow::kStaging && flow::kOnDevices<Flow>) {
      keeps = Flow::kKeeps;
      Flow{}(flow::Place{team_.rank, team_.size, op.root, 1}, [&](const Step& s) {
        if (s.verb & flow::kSend) meets[static_cast<std::size_t>(s.to)] = true;
      });
    }
  });
  for (int r = 0; r < team_.size; ++r) {
    if (meets[static_cast<std::size_t>(r)]) OURO_TRY(inbound(r).status());
    if (!keeps || !team_.here(r)) continue;
    OURO_ASSIGN(std::byte* const room,
                block(kScratchOf, r, static_cast<std::size_t>(team_.size) * slot_bytes(team_.size)));
    if (r == team_.rank) scratch_ = room;
  }
  prepared_.insert({op.collective, algorithm, op.root});
  return {};
}

Result<std::byte*> StreamPath::slot(int from, int to, std::size_t i) {
  OURO_ASSIGN(std::byte* const base, inbound(to));
  return base + (static_cast<std::size_t>(from * kSlots) + i % kSlots) * slot_bytes(team_.size);
}

/// An operation at the threshold has 32 pieces, enough to overlap; a slot of 8 MiB takes 22 us at 370 GB/s,
/// where the calls around a copy take some.
std::size_t StreamPath::copy_slot_bytes() const {
  return std::clamp<std::size_t>(std::bit_floor(team_.context.spec().gpu_copy_bytes / 32), 4096, 8 << 20);
}

Result<std::byte*> StreamPath::copy_slot(int to, std::size_t i) {
  return copy_slots_[static_cast<std::size_t>(to)] + i % kSlots * copy_slot_bytes();
}

Status StreamPath::prepare_copies() {
  if (beside_.prepared()) return {};
  copy_slots_.resize(static_cast<std::size_t>(team_.size));
  for (int r = 0; r < team_.size; ++r)
    if (team_.here(r) || r == (team_.rank + 1) % team_.size) {
      OURO_ASSIGN(copy_slots_[static_cast<std::size_t>(r)], block(kCopiesOf, r, kSlots * copy_slot_bytes()));
    }
  return beside_.prepare();
}

Status StreamPath::enqueued(const gpu::Stream& stream, bool capturing, int hops) {
  constexpr int kCalls = 32;          // hops, of three calls at most each
  constexpr std::size_t kPoints = 3;  // at once
  if (!team_.shares_process || capturing || (calls_ += hops) < kCalls) return {};
  calls_ = 0;
  OURO_ASSIGN(auto here, PooledEvent::take(team_.device));
  OURO_TRY(gpu::gpu().record(here->get(), stream));
  passed_.push_back(std::move(here));
  if (passed_.size() < kPoints) return {};
  for (const auto end = Clock::now() + team_.deadline;;
       std::this_thread::sleep_for(std::chrono::microseconds(20))) {
    OURO_ASSIGN(const bool there, gpu::gpu().query(passed_.front()->get()));
    if (there || arrivals_.words()->poisoned()) break;  // the group has failed: its waits end
    if (Clock::now() > end)
      return {Reason::deadline, "other ranks of the process did not come to the operations before this one"};
  }
  passed_.pop_front();
  return {};
}

Status StreamPath::run(const Plan& plan, std::uint64_t seq, GpuStream& stream, bool capturing, bool copies) {
  const Collective c = plan.op.collective;
  const flow::Algorithm algorithm = copies ? copies_algorithm(c) : algorithm_for(plan);
  OURO_TRY(copies ? prepare_copies() : prepare(plan.op, algorithm));
  OURO_TRY(arrivals_.open_words());
  Status outcome = invalid(fmt::format("{}: no flow '{}' over links", ouro::name(c), flow::name(algorithm)));
  flow::visit(c, algorithm, [&]<class Flow>(Flow) {
    if constexpr (!Flow::kStaging && flow::kOnDevices<Flow>) {
      bool last = false;
      outcome = arrivals_.announce(plan, seq, stream.identity(), capturing, {}, {}, &last);
      if (last) arrivals_.release_records();
      if (outcome.ok()) outcome = StreamFlow(*this, plan, stream, capturing, copies).run<Flow>();
    }
  });
  return outcome;
}

}  // namespace ouro::rt
