// Operation: one collective call with its arguments, as it travels from the API to the executor; and its
// checks. Used by group, selection and the host executor.
#pragma once
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/collectives.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"
#include "runtime/health/control_page.h"

namespace ouro::rt {

/// No buffer is longer: the difference of two of its addresses would overflow.
inline constexpr std::size_t kMaxBytes = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

/// One of the operations that run as one: elements [offset, offset + count) of their concatenation.
struct Segment {
  const std::byte* in;
  std::byte* out;
  std::size_t offset, count;
};

/// The algorithm of calls that are left to the rules, whatever OURO_ALGO says.
inline constexpr std::string_view kByRules = "auto";

/// A view of one call: trivially copied, valid as long as what its caller passed.
struct Operation {
  Collective collective = Collective::none;
  CView in;
  View out;
  ReduceOp op = {};
  int root = 0;
  Numerics numerics = Numerics::inherit;
  std::string_view algorithm = {};  ///< forced by the caller; empty: selected; kByRules: by the rules alone
  bool uneven = false;              ///< the v-form: counts below hold
  std::span<const std::size_t> in_counts =
      {};  ///< elements of each input block (reduce_scatter_v, all_to_all_v)
  std::span<const std::size_t> out_counts =
      {};  ///< elements of each output block (all_gather_v, all_to_all_v)
  /// Neighbour collectives, this rank's row: whose vectors are added to mine and by which weight, and who
  /// needs mine; sorted. `op` is premul(my weight).
  std::span<const std::pair<int, double>> in_neighbours = {};
  std::span<const int> out_neighbours = {};

  /// Not empty: small operations that differ in their buffers only, run as one over their concatenation. The
  /// counts of `in` and `out` are the sums, their pointers those of the first.
  std::span<const Segment> segments = {};

  CollectiveTraits traits() const { return traits_of(collective); }
  bool reduces() const { return traits().reduces(); }
  bool names_algorithm() const { return !algorithm.empty() && algorithm != kByRules; }
  /// Whether the blocks, not one divisible region, are what flows name by chunk.
  bool blocks() const { return traits().blocks(); }
  /// Whether the input, or the output, of a rank counts: of rooted operations that of the root alone may.
  bool reads(int rank) const { return traits().in.counts(rank, root); }
  bool writes(int rank) const { return traits().out.counts(rank, root); }
  /// Bytes of the buffers of a rank that count.
  std::size_t read_bytes(int rank) const { return traits().moves() && reads(rank) ? in.bytes() : 0; }
  std::size_t written_bytes(int rank) const { return traits().moves() && writes(rank) ? out.bytes() : 0; }
  /// Of the buffers that count on this rank: where broadcast and scatter ignore the input, it may be
  /// anything.
  DType dtype(int rank) const {
    if (!reads(rank)) return out.dtype;
    return in.data || !out.data ? in.dtype : out.dtype;
  }
};

/// An operation that outlives its call, with copies of what a call only lends. Buffers stay the caller's.
class KeptOperation {
 public:
  explicit KeptOperation(const Operation&);
  KeptOperation(const KeptOperation&) = delete;
  KeptOperation& operator=(const KeptOperation&) = delete;
  const Operation& get() const { return operation_; }

 private:
  Operation operation_;
  std::string algorithm_;
  std::vector<std::size_t> in_counts_, out_counts_;
  std::vector<std::pair<int, double>> in_neighbours_;
  std::vector<int> out_neighbours_;
};

/// Operations of a batch that may run as one. Each was checked.
class FusedOperation {
 public:
  /// Of at least one operation, all fusible together (below).
  FusedOperation(std::span<const Operation* const>, int rank, int size);
  FusedOperation(const FusedOperation&) = delete;
  FusedOperation& operator=(const FusedOperation&) = delete;
  const Operation& get() const { return operation_; }
  /// One by one, in their order.
  const std::vector<Operation>& parts() const { return parts_; }

 private:
  Operation operation_;
  std::vector<Segment> segments_;
  std::vector<Operation> parts_;
};
/// Whether b may run as one with a. From what all ranks pass alike only: all of them come to the same answer.
bool fusible(const Operation& a, const Operation& b, int rank, int size);
/// Whether one of the operations writes, on this rank, what another reads or writes: then they have to run in
/// their order. Other ranks may come to another answer.
bool depend(std::span<const Operation* const>, int rank);

/// Elements as the collective counts them: of the region, or of one block. The same on all ranks that agree.
std::size_t unit_count(const Operation&, int rank, int size);
/// Whether nothing moves on any rank that passes the same arguments.
bool moves_nothing(const Operation&, int rank, int size);
/// What peers must agree on. `algorithm`: index + 1 of a forced algorithm, or 0.
Signature signature(const Operation&, int rank, int size, bool canonical, int algorithm);
/// Where the buffer is said to be that counts on all ranks.
const Device& device_of(const Operation&);
/// Whether that is a GPU.
bool on_device(const Operation&);
/// All that can be wrong with the arguments on this rank alone: what, found, expected. Nothing was sent yet.
Status check(const Operation&, int rank, int size);

}  // namespace ouro::rt
