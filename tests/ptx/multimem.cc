// Multicast addresses: multimem.ld_reduce and multimem.st over the memory of all members, and the order
// that fences of aliases impose. Each element of each member is a weak access, which is stricter than
// PTX requires.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/ptx/machine.h"

namespace ptx {
namespace {

enum class What : std::uint8_t { f32, f16x2, bf16x2, f64, s32, u32, s64, u64 };
enum class Fold : std::uint8_t { add, min, max, bit_and, bit_or, bit_xor };

struct Named {
  const char* text;
  Fold fold;
  What what;
  int width;
};
/// The spelling of PTX, after multimem.ld_reduce.relaxed.sys.global; anything else is unknown.
constexpr Named kFolds[] = {
    {"add.v4.f32", Fold::add, What::f32, 4},
    {"add.acc::f32.v4.f16x2", Fold::add, What::f16x2, 4},
    {"add.acc::f32.v4.bf16x2", Fold::add, What::bf16x2, 4},
    {"min.v4.f16x2", Fold::min, What::f16x2, 4},
    {"max.v4.f16x2", Fold::max, What::f16x2, 4},
    {"min.v4.bf16x2", Fold::min, What::bf16x2, 4},
    {"max.v4.bf16x2", Fold::max, What::bf16x2, 4},
    {"add.f64", Fold::add, What::f64, 1},
    {"add.s32", Fold::add, What::u32, 1},
    {"add.u32", Fold::add, What::u32, 1},
    {"add.u64", Fold::add, What::u64, 1},
    {"min.s32", Fold::min, What::s32, 1},
    {"max.s32", Fold::max, What::s32, 1},
    {"min.u32", Fold::min, What::u32, 1},
    {"max.u32", Fold::max, What::u32, 1},
    {"min.s64", Fold::min, What::s64, 1},
    {"max.s64", Fold::max, What::s64, 1},
    {"min.u64", Fold::min, What::u64, 1},
    {"max.u64", Fold::max, What::u64, 1},
    {"and.b32", Fold::bit_and, What::u32, 1},
    {"or.b32", Fold::bit_or, What::u32, 1},
    {"xor.b32", Fold::bit_xor, What::u32, 1},
};

template <class T>
T fold_of(Fold f, T a, T b) {
  if (f == Fold::add) return static_cast<T>(a + b);
  return f == Fold::min ? std::min(a, b) : std::max(a, b);
}
float from_half(std::uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
std::uint16_t to_half(float x) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x)); }
float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
std::uint16_t to_bf16(float x) {
  if (std::isnan(x)) return 0x7fff;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Folds from the last member to the first; in fp32 for elements of 16 bits, rounded once.
std::uint64_t fold_pair(Fold f, bool bf16, const std::vector<std::uint64_t>& of) {
  std::uint64_t out = 0;
  for (int shift : {0, 16}) {
    const auto value = [&](std::uint64_t x) {
      const auto bits = static_cast<std::uint16_t>(x >> shift);
      return bf16 ? from_bf16(bits) : from_half(bits);
    };
    float sum = value(of.back());
    for (std::size_t m = of.size() - 1; m-- > 0;) sum = fold_of(f, sum, value(of[m]));
    out |= static_cast<std::uint64_t>(bf16 ? to_bf16(sum) : to_half(sum)) << shift;
  }
  return out;
}
template <class T, class Bits>
std::uint64_t fold_as(Fold f, const std::vector<std::uint64_t>& of) {
  T sum = std::bit_cast<T>(static_cast<Bits>(of.back()));
  for (std::size_t m = of.size() - 1; m-- > 0;)
    sum = fold_of(f, sum, std::bit_cast<T>(static_cast<Bits>(of[m])));
  return std::bit_cast<Bits>(sum);
}

std::uint64_t folded(Fold f, What what, const std::vector<std::uint64_t>& of) {
  if (f >= Fold::bit_and) {
    std::uint64_t x = of[0];
    for (std::size_t m = 1; m < of.size(); ++m)
      x = f == Fold::bit_and ? x & of[m] : f == Fold::bit_or ? x | of[m] : x ^ of[m];
    return x;
  }
  switch (what) {
    case What::f32:
      return fold_as<float, std::uint32_t>(f, of);
    case What::f64:
      return fold_as<double, std::uint64_t>(f, of);
    case What::s32:
      return fold_as<std::int32_t, std::uint32_t>(f, of);
    case What::u32:
      return fold_as<std::uint32_t, std::uint32_t>(f, of);
    case What::s64:
      return fold_as<std::int64_t, std::uint64_t>(f, of);
    case What::u64:
      return fold_as<std::uint64_t, std::uint64_t>(f, of);
    default:
      return fold_pair(f, what == What::bf16x2, of);
  }
}

std::vector<std::uint64_t> members_at(Lane& l, std::uint64_t address, const Access& a) {
  const auto bytes = static_cast<std::uint64_t>(a.bytes * a.width);
  if (address % bytes != 0) throw Violation("an address that is not aligned to " + std::to_string(bytes));
  return l.machine->memory().members(address, bytes);
}
void run_reduce(Lane& l, const Instr& i) {
  const Named& n = kFolds[i.which];
  const auto at = members_at(l, l.r[i.from[0]] + static_cast<std::uint64_t>(i.offset), i.access);
  for (int k = 0; k < i.access.width; ++k) {
    std::vector<std::uint64_t> values;
    for (const std::uint64_t m : at)
      values.push_back(
          l.machine->memory().load(l.observer, m + static_cast<std::uint64_t>(k * i.access.bytes), i.access));
    if (i.to[k] >= 0) l.r[i.to[k]] = folded(n.fold, n.what, values);
  }
}
void run_spread(Lane& l, const Instr& i) {
  for (const std::uint64_t m : members_at(l, l.r[i.to[0]] + static_cast<std::uint64_t>(i.offset), i.access))
    for (int k = 0; k < i.access.width; ++k)
      l.machine->memory().store(l.observer, m + static_cast<std::uint64_t>(k * i.access.bytes),
                                l.r[i.from[k]], i.access);
}

}  // namespace

