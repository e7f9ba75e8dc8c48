/// ouro: collectives among ranks. The C++ interface: contexts, groups, streams, work and the operations.
/// For users; includes nothing but the standard library and two small headers of the same kind: status.h
/// (Status, Result, and each reason of a failure) and types.h (element types, reductions, views).
/// @file
#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/status.h"
#include "runtime/core/types.h"

#define OURO_API __attribute__((visibility("default")))    ///< part of the interface: exported
#define OURO_HIDDEN __attribute__((visibility("hidden")))  ///< of a public class, what is not for users

/// The interface: contexts, groups, streams, operations, and what they are made of.
namespace ouro {

namespace rt {  // the implementation; opaque here
class Context;
class Group;
struct WorkState;
class Stream;
struct EventState;
class Allocation;
}  // namespace rt

using Milliseconds = std::chrono::milliseconds;  ///< the unit of all deadlines

/// 128 opaque bytes that name one job. Made by one rank, handed to all others by any channel.
struct UniqueId {
  unsigned char bytes[128] = {};              ///< opaque
  OURO_API static Result<UniqueId> create();  ///< Errors: resource (no random numbers).
};

/// @defgroup streams Streams and work
/// @{

/// Handle of an operation in flight. Copies share one operation; the last copy may go before it ends.
class OURO_API Work {
 public:
  Work();  ///< already complete, successfully
  /// Blocks until the operation has ended or `deadline` has passed (then: timeout, and the operation goes
  /// on). May be called any number of times, from any thread. Negative: the group's own deadline governs.
  Status wait(Milliseconds deadline = Milliseconds(-1)) const;
  bool test() const;      ///< has it ended (well or not)? Never blocks.
  Status status() const;  ///< ok while in flight; the outcome afterwards
  /// Runs `f(outcome)` once it has ended: at once in this thread if it already has, else in the stream's
  /// thread. There f may destroy groups and contexts (what is queued behind it then ends as `revoked`), but
  /// must not wait for anything that is queued behind it.
  void then(std::function<void(const Status&)> f) const;
  explicit Work(std::shared_ptr<rt::WorkState> s) : state_(std::move(s)) {}  ///< for the library

 private:
  std::shared_ptr<rt::WorkState> state_;
};

/// Urgency of a stream, relative to others of its device.
enum class Priority { low /**< less */, normal /**< the default */, high /**< more */ };

/// An ordered queue of operations: of the host, run by one thread of its own, or of a GPU. A default-made
/// Stream is "no stream": operations on it run in the caller. Copies name the same queue; the last one drains
/// and ends it (but not a stream of the user's).
class OURO_API Stream {
 public:
  Stream() = default;
  /// A stream of the host. Errors: resource (no thread).
  static Result<Stream> create(Priority = Priority::normal, std::string name = "");
  /// A new stream of that device; `name` is of use on the host only. Errors: invalid (no such device),
  /// device.
  static Result<Stream> create(Device, Priority = Priority::normal, std::string name = "");
  /// The user's own cudaStream_t (nullptr: the legacy default stream), which outlives all copies of this.
  /// Operations on it may be captured into a graph where the stream is: on all ranks alike. Errors: invalid
  /// (no such device).
  static Result<Stream> cuda(void* cuda_stream, int device);
  bool valid() const { return impl_ != nullptr; }  ///< false: "no stream"
  Device device() const;                           ///< its GPU, or the host
  void* cuda_handle() const;                       ///< the cudaStream_t; nullptr for streams of the host
  /// Enqueues any function of the host's; order with operations is kept.
  Work run(std::function<Status()> f) const;
  /// Waits for what is enqueued now. The first failure of anything that ran here since synchronize() last
  /// returned one or ok, whether or not a Work told it before; `timeout` takes none away. What an operation
  /// of a GPU failed with may become known a moment after the stream has passed it; its Work waits for that.
  Status synchronize(Milliseconds deadline = Milliseconds(-1)) const;
  const std::shared_ptr<rt::Stream>& impl() const { return impl_; }  ///< for the library
  friend bool operator==(const Stream&, const Stream&) = default;

 private:
  explicit Stream(std::shared_ptr<rt::Stream> i) : impl_(std::move(i)) {}
  std::shared_ptr<rt::Stream> impl_;
};

/// A mark in a stream. record() takes the point after all that is enqueued now; a later record replaces it.
/// "No stream" has nothing enqueued, so its mark has been passed at once; who waits "on" it is the caller.
class OURO_API Event {
 public:
  Event();
  void record(const Stream&);         ///< sets the mark; replaces the one before
  void wait_on(const Stream&) const;  ///< work enqueued on the stream from now on starts after the mark
  /// The outcome of the operation before the mark, as Work::wait has it.
  Status synchronize(Milliseconds deadline = Milliseconds(-1)) const;
  bool query() const;  ///< has the mark been passed? True if nothing was recorded.

