// Opcodes that compute: each full name, modifiers and type included, has its line or is made by a loop here.
// What is not here is an error. Rounding is to nearest even; no type flushes subnormal numbers.
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <unordered_map>

#include "tests/ptx/machine.h"

namespace ptx {

void run_timer(Lane& l, const Instr& i) { l.r[i.to[0]] = l.machine->executed_; }

namespace {

using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

template <class T>
T get(const Lane& l, const Instr& i, int k) {
  const u64 raw = l.r[i.from[k]];
  if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<float>(static_cast<u32>(raw));
  else if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<double>(raw);
  else if constexpr (std::is_same_v<T, bool>)
    return (raw & 1) != 0;
  else
    return static_cast<T>(raw);
}
/// A NaN that an operation makes is canonical in fp32; of fp64 no payload is promised, so it is an odd one.
template <class T>
void put(Lane& l, const Instr& i, T x) {
  u64& to = l.r[i.to[0]];
  if constexpr (std::is_same_v<T, float>)
    to = std::isnan(x) ? 0x7fffffff : std::bit_cast<u32>(x);
  else if constexpr (std::is_same_v<T, double>)
    to = std::isnan(x) ? 0xfff8000000000123 : std::bit_cast<u64>(x);
  else
    to = static_cast<u64>(
        static_cast<std::make_unsigned_t<std::conditional_t<std::is_same_v<T, bool>, u8, T>>>(x));
}

float wide(u16 h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  float x = exponent == 31 ? (mantissa ? NAN : INFINITY)
                           : std::ldexp(static_cast<float>(mantissa | (exponent ? 1024 : 0)),
                                        std::max(exponent, 1) - 25);
  return h & 0x8000 ? -x : x;
}
u16 narrow(float x) {
  if (std::isnan(x)) return 0x7fff;
  const u16 sign = std::signbit(x) ? 0x8000 : 0;
  const double a = std::fabs(static_cast<double>(x));
  if (a == 0) return sign;
  if (a >= 65520) return sign | 0x7c00;
  int e = 0;
  std::frexp(a, &e);
  const int unit = std::max(e - 11, -24);  // of the last place
  const auto n = static_cast<u32>(std::nearbyint(std::ldexp(a, -unit)));
  return static_cast<u16>(sign | (unit == -24 ? n : n + (static_cast<u32>(unit + 24) << 10)));
}

// ---- One function an opcode and type.
template <class T, auto F, int n, class R = T>
void apply(Lane& l, const Instr& i) {
  if constexpr (n == 1) put<R>(l, i, static_cast<R>(F(get<T>(l, i, 0))));
  if constexpr (n == 2) put<R>(l, i, static_cast<R>(F(get<T>(l, i, 0), get<T>(l, i, 1))));
  if constexpr (n == 3) put<R>(l, i, static_cast<R>(F(get<T>(l, i, 0), get<T>(l, i, 1), get<T>(l, i, 2))));
}
template <class T>
struct Do {
  static T add(T a, T b) { return static_cast<T>(u64(a) + u64(b)); }
  static T sub(T a, T b) { return static_cast<T>(u64(a) - u64(b)); }
  static T mul(T a, T b) { return static_cast<T>(u64(a) * u64(b)); }
  static T mad(T a, T b, T c) { return static_cast<T>(u64(a) * u64(b) + u64(c)); }
  static T div(T a, T b) {
    if (b == 0) return static_cast<T>(~u64{0});
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return neg(a);
    return static_cast<T>(a / b);
  }
  static T rem(T a, T b) {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
  static T neg(T a) { return static_cast<T>(u64{0} - u64(a)); }
  static T min(T a, T b) { return b < a ? b : a; }
  static T max(T a, T b) { return a < b ? b : a; }
  static T hi(T a, T b) {
    using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b) >> (8 * sizeof(T)));
  }
};
template <class T>
struct Real {
  static T add(T a, T b) { return a + b; }
  static T sub(T a, T b) { return a - b; }
  static T mul(T a, T b) { return a * b; }
  static T div(T a, T b) { return a / b; }
  static T fma(T a, T b, T c) { return std::fma(a, b, c); }
  static T sqrt(T a) { return std::sqrt(a); }
  static T rcp(T a) { return T{1} / a; }
};
template <class T>
struct Compare {
  static bool eq(T a, T b) { return a == b; }
  static bool ne(T a, T b) { return a < b || a > b; }
  static bool lt(T a, T b) { return a < b; }
  static bool le(T a, T b) { return a <= b; }
  static bool gt(T a, T b) { return a > b; }
  static bool ge(T a, T b) { return a >= b; }
  static bool equ(T a, T b) { return !(a < b || a > b); }
  static bool neu(T a, T b) { return !(a == b); }
  static bool ltu(T a, T b) { return !(a >= b); }
  static bool leu(T a, T b) { return !(a > b); }
  static bool gtu(T a, T b) { return !(a <= b); }
  static bool geu(T a, T b) { return !(a < b); }
  static bool num(T a, T b) { return a == a && b == b; }
  static bool nan(T a, T b) { return !num(a, b); }
};
template <class T, class R>
void mul_wide(Lane& l, const Instr& i) {
  put<R>(l, i, static_cast<R>(static_cast<R>(get<T>(l, i, 0)) * static_cast<R>(get<T>(l, i, 1))));
}
template <class T, bool left>
void shift(Lane& l, const Instr& i) {  // by more than there is: as by all of it
  const u64 by = std::min<u64>(get<u32>(l, i, 1), 8 * sizeof(T));
  const T x = get<T>(l, i, 0);
  if (by == 8 * sizeof(T))
    return put<T>(l, i, static_cast<T>(!left && std::is_signed_v<T> && x < 0 ? -1 : 0));
  put<T>(l, i, static_cast<T>(left ? static_cast<T>(u64(x) << by) : static_cast<T>(x >> by)));
}
/// Bits as they are, a NaN's too.
void move(Lane& l, const Instr& i) { l.r[i.to[0]] = l.r[i.from[0]]; }
void select(Lane& l, const Instr& i) { l.r[i.to[0]] = l.r[i.from[l.r[i.from[2]] & 1 ? 0 : 1]]; }
template <class T>
void flip(Lane& l, const Instr& i) {
  l.r[i.to[0]] = get<T>(l, i, 0) ^ u64 { 1 } << (8 * sizeof(T) - 1);
}
template <class T, class R>
void convert(Lane& l, const Instr& i) {
  put<R>(l, i, static_cast<R>(get<T>(l, i, 0)));
}
void to_half(Lane& l, const Instr& i) { put<u16>(l, i, narrow(get<float>(l, i, 0))); }
void from_half(Lane& l, const Instr& i) { put<float>(l, i, wide(get<u16>(l, i, 0))); }
void permute(Lane& l, const Instr& i) {
  const u64 bytes = get<u32>(l, i, 0) | static_cast<u64>(get<u32>(l, i, 1)) << 32;
  u32 x = 0;
  for (int k = 0; k < 4; ++k) {
    const u32 by = get<u32>(l, i, 2) >> (4 * k) & 15;
    u32 byte = static_cast<u32>(bytes >> (8 * (by & 7)) & 255);
    if (by & 8) byte = byte & 128 ? 255 : 0;
    x |= byte << (8 * k);
  }
  put<u32>(l, i, x);
}
template <class T>
void insert_bits(Lane& l, const Instr& i) {
  const u32 at = get<u32>(l, i, 2) & 255, length = get<u32>(l, i, 3) & 255, all = 8 * sizeof(T);
  const T ones = length >= all ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << length) - 1);
  const T mask = at >= all ? T{0} : static_cast<T>(ones << at);
  put<T>(l, i,
         static_cast<T>((get<T>(l, i, 1) & ~mask) | (at >= all ? T{0} : (get<T>(l, i, 0) << at & mask))));
}
void special(Lane& l, const Instr& i) {
  const u64 of[] = {static_cast<u64>(l.thread), l.block->lanes.size(), static_cast<u64>(l.block->index),
                    static_cast<u64>(l.block->grid->launch->blocks)};
  l.r[i.to[0]] = of[i.which];
}
/// mov of two halves into one, or of one into two.
template <class T>
void pack(Lane& l, const Instr& i) {
  l.r[i.to[0]] = get<T>(l, i, 0) | static_cast<u64>(get<T>(l, i, 1)) << (8 * sizeof(T));
}
template <class T>
void unpack(Lane& l, const Instr& i) {
  const u64 x = l.r[i.from[0]];
  if (i.to[0] >= 0) l.r[i.to[0]] = static_cast<T>(x);
  if (i.to[1] >= 0) l.r[i.to[1]] = static_cast<T>(x >> (8 * sizeof(T)));
}

