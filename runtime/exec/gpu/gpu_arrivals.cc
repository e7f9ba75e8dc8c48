// Announcing operations, comparing records, ending waits. See gpu_arrivals.h.
#include "runtime/exec/gpu/gpu_arrivals.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace ouro::rt {
namespace {
// Tell what a group has apart: host segments, device memory.
constexpr std::uint64_t kWordsOf = 0x6770752d626f6172, kStopOf = 0x6770752d73746f70;
constexpr const char* kDetector = "gpu arrival record";

bool pairs_are_told(const Operation& op, int n) {
  return op.uneven && op.collective == Collective::all_to_all && n <= GpuArrival::kPairs;
}
}  // namespace

GpuArrivals::~GpuArrivals() {
  if (team_.rank != 0 || !words_) return;
  team_.context.host_memory().drop_segment(team_.key ^ kWordsOf);
  team_.context.device_memory().drop_block(team_.key ^ kStopOf);
}

Status GpuArrivals::open() {
  if (words_) return {};
  // Not a barrier: ranks that come to two groups in different orders would wait for each other.
  const int owner = team_.world_rank(0);
  auto segment =
      team_.context.host_memory().segment(team_.key ^ kWordsOf, GpuWords::bytes(team_.size), owner);
  if (!segment.ok()) return segment.status();
  auto words = GpuWords::open(std::move(*segment), team_.size);
  if (!words.ok()) return words.status();
  constexpr std::size_t kBytes = 4096;
  auto stop = team_.context.device_memory().block(owner, team_.key ^ kStopOf, kBytes);
  if (!stop.ok()) return stop.status();
  team_.retire(stop->keep);
  auto stream = GpuStream::create(team_.device, 1);
  if (!stream.ok()) return stream.status();
  std::lock_guard lock(mutex_);
  stop_stream_ = std::move(*stream);
  stop_word_ = reinterpret_cast<std::uint32_t*>(stop->data);
  words_ = std::move(*words);
  return {};
}

Status GpuArrivals::announce(const Plan& plan, std::uint64_t seq, std::uint64_t stream, bool capturing,
                             transport::GpuRef in, transport::GpuRef out, bool* last) {
  OURO_TRY(open());
  if (ops_ >= GpuWords::kArrivals)
    OURO_TRY(team_.waiter.until(words_->led(), ops_ - GpuWords::kArrivals + 1));
  const Operation& op = plan.op;
  GpuArrival& arrival = words_->arrival(team_.rank, ops_);
  arrival = {.seq = seq,
             .signature = plan.folded,
             .stream = stream,
             .captured = capturing,
             .in = in,
             .out = out,
             .premul = op.op.scalar};
  if (pairs_are_told(op, team_.size)) {
    std::copy(op.in_counts.begin(), op.in_counts.end(), arrival.send_counts);
    std::copy(op.out_counts.begin(), op.out_counts.end(), arrival.recv_counts);
  }
  *last = words_->arrive(ops_++);
  return *last ? compare(plan, seq, capturing) : Status();
}

Status GpuArrivals::compare(const Plan& plan, std::uint64_t seq, bool capturing) const {
  const std::uint64_t k = ops_ - 1;
  for (int r = 0; r < team_.size; ++r) {
    const GpuArrival& arrival = words_->arrival(r, k);
    if (arrival.seq != seq || arrival.signature != plan.folded) return suspicion(team_.named(r), kDetector);
    if ((arrival.captured != 0) != capturing)
      return Status(Failure{.reason = Reason::mismatch,
                            .text = arrival.captured
                                        ? "it captures this operation into a graph; this rank runs it"
                                        : "it runs this operation; this rank captures it into a graph",
                            .rank = team_.named(r),
                            .detector = kDetector});
  }
  OURO_TRY(compare_streams());
  if (!pairs_are_told(plan.op, team_.size)) return {};
  for (int a = 0; a < team_.size; ++a)
    for (int b = 0; b < team_.size; ++b) {
      const std::uint64_t sent = words_->arrival(a, k).send_counts[b],
                          awaited = words_->arrival(b, k).recv_counts[a];
      if (sent != awaited)
        return Status(Failure{
            .reason = Reason::mismatch,
            .text = fmt::format("it sends {} elements to rank {}, which expects {}", sent, b, awaited),
            .rank = a,
            .detector = kDetector});
    }
  return {};
}

Status GpuArrivals::compare_streams() const {
  if (!team_.shares_process) return {};
  for (int a = 0; a < team_.size; ++a)
    for (int b = a + 1; b < team_.size; ++b)
      if (team_.peer(a).pid == team_.peer(b).pid && team_.record(a).uuid == team_.record(b).uuid &&
          record(a).stream == record(b).stream)
        return Status(
            Failure{.reason = Reason::invalid,
                    .text = fmt::format("ranks {} and {}, threads of one process, are on one stream, "
                                        "where the first waits for the second; expected a stream for "
                                        "each rank",
                                        team_.named(a), team_.named(b)),
                    .rank = team_.named(b),
                    .detector = kDetector});
  return {};
}

std::shared_ptr<GpuWords> GpuArrivals::opened() {
  std::lock_guard lock(mutex_);
  return words_;
}

bool GpuArrivals::poison() {
  const auto words = opened();
  if (words) words->poison();
  return words != nullptr;
}

void GpuArrivals::stop_kernels() {
  using namespace std::chrono_literals;
  if (!opened()) return;
  const gpu::MemOp stop{gpu::MemOp::Kind::write, 1, stop_word_};
  if (!gpu::gpu().enqueue({&stop, 1}, stop_stream_->get()).ok()) return;
  for (const auto soon = Clock::now() + 200ms; Clock::now() < soon; std::this_thread::sleep_for(10us))
    if (auto told = gpu::gpu().query(stop_stream_->get()); !told.ok() || *told) return;
}

void GpuArrivals::set_all(std::uint32_t value) {
  // Further than any rank can be ahead, and less than half of all numbers.
  constexpr std::uint32_t kBeyond = 1u << 30;
  if (const auto words = opened()) words->set_all(value, numbers_.load(std::memory_order_relaxed) + kBeyond);
}

}  // namespace ouro::rt
