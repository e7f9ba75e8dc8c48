// Streams of GPUs. See gpu_stream.h.
#include "runtime/stream/gpu_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <exception>
#include <map>

namespace ouro::rt {

// ---- events ---------------------------------------------------------------------------------------

namespace {

/// Never given back: a driver may wait for all work of the process when it takes something back, and ranks
/// that are threads would then wait for each other.
struct Pool {
  std::mutex mutex;
  std::map<int, std::vector<gpu::Event>> free;
  std::vector<std::uint32_t*> words;                 // pinned, 0
  std::map<std::size_t, std::vector<void*>> pinned;  // by size, a power of two
};
Pool& pool_of_process() {
  static auto* pool = new Pool;  // marks may outlive everything else of the process
  return *pool;
}

/// Passed with the event; fails if the device does.
class EventMark final : public Mark {
 public:
  EventMark(std::shared_ptr<GpuStream> s, std::shared_ptr<PooledEvent> e)
      : stream_(std::move(s)), event_(std::move(e)) {}
  bool passed() override {
    auto passed = gpu::gpu().query(event_->get());
    if (passed.ok()) return *passed;
    std::lock_guard lock(mutex_);
    failure_ = passed.status();
    return true;
  }
  Status outcome() override {
    std::lock_guard lock(mutex_);
    return failure_;
  }
  gpu::Event event() const override { return event_->get(); }
  HostStream& watcher() override { return stream_->watcher(); }

 private:
  std::shared_ptr<GpuStream> stream_;
  std::shared_ptr<PooledEvent> event_;
  std::mutex mutex_;
  Status failure_;
};

}  // namespace

Result<std::shared_ptr<PooledEvent>> PooledEvent::take(int device) {
  Pool& pool = pool_of_process();
  {
    std::lock_guard lock(pool.mutex);
    auto& free = pool.free[device];
    if (!free.empty()) {
      const gpu::Event e = free.back();
      free.pop_back();
      return std::shared_ptr<PooledEvent>(new PooledEvent(device, e));
    }
  }
  auto made = gpu::gpu().create_event(device, false);
  if (!made.ok()) return made.status();
  return std::shared_ptr<PooledEvent>(new PooledEvent(device, *made));
}

PooledEvent::~PooledEvent() {
  Pool& pool = pool_of_process();
  std::lock_guard lock(pool.mutex);
  pool.free[device_].push_back(event_);
}

Result<std::shared_ptr<void>> take_pinned(std::size_t bytes) {
  Pool& pool = pool_of_process();
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
  void* memory = nullptr;
  {
    std::lock_guard lock(pool.mutex);
    auto& free = pool.pinned[size];
    if (!free.empty()) memory = free.back(), free.pop_back();
  }
  if (!memory) {
    auto made = gpu::gpu().alloc_pinned(size);
    if (!made.ok()) return made.status();
    memory = *made;
  }
  return std::shared_ptr<void>(memory, [&pool, size](void* p) {
    std::lock_guard lock(pool.mutex);
    pool.pinned[size].push_back(p);
  });
}

Result<std::shared_ptr<WorkState>> mark_now(const std::shared_ptr<GpuStream>& stream) {
  auto event = PooledEvent::take(stream->device());
  if (!event.ok()) return event.status();
  OURO_TRY(gpu::gpu().record((*event)->get(), stream->get()));
  return std::make_shared<WorkState>(std::make_shared<EventMark>(stream, std::move(*event)));
}

// ---- streams --------------------------------------------------------------------------------------

/// A function on its way through a stream.
struct GpuStream::Task {
  std::shared_ptr<GpuStream> stream;  // null if the stream keeps the task
  GpuStream* on;
  std::function<Status()> run;
  std::shared_ptr<WorkState> state;
};

GpuStream::GpuStream(gpu::Stream s, bool owned) : stream_(s), owned_(owned) {}

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
  return std::shared_ptr<GpuStream>(new GpuStream({device, handle}, false));
}

GpuStream::~GpuStream() {
  // Functions under way hold a handle: none is left. What the device still does needs nothing of ours.
  helper_.reset();
  watcher_.reset();
  if (word_) {
    (void)gpu::gpu().synchronize(stream_).ok();
    std::lock_guard lock(pool_of_process().mutex);
    pool_of_process().words.push_back(word_);
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

/// On a thread of the driver's, which must not be held up and may not call the driver.
void GpuStream::run(void* data) {
  auto* task = static_cast<Task*>(data);
  task->on->helper().enqueue([task] {
    Status outcome;
    try {
      outcome = task->run();
    } catch (const std::exception& e) {
      outcome = Status(Reason::resource, fmt::format("a function on a stream threw: {}", e.what()));
    }
    const auto state = task->state;
    task->on->note(outcome);
    std::atomic_ref(*task->on->word_).store(1, std::memory_order_release);  // pairs with the stream's wait
    const auto keep = task->stream;
    if (keep) {
      task->run = nullptr;
      delete task;
    }
    state->complete(outcome);
    return outcome;
  });
}

Status GpuStream::launch(Task* task) {
  {
    std::lock_guard lock(mutex_);
    if (!word_) {
      Pool& pool = pool_of_process();
      std::lock_guard pool_lock(pool.mutex);
      if (pool.words.empty()) {
        constexpr std::size_t kMany = 64, kApart = 16;  // words, a line each
        auto memory = gpu::gpu().alloc_pinned(kMany * kApart * sizeof *word_);
        if (!memory.ok()) return memory.status();
        auto* words = static_cast<std::uint32_t*>(*memory);
        std::fill_n(words, kMany * kApart, 0u);
        for (std::size_t i = 0; i < kMany; ++i) pool.words.push_back(words + i * kApart);
      }
      word_ = pool.words.back();
      pool.words.pop_back();
    }
  }
  OURO_TRY(gpu::gpu().call_host(stream_, &GpuStream::run, task));
  const gpu::MemOp ops[] = {{gpu::MemOp::Kind::wait_equal, 1, word_}, {gpu::MemOp::Kind::write, 0, word_}};
  return gpu::gpu().enqueue(ops, stream_);
}

std::shared_ptr<WorkState> GpuStream::enqueue(std::function<Status()> f) {
  auto state = std::make_shared<WorkState>();
  auto task = std::make_unique<Task>(Task{shared_from_this(), this, std::move(f), state});
  (void)helper();  // made here, not on the driver's thread
  const auto capture = gpu::gpu().capturing(stream_);
  if (!capture.ok()) {
    note(capture.status());
    state->complete(capture.status());
    return state;
  }
  if (*capture != 0) task->stream = nullptr;
  if (Status s = launch(task.get()); !s.ok()) {
    // Whether the driver took the call is not known: the task stays, the stream does not wait for it.
    task.release();
    note(s);
    state->complete(s);
    return state;
  }
  if (*capture != 0) {
    std::lock_guard lock(mutex_);
    kept_.push_back(std::move(task));
  } else {
    task.release();  // it deletes itself
  }
  return state;
}

std::shared_ptr<WorkState> GpuStream::last() {
  auto mark = mark_now(shared_from_this());
  if (mark.ok()) return *mark;
  auto failed = std::make_shared<WorkState>();
  failed->complete(mark.status());
  return failed;
}

void GpuStream::after(std::shared_ptr<WorkState> mark) {
  if (mark->mark()) {
    if (gpu::gpu().wait(stream_, mark->mark()->event()).ok()) return;
  }
  (void)enqueue([mark = std::move(mark)] {
    mark->wait();
    return Status{};
  });
}

}  // namespace ouro::rt
