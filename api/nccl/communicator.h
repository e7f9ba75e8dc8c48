// A communicator of libnccl: one rank's handle on a group, its state and its counters. Used by all
// of libnccl.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/nccl/config.h"
#include "api/nccl/error.h"
#include "api/nccl/user_streams.h"
#include "ouro/ouro.hpp"
#include "runtime/core/fork.h"

namespace ouro::nccl {

/// The communicators derived from one init call share one membership in one job, which ends with the
/// last of them.
struct Family {
  explicit Family(Context c) : context(std::move(c)) {}
  Context context;
};

/// A user-defined reduction: the factor of this rank.
struct UserOp {
  bool used = false;
  ncclDataType_t type = ncclInt8;
  ReduceOp op;
  const void* read_when_run = nullptr;  ///< address of the factor, if it is read when an operation runs
};

inline constexpr std::uint64_t kAlive = 0x6f75726f6e63636cull, kGone = 0x6465616420636f6dull;

/// The stages of a communicator's life.
enum class Phase : std::uint8_t { initialising, open, revoked, finalized };

}  // namespace ouro::nccl

/// The handle. When the communicator ends, the handle is quarantined rather than freed, so that `magic`
/// detects a later use.
struct ncclComm {
  std::atomic<std::uint64_t> magic{ouro::nccl::kAlive};
  /// Calls in progress; ending the communicator waits for those of other threads.
  std::atomic<int> inside{0};
  std::atomic<int> pending{0};  ///< non-blocking communicators: number of calls that have not ended
  std::atomic<ncclResult_t> error{ncclSuccess};  ///< the first error of the communicator
  std::atomic<ouro::nccl::Phase> phase{ouro::nccl::Phase::initialising};
  std::atomic<bool> sent{false};  ///< messages have been sent: its end waits until the peers have taken them
  std::atomic<bool> suspended{false};
  const unsigned forks = ouro::forks();          ///< the process that made it: a forked child has only a copy
  std::shared_ptr<std::atomic<bool>> cancelled;  ///< true cancels joining
  std::mutex life;                               ///< guards opening and ending the communicator
  /// Under `life`: callbacks for everything else that an abort must end.
  std::list<std::function<void(const char*)>> ends_too;

  int rank = 0, size = 0;
  int hosts = 1;  ///< number of hosts with ranks of this communicator
  int lsa = 1;    ///< ranks per host, if all hosts have the same number and they are consecutive; else 1
  /// The place of its buffers: a GPU, or the host, with the index passed to ncclCommInitAll.
  ouro::Device place;
  ouro::nccl::Config config;
  std::shared_ptr<ouro::nccl::Family> family;
  ouro::Group group;
  ouro::Group
      after_revoke;  ///< the same members, for calls that a revoked communicator still serves; made on demand
  ouro::nccl::UserStreams streams;  ///< the user's streams, for a communicator on a GPU
  ouro::Stream stream;              ///< runs the operations of a non-blocking communicator
  std::mutex ops_mutex;
  std::vector<ouro::nccl::UserOp> ops;
  std::string last_error;  ///< guarded by the lock of error.cc
};

namespace ouro::nccl {

inline bool on_gpu(ncclComm_t c) { return c->place.kind == Device::Kind::cuda; }

/// The requirements of a call on its communicator: it has not ended; it has members, even if revoked; or it
/// accepts operations, so it is complete, not revoked, not finalized and not suspended.
enum class Needs : std::uint8_t { life, members, open };

/// Checks the communicator and counts the call as inside. On failure, returns ncclInvalidArgument or
/// ncclInvalidUsage and sets the error text.
ncclResult_t enter(ncclComm_t comm, const char* function, Needs);

/// A call in progress on a communicator: another thread that ends the communicator waits for the destruction
/// of this object before it frees anything. Every function that takes a communicator begins with one.
class Entry {
 public:
  Entry(ncclComm_t comm, const char* function, Needs needs = Needs::life)
      : wrong(enter(comm, function, needs)), comm_(wrong == ncclSuccess ? comm : nullptr) {}
  ~Entry() {
    if (comm_) comm_->inside.fetch_sub(1, std::memory_order_release);  // pairs with await_calls
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  const ncclResult_t wrong;  ///< ncclSuccess, or the error with which the call must return at once

 private:
  const ncclComm_t comm_;
};

/// While this object lives, an abort of the communicator also calls `end`, for a group or a join that is
/// known only to the running call. If the communicator has already been aborted, `end` is called immediately.
class EndsToo {
 public:
  EndsToo(ncclComm_t, std::function<void(const char* why)> end);
  ~EndsToo();
  EndsToo(const EndsToo&) = delete;
  EndsToo& operator=(const EndsToo&) = delete;

 private:
  const ncclComm_t comm_;
  std::list<std::function<void(const char*)>>::iterator at_;
};

/// Stores `error` if it is the first error of the communicator.
void keep(ncclComm_t comm, ncclResult_t error);
/// Reports a failure: returns its code and sets its text. The error is kept in the communicator, except for
/// argument errors of a blocking communicator, which the call itself returns.
ncclResult_t note(ncclComm_t comm, const char* function, const Status&);
/// The state of the whole communicator, without a lock: the first error, else ncclInProgress,
/// else ncclSuccess.
ncclResult_t state_of(ncclComm_t comm);

/// Makes a handle without a group. Throws if memory or a thread is lacking.
ncclComm_t make_handle(const Config&, int rank, int size, Device place);
/// Completes `comm`: from now on it accepts operations. Returns false if it has been aborted meanwhile.
bool open(ncclComm_t comm, std::shared_ptr<Family>, Group);
/// Ends its running operations, on all ranks, and cancels its joining.
void stop(ncclComm_t comm, const char* why);
/// Ends the handle, once. Returns false, with nothing done, if another call has ended it or is about to.
/// Calls and operations in progress get some time, then `stop` ends them: after the return, none of them
/// writes to a buffer of the user any more. Does not wait for peers: whatever they have not taken yet is
/// closed in the background.
bool retire(ncclComm_t comm);
/// Ends the registrations that were made through it (memory.cc). Does not wait.
void end_registrations(ncclComm_t comm);

}  // namespace ouro::nccl
