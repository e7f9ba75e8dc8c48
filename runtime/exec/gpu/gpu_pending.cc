// Marks, order and release of operations on a GPU. See gpu_pending.h.
#include "runtime/exec/gpu/gpu_pending.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace ouro::rt {

using namespace std::chrono_literals;

class GpuPending::Mark final : public EndMark {
 public:
  using EndMark::EndMark;
  /// These show that something may have failed that the group is about to detect.
  void doubt(std::shared_ptr<GpuWords> words, std::shared_ptr<ResidentArena> arena) {
    words_ = std::move(words), arena_ = std::move(arena);
  }
  /// It ends with the launch of another rank, and nothing of it is in this rank's streams. Before others see
  /// it.
  void ends_as_told(const OperationEnd::Told& told) { told_ = told; }
  Status hold_up(const gpu::Stream& s) override {
    if (told_.words) return invalid("an operation that is in no stream");
    return EndMark::hold_up(s);
  }
  bool late() const { return end_->late(); }

 private:
  bool reached() const override {
    return told_.words ? is_explained() || told_.words->told(told_.number) : EndMark::reached();
  }
  bool is_doubtful() const override {
    return (words_ && words_->poisoned()) || (arena_ && arena_->faulted()) || end_->late();
  }
  void release() override { words_ = nullptr, arena_ = nullptr; }
  OperationEnd::Told told_;
  std::shared_ptr<GpuWords> words_;
  std::shared_ptr<ResidentArena> arena_;
};

GpuPending::~GpuPending() {
  stop_.store(true);
  if (releaser_.joinable()) releaser_.join();
}

Status GpuPending::order(GpuStream& stream, bool capturing) const {
  if (!last_mark_ || last_stream_->is(stream) || clear()) return {};
  if (capturing) return {};  // what a graph depends on is said where it is launched
  return last_mark_->mark()->hold_up(stream.get());
}

Result<GpuPending::Ahead> GpuPending::prepare(const Plan* plan, std::uint64_t seq,
                                              const std::shared_ptr<GpuStream>& stream, bool capturing,
                                              bool in_turn) {
  Ahead a;
  a.stream = stream, a.capturing = capturing, a.watched = plan != nullptr, a.in_turn = in_turn;
  if (capturing) {  // nothing runs yet, and what runs later reports through the group
    note_graph_capture();
    captured_.store(true);
    a.work = std::make_shared<WorkState>();
    return a;
  }
  if (!end_word_) {
    OURO_ASSIGN(end_word_, EndWord::take(team_.device));
  }
  a.end = {.word = {end_word_->address(), end_word_->next_number()}, .late = end_word_->late_word()};
  auto mark = std::make_shared<Mark>(stream, end_word_, a.end.word.number);
  a.work = std::make_shared<WorkState>(mark);
  a.entry.push_back({{seq, plan ? *plan : Plan(), Clock::now()}, std::move(mark)});
  return a;
}

Status GpuPending::mark(Ahead a, std::shared_ptr<WorkState>* work) {
  *work = a.work;
  if (a.capturing) {
    a.work->complete({});
    return {};
  }
  const std::shared_ptr<Mark> mark = a.entry.front().mark;
  if (a.end.told.words) {
    mark->ends_as_told(a.end.told);
  } else if (!a.end.written) {
    const gpu::MemOp write{gpu::MemOp::Kind::write, a.end.word.number, a.end.word.word};
    OURO_TRY(gpu::gpu().enqueue({&write, 1}, a.stream->get()));
  }
  a.stream->ends_with(mark);
  if (a.watched) mark->doubt(arrivals_.words(), resident_.arena());
  last_stream_ = std::move(a.stream);
  last_mark_ = std::move(a.work);
  std::lock_guard lock(mutex_);
  if (failed_) mark->fail(error_);
  if (!a.watched) return {};
  if (a.in_turn) passed_ = std::max(passed_, a.entry.front().operation.seq - 1);
  entries_.splice(entries_.end(), a.entry);
  if (failed_) end_waits();  // it was enqueued while the group failed
  return {};
}

