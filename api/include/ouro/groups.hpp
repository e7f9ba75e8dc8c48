/// Contexts, groups and the memory that ranks of a host share. For users, who include ouro/ouro.hpp.
/// @file
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ouro/streams.hpp"

namespace ouro {

namespace rt {  // the implementation; opaque here
class Context;
class Group;
class Registration;
}  // namespace rt

/// 128 opaque bytes that name one job. One rank creates it and passes it to all others over any channel.
struct UniqueId {
  unsigned char bytes[128] = {};              ///< opaque
  OURO_API static Result<UniqueId> create();  ///< Errors: resource (no random numbers).
};

/// @defgroup contexts Contexts and groups
/// @{

/// Options of joining a job. OURO_JOIN_DEADLINE, OURO_DEADLINE and OURO_LATE (in seconds) in the environment
/// override the three times below; in a parameter file (ouro.conf) they replace only the defaults.
struct InitOptions {
  /// Rank in the job; set together with world_size, or neither: then from the environment.
  std::optional<int> rank = {};
  std::optional<int> world_size = {};  ///< number of ranks in the job
  std::optional<int> local_rank = {};  ///< rank among the ranks of this host; default: rank
  std::optional<int> local_size = {};  ///< number of ranks on this host; default: world_size
  std::optional<UniqueId> id = {};     ///< the job's name; default: derived from the launcher's variables
  // Here and in every other call that takes a deadline, more than a hundred years is capped at a
  // hundred years.
  Milliseconds join_deadline = std::chrono::minutes(5);  ///< deadline for all ranks to join
  Milliseconds deadline = std::chrono::minutes(10);      ///< deadline of each operation
  /// After this time, ranks that are late for an operation are reported by name.
  Milliseconds late_after = std::chrono::seconds(10);
  Numerics numerics = Numerics::inherit;  ///< numerics of the job; inherit: OURO_NUMERICS, else fast
  /// Any thread may set it to true to cancel joining on all ranks (`revoked`): on one host within a second;
  /// between hosts only while the ranks of this host are gathering. It has no effect once the rank
  /// has joined.
  std::shared_ptr<const std::atomic<bool>> cancel = {};
  /// Index of this rank's GPU as seen by its process; -1: none. Default: local rank modulo the number of
  /// GPUs, or none, with a warning, if this build has no code for it. Several ranks may share one.
  std::optional<int> gpu = {};
  /// true: `invalid` if this process sees fewer GPUs than its host has ranks, `unsupported` if this build has
  /// no code for this rank's.
  bool one_gpu_each = false;
  /// Blocks, and so multiprocessors, of a kernel that waits for kernels of other ranks, at most; the smallest
  /// value of a group's ranks counts for all. 0: half of the multiprocessors and at most 32.
  int gpu_blocks = 0;
  /// The address of rank 0, in place of `id` and `rendezvous`. With a port, address and port name the job and
  /// are where its hosts meet. With port 0, all ranks must be children of one process on one host (or threads
  /// of one process that has one job of this kind) and need no port.
  std::string address = {};
  int port = 0;  ///< port of `address`
  /// The rendezvous of the hosts of a job with local_size < world_size: "HOST:PORT", on which rank 0 listens,
  /// or "file:PATH" on a file system that all hosts see. Local rank 0 of each host joins on behalf of its
  /// host. Default: OURO_RENDEZVOUS, else what the launcher provides. The job's secret comes
  /// from OURO_SECRET_FILE.
  std::string rendezvous = {};
  /// Ranks with equal host_id share memory; default: OURO_HOSTID, else this host's own identity.
  std::string host_id = {};
  std::uint32_t generation = 0;  ///< number of restarts of the job; ranks of another generation are refused
};

/// Options of a group.
struct GroupOptions {
  Milliseconds deadline{0};               ///< deadline of each operation; 0: the context's
  Numerics numerics = Numerics::inherit;  ///< numerics of its operations; inherit: the context's
};

class Group;

/// Zero-filled memory, on the host or on this rank's GPU, that all ranks of the host can map: operations read
/// and write it in place.
class OURO_API Memory {
 public:
  Memory() = default;                                          ///< an empty handle
  void* data() const { return data_; }                         ///< null for an empty handle
  std::size_t bytes() const { return bytes_; }                 ///< 0 for an empty handle
  Device device() const { return device_; }                    ///< the device that holds it
  explicit operator bool() const { return data_ != nullptr; }  ///< false: an empty handle
  /// All of it as elements of T. Memory of a GPU must not be dereferenced on the host.
  template <class T>
  std::span<T> as() const {
    return {static_cast<T*>(data()), bytes() / sizeof(T)};
  }
  /// For the library: `keep` owns the memory.
  Memory(std::shared_ptr<void> keep, void* data, std::size_t bytes, Device device = {})
      : keep_(std::move(keep)), data_(data), bytes_(bytes), device_(device) {}