 private:
  std::shared_ptr<rt::EventState> state_;
};

/// Streams that are made once and handed out again and again.
class OURO_API StreamPool {
 public:
  static constexpr int kDefaultSize = 4;  ///< streams of a pool
  /// 1 to 256 streams. Errors: invalid (size, no such device), resource, device.
  static Result<StreamPool> create(int size = kDefaultSize, Priority = Priority::normal, Device = {});
  Stream next();  ///< round-robin; of a default-made pool, which is empty: "no stream"
  Stream by_key(std::uint64_t key) const;                         ///< the same key, the same stream
  int size() const { return static_cast<int>(streams_.size()); }  ///< number of streams
  void after(const Stream& s) const;   ///< all pool streams go on only after what is enqueued on `s` now
  void before(const Stream& s) const;  ///< `s` goes on only after what is enqueued on all pool streams now
  Status synchronize() const;          ///< of all of them, the first one's failure

 private:
  std::vector<Stream> streams_;
  std::size_t turn_ = 0;
};

/// @}
/// @defgroup contexts Contexts and groups
/// @{

/// How a rank joins its job. OURO_JOIN_DEADLINE, OURO_DEADLINE and OURO_LATE (seconds) in the environment
/// override the three times below; in a file of parameters (ouro.conf) they replace the defaults only.
struct InitOptions {
  std::optional<int> rank = {};  ///< in the job; set with world_size or not at all: from the environment
  std::optional<int> world_size = {};  ///< ranks of the job
  std::optional<int> local_rank = {};  ///< among the ranks of this host; default: rank
  std::optional<int> local_size = {};  ///< ranks of this host; default: world_size
  std::optional<UniqueId> id = {};     ///< the job's name; default: derived from the launcher's variables
  // More than a hundred years, here and in every other call that takes a deadline, are a hundred years.
  Milliseconds join_deadline = std::chrono::minutes(5);  ///< for all ranks to come together
  Milliseconds deadline = std::chrono::minutes(10);      ///< of each operation
  Milliseconds late_after = std::chrono::seconds(10);    ///< late ranks of an operation are named after this
  Numerics numerics = Numerics::inherit;                 ///< of the job; inherit: OURO_NUMERICS, else fast
  /// This rank's GPU, as its process counts them; -1: none. Default: local rank modulo the number of GPUs.
  /// Several ranks may have the same one.
  std::optional<int> gpu = {};
  bool one_gpu_each = false;  ///< true: `invalid` where this process sees fewer GPUs than its host has ranks
  /// Where rank 0 can be reached, instead of `id` and `rendezvous`: with a port the two name the job and are
  /// where its hosts meet; with port 0 the ranks are children of one process on one host (or threads of one
  /// process with one job of this kind), and need no port.
  std::string address = {};
  int port = 0;  ///< of `address`
  /// Where the hosts of a job meet whose local_size is below world_size: "HOST:PORT", on which rank 0
  /// listens, or "file:PATH" on a file system that all see. Local rank 0 of each host joins for its host.
  /// Default: OURO_RENDEZVOUS, else what the launcher tells. The job's secret comes by OURO_SECRET_FILE.
  std::string rendezvous = {};
  std::string host_id = {};  ///< ranks with the same share memory; default: OURO_HOSTID, else this host's own
  std::uint32_t generation = 0;  ///< how often the job was started again; ranks of another are refused
};

/// Options of a group.
struct GroupOptions {
  Milliseconds deadline{0};               ///< of each operation; 0: the context's
  Numerics numerics = Numerics::inherit;  ///< of its operations; inherit: the context's
};

class Group;

/// Memory that all ranks of the node can map, of the host or of this rank's GPU: operations on it read and
/// write it in place. Zero-filled.
class OURO_API Memory {
 public:
  Memory() = default;                                          ///< an empty handle
  void* data() const;                                          ///< null for an empty handle
  std::size_t bytes() const;                                   ///< 0 for an empty handle
  Device device() const;                                       ///< where it is
  explicit operator bool() const { return impl_ != nullptr; }  ///< false: an empty handle
  /// The whole of it as elements of T. Memory of a GPU must not be dereferenced on the host.
  template <class T>
  std::span<T> as() const {
    return {static_cast<T*>(data()), bytes() / sizeof(T)};
  }
  explicit Memory(std::shared_ptr<rt::Allocation> i) : impl_(std::move(i)) {}  ///< for the library

