// The optimiser updates, defined once, for one element: SGD, Adam, AdamW, their accumulating forms, and
// gossip mixing. Used by the host loops and the device kernels, which load and store the states that each
// rule declares.
#pragma once
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/arith/floats.h"
#include "runtime/core/hd.h"

namespace ouro::arith {

/// PyTorch's form of momentum: the first step initialises the buffer with g, undamped; weight decay is
/// added to g.
struct SgdOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};
/// decoupled: AdamW, where the decay shrinks the parameter; otherwise it is added to g.
struct AdamOptions {
  double lr = 1e-3, beta1 = .9, beta2 = .999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;
};
/// The arguments from which a rule is constructed: the options of its family and the number of this
/// step, from 1 on.
struct Recipe {
  SgdOptions sgd;
  AdamOptions adam;
  int accum_iter = 1;  // K, steps in a window of the accumulating forms
  std::int64_t step = 1;
};
/// Each gradient becomes (g * inverse) * clip before anything else; inverse = 1 / loss scale.
struct GradientScale {
  double inverse = 1, clip = 1;
};
/// x <- keep*x + take*neighbours before the update, message <- send*x after it. With a row of a mixing matrix
/// and adaptive factor a: keep = 1-a + a*self, take = a, if neighbours is the sum of weighted messages.
struct MixWeights {
  double keep = 1, take = 1, send = 1;
};

