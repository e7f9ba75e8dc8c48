/// Optimiser steps on views of host or device memory, and optimisers that own their state. For users and for
/// the trainers. Host and device give the same bits; kernels/arith/optim.h has the formulas.
/// @file
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ouro/ouro.hpp"
#include "ouro/train/param.hpp"
#include "ouro/train/topology.hpp"

namespace ouro::train {

/// @defgroup steps Training: one optimiser step
/// Parameters are f64, f32, bf16 or f16. Gradients, neighbours and messages have the same type; state is f64
/// for f64 and f32 otherwise; arithmetic uses the type of the state. All views of a call have one device and
/// one count, except `step`: one i64 that counts the steps taken so far; each call increments it.
///
/// Host memory: without a stream, the update runs in the calling thread; with one, it is enqueued. GPU
/// memory: with a stream of that GPU, the update is enqueued there and can be captured into a graph after a
/// first step outside one (the graph then keeps its learning rate); without a stream, or with a host stream,
/// the update runs on one of the library's own streams, the call waits for it, and the buffers must be ready.
/// Enqueued work refers to the viewed memory, not to the structs. Steps of one state must follow each other:
/// do not enqueue them on two streams at once.
///
/// A gradient element that is not finite leaves its parameter and state unchanged. The step is counted
/// all the same: what a rule does only in its first step (SGD: v <- g, undamped) is not made up for
/// later. Errors: invalid (types, counts, devices, null arrays, options), reported before anything is
/// written or enqueued.
/// @{

/// Each gradient becomes (g * inverse) * clip before anything else.
struct GradientScale {
  double inverse = 1;  ///< 1 / loss scale
  double clip = 1;     ///< min(1, limit / norm)
};

/// v <- momentum v + (1 - dampening) g, at first v <- g; p <- p - lr v (Nesterov: p - lr (g + momentum v)).
/// The decay is added to g. Nesterov's form needs a momentum and no dampening.
struct SgdOptions {
  double lr = 1e-3;          ///< learning rate
  double momentum = 0;       ///< 0: none
  double dampening = 0;      ///< damping of the gradient in the momentum
  double weight_decay = 0;   ///< in units of the parameter
  bool nesterov = false;     ///< the look-ahead form
  GradientScale scale = {};  ///< applied to the gradient first
};
/// `momentum` and `step` start at zero; `momentum` may be empty if SgdOptions::momentum is 0.
struct SgdState {
  View step;      ///< one i64: steps taken
  View momentum;  ///< v, of the type of the state
  /// f32 copy of a 16-bit parameter: the step updates the copy and rounds it into the parameter.
  std::optional<View> master;
};

/// Kingma & Ba, ICLR 2015. decoupled: AdamW (Loshchilov & Hutter, ICLR 2019); otherwise the decay is
/// added to g.
struct AdamOptions {
  double lr = 1e-3;          ///< learning rate
  double beta1 = .9;         ///< decay of the first moment
  double beta2 = .999;       ///< decay of the second moment
  double eps = 1e-8;         ///< added to the root of the second moment
  double weight_decay = 0;   ///< in units of the parameter
  bool decoupled = false;    ///< AdamW
  GradientScale scale = {};  ///< applied to the gradient first
};
/// State of one parameter under Adam; all members but `master` start at zero.
struct AdamState {
  View step;                   ///< one i64: steps taken
  View exp_avg;                ///< first moment
  View exp_avg_sq;             ///< second moment
  std::optional<View> master;  ///< f32 copy of a 16-bit parameter, as in SgdState
};

/// Adam whose moments are renewed once every accum_iter = K steps by the mean gradient of the window and are
/// stored decayed (beta1 m, beta2 v); all other steps use the old moments and their own gradient. K = 1 is
/// Adam or AdamW, bit for bit in f64.
struct AccumAdamOptions {
  double lr = 1e-3;         ///< learning rate
  double beta1 = .9;        ///< decay of the first moment
  double beta2 = .999;      ///< decay of the second moment
  double eps = 1e-8;        ///< added to the root of the second moment
  double weight_decay = 0;  ///< in units of the parameter
  int accum_iter = 4;       ///< K, 1 or more
  bool decoupled = false;   ///< decay as in AdamW
  /// The last step of a window does not clear the accumulator, which then counts as zero: 28 bytes of traffic
  /// per parameter instead of 30 in f32 at K = 4. All other bits are the same. Must not change during the
  /// life of a state.
  bool lazy_zero = false;
  GradientScale scale = {};  ///< applied to the gradient first
};
/// State of one parameter under accumulating Adam; all members but `master` start at zero.
struct AccumAdamState {
  View step;                   ///< one i64: steps taken
  View exp_avg;                ///< first moment
  View exp_avg_sq;             ///< second moment
  View accum_grad;             ///< sum of the window's gradients
  std::optional<View> master;  ///< f32 copy of a 16-bit parameter, as in SgdState
};

/// One step of SGD.
OURO_API Status sgd(View p, CView g, SgdState&, const SgdOptions&, const Stream& = {});
/// This form has no step count: v starts at zero instead of undamped, so dampening is `invalid` here.
OURO_API Status sgd(View p, CView g, View momentum, const SgdOptions&, const Stream& = {});
/// One step of Adam, or of AdamW with options.decoupled.
OURO_API Status adam(View p, CView g, AdamState&, const AdamOptions&, const Stream& = {});
/// adam with options.decoupled set.
OURO_API Status adamw(View p, CView g, AdamState&, const AdamOptions&, const Stream& = {});
/// One step of Adam with accumulated moments.
OURO_API Status accum_adam(View p, CView g, AccumAdamState&, const AccumAdamOptions&, const Stream& = {});

/// @{
/// Adaptive mix, update and packing of the next message in one pass over memory; bit for bit the same as the
/// two halves of mix_and_pack() with the update between them:
///
///     p <- (1 - a + a row.self) p + a neighbours;   update;   next_message <- p
///
/// `neighbours` = sum of in.weight * x_in, `adaptive` = a in [0, 1]. next_message may be the array
/// `neighbours`. If there is a master copy, it takes the place of the parameter.
OURO_API Status mix_sgd(View p, CView g, const Row&, CView neighbours, double adaptive, View next_message,
                        SgdState&, const SgdOptions&, const Stream& = {});
OURO_API Status mix_adam(View p, CView g, const Row&, CView neighbours, double adaptive, View next_message,
                         AdamState&, const AdamOptions&, const Stream& = {});
OURO_API Status mix_adamw(View p, CView g, const Row&, CView neighbours, double adaptive, View next_message,
                          AdamState&, const AdamOptions&, const Stream& = {});
OURO_API Status mix_accum_adam(View p, CView g, const Row&, CView neighbours, double adaptive,
                               View next_message, AccumAdamState&, const AccumAdamOptions&,
                               const Stream& = {});
/// @}
/// The mix and the message alone, for a step whose update is skipped.
OURO_API Status mix_and_pack(View p, std::optional<View> master, const Row&, CView neighbours,
                             double adaptive, View next_message, const Stream& = {});

/// The properties of gradients that loss scaling and clipping need before the update.
struct GradientSurvey {
  bool finite = true;  ///< whether all elements are finite
  double norm = 0;     ///< L2 norm of g * inverse; infinite or NaN if not finite
  /// min(1, limit / (norm + 1e-6)); 1 if limit <= 0. For GradientScale::clip.
  OURO_API double clip_factor(double limit) const;
};
/// Surveys a list of gradients of one type and device as one vector. Streams as above; waits for the result.
OURO_API Result<GradientSurvey> survey_gradients(std::span<const CView>, double inverse = 1,
                                                 const Stream& = {});

/// @}
/// @defgroup optimisers Training: optimisers
/// @{

/// The mixing of a decentralised step, for all parameters of the call.
struct Exchange {
  const Row* row = nullptr;             ///< this rank's row of the mixing matrix
  double adaptive = 1;                  ///< a, in [0, 1]
  std::span<const CView> neighbours;    ///< sum of in.weight * x_in, one view per parameter
  std::span<const View> next_messages;  ///< receive the values to send next, one view per parameter
};
/// Options of Optimizer::step().
struct StepOptions {
  std::optional<double> lr = {};       ///< learning rate of this step and later ones; default: unchanged
  GradientScale scale = {};            ///< applied to the gradients first
  const Exchange* exchange = nullptr;  ///< the mixing of a decentralised step; null: none
};

/// An update rule with its state. Parameters are identified by their names, which are unique; the state of
/// each, including its step count, begins when it first has a gradient. Not thread-safe.
class OURO_API Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// Takes one step of each parameter that has a gradient; parameters may be one flat run or the tensors of a
  /// model. Parameters without a gradient are mixed if there is an exchange, and otherwise not touched.
  /// Streams and errors are as for the functions above; after a device error the state is undefined.
  ///
  /// On a GPU, one launch steps all parameters of the call that have the same dtype, decay and number of
  /// steps taken; the bits are those of steps one by one. Arrays may move between calls. A graph that has
  /// captured a step counts, at each replay, a step for all parameters of its launches, so these parameters
  /// step together from then on: a call outside the graph, or captured in another one, that has gradients for
  /// only some of them is `invalid` and changes nothing. Gradients may be at other addresses in such a call;
  /// the graph keeps the addresses it was captured with. The graph must not be replayed after load(), after a
  /// step with these parameters on another device, or after the optimiser is destroyed.
  ///
  /// Steps of different parameters may be on several streams at once. Steps of one parameter follow each
  /// other: a call follows the earlier steps of all its parameters, whichever streams these were on.
  virtual Status step(std::span<const Param>, const StepOptions& = {}, const Stream& = {}) = 0;
  virtual double lr() const = 0;  ///< learning rate of the next step
  /// The next steps use the options of `other`, including its learning rate; the state is kept. Captured
  /// graphs keep their options. Errors, with nothing changed: unsupported (not an optimiser of this library),
  /// invalid (another rule, or different options that determine the stored state: momentum or none,
  /// accum_iter, master).
  virtual Status adopt_options(const Optimizer& other) {
    (void)other;
    return unsupported("this optimiser's options cannot be changed");
  }
  /// Digest of the rule and the options it was made with, which ranks compare if they must have the same
  /// optimiser. 0: unknown.
  virtual std::uint64_t digest() const { return 0; }
  /// Saves everything a step depends on besides parameters and gradients, including the learning rate, in a
  /// form that does not depend on device, order of parameters or lazy_zero. Waits for enqueued work,
  /// including graph replays on the stream that captured them; the caller must wait for replays on
  /// other streams.
  virtual Result<Bytes> save() = 0;
  /// Replaces the state by one that `save` of the same kind of optimiser returned; the next steps then have
  /// the same bits. Errors, with nothing changed: invalid (other kind, damaged).
  virtual Status load(CBytes) = 0;
};