 private:
  std::shared_ptr<rt::Allocation> impl_;
};

/// One rank's membership in a job. Calls are thread-safe. Destruction never waits for peers: operations of
/// its world group that are still in flight end as `revoked`, on all ranks; close() drains them first.
class OURO_API Context {
 public:
  Context();                               ///< an empty handle
  Context(Context&&) noexcept;             ///< leaves an empty handle behind
  Context& operator=(Context&&) noexcept;  ///< as if the old one were destroyed
  ~Context();

  /// Rank and size from the launcher's variables: ouro-run, torchrun, Open MPI, PMIx, PMI (MPICH, Intel MPI),
  /// MVAPICH, SLURM; else one rank. Errors: as create(), and invalid (variables that contradict each other or
  /// are no numbers).
  static Result<Context> from_env(const InitOptions& = {});
  /// Collective over `world_size` ranks that share `id`. Errors: invalid (rank, size, an environment
  /// variable), refused, mismatch (settings), never-joined, peer-dead, resource, device; between hosts also
  /// peer-unresponsive, data-corrupt.
  static Result<Context> create(const InitOptions&);
  /// n ranks in this process, 1 to 256, one Context each, to be driven by n threads. Errors: as create(), of
  /// the first rank that has one.
  static Result<std::vector<Context>> threads(int n, const InitOptions& = {});

  int rank() const;              ///< of this process (or thread) in the job
  int world_size() const;        ///< ranks of the job
  int local_rank() const;        ///< among the ranks of this host
  int local_world_size() const;  ///< ranks of this host
  Device device() const;         ///< this rank's GPU, or the host if it has none
  Group& world();                ///< the group of all ranks; lives as long as the context
  /// A group over the given world ranks, in that order. Members only call this; it does not communicate.
  /// Groups with equal ranks and tag are matched by how many of them each member has made. Errors: invalid
  /// (no members, a rank twice or not in the job, or without the caller), resource (1024 groups), revoked,
  /// forked.
  Result<Group> group(std::span<const int> ranks, std::string tag = "", const GroupOptions& = {});
  /// `bytes` of node-shared memory of this rank, on the host or on its GPU. Freed with the last handle.
  /// Errors: invalid (0 bytes or above 2^46, a GPU that is not this rank's), resource, device, revoked,
  /// forked.
  Result<Memory> alloc(std::size_t bytes, Device = {});
  bool active() const;  ///< joined, and not closed
  /// Leaves the job in good order: drains the world group, then tells the peers. Idempotent. Errors: invalid,
  /// with nothing done, where Group::close() of the world group is. Groups of this context are unusable
  /// afterwards.
  Status close();
  const std::shared_ptr<rt::Context>& impl() const { return impl_; }  ///< for the library

 private:
  explicit Context(std::shared_ptr<rt::Context>);
  void leave();
  std::shared_ptr<rt::Context> impl_;
  std::unique_ptr<Group> world_;
};

/// What shrink() says about the group that it leaves behind.
struct ShrinkReport {
  std::vector<int> dead;         ///< ranks of the old group that are gone
  std::uint64_t resume_seq = 0;  ///< lowest sequence number that some survivor did not complete
};

/// An ordered set of ranks that communicate. One operation of a group runs at a time, in the order in which
/// they were submitted, which must be the same on all members. Several groups are independent.
class OURO_API Group {
 public:
  Group();                             ///< an empty handle
  Group(Group&&) noexcept;             ///< leaves an empty handle behind
  Group& operator=(Group&&) noexcept;  ///< as if the old one were destroyed
  ~Group();

