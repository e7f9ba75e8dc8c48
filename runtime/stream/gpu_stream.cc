// Streams of GPUs. See gpu_stream.h.
#include "runtime/stream/gpu_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <new>

#include "runtime/core/log.h"
#include "runtime/core/no_memory.h"
#include "runtime/stream/host_calls.h"

namespace ouro::rt {
namespace {

/// Passed with the event; fails if the device does.
class EventMark final : public Mark {
 public:
  EventMark(std::shared_ptr<GpuStream> s, std::shared_ptr<PooledEvent> e)
      : stream_(std::move(s)), event_(std::move(e)) {}
  bool passed() override {
    auto passed = gpu::gpu().query(event_->get());
    if (passed.ok()) return *passed;
    stream_->heed(passed.status());
    std::lock_guard lock(mutex_);
    failure_ = passed.status();
    return true;
  }
  Status outcome() override {
    std::lock_guard lock(mutex_);
    return failure_;
  }
  Status hold_up(const gpu::Stream& s) override { return gpu::gpu().wait(s, event_->get()); }
  HostStream& watcher() override { return stream_->watcher(); }

 private:
  std::shared_ptr<GpuStream> stream_;
  std::shared_ptr<PooledEvent> event_;
  std::mutex mutex_;
  Status failure_;
};

/// Passed with the operation that a stream of our own was given last. A failure of the operation is not one
/// of this mark, unless the device is lost.
class LastMark final : public Mark {
 public:
  LastMark(std::shared_ptr<GpuStream> s, std::shared_ptr<Mark> last)
      : stream_(std::move(s)), last_(std::move(last)) {}
  bool passed() override { return last_->passed(); }
  Status outcome() override {
    const Status of_last = last_->outcome();
    return of_last.reason() == Reason::device ? gpu::gpu().query(stream_->peek()).status() : Status();
  }
  Status hold_up(const gpu::Stream& s) override { return last_->hold_up(s); }
  HostStream& watcher() override { return stream_->watcher(); }

 private:
  std::shared_ptr<GpuStream> stream_;
  std::shared_ptr<Mark> last_;
};

/// Passed once the stream has been seen idle. It enqueues nothing, unless the stream is given work again and
/// again.
class IdleMark final : public Mark {
 public:
  /// `last`: an operation that precedes, or nullptr.
  IdleMark(std::shared_ptr<GpuStream> s, std::shared_ptr<Mark> last)
      : stream_(std::move(s)), last_(std::move(last)) {}
  bool passed() override {
    std::lock_guard lock(mutex_);
    if (last_ && !last_->passed()) return false;
    last_ = nullptr;
    if (!event_ && ++asked_ > kOften) mark();
    const auto ended = event_ ? gpu::gpu().query(event_->get()) : gpu::gpu().query(stream_->peek());
    if (ended.ok()) return *ended;
    stream_->heed(ended.status());
    failure_ = ended.status();
    return true;
  }
  Status outcome() override {
    std::lock_guard lock(mutex_);
    return failure_;
  }
  Status hold_up(const gpu::Stream&) override { return invalid("a mark for waiting only"); }
  HostStream& watcher() override { return stream_->watcher(); }

