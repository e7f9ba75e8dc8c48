// Sum and avg of fp16 with the processor's own conversion instructions, which compilers do not generate by
// themselves: 4 to 8 times as fast as the integer arithmetic in arith/floats.h. Included by host_loops_impl.h
// if the instruction set has F16C.
#pragma once
#include <immintrin.h>
#include <cstddef>

namespace ouro::kernels::OURO_ISA {

// A pack of partial results. Widening is exact and narrowing rounds to nearest even, subnormals included, as
// `widen` and `narrow` do; a NaN is made canonical before it is converted, so its bits agree too.
#if defined(__AVX512F__)
using Pack = __m512;
constexpr __mmask16 kAll = 0xffff;  // the unmasked intrinsics of GCC 12 warn about their own code
inline Pack read_wide(const void* p) { return _mm512_loadu_ps(p); }
inline Pack read_narrow(const void* p) {
  return _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline Pack plus(Pack a, Pack b) { return _mm512_add_ps(a, b); }
inline Pack times(Pack a, float b) { return _mm512_mul_ps(a, _mm512_set1_ps(b)); }
inline Pack over(Pack a, float b) { return _mm512_div_ps(a, _mm512_set1_ps(b)); }
inline Pack settled(Pack a) {
  return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q),
                            _mm512_set1_ps(arith::from_bits<float>(arith::Format<float>::kNan)));
}
inline void write_wide(void* p, Pack a) { _mm512_storeu_ps(p, a); }
inline void write_narrow(void* p, Pack a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_maskz_cvtps_ph(kAll, a, _MM_FROUND_TO_NEAREST_INT));
}
#else
using Pack = __m256;
inline Pack read_wide(const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }
inline Pack read_narrow(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline Pack plus(Pack a, Pack b) { return _mm256_add_ps(a, b); }
inline Pack times(Pack a, float b) { return _mm256_mul_ps(a, _mm256_set1_ps(b)); }
inline Pack over(Pack a, float b) { return _mm256_div_ps(a, _mm256_set1_ps(b)); }
inline Pack settled(Pack a) {
  return _mm256_blendv_ps(a, _mm256_set1_ps(arith::from_bits<float>(arith::Format<float>::kNan)),
                          _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
inline void write_wide(void* p, Pack a) { _mm256_storeu_ps(static_cast<float*>(p), a); }
inline void write_narrow(void* p, Pack a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
#endif
constexpr std::size_t kLanes = sizeof(Pack) / sizeof(float);

/// Folds elements begin..begin+kLanes of the job; `read` takes (array, wide) and returns a pack of
/// that array.
template <bool kAvg, class Read>
inline Pack fold_pack(const Job& job, Read read) {
  Pack a;
  std::size_t k = 0;
  if (job.wides > 0) {
    a = read(job.wide_in[0], true);
    if (job.weight != 1) a = times(a, static_cast<float>(job.weight));
    if (job.wides > 1) a = plus(a, read(job.wide_in[1], true));
  } else {
    a = read(job.in[k++], false);
  }
  for (; k < job.ins; ++k) a = plus(a, read(job.in[k], false));
  if (kAvg && !job.wide_out) a = over(a, static_cast<float>(job.ranks));
  return settled(a);
}

template <bool kAvg>
void run_half(const Job& shared) {
  const Job job = shared;  // the compiler can assume that no store through `out` changes this copy
  constexpr std::size_t wide = sizeof(float), narrow = sizeof(arith::Half);
  std::size_t i = 0;
  for (; i + kLanes <= job.count; i += kLanes) {
    const Pack a = fold_pack<kAvg>(job, [&](const void* array, bool is_wide) {
      return is_wide ? read_wide(static_cast<const char*>(array) + i * wide)
                     : read_narrow(static_cast<const char*>(array) + i * narrow);
    });
    if (job.wide_out)
      write_wide(static_cast<char*>(job.out) + i * wide, a);
    else
      write_narrow(static_cast<char*>(job.out) + i * narrow, a);
  }
  const std::size_t rest = job.count - i;
  if (rest == 0) return;
  const Pack a = fold_pack<kAvg>(job, [&](const void* array, bool is_wide) {
    alignas(64) char padded[sizeof(Pack)] = {};
    const std::size_t size = is_wide ? wide : narrow;
    __builtin_memcpy(padded, static_cast<const char*>(array) + i * size, rest * size);
    return is_wide ? read_wide(padded) : read_narrow(padded);
  });
  alignas(64) char padded[sizeof(Pack)];
  if (job.wide_out)
    write_wide(padded, a);
  else
    write_narrow(padded, a);
  const std::size_t size = job.wide_out ? wide : narrow;
  __builtin_memcpy(static_cast<char*>(job.out) + i * size, padded, rest * size);
}

}  // namespace ouro::kernels::OURO_ISA