struct Form {
  Run run;
  int operands;
};
using Table = std::unordered_map<std::string, Form>;

template <class T>
void add_compares(Table& t, const std::string& type) {
#define OURO_X(name) t["setp." #name "." + type] = {apply<T, Compare<T>::name, 2, bool>, 2};
  OURO_X(eq)
  OURO_X(ne) OURO_X(lt) OURO_X(le) OURO_X(gt) OURO_X(ge) if constexpr (std::is_floating_point_v<T>) {
    OURO_X(equ) OURO_X(neu) OURO_X(ltu) OURO_X(leu) OURO_X(gtu) OURO_X(geu) OURO_X(num) OURO_X(nan)
  }
#undef OURO_X
}
template <class T>
void add_integers(Table& t, const std::string& type) {
  using D = Do<T>;
  t["add." + type] = {apply<T, D::add, 2>, 2};
  t["sub." + type] = {apply<T, D::sub, 2>, 2};
  t["mul.lo." + type] = {apply<T, D::mul, 2>, 2};
  t["mul.hi." + type] = {apply<T, D::hi, 2>, 2};
  t["mad.lo." + type] = {apply<T, D::mad, 3>, 3};
  t["div." + type] = {apply<T, D::div, 2>, 2};
  t["rem." + type] = {apply<T, D::rem, 2>, 2};
  t["min." + type] = {apply<T, D::min, 2>, 2};
  t["max." + type] = {apply<T, D::max, 2>, 2};
  t["shr." + type] = {shift<T, false>, 2};
  if (std::is_signed_v<T>) t["neg." + type] = {apply<T, D::neg, 1>, 1};
  add_compares<T>(t, type);
}
template <class T>
void add_bits(Table& t, const std::string& type) {
  t["and." + type] = {apply<T, [](T a, T b) { return static_cast<T>(a & b); }, 2>, 2};
  t["or." + type] = {apply<T, [](T a, T b) { return static_cast<T>(a | b); }, 2>, 2};
  t["xor." + type] = {apply<T, [](T a, T b) { return static_cast<T>(a ^ b); }, 2>, 2};
  t["not." + type] = {apply<T,
                            [](T a) {
                              return std::is_same_v<T, bool> ? static_cast<T>(a == T{})
                                                             : static_cast<T>(~static_cast<u64>(a));
                            },
                            1>,
                      1};
  if constexpr (!std::is_same_v<T, bool>) {
    t["shl." + type] = {shift<T, true>, 2};
    t["shr." + type] = {shift<T, false>, 2};
    t["setp.eq." + type] = {apply<T, Compare<T>::eq, 2, bool>, 2};
    t["setp.ne." + type] = {apply<T, Compare<T>::ne, 2, bool>, 2};
  }
}
template <class T>
void add_reals(Table& t, const std::string& type) {
  using R = Real<T>;
  t["add.rn." + type] = {apply<T, R::add, 2>, 2};  // without a rounding it may become part of an fma
  t["sub.rn." + type] = {apply<T, R::sub, 2>, 2};
  t["mul.rn." + type] = {apply<T, R::mul, 2>, 2};
  t["div.rn." + type] = {apply<T, R::div, 2>, 2};
  t["fma.rn." + type] = {apply<T, R::fma, 3>, 3};
  t["sqrt.rn." + type] = {apply<T, R::sqrt, 1>, 1};
  t["rcp.rn." + type] = {apply<T, R::rcp, 1>, 1};
  add_compares<T>(t, type);
}
template <class F>
void each_integer(F&& f) {
  f(s8{}, "s8"), f(s16{}, "s16"), f(s32{}, "s32"), f(s64{}, "s64");
  f(u8{}, "u8"), f(u16{}, "u16"), f(u32{}, "u32"), f(u64{}, "u64");
}

