// The groups of a trainer: one for decisions, and lanes for buckets. Used by the parts of GossipTrainer
// and ShardedTrainer.
#pragma once
#include <string>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::train {

struct TrainerGroups {
  Group control;             // for decisions of all ranks, in the training thread
  std::vector<Group> lanes;  // bucket b uses the lane and the stream with index b mod their number

  /// Collective: makes all of them from the ranks of `group`.
  Status connect(Group& group);
  Group& lane_of(std::size_t bucket) { return lanes[bucket % lanes.size()]; }
  void abort(const std::string& why);  // no effect on a group that has already failed
  Status close();
};

}  // namespace ouro::train
