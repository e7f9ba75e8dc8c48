// The GPU executor: order, cards, the leader, marks and release. See gpu_executor.h. The stream-ordered way
// is in gpu_flow.cc.
#include "runtime/gpu_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "kernels/gpu/resident.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
using gpu::gpu;
using gpu::MemOp;
using transport::GpuBlock;
using transport::GpuRef;

// Tell what a group has apart: host segments, device memory.
constexpr std::uint64_t kBoardOf = 0x6770752d626f6172, kStopOf = 0x6770752d73746f70;

std::size_t block_index(int i) { return static_cast<std::size_t>(i); }

/// Bytes of this rank's buffers that an operation reads and writes.
struct Needs {
  std::size_t in = 0, out = 0;
};
Needs needs(const Operation& o, int rank) {
  const bool root = rank == o.root;
  Needs x{o.in.bytes(), o.out.bytes()};
  if ((o.collective == Collective::broadcast || o.collective == Collective::scatter) && !root) x.in = 0;
  if ((o.collective == Collective::reduce || o.collective == Collective::gather) && !root) x.out = 0;
  if (o.collective == Collective::barrier) x = {};
  return x;
}

}  // namespace

// ---- marks ----------------------------------------------------------------------------------------

/// Passed with its event, unless the board was spoiled by then: then it fails, when this rank has learned
/// why.
class GpuExecutor::OpMark final : public Mark {
 public:
  /// `doubtful`: whether something may have gone wrong that the group is about to learn of.
  OpMark(std::shared_ptr<GpuStream> s, std::shared_ptr<PooledEvent> e, std::function<bool()> doubtful)
      : stream_(std::move(s)), event_(std::move(e)), doubtful_(std::move(doubtful)) {}
  bool passed() override {
    std::lock_guard lock(mutex_);
    return passed_locked();
  }
  Status outcome() override {
    std::lock_guard lock(mutex_);
    return outcome_;
  }
  gpu::Event event() const override { return event_->get(); }
  HostStream& watcher() override { return stream_->watcher(); }
  /// What has not passed by now ends with `why`.
  void spoil(const Status& why) {
    std::lock_guard lock(mutex_);
    if (passed_) return;
    outcome_ = why;
    explained_ = true;
  }

 private:
  bool passed_locked() {
    if (passed_) return true;
    auto there = gpu().query(event_->get());
    if (there.ok() && !*there) return false;
    if (!there.ok() && !explained_) outcome_ = there.status(), explained_ = true;
    if (!explained_ && doubtful_ && doubtful_()) return false;
    doubtful_ = nullptr;
    return passed_ = true;
  }
  std::shared_ptr<GpuStream> stream_;
  std::shared_ptr<PooledEvent> event_;
  std::function<bool()> doubtful_;
  std::mutex mutex_;
  bool passed_ = false, explained_ = false;
  Status outcome_;
};

GpuExecutor::GpuExecutor(Context& context, Host& host, int rank, int size, std::uint64_t key,
                         std::chrono::milliseconds deadline)
    : context_(context),
      host_(host),
      rank_(rank),
      n_(size),
      key_(key),
      device_(context.spec().gpu),
      deadline_(deadline) {
  Topology& t = topology_;
  std::uint32_t fewest = gpu::ResidentLayout::kMaxChannels;
  for (int r = 0; r < n_; ++r) {
    const GpuSeat& a = context_.gpu_seat(host_.world_rank(r));
    if (!a.present && t.without < 0) t.without = r;
    t.values &= a.stream_values != 0;
    std::uint32_t share = 0;
    for (int q = 0; q < n_; ++q) {
      const GpuSeat& b = context_.gpu_seat(host_.world_rank(q));
      const bool same = a.uuid == b.uuid;
      t.one &= same;
      t.apart &= !same || r == q;
      t.concurrent &=
          !same || context_.peer(host_.world_rank(r)).pid == context_.peer(host_.world_rank(q)).pid;
      t.reach &= same || std::find(a.reach, a.reach + a.reach_count, b.uuid) != a.reach + a.reach_count;
      share += same;
    }
    // One block a multiprocessor, whatever else they could hold, and half of them for others.
    fewest = std::min(fewest, a.multiprocessors / 2 / std::max(1u, share));
  }
  t.channels = static_cast<int>(fewest);
  const int mine = context_.peer(host_.world_rank(rank_)).pid;
  for (int r = 0; r < n_; ++r)
    (context_.peer(host_.world_rank(r)).pid == mine ? shares_process_ : abroad_) |= r != rank_;
}

