// What a thread defers between ncclGroupStart and ncclGroupEnd: operations, and the making of communicators.
// Used by every function that may stand in a group.
#pragma once
#include <deque>
#include <functional>
#include <vector>

#include "api/nccl/communicator.h"
#include "runtime/core/thread_owned.h"

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
  const void* factor = nullptr;   ///< of a user's reduction, where it is to be read when the operation runs
  cudaStream_t stream = nullptr;  ///< the user's; looked at on GPUs only
  Stream on = {};                 ///< what carries the call on a GPU; in host mode "no stream"
};

/// Runs one operation in host mode by the C++ interface.
Status run(const Call&);
/// Enqueues it on `on`, or defers it in the batch that is open; without a stream the work is done when the
/// batch has ended.
Result<Work> enqueue_or_defer(const Call&);

/// Runs the call now, or defers it: what an operation of nccl.h comes to once its arguments are checked.
ncclResult_t submit(const char* function, const Call&);

/// What makes, derives or ends communicators, to be run now, at the end of a group, or on the stream of a
/// non-blocking communicator.
struct Job {
  ncclComm_t comm;                         ///< whose call it is; of joining, the communicator that is made
  std::function<ncclResult_t()> run = {};  ///< while `comm` lives, but for `ends`
  std::function<void()> drop = [] {};      ///< instead of run, where the group fails before it begins
  bool makes = true;                       ///< a communicator: it must not share a group with operations
  bool ends = false;  ///< the communicator: it runs in a thread of the caller's, not on the stream
};

/// The open group of the calling thread.
class GroupCalls {
 public:
  /// nullptr outside any group.
  static GroupCalls* current() { return t_current; }
  static void start();
  /// Ends one level; the outermost runs everything. ncclInvalidUsage without a start.
  static ncclResult_t end();
  /// Ends one level; the outermost drops everything, and tells how long the operations would have taken.
  static ncclResult_t simulate(float* microseconds);
  void add(const Call& call) { calls_.push_back(call); }
  void add(Job job) { jobs_.push_back(std::move(job)); }
  /// Remembers the first error, for which the group will be dropped.
  void refuse(ncclResult_t code) {
    if (error_ == ncclSuccess) error_ = code;
  }
  /// What was deferred on the communicator is dropped: its operations, and, where it `ends`, its jobs.
  void forget(ncclComm_t, bool ends);

 private:
  std::vector<ncclComm_t> communicators() const;
  ncclResult_t enter_all(std::deque<Entry>*);
  ncclResult_t run_all();
  ncclResult_t check_all() const;
  ncclResult_t run_calls(const std::vector<ncclComm_t>& comms);
  ncclResult_t run_jobs();
  OURO_STATIC_TLS static inline constinit thread_local GroupCalls* t_current = nullptr;
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

/// Runs the job here and now (blocking), on the communicator's own stream (non-blocking; its
/// ncclCommGetAsyncError tells the end), or at the end of the group.
ncclResult_t begin(Job);

}  // namespace ouro::nccl
