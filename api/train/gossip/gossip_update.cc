// The work of a training step on a bucket: scaling and clipping, mixing and updating, the next exchange. See
// gossip.hpp for the formulas.
#include <algorithm>
#include <cmath>

#include "api/train/gossip/combine.h"
#include "api/train/gossip/gossip_state.h"
#include "api/train/optim/update.h"

namespace ouro::train {
namespace {

using State = GossipTrainer::State;

std::vector<CView> gradients(const GossipBucket& b) {
  std::vector<CView> list;
  for (const Param& p : b.params) list.push_back(p.grad);
  return list;
}

}  // namespace

std::vector<View> GossipBucket::pieces(const Block& block) const {
  std::vector<View> views;
  for (std::size_t i = 0; i < params.size(); ++i)
    views.push_back(block.view(layout.offsets[i], params[i].value.count));
  return views;
}

std::int64_t State::round_of(std::int64_t step) const {
  if (options.order == RoundOrder::sequential) return step - 1;
  return step == 1 ? 1 : step + 1;
}

// ---- scaling and clipping -------------------------------------------------------------------------

bool State::defers() const {
  return (options.scaler && options.scaler->scope == ScalerScope::all) ||
         (options.clip_norm > 0 && options.clip_scope == ClipScope::global);
}

/// The decision for one bucket, for ClipScope::bucket and ScalerScope::local.
Result<StepScale> State::survey_bucket(GossipBucket& b) {
  const bool clips = options.clip_norm > 0 && options.clip_scope == ClipScope::bucket;
  if (!clips && !options.scaler) return StepScale{};
  OURO_ASSIGN(const auto survey,
              survey_gradients(gradients(b), options.scaler ? 1 / options.scaler->scale : 1));
  b.finite = survey.finite;
  return StepScale{.skip = options.scaler.has_value() && !survey.finite,
                   .clip = clips ? survey.clip_factor(options.clip_norm) : 1};
}

Result<std::vector<StepScale>> State::survey_all() {
  for (const Event& e : events) OURO_TRY(e.synchronize());
  std::vector<StepScale> decided(buckets.size());
  bool finite = true;
  if (options.clip_norm > 0 && options.clip_scope == ClipScope::global) {
    OURO_ASSIGN(auto all, survey_global());
    finite = all.finite;
    for (StepScale& d : decided) d.clip = all.clip_factor(options.clip_norm);
  } else {
    for (std::size_t k = 0; k < buckets.size(); ++k) {
      OURO_ASSIGN(auto one, survey_bucket(buckets[k]));
      decided[k].clip = one.clip;
      finite &= !one.skip;
    }
  }
  if (!options.scaler) return decided;
  std::int32_t overflow = finite ? 0 : 1;
  const std::span<std::int32_t> word(&overflow, 1);
  OURO_TRY(all_reduce(control, word, word, ReduceOp::max, kAuto));
  for (StepScale& d : decided) d.skip = overflow != 0;
  return decided;
}

/// Computed in the order of the list, type by type, so that even the last bit of the norm does not depend on
/// the buckets.
Result<GradientSurvey> State::survey_global() {
  std::vector<std::vector<CView>> kinds;
  for (const int i : trainable) {
    const CView g = params[static_cast<std::size_t>(i)].grad;
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const std::vector<CView>& k) {
      return k[0].dtype == g.dtype && k[0].device == g.device;
    });
    if (kind == kinds.end()) kind = kinds.emplace(kinds.end());
    kind->push_back(g);
  }
  GradientSurvey all;
  double squares = 0;
  for (const std::vector<CView>& kind : kinds) {
    OURO_ASSIGN(const auto one, survey_gradients(kind, options.scaler ? 1 / options.scaler->scale : 1));
    all.finite &= one.finite;
    squares += one.norm * one.norm;
  }
  all.norm = std::sqrt(squares);
  return all;
}

// ---- mixing and updating --------------------------------------------------------------------------

Status State::advance(bool wait, std::span<const StepScale> decided) {
  const auto there = [&](const GossipBucket& b) {
    return b.exchange.test() && std::all_of(b.layout.params.begin(), b.layout.params.end(), [&](int p) {
             return events[static_cast<std::size_t>(p)].query();
           });
  };
  for (std::size_t k = 0; k < buckets.size(); ++k) {
    GossipBucket& b = buckets[k];
    if (b.updated || b.unready > 0 || (!wait && !there(b))) continue;
    for (const int p : b.layout.params) OURO_TRY(events[static_cast<std::size_t>(p)].synchronize());
    OURO_TRY(update(b, decided.empty() ? nullptr : &decided[k]));
    b.updated = true;
    // Launched in the order of buckets, which is the same on all ranks.
    for (; launched < buckets.size() && buckets[launched].updated; ++launched) OURO_TRY(launch(launched));
  }
  if (wait && options.scaler && options.scaler->scope == ScalerScope::all)
    options.scaler->update(!decided.front().skip);
  return {};
}

