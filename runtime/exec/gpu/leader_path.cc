// Announcing buffers, leading and following. See leader_path.h; the arguments of a launch are
// in leader_args.cc.
#include "runtime/exec/gpu/leader_path.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace ouro::rt {

LeaderPath::~LeaderPath() {
  const auto drop = [&](StandIn& s) {
    if (s.id != 0) team_.context.device_memory().exports().withdraw(s.id);
    team_.retire(std::move(s.block));
  };
  drop(in_), drop(out_);
  for (StandIn& s : outgrown_) drop(s);
}

/// Where others find a buffer of mine: itself, or a stand-in.
Status LeaderPath::refer(const void* p, std::size_t bytes, bool capturing, StandIn* stand_in, GpuRef* ref,
                         bool* stands_in) {
  if (bytes == 0) return {};
  auto found = team_.context.device_memory().exports().find(p, bytes, team_.device);
  if (!found.ok()) return found.status();
  *ref = *found;
  if (found->id != 0 || !team_.abroad) return {};
  if (capturing)
    return unsupported(
        "a graph needs memory that other processes can map: from Context::alloc, or from cudaMalloc where "
        "legacy IPC works");
  if (!stand_in->block || stand_in->block->bytes() < bytes) {
    auto block = GpuBlock::create(team_.device, std::bit_ceil(bytes));
    if (!block.ok()) return block.status();
    if (stand_in->block) outgrown_.push_back(std::move(*stand_in));
    *stand_in = {*block, team_.context.device_memory().exports().add(*block)};
  }
  if (stand_in->id == 0) return unsupported("this GPU's memory cannot be shared between processes");
  *ref = {stand_in->id, 0, reinterpret_cast<std::uint64_t>(stand_in->block->data())};
  *stands_in = true;
  return {};
}

Status LeaderPath::refer(const Plan& plan, bool capturing, Buffers* b) {
  const Operation& op = plan.op;
  const std::size_t in_bytes = op.read_bytes(team_.rank), out_bytes = op.written_bytes(team_.rank);
  const auto* in_begin = static_cast<const std::byte*>(op.in.data);
  const auto* out_begin = static_cast<const std::byte*>(op.out.data);
  if (!team_.abroad && plan.id != 0 && plan.id == checked_plan_) {  // the others are threads
    b->in.address = reinterpret_cast<std::uint64_t>(in_begin);
    b->out.address = reinterpret_cast<std::uint64_t>(out_begin);
    return {};
  }
  checked_plan_ = 0;
  if (!overlap(in_begin, in_bytes, out_begin, out_bytes)) {
    OURO_TRY(refer(op.in.data, in_bytes, capturing, &in_, &b->in, &b->in_stands));
    OURO_TRY(refer(op.out.data, out_bytes, capturing, &out_, &b->out, &b->out_stands));
    checked_plan_ = plan.id;
    return {};
  }
  // In place: one stand-in serves both, at the same distance.
  const auto* outer = in_bytes >= out_bytes ? in_begin : out_begin;
  GpuRef both;
  OURO_TRY(refer(outer, std::max(in_bytes, out_bytes), capturing, &in_, &both, &b->in_stands));
  b->out_stands = b->in_stands;
  const auto at = [&](const std::byte* p) {
    const auto by = static_cast<std::uint64_t>(p - outer);
    return GpuRef{both.id, both.offset + by, both.address + by};
  };
  b->in = at(in_begin), b->out = at(out_begin);
  checked_plan_ = plan.id;
  return {};
}

void LeaderPath::map_early(const Plan& plan) {
  const std::uint64_t before = std::exchange(last_plan_, plan.id);
  if (!team_.abroad || plan.id == 0 || plan.id != before || plan.id == early_plan_ || !arrivals_.led())
    return;
  early_plan_ = plan.id;
  for (int r = 0; r < team_.size; ++r) {
    if (r == team_.rank) continue;
    const GpuArrival named = arrivals_.record(r);
    // What cannot be mapped is tried again, and reported, by a rank that needs it.
    for (const GpuRef& ref : {named.in, named.out})
      if (ref.id != 0) (void)team_.context.device_memory().resolve_ref(team_.world_rank(r), ref, 1).ok();
  }
}

