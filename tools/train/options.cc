// Defaults and checks of ouro-train's options, and values derived from them. Used through options.h.
#include "tools/train/options.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace ouro::tools {
namespace {

using models::NetworkKind;

bool windows(Rule r) { return r == Rule::accum_adam || r == Rule::accum_adamw; }
bool decoupled(Rule r) { return r == Rule::adamw || r == Rule::accum_adamw; }
bool is_text(const TrainOptions& o) { return o.model == SmallModel::charlm; }

Status check(const TrainOptions& o) {
  const auto at_least = [](const char* what, std::int64_t least, std::int64_t found) {
    return found >= least ? Status{}
                          : invalid(fmt::format("{} must be at least {}, found {}", what, least, found));
  };
  const auto number = [](const char* what, double low, bool open, double found) {
    return std::isfinite(found) && (open ? found > low : found >= low)
               ? Status{}
               : invalid(fmt::format("{} must be finite and {} {}, found {}", what,
                                     open ? "above" : "at least", low, found));
  };
  OURO_TRY(at_least("--steps", 1, o.steps));
  OURO_TRY(at_least("--stop-after", 0, o.stop_after));
  OURO_TRY(at_least("--batch", 1, *o.batch));
  OURO_TRY(number("--lr", 0, true, *o.lr));
  OURO_TRY(number("--weight-decay", 0, false, *o.weight_decay));
  if (o.momentum && !(*o.momentum >= 0 && *o.momentum < 1))
    return invalid(fmt::format("--momentum must be in [0, 1), found {}", *o.momentum));
  if (o.accum) OURO_TRY(at_least("--accum", 1, *o.accum));
  OURO_TRY(at_least("--local-steps", 1, o.local_steps));
  if (o.site_ranks.empty() && o.sites < 1)
    return invalid(fmt::format("--sites {}: expected one site at least", o.sites));
  for (const int ranks : o.site_ranks)
    if (ranks < 1) return invalid(fmt::format("--sites: a site of {} ranks, expected one at least", ranks));
  OURO_TRY(number("--bucket-mb", 0, false, o.bucket_mb));
  OURO_TRY(number("--clip", 0, false, o.clip_norm));
  OURO_TRY(at_least("--shards", 0, o.shards));
  if (o.adaptive && !(*o.adaptive >= 0 && *o.adaptive <= 1))
    return invalid(fmt::format("--adaptive must be in [0, 1], found {}", *o.adaptive));
  if (*o.dtype != DType::f32 && *o.dtype != DType::f64)
    return invalid(fmt::format("training runs in f32 or f64, not in {}", name(*o.dtype)));
  if (is_text(o) != (*o.network == NetworkKind::text))
    return invalid(fmt::format("--network {} does not run on {}", name(*o.network), name(o.model)));
  if (o.device && o.strategy != Strategy::ddp && o.strategy != Strategy::fsdp)
    return invalid(fmt::format("--device cuda has no meaning with --strategy {}", name(o.strategy)));
  if (o.save.empty() || (o.strategy != Strategy::federated && o.strategy != Strategy::diloco)) return {};
  const int last = o.stop_after > 0 ? std::min(o.stop_after, o.steps) : o.steps;
  if (last % o.local_steps != 0)
    return invalid(
        fmt::format("--save: sites are saved when they are equal, so the last step, {}, must be a "
                    "multiple of --local-steps, {}",
                    last, o.local_steps));
  return {};
}

}  // namespace

const char* name(Strategy s) {
  static constexpr const char* kNames[] = {"ddp", "fsdp", "federated", "diloco", "decentralised"};
  return kNames[static_cast<std::size_t>(s)];
}
const char* name(SmallModel m) { return m == SmallModel::digits ? "digits" : "charlm"; }
const char* name(Rule r) {
  static constexpr const char* kNames[] = {"sgd", "adam", "adamw", "accum_adam", "accum_adamw"};
  return kNames[static_cast<std::size_t>(r)];
}
const char* name(Curve c) { return c == Curve::constant ? "constant" : "cosine"; }
const char* name(Server s) {
  static constexpr const char* kNames[] = {"avg", "adam", "yogi", "nesterov"};
  return kNames[static_cast<std::size_t>(s)];
}
const char* name(NetworkKind n) {
  static constexpr const char* kNames[] = {"mlp", "cnn", "text"};
  return kNames[static_cast<std::size_t>(n)];
}

