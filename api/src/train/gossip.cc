// Making, closing and asking a decentralised trainer; what ranks must agree on before the first step. See
// gossip.hpp.
#include "ouro/train/gossip.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <set>

#include "api/src/train/average_agreement.h"
#include "api/src/train/gossip_state.h"

namespace ouro::train {
namespace {

bool trains(DType t) { return t == DType::f64 || t == DType::f32 || t == DType::bf16 || t == DType::f16; }
bool frozen(const Param& p) { return p.grad.data == nullptr; }

Status check_param(const Param& p) {
  const auto wrong = [&](const std::string& what) {
    return invalid(fmt::format("parameter '{}' {}", p.name, what));
  };
  if (p.value.data == nullptr && p.value.count > 0) return wrong("is a null pointer");
  std::size_t product = 1;
  for (const std::int64_t d : p.shape) product *= static_cast<std::size_t>(d);
  if (!p.shape.empty() && product != p.value.count)
    return wrong(fmt::format("has {} elements, its shape ({}) {}; expected contiguous memory", p.value.count,
                             fmt::join(p.shape, ","), product));
  if (p.order == Order::channels_last && p.shape.size() != 4)
    return wrong(fmt::format("is channels_last with {} dimensions; expected 4", p.shape.size()));
  if (frozen(p)) return {};
  if (!trains(p.value.dtype))
    return wrong(fmt::format("is of type {}; expected double, float, bfloat16 or half", name(p.value.dtype)));
  if (p.grad.count != p.value.count || p.grad.dtype != p.value.dtype || p.grad.device != p.value.device)
    return wrong("has a gradient of another count, type or device");
  return {};
}

/// Names once each, and no memory of two parameters.
Status check_apart(std::span<const Param> params) {
  std::set<std::string_view> names;
  std::vector<std::pair<std::uintptr_t, const Param*>> starts;
  for (const Param& p : params) {
    if (!names.insert(p.name).second) return invalid(fmt::format("two parameters are named '{}'", p.name));
    if (p.value.count > 0) starts.emplace_back(reinterpret_cast<std::uintptr_t>(p.value.data), &p);
  }
  std::sort(starts.begin(), starts.end());
  for (std::size_t i = 1; i < starts.size(); ++i)
    if (starts[i].first < starts[i - 1].first + starts[i - 1].second->value.bytes())
      return invalid(fmt::format("parameters '{}' and '{}' share memory; expected tied weights once",
                                 starts[i - 1].second->name, starts[i].second->name));
  return {};
}

Status check(const Group& g, std::span<const Param> params, std::span<const Buffer> buffers,
             const GossipOptions& o) {
  if (params.empty()) return invalid("no parameters; expected at least one");
  bool any = false, device = false;
  for (const Param& p : params) {
    OURO_TRY(check_param(p));
    any |= !frozen(p);
    device |= p.value.device.kind == Device::Kind::cuda;
  }
  if (!any) return invalid("all parameters are frozen; expected a gradient's memory for at least one");
  for (const Buffer& b : buffers)
    if (b.value.data == nullptr && b.value.count > 0)
      return invalid(fmt::format("buffer '{}' is a null pointer", b.name));
  OURO_TRY(check_apart(params));
  if (o.topology.size() != g.size())
    return invalid(
        fmt::format("the topology is for {} ranks, the group has {}", o.topology.size(), g.size()));
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
        "ScalerScope::local decides bucket by bucket, ClipScope::global waits for all of them; expected one "
        "of "
        "the two");
  return {};
}

std::uint64_t digest_of(const Param& p) {
  Digest d;
  d.add(p);
  d.add(frozen(p) ? 1 : 0);
  return d.value();
}

std::uint64_t digest_of(const Topology& t) {
  Digest d;
  for (int step = 0; step < t.period(); ++step)
    for (int r = 0; r < t.size(); ++r) {
      const Row row = t.row(step, r);
      const auto add = [&](double x) {
        std::uint64_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        d.add(bits);
      };
      add(row.self);
      for (const auto& [from, weight] : row.in) d.add(static_cast<std::uint64_t>(from)), add(weight);
    }
  return d.value();
}

/// Numbers that must be equal on all ranks, but for those of the parameters.
std::uint64_t digest_of(const GossipOptions& o, std::span<const Buffer> buffers) {
  Digest d;
  const GradScaler s = o.scaler.value_or(GradScaler{});
  for (const double x : {o.bucket_mb, o.clip_norm, s.scale, s.growth, s.backoff}) {
    std::uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    d.add(bits);
  }
  d.add(static_cast<std::uint64_t>(s.interval));
  for (const bool b : {o.clip_scope == ClipScope::global, o.average_buffers, o.sync_all, o.find_unused,
                       o.order == RoundOrder::upstream, o.scaler.has_value(), s.scope == ScalerScope::local})
    d.add(b ? 1 : 0);
  for (const Buffer& b : buffers) {
    d.add(b.name);
    d.add(static_cast<std::uint64_t>(b.value.dtype));
    d.add(b.value.count);
  }
  return d.value();
}

std::string words_of(const Param& p) {
  return fmt::format("'{}' {} ({}){}{}", p.name, name(p.value.dtype), fmt::join(p.shape, ","),
                     p.order == Order::channels_last ? " channels_last" : "", frozen(p) ? " frozen" : "");
}

/// Which parameter it is that the ranks have not in common; all ranks call it.
Status explain_difference(Group& g, std::span<const Param> params, std::size_t count_of_rank_0) {
  std::vector<std::uint64_t> root(count_of_rank_0);
  for (std::size_t i = 0; i < count_of_rank_0 && g.rank() == 0; ++i) root[i] = digest_of(params[i]);
  OURO_TRY(broadcast(g, std::span<const std::uint64_t>(root), std::span(root), 0));
  std::uint64_t first = 0;
  while (first < std::min(root.size(), params.size()) && root[first] == digest_of(params[first])) ++first;
  if (first == root.size() && first == params.size()) first = ~std::uint64_t{0};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(g.size()));
  OURO_TRY(all_gather(g, std::span<const std::uint64_t>(&first, 1), std::span(all)));
  const auto worst = std::min_element(all.begin(), all.end());
  return invalid(
      fmt::format("the ranks have different parameters: rank {} differs from rank 0 at parameter {}; "
                  "this rank has {} there",
                  worst - all.begin(), *worst, *worst < params.size() ? words_of(params[*worst]) : "none"));
}

