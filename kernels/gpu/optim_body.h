// The body of the update kernels, a template over the block: optim.cu runs it by blocks of threads,
// optim_host.cc by one thread per block. kernels/arith/optim.h has the arithmetic.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/arith/optim.h"
#include "kernels/gpu/block.h"
#include "kernels/gpu/optim.h"
#include "kernels/gpu/optim_tile.h"

namespace ouro::gpu::optim {

/// The type in which parameters are stored, and the type of the arithmetic.
template <class T, bool kHasMaster = false>
struct Layout {
  using Element = T;
  using Computed = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using Param =
      std::conditional_t<kHasMaster, float, T>;  // type of the parameters that the update reads and writes
  static constexpr bool kMaster = kHasMaster;
  /// The value as if it had been stored and loaded again between kernels::mix, the update and kernels::pack.
  static OURO_HD Computed stored(Computed x) {
    return lift<arith::Sum<Param>>(finish<arith::Sum<Param>>(x, 1), Computed{});
  }
};

/// A skipped step: parameters and states are unchanged.
template <class C>
struct Rest {
  static constexpr bool reads(int) { return false; }
  static constexpr bool writes(int) { return false; }
  OURO_HD explicit Rest(const arith::Recipe&) {}
  OURO_HD void operator()(C, arith::Mask<C>, C&, C*) const {}
};

/// All accumulating steps in one rule: which of them a launch performs is known only when it starts, and five
/// loops in each kernel would be most of the library.
template <class C>
struct AccumAny {
  arith::AccumMiddle<C> middle;
  bool first, last, zero;

  OURO_HD bool reads(int k) const { return k < 2 || !first; }
  OURO_HD bool writes(int k) const { return k < 2 ? last : !last || zero; }
  OURO_HD AccumAny(const arith::Recipe& r, arith::Update u)
      : middle(r),
        first(u == arith::Update::accum_first || u == arith::Update::accum_only),
        last(u >= arith::Update::accum_last),
        zero(u == arith::Update::accum_last_zero) {}
  /// s[2] must be zero if it was not read.
  OURO_HD void operator()(C g, arith::Mask<C> finite, C& p, C* s) const {
    middle(g, finite, p, s);
    if (last) middle.close(s);
  }
};
static_assert(arith::Update::accum_middle < arith::Update::accum_last &&
              arith::Update::accum_first < arith::Update::accum_last &&
              arith::Update::accum_last < arith::Update::accum_only &&
              arith::Update::accum_only < arith::Update::accum_last_zero);

/// Values that one thread computes for its block. Declared as plain bytes, since shared memory has
/// no constructors.
template <class C>
struct BlockScratch {
  static constexpr std::size_t kRuleBytes = 16 * sizeof(C);
  arith::Update update;
  bool skip;
  arith::GradientScale scale[UpdateArgs::kMaxRanks];
  arith::MixWeights weights;
  alignas(16) unsigned char rule[kRuleBytes];
  C matrix[UpdateArgs::kMaxRanks][UpdateArgs::kMaxRanks];  // leader only, like the tensors
  Tensor tensor[UpdateArgs::kMaxRanks];
};

constexpr Family family_of(arith::Update u) {
  if (u <= arith::Update::sgd_momentum) return Family::sgd;
  return u == arith::Update::adam ? Family::adam : Family::accum_adam;
}
template <Family kFamily>
OURO_BODY arith::Update choose(const UpdateArgs& args, std::int64_t step) {
  if constexpr (kFamily == Family::adam) return arith::Update::adam;
  if constexpr (kFamily == Family::accum_adam)
    return arith::accum_update(step, args.recipe.accum_iter, args.lazy_zero);
  if (args.recipe.sgd.momentum == 0) return arith::Update::sgd;
  return step == 1 ? arith::Update::sgd_start : arith::Update::sgd_momentum;
}

/// Calls f with a tag for the rule of `update`, a template.
template <template <class> class RuleOf>
struct RuleTag {
  template <class C>
  using Rule = RuleOf<C>;
};
template <Family kFamily, class F>
OURO_BODY void with_rule(arith::Update update, F&& f) {
  if constexpr (kFamily == Family::accum_adam) {
    f(RuleTag<AccumAny>{});
  } else {
    switch (update) {
#define OURO_X(e, Rule)                                                                     \
  case arith::Update::e:                                                                    \
    if constexpr (family_of(arith::Update::e) == kFamily) return f(RuleTag<arith::Rule>{}); \
    break;
      OURO_UPDATES(OURO_X)
#undef OURO_X
    }
  }
}

/// Fills the block's scratch. One thread computes the coefficients of a step for its block, since they cost
/// two powers in fp64.
template <class L, Family kFamily, Form kForm, class Block>
OURO_BODY void enter(const Block& block, const UpdateArgs& args,
                     BlockScratch<typename L::Computed>& scratch) {
  using C = typename L::Computed;
  if constexpr (kForm == Form::leader) {
    for (int k = block.thread(); k < args.ranks * args.ranks; k += block.threads()) {
      const int r = k / args.ranks, s = k % args.ranks;
      scratch.matrix[r][s] =
          static_cast<C>(args.matrix_at != nullptr ? args.matrix_at[k] : args.matrix[r][s]);
    }
  }
  if (block.thread() == 0) {
    for (int r = 0; r < args.ranks; ++r)
      scratch.scale[r] = args.scale_at != nullptr ? args.scale_at[r] : args.scale[r];
    if constexpr (kForm == Form::exchange)
      scratch.weights = args.weights_at != nullptr ? *args.weights_at : args.weights;
    scratch.skip = args.skip != nullptr && *args.skip != 0;
    arith::Recipe recipe = args.recipe;
    recipe.step = args.control->step + 1;
    recipe.sgd.lr = recipe.adam.lr = args.control->lr;
    scratch.update = choose<kFamily>(args, recipe.step);
    with_rule<kFamily>(scratch.update, [&](auto tag) {
      using Rule = typename decltype(tag)::template Rule<C>;
      const Rule rule = [&] {
        if constexpr (kFamily == Family::accum_adam)
          return Rule(recipe, scratch.update);
        else
          return Rule(recipe);
      }();
      static_assert(sizeof rule <= sizeof scratch.rule && std::is_trivially_copyable_v<Rule>);
      __builtin_memcpy(scratch.rule, &rule, sizeof rule);
    });
  }
  block.sync();
}

/// Ends a block. Every block has read `control` before it ends; the last one to end counts the step.
template <class Block>
OURO_BODY void leave(const Block& block, Control* control, bool skip, bool strange) {
  if (strange) raise(&control->pending);
  block.sync();
  if (block.thread() != 0 || !is_last(&control->ended, block.blocks())) return;
  control->nonfinite = take(&control->pending);
  control->ended = 0;
  if (!skip) control->step += 1;
}

/// One rank's share of a tile: everything except mixing the parameters of ranks.
template <class L, template <class> class RuleOf, Form kForm, int n>
struct Worker {
  using T = typename L::Element;
  using C = typename L::Computed;
  using Rule = RuleOf<C>;
  static constexpr bool kUpdates = !std::is_same_v<Rule, Rest<C>>;
  const Rule& rule;
  arith::Scale<C> scale;
  arith::Mix<C> mix;