 private:
  std::shared_ptr<void> keep_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
};

/// Registration of memory of this rank's GPU that the program allocated (Context::register_memory). Ends with
/// the handle. Movable, not thread-safe.
class OURO_API Registration {
 public:
  Registration() = default;                                    ///< an empty handle
  Registration(Registration&&) noexcept = default;             ///< leaves an empty handle behind
  Registration& operator=(Registration&&) noexcept = default;  ///< as if the old one were destroyed
  ~Registration() = default;  ///< as release(), but neither waits for other processes nor queries them
  const void* data() const { return impl_ ? data_ : nullptr; }  ///< as registered; null for an empty handle
  std::size_t bytes() const { return impl_ ? bytes_ : 0; }      ///< as registered; 0 for an empty handle
  explicit operator bool() const { return impl_ != nullptr; }   ///< false: an empty handle
  /// Ends the registration: operations that are called from now on treat the memory like any other.
  /// Operations in flight still use it, so do not free the memory before they have ended on this rank.
  /// Idempotent; enqueues nothing and synchronizes no stream.
  ///
  /// Memory of cuMemMap may then be freed at once. It returns to the device when no operation of this process
  /// is in flight and the other processes have unmapped it, which they do without a call of their own. Memory
  /// of cudaMalloc must not be freed while another process has it open (CUDA does not define what happens
  /// then). For such memory the call waits up to `wait` until all have closed it. They do so without a call
  /// of their own, but not while an operation of theirs or of this process is in flight, so let operations
  /// end that wait for this rank. If `wait` is 0, it queries them once, for up to 100 ms each. Error
  /// deadline: a rank, which the text names, still has the memory open, or has not confirmed that it has
  /// closed it; the registration has ended nevertheless, and a later call continues to wait. Error resource:
  /// call it again.
  Status release(Milliseconds wait = Milliseconds(2000));
  /// For the library.
  Registration(std::shared_ptr<rt::Registration> impl, const void* data, std::size_t bytes)
      : impl_(std::move(impl)), data_(data), bytes_(bytes) {}

 private:
  std::shared_ptr<rt::Registration> impl_;
  const void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// One rank's membership in a job. Calls are thread-safe. Destruction never waits for peers: operations of
/// its world group that are still in flight end as `revoked` on all ranks; close() drains them first.
class OURO_API Context {
 public:
  Context();                               ///< an empty handle
  Context(Context&&) noexcept;             ///< leaves the source an empty handle
  Context& operator=(Context&&) noexcept;  ///< also destroys the previous membership
  ~Context();

  /// Joins with rank and size from the launcher's variables: ouro-run, torchrun, Open MPI, PMIx, PMI (MPICH,
  /// Intel MPI), MVAPICH, SLURM; without any of them, a job of one rank. Errors: as create(), and invalid
  /// (variables that contradict each other or are not numbers).
  static Result<Context> from_env(const InitOptions& = {});
  /// Collective over `world_size` ranks that share `id`. Errors: invalid (rank, size, an environment
  /// variable), refused, mismatch (settings), never-joined, peer-dead, resource, device; between hosts also
  /// peer-unresponsive, data-corrupt.
  static Result<Context> create(const InitOptions&);
  /// Creates n ranks in this process, 1 to 256, with one Context each; drive them from n threads. Errors: as
  /// create(); the first rank's that has one.
  static Result<std::vector<Context>> threads(int n, const InitOptions& = {});

