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
/// Each is collective over the group unless its comment says otherwise. Without a stream, it blocks and runs
/// in the calling thread. With a stream, it is enqueued in order and returns a Work; buffers must live until
/// it ends (with an invalid Stream it runs in the calling thread and returns a completed Work). Inside
/// group_start/group_end, it is deferred and returns ok immediately. GPU buffers (View::device) must be on
/// this rank's own GPU; input and output must be on one device. A GPU operation runs in a stream of that
/// device, in stream order with the user's kernels, and no CPU thread waits. Without a stream, it runs on one
/// of the group's own, and the buffers must be ready when it is called. An operation in place has out.data ==
/// in.data exactly (all_gather: in is the caller's block of out; reduce_scatter: out is the caller's block of
/// in). Partial overlap is `invalid`. Zero counts are legal and do not wait. Errors: invalid (bad argument;
/// reported by the call, not sticky); all others are sticky in the group (see Reason).
/// @{

/// Per-call choices; the defaults are the group's.
struct CallOptions {
  Numerics numerics = Numerics::inherit;  ///< inherit: the group's
  /// "ring", "direct", ...; default: OURO_ALGO if set, else selected; "auto": selected, regardless
  /// of OURO_ALGO.
  std::string_view algorithm = {};
};
/// For exchanges that a library makes on its own behalf: an algorithm that the user has forced on the job
/// with the user's buffers in mind may be unable to serve them. All ranks must pass it, or none.
inline constexpr CallOptions kAuto{.algorithm = "auto"};

/// out[i] = in_0[i] (+) ... (+) in_{n-1}[i]; in.count == out.count.
OURO_API Status all_reduce(Group&, CView in, View out, ReduceOp = ReduceOp::sum, const CallOptions& = {});
OURO_API Result<Work> all_reduce(Group&, CView in, View out, ReduceOp, const Stream&,
                                 const CallOptions& = {});  ///< the same on a stream
/// As all_reduce, but only `root` receives the result; `out` is ignored elsewhere.
OURO_API Status reduce(Group&, CView in, View out, ReduceOp, int root, const CallOptions& = {});
OURO_API Result<Work> reduce(Group&, CView in, View out, ReduceOp, int root, const Stream&,
                             const CallOptions& = {});  ///< the same on a stream
/// in.count == size * out.count; rank r receives block r of the reduction.
OURO_API Status reduce_scatter(Group&, CView in, View out, ReduceOp = ReduceOp::sum, const CallOptions& = {});
OURO_API Result<Work> reduce_scatter(Group&, CView in, View out, ReduceOp, const Stream&,
                                     const CallOptions& = {});  ///< the same on a stream
/// Uneven blocks: block r has counts[r] elements (the same array on all ranks); out.count == counts[rank].
OURO_API Status reduce_scatter_v(Group&, CView in, View out, std::span<const std::size_t> counts,
                                 ReduceOp = ReduceOp::sum, const CallOptions& = {});
OURO_API Result<Work> reduce_scatter_v(Group&, CView in, View out, std::span<const std::size_t> counts,
                                       ReduceOp, const Stream&,
                                       const CallOptions& = {});  ///< the same on a stream
/// out.count == size * in.count; block r of out is rank r's input.
OURO_API Status all_gather(Group&, CView in, View out, const CallOptions& = {});
OURO_API Result<Work> all_gather(Group&, CView in, View out, const Stream&,
                                 const CallOptions& = {});  ///< the same on a stream
/// Uneven blocks: block r has counts[r] elements (the same array on all ranks); in.count == counts[rank].
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
/// Block j of in goes to rank j; block i of out comes from rank i. in.count == out.count, divisible by size.
OURO_API Status all_to_all(Group&, CView in, View out, const CallOptions& = {});
OURO_API Result<Work> all_to_all(Group&, CView in, View out, const Stream&,
                                 const CallOptions& = {});  ///< the same on a stream
/// send_counts[j] elements, in order, go to rank j; recv_counts[i] elements come from rank i. If the counts
/// of a pair disagree: mismatch.
OURO_API Status all_to_all_v(Group&, CView in, View out, std::span<const std::size_t> send_counts,
                             std::span<const std::size_t> recv_counts, const CallOptions& = {});
OURO_API Result<Work> all_to_all_v(Group&, CView in, View out, std::span<const std::size_t> send_counts,
                                   std::span<const std::size_t> recv_counts, const Stream&,
                                   const CallOptions& = {});  ///< the same on a stream
/// Returns (with a stream: completes) on each rank after all ranks have entered.
OURO_API Status barrier(Group&, const CallOptions& = {});
OURO_API Result<Work> barrier(Group&, const Stream&, const CallOptions& = {});  ///< the same on a stream

/// out = self * in + the sum of weight * (in of rank) over each (rank, weight) of `in_neighbours`, added in
/// this order: the caller's own vector first, then by rank. `in_neighbours` lists the ranks whose vectors
/// this rank adds, `out_neighbours` the ranks that add this rank's vector; both are sorted by rank. If rank a
/// lists rank b in `in_neighbours`, rank b must list rank a in `out_neighbours`. A rank without neighbours
/// does not wait, but must call mix as often as all others. Vectors are half, bfloat16, float or double, on
/// the host, of equal length on all ranks; 16-bit types are accumulated in float and rounded once. If all
/// weights are 1/n, as computed in double, out is the sum divided by n once. Additional errors: unsupported
/// (vectors on a GPU); if the neighbour lists are inconsistent: `deadline` or, in a later operation,
/// `mismatch`, which names the peer.
OURO_API Status mix(Group&, CView in, View out, double self,
                    std::span<const std::pair<int, double>> in_neighbours,
                    std::span<const int> out_neighbours);
OURO_API Result<Work> mix(Group&, CView in, View out, double self,
                          std::span<const std::pair<int, double>> in_neighbours,
                          std::span<const int> out_neighbours, const Stream&);  ///< the same on a stream

/// @}

}  // namespace ouro
