/// Outer optimisers of federated training: what the server does with the mean of the sites (FedAvg, FedAdam,
/// FedYogi, DiLoCo's Nesterov momentum), and the loop of local steps around it. For users.
/// @file
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ouro/train/federation.hpp"
#include "ouro/train/optim.hpp"
#include "ouro/train/schedule.hpp"

namespace ouro::train {

/// @defgroup servers Training: server optimisers
/// @{

/// Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2. With the gradient g = x_o - x:
///   m <- beta1 m - (1 - beta1) g;   x <- x + lr m / (sqrt v + tau);   v is tau^2 at first, and becomes
///   adagrad: v + g^2;  adam: beta2 v + (1 - beta2) g^2;  yogi: v - (1 - beta2) g^2 sign(v - g^2).
/// No correction of bias.
enum class ServerRule : std::uint8_t { adagrad, adam, yogi };
/// Options of a server rule, in the letters above.
struct ServerOptions {
  ServerRule rule = ServerRule::adam;  ///< how v is updated
  double lr = 1e-2;                    ///< learning rate of the server
  double beta1 = .9;                   ///< decay of m
  double beta2 = .99;                  ///< decay of v
  double tau = 1e-3;                   ///< adaptivity; above 0
};
/// Parameters of the host (or OuterOptions::on_host). Arithmetic, state and elements that are not finite are
/// as in optim.hpp. Errors: invalid (a rule that does not exist; lr, betas or tau not finite; betas outside
/// [0, 1);
/// tau <= 0); unsupported, by step: parameters on a GPU.
OURO_API Result<std::unique_ptr<Optimizer>> make_optimizer(const ServerOptions&);
/// McMahan et al., AISTATS 2017: the mean itself (SGD of rate 1); with a momentum, FedAvgM.
OURO_API Result<std::unique_ptr<Optimizer>> fed_avg(double lr = 1, double momentum = 0);
/// `rule` is set by the name.
OURO_API Result<std::unique_ptr<Optimizer>> fed_adam(ServerOptions = {});
/// `rule` is set by the name.
OURO_API Result<std::unique_ptr<Optimizer>> fed_yogi(ServerOptions = {});
/// Douillard et al., "DiLoCo", 2023: SGD with Nesterov momentum.
OURO_API Result<std::unique_ptr<Optimizer>> diloco(double lr = 0.7, double momentum = 0.9);

/// @}
/// @defgroup outer Training: one outer step
/// @{

/// Options of an OuterOptimizer.
struct OuterOptions {
  std::optional<Schedule> schedule = {};  ///< of outer steps; none: the optimiser's own rate
  double clip_norm = 0;                   ///< g *= min(1, clip_norm / (||g||_2 + 1e-6)); 0: never
  bool on_host =
      false;  ///< parameters on a GPU: keep x_o and the optimiser's state on the host, and step there
};

/// Keeps x_o, the parameters after the outer step before. One step: g = x_o - x; one step of the optimiser on
/// x_o with g; x <- x_o. A step that the optimiser refuses changes nothing. Takes every parameter that is
/// given to it; what is not (buffers, frozen ones) keeps its aggregated value. The same inputs give the same
/// bits, so ranks that agree go on agreeing.
class OURO_API OuterOptimizer {
 public:
  /// x_o <- the parameters as they are now. Errors: invalid (no optimiser, types, twice the same name, a
  /// negative clip_norm), resource.
  static Result<OuterOptimizer> create(std::span<const Param>, std::unique_ptr<Optimizer>, OuterOptions = {});
  /// After `aggregate`. Without a stream, or with clip_norm or on_host: waits; else it is enqueued.
  Status step(const Stream& = {});
  std::int64_t steps() const;  ///< outer steps so far
  Optimizer& optimizer();      ///< the one it was created with
  /// x_o, the optimiser's state, the place in the schedule, steps; the parameters are the model's, to be
  /// saved with it. Waits for what is enqueued.
  Result<Bytes> save();
  /// Into one that was made alike: the next steps have the same bits. Errors: invalid (damaged, of other
  /// parameters or options), resource; and nothing is changed.
  Status load(CBytes);

  struct OURO_HIDDEN State;
  explicit OuterOptimizer(std::shared_ptr<State> s) : state_(std::move(s)) {}  ///< for the library

 private:
  friend class LocalSteps;
  std::shared_ptr<State> state_;
};

/// An outer step from models that are at hand (files of several sites): g = base - mean of the models,
/// clipped to norm 1, one step of the optimiser on `base`; none: AdamW of rate 0.1, betas 0.9 and 0.99, eps
/// 1e-8, no decay. Models have base's parameters in base's order. Memory of the host. Errors: invalid, naming
/// model and parameter.
OURO_API Status outer_step_from_models(std::span<const Param> base,
                                       std::span<const std::span<const Param>> models, Optimizer* = nullptr);

/// @}
/// @defgroup local_steps Training: local steps
/// @{

/// What crosses the sites. exact: the parameters, as `aggregate` does. bf16: g, rounded. int8: g in blocks of
/// 256 elements of one scale, the largest magnitude / 127, gathered in one message (whatever the strategy)
/// and summed up in site order; memory of the host.
enum class DeltaFormat : std::uint8_t { exact, bf16, int8 };

/// Options of LocalSteps; all ranks have the same.
struct LocalStepsOptions {
  std::int64_t inner_steps = 500;          ///< between outer ones
  DeltaFormat delta = DeltaFormat::exact;  ///< what crosses the sites
  AggregateOptions aggregate = {};         ///< how the mean is taken
  OuterOptions outer = {};                 ///< of the outer step
};

/// The loop of DiLoCo and FedAvg: each site trains by itself for inner_steps steps, then all take one outer
/// step. The first round compares, besides what `aggregate` does, inner_steps, delta, clip_norm and the
/// optimiser (Optimizer::digest): `invalid` on every rank where they differ, and no parameter is touched.
class OURO_API LocalSteps {
 public:
  /// Does not communicate. Parameters that `aggregate.filter` leaves out stay local. Errors: as
  /// plan_aggregation and OuterOptimizer::create; invalid (inner_steps < 1), unsupported (bf16 or int8 on a
  /// GPU; int8 on several streams).
  static Result<LocalSteps> create(const LayoutGroups&, std::span<const Param>,
                                   std::unique_ptr<Optimizer> outer, LocalStepsOptions = {});
  /// After each inner step. Collective over the layout in every inner_steps-th call, which returns true and
  /// waits.
  Result<bool> step(const Stream& = {});
  std::int64_t rounds() const;  ///< outer steps so far
  /// As in OuterOptimizer, and the inner steps of the round under way. Each rank for itself; the next round
  /// compares how many rounds the ranks have behind them.
  Result<Bytes> save();
  Status load(CBytes);               ///< into one that was made alike; errors as OuterOptimizer::load
  AggregateTraffic traffic() const;  ///< of one round

  struct OURO_HIDDEN State;
  explicit LocalSteps(std::shared_ptr<State> s) : state_(std::move(s)) {}  ///< for the library

 private:
  std::shared_ptr<State> state_;
};
/// @}

}  // namespace ouro::train