  int rank() const;              ///< rank of this process (or thread) in the job
  int world_size() const;        ///< number of ranks in the job
  int local_rank() const;        ///< rank among the ranks of this host
  int local_world_size() const;  ///< number of ranks on this host
  Device device() const;         ///< this rank's GPU, or the host if it has none
  int hosts() const;             ///< number of hosts in the job
  /// Index of the host of a rank: the host of rank 0 is 0, the others follow in the order of their first
  /// ranks. -1: no such rank.
  int host(int world_rank) const;
  Milliseconds deadline() const;  ///< deadline of operations of groups that set none
  /// Whether the user chose that deadline (InitOptions::deadline, OURO_DEADLINE) or it is the
  /// library's default.
  bool deadline_chosen() const;
  Group& world();  ///< the group of all ranks; lives as long as the context
  /// Creates a group of the given world ranks, in that order. Only the members call this; it does not
  /// communicate. Members match groups with equal ranks and tag by creation order. Errors: invalid (no
  /// members, a rank twice or not in the job, the caller not among them), resource (1024 groups),
  /// revoked, forked.
  Result<Group> group(std::span<const int> ranks, std::string tag = "", const GroupOptions& = {});
  /// Allocates `bytes` of memory of this rank that all ranks of its host can map, on the host or on its GPU.
  /// Freed with the last handle. Errors: invalid (0 bytes or above 2^46, a GPU that is not this rank's),
  /// resource, device, revoked, forked.
  Result<Memory> alloc(std::size_t bytes, Device = {});
  /// Registers `bytes` bytes at `data`, memory of this rank's GPU that the program allocated. If GPUs map
  /// each other, operations then read and write it in place, like memory of alloc(). The caller keeps the
  /// memory allocated until the registration has been released. The call is local, and valid for all groups,
  /// created before or after it. Ranges may overlap and need not be whole allocations. A range of memory of
  /// cuMemMap (PyTorch's expandable segments, ncclMemAlloc) may span mappings, and a buffer may span adjacent
  /// ranges of it. Other processes map the whole allocation, or the whole of each mapping. The registration
  /// keeps the context alive. Errors: invalid (0 bytes or above 2^46, not memory of a GPU or only in part, a
  /// GPU that is not this rank's), unsupported (host memory, managed memory, or memory that other processes
  /// cannot map, such as that of cuMemCreate without a shareable handle type; the text says why), resource,
  /// device, revoked, forked.
  Result<Registration> register_memory(const void* data, std::size_t bytes, Device device);
  bool active() const;  ///< joined and not closed
  /// Leaves the job cleanly: drains the world group, then notifies the peers. Idempotent. Groups of this
  /// context are unusable afterwards. Errors: invalid, with nothing done, in the cases where Group::close()
  /// of the world group is.
  Status close();
  const std::shared_ptr<rt::Context>& impl() const { return impl_; }  ///< for the library

 private:
  explicit Context(std::shared_ptr<rt::Context>);
  void leave();
  std::shared_ptr<rt::Context> impl_;
  std::unique_ptr<Group> world_;
};

/// The report of shrink() about the old group.
struct ShrinkReport {
  std::vector<int> dead;         ///< ranks of the old group that have died
  std::uint64_t resume_seq = 0;  ///< lowest sequence number that some survivor did not complete
};

/// While it lives and an operation without a stream, called by this thread, waits for other ranks,
/// `ask(data)` is called every few milliseconds. If it returns a failure, the operation ends and its group
/// fails, on all ranks. For bindings to languages whose signal handlers run between two steps of the program.
/// `ask` must not call operations of the waiting group. Destroy it in the thread that made it; of several,
/// the innermost is used.
class OURO_API InterruptibleWaits {
 public:
  /// `ask` runs on the waiting thread; `data` is passed through unchanged.
  InterruptibleWaits(Status (*ask)(void*), void* data);
  ~InterruptibleWaits();
  InterruptibleWaits(const InterruptibleWaits&) = delete;
  InterruptibleWaits& operator=(const InterruptibleWaits&) = delete;