const Table& table() {
  static const Table made = [] {
    Table t;
    each_integer([&](auto from, std::string of) {
      using T = decltype(from);
      if constexpr (sizeof(T) > 1) add_integers<T>(t, of);
      each_integer([&](auto to, std::string as) {
        t["cvt." + as + "." + of] = {convert<T, decltype(to)>, 1};
      });
      t["cvt.rn.f32." + of] = {convert<T, float>, 1};
      t["cvt.rn.f64." + of] = {convert<T, double>, 1};
    });
    add_bits<bool>(t, "pred"), add_bits<u16>(t, "b16"), add_bits<u32>(t, "b32"), add_bits<u64>(t, "b64");
    add_reals<float>(t, "f32"), add_reals<double>(t, "f64");
    t["neg.f32"] = {flip<u32>, 1};
    t["neg.f64"] = {flip<u64>, 1};
    t["mul.wide.s32"] = {mul_wide<s32, s64>, 2};
    t["mul.wide.u32"] = {mul_wide<u32, u64>, 2};
    t["mul.wide.u16"] = {mul_wide<u16, u32>, 2};
    t["cvt.f64.f32"] = {convert<float, double>, 1};
    t["cvt.rn.f32.f64"] = {convert<double, float>, 1};
    t["cvt.rn.f16.f32"] = {to_half, 1};
    t["cvt.f32.f16"] = {from_half, 1};
    t["prmt.b32"] = {permute, 3};
    t["bfi.b32"] = {insert_bits<u32>, 4};
    t["bfi.b64"] = {insert_bits<u64>, 4};
    for (const char* type :
         {"pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64"}) {
      t[std::string("mov.") + type] = {move, 1};
      t[std::string("selp.") + type] = {select, 3};
    }
    for (const char* space : {"global", "shared", "local", "param"}) {  // an address is the same in all
      t[std::string("cvta.") + space + ".u64"] = {move, 1};
      t[std::string("cvta.to.") + space + ".u64"] = {move, 1};
    }
    return t;
  }();
  return made;
}

}  // namespace