/// ok on all ranks, or an error on all.
Status agree(Group& g, std::span<const Param> params, std::span<const Buffer> buffers, const GossipOptions& o,
             const Status& mine, std::uint64_t* digest) {
  enum { kRefuses, kCount, kParams, kTopology, kOptions, kWords };
  std::uint64_t claim[kWords] = {};
  if (mine.ok()) {
    Digest d;
    for (const Param& p : params) d.add(digest_of(p));
    claim[kCount] = params.size();
    claim[kParams] = d.value();
    claim[kTopology] = digest_of(o.topology);
    claim[kOptions] = digest_of(o, buffers);
    for (const std::uint64_t word : claim) d.add(word);
    *digest = d.value();
  }
  claim[kRefuses] = mine.ok() ? 0 : 1;
  std::vector<std::uint64_t> all(kWords * static_cast<std::size_t>(g.size()));
  const Status gathered = all_gather(g, std::span<const std::uint64_t>(claim), std::span(all));
  if (!mine.ok()) return mine;
  OURO_TRY(gathered);
  const auto of = [&](int r, int word) { return all[static_cast<std::size_t>(r * kWords + word)]; };
  bool same_params = true;
  for (int r = 0; r < g.size(); ++r) {
    if (of(r, kRefuses) != 0)
      return invalid(fmt::format("rank {} refused its arguments; its own error says why", r));
    same_params &= of(r, kCount) == of(0, kCount) && of(r, kParams) == of(0, kParams);
  }
  if (!same_params) return explain_difference(g, params, of(0, kCount));
  for (int r = 1; r < g.size(); ++r)
    for (const int word : {kTopology, kOptions})
      if (of(r, word) != of(0, word))
        return invalid(
            fmt::format("rank {} has {} than rank 0; expected all alike", r,
                        word == kTopology ? "a topology with other weights" : "other options or buffers"));
  return {};
}

Status broadcast_from_0(Group& g, const View& v) { return v.count == 0 ? Status{} : broadcast(g, v, v, 0); }

}  // namespace

// ---- memory ---------------------------------------------------------------------------------------

