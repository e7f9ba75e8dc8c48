// The floating-point formats narrower than fp32, and their conversions to fp32 (exact) and from it (one
// rounding to nearest even). Used by every loop on the host and on the device; nothing here needs a library.
#pragma once
#include <cstdint>

#include "runtime/core/hd.h"

// Each host instruction set compiles this header in a namespace of its own. Otherwise the linker would keep
// one copy of each inline function for all of them, and could pick one that an older machine cannot execute.
#ifndef OURO_ISA
#define OURO_ISA portable
#endif

namespace ouro::arith {
inline namespace OURO_ISA {

struct Half {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};
struct F8E4M3 {
  std::uint8_t bits;
};  // OCP E4M3FN: no infinity, one NaN per sign
struct F8E5M2 {
  std::uint8_t bits;
};

/// The meaning of a format's bits. kLast is the magnitude of the last number; all greater magnitudes are NaN,
/// of which kNan is the canonical one. kOverflow is the least fp32 magnitude (as bits) that becomes kTop:
/// infinity for half, the largest finite value for float8, which saturates.
template <class T>
struct Format {
  static constexpr bool kFloat = false, kSmall = false;
};
template <>
struct Format<Half> {
  static constexpr bool kFloat = true, kSmall = true;
  using Bits = std::uint16_t;
  static constexpr int kMantissa = 10, kBias = 15;
  static constexpr Bits kLast = 0x7c00, kNan = 0x7e00, kTop = 0x7c00;
  static constexpr std::uint32_t kOverflow = 0x477ff000;  // 65520 ties to the even side: infinity
  static constexpr bool kInfinity = true;
};
template <>
struct Format<BFloat16> {
  static constexpr bool kFloat = true, kSmall = true;
  using Bits = std::uint16_t;
  static constexpr Bits kLast = 0x7f80, kNan = 0x7fc0;
};
template <>
struct Format<F8E4M3> {
  static constexpr bool kFloat = true, kSmall = true;
  using Bits = std::uint8_t;
  static constexpr int kMantissa = 3, kBias = 7;
  static constexpr Bits kLast = 0x7e, kNan = 0x7f, kTop = 0x7e;
  static constexpr std::uint32_t kOverflow = 0x43e00000;  // 448
  static constexpr bool kInfinity = false;
};
template <>
struct Format<F8E5M2> {
  static constexpr bool kFloat = true, kSmall = true;
  using Bits = std::uint8_t;
  static constexpr int kMantissa = 2, kBias = 15;
  static constexpr Bits kLast = 0x7c, kNan = 0x7f, kTop = 0x7b;
  static constexpr std::uint32_t kOverflow = 0x47600000;  // 57344
  static constexpr bool kInfinity = true;
};
template <>
struct Format<float> {
  static constexpr bool kFloat = true, kSmall = false;
  using Bits = std::uint32_t;
  static constexpr Bits kLast = 0x7f800000, kNan = 0x7fc00000;
};
template <>
struct Format<double> {
  static constexpr bool kFloat = true, kSmall = false;
  using Bits = std::uint64_t;
  static constexpr Bits kLast = 0x7ff0000000000000, kNan = 0x7ff8000000000000;
};

template <class T>
OURO_HD constexpr typename Format<T>::Bits to_bits(T x) {
  return __builtin_bit_cast(typename Format<T>::Bits, x);
}
template <class T>
OURO_HD constexpr T from_bits(typename Format<T>::Bits b) {
  return __builtin_bit_cast(T, b);
}

template <class T>
OURO_HD constexpr bool is_nan(T x) {
  using F = Format<T>;
  constexpr auto magnitude = static_cast<typename F::Bits>(static_cast<typename F::Bits>(~0ull) >> 1);
  return (to_bits(x) & magnitude) > F::kLast;
}
template <>
OURO_HD constexpr bool is_nan(float x) {
  return x != x;
}
template <>
OURO_HD constexpr bool is_nan(double x) {
  return x != x;
}

/// The conversion is exact. A NaN becomes some NaN; `settle` makes it canonical before it becomes visible.
/// Branches are selections, so that loops over it vectorise; no step depends on the subnormal mode
/// of the CPU.
template <class T>
OURO_HD constexpr float widen(T x) {
  using F = Format<T>;
  constexpr int width = 8 * static_cast<int>(sizeof(T)), shift = 23 - F::kMantissa;
  constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - F::kBias) << 23;
  constexpr float unit = from_bits<float>(static_cast<std::uint32_t>(128 - F::kBias - F::kMantissa) << 23);
  const std::uint32_t bits = x.bits, magnitude = bits & ((1u << (width - 1)) - 1);
  const std::uint32_t subnormal = to_bits(static_cast<float>(static_cast<std::int32_t>(magnitude)) * unit);
  std::uint32_t r = (magnitude << shift) + rebias;
  r = magnitude < (1u << F::kMantissa) ? subnormal : r;
  if constexpr (F::kInfinity) r = magnitude == F::kLast ? Format<float>::kLast : r;
  r = magnitude > F::kLast ? Format<float>::kNan : r;
  return from_bits<float>(r | (bits >> (width - 1)) << 31);
}
template <>
OURO_HD constexpr float widen(BFloat16 x) {
  return from_bits<float>(std::uint32_t{x.bits} << 16);
}

/// Rounds to nearest even; NaN becomes the canonical NaN.
template <class T>
OURO_HD constexpr T narrow(float x) {
  using F = Format<T>;
  constexpr int width = 8 * static_cast<int>(sizeof(T)), shift = 23 - F::kMantissa;
  constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - F::kBias) << 23;
  constexpr std::uint32_t least_normal = static_cast<std::uint32_t>(128 - F::kBias) << 23;
  // Adding this to a magnitude below least_normal makes the adder round at the format's subnormal unit.
  constexpr std::uint32_t magic = static_cast<std::uint32_t>(151 - F::kBias - F::kMantissa) << 23;
  const std::uint32_t bits = to_bits(x), magnitude = bits & 0x7fffffff;
  const std::uint32_t subnormal = to_bits(from_bits<float>(magnitude) + from_bits<float>(magic)) - magic;
  const std::uint32_t odd = magnitude >> shift & 1;
  std::uint32_t r = (magnitude - rebias + ((1u << (shift - 1)) - 1) + odd) >> shift;
  r = magnitude < least_normal ? subnormal : r;
  r = magnitude >= F::kOverflow ? F::kTop : r;
  r |= bits >> 31 << (width - 1);
  r = magnitude > Format<float>::kLast ? F::kNan : r;
  return {static_cast<typename F::Bits>(r)};
}
template <>
OURO_HD constexpr BFloat16 narrow(float x) {
  const std::uint32_t bits = to_bits(x);
  const std::uint32_t r = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // carries into infinity by itself
  return {static_cast<std::uint16_t>(is_nan(x) ? Format<BFloat16>::kNan : r)};
}

/// Makes a NaN canonical. Every result of a reduction passes through here or through `narrow`, so that the
/// bits of a NaN depend neither on operand order nor on the processor.
template <class T>
OURO_HD constexpr T settle(T x) {
  if constexpr (Format<T>::kFloat)
    return is_nan(x) ? from_bits<T>(Format<T>::kNan) : x;
  else
    return x;
}

}  // namespace OURO_ISA
}  // namespace ouro::arith
