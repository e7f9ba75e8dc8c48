// Creation, closing and queries of a decentralised trainer, and the agreement of ranks before the first step.
// See gossip.hpp.
#include "ouro/train/gossip.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "api/train/common/comparison.h"
#include "api/train/common/not_in_batch.h"
#include "api/train/common/param_checks.h"
#include "api/train/gossip/gossip_state.h"

namespace ouro::train {
namespace {

constexpr const char* kCall = "GossipTrainer::create";

Status check(const Group& g, std::span<const Param> params, std::span<const Buffer> buffers,
             const GossipOptions& o) {
  OURO_TRY(check_trainable(kCall, params));
  for (const Buffer& b : buffers)
    if (b.value.data == nullptr && b.value.count > 0)
      return invalid(fmt::format("buffer '{}' is a null pointer", b.name));
  if (o.topology.size() != g.size())
    return invalid(
        fmt::format("the topology is for {} ranks, the group has {}", o.topology.size(), g.size()));
  const bool device = std::any_of(params.begin(), params.end(),
                                  [](const Param& p) { return p.value.device.kind == Device::Kind::cuda; });
  if (device && o.topology.vectors() == 2)
    return unsupported("a topology that keeps two vectors (ceca-2p) trains parameters of the host only");
  if (!o.optimizer) return invalid("no optimiser; expected a factory");
  if (!(o.bucket_mb >= 0)) return invalid(fmt::format("bucket_mb {}; expected 0 or more", o.bucket_mb));
  if (!(o.clip_norm >= 0)) return invalid(fmt::format("clip_norm {}; expected 0 or more", o.clip_norm));
  if (o.pre_mix && (!o.params_in_bucket || o.topology.vectors() == 2))
    return invalid("pre_mix needs params_in_bucket and a topology of one vector");
  if (!o.scaler) return {};
  OURO_TRY(o.scaler->check());
  if (o.scaler->scope == ScalerScope::local && o.clip_norm > 0 && o.clip_scope == ClipScope::global)
    return invalid(
        "ScalerScope::local decides bucket by bucket, "
        "ClipScope::global waits for all of them; expected one of the two");
  return {};
}

std::uint64_t digest_of(const Topology& t) {
  Digest d;
  d.add(t.vectors());
  for (int step = 0; step < t.period(); ++step)
    for (int r = 0; r < t.size(); ++r) {
      const Row row = t.row(step, r);
      d.add(row.self);
      for (const auto& [from, weight] : row.in) d.add(from), d.add(weight);
    }
  return d.value();
}

/// Digest of everything that must be equal on all ranks, except parameters and topology.
std::uint64_t digest_of(const GossipOptions& o, std::span<const Buffer> buffers) {
  Digest d;
  const GradScaler s = o.scaler.value_or(GradScaler{});
  for (const double x : {o.bucket_mb, o.clip_norm, s.scale, s.growth, s.backoff}) d.add(x);
  d.add(s.interval);
  for (const bool b : {o.clip_scope == ClipScope::global, o.average_buffers, o.sync_all, o.find_unused,
                       o.order == RoundOrder::upstream, o.scaler.has_value(), s.scope == ScalerScope::local})
    d.add(b);
  for (const Buffer& b : buffers) {
    d.add(b.name);
    d.add(b.value.dtype);
    d.add(b.value.device.kind);
    d.add(b.value.count);
  }
  return d.value();
}

Status broadcast_from_0(Group& g, const View& v) { return v.count == 0 ? Status{} : broadcast(g, v, v, 0); }

}  // namespace

// ---- life -----------------------------------------------------------------------------------------

Result<GossipTrainer> GossipTrainer::create(Group& group, std::vector<Param> params,
                                            std::vector<Buffer> buffers, GossipOptions options) {
  if (!group.valid()) return invalid("the group is an empty handle");
  OURO_TRY(not_in_batch(kCall));
  auto state = std::make_shared<State>(std::move(options));
  State& s = *state;
  const Status mine = check(group, params, buffers, s.options);
  std::vector<Claim> claims(2);
  if (mine.ok())
    claims = {{"a topology with other weights", digest_of(s.options.topology)},
              {"other options or buffers", digest_of(s.options, buffers)}};
  OURO_TRY(compare(group, kCall, params, claims, mine));
  Digest digest;
  digest.add(digest_of(params));
  for (const Claim& c : claims) digest.add(c.value);
  s.digest = digest.value();
  s.world_rank = group.ranks()[static_cast<std::size_t>(group.rank())];
  OURO_TRY(s.connect(group));
  s.params = std::move(params);
  s.buffers = std::move(buffers);
  for (std::size_t i = 0; i < s.params.size(); ++i)
    if (!frozen(s.params[i])) s.trainable.push_back(static_cast<int>(i));
  s.expect(s.params.size());
  for (const Param& p : s.params)
    if (!frozen(p) || s.options.sync_all) OURO_TRY(broadcast_from_0(s.control, p.value));
  for (const Buffer& b : s.buffers)
    if (s.options.sync_all) OURO_TRY(broadcast_from_0(s.control, b.value));
  return GossipTrainer(std::move(state));
}

GossipTrainer::State::~State() {
  // The pool's threads may be waiting for neighbours, and the destructor must not wait for them.
  for (const GossipBucket& b : buckets)
    if (!b.exchange.test())
      for (Group& lane : lanes) lane.abort("its trainer was destroyed");
}

Status GossipTrainer::close() {
  if (state_ == nullptr) return invalid("the trainer is an empty handle");
  State& s = *state_;
  if (s.closed) return {};
  OURO_TRY(s.usable());
  if (Status done = s.settle(); !done.ok()) return s.fail(std::move(done));
  OURO_TRY(barrier(s.control, kAuto));  // neighbours have received everything they need
  s.closed = true;
  return s.TrainerGroups::close();
}

GossipTrainer::GossipTrainer(std::shared_ptr<State> s) : state_(std::move(s)) {}
GossipTrainer::GossipTrainer(GossipTrainer&&) noexcept = default;
GossipTrainer& GossipTrainer::operator=(GossipTrainer&&) noexcept = default;
GossipTrainer::~GossipTrainer() = default;

// ---- queries --------------------------------------------------------------------------------------

std::span<const Param> GossipTrainer::params() const { return state_->params; }
std::span<const BucketLayout> GossipTrainer::buckets() const { return state_->layouts; }
std::int64_t GossipTrainer::steps() const { return state_->steps; }
Status GossipTrainer::status() const { return state_->failure; }
double GossipTrainer::scale() const { return state_->options.scaler ? state_->options.scaler->scale : 1; }
void GossipTrainer::set_accumulate(bool on) { state_->accumulating = on; }

Status GossipTrainer::set_adaptive_factor(double a) {
  if (!(a >= 0 && a <= 1)) return invalid(fmt::format("adaptive factor {}; expected 0 to 1", a));
  state_->adaptive = a;
  return {};
}

double GossipTrainer::lr() const {
  if (state_->steps == 0) return 0;
  return state_->buckets.front().lr();
}

}  // namespace ouro::train