GpuExecutor::~GpuExecutor() {
  stop_.store(true);
  if (releaser_.joinable()) releaser_.join();
  for (Bounce* b : {&bounce_in_, &bounce_out_})
    if (b->id != 0) context_.gpu_exports().withdraw(b->id);
  if (!slots_.empty()) context_.drop_gpu_block(key_ + static_cast<std::uint64_t>(rank_) + 1);
  drop_resident();
  if (rank_ == 0 && board_) {
    context_.drop_segment(key_ ^ kBoardOf);
    context_.drop_gpu_block(key_ ^ kStopOf);
  }
}

std::uint64_t GpuExecutor::with_oldest(const std::function<void(Pending&)>& f) {
  std::unique_lock lock(mutex_);
  while (!entries_.empty() && entries_.front().mark->passed()) {
    ended_ = entries_.front().pending.seq;
    entries_.pop_front();
  }
  const std::uint64_t ended = ended_;
  if (entries_.empty() || released_) return ended;
  Pending copy = entries_.front().pending;
  lock.unlock();  // f may fail the group, which comes back to release()
  f(copy);
  lock.lock();
  if (!entries_.empty() && entries_.front().pending.seq == copy.seq) entries_.front().pending = copy;
  return ended;
}

bool GpuExecutor::idle() {
  (void)with_oldest([](Pending&) {});
  std::lock_guard lock(mutex_);
  return entries_.empty();
}

void GpuExecutor::drain() {
  while (!idle()) std::this_thread::sleep_for(100us);
}

void GpuExecutor::release(const Status& why) {
  std::lock_guard lock(mutex_);
  if (released_) return;
  released_ = true;
  error_ = why;
  for (Entry& e : entries_) (void)e.mark->passed();  // these have ended well
  if (board_) board_->spoil();
  abort_resident();
  for (Entry& e : entries_) e.mark->spoil(why);
  if (entries_.empty() || !board_) return;
  // Each pass over the words ends at least one wait of every stream, whichever value it waits for. Streams
  // come to their next waits within microseconds.
  releaser_ = std::thread([this] {
    const auto end = Clock::now() + 10s;
    // First what has not begun is told to touch nothing: buffers may go once their owners have heard of the
    // failure.
    const MemOp stop{MemOp::Kind::write, 1, stop_word_};
    if (gpu().enqueue({&stop, 1}, stop_stream_->get()).ok())
      for (const auto soon = Clock::now() + 200ms; Clock::now() < soon; std::this_thread::sleep_for(10us))
        if (auto told = gpu().query(stop_stream_->get()); !told.ok() || *told) break;
    for (std::uint32_t value = 1; !stop_.load() && Clock::now() < end; value ^= 1) {
      board_->set_all(value);
      std::this_thread::sleep_for(20us);
      std::lock_guard all(mutex_);
      if (std::all_of(entries_.begin(), entries_.end(), [](Entry& e) { return e.mark->passed(); })) break;
    }
  });
}

// ---- choice ---------------------------------------------------------------------------------------

