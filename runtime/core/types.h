/// Element types, reductions, views and devices: the vocabulary that every layer and every user shares.
/// Installed with the public headers; depends on the standard library only.
/// @file
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace ouro {

/// X(enumerator, bytes, name): the only list of element types. `name` is what ouro-perf prints and accepts.
// clang-format off
#define OURO_DTYPES(X)                                                         \
  X(i8, 1, "int8")          X(u8, 1, "uint8")                                  \
  X(i16, 2, "int16")        X(u16, 2, "uint16")                                \
  X(i32, 4, "int32")        X(u32, 4, "uint32")                                \
  X(i64, 8, "int64")        X(u64, 8, "uint64")                                \
  X(f16, 2, "half")         X(f32, 4, "float")        X(f64, 8, "double")      \
  X(bf16, 2, "bfloat16")    X(f8e4m3, 1, "f8e4m3")    X(f8e5m2, 1, "f8e5m2")   \
  X(boolean, 1, "bool")

/// X(enumerator, name): the only list of reductions. band..bxor are bitwise, land..lxor logical.
#define OURO_OPS(X)                                                            \
  X(sum, "sum")      X(prod, "prod")    X(max, "max")      X(min, "min")       \
  X(avg, "avg")      X(premulsum, "mulsum")                                    \
  X(band, "band")    X(bor, "bor")      X(bxor, "bxor")                        \
  X(land, "land")    X(lor, "lor")      X(lxor, "lxor")
// clang-format on

/// The type of an element.
enum class DType : std::uint8_t {
#define OURO_X(e, b, n) e, /**< printed as n, element size in bytes: b */
  OURO_DTYPES(OURO_X)
#undef OURO_X
};
/// The kind of a reduction; ReduceOp adds the scalar that some need.
enum class OpKind : std::uint8_t {
#define OURO_X(e, n) e, /**< printed as n */
  OURO_OPS(OURO_X)
#undef OURO_X
};
#define OURO_X(...) +1
inline constexpr int kDTypes = 0 OURO_DTYPES(OURO_X);  ///< how many element types there are
inline constexpr int kOps = 0 OURO_OPS(OURO_X);        ///< how many kinds of reductions there are
#undef OURO_X

/// Bytes of one element; 0 for a value that is not a DType.
constexpr std::size_t size_of(DType t) {
  switch (t) {
#define OURO_X(e, b, n) \
  case DType::e:        \
    return b;
    OURO_DTYPES(OURO_X)
#undef OURO_X
  }
  return 0;
}
const char* name(DType);                             ///< as in the list: "float", "bfloat16", ...
const char* name(OpKind);                            ///< as in the list: "sum", "avg", ...
std::optional<DType> parse_dtype(std::string_view);  ///< by name or alias; nullopt if unknown
std::optional<OpKind> parse_op(std::string_view);    ///< by name or alias; nullopt if unknown
/// Whether it is a floating-point type, of 8 to 64 bits.
constexpr bool is_float(DType t) {
  return t == DType::f64 || t == DType::f32 || t == DType::f16 || t == DType::bf16 || t == DType::f8e4m3 ||
         t == DType::f8e5m2;
}
/// Whether `op` is defined on `t`: bitwise and logical reductions need integers or booleans; avg and
/// premulsum do not exist on booleans. (sum and max of booleans are OR, prod and min are AND.)
constexpr bool applies(OpKind op, DType t) {
  if (op >= OpKind::band) return !is_float(t);
  if (op == OpKind::avg || op == OpKind::premulsum) return t != DType::boolean;
  return true;
}

/// A scalar that is exact for floating-point and for integer element types alike.
struct Scalar {
  double real = 1;           ///< used for floating-point types
  std::int64_t integer = 1;  ///< used for integer types; uint64 scalars keep their bit pattern
  /// The factor x for floating-point and integer element types. If x is not an integer that fits into 64
  /// bits, signed or unsigned, `integer` is the smallest int64, and premulsum of integer types fails
  /// with `invalid`.
  static constexpr Scalar of(double x) {
    constexpr double kHalf = 0x1p63;
    Scalar s{x, std::numeric_limits<std::int64_t>::min()};
    if (x >= -kHalf && x < kHalf && static_cast<double>(static_cast<std::int64_t>(x)) == x)
      s.integer = static_cast<std::int64_t>(x);
    else if (x >= kHalf && x < 2 * kHalf)
      s.integer = static_cast<std::int64_t>(static_cast<std::uint64_t>(x));
    return s;
  }
  /// Whether the scalar can be a factor of integer types.
  constexpr bool whole() const {
    return integer != std::numeric_limits<std::int64_t>::min() || real == -0x1p63 || real == 0x1p63;
  }
};

/// A reduction: `ReduceOp::sum` and so on, one constant for each OpKind, or `ReduceOp::premul(x)`, which
/// multiplies this rank's input by x first. avg divides the sum by the number of ranks: in the accumulation
/// type for floating-point types; for integers in 64 bits (128 bits for 64-bit types), rounding toward zero.
/// min and max propagate NaN; max(+0,-0) = +0, min = -0. sum and prod of integers wrap modulo 2^bits.
struct ReduceOp {
  OpKind kind = OpKind::sum;  ///< which reduction
  Scalar scalar = {};         ///< the factor of premulsum; unused otherwise
  /// @cond
#define OURO_X(e, n) static const ReduceOp e;
  OURO_OPS(OURO_X)
#undef OURO_X
  /// @endcond

  /// Multiplies this rank's input by x, then sums. Ranks may have different factors. For integer element
  /// types x must be an integer, otherwise the operation fails with `invalid`.
  static ReduceOp premul(double x) { return {OpKind::premulsum, Scalar::of(x)}; }
  /// The same with a factor that is exact for 64-bit integers.
  static ReduceOp premul(std::int64_t x) { return {OpKind::premulsum, {static_cast<double>(x), x}}; }
};
/// @cond
#define OURO_X(e, n) inline const ReduceOp ReduceOp::e{OpKind::e, {}};
OURO_OPS(OURO_X)
#undef OURO_X
/// @endcond

/// fast: quickest algorithm; equal calls give equal bits, and every rank holds the same bits. canonical:
/// reduced in rank order 0..n-1 in the accumulation type and rounded once; the bits depend on the inputs and
/// the number of ranks only. inherit: the setting of the group.
enum class Numerics : std::uint8_t { inherit, fast, canonical };
const char* name(Numerics);  ///< "inherit", "fast", "canonical"

/// The place of memory: on the host, or on a GPU.
struct Device {
  /// The kinds of memory.
  enum class Kind : std::uint8_t {
    host,  ///< memory of the host, pinned or not
    cuda   ///< memory of a GPU
  };
  Kind kind = Kind::host;  ///< host or GPU
  int index = 0;           ///< index of the GPU in this process; 0 for the host
  friend bool operator==(const Device&, const Device&) = default;
};

/// Maps a C++ type to its element type; specialised for the types that have one.
template <class T>
struct DTypeOf;
/// @cond
#define OURO_X(T, e)                         \
  template <>                                \
  struct DTypeOf<T> {                        \
    static constexpr DType value = DType::e; \
  }
// clang-format off
OURO_X(std::int8_t, i8);    OURO_X(std::uint8_t, u8);
OURO_X(std::int16_t, i16);  OURO_X(std::uint16_t, u16);
OURO_X(std::int32_t, i32);  OURO_X(std::uint32_t, u32);
OURO_X(std::int64_t, i64);  OURO_X(std::uint64_t, u64);
OURO_X(float, f32);         OURO_X(double, f64);         OURO_X(bool, boolean);
// clang-format on
#undef OURO_X
/// @endcond

/// A view of contiguous elements that it does not own. Any alignment is accepted.
struct View {
  void* data = nullptr;      ///< may be null if count is 0
  std::size_t count = 0;     ///< elements
  DType dtype = DType::f32;  ///< of each element
  Device device = {};        ///< where `data` is
  View() = default;
  /// `c` elements of type `t` at `d`, which is memory of `dev`.
  View(void* d, std::size_t c, DType t, Device dev = {}) : data(d), count(c), dtype(t), device(dev) {}
  /// Memory of the host, of a C++ type that DTypeOf knows.
  template <class T>
  View(std::span<T> s) : View(s.data(), s.size(), DTypeOf<T>::value) {}
  std::size_t bytes() const { return count * size_of(dtype); }  ///< of all elements
};
/// A read-only View.
struct CView {
  const void* data = nullptr;  ///< may be null if count is 0
  std::size_t count = 0;       ///< elements
  DType dtype = DType::f32;    ///< of each element
  Device device = {};          ///< where `data` is
  CView() = default;
  /// `c` elements of type `t` at `d`, which is memory of `dev`.
  CView(const void* d, std::size_t c, DType t, Device dev = {}) : data(d), count(c), dtype(t), device(dev) {}
  /// Converts a writable view.
  CView(const View& v) : CView(v.data, v.count, v.dtype, v.device) {}
  /// Memory of the host, of a C++ type that DTypeOf knows.
  template <class T>
  CView(std::span<T> s) : CView(s.data(), s.size(), DTypeOf<std::remove_const_t<T>>::value) {}
  std::size_t bytes() const { return count * size_of(dtype); }  ///< of all elements
};

/// The collectives and their relatives, in the order that control pages and traces number them.
enum class Collective : std::uint8_t {
  none,            ///< no collective
  all_reduce,      ///< ouro::all_reduce
  reduce_scatter,  ///< ouro::reduce_scatter, ouro::reduce_scatter_v
  all_gather,      ///< ouro::all_gather, ouro::all_gather_v
  broadcast,       ///< ouro::broadcast
  reduce,          ///< ouro::reduce
  gather,          ///< ouro::gather
  scatter,         ///< ouro::scatter
  all_to_all,      ///< ouro::all_to_all, ouro::all_to_all_v
  barrier,         ///< ouro::barrier
  mix,             ///< weighted neighbours (ouro/train/topology.hpp)
};
inline constexpr int kCollectives = 11;                        ///< including "none"
const char* name(Collective);                                  ///< "all_reduce", ...
std::optional<Collective> parse_collective(std::string_view);  ///< by name or alias; nullopt for "none"

/// Maximum number of ranks of a job; the width of rank sets on control pages. Frames have room for more.
inline constexpr int kMaxRanks = 1024;

}  // namespace ouro
