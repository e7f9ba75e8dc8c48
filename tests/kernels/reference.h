// The results that the kernels must compute, implemented a second time in a different way: values as double
// or 128-bit integers, formats by ldexp, one element at a time. Used by the tests of kernels only.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "runtime/core/types.h"

namespace ouro::reference {

__extension__ using Wide = __int128;
__extension__ using UWide = unsigned __int128;
using Bits = std::uint64_t;  // bits of one element, zero-extended

struct Format {
  int exponent, mantissa, bias;
  double largest;  // largest finite value
  bool saturates;  // values beyond `largest` become `largest`; otherwise infinity
  Bits nan;        // the canonical NaN
};
inline Format format_of(DType t) {
  switch (t) {
    case DType::f16:
      return {5, 10, 15, 65504, false, 0x7e00};
    case DType::bf16:
      return {8, 7, 127, std::ldexp(255, 120), false, 0x7fc0};
    case DType::f8e4m3:
      return {4, 3, 7, 448, true, 0x7f};
    case DType::f8e5m2:
      return {5, 2, 15, 57344, true, 0x7f};
    default:
      return {};
  }
}
inline bool is_signed(DType t) {
  return t == DType::i8 || t == DType::i16 || t == DType::i32 || t == DType::i64;
}

inline double decode(DType t, Bits b) {
  if (t == DType::f64) return std::bit_cast<double>(b);
  if (t == DType::f32) return std::bit_cast<float>(static_cast<std::uint32_t>(b));
  const Format f = format_of(t);
  const int m = static_cast<int>(b & ((1u << f.mantissa) - 1));
  const int e = static_cast<int>(b >> f.mantissa & ((1u << f.exponent) - 1));
  const double sign = b >> (f.mantissa + f.exponent) ? -1 : 1;
  if (e == (1 << f.exponent) - 1) {
    if (t == DType::f8e4m3 ? m == 7 : m != 0) return std::numeric_limits<double>::quiet_NaN();
    if (t != DType::f8e4m3) return sign * std::numeric_limits<double>::infinity();
  }
  if (e == 0) return sign * std::ldexp(m, 1 - f.bias - f.mantissa);
  return sign * std::ldexp(m + (1 << f.mantissa), e - f.bias - f.mantissa);
}

inline Bits encode(DType t, double x) {
  if (t == DType::f64) return std::isnan(x) ? 0x7ff8000000000000 : std::bit_cast<Bits>(x);
  if (t == DType::f32)
    return std::isnan(x) ? 0x7fc00000 : std::bit_cast<std::uint32_t>(static_cast<float>(x));
  const Format f = format_of(t);
  if (std::isnan(x)) return f.nan;
  const Bits sign = Bits{std::signbit(x)} << (f.mantissa + f.exponent);
  x = std::fabs(x);
  if (x == 0) return sign;
  const Bits infinity = Bits((1 << f.exponent) - 1) << f.mantissa;
  const Bits beyond = !f.saturates ? infinity : t == DType::f8e4m3 ? 0x7e : infinity - 1;
  if (std::isinf(x)) return sign | beyond;
  const int e = std::max(std::ilogb(x), 1 - f.bias);
  const double unit = std::ldexp(1.0, e - f.mantissa);
  const double steps = std::nearbyint(x / unit);  // exact except for the rounding, to nearest even
  if (steps * unit > f.largest) return sign | beyond;
  // Steps below 2^mantissa are subnormal; from there on they carry the implicit bit, which adds one to e.
  return sign | ((Bits(e + f.bias - 1) << f.mantissa) + static_cast<Bits>(steps));
}

inline Bits load(DType t, const void* array, std::size_t i) {
  Bits b = 0;
  std::memcpy(&b, static_cast<const char*>(array) + i * size_of(t), size_of(t));
  return b;
}
inline void store(DType t, void* array, std::size_t i, Bits b) {
  std::memcpy(static_cast<char*>(array) + i * size_of(t), &b, size_of(t));
}

/// Rounds to the accumulation type: fp64 for f64, else fp32.
inline double accumulated(DType t, double x) { return t == DType::f64 ? x : static_cast<float>(x); }

inline Bits reduce_float(DType t, OpKind op, std::span<const Bits> in, std::span<const Scalar> premul,
                         int ranks) {
  double a = 0;
  for (std::size_t k = 0; k < in.size(); ++k) {
    double x = decode(t, in[k]);
    if (op == OpKind::premulsum) x = accumulated(t, x * accumulated(t, premul[k].real));
    if (k == 0) {
      a = x;
      continue;
    }
    switch (op) {
      case OpKind::prod:
        a = accumulated(t, a * x);
        break;
      case OpKind::max:
      case OpKind::min: {
        const bool greater = a == x ? std::signbit(x) : a > x;
        if (std::isnan(a) || std::isnan(x))
          a = std::numeric_limits<double>::quiet_NaN();
        else
          a = (op == OpKind::max) == greater ? a : x;
        break;
      }
      default:
        a = accumulated(t, a + x);
    }
  }
  if (op == OpKind::avg) a = accumulated(t, a / accumulated(t, ranks));
  const bool infinite_e5m2 = t == DType::f8e5m2 && (op == OpKind::max || op == OpKind::min) && std::isinf(a);
  return infinite_e5m2 ? (a < 0 ? 0xfc : 0x7c) : encode(t, a);  // chosen, so it is not converted
}

inline Bits reduce_integer(DType t, OpKind op, std::span<const Bits> in, std::span<const Scalar> premul,
                           int ranks) {
  const int width = 8 * static_cast<int>(size_of(t));
  const Bits mask = width == 64 ? ~Bits{0} : (Bits{1} << width) - 1;
  const auto value = [&](Bits b) -> Wide {
    return is_signed(t) && b >> (width - 1) ? static_cast<Wide>(b) - (static_cast<Wide>(1) << width)
                                            : static_cast<Wide>(b);
  };
  Bits a = 0;
  Wide total = 0;
  for (std::size_t k = 0; k < in.size(); ++k) {
    Bits x = in[k];
    total += value(x);
    if (op == OpKind::premulsum)
      x = static_cast<Bits>(x * static_cast<UWide>(static_cast<Bits>(premul[k].integer))) & mask;
    if (op == OpKind::land || op == OpKind::lor || op == OpKind::lxor) x = x != 0;
    if (k == 0) {
      a = x;
      continue;
    }
    switch (op) {
      case OpKind::sum:
      case OpKind::premulsum:
        a = (a + x) & mask;
        break;
      case OpKind::prod:
        a = static_cast<Bits>(static_cast<UWide>(a) * x) & mask;
        break;
      case OpKind::max:
        a = value(a) > value(x) ? a : x;
        break;
      case OpKind::min:
        a = value(a) < value(x) ? a : x;
        break;
      case OpKind::band:
      case OpKind::land:
        a &= x;
        break;
      case OpKind::bor:
      case OpKind::lor:
        a |= x;
        break;
      case OpKind::bxor:
      case OpKind::lxor:
        a ^= x;
        break;
      case OpKind::avg:
        break;
    }
  }
  if (op == OpKind::avg) a = static_cast<Bits>(total / ranks) & mask;
  return a;
}

inline Bits reduce_boolean(OpKind op, std::span<const Bits> in) {
  std::size_t trues = 0;
  for (Bits b : in) trues += b != 0;
  switch (op) {
    case OpKind::sum:
    case OpKind::max:
    case OpKind::bor:
    case OpKind::lor:
      return trues > 0;
    case OpKind::prod:
    case OpKind::min:
    case OpKind::band:
    case OpKind::land:
      return trues == in.size();
    default:
      return trues % 2;
  }
}

/// One element of the result of fold().
inline Bits reduce(DType t, OpKind op, std::span<const Bits> in, std::span<const Scalar> premul, int ranks) {
  if (t == DType::boolean) return reduce_boolean(op, in);
  return is_float(t) ? reduce_float(t, op, in, premul, ranks) : reduce_integer(t, op, in, premul, ranks);
}

/// `count` elements: one third random bits, one third special values, one third ordinary values that can
/// be summed.
inline std::vector<std::byte> random_elements(DType t, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(count * size_of(t));
  const double inf = std::numeric_limits<double>::infinity();
  const double special[] = {0.0, -0.0,  1,     -1,    inf,  -inf,  std::nan(""),
                            448, 57344, 65504, 65520, 1e-7, -6e-8, 0.00390625};
  const Bits integers[] = {0,
                           1,
                           2,
                           127,
                           128,
                           255,
                           32767,
                           32768,
                           65535,
                           0x7fffffff,
                           0x80000000,
                           0xffffffff,
                           0x7fffffffffffffff,
                           0x8000000000000000,
                           ~Bits{0}};
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t kind = random() % 3;
    Bits b = random();
    if (is_float(t) && kind == 1) b = encode(t, special[random() % std::size(special)]);
    if (is_float(t) && kind == 2) b = encode(t, static_cast<double>(random() % 4096) / 256 - 8);
    if (!is_float(t) && kind == 1) b = integers[random() % std::size(integers)];
    if (!is_float(t) && kind == 2) b = random() % 3;
    store(t, out.data(), i, b);
  }
  return out;
}

inline constexpr DType kAllTypes[] = {
#define OURO_X(e, b, n) DType::e,
    OURO_DTYPES(OURO_X)
#undef OURO_X
};
inline constexpr OpKind kAllOps[] = {
#define OURO_X(e, n) OpKind::e,
    OURO_OPS(OURO_X)
#undef OURO_X
};

}  // namespace ouro::reference