/// Which parameters decay. standard: all except those whose name contains `bn` or `bias`. upstream_inverted:
/// only those, as in Decent-DP.
enum class DecayRule { standard, upstream_inverted };
/// Whether a parameter of this name decays.
OURO_API bool decays(std::string_view name, DecayRule);
/// A partition of the parameters, as indices into `names`.
struct DecayGroups {
  std::vector<std::size_t> decay;     ///< parameters that decay
  std::vector<std::size_t> no_decay;  ///< the others
};
/// Partitions the names by whether they decay, each part in the order of `names`.
OURO_API DecayGroups decay_groups(std::span<const std::string> names, DecayRule = DecayRule::standard);

/// Options of an optimiser besides those of its rule.
struct OptimizerOptions {
  std::optional<DecayRule> decay_rule = {};  ///< none: all parameters decay
  /// 16-bit parameters get an f32 copy, made from them at the first step. From then on the copy is
  /// authoritative: a value that other code writes to the parameter is lost at the next step.
  bool master = false;
};
/// @{
/// Makes an optimiser of this rule. Errors: invalid (options).
OURO_API Result<std::unique_ptr<Optimizer>> make_optimizer(const SgdOptions&, const OptimizerOptions& = {});
OURO_API Result<std::unique_ptr<Optimizer>> make_optimizer(const AdamOptions&, const OptimizerOptions& = {});
/// @}
/// lazy_zero is always on, whatever the options say: the state belongs to the optimiser.
OURO_API Result<std::unique_ptr<Optimizer>> make_optimizer(const AccumAdamOptions&,
                                                           const OptimizerOptions& = {});

