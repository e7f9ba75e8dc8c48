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
}  // namespace rt

/// 128 opaque bytes that name one job. Made by one rank, handed to all others by any channel.
struct UniqueId {
  unsigned char bytes[128] = {};              ///< opaque
  OURO_API static Result<UniqueId> create();  ///< Errors: resource (no random numbers).
};

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
  /// Set to true by any thread, it ends joining on all ranks (`revoked`): on one host within a second,
  /// between hosts while the ranks of this host come together. Afterwards it means nothing.
  std::shared_ptr<const std::atomic<bool>> cancel = {};
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
  void* data() const { return data_; }                         ///< null for an empty handle
  std::size_t bytes() const { return bytes_; }                 ///< 0 for an empty handle
  Device device() const { return device_; }                    ///< where it is
  explicit operator bool() const { return data_ != nullptr; }  ///< false: an empty handle
  /// The whole of it as elements of T. Memory of a GPU must not be dereferenced on the host.
  template <class T>
  std::span<T> as() const {
    return {static_cast<T*>(data()), bytes() / sizeof(T)};
  }
  /// For the library: `keep` keeps it.
  Memory(std::shared_ptr<void> keep, void* data, std::size_t bytes, Device device = {})
      : keep_(std::move(keep)), data_(data), bytes_(bytes), device_(device) {}

 private:
  std::shared_ptr<void> keep_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
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
  int hosts() const;             ///< how many hosts the job is on
  /// On which of them a rank is: the one of rank 0 is 0, the others follow in the order of their first ranks.
  /// -1: no such rank.
  int host(int world_rank) const;
  Milliseconds deadline() const;  ///< of operations, where their group has no other
  /// Whether the user chose it (InitOptions::deadline, OURO_DEADLINE), and not the library.
  bool deadline_chosen() const;
  Group& world();  ///< the group of all ranks; lives as long as the context
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

/// While it lives, `ask(data)` is called every few milliseconds while an operation without a stream, called
/// by this thread, waits for other ranks. A failure that it returns ends the operation and strikes its group,
/// on all ranks. For bindings to languages whose handlers of signals run between two steps of the program. It
/// must not call operations of the group that waits. Ends in the thread that made it; the last one counts.
class OURO_API InterruptibleWaits {
 public:
  /// `ask` runs on the thread that waits; `data` is passed to it as it is.
  InterruptibleWaits(Status (*ask)(void*), void* data);
  ~InterruptibleWaits();
  InterruptibleWaits(const InterruptibleWaits&) = delete;
  InterruptibleWaits& operator=(const InterruptibleWaits&) = delete;

 private:
  Status (*before_)(void*);
  void* data_before_;
};

/// An ordered set of ranks that communicate. One operation of a group runs at a time, in the order in which
/// they were submitted, which must be the same on all members. Several groups are independent. Copies are
/// handles of the same group, which ends with the last of them: operations in flight then end as `revoked`,
/// on all ranks.
class OURO_API Group {
 public:
  Group() = default;                                     ///< an empty handle
  int rank() const;                                      ///< of the caller in this group
  int size() const;                                      ///< number of members
  const std::string& name() const;                       ///< as it appears in messages
  std::uint64_t generation() const;                      ///< 0, and one more after each shrink()
  std::span<const int> ranks() const;                    ///< world rank of each member
  std::optional<int> from_global(int world_rank) const;  ///< its rank here; nullopt: no member
  Milliseconds deadline() const;                         ///< of each operation; at most a hundred years
  /// Collective: members with the same color form a group, ordered by key, then rank. Color -1: no group
  /// (an empty handle, `valid()` false). Errors: those of an all_gather; invalid (another negative color, or
  /// between group_start and group_end); those of Context::group.
  Result<Group> split(int color, int key, const GroupOptions& = {});
  /// Collective over the survivors after a failure: a group without the dead, under a new generation.
  /// After a mismatch, where nobody died, it returns the same members. A group that has not failed does so
  /// now, as revoked. What fails next is the group that this returns: shrink that one. Errors: deadline
  /// (survivors that have not called it), fenced, no-quorum, resource, revoked, forked, invalid (as close(),
  /// and of a group that has been shrunk).
  Result<Group> shrink(ShrinkReport* report = nullptr);
  /// Collective over ranks of one host: `bytes` of zero-filled host memory of each rank, as many as it says,
  /// mapped by all of them. Element r is rank r's; an empty handle if that asked for 0 bytes. What one rank
  /// stores there all others can load: operations read and write the caller's own in place, and what else is
  /// done with it is in order where atomics or a barrier put it in order. A rank's memory stays mapped as
  /// long as this handle of it. Errors, on every rank: unsupported (ranks of several hosts), invalid (above
  /// 2^46 bytes; inside group_start), resource.
  Result<std::vector<Memory>> alloc_shared(std::size_t bytes);
  /// The first error that struck this group, or ok. Never blocks.
  Status status() const;
  bool failed() const;  ///< is status() a failure? One load; false for an empty handle
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
  const std::shared_ptr<rt::Group>& impl() const { return impl_; }       ///< for the library
  explicit Group(std::shared_ptr<rt::Group> i) : impl_(std::move(i)) {}  ///< for the library

 private:
  std::shared_ptr<rt::Group> impl_;
};

/// @}

}  // namespace ouro
