// Announcing operations, comparing records, ending waits. See gpu_arrivals.h.
#include "runtime/exec/gpu/gpu_arrivals.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/exec/gpu/setter_streams.h"

namespace ouro::rt {
namespace {
// Tell what a group has apart: host segments, device memory: the stop word, in a page of rank 0's, and behind
// it the words of streams, if they are in device memory.
constexpr std::uint64_t kWordsOf = 0x6770752d626f6172, kStopOf = 0x6770752d73746f70;
constexpr std::size_t kStopBytes = 4096;
constexpr const char* kDetector = "gpu arrival record";

bool pairs_are_told(const Operation& op, int n) { return op.uneven_pairs() && n <= GpuArrival::kPairs; }
std::uint64_t block_key(const GpuTeam& team, int owner) {
  return team.key ^ (kStopOf + static_cast<std::uint64_t>(owner));
}
/// The block of `owner`'s device memory, as this rank sees it. It stays until the group has ended.
Result<DeviceMemory::BlockAt> block(GpuTeam& team, int owner) {
  const std::size_t bytes = kStopBytes + (team.device_words ? GpuWords::word_bytes(team.size) : 0);
  auto at = team.context.device_memory().group_block(team.world_rank(owner), block_key(team, owner), bytes);
  if (at.ok()) team.retire(at->keep);  // the owner may leave first
  return at;
}
}  // namespace

GpuArrivals::~GpuArrivals() {
  const auto written = setter_ ? setter_->memory : std::vector<std::shared_ptr<void>>{stop_memory_};
  keep_until_written(stop_stream_, written);
  if (setter_) keep_until_written(setter_->second, written);
  if (words_ && team_.rank == 0) team_.context.host_memory().drop_segment(team_.key ^ kWordsOf);
  team_.context.device_memory().drop_group_block(
      block_key(team_, team_.rank));  // others may have asked for it
}

Status GpuArrivals::open() {
  if (words_) return {};
  // Not a barrier: ranks that reach two groups in different orders would wait for each other.
  const int owner = team_.world_rank(0);
  auto segment =
      team_.context.host_memory().segment(team_.key ^ kWordsOf, GpuWords::bytes(team_.size), owner);
  if (!segment.ok()) return segment.status();
  auto words = GpuWords::open(std::move(*segment), team_.size);
  if (!words.ok()) return words.status();
  auto stop = block(team_, 0);
  if (!stop.ok()) return stop.status();
  auto stream = setter_stream(team_.device, 1);
  if (!stream.ok()) return stream.status();
  std::lock_guard lock(mutex_);
  stop_stream_ = std::move(*stream);
  stop_word_ = reinterpret_cast<std::uint32_t*>(stop->data);
  stop_memory_ = std::move(stop->keep);
  words_ = std::move(*words);
  return {};
}

Status GpuArrivals::open_words() {
  if (has_words_) return {};
  OURO_TRY(open());
  if (!team_.device_words) {
    has_words_ = true;
    return {};
  }
  std::vector<std::byte*> blocks(static_cast<std::size_t>(team_.size),
                                 reinterpret_cast<std::byte*>(stop_word_) + kStopBytes);
  auto setter = std::make_shared<Setter>();
  setter->memory.push_back(stop_memory_);
  // The devices that map each other can access such a block from its beginning on: no call of the
  // driver opens it.
  for (int r = 1; r < team_.size && !team_.one_gpu; ++r) {
    OURO_ASSIGN(const auto at, block(team_, r));
    blocks[static_cast<std::size_t>(r)] = at.data + kStopBytes;
    setter->memory.push_back(at.keep);
  }
  setter->first = stop_stream_;
  OURO_ASSIGN(setter->second, setter_stream(team_.device, 0));
  words_->put_on_devices(std::move(blocks), !team_.one_gpu);
  for (std::uint32_t value : {0u, 1u}) {
    std::vector<gpu::MemOp>& writes = setter->writes[value];
    writes = words_->writes(team_.rank, value, 0, &setter->numbers);
    // A stream that a word releases finds the stop word set.
    writes.insert(writes.begin(), {gpu::MemOp::Kind::write, 1, stop_word_});
  }
  std::lock_guard lock(mutex_);
  setter_ = std::move(setter);
  has_words_ = true;
  return {};
}

Status GpuArrivals::await_room() {
  OURO_TRY(open());
  if (ops_ < GpuWords::kArrivals) return {};
  return team_.waiter.until(words_->led(), ops_ - GpuWords::kArrivals + 1);
}

Status GpuArrivals::announce(const Plan& plan, std::uint64_t seq, std::uint64_t stream, bool capturing,
                             GpuRef in, GpuRef out, bool* last, bool in_call) {
  OURO_TRY(await_room());
  const Operation& op = plan.op;
  GpuArrival& arrival = words_->arrival(team_.rank, ops_);
  arrival = {.seq = seq,
             .signature = plan.folded,
             .stream = stream,
             .captured = capturing,
             .in_call = in_call,
             .in = in,
             .out = out,
             .premul = op.op.scalar};
  if (pairs_are_told(op, team_.size)) {
    std::copy(op.in_counts.begin(), op.in_counts.end(), arrival.send_counts);
    std::copy(op.out_counts.begin(), op.out_counts.end(), arrival.recv_counts);
  }
  write_note(plan, seq, stream, capturing);
  *last = words_->arrive(ops_++);
  Status noted;
  if (std::atomic_ref(words_->captures()).load(std::memory_order_relaxed) != 0)
    noted = compare_notes(plan, seq, stream, capturing);
  if (!*last) return noted;
  OURO_TRY(compare(plan, seq, capturing));
  OURO_TRY(noted);
  decide();
  return {};
}

// A verdict names the operation and, unless each rank is to do its part, the leader.
static constexpr std::uint64_t kVerdicts = 512;
static_assert(GpuWords::kMaxRanks < kVerdicts);

/// By the last to arrive. Among processes the leader stays the same: it alone maps the buffers of all, and
/// the GPU need not switch to the context of another.
void GpuArrivals::decide() {
  int waiting = 0;
  for (int r = 0; r < team_.size; ++r) waiting += words_->arrival(r, ops_ - 1).in_call != 0;
  if (waiting == 0) return;
  int leader = -1;
  if (waiting == team_.size) {
    leader = team_.abroad ? words_->last_leader() : -1;
    if (leader < 0) leader = team_.rank;
    words_->leads(leader);
  }
  publish(words_->verdict(), ops_ * kVerdicts + static_cast<std::uint64_t>(leader + 1));
}

Result<int> GpuArrivals::leader_of_all() {
  OURO_TRY(team_.waiter.until(words_->verdict(), ops_ * kVerdicts));
  const auto leader = static_cast<int>(load(words_->verdict()) % kVerdicts) - 1;
  if (leader >= team_.size)
    return Status(Failure{.reason = Reason::ring_corrupt,
                          .text = fmt::format("rank {} is to lead, of {} ranks", leader, team_.size),
                          .detector = kDetector});
  return leader;
}

Status GpuArrivals::announce_captured(const Plan& plan, std::uint64_t seq, std::uint64_t stream) {
  OURO_TRY(open());
  ++captured_;
  std::atomic_ref(words_->captures()).fetch_add(1, std::memory_order_seq_cst);
  write_note(plan, seq, stream, true);
  return compare_notes(plan, seq, stream, true);
}

void GpuArrivals::write_note(const Plan& plan, std::uint64_t seq, std::uint64_t stream,
                             bool capturing) const {
  GpuNote& mine = words_->note(team_.rank, seq);
  std::atomic_ref(mine.seq).store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // pairs with the acquire fence in compare_notes
  std::atomic_ref(mine.signature).store(plan.folded, std::memory_order_relaxed);
  std::atomic_ref(mine.stream).store(stream, std::memory_order_relaxed);
  std::atomic_ref(mine.captured).store(capturing, std::memory_order_relaxed);
  std::atomic_ref(mine.seq).store(seq + 1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before this rank reads the others' notes
}

Status GpuArrivals::compare_notes(const Plan& plan, std::uint64_t seq, std::uint64_t stream,
                                  bool capturing) const {
  for (int r = 0; r < team_.size; ++r) {
    GpuNote& note = words_->note(r, seq);
    const auto written = [&](std::memory_order order) {
      return std::atomic_ref(note.seq).load(order) == seq + 1;
    };
    if (r == team_.rank || !written(std::memory_order_acquire)) continue;
    const auto signature = std::atomic_ref(note.signature).load(std::memory_order_relaxed);
    const auto on = std::atomic_ref(note.stream).load(std::memory_order_relaxed);
    const bool captured = std::atomic_ref(note.captured).load(std::memory_order_relaxed) != 0;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!written(std::memory_order_relaxed)) continue;  // that rank is far ahead
    if (signature != plan.folded) return suspicion(team_.named(r), kDetector);
    if (captured != capturing) return captured_by_one(r, captured);
    if (on == stream && team_.here(r) && team_.record(r).uuid == team_.record(team_.rank).uuid)
      return on_one_stream(std::min(r, team_.rank), std::max(r, team_.rank));
  }
  return {};
}

Status GpuArrivals::captured_by_one(int r, bool by_it) const {
  return Status(Failure{.reason = Reason::mismatch,
                        .text = by_it ? "it captures this operation into a graph; this rank runs it"
                                      : "it runs this operation; this rank captures it into a graph",
                        .rank = team_.named(r),
                        .detector = kDetector});
}

Status GpuArrivals::on_one_stream(int a, int b) const {
  return Status(
      Failure{.reason = Reason::invalid,
              .text = fmt::format("ranks {} and {}, threads of one process, are on one stream, "
                                  "where the first waits for the second; expected a stream for each rank",
                                  team_.named(a), team_.named(b)),
              .rank = team_.named(b),
              .detector = kDetector});
}

Status GpuArrivals::compare(const Plan& plan, std::uint64_t seq, bool capturing) const {
  const std::uint64_t k = ops_ - 1;
  for (int r = 0; r < team_.size; ++r) {
    const GpuArrival& arrival = words_->arrival(r, k);
    if (arrival.seq != seq || arrival.signature != plan.folded) return suspicion(team_.named(r), kDetector);
    if ((arrival.captured != 0) != capturing) return captured_by_one(r, arrival.captured != 0);
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
      if (team_.context.members().are_threads(team_.world_rank(a), team_.world_rank(b)) &&
          team_.record(a).uuid == team_.record(b).uuid && record(a).stream == record(b).stream)
        return on_one_stream(a, b);
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
  const Status enqueued = team_.device_words
                              ? gpu::gpu().enqueue({&stop, 1}, stop_stream_->get())
                              : gpu::gpu().set(stop_word_, 1, sizeof *stop_word_, stop_stream_->get());
  if (!enqueued.ok()) return;
  for (const auto soon = Clock::now() + 200ms; Clock::now() < soon; std::this_thread::sleep_for(10us))
    if (auto told = gpu::gpu().query(stop_stream_->get()); !told.ok() || *told) return;
}

void GpuArrivals::set_all(std::uint32_t value) {
  // Further than any rank can be ahead, and less than half of all numbers.
  constexpr std::uint32_t kBeyond = 1u << 30;
  const std::uint32_t number = numbers_.load(std::memory_order_relaxed) + kBeyond;
  std::shared_ptr<GpuWords> words;
  std::shared_ptr<Setter> setter;
  {
    std::lock_guard lock(mutex_);
    words = words_, setter = setter_;
  }
  if (setter)
    set_on_device(*setter, number);
  else if (words && !team_.device_words)
    words->set_all(value, number);
}

/// A pass has an end before the next one begins, so it neither fills the stream nor hides a value from
/// streams that have not polled yet. So the value alternates with the passes, not with the calls.
void GpuArrivals::set_on_device(Setter& s, std::uint32_t number) const {
  using namespace std::chrono_literals;
  constexpr auto kLate = 5ms;  // a pass takes microseconds
  std::lock_guard lock(s.mutex);
  const bool first = idle(*s.first);
  if (!first && (Clock::now() < s.began + kLate || !idle(*s.second))) return;
  std::vector<gpu::MemOp>& writes = s.writes[s.value];
  for (std::size_t i = 1; i <= s.numbers; ++i) writes[i].value = number;
  if (first) s.began = Clock::now();
  if (gpu::gpu().enqueue(writes, (first ? s.first : s.second)->get()).ok()) s.value ^= 1;
}

}  // namespace ouro::rt
