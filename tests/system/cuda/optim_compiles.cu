// The optimiser rules are one source for host and device: this unit fails to compile if one of them cannot
// run on a device. It is never run.
#include "kernels/arith/optim.h"

namespace ouro {
namespace {

using namespace arith;

/// One step over `count` parameters: what a fused kernel does for each element.
template <class C, template <class> class RuleOf>
__global__ void update(Recipe recipe, const std::int64_t* step, GradientScale scaling, MixWeights weights,
                       C* param, const C* grad, C* const* state, C* message, std::size_t count,
                       int* strange) {
  using Rule = RuleOf<C>;
  recipe.step = *step;  // in device memory, so that replays of a captured launch advance it
  const Rule rule(recipe);
  const Scale<C> scale(scaling);
  const Mix<C> mix(weights);
  for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const C g = scale(grad[i]);
    const Mask<C> finite = finite_mask(g);
    if (finite == 0) *strange = 1;
    C p = mix.mixed(param[i], message[i]);
    C s[3] = {};
    for (int k = 0; k < 3; ++k)
      if (Rule::reads(k)) s[k] = state[k][i];
    rule(g, finite, p, s);
    param[i] = p;
    message[i] = mix.message(p);
    for (int k = 0; k < 3; ++k)
      if (Rule::writes(k)) state[k][i] = s[k];
  }
}

template <class C>
void instantiate_for() {
#define OURO_X(e, Rule) \
  update<C, Rule><<<1, 32>>>({}, nullptr, {}, {}, nullptr, nullptr, nullptr, nullptr, 0, nullptr);
  OURO_UPDATES(OURO_X)
#undef OURO_X
}

}  // namespace

void instantiate_optimisers() {
  instantiate_for<float>();
  instantiate_for<double>();
}

}  // namespace ouro