 private:
  static constexpr int kOften = 256;
  void mark() {
    asked_ = 0;  // if this fails, it is tried again
    auto event = PooledEvent::take(stream_->device());
    if (event.ok() && gpu::gpu().record((*event)->get(), stream_->peek()).ok()) event_ = std::move(*event);
  }
  std::shared_ptr<GpuStream> stream_;
  std::shared_ptr<Mark> last_;
  std::shared_ptr<PooledEvent> event_;
  std::mutex mutex_;
  int asked_ = 0;
  Status failure_;
};

}  // namespace

Result<std::shared_ptr<WorkState>> mark_now(const std::shared_ptr<GpuStream>& stream) {
  OURO_TRY(stream->check_thread());
  auto event = PooledEvent::take(stream->device());
  const Status s = event.ok() ? gpu::gpu().record((*event)->get(), stream->get()) : event.status();
  if (!s.ok()) {
    stream->heed(s);
    return s;
  }
  return std::make_shared<WorkState>(std::make_shared<EventMark>(stream, std::move(*event)));
}

/// A function that is enqueued on a stream.
struct GpuStream::Task final : HostCall {
  Task(std::shared_ptr<GpuStream> s, std::function<Status()> f, std::shared_ptr<WorkState> w)
      : stream(std::move(s)), on(stream.get()), run(std::move(f)), state(std::move(w)) {}
  void begin() override;
  void give_up(const Status& why) override {
    run = nullptr;
    state->complete(why);
  }
  /// Runs a captured one, which the stream keeps, at each replay.
  static void again(void* task) { static_cast<Task*>(task)->begin(); }

  std::shared_ptr<GpuStream> stream;  // null if the stream is ours and keeps the task
  GpuStream* const on;
  bool captured = false;
  std::function<Status()> run;
  std::shared_ptr<WorkState> state;
  HostStream* helper = nullptr;   // the stream's: the driver's thread takes no lock to find it
  std::uint32_t* word = nullptr;  // that the stream waits for
};

GpuStream::GpuStream(gpu::Stream s, bool owned) : stream_(s), owned_(owned), lent_(!owned) {
  if (s.handle == gpu::kThreadStream) of_thread_ = std::this_thread::get_id();
  // Handles are addresses, and even.
  identity_ = of_thread_ == std::thread::id() ? reinterpret_cast<std::uint64_t>(s.handle)
                                              : 2 * std::hash<std::thread::id>{}(of_thread_) + 1;
}

Status GpuStream::check_thread() const {
  OURO_TRY(usable());
  if (of_thread_ == std::thread::id() || of_thread_ == std::this_thread::get_id()) return {};
  return invalid(
      "the default stream of one thread (cudaStreamPerThread) is used by another, where it would be "
      "another stream; expected a stream that was created");
}

Result<std::shared_ptr<GpuStream>> GpuStream::create(int device, int priority) {
  auto properties = gpu::gpu().properties(device);
  if (!properties.ok()) return properties.status();
  const int numeric = priority < 0   ? properties->low_priority
                      : priority > 0 ? properties->high_priority
                                     : (properties->low_priority + properties->high_priority) / 2;
  auto made = gpu::gpu().create_stream(device, numeric);
  if (!made.ok()) return made.status();
  return std::shared_ptr<GpuStream>(new GpuStream(*made, true));
}

Result<std::shared_ptr<GpuStream>> GpuStream::wrap(int device, void* handle) {
  if (device < 0 || device >= gpu::gpu().devices())
    return invalid(fmt::format("GPU {}; this process sees {}", device, gpu::gpu().devices()));
  if (handle == gpu::kLegacyStream) handle = nullptr;  // one stream, one handle
  OURO_TRY(gpu::gpu().check_context({device, handle}));
  return std::shared_ptr<GpuStream>(new GpuStream({device, handle}, false));
}

GpuStream::~GpuStream() {
  // Functions in flight hold a handle, so none is left. Work that the device still runs uses no
  // memory of ours.
  helper_.reset();
  watcher_.reset();
  if (inherited()) return;
  if (word_) {
    const Status ended = owned_ ? gpu::gpu().synchronize(stream_) : gpu::gpu().synchronize(clear_->get());
    // A lost device may not have changed the word, so another stream cannot use it.
    if (ended.ok()) put_back_word(word_);
  }
  if (owned_) {
    (void)gpu::gpu().synchronize(stream_).ok();
    (void)gpu::gpu().destroy_stream(stream_).ok();
  }
}

HostStream& GpuStream::thread_of(std::unique_ptr<HostStream>& thread, const char* name) {
  std::lock_guard lock(mutex_);
  if (!thread) thread = std::make_unique<HostStream>(name, 0);
  return *thread;
}

namespace {
using ByDevice = std::array<std::atomic<bool>, 256>;
ByDevice g_run_in_calls{}, g_await_in_kernels{};
std::atomic<bool>& of(ByDevice& all, int device) {
  return all[static_cast<std::size_t>(device) % all.size()];
}
}  // namespace

void GpuStream::run_in_calls(int device) { of(g_run_in_calls, device).store(true); }
void GpuStream::await_in_kernels(int device) { of(g_await_in_kernels, device).store(true); }

Status GpuStream::call(const std::function<Status()>& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return no_memory();
  } catch (const std::exception& e) {
    return {Reason::resource, fmt::format("a function on a stream threw: {}", e.what())};
  }
}

