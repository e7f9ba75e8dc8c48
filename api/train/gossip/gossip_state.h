// The parts of a decentralised trainer: its buckets and the state of a step. Used by the parts of
// GossipTrainer: gossip.cc, gossip_step.cc, gossip_update.cc, gossip_average.cc, gossip_save.cc.
#pragma once
#include <vector>

#include "api/train/buckets/trainer_bucket.h"
#include "api/train/buckets/trainer_groups.h"
#include "api/train/common/step_guard.h"
#include "ouro/train/gossip.hpp"

namespace ouro::train {

struct GossipBucket : TrainerBucket {
  /// From the launch of an exchange, the message; once the exchange has ended, the neighbours' sum; zeros if
  /// nothing is pending.
  Block message;
  Block second;  // the vector y of topologies that keep two vectors
  Bytes stage;   // host copy of a device's message

  // The exchange that is running, or has ended but is not mixed yet; row and pair are those it was
  // launched with.
  bool pending = false;
  Row row;
  PairRow pair;
  Work exchange;

  bool updated = false;  // in the current step
  bool finite = true;    // whether its gradients were finite, if a local scaler checked

  std::vector<View> pieces(const Block&) const;  // one view per parameter
};

/// The decision on how the gradients of one step become an update.
struct StepScale {
  bool skip = false;
  double clip = 1;
};

struct GossipTrainer::State : StepGuard, TrainerGroups {
  explicit State(GossipOptions o) : StepGuard("GossipTrainer"), options(std::move(o)) {}
  ~State();

  GossipOptions options;
  std::vector<Param> params;  // as params() returns them
  std::vector<Buffer> buffers;
  std::vector<int> trainable;  // indices into params
  std::uint64_t digest = 0;    // of everything the ranks agreed on
  double adaptive = 1;

  // The state of the current step.
  std::vector<int> traced;  // order in which gradients became ready
  // Parameters whose gradient is in other memory, and the address of their own.
  std::vector<std::pair<int, void*>> elsewhere;
  std::size_t launched = 0;  // number of buckets whose next exchange has been launched

  std::vector<GossipBucket> buckets;
  std::vector<std::size_t> bucket_of;  // by parameter; valid for trainable ones
  std::vector<BucketLayout> layouts;
  std::optional<StreamPool> pool;  // last member: its threads must end first

  /// Stores the first error and aborts the groups with it, so that no rank waits for this one.
  Status fail(Status);
  /// Handles a complete gradient: updates its bucket, if possible.
  Status arrived(int param);
  void point_gradient(int param, void* at);
  /// Ends the first step: ranks agree on the order, and the buckets are made.
  Status trace();
  Status make_buckets(std::span<const int> order);
  Status fill(GossipBucket&);
  /// Whether clipping or loss scaling needs all gradients; the decision then applies to all buckets.
  bool defers() const;
  Result<std::vector<StepScale>> survey_all();
  Result<GradientSurvey> survey_global();
  /// Updates buckets whose gradients (and neighbours) are complete; with `wait`, waits for both.
  Status advance(bool wait, std::span<const StepScale> decided = {});
  Status update(GossipBucket&, const StepScale*);
  Result<StepScale> survey_bucket(GossipBucket&);
  Status update_pair(GossipBucket&, const StepOptions&, std::span<const Param> without_gradients, bool skip);
  /// Starts the exchange of the parameters that step `steps` + 1 will see.
  Status launch(std::size_t bucket);
  std::int64_t round_of(std::int64_t step) const;
  Status settle();  ///< waits for all exchanges
};

}  // namespace ouro::train