Status LeaderPath::make_ready(const void* in, const void* out, std::size_t bytes) {
  OURO_TRY(arrivals_.open_words());
  GpuRef found;
  bool stands_in = false;
  OURO_TRY(refer(in, in ? bytes : 0, false, &in_, &found, &stands_in));
  return refer(out, out ? bytes : 0, false, &out_, &found, &stands_in);
}

Status LeaderPath::offer_call(const Plan& plan, std::uint64_t seq, GpuStream& stream, OperationEnd* end,
                              bool* led) {
  Buffers b;
  OURO_TRY(refer(plan, false, &b));
  OURO_TRY(arrivals_.open_words());
  const bool in_call = !b.in_stands && !b.out_stands;
  bool last = false;
  OURO_TRY(arrivals_.announce(plan, seq, stream.identity(), false, b.in, b.out, &last, in_call));
  if (in_call) {
    OURO_ASSIGN(const int leader, arrivals_.leader_of_all());
    *led = leader >= 0;
    if (*led) return lead_in_call(plan, leader, stream, end);
  }
  if (last) arrivals_.release_records();
  return {};
}

/// One launch, by `leader`, in whose stream nothing precedes it. The others have nothing in theirs.
Status LeaderPath::lead_in_call(const Plan& plan, int leader, GpuStream& stream, OperationEnd* end) {
  const auto number = static_cast<std::uint32_t>(arrivals_.next_operation());
  const OperationEnd::Told by_leader{arrivals_.words(), number};
  if (leader != team_.rank) {
    end->told = by_leader;
    return {};
  }
  gpu::FusedArgs args;
  OURO_TRY(fill(plan, false, &args));
  arrivals_.release_records();
  const GpuWord told = arrivals_.words()->told();
  const gpu::Launch l = gpu::fused(args, team_.multiprocessors());
  if (!l.kernel) {
    std::atomic_ref(*told.host).store(number, std::memory_order_release);
    end->told = by_leader;
    return {};
  }
  args.end = {.blocks = arrivals_.block_count(),
              .finished = {static_cast<std::uint32_t*>(told.device), number},
              .ended = end->word};
  OURO_TRY(gpu::gpu().launch(*l.kernel, l.shape, &args, stream.get()));
  end->enqueued();
  return {};
}

Status LeaderPath::run(const Plan& plan, std::uint64_t seq, GpuStream& stream, bool capturing, bool in_call,
                       OperationEnd* end) {
  const Operation& op = plan.op;
  Buffers b;
  OURO_TRY(refer(plan, capturing, &b));  // what is refused here needs no words
  OURO_TRY(arrivals_.open_words());
  map_early(plan);
  if (b.in_stands)
    OURO_TRY(copy(reinterpret_cast<void*>(b.in.address), op.in.data, op.read_bytes(team_.rank), stream));
  in_call = in_call && !b.in_stands && !b.out_stands;
  bool last = false;
  OURO_TRY(arrivals_.announce(plan, seq, stream.identity(), capturing, b.in, b.out, &last, in_call));
  if (in_call) {
    OURO_ASSIGN(const int leader, arrivals_.leader_of_all());
    if (leader >= 0) return lead_in_call(plan, leader, stream, end);
  }
  const LeaderWords words(*arrivals_.words(), team_.size, capturing, capturing ? 0 : arrivals_.next_number());
  OperationEnd copied;  // the operation ends with a copy of its output
  OperationEnd* const ends = b.out_stands ? &copied : end;
  OURO_TRY(last ? lead(plan, words, stream, capturing, ends) : follow(words, stream, capturing, ends));
  return b.out_stands
             ? copy(op.out.data, reinterpret_cast<void*>(b.out.address), op.written_bytes(team_.rank), stream)
             : Status();
}

/// Copies by a kernel, which checks the stop word. A group that fails ends all waits, and work behind them
/// must not touch a buffer: its owner may have been notified and have freed it.
Status LeaderPath::copy(void* to, const void* from, std::size_t bytes, GpuStream& stream) {
  gpu::HopArgs a;
  a.dtype = DType::u8;
  a.count = bytes;
  a.stop = arrivals_.stop_word();
  a.mine = static_cast<const std::byte*>(from);
  a.store = static_cast<std::byte*>(to);
  const gpu::Launch l = gpu::hop(a, team_.multiprocessors());
  return l.kernel ? gpu::gpu().launch(*l.kernel, l.shape, &a, stream.get()) : Status();
}

