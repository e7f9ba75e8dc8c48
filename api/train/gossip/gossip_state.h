// What a decentralised trainer consists of: buckets, the state of a step.
// Used by the parts of GossipTrainer: gossip.cc, gossip_step.cc, gossip_update.cc,
// gossip_average.cc, gossip_save.cc.
#pragma once
#include <vector>

#include "api/train/buckets/trainer_bucket.h"
#include "api/train/buckets/trainer_groups.h"
#include "api/train/common/step_guard.h"
#include "ouro/train/gossip.hpp"

namespace ouro::train {

struct GossipBucket : TrainerBucket {
  /// The message from when an exchange is launched, the sum of the neighbours' once it has ended; zeros where
  /// nothing is pending.
  Block message;
  Block second;  // y of topologies that keep two vectors
  Bytes stage;   // a device's message on its way through the host

  // The exchange under way or ended, and not mixed yet: row and pair are those it was launched with.
  bool pending = false;
  Row row;
  PairRow pair;
  Work exchange;

  bool updated = false;  // in this step
  bool finite = true;    // its gradients, where a local scaler looked

  std::vector<View> pieces(const Block&) const;  // of each parameter
};

/// How one step's gradients become an update.
struct StepScale {
  bool skip = false;
  double clip = 1;
};

struct GossipTrainer::State : StepGuard, TrainerGroups {
  explicit State(GossipOptions o) : StepGuard("GossipTrainer"), options(std::move(o)) {}
  ~State();

  GossipOptions options;
  std::vector<Param> params;  // as params() shows them
  std::vector<Buffer> buffers;
  std::vector<int> trainable;  // indices of params
  std::uint64_t digest = 0;    // of what ranks agreed on
  double adaptive = 1;

  // Of the step under way.
  std::vector<int> traced;                       // order in which gradients came
  std::vector<std::pair<int, void*>> elsewhere;  // parameters whose gradient is, and the memory of their own
  std::size_t launched = 0;                      // buckets whose next exchange is under way

  std::vector<GossipBucket> buckets;
  std::vector<std::size_t> bucket_of;  // by parameter; of trainable ones
  std::vector<BucketLayout> layouts;
  std::optional<StreamPool> pool;  // last: its threads end first

  /// Keeps the first error, and ends the groups with it, so that no rank waits for this one.
  Status fail(Status);
  /// A gradient is complete: its bucket is updated, where that can be done.
  Status arrived(int param);
  void point_gradient(int param, void* at);
  /// The first step's end: ranks agree on the order, buckets are made.
  Status trace();
  Status make_buckets(std::span<const int> order);
  Status fill(GossipBucket&);
  /// Clipping and loss scaling that need all gradients; what they say holds for all buckets.
  bool defers() const;
  Result<std::vector<StepScale>> survey_all();
  Result<GradientSurvey> survey_global();
  /// Updates buckets whose gradients (and neighbours) are there, or waits for both.
  Status advance(bool wait, std::span<const StepScale> decided = {});
  Status update(GossipBucket&, const StepScale*);
  Result<StepScale> look(GossipBucket&);
  Status update_pair(GossipBucket&, const StepOptions&, std::span<const Param> without_gradients, bool skip);
  /// Starts the exchange of the parameters that step steps + 1 will see.
  Status launch(std::size_t bucket);
  std::int64_t round_of(std::int64_t step) const;
  Status settle();  ///< waits for all exchanges
};

}  // namespace ouro::train
