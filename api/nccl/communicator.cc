// The life of a communicator: open, failed, ended. See communicator.h.
#include "api/nccl/communicator.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <thread>

#include "runtime/core/log.h"
#include "runtime/core/thread.h"

namespace ouro::nccl {
namespace {

using namespace std::chrono_literals;
constexpr auto kAbortPatience = 900ms;  // an abort returns within a second
constexpr auto kExitPatience = 2s;
constexpr std::size_t kQuarantine = 256;

/// Ends groups whose last messages have not been taken, beside the program, which waits for them when it
/// exits.
class Closers {
 public:
  static Closers& all() {
    static Closers& closers = *new Closers;
    return closers;
  }
  void close(std::shared_ptr<Family> family, Group group) {
    auto what =
        std::make_shared<std::pair<std::shared_ptr<Family>, Group>>(std::move(family), std::move(group));
    {
      std::lock_guard lock(mutex_);
      ++count_;
    }
    auto run = [this, what]() mutable {
      (void)what->second.close();
      what->second = Group();
      what.reset();
      std::lock_guard lock(mutex_);
      --count_;
      cv_.notify_all();
    };
    try {
      Thread("ouro-nccl-end", run).detach();
    } catch (const std::exception&) {
      run();
    }
  }

 private:
  Closers() {
    std::atexit([] {
      std::unique_lock lock(all().mutex_);
      all().cv_.wait_for(lock, kExitPatience, [] { return all().count_ == 0; });
    });
  }
  std::mutex mutex_;
  std::condition_variable cv_;
  int count_ = 0;
};

void quarantine(ncclComm_t comm) {
  static std::mutex& mutex = *new std::mutex;
  static std::deque<ncclComm_t>& gone = *new std::deque<ncclComm_t>;
  comm->magic.store(kGone);
  std::lock_guard lock(mutex);
  gone.push_back(comm);
  if (gone.size() <= kQuarantine) return;
  delete gone.front();
  gone.pop_front();
}

/// Whether the calls that other threads have under way end in time.
bool await_calls(ncclComm_t comm) {
  for (const auto end = std::chrono::steady_clock::now() + kAbortPatience;
       comm->inside.load(std::memory_order_acquire) > 0 ||
       comm->pending.load(std::memory_order_acquire) > 0;) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(200us);
  }
  return true;
}

}  // namespace

ncclResult_t check(ncclComm_t comm, const char* function) {
  if (!comm) return invalid_argument(nullptr, function, "the communicator is null");
  const std::uint64_t magic = comm->magic.load(std::memory_order_relaxed);
  if (magic == kAlive) return ncclSuccess;
  return invalid_argument(
      nullptr, function, "{}",
      magic == kGone ? "the communicator has been destroyed or aborted" : "this is no communicator");
}

ncclResult_t check_open(ncclComm_t comm, const char* function) {
  if (const ncclResult_t wrong = check(comm, function); wrong != ncclSuccess) return wrong;
  switch (comm->phase.load(std::memory_order_acquire)) {
    case Phase::initialising: {
      const ncclResult_t error = comm->error.load();
      if (error != ncclSuccess)
        return invalid_usage(comm, function, "the communicator could not be made: {}", comm->last_error);
      return invalid_argument(
          comm, function,
          "the communicator is not complete yet; expected ncclCommGetAsyncError to say ncclSuccess first");
    }
    case Phase::revoked:
      return invalid_usage(comm, function,
                           "the communicator is revoked; it serves split, shrink, destroy and abort");
    case Phase::finalized:
      return invalid_argument(comm, function,
                              "the communicator is finalized; it can be destroyed or aborted");
    case Phase::open:
      break;
  }
  if (comm->suspended.load(std::memory_order_relaxed))
    return invalid_usage(comm, function, "the communicator is suspended; call ncclCommResume first");
  return ncclSuccess;
}

ncclResult_t note(ncclComm_t comm, const char* function, const Status& s) {
  if (s.ok()) return ncclSuccess;
  const ncclResult_t code = fail(comm, function, s);
  if (s.reason() == Reason::invalid || s.reason() == Reason::unsupported || s.reason() == Reason::forked)
    return code;
  ncclResult_t none = ncclSuccess;
  comm->error.compare_exchange_strong(none, code);
  return code;
}

ncclResult_t state_of(ncclComm_t comm) {
  if (const ncclResult_t error = comm->error.load(std::memory_order_acquire); error != ncclSuccess)
    return error;
  if (comm->pending.load(std::memory_order_acquire) > 0) return ncclInProgress;
  if (comm->phase.load(std::memory_order_acquire) != Phase::open || !comm->group.failed()) return ncclSuccess;
  return note(comm, "ncclCommGetAsyncError", comm->group.status());
}

ncclComm_t make_handle(const Config& config) {
  auto comm = std::make_unique<ncclComm>();
  comm->config = config;
  comm->cancelled = std::make_shared<std::atomic<bool>>(false);
  if (!config.blocking) {
    auto stream = Stream::create(Priority::normal, "ouro-nccl");
    if (!stream.ok()) throw std::runtime_error(stream.status().message());
    comm->stream = std::move(*stream);
  }
  return comm.release();
}

bool open(ncclComm_t comm, std::shared_ptr<Family> family, Group group) {
  std::lock_guard lock(comm->life);
  if (comm->cancelled->load()) return false;
  comm->rank = group.rank();
  comm->size = group.size();
  comm->family = std::move(family);
  comm->group = std::move(group);
  comm->phase.store(Phase::open, std::memory_order_release);
  return true;
}

void stop(ncclComm_t comm, const char* why) {
  std::lock_guard lock(comm->life);
  comm->cancelled->store(true);
  if (comm->group.valid()) comm->group.abort(why);
  if (comm->after_revoke.valid()) comm->after_revoke.abort(why);
}

void retire(ncclComm_t comm) {
  comm->magic.store(kGone);
  if (!await_calls(comm)) {
    // A call that does not end keeps what it uses; nothing else is left of the communicator.
    OURO_WARN("a communicator of rank {} of {} has gone while a call on it did not end", comm->rank,
              comm->size);
    return;
  }
  comm->stream = Stream();
  comm->after_revoke = Group();
  if (comm->group.valid() && comm->sent.load() && !comm->group.failed())
    Closers::all().close(std::move(comm->family), std::move(comm->group));
  comm->group = Group();
  comm->family.reset();
  comm->ops.clear();
  quarantine(comm);
}

}  // namespace ouro::nccl
