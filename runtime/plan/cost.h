// What a flow takes on one host, by the host's record: its steps are walked, and each is charged. Used where
// rows of the selection table are made for a processor that nobody has measured, by explain, and by tests.
#pragma once
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/flow/list.h"
#include "runtime/calibration/record.h"
#include "runtime/plan/rules.h"

namespace ouro::rt {

struct CostQuery {
  Collective collective = Collective::none;
  flow::Algorithm algorithm{};
  int ranks = 2;                         ///< each on a core of its own
  std::size_t bytes = 0;                 ///< of one rank's region, or of one block
  std::size_t staging_slot = 128 << 10;  ///< bytes
  bool huge_pages = true;                ///< private buffers lie on them
  bool forced = false;                   ///< pull is carried out without asking whether they do
};

/// Nanoseconds that a call takes besides what it moves: some 750 instructions.
inline constexpr double kCallNs = 100;
/// Besides that: to find registered buffers, others' too, and to tell where they are.
inline constexpr double kReferenceNs = 100;

/// Nanoseconds until the last rank is done, between the farthest cores of the record. nullopt: figures are
/// missing, or the flow is not one of a single host's staging buffers and references.
///
/// A post takes what writing its bytes takes by the kind of copy that the record chooses; reading a post, or
/// a registered buffer, what reading them takes; a pull what one copy out of a process takes, and twice the
/// smallest one to ask for pages and peers, unless it is forced; a step that waits for others, and a barrier,
/// a hand-off and half of one for each rank beyond two. Between sizes that were measured times are
/// interpolated, beyond them they grow with the bytes. Of many rounds the first are walked and the rest are
/// like them. What goes through staging buffers takes longer where a rank touches more than 512 KiB, by the
/// factor that the record says of pieces of kLargeBytes from 8 MiB on. Copies of 64 KiB and more take longer
/// by the factor that the record says of two cores that copy at once, but where one rank alone takes out of
/// the other's buffer. A call itself takes kCallNs, and kReferenceNs with registered buffers. Compute time of
/// reductions, and memory that all caches together cannot hold, are not in the model.
std::optional<double> predicted_ns(const Calibration&, const CostQuery&);

/// Rows to put before the built-in table for a group of `ranks` on one host, each on a core of its own: where
/// the model says that another algorithm saves a fifth of what the table's takes. None if the table was
/// measured on such a processor, for more than 64 ranks, or where figures are missing. A function of its
/// arguments alone: ranks that have one record have one table.
std::vector<Rule> rows_by_cost(const Calibration&, int ranks, std::size_t staging_slot);

/// Those rows, reckoned once for each number of ranks: it takes from a third of a millisecond to six.
/// Thread-safe.
class CostRows {
 public:
  /// With one record and one size of slots for each number of ranks. Good as long as this lives.
  const std::vector<Rule>& of(const Calibration&, int ranks, std::size_t staging_slot);

 private:
  std::mutex mutex_;
  std::map<int, std::vector<Rule>> rows_;  // by ranks
};

}  // namespace ouro::rt
