// The groups of a trainer: one for decisions, and lanes for buckets. Used by the parts of GossipTrainer and
// ShardedTrainer.
#pragma once
#include <string>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::train {

struct TrainerGroups {
  Group control;             // for what all ranks decide, in the thread that trains
  std::vector<Group> lanes;  // bucket b communicates in lane b mod their number, on the stream of that number

  /// Collective: all of them with the ranks of `group`.
  Status connect(Group& group);
  Group& lane_of(std::size_t bucket) { return lanes[bucket % lanes.size()]; }
  void abort(const std::string& why);  // without effect on a group that has failed already
  Status close();
};

}  // namespace ouro::train