bool decode_multimem(const std::string& opcode, std::vector<Operand>& operands, Instr& i) {
  constexpr std::string_view kReduce = "multimem.ld_reduce.relaxed.sys.global.";
  if (!opcode.starts_with("multimem.")) return false;
  const bool stores = opcode == "multimem.st.relaxed.sys.global.v4.f32";
  const auto* const found = std::find_if(std::begin(kFolds), std::end(kFolds), [&](const Named& n) {
    return opcode.starts_with(kReduce) && opcode.substr(kReduce.size()) == n.text;
  });
  if (!stores && found == std::end(kFolds)) throw Violation("unknown opcode " + opcode);
  const auto& address = operands.at(stores ? 0 : 1);
  const auto& value = operands.at(stores ? 1 : 0);
  if (address.kind != Operand::Kind::address || operands.size() != 2)
    throw Violation(opcode + " has no address");
  const std::vector<int> list = value.kind == Operand::Kind::list ? value.slots : std::vector{value.slot};
  i.access.multicast = true;
  i.access.width = static_cast<std::uint8_t>(stores ? 4 : found->width);
  const bool wide =
      !stores && (found->what == What::f64 || found->what == What::s64 || found->what == What::u64);
  i.access.bytes = wide ? 8 : 4;
  if (list.size() != i.access.width) throw Violation(opcode + " with another number of elements");
  std::copy(list.begin(), list.end(), stores ? i.from : i.to);
  (stores ? i.to : i.from)[0] = address.slot;
  i.offset = address.offset;
  i.which = stores ? 0 : static_cast<int>(found - std::begin(kFolds));
  i.run = stores ? run_spread : run_reduce;
  return true;
}

void Memory::add_multicast(std::uint64_t at, std::uint64_t bytes, std::vector<std::uint64_t> members) {
  multicasts_.push_back({at, bytes, std::move(members)});
}
std::vector<std::uint64_t> Memory::members(std::uint64_t address, std::uint64_t bytes) const {
  for (const Multicast& m : multicasts_)
    if (address >= m.at && address + bytes <= m.at + m.bytes) {
      std::vector<std::uint64_t> all = m.members;
      for (std::uint64_t& x : all) x += address - m.at;
      return all;
    }
  throw Violation("multimem at an address that is not a multicast one");
}

void Memory::fence_aliases(Observer& o) {
  auto clock = std::make_shared<std::vector<Tick>>(*o.known);
  (*clock)[static_cast<std::size_t>(o.place.id)] = o.tick++;
  o.aliased = clock;
}
void Memory::check_aliases(const Observer& o, const Region& r, std::uint64_t address, const Access& a,
                           bool writes) {
  Cell& cell = r.cells[address - r.begin];
  const std::uint8_t mine = a.multicast ? 2 : 1;
  const auto ordered = [&](int thread, Tick t) {
    return thread < 0 || (o.aliased != nullptr && (*o.aliased)[static_cast<std::size_t>(thread)] >= t);
  };
  bool fine = (cell.written_by & ~mine) == 0 || ordered(cell.writer, cell.write);
  if (writes && (cell.read_by & ~mine) != 0) {
    if (cell.reader == -2)
      for (const auto& [thread, tick] : readers_[cell.read]) fine &= ordered(thread, tick);
    else
      fine &= ordered(cell.reader, cell.read);
  }
  if (!fine)
    throw Violation("no fence.proxy.alias between accesses of two aliases at byte " +
                    std::to_string(address - r.begin) + " of " + r.name);
  if (writes) cell.written_by = mine, cell.read_by = 0;
  if (!writes) cell.read_by = static_cast<std::uint8_t>(cell.read_by | mine);
}

}  // namespace ptx
