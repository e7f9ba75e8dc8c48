// The calls that a thread defers between ncclGroupStart and ncclGroupEnd: operations, and jobs that make,
// derive or end communicators. Used by every function that may be called in a group.
#pragma once
#include <deque>
#include <functional>
#include <vector>

#include "api/nccl/communicator.h"
#include "runtime/core/collectives.h"
#include "runtime/core/thread_owned.h"

namespace ouro::nccl {

/// Which half of a message a call is; none: it is a collective.
enum class MessageHalf : std::uint8_t { none, send, recv };

/// One operation with its arguments. The caller owns the buffers.
struct Call {
  Collective collective = Collective::none;  ///< none: a message
  MessageHalf half = MessageHalf::none;
  ncclComm_t comm = nullptr;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;  ///< elements of the region, of each block, or of the message
  DType type = DType::i8;
  ReduceOp op = {};
  int root = 0;  ///< or the peer of a message
  Numerics numerics = Numerics::inherit;
  /// Address of a user-defined factor that must be read when the operation runs.
  const void* factor = nullptr;
  cudaStream_t stream = nullptr;  ///< the user's stream; used on GPUs only
  Stream on = {};                 ///< the stream that executes the call on a GPU; "no stream" in host mode
};

/// Runs one operation in host mode through the C++ interface.
Status run(const Call&);
/// Enqueues the call on `on`, or defers it in the open batch. Without a stream, the work is complete when the
/// batch has ended.
Result<Work> enqueue_or_defer(const Call&);

/// Runs the call now or defers it; every operation of nccl.h ends here once its arguments are checked.
ncclResult_t submit(const char* function, const Call&);

/// A task that makes, derives or ends communicators; it runs at once, at the end of a group, or on the stream
/// of a non-blocking communicator.
struct Job {
  ncclComm_t comm;                         ///< the communicator called on; for joining, the one being made
  std::function<ncclResult_t()> run = {};  ///< runs before `comm` ends, unless `ends` is set
  std::function<void()> drop = [] {};      ///< called instead of run if the group fails before it begins
  bool makes = true;  ///< it makes a communicator and must not share a group with operations
  bool ends = false;  ///< it ends the communicator: runs in the caller's thread, not on the stream
};

/// The open group of the calling thread.
class GroupCalls {
 public:
  /// nullptr outside any group.
  static GroupCalls* current() { return t_current; }
  static void start();
  /// Ends one level; the end of the outermost runs everything. ncclInvalidUsage without a start.
  static ncclResult_t end();
  /// Ends one level; the end of the outermost drops everything and reports how long the operations
  /// would take.
  static ncclResult_t simulate(float* microseconds);
  void add(const Call& call) { calls_.push_back(call); }
  void add(Job job) { jobs_.push_back(std::move(job)); }
  /// Stores the first error, which makes the end of the group drop everything.
  void refuse(ncclResult_t code) {
    if (error_ == ncclSuccess) error_ = code;
  }
  /// Drops the deferred operations of the communicator and, if it `ends`, its jobs.
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

/// Fails the whole group, if the call is inside one and `code` is an error. Returns `code`.
inline ncclResult_t report_to_group(ncclResult_t code) {
  if (GroupCalls* g = GroupCalls::current(); g && code != ncclSuccess && code != ncclInProgress)
    g->refuse(code);
  return code;
}

/// Runs the job immediately (blocking), on the communicator's own stream (non-blocking; poll
/// ncclCommGetAsyncError for the outcome), or at the end of the group.
ncclResult_t begin(Job);

}  // namespace ouro::nccl
