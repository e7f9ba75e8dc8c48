/// Outer optimisers of federated training: the server's update from the mean of the sites (FedAvg, FedAdam,
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
/// m <- beta1 m - (1 - beta1) g;   x <- x + lr m / (sqrt v + tau);   v starts as tau^2 and becomes
/// adagrad: v + g^2;  adam: beta2 v + (1 - beta2) g^2;  yogi: v - (1 - beta2) g^2 sign(v - g^2).
/// There is no bias correction.
enum class ServerRule : std::uint8_t { adagrad, adam, yogi };
/// Options of a server rule, named as in the formulas above.
struct ServerOptions {
  ServerRule rule = ServerRule::adam;  ///< how v is updated
  double lr = 1e-2;                    ///< learning rate of the server
  double beta1 = .9;                   ///< decay of m
  double beta2 = .99;                  ///< decay of v
  double tau = 1e-3;                   ///< adaptivity; above 0
};
/// For parameters on the host (or OuterOptions::on_host). Arithmetic, state and the treatment of elements
/// that are not finite are as in optim.hpp. Errors: invalid (an unknown rule; lr, betas or tau not finite;
/// betas outside [0, 1); tau <= 0); unsupported, by step(): parameters on a GPU.
OURO_API Result<std::unique_ptr<Optimizer>> make_optimizer(const ServerOptions&);
/// McMahan et al., AISTATS 2017: takes the mean itself (SGD of rate 1); with a momentum, FedAvgM.
OURO_API Result<std::unique_ptr<Optimizer>> fed_avg(double lr = 1, double momentum = 0);
/// FedAdam; `rule` is overwritten.
OURO_API Result<std::unique_ptr<Optimizer>> fed_adam(ServerOptions = {});
/// FedYogi; `rule` is overwritten.
OURO_API Result<std::unique_ptr<Optimizer>> fed_yogi(ServerOptions = {});
/// Douillard et al., "DiLoCo", 2023: SGD with Nesterov momentum.
OURO_API Result<std::unique_ptr<Optimizer>> diloco(double lr = 0.7, double momentum = 0.9);

/// @}
/// @defgroup outer Training: one outer step
/// @{

/// Options of an OuterOptimizer.
struct OuterOptions {
  std::optional<Schedule> schedule = {};  ///< schedule of outer steps; none: the optimiser's own rate
  double clip_norm = 0;                   ///< g *= min(1, clip_norm / (||g||_2 + 1e-6)); 0: never
  /// For parameters on a GPU: keep x_o and the optimiser's state on the host, and step there.
  bool on_host = false;
};

/// Keeps x_o, the parameters after the previous outer step. One step: g = x_o - x; one step of the optimiser
/// on x_o with g; x <- x_o. A step that the optimiser refuses changes nothing. Applies to every parameter
/// given to it; anything else (buffers, frozen parameters) keeps its aggregated value. The same inputs give
/// the same bits, so ranks that agree continue to agree.
class OURO_API OuterOptimizer {
 public:
  /// x_o <- the current parameters. Errors: invalid (no optimiser, types, a name twice, a negative
  /// clip_norm), resource.
  static Result<OuterOptimizer> create(std::span<const Param>, std::unique_ptr<Optimizer>, OuterOptions = {});
  /// Call after `aggregate`. Without a stream, or with clip_norm or on_host, it waits; otherwise it
  /// is enqueued.
  Status step(const Stream& = {});
  std::int64_t steps() const;  ///< number of outer steps so far
  Optimizer& optimizer();      ///< the optimiser it was created with
  /// Saves x_o, the optimiser's state, the position in the schedule and steps; the parameters belong to the
  /// model and must be saved with it. Waits for enqueued work.
  Result<Bytes> save();
  /// Loads into an optimiser that was made with equal arguments: the next steps have the same bits. Errors,
  /// with nothing changed: invalid (damaged, of other parameters or options), resource.
  Status load(CBytes);

  struct OURO_HIDDEN State;
  explicit OuterOptimizer(std::shared_ptr<State> s) : state_(std::move(s)) {}  ///< for the library

 private:
  friend class LocalSteps;
  std::shared_ptr<State> state_;
};

/// An outer step from models in memory (files of several sites): g = base - mean of the models, clipped to
/// norm 1, then one step of the optimiser on `base`; null: AdamW with rate 0.1, betas 0.9 and 0.99, eps 1e-8,
/// no decay. Models must have base's parameters in base's order. Host memory. Errors: invalid, naming model
/// and parameter.
OURO_API Status outer_step_from_models(std::span<const Param> base,
                                       std::span<const std::span<const Param>> models, Optimizer* = nullptr);

/// @}
/// @defgroup local_steps Training: local steps
/// @{

/// The data that sites exchange. exact: the parameters, as `aggregate` does. bf16: g, rounded. int8: g in
/// blocks of 256 elements with one scale each (largest magnitude / 127), gathered in one message (whatever
/// the strategy) and summed in site order; host memory only.
enum class DeltaFormat : std::uint8_t { exact, bf16, int8 };

/// Options of LocalSteps; must be equal on all ranks.
struct LocalStepsOptions {
  std::int64_t inner_steps = 500;          ///< inner steps per outer step
  DeltaFormat delta = DeltaFormat::exact;  ///< what sites exchange
  AggregateOptions aggregate = {};         ///< how the mean is taken
  OuterOptions outer = {};                 ///< options of the outer step
};

/// The loop of DiLoCo and FedAvg: each site trains on its own for inner_steps steps, then all take one outer
/// step. The first round compares, in addition to the comparison of `aggregate`, inner_steps, delta,
/// clip_norm and the optimiser (Optimizer::digest): if they differ, every rank returns `invalid` and no
/// parameter is touched.
class OURO_API LocalSteps {
 public:
  /// Does not communicate. Parameters that `aggregate.filter` leaves out are not exchanged. Errors: as
  /// plan_aggregation and OuterOptimizer::create; invalid (inner_steps < 1), unsupported (bf16 or int8 on a
  /// GPU; int8 on several streams).
  static Result<LocalSteps> create(const LayoutGroups&, std::span<const Param>,
                                   std::unique_ptr<Optimizer> outer, LocalStepsOptions = {});
  /// Call after each inner step. Every inner_steps-th call is collective over the layout, waits, and
  /// returns true.
  Result<bool> step(const Stream& = {});
  std::int64_t rounds() const;  ///< number of outer steps so far
  /// Saves what OuterOptimizer::save does, plus the number of inner steps in the current round. Each rank
  /// saves on its own; the next round compares the number of rounds that the ranks have completed.
  Result<Bytes> save();
  Status load(CBytes);               ///< into one made with equal arguments; errors as OuterOptimizer::load
  AggregateTraffic traffic() const;  ///< traffic of one round

  struct OURO_HIDDEN State;
  explicit LocalSteps(std::shared_ptr<State> s) : state_(std::move(s)) {}  ///< for the library

 private:
  std::shared_ptr<State> state_;
};
/// @}

}  // namespace ouro::train
