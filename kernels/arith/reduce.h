// The reductions, defined once: how an element becomes a partial result, how two of these combine, and how
// the last becomes an element again. Used by the host loops and the device kernels, which choose the order of
// operands and calls.
#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/arith/floats.h"
#include "runtime/core/types.h"

namespace ouro::arith {
inline namespace OURO_ISA {

struct Bool {
  std::uint8_t byte;
};  // any byte but 0 is true; results are 0 or 1

template <DType>
struct ElementOf;  // the C++ type of an element; a type without one does not compile
#define OURO_X(e, T)           \
  template <>                  \
  struct ElementOf<DType::e> { \
    using type = T;            \
  }
// clang-format off
OURO_X(i8, std::int8_t);    OURO_X(u8, std::uint8_t);
OURO_X(i16, std::int16_t);  OURO_X(u16, std::uint16_t);
OURO_X(i32, std::int32_t);  OURO_X(u32, std::uint32_t);
OURO_X(i64, std::int64_t);  OURO_X(u64, std::uint64_t);
OURO_X(f16, Half);          OURO_X(bf16, BFloat16);
OURO_X(f32, float);         OURO_X(f64, double);
OURO_X(f8e4m3, F8E4M3);     OURO_X(f8e5m2, F8E5M2);      OURO_X(boolean, Bool);
// clang-format on
#undef OURO_X

__extension__ using Int128 = __int128;
__extension__ using UInt128 = unsigned __int128;

/// Sums of small floats are kept in fp32; all others in the element type (integers wrap).
template <class T>
using Accumulator = std::conditional_t<Format<T>::kSmall, float, T>;
/// Sums that are divided at the end. Integers use a type of twice the width, so that sums are exact for
/// 2^31 ranks.
template <class T>
using AverageAccumulator = std::conditional_t<
    Format<T>::kFloat, Accumulator<T>,
    std::conditional_t<sizeof(T) < 8, std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, Int128, UInt128>>>;

/// The unsigned type in which T wraps: never narrower than int, so that no operand is promoted to a
/// signed type.
template <class T>
struct WrapOf {
  using type = std::make_unsigned_t<T>;
};
template <>
struct WrapOf<std::int8_t> {
  using type = std::uint32_t;
};
template <>
struct WrapOf<std::uint8_t> {
  using type = std::uint32_t;
};
template <>
struct WrapOf<std::int16_t> {
  using type = std::uint32_t;
};
template <>
struct WrapOf<std::uint16_t> {
  using type = std::uint32_t;
};
template <>
struct WrapOf<Int128> {
  using type = UInt128;
};
template <>
struct WrapOf<UInt128> {
  using type = UInt128;
};
template <class T>
using Wrap = typename WrapOf<T>::type;

template <class A>
OURO_HD constexpr A add(A a, A b) {
  if constexpr (Format<A>::kFloat)
    return a + b;
  else
    return static_cast<A>(static_cast<Wrap<A>>(a) + static_cast<Wrap<A>>(b));
}
template <class A>
OURO_HD constexpr A multiply(A a, A b) {
  if constexpr (Format<A>::kFloat)
    return a * b;
  else
    return static_cast<A>(static_cast<Wrap<A>>(a) * static_cast<Wrap<A>>(b));
}

/// A number that is ordered as T is, with -0 before +0. For floats: the bits, with negative
/// magnitudes reversed.
template <class T>
OURO_HD constexpr auto ordinal(T x) {
  if constexpr (Format<T>::kFloat) {
    using Signed = std::make_signed_t<typename Format<T>::Bits>;
    const Signed s = static_cast<Signed>(to_bits(x));
    constexpr Signed flip = static_cast<Signed>(static_cast<typename Format<T>::Bits>(~0ull) >> 1);
    return static_cast<Signed>(s < 0 ? s ^ flip : s);
  } else {
    return x;
  }
}
/// `r`, or the canonical NaN if an operand is NaN.
template <class T>
OURO_HD constexpr T or_nan(T a, T b, T r) {
  if constexpr (Format<T>::kFloat) {
    constexpr T nan = from_bits<T>(Format<T>::kNan);
    r = is_nan(a) ? nan : r;
    r = is_nan(b) ? nan : r;
  }
  return r;
}
template <class T>
OURO_HD constexpr T greater(T a, T b) {
  return or_nan(a, b, ordinal(a) > ordinal(b) ? a : b);
}
template <class T>
OURO_HD constexpr T lesser(T a, T b) {
  return or_nan(a, b, ordinal(a) < ordinal(b) ? a : b);
}

// Truth values: sum and max are OR, prod and min are AND.
OURO_HD constexpr bool truth(Bool a) { return a.byte != 0; }
template <class T>
OURO_HD constexpr bool truth(T a) {
  return a != 0;
}
template <class T>
OURO_HD constexpr T from_truth(bool b) {
  return {static_cast<T>(b)};
}
template <>
OURO_HD constexpr Bool from_truth(bool b) {
  return {static_cast<std::uint8_t>(b)};
}
OURO_HD constexpr Bool bit_or(Bool a, Bool b) { return {static_cast<std::uint8_t>(a.byte | b.byte)}; }
OURO_HD constexpr Bool bit_and(Bool a, Bool b) { return {static_cast<std::uint8_t>(a.byte & b.byte)}; }
OURO_HD constexpr Bool bit_xor(Bool a, Bool b) { return {static_cast<std::uint8_t>(a.byte ^ b.byte)}; }
template <class T>
OURO_HD constexpr T bit_or(T a, T b) {
  return static_cast<T>(a | b);
}
template <class T>
OURO_HD constexpr T bit_and(T a, T b) {
  return static_cast<T>(a & b);
}
template <class T>
OURO_HD constexpr T bit_xor(T a, T b) {
  return static_cast<T>(a ^ b);
}
OURO_HD constexpr Bool add(Bool a, Bool b) { return bit_or(a, b); }
OURO_HD constexpr Bool multiply(Bool a, Bool b) { return bit_and(a, b); }
OURO_HD constexpr Bool greater(Bool a, Bool b) { return bit_or(a, b); }
OURO_HD constexpr Bool lesser(Bool a, Bool b) { return bit_and(a, b); }

/// The base of every reduction. Only PremulSum reads `factor`, and only there is kScaled true. kPlain: an
/// element is its own partial result (lift changes nothing).
template <class T, class A>
struct Lifted {
  using Element = T;
  using Acc = A;
  static constexpr bool kScaled = false, kPlain = std::is_same_v<T, A> && !std::is_same_v<T, Bool>;
  static OURO_HD constexpr A lift(T x, A) {
    if constexpr (std::is_same_v<T, Bool>)
      return from_truth<Bool>(truth(x));
    else if constexpr (kPlain)
      return x;
    else if constexpr (Format<T>::kSmall)
      return widen(x);
    else
      return x;
  }
  static OURO_HD constexpr T finish(A a, int) {
    if constexpr (Format<T>::kSmall && !kPlain)
      return narrow<T>(a);
    else
      return settle(a);
  }
};

template <class T>
struct Sum : Lifted<T, Accumulator<T>> {
  using A = Accumulator<T>;
  static OURO_HD constexpr A combine(A a, A b) { return add(a, b); }
};
template <class T>
struct Prod : Lifted<T, Accumulator<T>> {
  using A = Accumulator<T>;
  static OURO_HD constexpr A combine(A a, A b) { return multiply(a, b); }
};
/// NaN takes precedence over all numbers; +0 is greater than -0.
template <class T>
struct Max : Lifted<T, T> {
  static OURO_HD constexpr T combine(T a, T b) { return greater(a, b); }
};
template <class T>
struct Min : Lifted<T, T> {
  static OURO_HD constexpr T combine(T a, T b) { return lesser(a, b); }
};
/// Divides once, at the end: floats in the accumulation type, integers toward zero.
template <class T>
struct Avg : Lifted<T, AverageAccumulator<T>> {
  using A = AverageAccumulator<T>;
  static OURO_HD constexpr A combine(A a, A b) { return add(a, b); }
  static OURO_HD constexpr T finish(A a, int ranks) {
    const A mean = a / static_cast<A>(ranks);
    if constexpr (Format<T>::kSmall)
      return narrow<T>(mean);
    else
      return settle(static_cast<T>(mean));
  }
};
template <class T>
struct PremulSum : Sum<T> {
  using A = Accumulator<T>;
  static constexpr bool kScaled = true, kPlain = false;
  static OURO_HD constexpr A factor(const Scalar& s) {
    if constexpr (Format<T>::kFloat)
      return static_cast<A>(s.real);
    else
      return static_cast<A>(s.integer);
  }
  static OURO_HD constexpr A lift(T x, A by) { return multiply(Sum<T>::lift(x, A{}), by); }
};

template <class T>
struct BitAnd : Lifted<T, T> {
  static OURO_HD constexpr T combine(T a, T b) { return bit_and(a, b); }
};
template <class T>
struct BitOr : Lifted<T, T> {
  static OURO_HD constexpr T combine(T a, T b) { return bit_or(a, b); }
};
template <class T>
struct BitXor : Lifted<T, T> {
  static OURO_HD constexpr T combine(T a, T b) { return bit_xor(a, b); }
};
/// The logical reductions are the bitwise ones on truth values.
template <class T>
struct Logical : Lifted<T, T> {
  static constexpr bool kPlain = false;
  static OURO_HD constexpr T lift(T x, T) { return from_truth<T>(truth(x)); }
};
template <class T>
struct LogicalAnd : Logical<T> {
  static OURO_HD constexpr T combine(T a, T b) { return bit_and(a, b); }
};
template <class T>
struct LogicalOr : Logical<T> {
  static OURO_HD constexpr T combine(T a, T b) { return bit_or(a, b); }
};
template <class T>
struct LogicalXor : Logical<T> {
  static OURO_HD constexpr T combine(T a, T b) { return bit_xor(a, b); }
};

template <OpKind, class T>
struct ReductionOf;  // an op without a struct does not compile
#define OURO_X(e, S)                 \
  template <class T>                 \
  struct ReductionOf<OpKind::e, T> { \
    using type = S<T>;               \
  }
// clang-format off
OURO_X(sum, Sum);           OURO_X(prod, Prod);          OURO_X(max, Max);        OURO_X(min, Min);
OURO_X(avg, Avg);           OURO_X(premulsum, PremulSum);
OURO_X(band, BitAnd);       OURO_X(bor, BitOr);          OURO_X(bxor, BitXor);
OURO_X(land, LogicalAnd);   OURO_X(lor, LogicalOr);      OURO_X(lxor, LogicalXor);
// clang-format on
#undef OURO_X

template <DType kType, OpKind kOp>
using ReductionFor = typename ReductionOf<kOp, typename ElementOf<kType>::type>::type;

/// `weight` times an incoming partial result: floats in the accumulation type (min and max of small floats in
/// fp32, rounded once); other types have no weight.
template <class A>
OURO_HD constexpr A weigh(A a, double weight) {
  if constexpr (Format<A>::kSmall)
    return narrow<A>(widen(a) * static_cast<float>(weight));
  else if constexpr (Format<A>::kFloat)
    return a * static_cast<A>(weight);
  else
    return a;
}

}  // namespace OURO_ISA
}  // namespace ouro::arith
