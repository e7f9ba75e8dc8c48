// Operation: one collective call with its arguments, as the API passes it to the executor; and its checks.
// Used by group, selection and the host executor.
#pragma once
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/arith/wire.h"
#include "runtime/core/collectives.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"
#include "runtime/health/control_page.h"

namespace ouro::rt {

/// The maximum size of a buffer: beyond it, the difference of two addresses would overflow.
inline constexpr std::size_t kMaxBytes = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

/// One of the operations that run as one: elements [offset, offset + count) of their concatenation.
struct Segment {
  const std::byte* in;
  std::byte* out;
  std::size_t offset, count;
};

/// The algorithm name of calls that are left to the rules, regardless of OURO_ALGO.
inline constexpr std::string_view kByRules = "auto";

/// A view of one call: trivially copyable, valid as long as the arguments of its caller.
struct Operation {
  Collective collective = Collective::none;
  CView in;
  View out;
  ReduceOp op = {};
  int root = 0;
  Numerics numerics = Numerics::inherit;
  std::string_view algorithm =
      {};               ///< forced by the caller; empty: selected; kByRules: selected by the rules alone
  bool uneven = false;  ///< the v-form: the counts below apply
  std::span<const std::size_t> in_counts =
      {};  ///< elements of each input block (reduce_scatter_v, all_to_all_v)
  std::span<const std::size_t> out_counts =
      {};  ///< elements of each output block (all_gather_v, all_to_all_v)
  /// Neighbour collectives, this rank's row: the ranks whose vectors are added to mine, with their weights,
  /// and the ranks that need mine; sorted. `op` is premul(my weight).
  std::span<const std::pair<int, double>> in_neighbours = {};
  std::span<const int> out_neighbours = {};

  /// If not empty: small operations that differ only in their buffers, run as one over their concatenation.
  /// The counts of `in` and `out` are the sums, their pointers those of the first.
  std::span<const Segment> segments = {};

  CollectiveTraits traits() const { return traits_of(collective); }
  bool reduces() const { return traits().reduces(); }
  bool names_algorithm() const { return !algorithm.empty() && algorithm != kByRules; }
  /// Whether chunks of flows are blocks, rather than pieces of one divisible region.
  bool blocks() const { return traits().blocks(); }
  /// Whether each rank knows the counts of its own blocks only: an uneven all_to_all.
  bool uneven_pairs() const { return uneven && traits().pairs(); }
  /// The list of counts that all ranks pass in the other uneven operations.
  std::span<const std::size_t> shared_counts() const { return traits().in.many() ? in_counts : out_counts; }
  /// Whether the input, or the output, of a rank is used: in rooted operations it may be the root's alone.
  bool reads(int rank) const { return traits().in.counts(rank, root); }
  bool writes(int rank) const { return traits().out.counts(rank, root); }
  /// Bytes of the buffers of a rank that are used.
  std::size_t read_bytes(int rank) const { return traits().moves() && reads(rank) ? in.bytes() : 0; }
  std::size_t written_bytes(int rank) const { return traits().moves() && writes(rank) ? out.bytes() : 0; }
  /// Type of the buffers that are used on this rank: where broadcast and scatter ignore the input, its type
  /// is arbitrary.
  DType dtype(int rank) const {
    if (!reads(rank)) return out.dtype;
    return in.data || !out.data ? in.dtype : out.dtype;
  }
};

/// An operation that outlives its call, with copies of the arrays that belong to the caller. The caller still
/// owns the buffers.
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

/// Operations of a batch that run as one. Each must have been checked.
class FusedOperation {
 public:
  /// Precondition: at least one operation, all fusible with each other (see below).
  FusedOperation(std::span<const Operation* const>, int rank, int size);
  FusedOperation(const FusedOperation&) = delete;
  FusedOperation& operator=(const FusedOperation&) = delete;
  const Operation& get() const { return operation_; }
  /// The single operations, in order.
  const std::vector<Operation>& parts() const { return parts_; }

 private:
  Operation operation_;
  std::vector<Segment> segments_;
  std::vector<Operation> parts_;
};
/// Whether b may run as one with a. Depends only on arguments that are the same on all ranks, so all get the
/// same answer.
bool fusible(const Operation& a, const Operation& b, int rank, int size);
/// Whether one of the operations writes, on this rank, memory that another reads or writes: then they have to
/// run in order. The answer may differ between ranks.
bool depend(std::span<const Operation* const>, int rank);

/// The collective's count of elements: of the region, or of one block. The same on all ranks that agree.
std::size_t unit_count(const Operation&, int rank, int size);
/// Whether no data moves, on this and all other ranks that pass the same arguments.
bool moves_nothing(const Operation&, int rank, int size);
/// How its values travel between ranks.
arith::Wire wire_of(const Operation&, int rank);
/// The arguments that peers must agree on. `algorithm`: index + 1 of a forced algorithm, or 0.
Signature signature(const Operation&, int rank, int size, bool canonical, int algorithm);
/// The device, as stated by the caller, of the buffer that is used on all ranks.
const Device& device_of(const Operation&);
/// Whether that device is a GPU.
bool on_device(const Operation&);
/// Checks all arguments that can be checked on this rank alone; errors state what was found and what was
/// expected. Called before anything is sent.
Status check(const Operation&, int rank, int size);

}  // namespace ouro::rt