// Products and sums are rounded one by one: a window of one step then gives Adam's bits, and processors
// without a fused multiply-add give the same bits as those with it. Loops limited by memory gain nothing
// from fusing.
inline namespace OURO_ISA {

OURO_HD float root(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}
OURO_HD double root(double x) {
#if defined(__CUDA_ARCH__)
  return __dsqrt_rn(x);
#else
  return __builtin_sqrt(x);
#endif
}
OURO_HD double fused_multiply_add(double a, double b, double c) {
#if defined(__CUDA_ARCH__)
  return __fma_rn(a, b, c);
#else
  return __builtin_fma(a, b, c);
#endif
}

/// All bits set, or none: a condition that a compiler can turn neither into a branch nor into loads that wait
/// for it, as GCC 12 does with the operator ?: (at a third of the speed).
template <class C>
using Mask = std::make_signed_t<typename Format<C>::Bits>;

/// All bits set if x is neither infinite nor NaN: compared as integers, the bits of |x| are then below those
/// of infinity.
template <class C>
OURO_HD constexpr Mask<C> finite_mask(C x) {
  constexpr Mask<C> infinity = Format<C>::kLast, magnitude = std::numeric_limits<Mask<C>>::max();
  return ((static_cast<Mask<C>>(to_bits(x)) & magnitude) - infinity) >> (8 * sizeof(C) - 1);
}
template <class C>
OURO_HD constexpr C select(Mask<C> which, C yes, C no) {
  using Bits = typename Format<C>::Bits;
  const Bits mask = static_cast<Bits>(which);
  return from_bits<C>((to_bits(yes) & mask) | (to_bits(no) & ~mask));
}

/// b^t for 0 <= b <= 1, t >= 0, by squaring pairs of doubles: correctly rounded in nearly all cases, and the
/// same on every processor, which no library's pow guarantees.
OURO_HD double power(double b, std::int64_t t) {
  struct Pair {
    double high, low;
  };
  const auto times = [](Pair x, Pair y) {
    const double product = x.high * y.high;
    const double rest = fused_multiply_add(x.high, y.high, -product) + (x.high * y.low + x.low * y.high);
    const double high = product + rest;
    return Pair{high, rest - (high - product)};
  };
  Pair result{1, 0};
  for (Pair square{b, 0}; t > 0; t >>= 1, square = times(square, square))
    if (t & 1) result = times(result, square);
  return result.high;
}

/// The factor that brings a gradient of this norm down to `limit`: min(1, limit / (norm + 1e-6)).
/// 1 where limit <= 0; NaN where the norm is NaN, so that every gradient is then reported.
OURO_HD double clip_factor(double norm, double limit) {
  if (limit <= 0) return 1;
  const double factor = limit / (norm + 1e-6);
  return factor > 1 ? 1 : factor;
}

/// GradientScale and MixWeights, rounded to the type of the computation.
template <class C>
struct Scale {
  C inverse, clip;
  OURO_HD explicit Scale(const GradientScale& s)
      : inverse(static_cast<C>(s.inverse)), clip(static_cast<C>(s.clip)) {}
  OURO_HD C operator()(C g) const { return g * inverse * clip; }
};
template <class C>
struct Mix {
  C keep, take, send;
  OURO_HD explicit Mix(const MixWeights& w)
      : keep(static_cast<C>(w.keep)), take(static_cast<C>(w.take)), send(static_cast<C>(w.send)) {}
  OURO_HD C mixed(C x, C neighbours) const { return settle(keep * x + take * neighbours); }
  OURO_HD C message(C x) const { return settle(send * x); }
};
/// Adds one more rank's term of a row of a mixing matrix; the first term starts the sum. The caller applies
/// `settle` after the last.
template <class C>
OURO_HD C add_term(C sum, C weight, C x, bool first) {
  return first ? weight * x : sum + weight * x;
}

/// g + decay*p, and exactly g without decay: adding -0 changes no number. (In a vectorised loop, a
/// condition on a number of the rule becomes a selection; a condition on a bool member would keep GCC 12
/// from vectorising.)
template <class C>
OURO_HD C with_decay(C g, C p, C decay) {
  return g + (decay != 0 ? decay * p : -C{0});
}

// A rule updates a parameter p and its state s with a gradient g. reads(k) and writes(k) say which states a
// loop must load and store; the others are not accessed. `finite` is finite_mask(g): if g is not finite, p
// and s do not change, as if there had been no gradient.

/// v <- mu v + (1-dampening) g; p <- p - lr v, Nesterov: p - lr (g + mu v). Sutskever et al., ICML 2013.
template <class C, bool kMomentum, bool kStart>
struct Sgd {
  C lr, momentum, undamped, decay;
  C ahead;  // Nesterov: the momentum, else 0

  static constexpr bool reads(int k) { return k == 0 && kMomentum && !kStart; }
  static constexpr bool writes(int k) { return k == 0 && kMomentum; }
  OURO_HD explicit Sgd(const Recipe& r)
      : lr(static_cast<C>(r.sgd.lr)),
        momentum(static_cast<C>(r.sgd.momentum)),
        undamped(static_cast<C>(1 - r.sgd.dampening)),
        decay(static_cast<C>(r.sgd.weight_decay)),
        ahead(static_cast<C>(r.sgd.nesterov ? r.sgd.momentum : 0)) {}

  OURO_HD void operator()(C g, Mask<C> finite, C& p, C* s) const {
    C d = with_decay(g, p, decay);
    if constexpr (kMomentum) {
      const C v = kStart ? d : momentum * s[0] + undamped * d;
      // At the start there is no old value to keep: without a finite gradient the buffer becomes zero.
      s[0] = select(finite, v, kStart ? C{0} : s[0]);
      d = ahead != 0 ? d + ahead * v : v;
    }
    p = select(finite, p - lr * d, p);
  }
};

/// The coefficients that Adam and its accumulating form share, computed in fp64, and the computations that
/// they share.
template <class C>
struct AdamTerms {
  C l2, shrink, beta1, beta2, rest1, rest2, size, root2, eps;

  /// `updates`: how often m and v have been renewed, including this time (t of the bias correction).
  OURO_HD AdamTerms(const AdamOptions& o, std::int64_t updates)
      : l2(static_cast<C>(o.decoupled ? 0 : o.weight_decay)),
        shrink(static_cast<C>(o.decoupled ? 1 - o.lr * o.weight_decay : 1)),
        beta1(static_cast<C>(o.beta1)),
        beta2(static_cast<C>(o.beta2)),
        rest1(static_cast<C>(1 - o.beta1)),
        rest2(static_cast<C>(1 - o.beta2)),
        size(static_cast<C>(o.lr / (1 - power(o.beta1, updates)))),
        root2(static_cast<C>(root(1 - power(o.beta2, updates)))),
        eps(static_cast<C>(o.eps)) {}

  OURO_HD C decayed_gradient(C g, C p) const { return with_decay(g, p, l2); }
  OURO_HD C moved(C p, C m, C v) const { return p * shrink - size * (m / (root(v) / root2 + eps)); }
};

/// Kingma & Ba, ICLR 2015, algorithm 1, with the bias correction of v under its root; decoupled decay:
/// Loshchilov & Hutter, ICLR 2019, algorithm 2. s = m, v.
template <class C>
struct Adam {
  AdamTerms<C> terms;

  static constexpr bool reads(int k) { return k < 2; }
  static constexpr bool writes(int k) { return k < 2; }
  OURO_HD explicit Adam(const Recipe& r) : terms(r.adam, r.step) {}

  OURO_HD void operator()(C g, Mask<C> finite, C& p, C* s) const {
    const AdamTerms<C>& t = terms;
    g = t.decayed_gradient(g, p);
    const C m = t.beta1 * s[0] + t.rest1 * g;
    const C v = t.beta2 * s[1] + t.rest2 * (g * g);
    p = select(finite, t.moved(p, m, v), p);
    s[0] = select(finite, m, s[0]);
    s[1] = select(finite, v, s[1]);
  }
};

/// Adam whose moments are renewed once in K steps, by the mean gradient of the window, and are stored
/// decayed: s = beta1 m, beta2 v, accumulator. The other steps use their own gradient and the old moments.
/// kFirst: the accumulator counts as zero and is not read. kLast: the step ends the window. kZero: the last
/// step also clears the accumulator, for a next step that reads it. The window ends on time even if the
/// gradient is not finite.
template <class C, bool kFirst, bool kLast, bool kZero>
struct AccumAdam {
  AdamTerms<C> terms;
  C share;  // 1/K

  static constexpr bool reads(int k) { return k < 2 || !kFirst; }
  static constexpr bool writes(int k) { return k < 2 ? kLast : !kLast || kZero; }
  OURO_HD explicit AccumAdam(const Recipe& r)
      : terms(r.adam, (r.step - 1) / r.accum_iter + 1), share(static_cast<C>(1.0 / r.accum_iter)) {}

  OURO_HD void operator()(C g, Mask<C> finite, C& p, C* s) const {
    const AdamTerms<C>& t = terms;
    g = t.decayed_gradient(g, p);
    const C m = s[0] + t.rest1 * g;
    const C v = s[1] + t.rest2 * (g * g);
    p = select(finite, t.moved(p, m, v), p);
    const C before = kFirst ? C{0} : s[2];
    const C a = select(finite, before + g * share, before);
    s[2] = a;
    if constexpr (kLast) close(s);
  }
  /// Ends a window: the additional work of the last step.
  OURO_HD void close(C* s) const {
    const C a = s[2];
    s[0] = (s[0] + terms.rest1 * a) * terms.beta1;
    s[1] = (s[1] + terms.rest2 * (a * a)) * terms.beta2;
    s[2] = 0;
  }
};

template <class C>
using SgdPlain = Sgd<C, false, false>;
template <class C>
using SgdStart = Sgd<C, true, true>;
template <class C>
using SgdMomentum = Sgd<C, true, false>;
template <class C>
using AccumFirst = AccumAdam<C, true, false, false>;
template <class C>
using AccumMiddle = AccumAdam<C, false, false, false>;
template <class C>
using AccumLast = AccumAdam<C, false, true, false>;
template <class C>
using AccumOnly = AccumAdam<C, true, true, false>;  // K = 1
template <class C>
using AccumLastZero = AccumAdam<C, false, true, true>;

}  // namespace OURO_ISA

