/// Federated averaging: replaces the parameters of a layout's sites by their mean, sender by sender across
/// the sites, then by broadcast inside each. For users and for the outer optimisers (outer.hpp).
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
/// A_p = sum over f of w_f x[S_f[p]],   w_f = 1/F, or the normalised site weights,
/// and every rank of shard p holds A_p, in equal bits, afterwards. Only senders' values count, so each site
/// counts once, whatever its size. Without federation: A_p = the mean over the replicas. FSDP without
/// federation has nothing to average.
/// @{

/// The ways to group layers into messages and to distribute these over n streams. A bucket of *runs*: stream
/// s = 0 takes layers in order until they have at least (all elements) / n elements, then the next stream
/// does; the last stream takes the rest.
enum class Strategy : std::uint8_t {
  layer_by_layer,              ///< layer k on stream k mod n, one message per layer
  layer_by_layer_optimized,    ///< runs, one message per layer
  bucket_flatten,              ///< layers with k mod n = s copied into one array, one message
  bucket_coalesced,            ///< the same layers in one message, in place
  bucket_optimized_flatten,    ///< runs, copied into one array
  bucket_optimized_coalesced,  ///< runs, in place
};
OURO_API const char* name(Strategy);  ///< "layer_by_layer", ...

/// A set of layers that travel together, in this order, on this stream.
struct Bucket {
  int stream = 0;                   ///< 0 to streams - 1
  std::vector<std::size_t> layers;  ///< indices, in the order in which they travel
  bool flat = false;                ///< sent through one contiguous copy
  friend bool operator==(const Bucket&, const Bucket&) = default;
};
/// The buckets of a strategy for layers with the given numbers of elements. A pure function; omits
/// empty buckets.
OURO_API std::vector<Bucket> buckets(Strategy, std::span<const std::size_t> elements, int streams);

/// Options of an aggregation; must be equal on all ranks.
struct AggregateOptions {
  Strategy strategy = Strategy::bucket_optimized_coalesced;  ///< how layers are grouped into messages
  /// Needs a layout with at least as many (LayoutOptions::streams). 1: runs in the caller, or on its stream.
  int streams = 1;
  /// One per site, not negative, any sum; for example the number of samples seen. Empty: all sites
  /// count equally.
  std::vector<double> site_weights = {};
  /// Selects the parameters that take part, the same ones on all ranks. None: all. If it selects none, the
  /// ranks exchange only the comparison.
  std::function<bool(const Param&)> filter = {};
};

/// Bytes of elements that one run moves on this rank.
struct AggregateTraffic {
  std::size_t across = 0;  ///< bytes contributed to the mean across sites
  std::size_t inside = 0;  ///< bytes sent or received inside the site
};

/// Averages the same parameters repeatedly. Copies share one plan. Groups and parameter memory must outlive
/// the plan and its enqueued work. All plans of the same groups must run on one stream, or all without one.
class OURO_API AggregationPlan {
 public:
  /// Collective over all ranks of the layout. The first run compares the plans of the ranks: names, shapes,
  /// types, order, strategy and weights among the ranks of a shard. Blocks without a stream. With one, it is
  /// enqueued there, errors included: work on the plan's own streams starts after earlier work on `stream`,
  /// and later work on `stream` starts after it. Errors: `invalid` on every rank of the layout if plans
  /// differ or a rank refused; invalid inside group_start; otherwise those of all_reduce and broadcast, on
  /// each rank of the shard in every site: a rank that fails ends the groups that it shares with others.
  Status run(const Stream& = {});
  /// Runs only the comparison, once; later calls and runs do not repeat it.
  Status compare();
  /// Waits for the work that runs have enqueued; returns the first failure since the last wait.
  Status wait();
  std::span<const Bucket> buckets() const;  ///< indices count the selected parameters only
  AggregateTraffic traffic() const;         ///< traffic of one run

  struct OURO_HIDDEN State;
  explicit AggregationPlan(std::shared_ptr<State> s) : state_(std::move(s)) {}  ///< for the library

 private:
  friend class LocalSteps;
  std::shared_ptr<State> state_;
};

/// Plans without communicating. A parameter that is named twice (the same memory) counts once. Errors:
/// invalid (types other than floating-point of 16 to 64 bits, several devices, null or overlapping arrays, a
/// shape that does not match the array's size; more streams than the layout has; site weights that are not
/// one per site, negative, not finite or all zero).
OURO_API Result<AggregationPlan> plan_aggregation(const LayoutGroups&, std::span<const Param>,
                                                  const AggregateOptions& = {});
/// Plans and runs. If a rank refuses its plan, all ranks return the error.
OURO_API Status aggregate(const LayoutGroups&, std::span<const Param>, const AggregateOptions& = {},
                          const Stream& = {});

/// Sum of losses / sum of lengths over the group; waits for the result. Errors: invalid (the sum of lengths
/// is 0; a length below 0).
OURO_API Result<double> mean_loss(Group& site, double loss, std::int64_t length, const Stream& = {});
/// @}

}  // namespace ouro::train
