/// Federated averaging: the parameters of the sites of a layout become their mean, sender by sender across
/// the sites, then by broadcast inside. For users and for the outer optimisers (outer.hpp).
/// @file
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ouro/ouro.hpp"
#include "ouro/train/layout.hpp"
#include "ouro/train/param.hpp"

namespace ouro::train {

/// @defgroup federated Training: federated averaging
/// With x[r] a parameter of rank r, S_f[p] the sender of site f for shard p (layout.hpp), F sites:
///   A_p = sum over f of w_f x[S_f[p]],   w_f = 1/F, or the normalised site weights,
/// and every rank of shard p holds A_p, in equal bits, afterwards. Only senders' values count, so a site
/// counts once, whatever its size. Without federation: A_p = the mean over the replicas. FSDP without
/// federation has nothing to average.
/// @{

/// How layers are cut into messages and shared out to n streams. A bucket of *runs*: from stream s = 0 on,
/// layers in order until they have at least (all elements) / n, then the next stream; the last takes the
/// rest.
enum class Strategy : std::uint8_t {
  layer_by_layer,              ///< layer k on stream k mod n, a message each
  layer_by_layer_optimized,    ///< runs, a message a layer
  bucket_flatten,              ///< layers k mod n = s copied into one array, a message
  bucket_coalesced,            ///< the same layers in one message, where they lie
  bucket_optimized_flatten,    ///< runs, copied
  bucket_optimized_coalesced,  ///< runs, where they lie
};
OURO_API const char* name(Strategy);  ///< "layer_by_layer", ...

/// What travels together: these layers, in this order, on this stream.
struct Bucket {
  int stream = 0;                   ///< 0 to streams - 1
  std::vector<std::size_t> layers;  ///< indices, in the order in which they travel
  bool flat = false;                ///< through one contiguous copy
  friend bool operator==(const Bucket&, const Bucket&) = default;
};
/// The strategy as data, for layers of so many elements. A pure function; empty buckets are left out.
OURO_API std::vector<Bucket> buckets(Strategy, std::span<const std::size_t> elements, int streams);

/// Options of an aggregation; all ranks have the same.
struct AggregateOptions {
  Strategy strategy = Strategy::bucket_optimized_coalesced;  ///< how layers are cut into messages
  /// Needs a layout with as many (LayoutOptions::streams). 1: the caller, or its stream.
  int streams = 1;
  /// One per site, not negative, any sum; for example samples seen. Empty: every site counts the same.
  std::vector<double> site_weights = {};
  /// Which parameters take part, the same ones on all ranks. None: all. If it selects none, only the
  /// comparison travels.
  std::function<bool(const Param&)> filter = {};
};

/// What one run moves, by rank: elements' bytes that this rank gives to the mean across sites, and that it
/// sends or receives inside its site.
struct AggregateTraffic {
  std::size_t across = 0;  ///< bytes given to the mean across sites
  std::size_t inside = 0;  ///< bytes sent or received inside the site
};

/// Averages the same parameters again and again. Copies share one plan; groups and parameters' memory outlive
/// it and what it has enqueued. All plans of the same groups run on one stream, or all without one.
class OURO_API AggregationPlan {
 public:
  /// Collective over all ranks of the layout. The first run compares what the ranks have planned: names,
  /// shapes, types, order, strategy and weights of the ranks of a shard. Blocks without a stream. With one it
  /// is enqueued there, errors included: work of the plan's own streams starts after what is on `stream`, and
  /// what follows on it starts after them. Errors: `invalid` on every rank of the layout where they differ,
  /// or where a rank refused; inside group_start; else those of all_reduce and broadcast, on each rank of the
  /// shard in every site: a rank that fails ends the groups it shares with others.
  Status run(const Stream& = {});
  /// The comparison alone, once; later calls and runs do not repeat it.
  Status compare();
  /// Waits for what runs have enqueued; the first failure since the last wait.
  Status wait();
  std::span<const Bucket> buckets() const;  ///< layers are counted among the selected parameters
  AggregateTraffic traffic() const;         ///< of one run

  struct OURO_HIDDEN State;
  explicit AggregationPlan(std::shared_ptr<State> s) : state_(std::move(s)) {}  ///< for the library

 private:
  friend class LocalSteps;
  std::shared_ptr<State> state_;
};

/// Does not communicate. A parameter that is named twice (the same memory) counts once. Errors: invalid
/// (types that are not floating-point of 16 to 64 bits, several devices, null or overlapping arrays, shapes
/// that are not the array's size; more streams than the layout has; site weights that are not one per site,
/// negative, not finite or all zero).
OURO_API Result<AggregationPlan> plan_aggregation(const LayoutGroups&, std::span<const Param>,
                                                  const AggregateOptions& = {});
/// Plans and runs. Where a rank's plan is refused, all ranks are told.
OURO_API Status aggregate(const LayoutGroups&, std::span<const Param>, const AggregateOptions& = {},
                          const Stream& = {});

/// Sum of losses / sum of lengths over the group; waits for it. Errors: invalid (nobody has a length; a
/// length below 0).
OURO_API Result<double> mean_loss(Group& site, double loss, std::int64_t length, const Stream& = {});
/// @}

}  // namespace ouro::train