Result<TrainOptions> settle(TrainOptions o, int ranks) {
  const bool text = is_text(o), apart = o.strategy == Strategy::decentralised;
  if (o.strategy == Strategy::diloco) o.server = Server::nesterov;
  if (!o.network) o.network = text ? NetworkKind::text : apart ? NetworkKind::cnn : NetworkKind::mlp;
  if (!o.optimizer) o.optimizer = text ? Rule::accum_adamw : apart ? Rule::accum_adam : Rule::sgd;
  const Rule rule = *o.optimizer;
  if (o.momentum && rule != Rule::sgd)
    return invalid(fmt::format("--momentum has no meaning with --optimizer {}", name(rule)));
  if (o.accum && !windows(rule))
    return invalid(fmt::format("--accum has no meaning with --optimizer {}", name(rule)));
  if (!o.lr) o.lr = rule == Rule::sgd ? (*o.network == NetworkKind::mlp ? 0.2 : 0.05) : (text ? 2e-3 : 4e-3);
  if (!o.momentum && rule == Rule::sgd) o.momentum = 0.9;
  if (!o.weight_decay) o.weight_decay = rule == Rule::sgd ? 0 : decoupled(rule) ? 0.1 : 1.0 / 32768;
  if (!o.accum && windows(rule)) o.accum = 4;
  if (o.decay && *o.weight_decay == 0) return invalid("--decay has no meaning without --weight-decay");
  if (!o.decay) o.decay = train::DecayRule::standard;
  if (!o.schedule) o.schedule = text || apart ? Curve::cosine : Curve::constant;
  if (!o.batch) o.batch = text ? 8 * ranks : apart ? 16 * ranks : 64;
  if (!o.dtype) o.dtype = apart ? DType::f64 : DType::f32;
  OURO_TRY(check(o));
  return o;
}

nlohmann::ordered_json to_json(const TrainOptions& o, int ranks) {
  nlohmann::ordered_json json = {{"model", name(o.model)},
                                 {"strategy", name(o.strategy)},
                                 {"network", name(*o.network)},
                                 {"ranks", ranks},
                                 {"steps", o.steps},
                                 {"batch", *o.batch},
                                 {"optimizer", name(*o.optimizer)},
                                 {"lr", *o.lr}};
  if (o.momentum) json["momentum"] = *o.momentum;
  if (o.accum) json["accum"] = *o.accum;
  json["weight_decay"] = *o.weight_decay;
  json["decay"] = *o.decay == train::DecayRule::standard ? "standard" : "upstream-inverted";
  json["schedule"] = name(*o.schedule);
  json["seed"] = o.seed;
  json["device"] = o.device ? "cuda" : "host";
  json["dtype"] = *o.dtype == DType::f64 ? "f64" : "f32";
  json["numerics"] = name(o.numerics);
  switch (o.strategy) {
    case Strategy::fsdp:
      json["shards"] = o.shards > 0 ? o.shards : ranks;
      [[fallthrough]];
    case Strategy::ddp:
      json["bucket_mb"] = o.bucket_mb;
      json["clip"] = o.clip_norm;
      break;
    case Strategy::federated:
    case Strategy::diloco:
      if (o.site_ranks.empty())
        json["sites"] = o.sites;
      else
        json["sites"] = o.site_ranks;
      json["local_steps"] = o.local_steps;
      json["server"] = name(o.server);
      json["delta"] = o.delta == train::DeltaFormat::int8   ? "int8"
                      : o.delta == train::DeltaFormat::bf16 ? "bf16"
                                                            : "exact";
      json["weigh_by_ranks"] = o.weigh_by_ranks;
      break;
    case Strategy::decentralised:
      json["topology"] = o.topology;
      json["local_size"] = o.topology_options.local_world_size;
      json["peers"] = o.topology_options.peers;
      json["rows"] = o.topology_options.rows;
      json["round_order"] = o.order == train::RoundOrder::sequential ? "sequential" : "upstream";
      json["bucket_mb"] = o.bucket_mb;
      json["clip"] = o.clip_norm;
      if (o.adaptive) json["adaptive"] = *o.adaptive;
  }
  return json;
}

train::OptimizerFactory optimizer_of(const TrainOptions& o) {
  const train::FactoryOptions factory{.lr = *o.lr,
                                      .beta2 = is_text(o) ? 0.98 : 0.999,
                                      .weight_decay = *o.weight_decay,
                                      .accum_iter = o.accum.value_or(1),
                                      .decay_rule = *o.decay};
  switch (*o.optimizer) {
    case Rule::adam:
      return train::optim_fn_adam(factory);
    case Rule::adamw:
      return train::optim_fn_adamw(factory);
    case Rule::accum_adam:
      return train::optim_fn_accum_adam(factory);
    case Rule::accum_adamw:
      return train::optim_fn_accum_adamw(factory);
    case Rule::sgd:
      break;
  }
  train::SgdOptions sgd;
  sgd.lr = *o.lr, sgd.momentum = *o.momentum, sgd.weight_decay = *o.weight_decay;
  return train::optim_fn_sgd(sgd, {.decay_rule = *o.decay});
}

Result<train::Schedule> schedule_of(const TrainOptions& o) {
  if (*o.schedule == Curve::cosine) return train::cosine_with_warmup(*o.lr, o.steps, 10);
  return train::Schedule([lr = *o.lr](std::int64_t) { return lr; });
}

}  // namespace ouro::tools
