// The body of the survey kernels: squares of gradients, summed in the order of kernels/arith/optim.h. Used by
// optim.cu and optim_host.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/arith/optim.h"
#include "kernels/gpu/optim.h"
#include "kernels/gpu/optim_tile.h"

namespace ouro::gpu::optim {

/// Threads per block: each group of kSurveyLanes threads has a chain of its own.
inline constexpr std::uint32_t kSurveyThreads = 256, kSurveyGroups = kSurveyThreads / arith::kSurveyLanes;
struct SurveyScratch {
  double sum[kSurveyThreads];
  bool last;
};

/// Adds sums pairwise, k and k + half, within each run of `width` sums; the first of each run holds
/// the result.
template <class Block>
OURO_BODY void fold(const Block& block, double (&sum)[kSurveyThreads], std::uint32_t width) {
  for (std::uint32_t half = width / 2; half > 0; half /= 2) {
    block.sync();
    for (std::uint32_t k = block.thread(); k < kSurveyThreads; k += block.threads())
      if (k % width < half) sum[k] += sum[k + half];
  }
  block.sync();
}

/// The sum of squares of one lane of a block of kSurveyBlock elements, added in order.
template <class T, class C>
OURO_BODY double lane_sum(const T* from, std::uint64_t count, const arith::Scale<C>& scale,
                          arith::Mask<C>& all_finite) {
  constexpr int n = 16;  // loads in flight
  double sum = 0;
  OURO_ROLLED
  for (std::uint32_t at = 0; at < arith::kSurveyBlock && at < count; at += n * arith::kSurveyLanes) {
    Bits bits[n];
    OURO_UNROLLED
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t k = at + i * arith::kSurveyLanes;
      if (k < count)
        collect::load<sizeof(T), Access::constant>(bits[i], reinterpret_cast<const std::byte*>(from + k));
    }
    OURO_UNROLLED
    for (std::uint32_t i = 0; i < n; ++i) {
      C g = scale(lift<arith::Sum<T>>(get<T>(bits[i], 0), C{}));
      // Elements beyond the end count as 0 after scaling: an infinite or NaN inverse must not turn
      // them into NaN.
      if (at + i * arith::kSurveyLanes >= count) g = 0;
      all_finite &= arith::finite_mask(g);
      sum += static_cast<double>(g) * static_cast<double>(g);
    }
  }
  return sum;
}

template <class T, class Block>
OURO_BODY void survey_body(const Block& block, const SurveyArgs& args, SurveyScratch& scratch) {
  using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const bool flat = args.list.tensors == nullptr;
  const double inverse = args.scale_at != nullptr ? args.scale_at->inverse : args.inverse;
  const arith::Scale<C> scale(arith::GradientScale{inverse, 1});
  const std::uint64_t blocks = flat ? chunks_of(args.count, arith::kSurveyBlock) : args.list.block_count;
  const std::uint64_t chains = blocks < arith::kSurveyChains ? blocks : arith::kSurveyChains;
  arith::Mask<C> all_finite = -1;
  double chain[kSurveyGroups] =
      {};  // on a device, the chain of this thread's group; on the host, those of all groups
  const std::uint64_t first = std::uint64_t{kSurveyGroups} * static_cast<unsigned>(block.block());
  for (std::uint64_t round = first; round < blocks; round += arith::kSurveyChains) {
    for (std::uint32_t k = block.thread(); k < kSurveyThreads; k += block.threads()) {
      const std::uint64_t b = round + k / arith::kSurveyLanes;
      const std::uint32_t lane = k % arith::kSurveyLanes;
      scratch.sum[k] = 0;
      if (b >= blocks) continue;
      const void* gradient = args.gradient;
      std::uint64_t count = args.count, begin = b * arith::kSurveyBlock;
      if (!flat) {
        const Chunk at = args.list.blocks[b];
        const Tensor& t = args.list.tensors[std::uint64_t{at.tensor} * static_cast<unsigned>(args.ranks) +
                                            static_cast<unsigned>(args.rank)];
        gradient = t.gradient, count = t.count, begin = std::uint64_t{at.index} * arith::kSurveyBlock;
      }
      begin += lane;
      if (begin < count)
        scratch.sum[k] =
            lane_sum<T, C>(static_cast<const T*>(gradient) + begin, count - begin, scale, all_finite);
    }
    fold(block, scratch.sum, arith::kSurveyLanes);
    if (block.thread() == 0) {
      OURO_UNROLLED
      for (std::uint32_t k = 0; k < kSurveyGroups; ++k) chain[k] += scratch.sum[k * arith::kSurveyLanes];
    }
    block.sync();
  }
  SurveyState* const state = args.state;
  if (all_finite == 0) raise(&state->pending);
  if (block.thread() == 0) {
    OURO_UNROLLED
    for (std::uint32_t k = 0; k < kSurveyGroups; ++k)
      if (first + k < chains) state->chain[first + k] = chain[k];
  }
  block.sync();
  if (block.thread() == 0) scratch.last = is_last(&state->ended, block.blocks());
  block.sync();
  if (!scratch.last) return;

  constexpr std::uint32_t kRows = arith::kSurveyChains / kSurveyThreads;
  for (std::uint32_t k = block.thread(); k < kSurveyThreads; k += block.threads()) {
    double sum[kRows];
    OURO_UNROLLED
    for (std::uint32_t row = 0; row < kRows; ++row) {
      const std::uint32_t c = row * kSurveyThreads + k;
      sum[row] = c < chains ? fresh(state->chain + c) : 0;
    }
    OURO_UNROLLED
    for (std::uint32_t half = kRows / 2; half > 0; half /= 2)
      for (std::uint32_t row = 0; row < half; ++row) sum[row] += sum[row + half];
    scratch.sum[k] = sum[0];
  }
  fold(block, scratch.sum, kSurveyThreads);
  if (block.thread() != 0) return;
  state->squares = arith::settle(scratch.sum[0]);
  state->nonfinite = take(&state->pending);
  state->ended = 0;
  if (args.scale_at != nullptr)
    args.scale_at->clip = arith::clip_factor(arith::root(state->squares), args.clip_norm);
}

}  // namespace ouro::gpu::optim