 private:
  Status (*before_)(void*);
  void* data_before_;
};

/// An ordered set of ranks that communicate. A group runs one operation at a time, in the order of
/// submission, which must be the same on all members. Different groups are independent. Copies are handles of
/// the same group, which ends with the last of them: operations still in flight then end as `revoked`
/// on all ranks.
class OURO_API Group {
 public:
  Group() = default;                                     ///< an empty handle
  int rank() const;                                      ///< the caller's rank in this group
  int size() const;                                      ///< number of members
  const std::string& name() const;                       ///< the name used in messages
  std::uint64_t generation() const;                      ///< 0, increased by one by each shrink()
  std::span<const int> ranks() const;                    ///< world rank of each member
  std::optional<int> from_global(int world_rank) const;  ///< its rank in this group; nullopt: not a member
  Milliseconds deadline() const;  ///< deadline of each operation; at most a hundred years
  /// Collective: members with the same color form a group, ordered by key, then by rank. Color -1: no group
  /// (an empty handle, `valid()` false). Errors: those of an all_gather; invalid (another negative color, or
  /// called between group_start and group_end); those of Context::group.
  Result<Group> split(int color, int key, const GroupOptions& = {});
  /// Collective over the survivors after a failure: returns a group without the dead ranks, under a new
  /// generation. After a mismatch, where nobody died, the new group has the same members. If this group has
  /// not failed, the call revokes it. On a later failure, shrink the group that this call returned. Errors:
  /// deadline (some survivors have not called it), fenced, no-quorum, resource, revoked, forked, invalid (as
  /// close(), and if the group has already been shrunk).
  Result<Group> shrink(ShrinkReport* report = nullptr);
  /// Collective over ranks of one host: allocates `bytes` of zero-filled host memory for each rank (each may
  /// ask for a different size) and maps all of it in every rank. Element r is rank r's memory, an empty
  /// handle if rank r asked for 0 bytes. All ranks can load what one stores there; operations read and write
  /// the caller's own in place; order any other access with atomics or a barrier. A rank's memory is mapped
  /// as long as this handle of it lives. Errors, on every rank: unsupported (ranks of several hosts), invalid
  /// (above 2^46 bytes; inside group_start), resource.
  Result<std::vector<Memory>> alloc_shared(std::size_t bytes);
  /// The first error of this group, or ok. Never blocks.
  Status status() const;
  bool failed() const;  ///< whether status() is a failure: one load; false for an empty handle
  /// Ends all pending and later operations of this group on every rank within a second. Callable from
  /// any thread.
  void abort(std::string why = "");
  /// Drains submitted operations and leaves the group. Idempotent. Errors: invalid (an empty handle; a call
  /// from a stream's thread while operations are in flight, because they may be queued behind the caller). A
  /// failure of the group itself is reported by its operations and by status().
  Status close();
  bool valid() const { return impl_ != nullptr; }  ///< false: an empty handle
  /// Returns the algorithm that would run, over which transport, and why: "oneshot over shared-memory: 2
  /// ranks on one host, 1024 bytes; ...". `count` is that of the whole region or, for collectives with
  /// blocks, of one block. For buffers on `device`, names the GPU path. Errors: invalid (an empty handle),
  /// unsupported (no algorithm serves the call).
  Result<std::string> explain(Collective, std::size_t count, DType, ReduceOp = ReduceOp::sum,
                              Numerics = Numerics::inherit, Device device = {}) const;
  const std::shared_ptr<rt::Group>& impl() const { return impl_; }       ///< for the library
  explicit Group(std::shared_ptr<rt::Group> i) : impl_(std::move(i)) {}  ///< for the library

 private:
  std::shared_ptr<rt::Group> impl_;
};

/// @}

}  // namespace ouro
