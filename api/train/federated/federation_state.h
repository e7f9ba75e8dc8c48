// An aggregation plan: which arrays travel, in which messages, over which groups. Made by federation.cc,
// executed by federation_run.cc.
#pragma once
#include <mutex>
#include <optional>
#include <vector>

#include "api/train/common/comparison.h"
#include "api/train/optim/update.h"
#include "ouro/train/federation.hpp"

namespace ouro::train {

/// Arrays that travel in one operation, or in several that are submitted together.
struct AggregationMessage {
  std::vector<View> parts;
  std::size_t bytes() const;
};

/// A flat copy of a bucket's layers of one type: filled before its messages are sent, copied back afterwards.
struct FlatCopy {
  std::vector<View> layers;
  View flat;
  ZeroedBytes memory;
};

/// One stream's share of the work. It has its own groups: lanes run at the same time.
struct AggregationLane {
  Group across;  ///< senders of the sites; empty if this rank meets no other
  Group inside;  ///< replicas of the shard in the site; empty if there is only one
  int root = 0;  ///< the sender's rank in `inside`
  std::vector<FlatCopy> copies;
  std::vector<AggregationMessage> messages;
  std::size_t bytes() const;
};

struct AggregationPlan::State {
  ReduceOp op = ReduceOp::avg;  ///< reduction across sites
  Device device;
  std::vector<Bucket> buckets;
  std::vector<AggregationLane> lanes;
  /// Streams of the two stages, one per lane, on which the stages overlap; empty: everything runs where the
  /// caller says.
  std::vector<Stream> across, inside;

  /// Work of runs that were enqueued and not waited for yet, and the first failure of earlier ones.
  std::mutex works_mutex;
  std::vector<Work> works;
  Status failed;
  void began(Work);

  // Groups for the comparison with the other ranks: a column consists of a shard's ranks in all sites, a row
  // of one rank of each shard.
  TensorClaims claims = tensor_claims(0, 0, 0);
  int world_rank = 0;
  Group column_inside, column_across, row;
  int column_root = 0;
  std::mutex verdict_mutex;
  std::optional<Status> verdict;  ///< of the comparison; empty: no comparison yet, or none that settles it
  Status compare();               ///< compares once
  Status comparison();            ///< outcome so far
  bool settled();
};

/// The groups of stream s, for those that have other members.
AggregationLane lane_of(const LayoutGroups&, std::size_t s);
/// Collective over all ranks of the layout, through this rank's groups; `refused` not ok: this rank
/// has no plan.
Status agree_on_layout(AggregationPlan::State&, const Status& refused);
/// Sets the groups of the comparison, for any layout.
void set_comparison(AggregationPlan::State&, const LayoutGroups&);

}  // namespace ouro::train