Result<GpuExecutor::Way> GpuExecutor::way(const Operation& op, const Choice& choice, std::string* why) const {
  const Topology& t = topology_;
  if (t.without >= 0)
    return unsupported(
        fmt::format("rank {} has no GPU; operations on device memory need one on every rank", t.without));
  if (!t.values) return unsupported("this GPU's streams cannot wait for values in memory");
  const bool pairs = op.uneven && op.collective == Collective::all_to_all;
  const bool fused = t.one && n_ <= (pairs ? gpu::FusedArgs::kMaxUnevenPairs : gpu::FusedArgs::kMaxRanks);
  // Rank order over links is the chain's alone.
  const bool ordered = op.numerics == Numerics::canonical && op.collective == Collective::reduce_scatter;
  const bool flows = t.reach && n_ <= GpuBoard::kMaxRanks && !ordered;
  const bool resident = t.reach && t.concurrent && t.channels > 0 && !op.uneven && n_ > 1 &&
                        n_ <= gpu::ResidentLayout::kMaxRanks;
  const auto say = [&](Way w, std::string_view text) {
    if (why) *why = text;
    return w;
  };
  const std::string& wanted = context_.spec().gpu_way;
  if (wanted == "leader" && fused) return say(Way::leader, "leader: OURO_GPU_WAY");
  if (wanted == "resident" && resident) return say(Way::resident, "resident: OURO_GPU_WAY");
  if (wanted == "stream" && flows) return say(Way::stream, "stream-ordered: OURO_GPU_WAY");
  if (wanted == "staged") return say(Way::staged, "staged: OURO_GPU_WAY");
  if (choice.forced && !choice.boards && flows)
    return say(Way::stream, fmt::format("stream-ordered {}: asked for by name", name(choice.algorithm)));
  if (fused) return say(Way::leader, "leader: all ranks have one GPU, one kernel serves them all");
  if (resident && t.apart) return say(Way::resident, "resident: each rank has a GPU and can map the others'");
  if (flows) return say(Way::stream, "stream-ordered: each rank can map the others' GPUs");
  return say(Way::staged, "staged through the host: GPUs that cannot map each other");
}

// ---- running --------------------------------------------------------------------------------------

int GpuExecutor::multiprocessors() {
  if (multiprocessors_ == 0) {
    auto p = gpu().properties(device_);
    multiprocessors_ = p.ok() ? std::max(1, p->multiprocessors) : 1;
  }
  return multiprocessors_;
}

Status GpuExecutor::check_buffers(const Operation& op, std::uint64_t plan) {
  if (plan != 0 && plan == checked_plan_) return {};
  const Needs bytes = needs(op, rank_);
  if (bytes.in > 0) OURO_TRY(context_.gpu_exports().find(op.in.data, bytes.in, device_).status());
  if (bytes.out > 0) OURO_TRY(context_.gpu_exports().find(op.out.data, bytes.out, device_).status());
  checked_plan_ = plan;
  return {};
}

Status GpuExecutor::enqueue(std::span<const MemOp> ops, const gpu::Stream& s) {
  return ops.empty() ? Status() : gpu().enqueue(ops, s);
}

Status GpuExecutor::open_board() {
  if (board_) return {};
  // Not a meeting: ranks that come to two groups in different orders would wait for each other.
  auto segment = context_.segment(key_ ^ kBoardOf, GpuBoard::bytes(n_), host_.world_rank(0));
  if (!segment.ok()) return segment.status();
  auto board = GpuBoard::open(std::move(*segment), n_);
  if (!board.ok()) return board.status();
  constexpr std::size_t kBytes = 4096;
  auto stop = context_.gpu_block(host_.world_rank(0), key_ ^ kStopOf, kBytes);
  if (!stop.ok()) return stop.status();
  retire(stop->keep);
  auto stream = GpuStream::create(device_, 1);
  if (!stream.ok()) return stream.status();
  std::lock_guard lock(mutex_);
  stop_stream_ = std::move(*stream);
  stop_word_ = reinterpret_cast<std::uint32_t*>(stop->data);
  board_ = std::move(*board);
  return {};
}

/// Operations of a group run one after another, also where they come on different streams.
Status GpuExecutor::order(GpuStream& stream, bool capturing) {
  if (!last_mark_ || last_stream_.get() == &stream || last_stream_->get() == stream.get()) return {};
  if (capturing) return {};  // what a graph depends on is said where it is launched
  return gpu().wait(stream.get(), last_mark_->mark()->event());
}

