// A communicator of libnccl: one rank's handle on a group, its state and its counters. Used by all of
// libnccl.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/nccl/config.h"
#include "api/nccl/error.h"
#include "ouro/ouro.hpp"

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
  std::atomic<int> inside{0};   ///< calls under way in other threads, which ncclCommAbort waits for
  std::atomic<int> pending{0};  ///< of a non-blocking communicator: what has been called and has not ended
  std::atomic<ncclResult_t> error{ncclSuccess};  ///< the first that struck it
  std::atomic<ouro::nccl::Phase> phase{ouro::nccl::Phase::initialising};
  std::atomic<bool> sent{false};  ///< messages have been sent: its end waits until they are taken
  std::atomic<bool> suspended{false};
  std::shared_ptr<std::atomic<bool>> cancelled;  ///< ends joining
  std::mutex life;                               ///< for those that make it whole and those that end it

  int rank = 0, size = 0, device = 0;
  ouro::nccl::Config config;
  std::shared_ptr<ouro::nccl::Family> family;
  ouro::Group group;
  ouro::Group
      after_revoke;     ///< the same members, for what a revoked communicator still serves; made on demand
  ouro::Stream stream;  ///< of a non-blocking communicator: runs its operations
  std::mutex ops_mutex;
  std::vector<ouro::nccl::UserOp> ops;
  std::string last_error;  ///< under the lock of error.cc
};

namespace ouro::nccl {

inline bool alive(ncclComm_t c) { return c && c->magic.load(std::memory_order_relaxed) == kAlive; }

/// A call is under way as long as this lives: an abort from another thread waits for it before it frees.
class Inside {
 public:
  explicit Inside(ncclComm_t c) : comm_(c) { comm_->inside.fetch_add(1, std::memory_order_acquire); }
  ~Inside() { comm_->inside.fetch_sub(1, std::memory_order_release); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  ncclComm_t comm_;
};

/// ncclInvalidArgument, with a text, unless `comm` is a communicator that lives.
ncclResult_t check(ncclComm_t comm, const char* function);
/// Also that it can take operations: made, not revoked, not finalised, not failed.
ncclResult_t check_open(ncclComm_t comm, const char* function);

/// Keeps the first error of the communicator; argument errors do not stick.
ncclResult_t note(ncclComm_t comm, const char* function, const Status&);
/// Of the whole communicator, without a lock: the first error, else ncclInProgress, else ncclSuccess.
ncclResult_t state_of(ncclComm_t comm);

/// A handle that nothing is behind yet. Throws where there is no memory or thread.
ncclComm_t make_handle(const Config&);
/// Makes `comm` whole: from now on it takes operations. False: it has been aborted meanwhile.
bool open(ncclComm_t comm, std::shared_ptr<Family>, Group);
/// Ends what is under way on it, on all ranks, and its joining.
void stop(ncclComm_t comm, const char* why);
/// Ends the handle. Does not wait for peers: what they have not taken yet is closed beside the program.
void retire(ncclComm_t comm);

}  // namespace ouro::nccl
