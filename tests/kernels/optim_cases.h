// Every optimiser call with the rule that it must apply, and the oracle: the scalar arithmetic, element by
// element. Used by the tests of the optimiser loops.
#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/host/host_loops.h"
#include "kernels/host/optim.h"
#include "tests/kernels/reference.h"

namespace ouro::kernels::optim {

using arith::Update;
using Bytes = std::vector<std::byte>;

/// How parameters are stored.
struct Layout {
  DType dtype;
  bool master;
};
inline constexpr Layout kLayouts[] = {{DType::f64, false}, {DType::f32, false}, {DType::bf16, false},
                                      {DType::bf16, true}, {DType::f16, false}, {DType::f16, true}};
inline std::string label(Layout l) { return std::string(name(l.dtype)) + (l.master ? " with master" : ""); }

/// One call of the public functions.
struct Call {
  const char* name;
  Update update;
  arith::Recipe recipe;
  bool lazy_zero = true;
};
inline std::vector<Call> all_calls() {
  const AdamOptions adam{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8};
  AdamOptions l2 = adam, adamw = adam;
  l2.weight_decay = adamw.weight_decay = 0.1;
  adamw.decoupled = true;
  const SgdOptions plain{.lr = 0.05}, decayed{.lr = 0.05, .weight_decay = 0.1},
      momentum{.lr = 0.05, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.1},
      nesterov{.lr = 0.05, .momentum = 0.9, .nesterov = true};
  return {
      {"sgd", Update::sgd, {.sgd = plain, .step = 3}},
      {"sgd decay", Update::sgd, {.sgd = decayed, .step = 1}},
      {"sgd start", Update::sgd_start, {.sgd = momentum, .step = 1}},
      {"sgd nesterov start", Update::sgd_start, {.sgd = nesterov, .step = 1}},
      {"sgd momentum", Update::sgd_momentum, {.sgd = momentum, .step = 2}},
      {"sgd nesterov", Update::sgd_momentum, {.sgd = nesterov, .step = 9}},
      {"adam", Update::adam, {.adam = adam, .step = 1}},
      {"adam l2", Update::adam, {.adam = l2, .step = 7}},
      {"adamw", Update::adam, {.adam = adamw, .step = 1000}},
      {"accum first", Update::accum_first, {.adam = adamw, .accum_iter = 4, .step = 5}},
      {"accum middle", Update::accum_middle, {.adam = adamw, .accum_iter = 4, .step = 6}},
      {"accum middle l2", Update::accum_middle, {.adam = l2, .accum_iter = 3, .step = 2}},
      {"accum last", Update::accum_last, {.adam = adamw, .accum_iter = 4, .step = 8}},
      {"accum only", Update::accum_only, {.adam = l2, .accum_iter = 1, .step = 8}},
      {"accum plain first", Update::accum_middle, {.adam = adamw, .accum_iter = 4, .step = 5}, false},
      {"accum plain last", Update::accum_last_zero, {.adam = adamw, .accum_iter = 4, .step = 8}, false},
  };
}

/// All arrays of one run, whether the call uses them or not; each starts `shift` bytes off.
struct Arrays {
  Layout layout;
  std::size_t count, shift;
  Bytes value, gradient, master, state[3], neighbours, message;

  Arrays(Layout l, std::size_t n, std::size_t off, std::uint64_t seed, bool odd_values = true)
      : layout(l), count(n), shift(off) {
    const DType wide = l.dtype == DType::f64 ? DType::f64 : DType::f32;
    value = filled(l.dtype, seed + 1, odd_values, -2, 2);
    gradient = filled(l.dtype, seed + 2, odd_values, -1, 1);
    master = filled(DType::f32, seed + 1, odd_values, -2, 2);
    state[0] = filled(wide, seed + 3, odd_values, -1, 1);
    state[1] = filled(wide, seed + 4, odd_values, 0, 1);
    state[2] = filled(wide, seed + 5, odd_values, -1, 1);
    neighbours = filled(l.dtype, seed + 6, odd_values, -2, 2);
    message = filled(l.dtype, seed + 7, odd_values, -2, 2);
  }
  bool operator==(const Arrays& o) const {
    for (int k = 0; k < 3; ++k)
      if (state[k] != o.state[k]) return false;
    return value == o.value && gradient == o.gradient && master == o.master && neighbours == o.neighbours &&
           message == o.message;
  }
  std::byte* at(Bytes& b) { return b.data() + shift; }
  Parameters parameters() {
    return {layout.dtype, at(value), at(gradient),
            layout.master ? reinterpret_cast<float*>(at(master)) : nullptr, count};
  }
  Exchange exchange() { return {at(neighbours), at(message), {.keep = 0.3, .take = 0.7, .send = 0.35}}; }