  static OURO_BODY std::uintptr_t bits_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
  static OURO_BODY const void* param(const Tensor& t) { return L::kMaster ? t.master : t.value; }
  /// Whether all arrays can be moved 16 bytes at a time.
  OURO_BODY bool aligned(const Tensor& t) const {
    std::uintptr_t bits = bits_of(t.value) | bits_of(t.gradient);
    if (L::kMaster) bits |= bits_of(t.master);
    OURO_UNROLLED
    for (int k = 0; k < 3; ++k)
      if (rule.reads(k) || rule.writes(k)) bits |= bits_of(t.state[k]);
    if (kForm == Form::exchange) bits |= bits_of(t.neighbours) | bits_of(t.message);
    return bits % 16 == 0;
  }

  /// p: the mixed parameters (leader); in other forms they are loaded here. Returns all bits set if all
  /// gradients are finite, else 0.
  OURO_BODY arith::Mask<C> operator()(const Tensor& t, const Span& span, C (&p)[n]) const {
    C g[n], neighbours[n], s[3][n];
    if constexpr (kForm != Form::leader) load<typename L::Param, Access::plain>(span, param(t), p);
    if constexpr (kUpdates) load<T, Access::constant>(span, t.gradient, g);
    if constexpr (kForm == Form::exchange) load<T, Access::plain>(span, t.neighbours, neighbours);
    OURO_UNROLLED
    for (int k = 0; k < 3; ++k) {
      OURO_UNROLLED
      for (int i = 0; i < n; ++i) s[k][i] = 0;
      if (rule.reads(k)) load<C, Access::plain>(span, t.state[k], s[k]);
    }
    arith::Mask<C> all_finite = -1;
    OURO_UNROLLED
    for (int i = 0; i < n; ++i) {
      if constexpr (kForm == Form::exchange) p[i] = L::stored(mix.mixed(p[i], neighbours[i]));
      C state[3] = {s[0][i], s[1][i], s[2][i]};
      if constexpr (kUpdates) {
        const C scaled = scale(g[i]);
        const arith::Mask<C> finite = arith::finite_mask(scaled);
        all_finite &= finite;
        rule(scaled, finite, p[i], state);
      }
      OURO_UNROLLED
      for (int k = 0; k < 3; ++k) s[k][i] = state[k];
      p[i] = L::stored(p[i]);
    }
    store<T>(span, t.value, p);
    if constexpr (L::kMaster) store<float>(span, t.master, p);
    OURO_UNROLLED
    for (int k = 0; k < 3; ++k)
      if (rule.writes(k)) store<C>(span, t.state[k], s[k]);
    if constexpr (kForm == Form::exchange) {
      OURO_UNROLLED
      for (int i = 0; i < n; ++i) p[i] = mix.message(p[i]);
      store<T>(span, t.message, p);
    }
    return all_finite;
  }
};

/// Calls f(records of the tensor, begin, end) for each chunk of this block.
template <class Block, class F>
OURO_BODY void each_chunk(const Block& block, const UpdateArgs& args, F&& f) {
  const bool flat = args.list.tensors == nullptr;
  const std::uint64_t step = flat ? chunk_elements(args.one[0].count) : args.list.chunk_elements;
  const std::uint64_t chunks = flat ? chunks_of(args.one[0].count, step) : args.list.chunk_count;
  for (std::uint64_t c = block.block(); c < chunks; c += block.blocks()) {
    const Chunk chunk = flat ? Chunk{0, 0} : args.list.chunks[c];
    const Tensor* tensor =
        flat ? args.one : args.list.tensors + std::uint64_t{chunk.tensor} * static_cast<unsigned>(args.ranks);
    const std::uint64_t begin = (flat ? c : chunk.index) * step;
    const std::uint64_t end = tensor->count - begin < step ? tensor->count : begin + step;
    f(tensor, begin, end);
  }
}

template <class V, template <class> class RuleOf, class Block>
OURO_BODY bool update_chunks(const Block& block, const UpdateArgs& args,
                             BlockScratch<typename V::L::Computed>& scratch) {
  using L = typename V::L;
  using C = typename L::Computed;
  using Rule = RuleOf<C>;
  constexpr Form kForm = V::kForm;
  constexpr int kRanks = V::kRanks;
  struct Bytes {
    unsigned char at[sizeof(Rule)];
  } bytes;
  __builtin_memcpy(&bytes, scratch.rule, sizeof bytes);
  const Rule rule = __builtin_bit_cast(Rule, bytes);
  constexpr int n = V::kBytes / static_cast<int>(sizeof(C));
  Worker<L, RuleOf, kForm, n> worker{rule, arith::Scale<C>(scratch.scale[0]), arith::Mix<C>(scratch.weights)};
  const std::uint64_t stride = static_cast<std::uint64_t>(n) * static_cast<unsigned>(block.threads());
  arith::Mask<C> all_finite = -1;

  each_chunk(block, args, [&](const Tensor* tensor, std::uint64_t begin, std::uint64_t end) {
    if constexpr (kForm != Form::leader) {
      const Tensor t = *tensor;
      const bool aligned = worker.aligned(t);
      for (std::uint64_t at = begin; at < end; at += stride) {
        C p[n];
        all_finite &= worker(t, Span(block, at, end, stride, aligned, kUnit<C>), p);
      }
    } else {
      block.sync();  // no thread still reads the previous records
      for (int r = block.thread(); r < args.ranks; r += block.threads()) scratch.tensor[r] = tensor[r];
      block.sync();
      bool aligned = true;
      for (int r = 0; r < args.ranks; ++r) aligned &= worker.aligned(scratch.tensor[r]);
      for (std::uint64_t at = begin; at < end; at += stride) {
        const Span span(block, at, end, stride, aligned, kUnit<C>);
        C x[kRanks][n];
        OURO_UNROLLED
        for (int s = 0; s < kRanks; ++s)
          if (s == 0 || s < args.ranks)
            load<typename L::Param, Access::plain>(span, worker.param(scratch.tensor[s]), x[s]);
        OURO_ROLLED
        for (int r = 0; r < args.ranks; ++r) {
          C p[n];
          OURO_UNROLLED
          for (int s = 0; s < kRanks; ++s)
            if (s == 0 || s < args.ranks) {
              const C weight = scratch.matrix[r][s];
              OURO_UNROLLED
              for (int i = 0; i < n; ++i)
                p[i] = arith::add_term(s == 0 ? C{0} : p[i], weight, x[s][i], s == 0);
            }
          OURO_UNROLLED
          for (int i = 0; i < n; ++i) p[i] = L::stored(p[i]);
          worker.scale = arith::Scale<C>(scratch.scale[r]);
          all_finite &= worker(scratch.tensor[r], span, p);
        }
      }
    }
  });
  return all_finite == 0;
}

/// V: a Variant of optim_list.h.
template <class V, class Block>
OURO_BODY void update_body(const Block& block, const UpdateArgs& args,
                           BlockScratch<typename V::L::Computed>& scratch) {
  enter<typename V::L, V::kFamily, V::kForm>(block, args, scratch);
  const bool skip = scratch.skip;
  bool strange = false;
  if (!skip)
    with_rule<V::kFamily>(scratch.update, [&](auto tag) {
      strange = update_chunks<V, decltype(tag)::template Rule>(block, args, scratch);
    });
  else if constexpr (V::kForm != Form::plain)
    update_chunks<V, Rest>(block, args, scratch);
  leave(block, args.control, skip, strange);
}

}  // namespace ouro::gpu::optim
