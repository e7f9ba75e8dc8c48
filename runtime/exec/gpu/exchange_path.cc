// Arenas, launches and ends of exchanges. See exchange_path.h.
#include "runtime/exec/gpu/exchange_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "runtime/context/context.h"
#include "runtime/device_memory/deferred_free.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kExchangeArenaOf =
    0x65786368616e6765;  // distinguishes arenas of exchanges from other device memory of a group
/// Blocks of a launch, at most. 32 of 512 threads have 4 MiB on their way.
constexpr int kExchangeChannels = 32;
/// Memory of a list of transfers is taken in such pieces, of which the pool keeps some from the first
/// exchange on: a driver may pin memory only when the device is idle.
constexpr std::size_t kListBytes = 16 << 10;

}  // namespace

/// The memory that exchange kernels of a group share, and the words by which they and the host communicate.
struct ExchangePath::Shared {
  gpu::ExchangeLayout layout;
  std::vector<std::byte*> arena;  // by rank
  std::shared_ptr<void> pinned;   // of the pool: nothing is unpinned while kernels may spin
  gpu::ResidentError* error = nullptr;
  std::uint32_t* abort = nullptr;
  std::uint32_t* waits = nullptr;

  gpu::ResidentFault fault() const { return std::atomic_ref(error->fault).load(std::memory_order_acquire); }
  bool faulted() const { return fault() != gpu::ResidentFault::none; }
};

class ExchangePath::Mark final : public EndMark {
 public:
  /// `list`: memory of the transfers, which the kernel reads.
  Mark(std::shared_ptr<GpuStream> stream, std::shared_ptr<EndWord> end, std::uint32_t number,
       std::shared_ptr<Shared> shared, std::shared_ptr<void> list)
      : EndMark(std::move(stream), std::move(end), number),
        shared_(std::move(shared)),
        list_(std::move(list)) {}

 private:
  bool is_doubtful() const override { return shared_->faulted(); }
  void release() override { list_.reset(); }
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<void> list_;
};

const char* ExchangePath::obstacle(const GpuTopology& t) {
  if (t.without >= 0) return "a rank has no GPU";
  if (!t.reach) return "not all ranks' GPUs can map each other";
  if (!t.concurrent)
    return "ranks of one GPU are in different processes, whose kernels do not run at the same time";
  if (!t.queues && t.ranks > 1) return "ranks that are threads share too few hardware queues";
  if (t.channels <= 0) return "a GPU has too few multiprocessors for a block of each rank";
  if (t.ranks > kMaxRanks) return "its kernels serve at most 64 ranks";
  return nullptr;
}

ExchangePath::ExchangePath(Context& context, const Members& members, Waiter& waiter, std::uint64_t key,
                           std::chrono::milliseconds deadline, const GpuTopology& topology)
    : team_{context, members, waiter, members.rank(), members.size(), key, deadline}, topology_(topology) {
  team_.find_neighbours();
}

ExchangePath::~ExchangePath() {
  entries_.clear();
  last_mark_.reset();
  shared_.reset();
}

void ExchangePath::drop_arena(Context& context, std::uint64_t key, int rank) {
  context.device_memory().drop_group_block(key ^ (kExchangeArenaOf + static_cast<std::uint64_t>(rank)));
}

Status ExchangePath::open_arena(int rank, Shared& shared) {
  std::byte*& arena = shared.arena[static_cast<std::size_t>(rank)];
  if (arena) return {};
  OURO_ASSIGN(auto block,
              team_.context.device_memory().group_block(
                  team_.world_rank(rank), team_.key ^ (kExchangeArenaOf + static_cast<std::uint64_t>(rank)),
                  shared.layout.bytes()));
  arena = block.data;
  team_.retire(std::move(block.keep));  // peers write their last words after the owner has left
  return {};
}