void GpuPending::settle(std::uint64_t turn, const std::function<void(std::uint64_t)>& write) {
  std::lock_guard lock(mutex_);
  passed_ = std::max(passed_, turn);
  // The front may have been enqueued before its turn: then not all before it have passed.
  const std::uint64_t all =
      entries_.empty() ? passed_ : std::min(passed_, entries_.front().operation.seq - 1);
  write(spoiled_ == 0 ? all : std::min(all, spoiled_ - 1));
}

void GpuPending::with_oldest(const std::function<void(Operation&)>& f) {
  std::unique_lock lock(mutex_);
  while (!entries_.empty() && entries_.front().mark->passed()) {
    const std::uint64_t seq = entries_.front().operation.seq;
    const Status outcome = entries_.front().mark->outcome();
    if (outcome.ok()) passed_ = std::max(passed_, seq);
    if (!outcome.ok() && spoiled_ == 0) spoiled_ = seq;
    if (!failed_ && failure_.ok()) failure_ = outcome;
    entries_.pop_front();
  }
  if (failed_ && no_thread_ && !entries_.empty()) {
    try {
      end_waits();
    } catch (const std::exception&) {
      return;  // the next check tries again
    }
  }
  if (entries_.empty() || failed_) return;
  Operation copy = entries_.front().operation;
  lock.unlock();  // f may fail the group, which calls release()
  f(copy);
  lock.lock();
  if (!entries_.empty() && entries_.front().operation.seq == copy.seq) entries_.front().operation = copy;
}

bool GpuPending::late() {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(entries_, [](Entry& e) { return e.mark->late(); });
}

Status GpuPending::failure() {
  std::lock_guard lock(mutex_);
  return failure_;
}

bool GpuPending::idle() {
  with_oldest([](Operation&) {});
  std::lock_guard lock(mutex_);
  return entries_.empty();
}

void GpuPending::drain() {
  bool told = false;
  for (std::uint32_t value = 1; !idle(); value ^= 1, std::this_thread::sleep_for(100us)) {
    {
      std::lock_guard lock(mutex_);
      if (!failed_ || !no_thread_) continue;
    }
    if (!std::exchange(told, true)) arrivals_.stop_kernels();
    arrivals_.set_all(value);  // there is no other thread to do it
  }
}

void GpuPending::release(const Status& why) {
  std::lock_guard lock(mutex_);
  if (failed_) return;
  failed_ = true;
  error_ = why;
  for (Entry& e : entries_) (void)e.mark->passed();  // these have ended well
  arrivals_.poison();
  resident_.abort();
  for (Entry& e : entries_) e.mark->fail(why);
  if (!entries_.empty() || captured_.load()) end_waits();
}

/// Streams reach their next waits within microseconds, so the words are set over and over: to the last wait
/// of what is under way, which may be behind other work of its stream for any time, and if a graph may be
/// replayed, to the end of the group.
void GpuPending::end_waits() {
  const bool open = arrivals_.poison();  // what has been made since release() is of no use either
  resident_.abort();
  if (ending_ || !open) return;
  if (releaser_.joinable()) releaser_.join();  // an earlier one, which has unlocked mutex_ for the last time
  no_thread_ = true;                           // unless it gets one
  releaser_ = Thread("ouro-release", [this] {
    const auto slower = Clock::now() + 10s;
    // First, kernels that have not begun are stopped: buffers may be freed once their owners are notified of
    // the failure.
    arrivals_.stop_kernels();
    for (std::uint32_t value = 1;; value ^= 1) {
      arrivals_.set_all(value);
      std::this_thread::sleep_for(Clock::now() < slower ? 20us : 1000us);
      std::lock_guard all(mutex_);
      if (!stop_.load() && (captured_.load() || !std::all_of(entries_.begin(), entries_.end(),
                                                             [](Entry& e) { return e.mark->passed(); })))
        continue;
      ending_ = false;
      return;
    }
  });
  ending_ = true;
  no_thread_ = false;
}

}  // namespace ouro::rt