Status GpuExecutor::finish(const Plan* plan, std::uint64_t seq, const std::shared_ptr<GpuStream>& stream,
                           bool capturing, std::shared_ptr<WorkState>* work) {
  if (capturing) {  // nothing runs yet, and what runs later reports through the group
    *work = std::make_shared<WorkState>();
    (*work)->complete({});
    return {};
  }
  auto event = PooledEvent::take(device_);
  if (!event.ok()) return event.status();
  OURO_TRY(gpu().record((*event)->get(), stream->get()));
  auto mark = std::make_shared<OpMark>(stream, std::move(*event), plan ? doubts() : nullptr);
  *work = std::make_shared<WorkState>(mark);
  last_stream_ = stream;
  last_mark_ = *work;
  std::lock_guard lock(mutex_);
  if (released_) mark->spoil(error_);
  if (plan) entries_.push_back({{seq, *plan, Clock::now()}, mark});
  return {};
}

Status GpuExecutor::run(const Plan& plan, Way way, std::uint64_t seq,
                        const std::shared_ptr<GpuStream>& stream, std::shared_ptr<WorkState>* work) {
  auto capture = gpu().capturing(stream->get());
  if (!capture.ok()) return capture.status();
  const bool capturing = *capture != 0;
  if (way != Way::leader || n_ == 1) OURO_TRY(check_buffers(plan.op, plan.id));  // a leader maps them anyway
  OURO_TRY(order(*stream, capturing));
  Status s = n_ == 1                ? run_alone(plan, *stream)
             : way == Way::leader   ? run_leader(plan, seq, *stream, capturing)
             : way == Way::resident ? run_resident(plan, seq, *stream, capturing)
                                    : run_flow(plan, seq, *stream, capturing);
  // What was enqueued before an error has to be waited for as well.
  Status marked = finish(&plan, seq, stream, capturing, work);
  return s.ok() ? marked : s;
}

Status GpuExecutor::post(const Plan& plan, std::uint64_t seq, bool capturing, GpuRef in, GpuRef out,
                         bool* last) {
  OURO_TRY(open_board());
  if (ops_ >= GpuBoard::kCards) OURO_TRY(host_.waiter().until(board_->led(), ops_ - GpuBoard::kCards + 1));
  const Operation& op = plan.op;
  GpuCard& card = board_->card(rank_, ops_);
  card = {.seq = seq,
          .signature = plan.folded,
          .captured = capturing,
          .in = in,
          .out = out,
          .premul = op.op.scalar};
  if (op.uneven && op.collective == Collective::all_to_all && n_ <= GpuCard::kPairs) {
    std::copy(op.in_counts.begin(), op.in_counts.end(), card.send_counts);
    std::copy(op.out_counts.begin(), op.out_counts.end(), card.recv_counts);
  }
  *last = board_->arrive(ops_++);
  if (!*last) return {};
  return compare_cards(plan, seq, capturing);
}

Status GpuExecutor::compare_cards(const Plan& plan, std::uint64_t seq, bool capturing) {
  const std::uint64_t k = ops_ - 1;
  for (int r = 0; r < n_; ++r) {
    const GpuCard& card = board_->card(r, k);
    if (card.seq != seq || card.signature != plan.folded) return host_.disagreement(r, "gpu card");
    if ((card.captured != 0) != capturing)
      return Status(Failure{.reason = Reason::mismatch,
                            .text = card.captured
                                        ? "it captures this operation into a graph; this rank runs it"
                                        : "it runs this operation; this rank captures it into a graph",
                            .rank = r,
                            .detector = "gpu card"});
  }
  if (plan.op.uneven && plan.op.collective == Collective::all_to_all && n_ <= GpuCard::kPairs)
    for (int a = 0; a < n_; ++a)
      for (int b = 0; b < n_; ++b) {
        const std::uint64_t sent = board_->card(a, k).send_counts[b],
                            awaited = board_->card(b, k).recv_counts[a];
        if (sent != awaited)
          return Status(Failure{
              .reason = Reason::mismatch,
              .text = fmt::format("it sends {} elements to rank {}, which expects {}", sent, b, awaited),
              .rank = a,
              .detector = "gpu card"});
      }
  return {};
}

