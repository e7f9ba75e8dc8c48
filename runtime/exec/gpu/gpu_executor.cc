// The GPU executor: choice of the path, order, arrival records, marks and release. See gpu_executor.h. The
// paths are in gpu_leader.cc, gpu_resident.cc, gpu_flow.cc and gpu_staged.cc.
#include "runtime/exec/gpu/gpu_executor.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/gpu/resident.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;
using gpu::gpu;
using gpu::MemOp;
using transport::GpuRef;

// Tell what a group has apart: host segments, device memory.
constexpr std::uint64_t kStagingOf = 0x6770752d626f6172, kStopOf = 0x6770752d73746f70;

}  // namespace

// ---- marks ----------------------------------------------------------------------------------------

/// Passed with its event, unless the staging buffer was poisoned by then: then it fails, when this rank has
/// learned why.
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
  void poison(const Status& why) {
    std::lock_guard lock(mutex_);
    if (passed_) return;
    explain(why);
  }

 private:
  bool passed_locked() {
    if (passed_) return true;
    auto there = gpu().query(event_->get());
    if (there.ok() && !*there) return false;
    if (!there.ok() && !explained_) explain(there.status());
    if (!explained_ && doubtful_ && doubtful_()) return false;
    doubtful_ = nullptr;
    return passed_ = true;
  }
  void explain(const Status& why) {
    outcome_ = why;
    explained_ = true;
    stream_->note(why);
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
    const GpuRecord& a = context_.gpu_record(host_.world_rank(r));
    if (!a.present && t.without < 0) t.without = r;
    t.values &= a.stream_values != 0;
    std::uint32_t share = 0;
    for (int q = 0; q < n_; ++q) {
      const GpuRecord& b = context_.gpu_record(host_.world_rank(q));
      const bool near = context_.peer(host_.world_rank(r)).node == context_.peer(host_.world_rank(q)).node;
      const bool same = near && a.uuid == b.uuid;
      t.one &= same;
      t.apart &= !same || r == q;
      t.concurrent &=
          !same || context_.peer(host_.world_rank(r)).pid == context_.peer(host_.world_rank(q)).pid;
      t.reach &=
          same || (near && std::find(a.reach, a.reach + a.reach_count, b.uuid) != a.reach + a.reach_count);
      share += same;
    }
    // One block a multiprocessor, whatever else they could hold, and half of them for others.
    fewest = std::min(fewest, a.multiprocessors / 2 / std::max(1u, share));
  }
  t.channels = static_cast<int>(fewest);
  const int mine = context_.peer(host_.world_rank(rank_)).pid;
  for (int r = 0; r < n_; ++r)
    (context_.peer(host_.world_rank(r)).pid == mine && !context_.is_remote(host_.world_rank(r))
         ? shares_process_
         : abroad_) |= r != rank_;
}

