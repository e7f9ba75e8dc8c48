// The kernels of nccl-tests: input data, expected results, and the comparison. See kernels.h. The data is
// this file's own. Every partial result is exact in its type in any order, and a result that misses a rank,
// or counts one twice, is detected.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels.h"
#include "kernels/arith/floats.h"

namespace ouro::test::cudart {
namespace {

using arith::BFloat16;
using arith::F8E4M3;
using arith::F8E5M2;
using arith::Half;

/// A pseudo-random number for an element.
std::uint64_t mixed(std::uint64_t seed, std::int64_t index) {
  std::uint64_t n = seed * 0x9e3779b97f4a7c15u ^ (static_cast<std::uint64_t>(index) + 0x632be59bd9b4e019u);
  n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9u;
  n = (n ^ (n >> 27)) * 0x94d049bb133111ebu;
  return n ^ (n >> 31);
}

enum class Op { nil, sum, product, largest, smallest, average, scaled };

/// What all ranks know about one element.
struct Place {
  Op op;
  int ranks;
  std::uint64_t random;
  /// Index of `rank` among the three ranks that contribute most: 0, 1 or 2; 3: none of them.
  int part(int rank) const {
    const auto n = static_cast<std::uint64_t>(ranks);
    const int at = static_cast<int>((static_cast<std::uint64_t>(rank) + n - random % n) % n);
    return at < 3 ? at : 3;
  }
  std::uint64_t bits(int which) const { return mixed(random, which); }
  /// A pseudo-random number from -most to most.
  std::int64_t small(int which, std::int64_t most) const {
    return static_cast<std::int64_t>(bits(which) % static_cast<std::uint64_t>(2 * most + 1)) - most;
  }
};

std::int64_t factor(const Place& p, int rank) { return p.op == Op::scaled && rank % 2 != 0 ? 2 : 1; }

/// Input of a float type, by value. `most`: bound up to which three values, one of them doubled, add
/// up exactly.
double float_input(const Place& p, int rank, std::int64_t most) {
  const int part = p.part(rank);
  switch (p.op) {
    case Op::sum:
    case Op::scaled:
      return part == 3 ? 0 : static_cast<double>(p.small(part, most));
    case Op::product:  // powers of two, and one value that is not
      return part == 0   ? (p.bits(0) % 2 ? -1.5 : 1.25)
             : part == 1 ? (p.bits(1) % 2 ? 2 : 0.5)
             : part == 2 ? (p.bits(2) % 2 ? -2 : -1)
                         : 1;
    case Op::average: {  // all ranks have the mean, except two that deviate from it by opposite amounts
      const auto mean = static_cast<double>(p.small(3, most));
      return part == 3 || p.ranks < 2 || part == 2 ? mean : mean + (part == 0 ? 1 : -1);
    }
    default:
      return static_cast<double>(p.small(rank, 2 * most));
  }
}

double float_output(const Place& p, std::int64_t most) {
  double all = float_input(p, 0, most) * static_cast<double>(factor(p, 0));
  for (int r = 1; r < p.ranks; ++r) {
    const double x = float_input(p, r, most) * static_cast<double>(factor(p, r));
    all = p.op == Op::product    ? all * x
          : p.op == Op::largest  ? std::fmax(all, x)
          : p.op == Op::smallest ? std::fmin(all, x)
                                 : all + x;
  }
  return p.op == Op::average ? all / p.ranks : all;
}

/// Input of an integer type: any bits, as sums and products wrap; averages as for floats.
template <class T>
T integer_input(const Place& p, int rank) {
  if (p.op == Op::average) {
    const std::int64_t mean = 2 + static_cast<std::int64_t>(p.bits(3) % 100);
    const int part = p.part(rank);
    return static_cast<T>(part > 1 || p.ranks < 2 ? mean : mean + (part == 0 ? 1 : -1));
  }
  return static_cast<T>(p.bits(rank));
}

template <class T>
T integer_output(const Place& p) {
  using Wraps = std::uint64_t;
  if (p.op == Op::average) return static_cast<T>(2 + static_cast<std::int64_t>(p.bits(3) % 100));
  T all = static_cast<T>(static_cast<Wraps>(integer_input<T>(p, 0)) * static_cast<Wraps>(factor(p, 0)));
  for (int r = 1; r < p.ranks; ++r) {
    const T x = static_cast<T>(static_cast<Wraps>(integer_input<T>(p, r)) * static_cast<Wraps>(factor(p, r)));
    all = p.op == Op::product    ? static_cast<T>(static_cast<Wraps>(all) * static_cast<Wraps>(x))
          : p.op == Op::largest  ? std::max(all, x)
          : p.op == Op::smallest ? std::min(all, x)
                                 : static_cast<T>(static_cast<Wraps>(all) + static_cast<Wraps>(x));
  }
  return all;
}

template <class T>
constexpr std::int64_t kMost = std::is_same_v<T, F8E4M3> || std::is_same_v<T, F8E5M2> ? 1
                               : std::is_same_v<T, BFloat16>                          ? 40
                               : std::is_same_v<T, Half>                              ? 200
                                                                                      : 100'000;

template <class T>
T from_double(double x) {
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<T>(x);
  else
    return arith::narrow<T>(static_cast<float>(x));
}

/// For data that is only moved and must arrive unchanged: any bits except those of infinities and NaNs.
template <class T>
T moved(const Place& p) {
  std::uint64_t bits = p.bits(0);
  if constexpr (!std::is_integral_v<T>) bits &= ~(std::uint64_t{1} << (8 * sizeof(T) - 2));
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
T input(const Place& p, int rank) {
  if (p.op == Op::nil) return moved<T>(p);
  if constexpr (std::is_integral_v<T>)
    return integer_input<T>(p, rank);
  else
    return from_double<T>(float_input(p, rank, kMost<T>));
}

template <class T>
T output(const Place& p) {
  if (p.op == Op::nil) return moved<T>(p);
  if constexpr (std::is_integral_v<T>)
    return integer_output<T>(p);
  else
    return from_double<T>(float_output(p, kMost<T>));
}

// ---- the kernels ----------------------------------------------------------------------------------

template <class T>
T argument(void** args, int k) {
  return *static_cast<T*>(args[k]);
}

Op op_named(const std::string& name) {
  const auto is = [&](const char* what) { return name.ends_with(what); };
  return is("ReduceSum")         ? Op::sum
         : is("ReduceProd")      ? Op::product
         : is("ReduceMax")       ? Op::largest
         : is("ReduceMin")       ? Op::smallest
         : is("ReduceAvg")       ? Op::average
         : is("ReducePreMulSum") ? Op::scaled
                                 : Op::nil;
}

/// Calls `f` with a value of the element type `name`; returns an empty body if there is no such type.
template <class F>
Body with_type(const std::string& name, const F& f) {
  if (name == "signed char" || name == "char") return f(std::int8_t());
  if (name == "unsigned char") return f(std::uint8_t());
  if (name == "unsigned short") return f(std::uint16_t());
  if (name == "int") return f(std::int32_t());
  if (name == "unsigned int") return f(std::uint32_t());
  if (name == "long") return f(std::int64_t());
  if (name == "unsigned long") return f(std::uint64_t());
  if (name == "float") return f(float());
  if (name == "double") return f(double());
  if (name == "__half") return f(Half());
  if (name == "__nv_bfloat16") return f(BFloat16());
  if (name == "__nv_fp8_e4m3") return f(F8E4M3());
  if (name == "__nv_fp8_e5m2") return f(F8E5M2());
  return {};
}

/// (elements, count, op, ranks, rank, seed, first index)
Body prepare_input(void** a, const std::vector<std::string>& types) {
  return with_type(types[0], [&]<class T>(T) -> Body {
    return [to = argument<T*>(a, 0), n = argument<std::intptr_t>(a, 1), op = op_named(types[1]),
            ranks = argument<int>(a, 3), rank = argument<int>(a, 4), seed = argument<std::uint64_t>(a, 5),
            first = argument<std::intptr_t>(a, 6)] {
      for (std::intptr_t i = 0; i < n; ++i) to[i] = input<T>({op, ranks, mixed(seed, first + i)}, rank);
    };
  });
}

/// (elements, count, op, ranks, seed, first index)
Body prepare_expected(void** a, const std::vector<std::string>& types) {
  return with_type(types[0], [&]<class T>(T) -> Body {
    return [to = argument<T*>(a, 0), n = argument<std::intptr_t>(a, 1), op = op_named(types[1]),
            ranks = argument<int>(a, 3), seed = argument<std::uint64_t>(a, 4),
            first = argument<std::intptr_t>(a, 5)] {
      for (std::intptr_t i = 0; i < n; ++i) to[i] = output<T>({op, ranks, mixed(seed, first + i)});
    };
  });
}

/// Distance of two values in bit patterns.
template <class T>
std::uint64_t distance(T a, T b) {
  std::uint64_t x = 0, y = 0;
  std::memcpy(&x, &a, sizeof a);
  std::memcpy(&y, &b, sizeof b);
  return x < y ? y - x : x - y;
}

void count_bad(std::int64_t* total, std::int64_t bad) { std::atomic_ref(*total).fetch_add(bad); }

/// (results, expected, count, tolerance, number of bad elements)
Body verify_prepared(void** a, const std::vector<std::string>& types) {
  return with_type(types[0], [&]<class T>(T) -> Body {
    return
        [got = argument<const T*>(a, 0), wanted = argument<const T*>(a, 1), n = argument<std::intptr_t>(a, 2),
         tolerance = argument<unsigned>(a, 3), total = argument<std::int64_t*>(a, 4)] {
          std::int64_t bad = 0;
          for (std::intptr_t i = 0; i < n; ++i) bad += distance(got[i], wanted[i]) > tolerance;
          count_bad(total, bad);
        };
  });
}

/// (results, count, op, ranks, seed, first index, tolerance, number of bad elements)
Body verify_inline(void** a, const std::vector<std::string>& types) {
  return with_type(types[0], [&]<class T>(T) -> Body {
    return [got = argument<const T*>(a, 0), n = argument<std::intptr_t>(a, 1), op = op_named(types[2]),
            ranks = argument<int>(a, 3), seed = argument<std::uint64_t>(a, 4),
            first = argument<std::intptr_t>(a, 5), tolerance = argument<unsigned>(a, 6),
            total = argument<std::int64_t*>(a, 7)] {
      std::int64_t bad = 0;
      for (std::intptr_t i = 0; i < n; ++i)
        bad += distance(got[i], output<T>({op, ranks, mixed(seed, first + i)})) > tolerance;
      count_bad(total, bad);
    };
  });
}

constexpr KnownKernel kKernels[] = {{"prepareInput2", 2, prepare_input},
                                    {"prepareExpected2", 2, prepare_expected},
                                    {"verifyPrepared", 1, verify_prepared},
                                    {"verifyInline2", 3, verify_inline}};

}  // namespace

const KnownKernel* known_kernel(const std::string& name) {
  for (const KnownKernel& k : kKernels)
    if (name == k.name) return &k;
  return nullptr;
}

}  // namespace ouro::test::cudart
