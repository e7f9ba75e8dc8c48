// Virtual time over emulated devices. See priced_gpu.h.
#include "tests/runtime/exec/gpu/priced_gpu.h"

#include <algorithm>
#include <string_view>

#include "kernels/gpu/resident.h"

namespace ouro::test {

using gpu::CountingGpu;

double PricedGpu::now() {
  const std::lock_guard lock(mutex_);
  return clocks_[std::this_thread::get_id()];
}

PricedGpu::Stage& PricedGpu::add_locked(gpu::Stream s, double enqueued) {
  const auto [last, first] = last_.try_emplace(key(s), -1);
  stages_.push_back({.enqueued = enqueued, .before = last->second});
  last->second = static_cast<int>(stages_.size()) - 1;
  return stages_.back();
}

PricedGpu::Stage& PricedGpu::piece_locked(gpu::Stream s) {
  double& clock = clocks_[std::this_thread::get_id()];
  double& free = locks_[s.device];
  clock = free = std::max(clock, free) + prices_.piece;
  return add_locked(s, clock);
}

int PricedGpu::written_locked(const gpu::MemOp& wait, std::size_t nth) const {
  const auto word = words_.find(wait.address);
  if (word == words_.end()) return -1;
  std::size_t equal = 0;
  for (const auto& [value, stage] : word->second.writes) {
    if (wait.kind == gpu::MemOp::Kind::wait_equal) {
      if (value == wait.value && equal++ == nth) return stage;
    } else if (static_cast<std::int32_t>(value - wait.value) >= 0) {
      return stage;
    }
  }
  return -1;
}

/// Without what it meets.
double PricedGpu::start_locked(int stage) {
  const Stage s = stages_[static_cast<std::size_t>(stage)];
  double start = s.enqueued;
  if (s.before >= 0) start = std::max(start, end_locked(s.before));
  if (s.event >= 0) start = std::max(start, end_locked(s.event));
  for (const gpu::MemOp& wait : s.words)
    if (const int written = written_locked(wait, s.nth); written >= 0)
      start = std::max(start, end_locked(written));
  return start;
}

double PricedGpu::end_locked(int stage) {
  const auto at = static_cast<std::size_t>(stage);
  if (stages_[at].end >= 0) return stages_[at].end;
  double start = start_locked(stage);
  if (const int meeting = stages_[at].meeting; meeting >= 0)
    for (const int other : meetings_[static_cast<std::size_t>(meeting)])
      if (other != stage) start = std::max(start, start_locked(other));
  return stages_[at].end = start + stages_[at].takes;
}

void PricedGpu::arrive(int stage) {
  const std::lock_guard lock(mutex_);
  double& clock = clocks_[std::this_thread::get_id()];
  if (stage >= 0) clock = std::max(clock, end_locked(stage));
  clock += prices_.query;
}

void PricedGpu::saw_end(gpu::Stream s) {
  int stage = -1;
  {
    const std::lock_guard lock(mutex_);
    if (const auto last = last_.find(key(s)); last != last_.end()) stage = last->second;
  }
  arrive(stage);
}

void PricedGpu::saw_all_end(int device) {
  const std::lock_guard lock(mutex_);
  double& clock = clocks_[std::this_thread::get_id()];
  for (const auto& [stream, stage] : last_)
    if (stream.first == device && stage >= 0) clock = std::max(clock, end_locked(stage));
  clock += prices_.query;
}

void PricedGpu::pass(double us) {
  const std::lock_guard lock(mutex_);
  clocks_[std::this_thread::get_id()] += us;
}

Result<gpu::Region> PricedGpu::import_fd(int device, const Fd& fd, std::size_t bytes) {
  pass(prices_.map);
  return CountingGpu::import_fd(device, fd, bytes);
}
Result<void*> PricedGpu::ipc_open(int device, const gpu::IpcHandle& handle) {
  pass(prices_.map);
  return CountingGpu::ipc_open(device, handle);
}

Result<bool> PricedGpu::query(gpu::Stream s) {
  int stage = -1;
  {
    const std::lock_guard lock(mutex_);
    if (const auto last = last_.find(key(s)); last != last_.end()) stage = last->second;
  }
  auto ended = CountingGpu::query(s);
  if (ended.ok() && *ended) arrive(stage);
  return ended;
}
Result<bool> PricedGpu::query(gpu::Event e) {
  int stage = -1;
  {
    const std::lock_guard lock(mutex_);
    if (const auto recorded = events_.find(e.handle); recorded != events_.end()) stage = recorded->second;
  }
  auto ended = CountingGpu::query(e);
  if (ended.ok() && *ended) arrive(stage);
  return ended;
}
Status PricedGpu::synchronize(gpu::Stream s) {
  OURO_TRY(CountingGpu::synchronize(s));
  return query(s).status();
}
Status PricedGpu::synchronize(gpu::Event e) {
  OURO_TRY(CountingGpu::synchronize(e));
  return query(e).status();
}

Status PricedGpu::record(gpu::Event e, gpu::Stream s) {
  {
    const std::lock_guard lock(mutex_);
    piece_locked(s);
    events_[e.handle] = last_[key(s)];
  }
  return CountingGpu::record(e, s);
}
Status PricedGpu::wait(gpu::Stream s, gpu::Event e) {
  {
    const std::lock_guard lock(mutex_);
    Stage& stage = piece_locked(s);
    stage.takes = prices_.hop;
    if (const auto recorded = events_.find(e.handle); recorded != events_.end())
      stage.event = recorded->second;
  }
  return CountingGpu::wait(s, e);
}
Status PricedGpu::copy(void* to, const void* from, std::size_t bytes, gpu::Stream s) {
  {
    const std::lock_guard lock(mutex_);
    piece_locked(s).takes = prices_.hop;
  }
  return CountingGpu::copy(to, from, bytes, s);
}
Status PricedGpu::set(void* to, std::uint8_t byte, std::size_t bytes, gpu::Stream s) {
  {
    const std::lock_guard lock(mutex_);
    piece_locked(s).takes = prices_.hop;
  }
  return CountingGpu::set(to, byte, bytes, s);
}

Status PricedGpu::enqueue(std::span<const gpu::MemOp> ops, gpu::Stream s) {
  {
    const std::lock_guard lock(mutex_);
    const double enqueued = piece_locked(s).enqueued;
    for (const gpu::MemOp& op : ops) {
      Stage& stage = add_locked(s, enqueued);
      Word& word = words_[op.address];
      if (op.kind == gpu::MemOp::Kind::write) {
        word.writes.emplace_back(op.value, last_[key(s)]);
        continue;
      }
      stage.takes = prices_.hop, stage.words = {op};
      if (op.kind == gpu::MemOp::Kind::wait_equal) stage.nth = word.waits[op.value]++;
    }
  }
  return CountingGpu::enqueue(ops, s);
}

void PricedGpu::write_locked(const gpu::NumberedWord& w, int stage) {
  if (w.word) words_[w.word].writes.emplace_back(w.number, stage);
}

/// One stage writes that the stream has arrived; the next waits, and ends the launch.
void PricedGpu::meet_locked(const gpu::MeetArgs& a, gpu::Stream s) {
  const Stage& arrives = piece_locked(s);
  const double enqueued = arrives.enqueued;
  write_locked(a.arrived, last_[key(s)]);
  Stage& waits = add_locked(s, enqueued);
  waits.takes = prices_.hop;
  for (int i = 0; i < a.words; ++i)
    if (i != a.skip)
      waits.words.push_back(
          {gpu::MemOp::Kind::wait_at_least, a.number,
           const_cast<std::uint32_t*>(a.awaited + static_cast<std::uint64_t>(i) * a.stride)});
  write_locked(a.end.finished, last_[key(s)]);
  write_locked(a.end.ended, last_[key(s)]);
}

Status PricedGpu::launch(const gpu::Kernel& kernel, gpu::Shape shape, const void* args, gpu::Stream s) {
  const std::string_view name = kernel.name;
  {
    const std::lock_guard lock(mutex_);
    if (name == "meet") {
      meet_locked(*static_cast<const gpu::MeetArgs*>(args), s);
    } else {
      Stage& stage = piece_locked(s);
      stage.takes = prices_.hop;
      if (name.starts_with("fused_")) {
        const auto& a = *static_cast<const gpu::FusedArgs*>(args);
        stage.takes += prices_.byte * 2 * a.ranks * static_cast<double>(a.count * size_of(a.dtype));
        write_locked(a.end.finished, last_[key(s)]);
        write_locked(a.end.ended, last_[key(s)]);
      } else if (name.starts_with("resident_")) {
        const std::size_t k = spinning_[key(s)]++;
        if (meetings_.size() <= k) meetings_.resize(k + 1);
        meetings_[k].push_back(last_[key(s)]);
        stage.meeting = static_cast<int>(k);
        write_locked(static_cast<const gpu::ResidentArgs*>(args)->ended, last_[key(s)]);
      }
    }
  }
  return CountingGpu::launch(kernel, shape, args, s);
}
Status PricedGpu::call_host(gpu::Stream s, void (*f)(void*), void* data) {
  {
    const std::lock_guard lock(mutex_);
    piece_locked(s).takes = prices_.hop;
  }
  return CountingGpu::call_host(s, f, data);
}
Status PricedGpu::launch(gpu::Graph g, gpu::Stream s) {
  {
    const std::lock_guard lock(mutex_);
    piece_locked(s).takes = prices_.hop;
  }
  return CountingGpu::launch(g, s);
}

}  // namespace ouro::test