 private:
  /// Guard bytes, which must not change, surround the elements. One value in eight is unusual: infinite, not
  /// a number, subnormal, a zero of either sign, huge.
  Bytes filled(DType t, std::uint64_t seed, bool odd_values, double low, double high) const {
    constexpr std::size_t kBehind = 70;
    Bytes b(shift + count * size_of(t) + kBehind, std::byte{0xa5});
    std::mt19937_64 random(seed);
    const double odd[] = {INFINITY, -INFINITY, NAN, 0.0, -0.0, 1e-41, -6e-8, 3e38, -65504, 1e-300};
    for (std::size_t i = 0; i < count; ++i) {
      double x = low + (high - low) * static_cast<double>(random() % 100003) / 100003;
      if (odd_values && random() % 8 == 0) x = odd[random() % std::size(odd)];
      reference::store(t, b.data() + shift, i, reference::encode(t, x));
    }
    return b;
  }
};

inline Result<Report> perform(const Call& c, Arrays& a, const Fused& fused = {}) {
  const auto state = [&](int k) { return a.at(a.state[k]); };
  if (c.update <= Update::sgd_momentum)
    return sgd(a.parameters(), state(0), c.recipe.sgd, c.recipe.step, fused);
  if (c.update == Update::adam)
    return adam(a.parameters(), state(0), state(1), c.recipe.adam, c.recipe.step, fused);
  return accum_adam(a.parameters(), state(0), state(1), state(2),
                    {c.recipe.adam, c.recipe.accum_iter, c.lazy_zero}, c.recipe.step, fused);
}

/// Applies the scalar rules to `a` as `perform` must; returns whether all gradients were finite.
template <class C, template <class> class RuleOf>
bool oracle(const arith::Recipe& recipe, Arrays& a, const Fused& fused) {
  using Rule = RuleOf<C>;
  const DType t = a.layout.dtype, wide = sizeof(C) == 8 ? DType::f64 : DType::f32;
  const Rule rule(recipe);
  const arith::Scale<C> scale(fused.scale);
  const bool masters = a.layout.master;
  const auto load = [](DType type, const std::byte* from, std::size_t i) {
    return static_cast<C>(reference::decode(type, reference::load(type, from, i)));
  };
  const auto save = [](DType type, std::byte* to, std::size_t i, C x) {
    reference::store(type, to, i, reference::encode(type, x));
  };
  bool all_finite = true;
  for (std::size_t i = 0; i < a.count; ++i) {
    const C g = scale(load(t, a.at(a.gradient), i));
    const bool finite = std::isfinite(g);
    all_finite &= finite;
    const auto round = [&](C x) {  // the effect of a store and a load
      std::byte b[8];
      save(masters ? wide : t, b, 0, x);
      return load(masters ? wide : t, b, 0);
    };
    C p = masters ? load(wide, a.at(a.master), i) : load(t, a.at(a.value), i);
    if (fused.exchange != nullptr)
      p = round(arith::Mix<C>(fused.exchange->weights).mixed(p, load(t, a.at(a.neighbours), i)));
    C s[3];
    for (int k = 0; k < 3; ++k) s[k] = Rule::reads(k) ? load(wide, a.at(a.state[k]), i) : C{NAN};
    rule(g, finite ? -1 : 0, p, s);
    p = round(p);
    if (masters) save(wide, a.at(a.master), i, p);
    save(t, a.at(a.value), i, p);
    for (int k = 0; k < 3; ++k)
      if (Rule::writes(k)) save(wide, a.at(a.state[k]), i, s[k]);
    if (fused.exchange != nullptr)
      save(t, a.at(a.message), i, arith::Mix<C>(fused.exchange->weights).message(p));
  }
  return all_finite;
}
inline bool oracle(const Call& c, Arrays& a, const Fused& fused = {}) {
  switch (c.update) {
#define OURO_X(e, Rule)                                                                   \
  case Update::e:                                                                         \
    return a.layout.dtype == DType::f64 ? oracle<double, arith::Rule>(c.recipe, a, fused) \
                                        : oracle<float, arith::Rule>(c.recipe, a, fused);
    OURO_UPDATES(OURO_X)
#undef OURO_X
  }
  return false;
}

}  // namespace ouro::kernels::optim