void GpuStream::Task::begin() {
  helper->enqueue([self = shared_from_this(), this] {
    Status outcome = call(run);
    on->note(outcome);
    std::atomic_ref(*word).store(1, std::memory_order_release);  // pairs with the stream's wait
    if (!captured) run = nullptr;
    state->complete(outcome);
    return outcome;
  });
}

/// Runs on a thread of the stream, since objects that the functions hold may end groups, and the caller may
/// hold locks.
void GpuStream::heed(const Status& of_device) {
  if (of_device.reason() != Reason::device || calls_kept(device()) == 0) return;
  try {
    watcher().enqueue([self = shared_from_this(), of_device] {
      give_up_calls(self->device(), of_device);
      return Status();
    });
  } catch (const std::exception&) {
    OURO_WARN("no thread or memory to release the calls that wait in streams of GPU {}, which is lost",
              device());
  }
}

Result<std::uint32_t*> GpuStream::own_word() {
  bool marks = false;
  {
    std::lock_guard lock(mutex_);
    if (word_) return word_;
    marks = !owned_ && !clear_;
  }
  std::shared_ptr<PooledEvent> clear;
  if (marks) {
    OURO_ASSIGN(clear, PooledEvent::take(device()));
  }
  OURO_ASSIGN(std::uint32_t* const made, take_word());
  std::unique_lock lock(mutex_);
  if (clear && !clear_) clear_ = std::move(clear);
  if (!word_) return word_ = made;
  std::uint32_t* const word = word_;
  lock.unlock();
  put_back_word(made);
  return word;
}

Status GpuStream::copy(std::span<const gpu::HostCopy> copies) const {
  for (const gpu::HostCopy& c : copies) OURO_TRY(gpu::gpu().copy(c.to, c.from, c.bytes, get()));
  return {};
}

Status GpuStream::launch(const std::shared_ptr<Task>& task, std::span<const gpu::HostCopy>* then,
                         gpu::NumberedWord* ended) {
  OURO_ASSIGN(task->word, own_word());
  (void)get();
  OURO_TRY(task->captured ? gpu::gpu().call_host(stream_, &Task::again, task.get())
                          : call_later(stream_, task));
  if (of(g_await_in_kernels, device()).load(std::memory_order_relaxed)) {
    gpu::AwaitHostArgs args{.word = task->word};
    const auto first = then->first(std::min<std::size_t>(then->size(), gpu::AwaitHostArgs::kMost));
    std::ranges::copy(first, args.copy);
    args.copies = static_cast<int>(first.size());
    const bool ends = ended && first.size() == then->size();
    if (ends) args.ended = *ended;
    const gpu::Launch l = gpu::await_host(args);
    OURO_TRY(gpu::gpu().launch(*l.kernel, l.shape, &args, stream_));
    *then = then->subspan(first.size());
    if (ends) *ended = {};
  } else {
    const gpu::MemOp ops[] = {{gpu::MemOp::Kind::wait_equal, 1, task->word},
                              {gpu::MemOp::Kind::write, 0, task->word}};
    OURO_TRY(gpu::gpu().enqueue(ops, stream_));
  }
  return owned_ || task->captured ? Status() : gpu::gpu().record(clear_->get(), stream_);
}

