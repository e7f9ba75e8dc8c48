/// Collective operations. For users, who include ouro/ouro.hpp.
/// @file
#pragma once
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "ouro/groups.hpp"

namespace ouro {

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

/// Per-call choices; the defaults are the group's.
struct CallOptions {
  Numerics numerics = Numerics::inherit;  ///< inherit: the group's
  /// "ring", "direct", ...; default: OURO_ALGO, else selected; "auto": selected, whatever OURO_ALGO says.
  std::string_view algorithm = {};
};
/// For exchanges that a library makes for itself: an algorithm that the user has forced on the job, for
/// buffers that the user knows, need not be able to serve them. All ranks pass it, or none.
inline constexpr CallOptions kAuto{.algorithm = "auto"};

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
OURO_API Status barrier(Group&, const CallOptions& = {});
OURO_API Result<Work> barrier(Group&, const Stream&, const CallOptions& = {});  ///< the same on a stream

/// out = self * in + sum of weight * in of rank, for each (rank, weight) of `in_neighbours`: the caller's own
/// first, then by rank. Each rank names whose vector it adds, sorted by rank, and in `out_neighbours`,
/// sorted, who adds its own; who is named in `in_neighbours` names this rank in `out_neighbours`. A rank
/// without neighbours waits for nobody, but calls it as often as all others. Vectors of half, bfloat16, float
/// or double on the host, of one length on all ranks; 16-bit types are summed up in float and rounded once.
/// Where all weights are 1/n, as computed in double, out is the sum, divided by n once. Errors also:
/// unsupported (vectors on a GPU); where the neighbours do not belong together: `deadline` or, at a later
/// operation, `mismatch`, naming the peer.
OURO_API Status mix(Group&, CView in, View out, double self,
                    std::span<const std::pair<int, double>> in_neighbours,
                    std::span<const int> out_neighbours);
OURO_API Result<Work> mix(Group&, CView in, View out, double self,
                          std::span<const std::pair<int, double>> in_neighbours,
                          std::span<const int> out_neighbours, const Stream&);  ///< the same on a stream

/// @}

}  // namespace ouro