GpuExecutor::~GpuExecutor() {
  stop_.store(true);
  if (releaser_.joinable()) releaser_.join();
  for (Bounce* b : {&bounce_in_, &bounce_out_})
    if (b->id != 0) context_.gpu_exports().withdraw(b->id);
  if (!slots_.empty()) context_.drop_gpu_block(key_ + static_cast<std::uint64_t>(rank_) + 1);
  drop_resident();
  if (rank_ == 0 && staging_) {
    context_.drop_segment(key_ ^ kStagingOf);
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
  if (staging_) staging_->poison();
  abort_resident();
  for (Entry& e : entries_) e.mark->poison(why);
  if (entries_.empty() || !staging_) return;
  // Each pass over the words ends at least one wait of every stream, whichever value it waits for. Streams
  // come to their next waits within microseconds.
  releaser_ = Thread("ouro-release", [this] {
    const auto end = Clock::now() + 10s;
    // First what has not begun is told to touch nothing: buffers may go once their owners have heard of the
    // failure.
    const MemOp stop{MemOp::Kind::write, 1, stop_word_};
    if (gpu().enqueue({&stop, 1}, stop_stream_->get()).ok())
      for (const auto soon = Clock::now() + 200ms; Clock::now() < soon; std::this_thread::sleep_for(10us))
        if (auto told = gpu().query(stop_stream_->get()); !told.ok() || *told) break;
    for (std::uint32_t value = 1; !stop_.load() && Clock::now() < end; value ^= 1) {
      staging_->set_all(value);
      std::this_thread::sleep_for(20us);
      std::lock_guard all(mutex_);
      if (std::all_of(entries_.begin(), entries_.end(), [](Entry& e) { return e.mark->passed(); })) break;
    }
  });
}

// ---- choice ---------------------------------------------------------------------------------------

Result<GpuExecutor::Path> GpuExecutor::path(const Operation& op, const Choice& choice,
                                            std::string* why) const {
  const Topology& t = topology_;
  if (t.without >= 0)
    return unsupported(
        fmt::format("rank {} has no GPU; operations on device memory need one on every rank", t.without));
  if (!t.values) return unsupported("this GPU's streams cannot wait for values in memory");
  const bool pairs = op.uneven && op.collective == Collective::all_to_all;
  const bool fused = t.one && n_ <= (pairs ? gpu::FusedArgs::kMaxUnevenPairs : gpu::FusedArgs::kMaxRanks);
  // Rank order over links is the chain's alone.
  const bool ordered = op.numerics == Numerics::canonical && op.collective == Collective::reduce_scatter;
  const bool flows = t.reach && n_ <= GpuStaging::kMaxRanks && !ordered;
  const bool resident = t.reach && t.concurrent && t.channels > 0 && !op.uneven && n_ > 1 &&
                        n_ <= gpu::ResidentLayout::kMaxRanks;
  const auto say = [&](Path w, std::string_view text) {
    if (why) *why = text;
    return w;
  };
  const std::string& wanted = context_.spec().gpu_path;
  if (wanted == "leader" && fused) return say(Path::leader, "leader: OURO_GPU_PATH");
  if (wanted == "resident" && resident) return say(Path::resident, "resident: OURO_GPU_PATH");
  if (wanted == "stream" && flows) return say(Path::stream, "stream-ordered: OURO_GPU_PATH");
  if (wanted == "staged") return say(Path::staged, "staged: OURO_GPU_PATH");
  if (choice.forced && !choice.staging && flows)
    return say(Path::stream, fmt::format("stream-ordered {}: asked for by name", name(choice.algorithm)));
  if (fused) return say(Path::leader, "leader: all ranks have one GPU, one kernel serves them all");
  if (resident && t.apart)
    return say(Path::resident, "resident: each rank has a GPU and can map the others'");
  if (flows) return say(Path::stream, "stream-ordered: each rank can map the others' GPUs");
  return say(Path::staged, "staged through the host: GPUs that cannot map each other");
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
  const std::size_t in = op.read_bytes(rank_), out = op.written_bytes(rank_);
  if (in > 0) OURO_TRY(context_.gpu_exports().find(op.in.data, in, device_).status());
  if (out > 0) OURO_TRY(context_.gpu_exports().find(op.out.data, out, device_).status());
  checked_plan_ = plan;
  return {};
}

Status GpuExecutor::enqueue(std::span<const MemOp> ops, const gpu::Stream& s) {
  return ops.empty() ? Status() : gpu().enqueue(ops, s);
}

Status GpuExecutor::open_staging() {
  if (staging_) return {};
  // Not a rendezvous: ranks that come to two groups in different orders would wait for each other.
  auto segment = context_.segment(key_ ^ kStagingOf, GpuStaging::bytes(n_), host_.world_rank(0));
  if (!segment.ok()) return segment.status();
  auto staging = GpuStaging::open(std::move(*segment), n_);
  if (!staging.ok()) return staging.status();
  constexpr std::size_t kBytes = 4096;
  auto stop = context_.gpu_block(host_.world_rank(0), key_ ^ kStopOf, kBytes);
  if (!stop.ok()) return stop.status();
  retire(stop->keep);
  auto stream = GpuStream::create(device_, 1);
  if (!stream.ok()) return stream.status();
  std::lock_guard lock(mutex_);
  stop_stream_ = std::move(*stream);
  stop_word_ = reinterpret_cast<std::uint32_t*>(stop->data);
  staging_ = std::move(*staging);
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
  if (released_) mark->poison(error_);
  if (plan) entries_.push_back({{seq, *plan, Clock::now()}, mark});
  return {};
}

Status GpuExecutor::run(const Plan& plan, Path path, std::uint64_t seq,
                        const std::shared_ptr<GpuStream>& stream, std::shared_ptr<WorkState>* work) {
  auto capture = gpu().capturing(stream->get());
  if (!capture.ok()) return capture.status();
  const bool capturing = *capture != 0;
  if (path != Path::leader || n_ == 1)
    OURO_TRY(check_buffers(plan.op, plan.id));  // a leader maps them anyway
  OURO_TRY(order(*stream, capturing));
  Status s = n_ == 1                  ? run_alone(plan, *stream)
             : path == Path::leader   ? run_leader(plan, seq, *stream, capturing)
             : path == Path::resident ? run_resident(plan, seq, *stream, capturing)
                                      : run_flow(plan, seq, *stream, capturing);
  // What was enqueued before an error has to be waited for as well.
  Status marked = finish(&plan, seq, stream, capturing, work);
  return s.ok() ? marked : s;
}

Status GpuExecutor::post(const Plan& plan, std::uint64_t seq, bool capturing, GpuRef in, GpuRef out,
                         bool* last) {
  OURO_TRY(open_staging());
  if (ops_ >= GpuStaging::kArrivals)
    OURO_TRY(host_.waiter().until(staging_->led(), ops_ - GpuStaging::kArrivals + 1));
  const Operation& op = plan.op;
  GpuArrival& arrival = staging_->arrival(rank_, ops_);
  arrival = {.seq = seq,
             .signature = plan.folded,
             .captured = capturing,
             .in = in,
             .out = out,
             .premul = op.op.scalar};
  if (op.uneven && op.collective == Collective::all_to_all && n_ <= GpuArrival::kPairs) {
    std::copy(op.in_counts.begin(), op.in_counts.end(), arrival.send_counts);
    std::copy(op.out_counts.begin(), op.out_counts.end(), arrival.recv_counts);
  }
  *last = staging_->arrive(ops_++);
  if (!*last) return {};
  return compare_arrivals(plan, seq, capturing);
}

Status GpuExecutor::compare_arrivals(const Plan& plan, std::uint64_t seq, bool capturing) {
  const std::uint64_t k = ops_ - 1;
  for (int r = 0; r < n_; ++r) {
    const GpuArrival& arrival = staging_->arrival(r, k);
    if (arrival.seq != seq || arrival.signature != plan.folded)
      return host_.disagreement(r, "gpu arrival record");
    if ((arrival.captured != 0) != capturing)
      return Status(Failure{.reason = Reason::mismatch,
                            .text = arrival.captured
                                        ? "it captures this operation into a graph; this rank runs it"
                                        : "it runs this operation; this rank captures it into a graph",
                            .rank = r,
                            .detector = "gpu arrival record"});
  }
  if (plan.op.uneven && plan.op.collective == Collective::all_to_all && n_ <= GpuArrival::kPairs)
    for (int a = 0; a < n_; ++a)
      for (int b = 0; b < n_; ++b) {
        const std::uint64_t sent = staging_->arrival(a, k).send_counts[b],
                            awaited = staging_->arrival(b, k).recv_counts[a];
        if (sent != awaited)
          return Status(Failure{
              .reason = Reason::mismatch,
              .text = fmt::format("it sends {} elements to rank {}, which expects {}", sent, b, awaited),
              .rank = a,
              .detector = "gpu arrival record"});
      }
  return {};
}

}  // namespace ouro::rt
