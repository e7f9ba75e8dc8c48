// An aggregation plan: which arrays travel, in which messages, over which groups. Made by federation.cc,
// carried out by federation_run.cc.
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

/// A flat copy of a bucket's layers of one type: filled before its messages go, emptied after them.
struct FlatCopy {
  std::vector<View> layers;
  View flat;
  ZeroedBytes memory;
};

/// One stream's share. Its groups are its own: lanes run at the same time.
struct AggregationLane {
  Group across;  ///< senders of the sites; empty where this rank meets nobody
  Group inside;  ///< replicas of the shard in the site; empty where it is alone
  int root = 0;  ///< the sender, in `inside`
  std::vector<FlatCopy> copies;
  std::vector<AggregationMessage> messages;
  std::size_t bytes() const;
};

struct AggregationPlan::State {
  ReduceOp op = ReduceOp::avg;  ///< across sites
  Device device;
  std::vector<Bucket> buckets;
  std::vector<AggregationLane> lanes;
  /// A stage each, one per lane, on which they overlap; empty: all runs where the caller says.
  std::vector<Stream> across, inside;

  /// Of runs that were enqueued and have not been waited for, and the first failure of earlier ones.
  std::mutex works_mutex;
  std::vector<Work> works;
  Status failed;
  void began(Work);

  // To compare with the other ranks: a column is a shard's ranks in all sites, a row has one rank of each
  // shard.
  TensorClaims claims = tensor_claims(0, 0, 0);
  int world_rank = 0;
  Group column_inside, column_across, row;
  int column_root = 0;
  std::mutex verdict_mutex;
  std::optional<Status> verdict;  ///< of the comparison; none yet, or none that settles it
  Status compare();               ///< once
  Status comparison();            ///< what has come of it
  bool settled();
};

/// The groups of stream s, as far as there is anybody to meet.
AggregationLane lane_of(const LayoutGroups&, std::size_t s);
/// Collective over all ranks of the layout, through this rank's groups; `refused`: this rank has no plan.
Status agree_on_layout(AggregationPlan::State&, const Status& refused);
/// The groups of the comparison, of any layout.
void set_comparison(AggregationPlan::State&, const LayoutGroups&);

}  // namespace ouro::train