/// Makes the optimiser of one bucket, which may be empty.
using OptimizerFactory = std::function<Result<std::unique_ptr<Optimizer>>(std::span<const Param>)>;

/// Options with the defaults of Decent-DP's factories of these names; weight_decay defaults to 1/32768, or to
/// 0.1 for the decoupled forms.
struct FactoryOptions {
  double lr = 1e-3;                            ///< learning rate
  double beta1 = .9;                           ///< decay of the first moment
  double beta2 = .999;                         ///< decay of the second moment
  double eps = 1e-8;                           ///< added to the root of the second moment
  std::optional<double> weight_decay = {};     ///< none: the default of the form
  int accum_iter = 4;                          ///< K of the accumulating forms
  DecayRule decay_rule = DecayRule::standard;  ///< which parameters decay
  bool master = false;                         ///< as OptimizerOptions::master
};
/// @{
/// Decent-DP's factory of this name.
OURO_API OptimizerFactory optim_fn_adam(const FactoryOptions& = {});
OURO_API OptimizerFactory optim_fn_adamw(const FactoryOptions& = {});
OURO_API OptimizerFactory optim_fn_accum_adam(const FactoryOptions& = {});
OURO_API OptimizerFactory optim_fn_accum_adamw(const FactoryOptions& = {});
/// @}
/// All parameters decay unless a rule is given.
OURO_API OptimizerFactory optim_fn_sgd(const SgdOptions&, const OptimizerOptions& = {});
/// @}

}  // namespace ouro::train