Result<Block> Block::make(DType dtype, Device device, std::size_t count) {
  constexpr std::size_t kAlign = 64;
  const std::size_t bytes = std::max<std::size_t>(count, 1) * size_of(dtype);
  Block block;
  block.whole_ = {nullptr, count, dtype, device};
  if (device.kind == Device::Kind::cuda) {
    auto memory = DeviceBytes::make(device.index, bytes);
    OURO_TRY(memory.status());
    block.on_device_ = std::move(*memory);
    block.whole_.data = block.on_device_.data();
    return block;
  }
  block.host_.reset(new (std::nothrow) std::byte[bytes + kAlign]());
  if (!block.host_) return Status(Reason::resource, fmt::format("no {} bytes for a bucket", bytes));
  const auto at = reinterpret_cast<std::uintptr_t>(block.host_.get());
  block.whole_.data = block.host_.get() + (kAlign - at % kAlign) % kAlign;
  return block;
}
View Block::view(std::size_t offset, std::size_t count) const {
  return {static_cast<std::byte*>(whole_.data) + offset * size_of(whole_.dtype), count, whole_.dtype,
          whole_.device};
}

Status copy_view(const View& to, const CView& from) {
  if (to.count == 0) return {};
  if (to.device.kind == Device::Kind::cuda)
    return copy_and_wait(to.device.index, to.data, from.data, to.bytes());
  std::memcpy(to.data, from.data, to.bytes());
  return {};
}
Status read_view(const CView& from, std::span<std::byte> to) {
  if (from.count == 0) return {};
  if (from.device.kind == Device::Kind::cuda)
    return copy_and_wait(from.device.index, to.data(), from.data, from.bytes());
  std::memcpy(to.data(), from.data, from.bytes());
  return {};
}
Status write_view(const View& to, CBytes from) { return copy_view(to, {from.data(), to.count, to.dtype}); }
Status zero_view(const View& v) {
  if (v.device.kind == Device::Kind::cuda) return write_view(v, Bytes(v.bytes()));
  if (v.count > 0) std::memset(v.data, 0, v.bytes());
  return {};
}

// ---- life -----------------------------------------------------------------------------------------

Result<GossipTrainer> GossipTrainer::create(Group& group, std::vector<Param> params,
                                            std::vector<Buffer> buffers, GossipOptions options) {
  if (!group.valid()) return invalid("the group is an empty handle");
  auto state = std::make_shared<State>(std::move(options));
  State& s = *state;
  OURO_TRY(agree(group, params, buffers, s.options, check(group, params, buffers, s.options), &s.digest));
  auto control = group.split(0, group.rank());
  OURO_TRY(control.status());
  s.control = std::move(*control);
  for (int lane = 0; lane < StreamPool::kDefaultSize; ++lane) {
    auto made = group.split(0, group.rank());
    OURO_TRY(made.status());
    s.lanes.push_back(std::move(*made));
  }
  s.params = std::move(params);
  s.buffers = std::move(buffers);
  for (std::size_t i = 0; i < s.params.size(); ++i)
    if (!frozen(s.params[i])) s.trainable.push_back(static_cast<int>(i));
  s.ready.resize(s.params.size());
  s.events.resize(s.params.size());
  for (const Param& p : s.params)
    if (!frozen(p) || s.options.sync_all) OURO_TRY(broadcast_from_0(s.control, p.value));
  for (const Buffer& b : s.buffers)
    if (s.options.sync_all) OURO_TRY(broadcast_from_0(s.control, b.value));
  return GossipTrainer(std::move(state));
}

GossipTrainer::State::~State() {
  // The pool's threads wait for neighbours, and nobody should wait here.
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
  OURO_TRY(barrier(s.control));  // neighbours have what they want
  s.closed = true;
  for (Group& lane : s.lanes) OURO_TRY(lane.close());
  return s.control.close();
}

GossipTrainer::GossipTrainer(std::shared_ptr<State> s) : state_(std::move(s)) {}
GossipTrainer::GossipTrainer(GossipTrainer&&) noexcept = default;
GossipTrainer& GossipTrainer::operator=(GossipTrainer&&) noexcept = default;
GossipTrainer::~GossipTrainer() = default;

// ---- what it is asked -----------------------------------------------------------------------------

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
  const GossipBucket& first = state_->buckets.front();
  return first.schedule ? first.schedule->lr() : first.optimizer->lr();
}

}  // namespace ouro::train