gpu::MeetArgs LeaderPath::meeting(const OperationEnd& end) const {
  constexpr std::chrono::seconds kGrace{1};  // the host acts first, as it can say who is late
  gpu::MeetArgs a;
  a.stop = arrivals_.stop_word();
  a.late = end.late;
  a.deadline_ns = end.late
                      ? static_cast<std::uint64_t>(std::chrono::nanoseconds(team_.deadline + kGrace).count())
                      : UINT64_MAX;  // of a part of an operation, which the host watches as a whole
  return a;
}

Status LeaderPath::follow(const LeaderWords& words, GpuStream& stream, bool capturing, OperationEnd* end) {
  if (meets(capturing)) {
    gpu::MeetArgs a = meeting(*end);
    words.follow(team_.rank, &a);
    a.end.ended = end->word;
    const gpu::Launch l = gpu::meet();
    OURO_TRY(gpu::gpu().launch(*l.kernel, l.shape, &a, stream.get()));
    end->enqueued();
    return {};
  }
  before_.clear();
  words.follow(team_.rank, &before_);
  end->append_to(&before_);
  OURO_TRY(enqueue(before_, stream.get()));
  end->enqueued();
  return {};
}

Status LeaderPath::lead(const Plan& plan, const LeaderWords& words, GpuStream& stream, bool capturing,
                        OperationEnd* end) {
  gpu::FusedArgs args;
  OURO_TRY(fill(plan, capturing, &args));
  arrivals_.release_records();
  if (meets(capturing)) return lead_by_kernels(&args, words, stream, end);
  before_.clear(), after_.clear();
  words.gather(team_.rank, &before_);
  words.release(team_.rank, &after_);
  end->append_to(&after_);
  OURO_TRY(enqueue(before_, stream.get()));
  if (const gpu::Launch l = gpu::fused(args, team_.multiprocessors()); l.kernel)
    OURO_TRY(gpu::gpu().launch(*l.kernel, l.shape, &args, stream.get()));
  OURO_TRY(enqueue(after_, stream.get()));
  end->enqueued();
  return {};
}

/// The kernel that waits is one of its own, of one warp: the one that moves the data would hold
/// multiprocessors that the streams it waits for may need, and could not load what others write while it runs
/// by the fast path for constant data.
Status LeaderPath::lead_by_kernels(gpu::FusedArgs* args, const LeaderWords& words, GpuStream& stream,
                                   OperationEnd* end) {
  const gpu::Launch l = gpu::fused(*args, team_.multiprocessors());
  gpu::MeetArgs gate = meeting(*end);
  words.gather(team_.rank, &gate);
  gpu::LaunchEnd& last = l.kernel ? args->end : gate.end;
  last = {.blocks = arrivals_.block_count(), .finished = words.finished(), .ended = end->word};
  const gpu::Launch meet = gpu::meet();
  OURO_TRY(gpu::gpu().launch(*meet.kernel, meet.shape, &gate, stream.get()));
  if (l.kernel) OURO_TRY(gpu::gpu().launch(*l.kernel, l.shape, args, stream.get()));
  end->enqueued();
  return {};
}

Status LeaderPath::run_alone(const Plan& plan, GpuStream& stream) {
  const Operation& op = plan.op;
  if (op.collective == Collective::barrier) return {};
  gpu::FusedArgs a;
  a.collective = op.collective;
  a.dtype = op.dtype(team_.rank);
  a.op = op.reduces() ? op.op.kind : OpKind::sum;
  a.count = op.uneven ? op.in.count : unit_count(op, team_.rank, 1);
  if (a.op != OpKind::premulsum) {  // the driver's copy is faster than a kernel's
    const std::size_t bytes = a.count * size_of(a.dtype);
    if (op.in.data == op.out.data || bytes == 0) return {};
    return gpu::gpu().copy(op.out.data, op.in.data, bytes, stream.get());
  }
  a.in[0] = static_cast<const std::byte*>(op.in.data);
  a.out[0] = static_cast<std::byte*>(op.out.data);
  a.premul[0] = op.op.scalar;
  const gpu::Launch l = gpu::fused(a, team_.multiprocessors());
  return l.kernel ? gpu::gpu().launch(*l.kernel, l.shape, &a, stream.get()) : Status();
}

}  // namespace ouro::rt
