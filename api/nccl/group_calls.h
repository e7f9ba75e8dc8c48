// What a thread defers between ncclGroupStart and ncclGroupEnd: operations, and the making of communicators.
// Used by every function that may stand in a group.
#pragma once
#include <functional>
#include <vector>

#include "api/nccl/communicator.h"

namespace ouro::nccl {

/// The operations of nccl.h, and messages.
enum class Kind : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  send,
  recv
};

/// One operation with its arguments. Buffers stay the caller's.
struct Call {
  Kind kind;
  ncclComm_t comm;
  const void* in;
  void* out;
  std::size_t count;  ///< elements, as nccl.h counts them
  DType type;
  ReduceOp op = {};
  int root = 0;  ///< or the peer of a message
  Numerics numerics = Numerics::inherit;
  const void* factor = nullptr;  ///< of a user's reduction, where it is to be read when the operation runs
};

/// Hands one operation to the C++ interface, which runs it, or defers it if a batch is open.
Status run(const Call&);

/// Runs the call now, or defers it: what an operation of nccl.h comes to once its arguments are checked.
ncclResult_t submit(const char* function, const Call&);

/// What makes or ends a communicator, deferred.
struct Job {
  std::function<ncclResult_t()> run;
  std::function<void()> drop;  ///< instead of run, where the group fails before it begins
  bool makes = true;           ///< a communicator: it must not share a group with operations
};

/// The open group of the calling thread.
class GroupCalls {
 public:
  /// nullptr outside any group.
  static GroupCalls* current() { return t_current; }
  static void start();
  /// Ends one level; the outermost runs everything. ncclInvalidUsage without a start.
  static ncclResult_t end();
  /// Ends one level; the outermost drops everything.
  static ncclResult_t drop();
  void add(const Call& call) { calls_.push_back(call); }
  void add(Job job) { jobs_.push_back(std::move(job)); }
  /// Remembers the first error, for which the group will be dropped.
  void refuse(ncclResult_t code) {
    if (error_ == ncclSuccess) error_ = code;
  }
  /// The communicator ends: what was deferred on it is dropped.
  void forget(ncclComm_t);

 private:
  ncclResult_t run_all();
  ncclResult_t check_all() const;
  ncclResult_t run_calls();
  ncclResult_t run_jobs();
  [[gnu::tls_model("initial-exec")]] static inline constinit thread_local GroupCalls* t_current = nullptr;
  int depth_ = 0;
  ncclResult_t error_ = ncclSuccess;
  std::vector<Call> calls_;
  std::vector<Job> jobs_;
};

/// In a group, an error of one call is an error of the whole.
inline ncclResult_t told(ncclResult_t code) {
  if (GroupCalls* g = GroupCalls::current(); g && code != ncclSuccess && code != ncclInProgress)
    g->refuse(code);
  return code;
}

/// Runs the job here and now (blocking), on the communicator's own stream (non-blocking), or at the end of
/// the group. `polled`: whose ncclCommGetAsyncError tells the end of a non-blocking one.
ncclResult_t begin(ncclComm_t polled, Job);

}  // namespace ouro::nccl
