// Conversions of the small floats: every value upwards and every rounding boundary downwards, on every
// instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/arith/floats.h"
#include "kernels/host/host_job.h"
#include "kernels/host/host_loops.h"
#include "tests/kernels/reference.h"
#if defined(OURO_HAVE_CUDA_HEADERS)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace ouro {
namespace {

using namespace arith;

template <class T>
constexpr DType kType = DType::f16;
template <>
constexpr DType kType<BFloat16> = DType::bf16;
template <>
constexpr DType kType<F8E4M3> = DType::f8e4m3;
template <>
constexpr DType kType<F8E5M2> = DType::f8e5m2;

template <class T>
std::vector<T> all_values() {
  std::vector<T> v;
  for (unsigned b = 0; b < 1u << 8 * sizeof(T); ++b) v.push_back({static_cast<typename Format<T>::Bits>(b)});
  return v;
}

/// Every value of T, and every midpoint between neighbours and beyond the largest, each with its
/// fp32 neighbours.
template <class T>
std::vector<float> boundaries() {
  std::vector<float> out;
  const float inf = std::numeric_limits<float>::infinity();
  const auto around = [&](double x) {
    const float f = static_cast<float>(x);
    for (float y : {f, std::nextafter(f, inf), std::nextafter(f, -inf)}) {
      out.push_back(y);
      out.push_back(-y);
    }
  };
  const double largest = reference::format_of(kType<T>).largest;
  for (T x : all_values<T>()) {
    const double v = reference::decode(kType<T>, x.bits);
    if (std::isnan(v) || std::signbit(v)) continue;
    around(v);
    if (v == largest) {
      const double step = v - reference::decode(kType<T>, x.bits - 1u);
      around(v + step / 2);
      around(v + step);
    } else if (v < largest) {
      around((v + reference::decode(kType<T>, x.bits + 1u)) / 2);
    }
  }
  for (float x :
       {inf, std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(), 1e-40f, 1e30f})
    around(x);
  for (std::uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu})
    out.push_back(std::bit_cast<float>(nan));
  return out;
}

#if defined(OURO_HAVE_CUDA_HEADERS)
unsigned cuda_narrow(Half, float x) { return static_cast<__half_raw>(__float2half_rn(x)).x; }
unsigned cuda_narrow(BFloat16, float x) { return static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(x)).x; }
unsigned cuda_narrow(F8E4M3, float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
unsigned cuda_narrow(F8E5M2, float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2); }
float cuda_widen(Half x) { return __half2float(__half(__half_raw{x.bits})); }
float cuda_widen(BFloat16 x) { return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{x.bits})); }
float cuda_widen(F8E4M3 x) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3))); }
float cuda_widen(F8E5M2 x) { return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E5M2))); }
#endif

template <class T>
class SmallFloat : public testing::Test {};
using SmallFloats = testing::Types<Half, BFloat16, F8E4M3, F8E5M2>;
TYPED_TEST_SUITE(SmallFloat, SmallFloats);

TYPED_TEST(SmallFloat, WidensEveryValueExactly) {
  for (TypeParam x : all_values<TypeParam>()) {
    const float got = widen(x);
    const double want = reference::decode(kType<TypeParam>, x.bits);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << std::hex << +x.bits;
      EXPECT_TRUE(is_nan(x));
      continue;
    }
    EXPECT_FALSE(is_nan(x));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(static_cast<float>(want)))
        << +x.bits;
    const TypeParam back = narrow<TypeParam>(got);
    const bool saturated = kType<TypeParam> == DType::f8e5m2 && std::isinf(want);
    ASSERT_EQ(back.bits, saturated ? x.bits - 1 : x.bits);
  }
}

TYPED_TEST(SmallFloat, NarrowsCorrectlyAtEveryRoundingBoundary) {
  for (float x : boundaries<TypeParam>())
    ASSERT_EQ(+narrow<TypeParam>(x).bits, reference::encode(kType<TypeParam>, x)) << std::hexfloat << x;
}

TYPED_TEST(SmallFloat, AgreesWithCuda) {
#if defined(OURO_HAVE_CUDA_HEADERS)
  constexpr bool byte = sizeof(TypeParam) == 1;
  for (TypeParam x : all_values<TypeParam>()) {
    if (is_nan(x))
      ASSERT_TRUE(std::isnan(cuda_widen(x)));
    else
      ASSERT_EQ(widen(x), cuda_widen(x)) << +x.bits;
  }
  for (float x : boundaries<TypeParam>()) {
    // CUDA's 16-bit NaN is 0x7fff; ours is the quiet NaN with no other bits set.
    if (std::isnan(x) && !byte)
      ASSERT_GT(cuda_narrow(TypeParam{}, x) & 0x7fff, +Format<TypeParam>::kLast);
    else
      ASSERT_EQ(+narrow<TypeParam>(x).bits, cuda_narrow(TypeParam{}, x)) << std::hexfloat << x;
  }
#else
  GTEST_SKIP() << "not installed: the headers of CUDA, when this was configured";
#endif
}

/// The vectorised conversions inside the loops equal those of arith, bit for bit.
TYPED_TEST(SmallFloat, HostLoopsConvertToTheSameBits) {
  const std::vector<float> in = boundaries<TypeParam>();
  const std::vector<TypeParam> all = all_values<TypeParam>();
  std::vector<TypeParam> narrowed(in.size());
  std::vector<float> widened(all.size());
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    if (!kernels::use_instruction_set(isa)) continue;
    for (OpKind op : {OpKind::sum, OpKind::prod, OpKind::avg}) {
      kernels::finish({kType<TypeParam>, op, 1, {}}, narrowed.data(), in.data(), in.size());
      for (std::size_t i = 0; i < in.size(); ++i)
        ASSERT_EQ(+narrowed[i].bits, +narrow<TypeParam>(in[i]).bits) << isa << ' ' << std::hexfloat << in[i];
      kernels::widen({kType<TypeParam>, op, 1, {}}, widened.data(), all.data(), all.size());
      for (std::size_t i = 0; i < all.size(); ++i)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(widened[i]),
                  std::bit_cast<std::uint32_t>(settle(widen(all[i]))))
            << isa;
    }
  }
}

}  // namespace
}  // namespace ouro
