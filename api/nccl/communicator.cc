// The life cycle of a communicator: opening, failure, end. See communicator.h.
#include "api/nccl/communicator.h"

#include <chrono>
#include <deque>
#include <set>
#include <span>
#include <thread>

#include "api/nccl/leaving.h"
#include "runtime/core/log.h"
#include "runtime/core/per_process.h"

namespace ouro::nccl {
namespace {

using namespace std::chrono_literals;
constexpr auto kPatience = 900ms;  // for calls to end by themselves: an abort must return within a second
constexpr auto kStopped = 5s;      // for calls that were stopped, which takes milliseconds
constexpr std::size_t kQuarantine = 256;

void quarantine(ncclComm_t comm) {
  struct Gone {
    std::mutex mutex;
    std::deque<ncclComm_t> comms;
  };
  static constinit PerProcess<Gone> gone;  // a child deletes none of its parent's
  std::lock_guard lock(gone->mutex);
  gone->comms.push_back(comm);
  if (gone->comms.size() <= kQuarantine) return;
  delete gone->comms.front();
  gone->comms.pop_front();
}

/// Waits until the calls and operations in progress have ended; false if they take longer than `patience`.
bool await_calls(ncclComm_t comm, std::chrono::milliseconds patience) {
  for (const auto end = std::chrono::steady_clock::now() + patience;
       comm->inside.load(std::memory_order_seq_cst) > 0 ||
       comm->pending.load(std::memory_order_acquire) > 0;) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(200us);
  }
  return true;
}

ncclResult_t check_open(ncclComm_t comm, const char* function) {
  switch (comm->phase.load(std::memory_order_acquire)) {
    case Phase::initialising:
      if (comm->error.load() != ncclSuccess)
        return invalid_usage(comm, function, "the communicator could not be made: {}", last_error_of(comm));
      return invalid_argument(
          comm, function,
          "the communicator is not complete yet; expected ncclCommGetAsyncError to say ncclSuccess first");
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

ncclResult_t refuse(const char* function, std::uint64_t magic) {
  return invalid_argument(
      nullptr, function, "{}",
      magic == kGone ? "the communicator has been destroyed or aborted" : "this is no communicator");
}

}  // namespace

ncclResult_t enter(ncclComm_t comm, const char* function, Needs needs) {
  if (!comm) [[unlikely]]
    return invalid_argument(nullptr, function, "the communicator is null");
  // Read before anything is written, because it may not be a communicator at all.
  if (const std::uint64_t magic = comm->magic.load(std::memory_order_relaxed); magic != kAlive) [[unlikely]]
    return refuse(function, magic);
  if (comm->forks != forks()) [[unlikely]]
    return fail(
        nullptr, ncclInvalidUsage,
        fmt::format("{}: the communicator was made before this process was forked, and belongs to the "
                    "parent alone; a child that needs one makes its own",
                    function));
  // This side counts the call first, then checks `magic` again; the ending side takes `magic` first, then
  // checks the count (retire). Therefore at least one of the two sees the other.
  comm->inside.fetch_add(1, std::memory_order_seq_cst);
  ncclResult_t wrong = ncclSuccess;
  if (const std::uint64_t magic = comm->magic.load(std::memory_order_seq_cst); magic != kAlive) [[unlikely]]
    wrong = refuse(function, magic);
  else if (needs == Needs::open ||
           (needs == Needs::members && comm->phase.load(std::memory_order_acquire) != Phase::revoked))
    wrong = check_open(comm, function);
  if (wrong != ncclSuccess) [[unlikely]]
    comm->inside.fetch_sub(1, std::memory_order_release);
  return wrong;
}

EndsToo::EndsToo(ncclComm_t comm, std::function<void(const char*)> end) : comm_(comm) {
  std::lock_guard lock(comm->life);
  if (comm->cancelled->load()) end("its communicator was aborted");
  at_ = comm->ends_too.insert(comm->ends_too.end(), std::move(end));
}
EndsToo::~EndsToo() {
  std::lock_guard lock(comm_->life);
  comm_->ends_too.erase(at_);
}

void keep(ncclComm_t comm, ncclResult_t error) {
  if (error == ncclSuccess || error == ncclInProgress) return;
  ncclResult_t none = ncclSuccess;
  comm->error.compare_exchange_strong(none, error);
}

ncclResult_t note(ncclComm_t comm, const char* function, const Status& s) {
  if (s.ok()) return ncclSuccess;
  const ncclResult_t code = fail(comm, function, s);
  const bool of_the_call = s.reason() == Reason::invalid || s.reason() == Reason::unsupported;
  if (!of_the_call || !comm->config.blocking) keep(comm, code);
  return code;
}

ncclResult_t state_of(ncclComm_t comm) {
  if (const ncclResult_t error = comm->error.load(std::memory_order_acquire); error != ncclSuccess)
    return error;
  if (comm->pending.load(std::memory_order_acquire) > 0) return ncclInProgress;
  switch (comm->phase.load(std::memory_order_acquire)) {
    case Phase::initialising:  // deferred by a group
      return comm->config.blocking ? ncclSuccess : ncclInProgress;
    case Phase::open:
      return comm->group.failed() ? note(comm, "ncclCommGetAsyncError", comm->group.status()) : ncclSuccess;
    default:
      return ncclSuccess;
  }
}

ncclComm_t make_handle(const Config& config, int rank, int size, Device place) {
  auto comm = std::make_unique<ncclComm>();
  comm->config = config;
  comm->rank = rank, comm->size = size, comm->place = place;
  comm->cancelled = std::make_shared<std::atomic<bool>>(false);
  if (!config.blocking) {
    auto stream = Stream::create(Priority::normal, "ouro-nccl");
    if (!stream.ok()) throw std::runtime_error(stream.status().message());
    comm->stream = std::move(*stream);
  }
  return comm.release();
}

namespace {

/// The number of consecutive ranks per host, if it is the same for all hosts; else 1.
int ranks_together(const Context& context, std::span<const int> ranks) {
  const auto host = [&](std::size_t i) { return context.host(ranks[i]); };
  std::size_t many = 1;
  while (many < ranks.size() && host(many) == host(0)) ++many;
  if (ranks.size() % many != 0) return 1;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if ((host(i) == host(k)) != (i / many == k / many)) return 1;
  return static_cast<int>(many);
}

}  // namespace

bool open(ncclComm_t comm, std::shared_ptr<Family> family, Group group) {
  std::lock_guard lock(comm->life);
  if (comm->cancelled->load()) return false;
  comm->family = std::move(family);
  comm->group = std::move(group);
  std::set<int> hosts;
  for (const int r : comm->group.ranks()) hosts.insert(comm->family->context.host(r));
  comm->hosts = static_cast<int>(hosts.size());
  comm->lsa = ranks_together(comm->family->context, comm->group.ranks());
  comm->phase.store(Phase::open, std::memory_order_release);
  OURO_INFO(INIT, "communicator{} of rank {} of {} is complete",
            comm->config.name.empty() ? "" : " " + comm->config.name, comm->rank, comm->size);
  return true;
}

void stop(ncclComm_t comm, const char* why) {
  std::lock_guard lock(comm->life);
  comm->cancelled->store(true);
  if (comm->group.valid()) comm->group.abort(why);
  if (comm->after_revoke.valid()) comm->after_revoke.abort(why);
  for (const auto& end : comm->ends_too) end(why);
}

bool retire(ncclComm_t comm) {
  std::uint64_t alive = kAlive;
  if (!comm->magic.compare_exchange_strong(alive, kGone)) return false;
  if (comm->phase.load() == Phase::initialising) stop(comm, "destroyed while it was being made");
  if (!await_calls(comm, kPatience)) {
    stop(comm, "destroyed while calls on it were under way");
    if (!await_calls(comm, kStopped)) {
      // A call that does not end keeps the resources it uses; the rest of the communicator has
      // been destroyed.
      OURO_WARN("a communicator of rank {} of {} was destroyed while a call on it did not end", comm->rank,
                comm->size);
      return true;
    }
  }
  comm->stream = Stream();
  comm->after_revoke = Group();
  end_registrations(comm);
  if (comm->group.valid()) {
    // When memory is returned to a driver, it may wait for all work of the process.
    const bool aside = on_gpu(comm) || (comm->sent.load() && !comm->group.failed());
    leave(std::move(comm->family), std::move(comm->group), std::move(comm->streams), aside);
  }
  comm->streams = UserStreams();
  comm->group = Group();
  comm->family.reset();
  comm->ops.clear();
  quarantine(comm);
  return true;
}

}  // namespace ouro::nccl