  int rank() const;                                      ///< of the caller in this group
  int size() const;                                      ///< number of members
  const std::string& name() const;                       ///< as it appears in messages
  std::uint64_t generation() const;                      ///< 0, and one more after each shrink()
  std::span<const int> ranks() const;                    ///< world rank of each member
  std::optional<int> from_global(int world_rank) const;  ///< its rank here; nullopt: no member
  /// Collective: members with the same color form a group, ordered by key, then rank. Color -1: no group
  /// (an empty handle, `valid()` false). Errors: those of an all_gather; invalid (another negative color, or
  /// between group_start and group_end); those of Context::group.
  Result<Group> split(int color, int key, const GroupOptions& = {});
  /// Collective over the survivors after a failure: a group without the dead, under a new generation.
  /// After a mismatch, where nobody died, it returns the same members. A group that has not failed does so
  /// now, as revoked. Errors: deadline (survivors that have not called it), fenced, no-quorum, resource,
  /// revoked, forked, invalid (as close()).
  Result<Group> shrink(ShrinkReport* report = nullptr);
  /// The first error that struck this group, or ok. Never blocks.
  Status status() const;
  /// Ends all pending and later operations of this group on every rank within a second. From any thread.
  void abort(std::string why = "");
  /// Drains what was submitted and leaves. Idempotent. Errors: invalid (an empty handle; called by the thread
  /// of a stream with operations in flight, which may be queued behind the caller); what struck the group is
  /// told by its operations and by status().
  Status close();
  bool valid() const { return impl_ != nullptr; }  ///< false: an empty handle
  /// "oneshot over shared-memory: 2 ranks on one node, 1024 bytes; ...": what would run, over what, and why.
  /// `count` is of the region or, where the collective has blocks, of one. For buffers on `device`: which of
  /// the ways of GPUs. Errors: invalid (an empty handle), unsupported (no algorithm serves the call).
  Result<std::string> explain(Collective, std::size_t count, DType, ReduceOp = ReduceOp::sum,
                              Numerics = Numerics::inherit, Device device = {}) const;
  const std::shared_ptr<rt::Group>& impl() const { return impl_; }  ///< for the library
  explicit Group(std::shared_ptr<rt::Group>);                       ///< for the library