/// Everything of all ranks of this process is made by the first of them that comes here: a driver may
/// allocate memory, or open it to another device, only when the device is idle, and later the kernels of some
/// may be waiting for others.
Status ExchangePath::open() {
  if (shared_) return {};
  auto made = std::make_shared<Shared>();
  OURO_ASSIGN(made->layout,
              gpu::exchange_layout(team_.size, std::min(topology_.channels, kExchangeChannels)));
  const gpu::Kernel& kernel = gpu::exchange_kernel();
  const auto fit = gpu::gpu().resident_blocks(kernel, gpu::kResidentThreads, team_.device);
  if (!fit.ok() && fit.status().reason() != Reason::unsupported) return fit.status();
  if (fit.ok() && *fit < made->layout.channels)
    return {Reason::resource, fmt::format("kernel {} spins, and of its {} blocks only {} fit on the device",
                                          kernel.name, made->layout.channels, *fit)};
  OURO_ASSIGN(end_word_, EndWord::take(team_.device));
  OURO_TRY(take_pinned(kListBytes).status());
  constexpr std::size_t kLine = 128, kWaits = kMaxRanks * sizeof(std::uint32_t);
  OURO_ASSIGN(made->pinned, take_pinned(2 * kLine + kWaits));
  std::memset(made->pinned.get(), 0, 2 * kLine + kWaits);
  auto* const words = static_cast<std::byte*>(made->pinned.get());
  made->error = reinterpret_cast<gpu::ResidentError*>(words);
  made->abort = reinterpret_cast<std::uint32_t*>(words + kLine);
  made->waits = reinterpret_cast<std::uint32_t*>(words + 2 * kLine);
  for (int r = 0; r < team_.size; ++r)
    for (int q = 0; q < team_.size; ++q)
      if (team_.here(r) && team_.here(q) && team_.record(r).uuid != team_.record(q).uuid)
        OURO_TRY(gpu::gpu().enable_peer(team_.record(r).device, team_.record(q).device));
  made->arena.resize(static_cast<std::size_t>(team_.size));
  for (int q = 0; q < team_.size; ++q)  // one that has left is needed only by an exchange that names it
    if (const Status s = open_arena(q, *made); !s.ok() && q == team_.rank) return s;
  std::lock_guard lock(mutex_);
  if (!why_.ok()) std::atomic_ref(*made->abort).store(1, std::memory_order_release);
  shared_ = std::move(made);
  return {};
}

Status ExchangePath::check_buffers(std::span<const Transfer> transfers) {
  GpuExports& exports = team_.context.device_memory().exports();
  for (const Transfer& t : transfers) {
    if (t.bytes == 0) continue;
    Known& known = known_[(reinterpret_cast<std::uintptr_t>(t.data) >> 8) % known_.size()];
    if (known.data == t.data && known.bytes >= t.bytes) continue;
    OURO_TRY(exports.find(t.data, t.bytes, team_.device).status());
    known = {t.data, t.bytes};
  }
  return {};
}

Status ExchangePath::pack(std::span<const Transfer> transfers, gpu::ExchangeArgs* a,
                          std::shared_ptr<void>* many) const {
  gpu::ExchangeTransfer* list = a->few;
  if (transfers.size() > gpu::ExchangeArgs::kInline) {
    OURO_ASSIGN(*many, take_pinned(std::max(kListBytes, transfers.size() * sizeof(gpu::ExchangeTransfer))));
    a->many = list = static_cast<gpu::ExchangeTransfer*>(many->get());
  }
  const auto n = static_cast<std::size_t>(team_.size);
  std::uint32_t at = 0;
  for (const bool sends : {true, false}) {
    std::uint32_t* const first = sends ? a->sends : a->receives;
    std::uint32_t next[kMaxRanks] = {};
    for (const Transfer& t : transfers) next[t.peer] += t.sends == sends;
    for (std::size_t p = 0; p < n; ++p) first[p] = at, at += std::exchange(next[p], at);
    first[n] = at;
    for (const Transfer& t : transfers) {
      if (t.sends != sends) continue;
      list[next[t.peer]++] = {t.data, t.bytes};
      a->channels |= gpu::exchange_channels(a->layout, sends ? team_.rank : t.peer,
                                            sends ? t.peer : team_.rank, t.bytes);
    }
  }
  return {};
}

Status ExchangePath::run(std::span<const Transfer> transfers, const std::shared_ptr<GpuStream>& stream,
                         std::shared_ptr<WorkState>* work) {
  free_if_idle();
  std::lock_guard in_order(order_);
  OURO_TRY(check_buffers(transfers));
  OURO_TRY(open());
  for (const Transfer& t : transfers) OURO_TRY(open_arena(t.peer, *shared_));
  return enqueue(transfers, stream, work);
}

