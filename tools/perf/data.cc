// Input patterns, the reference reduction and the comparison of whole buffers.
// Used by the measuring loop and by tests.
#include "tools/perf/data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace ouro::perf {
namespace {

std::uint64_t mix(std::uint64_t x) {  // the finaliser of splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

std::uint64_t noise(std::uint64_t seed, std::uint64_t rank, std::uint64_t position) {
  return mix(seed ^ mix(rank * 0x10001 + 7) ^ mix(position));
}

struct FloatFormat {
  int mantissa;
  int bias;
  int max_exponent;        ///< of finite numbers
  std::uint32_t infinity;  ///< bit pattern after that of the largest number (NaN if the type has no infinity)
  int sign_bit;
};

FloatFormat format_of(DType t) {
  switch (t) {
    case DType::f16:
      return {10, 15, 15, 0x7c00, 15};
    case DType::bf16:
      return {7, 127, 127, 0x7f80, 15};
    case DType::f8e5m2:
      return {2, 15, 15, 0x7c, 7};
    default:
      return {3, 7, 8, 0x7f, 7};  // f8e4m3: no infinity
  }
}

std::uint32_t narrow(double x, const FloatFormat& f) {
  const std::uint32_t sign = std::signbit(x) ? 1u << f.sign_bit : 0;
  const double a = std::fabs(x);
  if (a == 0) return sign;
  int e = std::max(std::ilogb(a), 1 - f.bias);  // below the smallest normal number the spacing is constant
  double steps = std::nearbyint(std::ldexp(a, f.mantissa - e));  // round to nearest, ties to even
  if (steps >= std::ldexp(1.0, f.mantissa + 1)) {
    steps /= 2;
    ++e;
  }
  const auto m = static_cast<std::uint32_t>(steps);
  const std::uint32_t hidden = 1u << f.mantissa;
  const std::uint32_t bits =
      m < hidden ? m : (static_cast<std::uint32_t>(e + f.bias) << f.mantissa) + (m - hidden);
  if (e > f.max_exponent || bits >= f.infinity) return sign | f.infinity;
  return sign | bits;
}

bool is_signed(DType t) { return t == DType::i8 || t == DType::i16 || t == DType::i32 || t == DType::i64; }

/// Keeps what an element of the type can hold: the low bits and, for signed types, the sign.
std::int64_t wrap(DType t, std::uint64_t v) {
  if (t == DType::boolean) return v != 0;
  const int unused = 64 - 8 * static_cast<int>(size_of(t));
  v <<= unused;
  return is_signed(t) ? static_cast<std::int64_t>(v) >> unused : static_cast<std::int64_t>(v >> unused);
}

std::int64_t factor(int rank) { return rank % 3 + 1; }

Value reduce_floats(DType t, OpKind op, std::span<const Value> in) {
  double acc = op == OpKind::premulsum ? 0 : in[0].real;
  for (std::size_t r = op == OpKind::premulsum ? 0 : 1; r < in.size(); ++r) {
    const double x = in[r].real;
    switch (op) {
      case OpKind::prod:
        acc *= x;
        break;
      case OpKind::max:
        acc = std::max(acc, x);
        break;
      case OpKind::min:
        acc = std::min(acc, x);
        break;
      case OpKind::premulsum:
        acc += x * static_cast<double>(factor(static_cast<int>(r)));
        break;
      default:
        acc += x;
        break;
    }
  }
  if (op == OpKind::avg) {
    const double n = static_cast<double>(in.size());
    acc = t == DType::f64 ? acc / n : static_cast<double>(static_cast<float>(acc) / static_cast<float>(n));
  }
  return {acc, 0};
}

Value reduce_integers(DType t, OpKind op, std::span<const Value> in) {
  const bool is_bool = t == DType::boolean;
  if (is_bool)
    op = op == OpKind::sum || op == OpKind::max    ? OpKind::lor
         : op == OpKind::prod || op == OpKind::min ? OpKind::land
                                                   : op;
  std::uint64_t acc = static_cast<std::uint64_t>(in[0].integer);
  const bool logical = op == OpKind::land || op == OpKind::lor || op == OpKind::lxor;
  if (logical) acc = acc != 0;
  if (op == OpKind::premulsum) acc *= static_cast<std::uint64_t>(factor(0));
  const auto wide = [t](std::int64_t v) {  // uint64 values are kept as the same bits in a signed number
    return is_signed(t) ? static_cast<__int128>(v) : static_cast<__int128>(static_cast<std::uint64_t>(v));
  };
  __int128 total = wide(in[0].integer);
  for (std::size_t r = 1; r < in.size(); ++r) {
    const std::int64_t x = in[r].integer;
    const auto u = static_cast<std::uint64_t>(x);
    total += wide(x);
    switch (op) {
      case OpKind::sum:
        acc += u;
        break;
      case OpKind::avg:
        break;
      case OpKind::prod:
        acc *= u;
        break;
      case OpKind::premulsum:
        acc += u * static_cast<std::uint64_t>(factor(static_cast<int>(r)));
        break;
      case OpKind::max:
        if (wide(x) > wide(static_cast<std::int64_t>(acc))) acc = u;
        break;
      case OpKind::min:
        if (wide(x) < wide(static_cast<std::int64_t>(acc))) acc = u;
        break;
      case OpKind::band:
        acc &= u;
        break;
      case OpKind::bor:
        acc |= u;
        break;
      case OpKind::bxor:
        acc ^= u;
        break;
      case OpKind::land:
        acc = acc && u;
        break;
      case OpKind::lor:
        acc = acc || u;
        break;
      case OpKind::lxor:
        acc = (acc != 0) != (u != 0);
        break;
    }
  }
  if (op == OpKind::avg) acc = static_cast<std::uint64_t>(total / static_cast<__int128>(in.size()));
  return {0, wrap(t, acc)};
}

}  // namespace

void encode(DType t, const Value& v, std::byte* to) {
  const auto put = [to](auto x) { std::memcpy(to, &x, sizeof x); };
  switch (t) {
    case DType::f64:
      put(v.real);
      break;
    case DType::f32:
      put(static_cast<float>(v.real));
      break;
    case DType::f16:
    case DType::bf16:
      put(static_cast<std::uint16_t>(narrow(v.real, format_of(t))));
      break;
    case DType::f8e4m3:
    case DType::f8e5m2:
      put(static_cast<std::uint8_t>(narrow(v.real, format_of(t))));
      break;
    default:
      std::memcpy(to, &v.integer, size_of(t));
      break;  // little endian
  }
}

Value input_value(DType t, OpKind op, int rank, int ranks, std::size_t position, std::uint64_t seed) {
  const std::uint64_t h = noise(seed, static_cast<std::uint64_t>(rank), position);
  const auto value = [t](std::int64_t i) {
    return is_float(t) ? Value{static_cast<double>(i), 0} : Value{0, wrap(t, static_cast<std::uint64_t>(i))};
  };
  if (t == DType::boolean) return value(static_cast<std::int64_t>(h & 1));
  switch (op) {
    case OpKind::prod: {
      // At one position at most four ranks have a value other than one, and |product| <= 81: no overflow
      // in any type.
      const auto n = static_cast<std::uint64_t>(ranks);
      const std::uint64_t first = noise(seed, ~0ull, position) % n;
      if ((static_cast<std::uint64_t>(rank) + n - first) % n >= 4) return value(1);
      if (is_float(t)) {
        static constexpr double kReal[] = {2, -1, 0.5, 3};
        return {kReal[h % 4], 0};
      }
      static constexpr std::int64_t kSigned[] = {2, -1, 1, 3}, kUnsigned[] = {2, 1, 0, 3};
      return value(is_signed(t) ? kSigned[h % 4] : kUnsigned[h % 4]);
    }
    case OpKind::band:
      // Mostly one bits, so that AND does not give zero everywhere.
      return value(static_cast<std::int64_t>(h | mix(h)));
    case OpKind::bor:
    case OpKind::bxor:
      return value(static_cast<std::int64_t>(h));
    case OpKind::land:
      return value(h % 8 == 0 ? 0 : static_cast<std::int64_t>(h | 1));
    case OpKind::lor:
      return value(h % 4 != 0 ? 0 : static_cast<std::int64_t>(h | 1));
    case OpKind::lxor:
      return value(h % 2 == 0 ? 0 : static_cast<std::int64_t>(h | 1));
    case OpKind::min:
    case OpKind::max:
      if (is_float(t))
        return value(static_cast<std::int64_t>(h % 17) - 8);  // exact in three bits of mantissa
      return value(static_cast<std::int64_t>(h));
    default:
      break;
  }
  if (is_float(t)) {
    const std::int64_t reach = size_of(t) == 1 ? 2 : 4;
    return value(static_cast<std::int64_t>(h % static_cast<std::uint64_t>(2 * reach + 1)) - reach);
  }
  return value(is_signed(t) ? static_cast<std::int64_t>(h % 16) - 6 : static_cast<std::int64_t>(h % 16));
}

ReduceOp reduction_of(OpKind op, int rank) {
  return op == OpKind::premulsum ? ReduceOp::premul(factor(rank)) : ReduceOp{op, {}};
}

Value reduce_values(DType t, OpKind op, std::span<const Value> in) {
  return is_float(t) ? reduce_floats(t, op, in) : reduce_integers(t, op, in);
}

Tile Tile::input(DType t, const OpKind* op, int rank, int ranks, std::uint64_t seed) {
  Tile tile;
  tile.width_ = size_of(t);
  tile.bytes_.resize(kTile * tile.width_ + sizeof(std::uint64_t));
  for (std::size_t i = 0; i < kTile; ++i) {
    std::byte* to = tile.bytes_.data() + i * tile.width_;
    if (op != nullptr) {
      encode(t, input_value(t, *op, rank, ranks, i, seed), to);
    } else {
      std::uint64_t bits = noise(seed, static_cast<std::uint64_t>(rank), i);
      if (t == DType::boolean) bits &= 1;
      std::memcpy(to, &bits, tile.width_);
    }
  }
  return tile;
}

Tile Tile::reduced(DType t, OpKind op, int ranks, std::uint64_t seed) {
  Tile tile;
  tile.width_ = size_of(t);
  tile.bytes_.resize(kTile * tile.width_ + sizeof(std::uint64_t));
  std::vector<Value> in(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < kTile; ++i) {
    for (int r = 0; r < ranks; ++r) in[static_cast<std::size_t>(r)] = input_value(t, op, r, ranks, i, seed);
    encode(t, reduce_values(t, op, in), tile.bytes_.data() + i * tile.width_);
  }
  return tile;
}

void Tile::fill(void* to, std::size_t count, std::size_t start) const {
  auto* p = static_cast<std::byte*>(to);
  for (std::size_t at = start % kTile; count > 0; at = 0) {
    const std::size_t run = std::min(count, kTile - at);
    std::memcpy(p, bytes_.data() + at * width_, run * width_);
    p += run * width_;
    count -= run;
  }
}

std::size_t Tile::wrong(const void* from, std::size_t count, std::size_t start) const {
  const auto* p = static_cast<const std::byte*>(from);
  std::size_t bad = 0;
  for (std::size_t at = start % kTile; count > 0; at = 0) {
    const std::size_t run = std::min(count, kTile - at);
    const std::byte* q = bytes_.data() + at * width_;
    if (std::memcmp(p, q, run * width_) != 0)
      for (std::size_t i = 0; i < run; ++i) bad += std::memcmp(p + i * width_, q + i * width_, width_) != 0;
    p += run * width_;
    count -= run;
  }
  return bad;
}

std::vector<Segment> expected(Kind kind, const Layout& l, int rank, int ranks, int root) {
  const auto r = static_cast<std::size_t>(rank);
  const auto from_all = [&](std::size_t start) {
    std::vector<Segment> list;
    for (int s = 0; s < ranks; ++s) list.push_back({s, start, l.count});
    return list;
  };
  switch (kind) {
    case Kind::all_reduce:
      return {{-1, 0, l.out}};
    case Kind::reduce:
      return rank == root ? std::vector<Segment>{{-1, 0, l.out}} : std::vector<Segment>{};
    case Kind::reduce_scatter:
      return {{-1, r * l.count, l.count}};
    case Kind::all_gather:
      return from_all(0);
    case Kind::broadcast:
      return {{root, 0, l.out}};
    case Kind::gather:
      return rank == root ? from_all(0) : std::vector<Segment>{};
    case Kind::scatter:
      return {{root, r * l.count, l.count}};
    case Kind::alltoall:
      return from_all(r * l.count);
    case Kind::sendrecv:
      return {{(rank + ranks - 1) % ranks, 0, l.out}};
  }
  return {};
}

}  // namespace ouro::perf