// ---- leader ---------------------------------------------------------------------------------------

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
        "a graph needs memory that other processes can map: from ouro::alloc, or from cudaMalloc where "
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
  const Needs bytes = needs(op, rank_);
  const auto* in_begin = static_cast<const std::byte*>(op.in.data);
  const auto* out_begin = static_cast<const std::byte*>(op.out.data);
  const bool apart = bytes.in == 0 || bytes.out == 0 || in_begin + bytes.in <= out_begin ||
                     out_begin + bytes.out <= in_begin;
  GpuRef in, out;
  bool in_stands = false, out_stands = false;
  if (apart) {
    OURO_TRY(refer(op.in.data, bytes.in, capturing, &bounce_in_, &in, &in_stands));
    OURO_TRY(refer(op.out.data, bytes.out, capturing, &bounce_out_, &out, &out_stands));
  } else {  // in place: one stand-in serves both, at the same distance
    const auto* outer = bytes.in >= bytes.out ? in_begin : out_begin;
    GpuRef both;
    OURO_TRY(refer(outer, std::max(bytes.in, bytes.out), capturing, &bounce_in_, &both, &in_stands));
    out_stands = in_stands;
    const auto at = [&](const std::byte* p) {
      const auto by = static_cast<std::uint64_t>(p - outer);
      return GpuRef{both.id, both.offset + by, both.address + by};
    };
    in = at(in_begin), out = at(out_begin);
  }
  if (in_stands)
    OURO_TRY(gpu().copy(reinterpret_cast<void*>(in.address), op.in.data, bytes.in, stream.get()));
  bool last = false;
  OURO_TRY(post(plan, seq, capturing, in, out, &last));
  OURO_TRY(last ? lead(plan, stream) : follow(stream));
  if (out_stands)
    OURO_TRY(gpu().copy(op.out.data, reinterpret_cast<void*>(out.address), bytes.out, stream.get()));
  return {};
}

Status GpuExecutor::follow(GpuStream& stream) {
  const MemOp ops[] = {{MemOp::Kind::write, 1, board_->ready(rank_).device},
                       {MemOp::Kind::wait_equal, 1, board_->done(rank_).device},
                       {MemOp::Kind::write, 0, board_->done(rank_).device}};
  return enqueue(ops, stream.get());
}