Status State::update(GossipBucket& b, const StepScale* decided) {
  OURO_TRY(b.exchange.wait());
  OURO_ASSIGN(auto scale, decided != nullptr ? Result<StepScale>(*decided) : survey_bucket(b));
  if (b.pending && options.pre_mix)
    OURO_TRY(options.pre_mix(static_cast<int>(&b - buckets.data()), b.row, b.message.view(), b.value.view()));

  const std::vector<View> messages = b.pieces(b.message);
  const std::vector<CView> neighbours(messages.begin(), messages.end());
  const Row alone;
  Exchange exchange{.row = b.pending ? &b.row : &alone,
                    .adaptive = b.pending ? adaptive : 0,
                    .neighbours = neighbours,
                    .next_messages = messages};
  StepOptions step;
  if (b.schedule) step.lr = b.schedule->lr();
  step.scale = {.inverse = options.scaler ? 1 / options.scaler->scale : 1, .clip = scale.clip};
  step.exchange = &exchange;
  std::vector<Param> mixed_only = b.params;
  for (Param& p : mixed_only) p.grad.data = nullptr;
  if (b.second)
    OURO_TRY(update_pair(b, step, mixed_only, scale.skip));
  else
    OURO_TRY(b.optimizer->step(scale.skip ? mixed_only : b.params, step));
  if (b.schedule && !scale.skip) b.schedule->step();
  b.pending = false;
  return {};
}

/// Mixes both vectors by the pair's row; then the increment of x, to the precision of its type, is
/// added to y, too.
Status State::update_pair(GossipBucket& b, const StepOptions& step, std::span<const Param> without_gradients,
                          bool skip) {
  const View z = b.message.view(), y = b.second.view();
  Row row;
  if (b.pending) {
    const PairRow& w = b.pair;
    combine(y, {{1 - adaptive + adaptive * w.y_self, y}, {adaptive * w.y_in, z}});
    combine(z, {{w.x_in, z}});
    row.self = w.x_self;
  }
  Exchange exchange = *step.exchange;
  exchange.row = &row;
  StepOptions mixing = step;
  mixing.exchange = &exchange;
  OURO_TRY(b.optimizer->step(without_gradients, mixing));  // also leaves Y_t in z
  if (skip) return {};
  StepOptions alone = step;
  alone.exchange = nullptr;
  OURO_TRY(b.optimizer->step(b.params, alone));
  const std::vector<View> before = b.pieces(b.message), second = b.pieces(b.second);
  for (std::size_t i = 0; i < b.params.size(); ++i)
    combine(second[i], {{1, second[i]}, {1, b.params[i].value}, {-1, before[i]}});
  return {};
}

Status State::launch(std::size_t k) {
  GossipBucket& b = buckets[k];
  const std::int64_t round = round_of(steps + 1);
  b.row = options.topology.row(round, control.rank());
  if (b.second) {
    OURO_ASSIGN(b.pair, options.topology.pair(round, control.rank()));
    const std::vector<View> message = b.pieces(b.message), second = b.pieces(b.second);
    for (std::size_t i = 0; i < b.params.size(); ++i)
      OURO_TRY(copy_view(message[i], b.pair.send_x ? b.params[i].value : second[i]));
  }
  b.pending = true;
  // A rank without neighbours takes part, too, so that all ranks count the same operations of a lane.
  const Row neighbours{0, b.row.in, b.row.out};
  const View message = b.message.view();
  Group* lane = &lane_of(k);
  const Stream stream = pool->by_key(k);
  if (message.device.kind == Device::Kind::cuda) {
    b.stage.resize(message.bytes());
    b.exchange = stream.run([lane, neighbours, message, stage = std::span(b.stage)]() -> Status {
      OURO_TRY(read_view(message, stage));
      const View host(stage.data(), message.count, message.dtype);
      OURO_TRY(mix(*lane, neighbours, host, host));
      return write_view(message, stage);
    });
    return {};
  }
  OURO_ASSIGN(b.exchange, mix(*lane, neighbours, message, message, stream));
  return {};
}

}  // namespace ouro::train