// The order in which squares are summed, in fp64, on every processor; it depends on counts alone. Gradients
// are cut into blocks (each tensor of a list starts one). Element i of a block belongs to lane i mod
// kSurveyLanes, a lane adds its squares in order, and lanes are added pairwise: 0+32, 1+33, ..., then the
// halves of these. The sum of block b is added to chain b mod kSurveyChains, in order, and chains are added
// pairwise too.
inline constexpr std::uint32_t kSurveyBlock = 4096, kSurveyLanes = 64, kSurveyChains = 2048;

/// X(enumerator, rule): the one list of rules. Loops on host and device are generated from it.
#define OURO_UPDATES(X)        \
  X(sgd, SgdPlain)             \
  X(sgd_start, SgdStart)       \
  X(sgd_momentum, SgdMomentum) \
  X(adam, Adam)                \
  X(accum_first, AccumFirst)   \
  X(accum_middle, AccumMiddle) \
  X(accum_last, AccumLast)     \
  X(accum_only, AccumOnly)     \
  X(accum_last_zero, AccumLastZero)

enum class Update : std::uint8_t {
#define OURO_X(e, Rule) e,
  OURO_UPDATES(OURO_X)
#undef OURO_X
};

/// The rule for an accumulating step, by its number. lazy_zero: a window's first step treats the accumulator
/// as zero instead of reading it, and its last step does not clear it. This moves 28 instead of 30 bytes per
/// fp32 element and step at K = 4.
constexpr Update accum_update(std::int64_t step, int accum_iter, bool lazy_zero) {
  const bool first = (step - 1) % accum_iter == 0, last = step % accum_iter == 0;
  if (!lazy_zero) return last ? Update::accum_last_zero : Update::accum_middle;
  if (last) return first ? Update::accum_only : Update::accum_last;
  return first ? Update::accum_first : Update::accum_middle;
}

}  // namespace ouro::arith