Status GpuExecutor::lead(const Plan& plan, GpuStream& stream) {
  gpu::FusedArgs args;
  OURO_TRY(fill(plan, &args));
  publish(board_->led(), ops_);
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
    before.push_back({MemOp::Kind::wait_equal, 1, board_->ready(r).device});
    before.push_back({MemOp::Kind::write, 0, board_->ready(r).device});
    after.push_back({MemOp::Kind::write, 1, board_->done(r).device});
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

/// The arguments of one launch for all ranks, from their cards.
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
    const bool many_in = op.collective == Collective::reduce_scatter ||
                         op.collective == Collective::all_to_all || op.collective == Collective::scatter;
    const bool many_out = op.collective == Collective::all_gather ||
                          op.collective == Collective::all_to_all || op.collective == Collective::gather;
    in_counts.assign(n, many_in ? n * a->count : a->count);
    out_counts.assign(n, many_out ? n * a->count : a->count);
  } else if (op.collective == Collective::all_to_all) {
    for (int r = 0; r < n_; ++r)
      for (int b = 0; b < n_; ++b) {
        const auto i = block_index(r), j = block_index(b);
        a->send_offsets[r][b + 1] = a->send_offsets[r][b] + board_->card(r, k).send_counts[b];
        a->recv_offsets[r][b + 1] = a->recv_offsets[r][b] + board_->card(r, k).recv_counts[b];
        in_counts[i] += board_->card(r, k).send_counts[j], out_counts[i] += board_->card(r, k).recv_counts[j];
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
    const GpuCard card = board_->card(r, k);  // a copy: a peer could change it under us
    const bool root = r == op.root;
    const bool reads =
        (op.collective != Collective::broadcast && op.collective != Collective::scatter) || root;
    const bool writes = (op.collective != Collective::reduce && op.collective != Collective::gather) || root;
    const auto resolve = [&](const GpuRef& ref, std::size_t count) {
      return r == rank_ ? Result<std::byte*>(reinterpret_cast<std::byte*>(ref.address))
                        : context_.resolve_gpu(host_.world_rank(r), ref, count * elem);
    };
    const auto i = block_index(r);
    if (reads && in_counts[i] > 0) {
      auto at = resolve(card.in, in_counts[i]);
      if (!at.ok()) return at.status();
      a->in[r] = *at;
    }
    if (writes && out_counts[i] > 0) {
      auto at = resolve(card.out, out_counts[i]);
      if (!at.ok()) return at.status();
      a->out[r] = *at;
    }
    a->premul[r] = card.premul;
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

// ---- staged ---------------------------------------------------------------------------------------

struct GpuExecutor::HostBounce {
  std::shared_ptr<Allocation> memory;
  bool pinned = false;
  ~HostBounce() {
    if (pinned) (void)gpu().unregister_host(memory->data()).ok();
  }
};

Status GpuExecutor::run_staged(const Operation& op, const std::shared_ptr<GpuStream>& stream,
                               RunOnHost on_host, std::shared_ptr<WorkState>* work) {
  auto capture = gpu().capturing(stream->get());
  if (!capture.ok()) return capture.status();
  if (*capture != 0)
    return unsupported("an operation that is staged through the host cannot be captured in a graph");
  OURO_TRY(check_buffers(op, 0));
  OURO_TRY(order(*stream, false));
  const Needs bytes = needs(op, rank_);
  const auto room = [&](std::shared_ptr<HostBounce>* bounce, std::size_t n) -> Status {
    if (n == 0 || (*bounce && (*bounce)->memory->bytes() >= n)) return {};
    auto made = std::make_shared<HostBounce>();
    auto memory = context_.allocate(std::bit_ceil(n));
    if (!memory.ok()) return memory.status();
    made->memory = std::move(*memory);
    made->pinned =
        gpu().register_host(made->memory->data(), made->memory->bytes()).ok();  // else copies are slower
    retire(std::move(*bounce));
    *bounce = std::move(made);
    return {};
  };
  const auto* in_begin = static_cast<const std::byte*>(op.in.data);
  auto* out_begin = static_cast<std::byte*>(op.out.data);
  Operation host = op;
  host.in.device = host.out.device = {};
  const bool apart = bytes.in == 0 || bytes.out == 0 || in_begin + bytes.in <= out_begin ||
                     out_begin + bytes.out <= in_begin;
  OURO_TRY(room(&host_in_, apart ? bytes.in : std::max(bytes.in, bytes.out)));
  if (apart) OURO_TRY(room(&host_out_, bytes.out));
  std::byte* in = bytes.in ? host_in_->memory->data() : nullptr;
  std::byte* out = bytes.out ? (apart ? host_out_ : host_in_)->memory->data() : nullptr;
  if (!apart) {  // in place: the same distance between the two
    if (in_begin < out_begin)
      out = in + (out_begin - in_begin);
    else
      in = out + (in_begin - out_begin);
  }
  host.in.data = in, host.out.data = out;
  if (bytes.in) OURO_TRY(gpu().copy(in, op.in.data, bytes.in, stream->get()));
  const auto kept = std::make_shared<const KeptOperation>(host);
  const auto outcome = stream->enqueue([kept, on_host = std::move(on_host)] { return on_host(kept->get()); });
  if (bytes.out) OURO_TRY(gpu().copy(op.out.data, out, bytes.out, stream->get()));
  // The group's own operation, on the host, is the one that is watched.
  std::shared_ptr<WorkState> copied;
  OURO_TRY(finish(nullptr, 0, stream, false, &copied));
  *work = std::make_shared<WorkState>();
  copied->then([work = *work, outcome](const Status& s) { work->complete(s.ok() ? outcome->outcome() : s); });
  return {};
}

}  // namespace ouro::rt