std::shared_ptr<WorkState> GpuStream::enqueue(std::function<Status()> f) {
  std::shared_ptr<WorkState> work;
  (void)enqueue(std::move(f), {}, &work).ok();  // there is no copy
  return work;
}

Status GpuStream::enqueue(std::function<Status()> f, std::span<const gpu::HostCopy> then,
                          std::shared_ptr<WorkState>* work, gpu::NumberedWord* ended) {
  if (inherited()) {
    *work = refused();
    return {};
  }
  const auto state = *work = std::make_shared<WorkState>();
  if (of(g_run_in_calls, device()).load(std::memory_order_relaxed)) {
    const auto recorded = gpu::gpu().capturing(stream_);
    if (recorded.ok() && *recorded == 0) {
      Status outcome = check_thread();
      if (outcome.ok()) outcome = gpu::gpu().synchronize(stream_);
      const bool begun = outcome.ok();
      if (begun) outcome = call(f);
      note(outcome);
      state->complete(outcome);
      return begun ? copy(then) : Status();
    }
  }
  const auto task = std::make_shared<Task>(shared_from_this(), std::move(f), state);
  task->helper = &helper();
  const Status here = check_thread();
  const auto capture = here.ok() ? gpu::gpu().capturing(stream_) : Result<std::uint64_t>(here);
  if (!capture.ok()) {
    heed(capture.status());
    note(capture.status());
    state->complete(capture.status());
    return {};
  }
  task->captured = *capture != 0;
  // A graph on the user's stream may be launched as long as the process lives, so the function that it calls
  // is never destroyed.
  if (task->captured && owned_) task->stream = nullptr;
  Status s;
  try {
    if (task->captured) {
      std::lock_guard lock(mutex_);
      kept_.push_back(task);
    }
    s = launch(task, &then, ended);
  } catch (const std::exception&) {
    s = no_memory();
  }
  if (s.ok()) return copy(then);
  // The driver may have accepted the call, and the stream does not wait for it. No other wait may use its
  // word, which it may set at any time.
  {
    std::lock_guard lock(mutex_);
    word_ = nullptr;
  }
  heed(s);
  note(s);
  state->complete(s);
  return {};
}

void GpuStream::ends_with(const std::shared_ptr<Mark>& end) {
  std::lock_guard lock(mutex_);
  end_ = end;
  ended_at_ = given_.load(std::memory_order_relaxed);
}

std::shared_ptr<Mark> GpuStream::known_end(bool any) {
  std::lock_guard lock(mutex_);
  if (any) return end_.lock();
  if (several_users_.load(std::memory_order_relaxed)) return nullptr;
  return ended_at_ == given_.load(std::memory_order_relaxed) ? end_.lock() : nullptr;
}

std::shared_ptr<WorkState> GpuStream::drained() {
  if (!lent_.load(std::memory_order_relaxed) || !check_thread().ok()) return last();
  const auto capture = gpu::gpu().capturing(stream_);
  if (!capture.ok() || *capture != 0) return last();
  return std::make_shared<WorkState>(std::make_shared<IdleMark>(shared_from_this(), known_end(true)));
}

std::shared_ptr<WorkState> GpuStream::last() {
  if (!lent_.load(std::memory_order_relaxed) && !inherited())
    if (auto end = known_end(false))
      return std::make_shared<WorkState>(std::make_shared<LastMark>(shared_from_this(), std::move(end)));
  auto mark = mark_now(shared_from_this());
  if (mark.ok()) return *mark;
  auto failed = std::make_shared<WorkState>();
  failed->complete(mark.status());
  return failed;
}

void GpuStream::after(std::shared_ptr<WorkState> mark) {
  if (mark->mark() && check_thread().ok()) {
    if (mark->mark()->hold_up(get()).ok()) return;
  }
  (void)enqueue([mark = std::move(mark)] {
    mark->wait();
    return Status{};
  });
}

}  // namespace ouro::rt