bool decode_arithmetic(const std::string& opcode, std::vector<Operand>& operands, Instr& i) {
  const auto found = table().find(opcode);
  if (found == table().end()) return false;
  if (operands.size() != static_cast<std::size_t>(found->second.operands) + 1)
    throw Violation(opcode + " with " + std::to_string(operands.size()) + " operands");
  for (const Operand& o : operands)
    if (o.negated || o.kind == Operand::Kind::address)
      throw Violation(opcode + " with an operand of another kind");
  i.run = found->second.run;
  const Operand &to = operands[0], &from = operands[1];
  if (to.kind == Operand::Kind::list || from.kind == Operand::Kind::list) {
    const bool packs = from.kind == Operand::Kind::list;
    const auto& halves = packs ? from.slots : to.slots;
    const bool large = opcode == "mov.b64";
    if ((!large && opcode != "mov.b32") || halves.size() != 2)
      throw Violation("unknown opcode " + opcode + " of a list");
    i.run = packs ? (large ? pack<u32> : pack<u16>) : (large ? unpack<u32> : unpack<u16>);
    std::copy(halves.begin(), halves.end(), packs ? i.from : i.to);
    (packs ? i.to : i.from)[0] = packs ? to.slot : from.slot;
    return true;
  }
  i.to[0] = to.slot;
  for (std::size_t k = 1; k < operands.size(); ++k) i.from[k - 1] = operands[k].slot;
  if (from.slot != -2) return true;
  i.run = special;
  const char* const names[] = {"%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x"};
  for (int k = 0; k < 4; ++k)
    if (from.text == names[k]) return i.which = k, true;
  if (from.text != "%globaltimer") throw Violation("unknown register " + from.text);
  i.run = run_timer;
  return true;
}

}  // namespace ptx
