// The control page of a rank: which operation of which group it has entered, its first error, its state.
// Written by one rank, readable by all ranks of its host, so that a mismatch or a late rank is found even if
// no data link connects the two ranks. Used by context and group.
#pragma once
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/calibration/record.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"
#include "runtime/core/wait.h"

namespace ouro::rt {

/// What ranks must agree on in one operation: two words, so that peers can read and print all of it.
struct Signature {
  /// collective | dtype << 8 | op << 16 | wire << kWireShift | flags << 24 | root << 32 | how << kHowShift
  std::uint64_t what = 0;
  std::uint64_t count = 0;  ///< elements, in the collective's unit; v-forms and batches: a hash of the counts

  static constexpr std::uint8_t kCanonical = 1, kUneven = 2, kFused = 128;
  static constexpr int kAlgorithmShift = 2, kAlgorithmMask = 31;  // flags: forced algorithm + 1, or 0
  /// `how`: the way in which the host executors run the operation, which every rank chooses by itself from
  /// what all ranks know: the algorithm + 1 (0: there is no choice, or the host executors do not make it),
  /// whether ranks check that zero copy or pull is possible, and whether posts go round the staging ring.
  static constexpr int kRootBits = 24, kHowShift = 56;
  static constexpr std::uint8_t kZeroCopy = 32, kPull = 64, kRing = 128;

  /// `wire`: the format of partial sums (kernels/arith/wire.h), below 16.
  static constexpr int kWireShift = 20, kOpMask = 15;

