// A communicator of libnccl: one rank's handle on a group, its state and its counters. Used by all of
// libnccl.
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

/// The communicators that come of one init call share one membership in one job, which ends with the last of
/// them.
struct Family {
  explicit Family(Context c) : context(std::move(c)) {}
  Context context;
};

/// A user's reduction: the factor of this rank.
struct UserOp {
  bool used = false;
  ncclDataType_t type = ncclInt8;
  ReduceOp op;
  const void* read_when_run = nullptr;  ///< where the factor lies, if it is read when an operation runs
};

inline constexpr std::uint64_t kAlive = 0x6f75726f6e63636cull, kGone = 0x6465616420636f6dull;

/// Where a communicator is in its life.
enum class Phase : std::uint8_t { initialising, open, revoked, finalized };

}  // namespace ouro::nccl

/// The handle. It is quarantined, not freed, when the communicator ends, so that a later use is found by
/// `magic`.
struct ncclComm {
  std::atomic<std::uint64_t> magic{ouro::nccl::kAlive};
  std::atomic<int> inside{0};   ///< calls under way: who ends the communicator waits for those of others
  std::atomic<int> pending{0};  ///< of a non-blocking communicator: what has been called and has not ended
  std::atomic<ncclResult_t> error{ncclSuccess};  ///< the first that struck it
  std::atomic<ouro::nccl::Phase> phase{ouro::nccl::Phase::initialising};
  std::atomic<bool> sent{false};  ///< messages have been sent: its end waits until they are taken
  std::atomic<bool> suspended{false};
  const unsigned forks = ouro::forks();          ///< where it was made: a forked child has a copy only
  std::shared_ptr<std::atomic<bool>> cancelled;  ///< ends joining
  std::mutex life;                               ///< for those that make it whole and those that end it
  std::list<std::function<void(const char*)>> ends_too;  ///< under `life`: what an abort has to reach, too

  int rank = 0, size = 0;
  int hosts = 1;       ///< that its ranks are on
  int lsa = 1;         ///< ranks of a host, where all hosts have as many, next to each other; else 1
  ouro::Device place;  ///< of its buffers: a GPU, or the host, with the index that ncclCommInitAll was given
  ouro::nccl::Config config;
  std::shared_ptr<ouro::nccl::Family> family;
  ouro::Group group;
  ouro::Group
      after_revoke;  ///< the same members, for what a revoked communicator still serves; made on demand
  ouro::nccl::UserStreams streams;  ///< of a communicator on a GPU
  ouro::Stream stream;              ///< of a non-blocking communicator: runs its operations
  std::mutex ops_mutex;
  std::vector<ouro::nccl::UserOp> ops;
  std::string last_error;  ///< under the lock of error.cc
};

namespace ouro::nccl {

inline bool on_gpu(ncclComm_t c) { return c->place.kind == Device::Kind::cuda; }

/// What a call needs of its communicator: that it lives; that it has members, perhaps revoked; or that it
/// takes operations: made, not revoked, not finalized, not suspended.
enum class Needs : std::uint8_t { life, members, open };

/// Checks the communicator and counts the call as inside. Else ncclInvalidArgument or ncclInvalidUsage, with
/// a text.
ncclResult_t enter(ncclComm_t comm, const char* function, Needs);

/// A call on a communicator: as long as it lives, who ends the communicator from another thread waits for it
/// before anything is freed. Every function that takes a communicator begins with one.
class Entry {
 public:
  Entry(ncclComm_t comm, const char* function, Needs needs = Needs::life)
      : wrong(enter(comm, function, needs)), comm_(wrong == ncclSuccess ? comm : nullptr) {}
  ~Entry() {
    if (comm_) comm_->inside.fetch_sub(1, std::memory_order_release);  // pairs with await_calls
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  const ncclResult_t wrong;  ///< ncclSuccess, or why the call must return at once

 private:
  const ncclComm_t comm_;
};

/// What an abort of a communicator ends, too, as long as this lives: a group or a joining that only a call on
/// it knows. Where it has been aborted already, `end` is called at once.
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

/// Keeps the first error of the communicator.
void keep(ncclComm_t comm, ncclResult_t error);
/// The code and text of a failure. It is kept; of a blocking communicator, argument errors are not, as the
/// call itself returns them.
ncclResult_t note(ncclComm_t comm, const char* function, const Status&);
/// Of the whole communicator, without a lock: the first error, else ncclInProgress, else ncclSuccess.
ncclResult_t state_of(ncclComm_t comm);

/// A handle that nothing is behind yet. Throws where there is no memory or thread.
ncclComm_t make_handle(const Config&, int rank, int size, Device place);
/// Makes `comm` whole: from now on it takes operations. False: it has been aborted meanwhile.
bool open(ncclComm_t comm, std::shared_ptr<Family>, Group);
/// Ends what is under way on it, on all ranks, and its joining.
void stop(ncclComm_t comm, const char* why);
/// Ends the handle, once: false, with nothing done, where another call has ended it or is about to. Calls and
/// operations under way get some time, then they are ended by `stop`: what returns from here writes to no
/// buffer of the user's any more. Does not wait for peers: what they have not taken yet is closed beside the
/// program.
bool retire(ncclComm_t comm);

}  // namespace ouro::nccl
