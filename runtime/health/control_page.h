// The control page of a rank: which operation of which group it has entered, its first error, its state.
// Written by one rank, readable by all of its node, so that a disagreement or a late rank is found even where
// the data links of two ranks do not meet. Used by context and group.
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

/// What ranks must agree on in one operation: two words, so that all of it can be read by peers and printed.
struct Signature {
  /// collective | dtype << 8 | op << 16 | flags << 24 | root << 32 | how << kHowShift
  std::uint64_t what = 0;
  std::uint64_t count = 0;  ///< elements, as the collective counts them; of v-forms a hash of the counts

  static constexpr std::uint8_t kCanonical = 1, kUneven = 2, kFused = 128;
  static constexpr int kAlgorithmShift = 2, kAlgorithmMask = 31;  // flags: forced algorithm + 1, or 0
  /// How the host carries it out, which every rank chooses by itself from what all of them know: the
  /// algorithm + 1 (0: there is no choice, or it is not the host's), and whether buffers are asked about.
  static constexpr int kRootBits = 24, kHowShift = 56;
  static constexpr std::uint8_t kZeroCopy = 32, kPull = 64;

  static Signature of(Collective c, DType t, OpKind op, std::uint8_t flags, int root, std::uint64_t count) {
    return {static_cast<std::uint64_t>(c) | static_cast<std::uint64_t>(t) << 8 |
                static_cast<std::uint64_t>(op) << 16 | static_cast<std::uint64_t>(flags) << 24 |
                static_cast<std::uint64_t>(static_cast<std::uint32_t>(root)) << 32,
            count};
  }
  Signature by(std::uint8_t how) const { return {what | std::uint64_t{how} << kHowShift, count}; }
  /// 64 bits for headers and arrival records.
  std::uint64_t folded() const;
  /// "all_reduce(float, sum, count 1024)", in the user's terms.
  std::string text() const;
  /// "algorithm ring, zerocopy where all buffers are registered", which is not the user's business.
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

inline constexpr int kHistory = 8;     // rooted operations let a rank run ahead; readers look that far back
inline constexpr int kRecords = 1024;  // live groups a rank
inline constexpr int kErrors = 128;    // first errors of groups that a rank can publish in its life
inline constexpr int kMaxCpus = 8192;

struct alignas(64) GroupRecord {
  Shared<std::uint64_t> key;        // 0: never used. Written once per use, before `state` says open
  Shared<std::uint32_t> state;      // GroupState
  Shared<std::uint32_t> error;      // 0: none, else index + 1 into errors
  Shared<std::uint64_t> entered;    // sequence number of the newest operation entered
  Shared<std::uint64_t> completed;  // of the newest operation that ended well
  struct {
    Shared<std::uint64_t> tag;  // seq; 0 while the words change
    Shared<std::uint64_t> what, count;
  } history[kHistory];              // operation seq stands at seq mod kHistory
  Shared<std::uint32_t> shrinking;  // Shrinking
  Shared<std::uint32_t> decided;    // 1: `dead` below is final (written once, between hosts by all)
  Shared<std::uint64_t> resume;     // with `decided`: lowest sequence number that a survivor did not complete
  Shared<std::uint64_t> dead[kMaxRanks / 64];
  Shared<std::uint32_t> vote;     // 0: it has not voted, else index + 1 into votes
  Shared<std::uint32_t> revised;  // 0: it proposes no records, else index + 1 into revisions
  Shared<std::uint64_t> looked;   // the newest look that it has come to, as a member (revision.h); 0: none
};
/// called: the group of this rank is at rest in shrink(). The others are for good, and after its last vote:
/// it found no quorum, or it was told that others have gone on without it.
enum class Shrinking : std::uint32_t { no, called, resigned, fenced };
enum class GroupState : std::uint32_t { closed, open };

/// A set of members of a group, as it lies on pages.
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

/// What shrink() agrees on.
struct Verdict {
  RankSet dead;
  std::uint64_t resume = 0;  ///< lowest sequence number that a survivor did not complete
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

/// The registers of one member in that agreement. Ballots only grow; 0: none.
struct Vote {
  std::uint64_t promised = 0;  ///< it takes part in no older ballot
  std::uint64_t accepted = 0;  ///< ballot of `value`; counts as a vote for it while it is the one promised
  Verdict value;
  RankSet proven;    ///< who is dead, seen by a rank of the same host; their last votes are merged here
  RankSet suspects;  ///< whom this rank has given up without proof
  friend bool operator==(const Vote&, const Vote&) = default;
};
static_assert(sizeof(Vote) % sizeof(std::uint64_t) == 0);

/// A vote where others read it while it changes, and after its writer has died at any moment: the half that
/// `version` does not name is written, then named.
struct VoteRegister {
  static constexpr std::size_t kWords = sizeof(Vote) / sizeof(std::uint64_t);
  Shared<std::uint64_t> key;  // of the group; 0: never used
  Shared<std::uint64_t> version;
  Shared<std::uint64_t> halves[2][kWords];
};
inline constexpr int kVotes = 64;  // groups of a rank that can be in an agreement at the same time

/// Records that the first member of a group has measured in mid-run, for all members to reckon with: the
/// newest revision and the one before, each by its parity. See runtime/health/revision.h.
struct RevisionRegister {
  static constexpr std::size_t kWords = (sizeof(Calibration) + 7) / 8;
  Shared<std::uint64_t> key;      // of the group; 0: never used
  Shared<std::uint32_t> kept;     // 1: a record here may not have been taken by all, though its owner leaves
  Shared<std::uint64_t> made[2];  // revision.cc
  Shared<std::uint64_t> records[2][kWords];
};
inline constexpr int kRevising = 32;  // groups of a rank that can have revisions at the same time

/// Where one rank measures copies with another in mid-run. See runtime/context/peer_probe.h.
struct ProbePage {
  static constexpr std::size_t kBytes = 64 << 10;
  struct alignas(128) Question {
    Shared<std::uint64_t> serial;      // grows with each question; the words below are written before it
    Shared<std::uint64_t> group, seq;  // whose operation the other rank has just ended; 0: nobody is asked
    Shared<std::uint32_t> rank;        // who is asked, in that group
    Shared<std::uint32_t> task, bytes;
    Shared<std::uint64_t> from;  // what is to be read, in the process of who asks
  } question;
  struct alignas(128) Answer {
    Shared<std::uint64_t> serial;  // of the question << 1 | 1 if this rank answers no more
    Shared<std::uint32_t> took;    // nanoseconds; 0: the system refuses
  } answer;
  alignas(128) std::byte block[kBytes];
};

/// A published error: the fields of a Failure that peers need. Written once, then pointed to.
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
/// group come to the same choice of executor.
struct GpuRecord {
  static constexpr int kReach = 16;
  using Uuid = std::array<unsigned char, 16>;
  std::uint32_t present;  // 0: this rank has no GPU
  std::int32_t device;    // as its process counts them
  std::uint32_t stream_values, multiprocessors;
  std::uint32_t connections;  // hardware queues that its streams share; 0: each has its own
  std::uint32_t reach_count;
  std::uint32_t multicast;  // it has multicast objects, and kernels for them
  Uuid uuid;
  Uuid reach[kReach];
};

inline constexpr int kDoorbells = 64, kGone = 64;

struct ControlPage {
  std::uint64_t magic;
  std::uint32_t rank;
  std::int32_t pid;
  Shared<std::uint32_t> state;        // ContextState
  Shared<std::uint32_t> errors_used;  // grows; a reader that saw this value need not look again
  std::uint64_t self;                 // address of this page in its owner, to try to read it from there
  std::uint64_t cpus[kMaxCpus / 64];  // that this rank may run on when it joined; bits
  std::int32_t cache;  // the outermost cache of the cores that it may use, from 1 on; 0: several, or unknown
  GpuRecord gpu;
  Calibration calibration;                // of its host, as the first rank there knew it; else all zero
  Shared<std::uint64_t> gpu_freed;        // grows with each export of device memory that has ended
  Shared<std::uint64_t> gpu_gone[kGone];  // the last of these: export k, from 0, at k modulo their number
  Shared<std::uint64_t> freed;            // grows with each freed allocation; peers then drop stale mappings
  ErrorRecord errors[kErrors];
  GroupRecord groups[kRecords];
  VoteRegister votes[kVotes];
  RevisionRegister revisions[kRevising];
  ProbePage probe;
  Counter doorbells[kDoorbells];  // for messages, by the key of the group; rung by ranks of this host
};
/// leaving: it takes nothing more from ranks of other hosts, and what it sent is still on its way.
enum class ContextState : std::uint32_t { joining, active, closed, leaving };
inline constexpr std::uint64_t kControlMagic = 0x6f75726f2d637061;  // "ouro-cpa"

/// The writer's side of one record.
void enter(GroupRecord&, std::uint64_t seq, Signature);
/// What the owner of the record entered as operation `seq`, if that is still on the page.
std::optional<Signature> entered_as(const GroupRecord&, std::uint64_t seq);

/// The vote of an open group on its owner's page, made on first demand. nullptr: all are in use.
VoteRegister* claim_vote(ControlPage& mine, GroupRecord&);
/// Likewise, where its owner proposes records.
RevisionRegister* claim_revision(ControlPage& mine, GroupRecord&);
/// Where the owner of the record proposes records to this group; nullptr: nowhere yet, or it has left.
RevisionRegister* find_revision(ControlPage& of_owner, const GroupRecord&, std::uint64_t key);
void write(VoteRegister&, const Vote&);
/// nullopt: the register has gone to another group, or changes faster than it can be read.
std::optional<Vote> read(const VoteRegister&, std::uint64_t key);

}  // namespace ouro::rt