  static Signature of(Collective c, DType t, OpKind op, std::uint8_t wire, std::uint8_t flags, int root,
                      std::uint64_t count) {
    return {static_cast<std::uint64_t>(c) | static_cast<std::uint64_t>(t) << 8 |
                static_cast<std::uint64_t>(op) << 16 | static_cast<std::uint64_t>(wire) << kWireShift |
                static_cast<std::uint64_t>(flags) << 24 |
                static_cast<std::uint64_t>(static_cast<std::uint32_t>(root)) << 32,
            count};
  }
  Signature by(std::uint8_t how) const { return {what | std::uint64_t{how} << kHowShift, count}; }
  /// A hash of 64 bits for slot headers and arrival records.
  std::uint64_t folded() const;
  /// "all_reduce(float, sum, count 1024)", in the user's terms.
  std::string text() const;
  /// "algorithm ring, zerocopy where all buffers are registered": `how`, which users do not choose.
  std::string how_text() const;
  friend bool operator==(const Signature&, const Signature&) = default;
};

/// One word that other ranks read; every access is atomic.
template <class T>
struct Shared {
  T value;
  T get(std::memory_order order = std::memory_order_acquire) const {
    return std::atomic_ref(const_cast<T&>(value)).load(order);
  }
  void set(T v, std::memory_order order = std::memory_order_release) {
    std::atomic_ref(value).store(v, order);
  }
};

inline constexpr int kHistory =
    8;  // operations: rooted ones let ranks run ahead; readers check that far back
inline constexpr int kRecords = 1024;  // live groups per rank
inline constexpr int kErrors = 128;    // first errors of groups that a rank can publish in its life
inline constexpr int kMaxCpus = 8192;

struct alignas(64) GroupRecord {
  Shared<std::uint64_t> key;        // 0: never used. Written once per use, before `state` becomes open
  Shared<std::uint32_t> state;      // GroupState
  Shared<std::uint32_t> error;      // 0: none, else index + 1 into errors
  Shared<std::uint64_t> entered;    // sequence number of the newest operation entered
  Shared<std::uint64_t> completed;  // of the newest operation that succeeded
  struct {
    Shared<std::uint64_t> tag;  // seq; 0 while the words change
    Shared<std::uint64_t> what, count;
  } history[kHistory];              // operation seq is at seq mod kHistory
  Shared<std::uint32_t> shrinking;  // Shrinking
  Shared<std::uint32_t> decided;    // 1: `dead` is final (written once; between hosts, by all)
  Shared<std::uint64_t> resume;     // with `decided`: lowest sequence number that a survivor did not complete
  Shared<std::uint64_t> dead[kMaxRanks / 64];
  Shared<std::uint32_t> vote;            // 0: the owner has not voted, else index + 1 into votes
  Shared<std::uint32_t> revised;         // 0: the owner proposes no records, else index + 1 into revisions
  Shared<std::uint64_t> revision_point;  // the newest that the owner has reached (revision.h); 0: none
};
/// called: this rank's group is at rest in shrink(). The other two are final and follow the rank's last vote.
/// resigned: it found no quorum. fenced: it was notified that others have continued without it.
enum class Shrinking : std::uint32_t { no, called, resigned, fenced };
/// finishing: its owner closes the group, and sends no more messages.
enum class GroupState : std::uint32_t { closed, open, finishing };

/// A set of members of a group, as stored on control pages.
struct RankSet {
  std::uint64_t words[kMaxRanks / 64] = {};
  bool has(int r) const { return words[r / 64] >> (r % 64) & 1; }
  void add(int r) { words[r / 64] |= std::uint64_t{1} << (r % 64); }
  void remove(int r) { words[r / 64] &= ~(std::uint64_t{1} << (r % 64)); }
  void add(const RankSet& o) {
    for (int i = 0; i < kMaxRanks / 64; ++i) words[i] |= o.words[i];
  }
  int count() const {
    int n = 0;
    for (const std::uint64_t w : words) n += std::popcount(w);
    return n;
  }
  friend bool operator==(const RankSet&, const RankSet&) = default;
};

/// The outcome on which shrink() agrees.
struct Verdict {
  RankSet dead;
  std::uint64_t resume = 0;  ///< lowest sequence number that a survivor did not complete
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

/// The registers of one member in that agreement (agreement.h). Ballots only grow; 0: none.
struct Vote {
  std::uint64_t promised = 0;  ///< the member takes part in no older ballot
  std::uint64_t accepted = 0;  ///< ballot of `value`; a vote for `value` as long as it equals `promised`
  Verdict value;
  RankSet proven;    ///< members proven dead by a rank of their host; their last votes are merged here
  RankSet suspects;  ///< members that this rank has given up without proof
  friend bool operator==(const Vote&, const Vote&) = default;
};
static_assert(sizeof(Vote) % sizeof(std::uint64_t) == 0);

/// A vote that others can read while it changes, and after its writer has died at any moment: the writer
/// fills the half that `version` does not select, then advances `version` to select it.
struct VoteRegister {
  static constexpr std::size_t kWords = sizeof(Vote) / sizeof(std::uint64_t);
  Shared<std::uint64_t> key;  // of the group; 0: never used
  Shared<std::uint64_t> version;
  Shared<std::uint64_t> halves[2][kWords];
};
inline constexpr int kVotes = 64;  // groups of a rank that can be in an agreement at the same time

/// Records that the first member of a group has measured in mid-run, for all members to adopt: the newest
/// revision and the one before, indexed by the parity of the revision. See runtime/health/revision.h.
struct RevisionRegister {
  static constexpr std::size_t kWords = (sizeof(Calibration) + 7) / 8;
  Shared<std::uint64_t> key;      // of the group; 0: never used
  Shared<std::uint32_t> kept;     // 1: a member may yet have to take a record, even if the owner has left
  Shared<std::uint64_t> made[2];  // proposal words, see revision.cc
  Shared<std::uint64_t> records[2][kWords];
};
inline constexpr int kRevising = 32;  // groups of a rank that can have revisions at the same time

/// Shared memory in which one rank measures copies with another in mid-run. See runtime/context/peer_probe.h.
struct ProbePage {
  static constexpr std::size_t kBytes = 64 << 10;
  struct alignas(128) Question {
    Shared<std::uint64_t> serial;      // grows with each question; the words below are written before it
    Shared<std::uint64_t> group, seq;  // the operation at whose end the peer answers; 0: no peer is asked
    Shared<std::uint32_t> rank;        // the peer that is asked, as a rank of the group
    Shared<std::uint32_t> task, bytes;
    Shared<std::uint64_t> from;  // address to read, in the asker's process
  } question;
  struct alignas(128) Answer {
    Shared<std::uint64_t> serial;  // of the question << 1, | 1 if this rank answers no further one
    Shared<std::uint32_t> took;    // nanoseconds; 0: the system does not permit it
  } answer;
  alignas(128) std::byte block[kBytes];
};

/// A published error: the fields of a Failure that peers need. Written once, before anything refers to it.
struct ErrorRecord {
  Reason reason;
  std::int32_t rank;
  std::int32_t pid;
  Collective op;
  std::uint64_t seq;
  double elapsed_s;
  char detector[32];
  char text[960];
};

/// The GPU of a rank, and which others it can map; written before the rank joins, so that all members of a
/// group choose the same executor.
struct GpuRecord {
  static constexpr int kReach = 16;
  using Uuid = std::array<unsigned char, 16>;
  std::uint32_t present;  // 0: this rank has no GPU
  std::int32_t device;    // index of the GPU in its process
  std::uint32_t stream_values, multiprocessors;
  std::uint32_t device_words;  // whether its streams wait for and write words in device memory, too
  std::uint32_t connections;   // hardware queues that its streams share; 0: each has its own
  std::uint32_t reach_count;
  std::uint32_t blocks;     // of a kernel that waits for others, at most; 0: no limit
  std::uint32_t multicast;  // whether it supports multicast objects and has kernels for them
  std::uint32_t mps;        // whether kernels of other processes run beside its own
  Uuid uuid;
  Uuid reach[kReach];
};

inline constexpr int kDoorbells = 64, kGone = 64;

struct ControlPage {
  std::uint64_t magic;
  std::uint32_t rank;
  std::int32_t pid;
  std::uint64_t process;              // process_number() of the owner
  std::uint64_t pid_namespace;        // in which `pid` is valid; 0: unknown
  Shared<std::uint32_t> state;        // ContextState
  Shared<std::uint32_t> errors_used;  // grows; while it is unchanged a reader need not check again
  std::uint64_t self;  // address of this page in its owner's process, for a trial of reading that process
  std::uint64_t cpus[kMaxCpus / 64];  // bits: CPUs on which this rank could run when it joined
  std::int32_t cache;  // outermost cache of the cores that it may use, from 1; 0: several, or unknown
  GpuRecord gpu;
  Calibration calibration;                // of its host, set by the first rank there; on others all zero
  Shared<std::uint64_t> gpu_freed;        // counts the exports of device memory that have ended
  Shared<std::uint64_t> gpu_gone[kGone];  // ids of the latest of these: the k-th, from 0, at k mod kGone
  Shared<std::uint32_t> gpu_open;         // number of exports of other processes that this rank has mapped
  Shared<std::uint32_t> gpu_trial;        // how far the trial of access to other GPUs is (peer_trial.h)
  Shared<std::uint32_t> gpu_wrong;        // bit i: the trial has refuted access to GpuRecord::reach[i]
  Shared<std::uint64_t> freed;            // counts freed allocations; peers then drop stale mappings
  ErrorRecord errors[kErrors];
  GroupRecord groups[kRecords];
  VoteRegister votes[kVotes];
  RevisionRegister revisions[kRevising];
  ProbePage probe;
  Counter doorbells[kDoorbells];  // for messages, by group key; rung by ranks of this host
};
/// leaving: the rank accepts nothing more from other hosts, and what it has sent is still in flight.
enum class ContextState : std::uint32_t { joining, active, closed, leaving };
inline constexpr std::uint64_t kControlMagic = 0x6f75726f2d637064;  // "ouro-cpd"

/// Whether the record belongs to a group that its owner has not left.
inline bool in_use(const GroupRecord& r) {
  return r.state.get() != static_cast<std::uint32_t>(GroupState::closed);
}

/// Publishes that the owner of the record enters operation `seq` with this signature.
void enter(GroupRecord&, std::uint64_t seq, Signature);
/// The signature with which the owner of the record has entered operation `seq`; nullopt if the page does not
/// have it (yet, or any more).
std::optional<Signature> entered_as(const GroupRecord&, std::uint64_t seq);

/// The vote register of an open group on its owner's page, claimed at the first call. nullptr: all
/// are in use.
VoteRegister* claim_vote(ControlPage& mine, GroupRecord&);
/// Likewise, the register in which the owner proposes records.
RevisionRegister* claim_revision(ControlPage& mine, GroupRecord&);
/// The register in which the owner of the record proposes records to group `key`; nullptr: there is none yet,
/// or the owner has left the group.
RevisionRegister* find_revision(ControlPage& of_owner, const GroupRecord&, std::uint64_t key);
/// Publishes a vote; called only by the owner of the page.
void write(VoteRegister&, const Vote&);
/// A consistent copy of the vote of group `key`; nullopt: the register now belongs to another group, or
/// changes faster than it can be read.
std::optional<Vote> read(const VoteRegister&, std::uint64_t key);

}  // namespace ouro::rt
