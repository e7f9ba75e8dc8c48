// The GPU executor: puts operations on device memory into streams. Three paths: one rank launches a kernel
// over the buffers of all (leader), flows as waits, copies and writes of streams (stream-ordered), or through
// pinned memory of the host (staged). Nothing spins on a device. Used by group.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/flow/step.h"
#include "kernels/gpu/collect.h"
#include "runtime/context/context.h"
#include "runtime/core/thread.h"
#include "runtime/exec/gpu/gpu_staging.h"
#include "runtime/exec/host/host_executor.h"
#include "runtime/plan/plan.h"
#include "runtime/stream/gpu_stream.h"

namespace ouro::rt {

class GpuExecutor {
 public:
  /// leader: all ranks have one GPU. resident: each has its own and can map the others', and the collective
  /// is even. stream: each can map the others' GPUs. staged: otherwise.
  enum class Path : std::uint8_t { leader, resident, stream, staged };
  using RunOnHost = std::function<Status(const Operation&)>;

  /// `key` names the group's memory on all ranks.
  GpuExecutor(Context&, Host&, int rank, int size, std::uint64_t key, std::chrono::milliseconds deadline);
  ~GpuExecutor();
  GpuExecutor(const GpuExecutor&) = delete;
  GpuExecutor& operator=(const GpuExecutor&) = delete;

  /// How an operation would run: the same on all ranks that agree on it. `why`, if given, is filled in.
  /// Error unsupported: it has no path (a rank without a GPU).
  Result<Path> path(const Operation&, const Choice&, std::string* why = nullptr) const;
  /// Enqueues; operations of a group run in the order of these calls, on whichever streams. `work` ends with
  /// it. A group's operations are enqueued by one thread at a time.
  Status run(const Plan&, Path, std::uint64_t seq, const std::shared_ptr<GpuStream>&,
             std::shared_ptr<WorkState>* work);
  /// The staged path: `on_host` runs the same operation over memory of the host, on a thread of the stream's.
  Status run_staged(const Operation&, const std::shared_ptr<GpuStream>&, RunOnHost on_host,
                    std::shared_ptr<WorkState>* work);

  // Operations under way. Thread-safe.
  struct Pending {
    std::uint64_t seq = 0;
    Plan plan;  ///< what its spans refer to may be gone
    Clock::time_point start, left_since = {};
    bool late_said = false;
  };
  /// The oldest that has not ended, in f; and the number of the last that has, or 0.
  std::uint64_t with_oldest(const std::function<void(Pending&)>& f);
  bool idle();
  /// Returns when all have ended; each does, within its deadline.
  void drain();
  /// What a kernel of this rank has found out and the group does not know yet.
  std::optional<Failure> resident_fault();
  /// The group has failed: ends all waits in streams; what is under way ends with `why`.
  void release(const Status& why);

 private:
  class OpMark;
  /// Stand-in for a buffer that others cannot map. Kept from operation to operation, which follow each other.
  struct Bounce {
    std::shared_ptr<transport::GpuBlock> block;
    std::uint64_t id = 0;
  };
  struct HostBounce;  // pinned memory of the host, for staged operations
  /// Keeps what may still be in use, and what must not be freed now: a driver may wait for all work of the
  /// process then, that of ranks which are threads and wait for this one among it.
  void retire(std::shared_ptr<void> p) {
    if (p) retired_.push_back(std::move(p));
  }
  /// That the buffers of a call are memory of this rank's GPU; asked once for calls that are alike.
  Status check_buffers(const Operation&, std::uint64_t plan);
  Status open_staging();
  Status order(GpuStream&, bool capturing);
  /// Marks the end of the operation in the stream. Plan null: somebody else watches it.
  Status finish(const Plan*, std::uint64_t seq, const std::shared_ptr<GpuStream>&, bool capturing,
                std::shared_ptr<WorkState>* work);
  /// Writes my arrival record, counts me in; true in *last for who comes last. Arrival records were compared
  /// then.
  Status post(const Plan&, std::uint64_t seq, bool capturing, transport::GpuRef in, transport::GpuRef out,
              bool* last);
  Status compare_arrivals(const Plan&, std::uint64_t seq, bool capturing);
  Status enqueue(std::span<const gpu::MemOp>, const gpu::Stream&);
  int multiprocessors();

  // Leader.
  Status run_leader(const Plan&, std::uint64_t seq, GpuStream&, bool capturing);
  Status refer(const void* p, std::size_t bytes, bool capturing, Bounce*, transport::GpuRef*,
               bool* stands_in);
  Status run_alone(const Plan&, GpuStream&);
  Status lead(const Plan&, GpuStream&);
  Status follow(GpuStream&);
  Status launch(const gpu::FusedArgs&, const gpu::Stream&);
  Status fill(const Plan&, gpu::FusedArgs*);

  // Resident.
  struct Resident;
  Status open_resident();
  Status run_resident(const Plan&, std::uint64_t seq, GpuStream&, bool capturing);
  void abort_resident();
  void drop_resident();
  /// For a mark: whether waits or kernels may have ended early.
  std::function<bool()> doubts() const;

  // Stream-ordered: a listener to flows.
  friend class GpuFlow;
  Status run_flow(const Plan&, std::uint64_t seq, GpuStream&, bool capturing);

  Context& context_;
  Host& host_;
  int rank_, n_;
  std::uint64_t key_;
  int device_;
  std::chrono::milliseconds deadline_;
  /// Of the group; member records do not change, so all ranks find the same.
  struct Topology {
    int without = -1;        // a rank that has no GPU
    bool one = true;         // GPU for all
    bool reach = true;       // each can map the others'
    bool values = true;      // streams can wait for values
    bool concurrent = true;  // ranks on one GPU are of one process: their kernels can run at the same time
    bool apart = true;       // each rank has a GPU of its own
    int channels = 0;        // blocks of a rank that fit at the same time
  } topology_;
  std::shared_ptr<GpuStaging> staging_;
  std::uint32_t* stop_word_ = nullptr;  // in device memory of rank 0: tells kernels to touch nothing
  std::shared_ptr<GpuStream> stop_stream_;
  bool abroad_ = false;                     // a member is another process
  bool shares_process_ = false;             // with another member
  std::shared_ptr<GpuStream> lead_stream_;  // where such ranks launch
  std::uint64_t ops_ = 0;                   // that were posted
  std::shared_ptr<GpuStream> last_stream_;  // of the last operation
  std::shared_ptr<WorkState> last_mark_;
  std::shared_ptr<Resident> resident_;
  std::vector<std::byte*> slots_;  // by rank: where its inbound slots lie, as I reach them
  std::shared_ptr<transport::GpuBlock> scratch_;
  Bounce bounce_in_, bounce_out_;
  std::shared_ptr<HostBounce> host_in_, host_out_;
  std::vector<std::shared_ptr<void>> retired_;
  int multiprocessors_ = 0;
  std::uint64_t checked_plan_ = 0;

  std::mutex mutex_;
  struct Entry {
    Pending pending;
    std::shared_ptr<OpMark> mark;
  };
  std::deque<Entry> entries_;
  std::uint64_t ended_ = 0;
  bool released_ = false;
  Status error_;
  Thread releaser_;
  std::atomic<bool> stop_{false};
};

}  // namespace ouro::rt
