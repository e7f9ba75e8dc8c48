// Creation, closing and queries of a sharded trainer, and the agreement of ranks before the first step.
// See shard.hpp.
#include "ouro/train/shard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/train/common/caught.h"
#include "api/train/common/comparison.h"
#include "api/train/common/not_in_batch.h"
#include "api/train/common/param_checks.h"
#include "api/train/optim/update.h"
#include "api/train/sharded/shard_state.h"

namespace ouro::train {
namespace {

using State = ShardedTrainer::State;
constexpr const char* kCall = "ShardedTrainer::create";

Status check_options(const ShardOptions& o, std::span<const Param> params) {
  if (!o.optimizer) return invalid("no optimiser; expected a factory");
  if (!(o.bucket_mb >= 0)) return invalid(fmt::format("bucket_mb {}; expected 0 or more", o.bucket_mb));
  if (!(o.clip_norm >= 0)) return invalid(fmt::format("clip_norm {}; expected 0 or more", o.clip_norm));
  if (!o.order.empty()) {
    std::vector<int> named = o.order, trainable;
    std::sort(named.begin(), named.end());
    for (std::size_t i = 0; i < params.size(); ++i)
      if (!frozen(params[i])) trainable.push_back(static_cast<int>(i));
    if (named != trainable)
      return invalid(fmt::format("an order of {} parameters; expected each of the {} trainable ones once",
                                 named.size(), trainable.size()));
  }
  if (!o.scaler) return {};
  if (o.scaler->scope == ScalerScope::local)
    return invalid("ScalerScope::local; expected ScalerScope::all, since the shards belong to one model");
  return o.scaler->check();
}

std::uint64_t digest_of(const ShardOptions& o) {
  Digest d;
  const GradScaler s = o.scaler.value_or(GradScaler{});
  for (const double x : {o.bucket_mb, o.clip_norm, s.scale, s.growth, s.backoff}) d.add(x);
  for (const std::int64_t x : {s.interval, s.clean_steps}) d.add(x);
  d.add(o.numerics);
  for (const bool b : {o.sync_all, o.find_unused, o.scaler.has_value(), o.schedule != nullptr}) d.add(b);
  for (const int p : o.order) d.add(p);
  return d.value();
}
std::uint64_t digest_of_place(const ShardSide& side) {
  Digest d;
  d.add(side.rank);
  d.add(side.size);
  return d.value();
}

Result<std::uint64_t> digest_of_rules(std::span<const ShardBucket> buckets) {
  Digest d;
  for (const ShardBucket& b : buckets) b.add_rule(&d);
  return d.value();
}

/// Compares first within the shard groups, then between them: a difference that no member of a rank's replica
/// group can see is seen by its shard group, all of whose members then refuse.
Status compare_at_start(Group* shards, Group* replicas, const State& s, Status mine) {
  Result<std::uint64_t> rules = std::uint64_t{0};
  if (mine.ok()) rules = caught([&] { return digest_of_rules(s.buckets); });
  if (mine.ok()) mine = rules.status();
  Claim claims[] = {{"another place in its replica group", digest_of_place(s.replicas)},
                    {"other options", digest_of(s.options)},
                    {"another optimiser or schedule", mine.ok() ? *rules : 0}};
  if (shards != nullptr) mine = compare(*shards, kCall, s.params, claims, mine);
  claims[0] = {"another place in its shard group", digest_of_place(s.shards)};
  if (replicas != nullptr) mine = compare(*replicas, kCall, s.params, claims, mine);
  return mine;
}

Status broadcast_from_0(ShardSide& side, const View& v) {
  if (side.alone() || v.count == 0) return {};
  return broadcast(side.control, v, v, 0);
}

}  // namespace

// ---- creation -------------------------------------------------------------------------------------

Result<ShardedTrainer> State::make(Group* shards, Group* replicas, std::vector<Param> params,
                                   ShardOptions options) {
  OURO_TRY(not_in_batch(kCall));
  for (const Group* g : {shards, replicas})
    if (g != nullptr && !g->valid()) return invalid("the group is an empty handle");
  auto state = std::make_shared<State>(std::move(options), std::move(params));
  State& s = *state;
  for (const auto& [group, side] : {std::pair{replicas, &s.replicas}, std::pair{shards, &s.shards}}) {
    if (group == nullptr) continue;
    side->rank = group->rank(), side->size = group->size();
    s.world_rank = group->ranks()[static_cast<std::size_t>(group->rank())];
  }
  std::vector<Param> anywhere = s.params;  // a saved form may be loaded on another kind of device
  for (Param& p : anywhere) p.value.device = {};
  s.params_digest = train::digest_of(anywhere), s.options_digest = digest_of(s.options);

  Status mine = check_trainable(kCall, s.params);
  if (mine.ok()) mine = check_options(s.options, s.params);
  if (mine.ok()) mine = caught([&] { return s.make_buckets(); });
  OURO_TRY(compare_at_start(shards, replicas, s, std::move(mine)));
  if (!s.shards.alone()) OURO_TRY(s.shards.connect(*shards));
  if (!s.replicas.alone()) OURO_TRY(s.replicas.connect(*replicas));
  // Another rank may already be past this point and may have failed in its first step.
  if (Status taken = s.take_values_of_0(); !taken.ok()) return s.fail(std::move(taken));
  return ShardedTrainer(std::move(state));
}

Status State::make_buckets() {
  std::vector<int> order = options.order;
  for (std::size_t i = params.size(); i-- > 0 && options.order.empty();)
    if (!frozen(params[i])) order.push_back(static_cast<int>(i));
  OURO_ASSIGN(layouts, plan_buckets(params, order, options.bucket_mb));
  OURO_ASSIGN(pool, StreamPool::create(std::min(static_cast<int>(layouts.size()), StreamPool::kDefaultSize)));
  expect(params.size());
  bucket_of.resize(params.size());
  buckets.resize(layouts.size());
  for (std::size_t k = 0; k < buckets.size(); ++k) {
    const std::size_t unit = kBlockAlign * static_cast<std::size_t>(shards.size);
    layouts[k].length = (layouts[k].length + unit - 1) / unit * unit;
    buckets[k].layout = layouts[k];
    for (const int p : layouts[k].params) bucket_of[static_cast<std::size_t>(p)] = k;
    OURO_TRY(fill(buckets[k]));
    mine.insert(mine.end(), buckets[k].mine.begin(), buckets[k].mine.end());
  }
  for (Param& p : mine) p.grad = {};
  return {};
}

Status State::fill(ShardBucket& b) {
  OURO_TRY(b.make(b.grad));
  if (options.params_in_bucket) OURO_TRY(b.make(b.value));
  const std::size_t length = b.layout.length / static_cast<std::size_t>(shards.size);
  const std::size_t begin = static_cast<std::size_t>(shards.rank) * length;
  for (std::size_t i = 0; i < b.layout.params.size(); ++i) {
    Param& p = params[static_cast<std::size_t>(b.layout.params[i])];
    b.params.push_back(p);
    if (options.params_in_bucket) OURO_TRY(b.move_value(i));
    if (options.grads_in_bucket) OURO_TRY(b.move_grad(i));
    p = b.params[i];
    const std::size_t at = b.layout.offsets[i];
    const std::size_t from = std::max(begin, at), to = std::min(begin + length, at + p.value.count);
    if (from >= to) continue;
    View value = p.value;
    value.data = static_cast<std::byte*>(value.data) + (from - at) * size_of(value.dtype);
    value.count = to - from;
    b.mine.push_back({p.name, value, b.grad.view(from, to - from), {static_cast<std::int64_t>(to - from)}});
  }
  b.unready = b.params.size();
  return b.make_rule(options.optimizer, b.mine, options.schedule);
}

Status State::compare_all(std::string_view call, std::span<const Claim> claims, Status mine_here) {
  if (!shards.alone()) mine_here = compare(shards.control, call, claims, mine_here);
  if (!replicas.alone()) mine_here = compare(replicas.control, call, claims, mine_here);
  return mine_here;
}

Status State::take_values_of_0() {
  for (const Param& p : params) {
    if (frozen(p) && !options.sync_all) continue;
    // Afterwards the ranks with shard rank 0 have the values and send them on.
    OURO_TRY(broadcast_from_0(replicas, p.value));
    OURO_TRY(broadcast_from_0(shards, p.value));
  }
  return {};
}

Result<ShardedTrainer> ShardedTrainer::create(Group& shards, std::vector<Param> params, ShardOptions o) {
  return State::make(&shards, nullptr, std::move(params), std::move(o));
}
Result<ShardedTrainer> ShardedTrainer::create(Group& shards, Group& replicas, std::vector<Param> params,
                                              ShardOptions o) {
  return State::make(&shards, &replicas, std::move(params), std::move(o));
}
Result<ShardedTrainer> ShardedTrainer::data_parallel(Group& replicas, std::vector<Param> params,
                                                     ShardOptions o) {
  return State::make(nullptr, &replicas, std::move(params), std::move(o));
}

// ---- life -----------------------------------------------------------------------------------------

State::~State() {
  // The pool's threads may be waiting for other ranks, and the destructor must not wait for them.
  if (std::any_of(buckets.begin(), buckets.end(), [](const ShardBucket& b) { return !b.work.test(); }))
    abort("its trainer was destroyed");
}

Status ShardedTrainer::close() {
  if (state_ == nullptr) return invalid("the trainer is an empty handle");
  State& s = *state_;
  if (s.closed) return {};
  OURO_TRY(s.usable());
  OURO_TRY(s.between_steps("close"));
  for (ShardSide* side : {&s.shards, &s.replicas})
    if (!side->alone()) OURO_TRY(barrier(side->control, kAuto));
  s.closed = true;
  for (ShardSide* side : {&s.shards, &s.replicas})
    if (!side->alone()) OURO_TRY(side->close());
  return {};
}

ShardedTrainer::ShardedTrainer(std::shared_ptr<State> s) : state_(std::move(s)) {}
ShardedTrainer::ShardedTrainer(ShardedTrainer&&) noexcept = default;
ShardedTrainer& ShardedTrainer::operator=(ShardedTrainer&&) noexcept = default;
ShardedTrainer::~ShardedTrainer() = default;

// ---- queries --------------------------------------------------------------------------------------

std::span<const Param> ShardedTrainer::params() const { return state_->params; }
std::span<const BucketLayout> ShardedTrainer::buckets() const { return state_->layouts; }
std::span<const Param> ShardedTrainer::shard() const { return state_->mine; }
double ShardedTrainer::lr() const { return state_->buckets.front().lr(); }
double ShardedTrainer::scale() const { return state_->options.scaler ? state_->options.scaler->scale : 1; }
double ShardedTrainer::grad_norm() const { return state_->norm; }
std::int64_t ShardedTrainer::steps() const { return state_->steps; }
Status ShardedTrainer::status() const { return state_->failure; }
void ShardedTrainer::set_accumulate(bool on) { state_->accumulating = on; }

}  // namespace ouro::train
