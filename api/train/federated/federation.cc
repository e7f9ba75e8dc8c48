// Plans federated averages: buckets, checks, messages. See ouro/train/federation.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "api/train/common/not_in_batch.h"
#include "api/train/common/param_checks.h"
#include "api/train/federated/federation_state.h"
#include "runtime/core/float_mode.h"

namespace ouro::train {
namespace {

constexpr const char* kCall = "aggregate";
/// Large enough for a collective to run at full bandwidth, small enough for the second stage to start early.
constexpr std::size_t kChunkBytes = 1 << 20;

struct Traits {
  const char* name;
  bool runs, whole, flat;  // whole: a bucket is one message
};
constexpr Traits kStrategies[] = {
    {"layer_by_layer", false, false, false},        {"layer_by_layer_optimized", true, false, false},
    {"bucket_flatten", false, true, true},          {"bucket_coalesced", false, true, false},
    {"bucket_optimized_flatten", true, true, true}, {"bucket_optimized_coalesced", true, true, false},
};
const Traits* traits_of(Strategy s) {
  const auto i = static_cast<std::size_t>(s);
  return i < std::size(kStrategies) ? &kStrategies[i] : nullptr;
}

/// Converts the sites' weights into this rank's own factor.
Result<ReduceOp> weighting(const ParallelLayout& layout, const std::vector<double>& weights) {
  if (weights.empty()) return ReduceOp::avg;
  const std::size_t sites = layout.federation ? static_cast<std::size_t>(layout.federation->count) : 0;
  if (weights.size() != sites)
    return invalid(fmt::format("{}: {} site weights for {} sites", kCall, weights.size(), sites));
  const StandardFloats floats;
  double sum = 0;
  for (std::size_t f = 0; f < sites; ++f) {
    if (!(weights[f] >= 0) || !std::isfinite(weights[f]))
      return invalid(fmt::format("{}: site {} has weight {}; expected a finite number, 0 at least", kCall, f,
                                 weights[f]));
    sum += weights[f];
  }
  if (!(sum > 0) || !std::isfinite(sum))
    return invalid(
        fmt::format("{}: the site weights add up to {}; expected a finite sum above 0", kCall, sum));
  return ReduceOp::premul(weights[static_cast<std::size_t>(layout.federation->rank)] / sum);
}

/// The selected parameters, with each array once.
std::vector<Param> select(std::span<const Param> params, const std::function<bool(const Param&)>& filter) {
  std::vector<Param> selected;
  std::set<std::pair<const void*, std::size_t>> seen;
  for (const Param& p : params)
    if ((!filter || filter(p)) && (p.value.count == 0 || seen.insert({p.value.data, p.value.count}).second))
      selected.push_back(p);
  return selected;
}

Result<FlatCopy> flat_copy(std::vector<View> layers) {
  FlatCopy copy;
  std::size_t count = 0;
  for (const View& v : layers) count += v.count;
  copy.flat = {nullptr, count, layers[0].dtype, layers[0].device};
  copy.layers = std::move(layers);
  OURO_ASSIGN(copy.memory, ZeroedBytes::make(copy.flat.device, copy.flat.bytes()));
  copy.flat.data = copy.memory.data();
  return copy;
}

/// Appends messages of `parts`, cut at `limit` bytes; 0: one message.
void cut(std::vector<AggregationMessage>& messages, std::span<const View> parts, std::size_t limit) {
  AggregationMessage next;
  std::size_t room = limit;
  for (const View& part : parts) {
    const std::size_t size = size_of(part.dtype);
    for (std::size_t at = 0; at < part.count;) {
      const std::size_t count = limit == 0 ? part.count : std::min(part.count - at, room / size);
      next.parts.emplace_back(static_cast<std::byte*>(part.data) + at * size, count, part.dtype, part.device);
      at += count;
      if (limit == 0) continue;
      room -= count * size;
      if (room >= sizeof(double)) continue;  // an element of any type still fits
      messages.push_back(std::exchange(next, {}));
      room = limit;
    }
  }
  if (!next.parts.empty()) messages.push_back(std::move(next));
}

Status fill(AggregationLane& lane, const Bucket& bucket, std::span<const Param> layers, bool whole,
            std::size_t limit) {
  std::vector<View> parts;
  std::map<DType, std::vector<View>> by_type;
  for (const std::size_t k : bucket.layers) {
    if (layers[k].value.count == 0) continue;
    parts.push_back(layers[k].value);
    by_type[layers[k].value.dtype].push_back(layers[k].value);
  }
  if (bucket.flat) {
    parts.clear();
    for (auto& [dtype, views] : by_type) {
      OURO_ASSIGN(auto copy, flat_copy(std::move(views)));
      parts.push_back(copy.flat);
      lane.copies.push_back(std::move(copy));
    }
  }
  if (whole)
    cut(lane.messages, parts, limit);
  else
    for (const View& part : parts) cut(lane.messages, {&part, 1}, limit);
  return {};
}

/// Whether a message passes through two stages on some rank; if so, it is cut, on all ranks equally.
bool two_stages(const ParallelLayout& l) {
  if (!l.federation || l.federation->count < 2 || !l.replica) return false;
  const std::vector<int>& replicas = l.replica->world_size;
  return std::any_of(replicas.begin(), replicas.end(), [](int r) { return r > 1; });
}

Status make_streams(AggregationPlan::State& s) {
  const auto make = [&](std::vector<Stream>& all, const char* name) -> Status {
    for (std::size_t k = 0; k < s.lanes.size(); ++k) {
      OURO_ASSIGN(auto stream, Stream::create(s.device, Priority::high, fmt::format("{} {}", name, k)));
      all.push_back(std::move(stream));
    }
    return {};
  };
  const bool overlaps = std::any_of(s.lanes.begin(), s.lanes.end(), [](const AggregationLane& l) {
    return l.across.valid() && l.inside.valid() && l.messages.size() > 1;
  });
  if (s.lanes.size() < 2 && !overlaps) return {};
  OURO_TRY(make(s.across, "across"));
  return overlaps ? make(s.inside, "inside") : Status{};
}

Status build(AggregationPlan::State& s, const LayoutGroups& groups, std::span<const Param> params,
             const AggregateOptions& o) {
  const Traits* traits = traits_of(o.strategy);
  if (traits == nullptr)
    return invalid(fmt::format("{}: no such strategy ({})", kCall, static_cast<int>(o.strategy)));
  if (o.streams < 1 || o.streams > groups.layout.streams)
    return invalid(fmt::format("{}: {} streams; the layout has groups for 1 to {} (LayoutOptions::streams)",
                               kCall, o.streams, groups.layout.streams));
  OURO_ASSIGN(auto op, weighting(groups.layout, o.site_weights));
  const std::vector<Param> layers = select(params, o.filter);
  OURO_TRY(check_tensors(kCall, layers));
  s.op = groups.layout.federation ? op : ReduceOp::avg;

  Digest digest;
  std::vector<std::size_t> elements;
  for (const Param& p : layers) {
    digest.add(p);
    elements.push_back(p.value.count);
  }
  const std::size_t total = std::accumulate(elements.begin(), elements.end(), std::size_t{0});
  digest.add(o.strategy);
  digest.add(o.streams);
  for (const double w : o.site_weights) digest.add(w);
  s.claims = tensor_claims(digest.value(), layers.size(), total);
  if (layers.empty()) return {};  // only the comparison is communicated

  s.device = layers[0].value.device;
  s.buckets = buckets(o.strategy, elements, o.streams);
  for (int k = 0; k < o.streams; ++k) s.lanes.push_back(lane_of(groups, static_cast<std::size_t>(k)));
  if (!s.lanes[0].across.valid() && !s.lanes[0].inside.valid()) {
    s.lanes.clear();
    return {};
  }
  const std::size_t limit = two_stages(groups.layout) ? kChunkBytes : 0;
  for (const Bucket& b : s.buckets)
    OURO_TRY(fill(s.lanes[static_cast<std::size_t>(b.stream)], b, layers, traits->whole, limit));
  return make_streams(s);
}

}  // namespace

AggregationLane lane_of(const LayoutGroups& groups, std::size_t s) {
  AggregationLane lane;
  const ParallelLayout& l = groups.layout;
  const auto at = [&](const std::vector<Group>& all) {
    return s < all.size() && all[s].size() > 1 ? all[s] : Group();
  };
  if (!l.federation) {
    lane.across = at(groups.replica_average);
    return lane;
  }
  lane.across = at(groups.federated);
  lane.inside = at(groups.replica_average);
  const auto sender =
      std::find(l.replica_group.begin(), l.replica_group.end(), l.receive_from.value_or(l.rank));
  if (lane.inside.valid()) lane.root = static_cast<int>(sender - l.replica_group.begin());
  return lane;
}

const char* name(Strategy s) { return traits_of(s) ? traits_of(s)->name : "?"; }

std::vector<Bucket> buckets(Strategy strategy, std::span<const std::size_t> elements, int streams) {
  if (traits_of(strategy) == nullptr) return {};
  const Traits& traits = *traits_of(strategy);
  const auto n = static_cast<std::size_t>(std::max(streams, 1));
  const std::size_t total = std::accumulate(elements.begin(), elements.end(), std::size_t{0});
  const std::size_t enough = std::max<std::size_t>(1, total / n);
  std::vector<Bucket> by_stream(n), result;
  std::size_t run = 0, count = 0;
  for (std::size_t k = 0; k < elements.size(); ++k) {
    const std::size_t s = traits.runs ? run : k % n;
    count += elements[k];
    if (count >= enough && run + 1 < n) ++run, count = 0;
    if (traits.whole)
      by_stream[s].layers.push_back(k);
    else
      result.push_back({static_cast<int>(s), {k}, false});
  }
  for (std::size_t s = 0; s < n; ++s) {
    by_stream[s].stream = static_cast<int>(s);
    by_stream[s].flat = traits.flat;
    if (!by_stream[s].layers.empty()) result.push_back(std::move(by_stream[s]));
  }
  return result;
}

std::size_t AggregationMessage::bytes() const {
  std::size_t sum = 0;
  for (const View& v : parts) sum += v.bytes();
  return sum;
}
std::size_t AggregationLane::bytes() const {
  std::size_t sum = 0;
  for (const AggregationMessage& m : messages) sum += m.bytes();
  return sum;
}

std::span<const Bucket> AggregationPlan::buckets() const { return state_->buckets; }
AggregateTraffic AggregationPlan::traffic() const {
  AggregateTraffic t;
  for (const AggregationLane& lane : state_->lanes) {
    if (lane.across.valid()) t.across += lane.bytes();
    if (lane.inside.valid()) t.inside += lane.bytes();
  }
  return t;
}

Result<AggregationPlan> plan_aggregation(const LayoutGroups& groups, std::span<const Param> params,
                                         const AggregateOptions& options) {
  auto state = std::make_shared<AggregationPlan::State>();
  set_comparison(*state, groups);
  OURO_TRY(build(*state, groups, params, options));
  return AggregationPlan(std::move(state));
}

Status aggregate(const LayoutGroups& groups, std::span<const Param> params, const AggregateOptions& options,
                 const Stream& stream) {
  auto plan = plan_aggregation(groups, params, options);
  if (plan.ok()) return plan->run(stream);
  OURO_TRY(not_in_batch(kCall));
  AggregationPlan::State state;
  set_comparison(state, groups);
  return agree_on_layout(state, plan.status());
}

}  // namespace ouro::train