 private:
  std::shared_ptr<rt::Group> impl_;
};

/// Per-call choices; the defaults are the group's.
struct CallOptions {
  Numerics numerics = Numerics::inherit;  ///< inherit: the group's
  std::string_view algorithm = {};        ///< "ring", "direct", ...; default: OURO_ALGO, else selected
};

/// @}
/// @defgroup operations Operations
/// Each is collective over the group unless it says otherwise. Without a stream: blocks, runs in the caller.
/// With a stream: enqueued in order, returns a Work; buffers must live until it ends (an invalid Stream runs
/// in the caller and returns a completed Work). Inside group_start/group_end: deferred, returns ok at once.
/// Buffers on a GPU (View::device) are on this rank's own; input and output are on one device. Such an
/// operation goes into a stream of that device, in stream order with the user's kernels, and no processor
/// waits; without a stream it runs on a stream of the group's own, and the buffers must be ready when it is
/// called. In place: out.data == in.data exactly (all_gather: in is the caller's block of out;
/// reduce_scatter: out is the caller's block of in). Partial overlap is `invalid`. Zero counts are legal and
/// do not wait. Errors: invalid (argument, at the call, not sticky); everything else is sticky in the group
/// (see Reason).
/// @{

/// out[i] = in_0[i] (+) ... (+) in_{n-1}[i]; in.count == out.count.
OURO_API Status all_reduce(Group&, CView in, View out, ReduceOp = ReduceOp::sum, const CallOptions& = {});
OURO_API Result<Work> all_reduce(Group&, CView in, View out, ReduceOp, const Stream&,
                                 const CallOptions& = {});  ///< the same on a stream
/// The reduction as all_reduce, left on `root` only; `out` is ignored elsewhere.
OURO_API Status reduce(Group&, CView in, View out, ReduceOp, int root, const CallOptions& = {});
OURO_API Result<Work> reduce(Group&, CView in, View out, ReduceOp, int root, const Stream&,
                             const CallOptions& = {});  ///< the same on a stream
/// in.count == size * out.count; rank r gets block r of the reduction.
OURO_API Status reduce_scatter(Group&, CView in, View out, ReduceOp = ReduceOp::sum, const CallOptions& = {});
OURO_API Result<Work> reduce_scatter(Group&, CView in, View out, ReduceOp, const Stream&,
                                     const CallOptions& = {});  ///< the same on a stream
/// Uneven: block r has counts[r] elements (same array on all ranks); out.count == counts[rank].
OURO_API Status reduce_scatter_v(Group&, CView in, View out, std::span<const std::size_t> counts,
                                 ReduceOp = ReduceOp::sum, const CallOptions& = {});
OURO_API Result<Work> reduce_scatter_v(Group&, CView in, View out, std::span<const std::size_t> counts,
                                       ReduceOp, const Stream&,
                                       const CallOptions& = {});  ///< the same on a stream
/// out.count == size * in.count; block r of out is rank r's input.
OURO_API Status all_gather(Group&, CView in, View out, const CallOptions& = {});
OURO_API Result<Work> all_gather(Group&, CView in, View out, const Stream&,
                                 const CallOptions& = {});  ///< the same on a stream
/// Uneven: block r has counts[r] elements (same array on all ranks); in.count == counts[rank].
OURO_API Status all_gather_v(Group&, CView in, View out, std::span<const std::size_t> counts,
                             const CallOptions& = {});
OURO_API Result<Work> all_gather_v(Group&, CView in, View out, std::span<const std::size_t> counts,
                                   const Stream&, const CallOptions& = {});  ///< the same on a stream
/// in is read on root only; out is written on all ranks. in.count == out.count on root.
OURO_API Status broadcast(Group&, CView in, View out, int root, const CallOptions& = {});
OURO_API Result<Work> broadcast(Group&, CView in, View out, int root, const Stream&,
                                const CallOptions& = {});  ///< the same on a stream
/// Root's out holds size blocks of in.count elements; out is ignored elsewhere.
OURO_API Status gather(Group&, CView in, View out, int root, const CallOptions& = {});
OURO_API Result<Work> gather(Group&, CView in, View out, int root, const Stream&,
                             const CallOptions& = {});  ///< the same on a stream
/// Root's in holds size blocks of out.count elements; in is ignored elsewhere.
OURO_API Status scatter(Group&, CView in, View out, int root, const CallOptions& = {});
OURO_API Result<Work> scatter(Group&, CView in, View out, int root, const Stream&,
                              const CallOptions& = {});  ///< the same on a stream
/// Block j of in goes to rank j; block i of out comes from rank i. Counts equal and divisible by size.
OURO_API Status all_to_all(Group&, CView in, View out, const CallOptions& = {});
OURO_API Result<Work> all_to_all(Group&, CView in, View out, const Stream&,
                                 const CallOptions& = {});  ///< the same on a stream
/// send_counts[j] elements, in order, go to rank j; recv_counts[i] come from rank i. A pair that disagrees:
/// mismatch.
OURO_API Status all_to_all_v(Group&, CView in, View out, std::span<const std::size_t> send_counts,
                             std::span<const std::size_t> recv_counts, const CallOptions& = {});
OURO_API Result<Work> all_to_all_v(Group&, CView in, View out, std::span<const std::size_t> send_counts,
                                   std::span<const std::size_t> recv_counts, const Stream&,
                                   const CallOptions& = {});  ///< the same on a stream
/// Returns (with a stream: completes) on each rank after all ranks have entered.
OURO_API Status barrier(Group&);
OURO_API Result<Work> barrier(Group&, const Stream&);  ///< the same on a stream

/// @}
/// @defgroup messages Messages and batches
/// Between two ranks of a group; not collective, not ordered against collectives. Order is kept per (source,
/// destination, tag). Messages that nobody waits for are queued at the receiver. Tags are 0..2^31-1.
/// Errors: invalid (rank, tag, buffer: at the call, not sticky); all else is sticky in the group.
/// @{

inline constexpr int kAnySource = -1;  ///< instead of a source: a message from any rank of the group

/// What was received, or would be.
struct Received {
  int source = 0;         ///< its rank in the group
  int tag = 0;            ///< as it was sent
  std::size_t bytes = 0;  ///< length of the message
};
/// Returns once the buffer may be reused. Any length, zero included.
OURO_API Status send(Group&, CView data, int dst, int tag = 0);
OURO_API Result<Work> send(Group&, CView data, int dst, int tag, const Stream&);  ///< the same on a stream
/// Receives one message of at most out.bytes() bytes; a longer one is `invalid` and stays queued.
/// `deadline` 0: the group's. One of the call's own that passes before a message has begun does not stick.
OURO_API Result<Received> recv(Group&, View out, int src, int tag = 0,
                               Milliseconds deadline = Milliseconds(0));
OURO_API Result<Work> recv(Group&, View out, int src, int tag, const Stream&);  ///< the same on a stream
/// The next message that recv(src, tag) would take, if one is here. Never blocks. Errors: as recv.
OURO_API Result<std::optional<Received>> probe(Group&, int src, int tag = 0);

/// Operations called by this thread until the matching group_end are deferred and submitted together:
/// messages progress together, and operations of different groups (several ranks in one thread) too.
/// Operations of one group keep their order, and each sees what those before it wrote, as without a batch.
OURO_API void group_start();
/// Submits. Blocks unless all operations were given streams. Returns the first error; an argument error drops
/// all.
OURO_API Status group_end();
/// @}

OURO_API const char* version();  ///< of the library, "0.1.0"

}  // namespace ouro
