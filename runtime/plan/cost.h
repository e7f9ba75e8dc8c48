// The time that a flow takes on one host, predicted from the host's record: the model walks the flow's steps
// and charges each. Used to make rows of the selection table for a processor that nobody has measured, by
// explain, and by tests.
#pragma once
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/flow/list.h"
#include "runtime/calibration/record.h"
#include "runtime/plan/rules.h"

namespace ouro::rt {

struct CostQuery {
  Collective collective = Collective::none;
  flow::Algorithm algorithm{};
  int ranks = 2;                         ///< each on a core of its own
  std::size_t bytes = 0;                 ///< size of one rank's region, or of one block
  std::size_t staging_slot = 128 << 10;  ///< bytes
  bool huge_pages = true;                ///< private buffers are on huge pages
  bool forced = false;                   ///< pull is used without checking whether they are
  bool in_place = false;                 ///< input and output are the same memory, on all ranks
  bool afterwards = false;  ///< includes the time that the application's next accesses to its buffers lose
};

/// Reductions of pulled data copy so many bytes at a time out of the other process, few enough to fit
/// into the cache.
inline constexpr std::size_t kPullTile = 128 << 10;

/// Nanoseconds that a call takes in addition to moving its data: some 750 instructions.
inline constexpr double kCallNs = 100;
/// Nanoseconds for finding registered buffers, including those of others, and publishing where they are;
/// added to kCallNs.
inline constexpr double kReferenceNs = 100;

/// Groups of up to so many ranks have rings in their staging buffers. In larger ones each rank reads so many
/// posts between two of its own that slots serve as well.
inline constexpr int kRingRanks = 4;
/// Whether a group of so many ranks, each on a core of its own, uses its ring: see ring_pays().
bool uses_ring(const Calibration&, int ranks);
/// Whether posts of a call use the ring, in a group that has one. A store to a line that another core has
/// read waits for that core. It is therefore faster to write to a line that readers' caches have evicted
/// since, because they have touched much other memory. Large buffers evict lines in any case, in rooted
/// operations half as many. `bytes`: see CostQuery.
bool goes_round(Collective, int ranks, std::size_t bytes);

/// Whether a rank's buffers have more than 1 MiB, and so displace by themselves what is in the caches.
bool is_large(Collective, int ranks, std::size_t bytes);

/// Predicted nanoseconds until the last rank is done, between the farthest cores of the record. nullopt:
/// figures are missing, or the flow does not use a single host's staging buffers and references.
///
/// A post costs writing its bytes by the kind of copy that the record chooses; reading a post, or a
/// registered buffer, costs reading its bytes; a pull costs one copy out of a process, and twice the smallest
/// one to ask for pages and peers, unless it is forced; a step that waits for others, and a barrier, cost one
/// hand-off and half of one for each rank beyond two. Times are interpolated between measured sizes, and grow
/// with the bytes beyond them. If there are many rounds, only the first are walked; the rest
/// are extrapolated.
///
/// A rank's buffers of up to 1 MiB are in its nearer caches, of 3 MiB and more they are not; in between the
/// prediction changes gradually from the one to the other. Copies of 64 KiB and more, for posts that use a
/// ring, cost what the record says of pieces in a ring. Else, in the caches, they cost what it says of
/// copies, multiplied by its factor for two cores that copy at once, unless only one rank copies, out of the
/// other's buffer; outside, what it says of large copies by pieces, for posts and for a rank's own memory,
/// and of a ring, for the buffers of other ranks.
///
/// With `afterwards`, the cost of flows by reference includes what the application pays after the call: its
/// next stores to memory that a peer has read in place, and its loads of memory that a peer has stored to,
/// take longer by the figures of the record. (Stores do not in an all_reduce in place by zero copy, since the
/// peers then write those bytes.) Outside the caches stores take no longer (for a root, whose readers touch
/// half as much, by half of the figure), and loads take longer by the difference of a copy from another core
/// and one within a core's memory. A call itself takes kCallNs, and kReferenceNs more with registered
/// buffers. The model does not include compute time of reductions, except for reading pulled tiles again, and
/// memory beyond the size of all caches together.
std::optional<double> predicted_ns(const Calibration&, const CostQuery&);

/// Rows to put before the built-in table for a group of `ranks` on one host: those where the model predicts
/// that another algorithm saves enough of the time of the table's choice: three twentieths, or one where pull
/// replaces staging of private buffers of more than 1 MiB and each rank has a core. None for more than 64
/// ranks, or if figures are missing. Rows for an all_reduce of registered buffers may be for calls in place
/// only. If there are fewer cores than ranks, only pulls of private buffers in large calls (is_large) are
/// considered. A pure function of its arguments: ranks that have the same record have the same table.
std::vector<Rule> rows_by_cost(const Calibration&, int ranks, std::size_t staging_slot,
                               Cores cores = Cores::enough);

/// Caches those rows for each number of ranks, since computing them takes from a third of a millisecond to
/// six. Thread-safe.
class CostRows {
 public:
  /// The record and the slot size must always be the same for a given number of ranks. The result is valid as
  /// long as this object.
  const std::vector<Rule>& of(const Calibration&, int ranks, std::size_t staging_slot, Cores);

 private:
  std::mutex mutex_;
  std::map<std::pair<int, Cores>, std::vector<Rule>> rows_;
};

}  // namespace ouro::rt
