// Checks each optimiser call, turns it into a job, and runs it on the same instruction set as the host loops.
// Used by the trainers; the loops themselves are in host_optim_impl.h.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "kernels/host/host_loops.h"
#include "kernels/host/host_optim_job.h"
#include "kernels/host/optim.h"
#include "runtime/core/float_mode.h"

namespace ouro::kernels {
namespace {

struct OptimSet {
  std::string_view name;
  const OptimLoops* (*loops)(DType);
};
constexpr OptimSet kOptimSets[] = {
#if defined(__x86_64__)
    {"avx512", avx512_optim},
    {"avx2", avx2_optim},
#endif
    {"baseline", baseline_optim},
};

const OptimLoops* loops_of(DType t) {
  const std::string_view chosen = instruction_set();  // the name, perhaps followed by a remark
  for (const OptimSet& set : kOptimSets)
    if (chosen.starts_with(set.name)) return set.loops(t);
  return baseline_optim(t);
}

Status no_optimiser(DType t) {
  return invalid(std::string("optimisers take double, float, bfloat16 and half, not ") + name(t));
}

Status check_arrays(const Parameters& p, const Exchange* e) {
  if (loops_of(p.dtype) == nullptr) return no_optimiser(p.dtype);
  if (p.master != nullptr && size_of(p.dtype) != 2)
    return invalid(std::string("a master copy belongs to 16-bit parameters, not to ") + name(p.dtype));
  if (p.count == 0) return {};
  if (p.value == nullptr) return invalid("the parameters are a null pointer");
  if (e != nullptr && (e->neighbours == nullptr || e->message == nullptr))
    return invalid("an exchange needs both neighbours and message; `mix` and `pack` do one of them alone");
  return {};
}

Status check_adam(const AdamOptions& o) {
  // The conditions are written so that NaN fails too.
  if (!std::isfinite(o.lr)) return invalid("the learning rate must be a finite number");
  if (!(o.beta1 >= 0 && o.beta1 < 1) || !(o.beta2 >= 0 && o.beta2 < 1))
    return invalid("beta1 and beta2 must be at least 0 and less than 1");
  if (!(o.eps >= 0)) return invalid("eps must not be negative");
  return {};
}

OptimJob job_of(const Parameters& p, const Fused& fused) {
  OptimJob job;
  job.param = p.value;
  job.master = p.master;
  job.grad = p.gradient;
  job.count = p.count;
  job.scale = fused.scale;
  if (fused.exchange != nullptr) {
    job.neighbours = fused.exchange->neighbours;
    job.message = fused.exchange->message;
    job.mix = fused.exchange->weights;
  }
  return job;
}

/// Runs `update` with `states` state arrays, the number that the job's rule uses.
Result<Report> run(arith::Update update, const Parameters& p, OptimJob& job, int states, const Fused& fused) {
  OURO_TRY(check_arrays(p, fused.exchange));
  if (job.recipe.step < 1) return invalid("steps are counted from 1");
  if (p.count == 0) return Report{};
  if (p.gradient == nullptr) return invalid("the gradient is a null pointer");
  for (int k = 0; k < states; ++k)
    if (job.state[k] == nullptr) return invalid("a state of the optimiser is a null pointer");
  const StandardFloats floats;
  return Report{loops_of(p.dtype)->update(update, job)};
}

/// Adds the chains up. It is not inlined, so that none of it is moved out of the caller's
/// floating-point mode.
[[gnu::noinline]] double total(SquareSums& sums) {
  const std::size_t chains = std::min<std::uint64_t>(sums.blocks, arith::kSurveyChains);
  for (std::size_t half = arith::kSurveyChains / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half && k + half < chains; ++k) sums.chain[k] += sums.chain[k + half];
  return chains > 0 ? arith::settle(sums.chain[0]) : 0;
}

}  // namespace

Result<Report> sgd(const Parameters& p, void* momentum, const SgdOptions& o, std::int64_t step,
                   const Fused& fused) {
  if (!std::isfinite(o.lr)) return invalid("the learning rate must be a finite number");
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0))
    return invalid("Nesterov's form needs a momentum and no dampening");
  OptimJob job = job_of(p, fused);
  job.state[0] = momentum;
  job.recipe.sgd = o;
  job.recipe.step = step;
  if (o.momentum == 0) return run(arith::Update::sgd, p, job, 0, fused);
  return run(step == 1 ? arith::Update::sgd_start : arith::Update::sgd_momentum, p, job, 1, fused);
}

Result<Report> adam(const Parameters& p, void* exp_avg, void* exp_avg_sq, const AdamOptions& o,
                    std::int64_t step, const Fused& fused) {
  OURO_TRY(check_adam(o));
  OptimJob job = job_of(p, fused);
  job.state[0] = exp_avg;
  job.state[1] = exp_avg_sq;
  job.recipe.adam = o;
  job.recipe.step = step;
  return run(arith::Update::adam, p, job, 2, fused);
}

Result<Report> accum_adam(const Parameters& p, void* exp_avg, void* exp_avg_sq, void* accum_grad,
                          const AccumAdamOptions& o, std::int64_t step, const Fused& fused) {
  OURO_TRY(check_adam(o.adam));
  if (o.accum_iter < 1) return invalid("accum_iter must be at least 1");
  OptimJob job = job_of(p, fused);
  job.state[0] = exp_avg;
  job.state[1] = exp_avg_sq;
  job.state[2] = accum_grad;
  job.recipe.adam = o.adam;
  job.recipe.accum_iter = o.accum_iter;
  job.recipe.step = step;
  return run(arith::accum_update(step, o.accum_iter, o.lazy_zero), p, job, 3, fused);
}

Status mix(const Parameters& p, const Exchange& exchange) {
  OURO_TRY(check_arrays(p, nullptr));
  if (p.count == 0) return {};
  if (exchange.neighbours == nullptr) return invalid("the neighbours are a null pointer");
  const StandardFloats floats;
  loops_of(p.dtype)->mix(job_of(p, {.exchange = &exchange}));
  return {};
}

Status pack(const Parameters& p, const Exchange& exchange) {
  OURO_TRY(check_arrays(p, nullptr));
  if (p.count == 0) return {};
  if (exchange.message == nullptr) return invalid("the message is a null pointer");
  const StandardFloats floats;
  loops_of(p.dtype)->pack(job_of(p, {.exchange = &exchange}));
  return {};
}

Result<Survey> survey(DType dtype, std::span<const Gradient> gradients, const GradientScale& scale) {
  const OptimLoops* loops = loops_of(dtype);
  if (loops == nullptr) return no_optimiser(dtype);
  for (const Gradient& g : gradients)
    if (g.count > 0 && g.data == nullptr) return invalid("the gradient is a null pointer");
  Survey found;
  SquareSums sums;
  const StandardFloats floats;
  for (const Gradient& g : gradients) {
    OptimJob job;
    job.grad = g.data;
    job.count = g.count;
    job.scale = scale;
    found.finite &= loops->survey(job, &sums);
  }
  found.squares = total(sums);
  return found;
}
Result<Survey> survey(DType dtype, const void* gradient, std::size_t count, const GradientScale& scale) {
  const Gradient one{gradient, count};
  return survey(dtype, {&one, 1}, scale);
}

}  // namespace ouro::kernels