Status ExchangePath::enqueue(std::span<const Transfer> transfers, const std::shared_ptr<GpuStream>& stream,
                             std::shared_ptr<WorkState>* work) {
  OURO_ASSIGN(const std::uint64_t capture, gpu::gpu().capturing(stream->get()));
  gpu::ExchangeArgs a;
  a.layout = shared_->layout;
  std::shared_ptr<void> many;
  OURO_TRY(pack(transfers, &a, &many));
  a.rank = team_.rank;
  a.one_device = topology_.one && !team_.abroad;
  for (int r = 0; r < team_.size; ++r) a.same_process |= std::uint64_t{team_.here(r)} << r;
  a.deadline_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(team_.deadline).count());
  a.abort = shared_->abort, a.error = shared_->error, a.waits = shared_->waits;
  std::copy(shared_->arena.begin(), shared_->arena.end(), a.arena);
  if (capture == 0) a.ended = {end_word_->address(), end_word_->next_number()};
  const auto launch = gpu::exchange(a);
  if (!launch.ok()) return launch.status();
  const auto begin = [&] { return gpu::gpu().launch(*launch->kernel, launch->shape, &a, stream->get()); };
  if (capture != 0) {  // nothing runs yet, and what runs later reports through the group
    note_graph_capture();
    team_.retire(many);
    *work = std::make_shared<WorkState>();
    OURO_TRY(begin());
    (*work)->complete({});
    ran_.fetch_add(1, std::memory_order_relaxed);
    return {};
  }
  const auto mark = std::make_shared<Mark>(stream, end_word_, a.ended.number, shared_, many);
  std::list<Entry> entry;
  entry.push_back({{.start = Clock::now()}, mark});
  for (const Transfer& t : transfers) entry.front().pending.peers.set(static_cast<std::size_t>(t.peer));
  auto made = std::make_shared<WorkState>(mark);
  // The counts in the arenas are those of one launch after the other.
  if (last_mark_ && !last_stream_->is(*stream) && !last_mark_->mark()->passed())
    OURO_TRY(last_mark_->mark()->hold_up(stream->get()));
  OURO_TRY(begin());
  stream->ends_with(mark);
  *work = made;
  ran_.fetch_add(1, std::memory_order_relaxed);
  last_stream_ = stream, last_mark_ = std::move(made);
  std::lock_guard lock(mutex_);
  if (!why_.ok()) mark->fail(why_);
  entries_.splice(entries_.end(), entry);
  return {};
}

void ExchangePath::drop_ended() {
  while (!entries_.empty() && entries_.front().mark->passed()) {
    const Status outcome = entries_.front().mark->outcome();
    if (why_.ok() && failure_.ok()) failure_ = outcome;
    entries_.pop_front();
  }
}

void ExchangePath::with_oldest(const std::function<void(Pending&, const Ranks&)>& f) {
  std::unique_lock lock(mutex_);
  drop_ended();
  if (entries_.empty() || !why_.ok()) return;
  Ranks awaited;
  for (std::size_t p = 0; p < static_cast<std::size_t>(team_.size); ++p) {
    const std::uint32_t waits = std::atomic_ref(shared_->waits[p]).load(std::memory_order_relaxed);
    awaited[p] = std::exchange(waits_[p], waits) != waits && entries_.front().pending.peers[p];
  }
  const std::shared_ptr<Mark> mark = entries_.front().mark;
  Pending copy = entries_.front().pending;
  lock.unlock();  // f may fail the group, which calls release()
  f(copy, awaited);
  lock.lock();
  if (!entries_.empty() && entries_.front().mark == mark) entries_.front().pending = copy;
}

std::optional<Failure> ExchangePath::fault() {
  constexpr const char* kDetector = "exchange kernel";
  std::lock_guard lock(mutex_);
  if (!shared_) return std::nullopt;
  const gpu::ResidentError& e = *shared_->error;
  const auto fault = shared_->fault();
  if (fault == gpu::ResidentFault::none) return std::nullopt;  // the rest may be being written
  const int peer = e.peer >= 0 && e.peer < team_.size ? e.peer : -1;
  switch (fault) {
    case gpu::ResidentFault::none:
    case gpu::ResidentFault::aborted:  // the group knows why, or another rank is about to publish it
      return std::nullopt;
    case gpu::ResidentFault::deadline:
      return Failure{.reason = Reason::deadline,
                     .text = fmt::format("rank {} has not sent or taken a message of an exchange", peer),
                     .rank = peer,
                     .detector = kDetector};
    case gpu::ResidentFault::counts:
      return Failure{.reason = Reason::mismatch,
                     .text = fmt::format("it sends {} bytes to rank {}, which expects {}", e.sent, team_.rank,
                                         e.expected),
                     .rank = peer,
                     .detector = kDetector};
    case gpu::ResidentFault::mismatch:
    case gpu::ResidentFault::reference:
      break;
  }
  return Failure{.reason = Reason::ring_corrupt, .text = "an unknown fault", .detector = kDetector};
}

Status ExchangePath::failure() {
  std::lock_guard lock(mutex_);
  return failure_;
}

void ExchangePath::release(const Status& why) {
  std::lock_guard lock(mutex_);
  if (!why_.ok()) return;
  drop_ended();
  why_ = why;
  if (shared_) std::atomic_ref(*shared_->abort).store(1, std::memory_order_release);
  for (Entry& e : entries_) e.mark->fail(why);
}

bool ExchangePath::idle() {
  std::lock_guard lock(mutex_);
  drop_ended();
  return entries_.empty();
}

void ExchangePath::drain() {
  while (!idle()) std::this_thread::sleep_for(100us);
}

}  // namespace ouro::rt
