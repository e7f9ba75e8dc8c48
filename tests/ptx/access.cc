// Loads, stores, atomic operations, fences and barriers: the meaning of their modifiers, and their execution.
#include <algorithm>
#include <utility>

#include "tests/ptx/machine.h"

namespace ptx {
namespace {

void run_load(Lane& l, const Instr& i) {
  const std::uint64_t address = l.r[i.from[0]] + static_cast<std::uint64_t>(i.offset);
  if (l.machine->watch) l.machine->watch(l, i, address);
  for (int k = 0; k < i.access.width; ++k) {
    std::uint64_t value = l.machine->memory().load(
        l.observer, address + static_cast<std::uint64_t>(k * i.access.bytes), i.access);
    if (i.access.is_signed) {
      const int shift = 64 - 8 * i.access.bytes;
      value = static_cast<std::uint64_t>(static_cast<std::int64_t>(value << shift) >> shift);
    }
    if (i.to[k] >= 0) l.r[i.to[k]] = value;
    if (i.access.order == Order::weak) continue;
    l.yields = l.looked == &i && l.saw == value;  // the same load has read the same value again
    l.looked = &i, l.saw = value;
  }
}
void run_store(Lane& l, const Instr& i) {
  const std::uint64_t address = l.r[i.to[0]] + static_cast<std::uint64_t>(i.offset);
  if (l.machine->watch) l.machine->watch(l, i, address);
  for (int k = 0; k < i.access.width; ++k)
    l.machine->memory().store(l.observer, address + static_cast<std::uint64_t>(k * i.access.bytes),
                              l.r[i.from[k]], i.access);
}
void run_atomic(Lane& l, const Instr& i) {
  const std::uint64_t address = l.r[i.from[0]] + static_cast<std::uint64_t>(i.offset);
  const std::uint64_t old = l.machine->memory().change(l.observer, address, i.access, i.atomic,
                                                       l.r[i.from[1]], i.from[2] >= 0 ? l.r[i.from[2]] : 0);
  if (i.to[0] >= 0) l.r[i.to[0]] = old;
}
void run_fence(Lane& l, const Instr& i) {
  if (i.which != 0) return l.machine->memory().fence_aliases(l.observer);
  l.machine->memory().fence(l.observer, i.access.order, i.access.scope);
}
void run_barrier(Lane& l, const Instr& i) {
  l.said = i.from[0] >= 0 && (l.r[i.from[0]] & 1) != 0;
  l.machine->arrive(l, i);
}

/// Applies one modifier of a load, store or atomic operation; false: there is no such modifier.
struct Modifiers {
  Access a;
  bool ordered = false, scoped = false, typed = false, atomic = false;
  bool take(std::string_view m, Instr& i) {
    const auto order = [&](Order o) {
      a.order = o;
      return !std::exchange(ordered, true);
    };
    const auto scope = [&](Scope s) {
      a.scope = s;
      return !std::exchange(scoped, true);
    };
    if (m == "relaxed") return order(Order::relaxed);
    if (m == "acquire") return order(Order::acquire);
    if (m == "release") return order(Order::release);
    if (m == "acq_rel") return order(Order::acq_rel);
    if (m == "weak") return order(Order::weak);
    if (m == "volatile") {  // equivalent to relaxed.sys, according to the manual
      scoped = true;
      return order(Order::relaxed);
    }
    if (m == "cta") return scope(Scope::cta);
    if (m == "gpu") return scope(Scope::gpu);
    if (m == "sys") return scope(Scope::sys);
    if (m == "global") return space(Space::global);
    if (m == "shared") return space(Space::shared);
    if (m == "local") return space(Space::local);
    if (m == "param") return space(Space::param);
    if (m == "nc") return a.read_only = true;
    if (m == "v2" || m == "v4") return (a.width = m == "v2" ? 2 : 4) > 0;
    // Cache hints do not affect which values are read.
    for (const char* cache : {"ca", "cg", "cs", "lu", "cv", "wb", "wt", "L1::no_allocate"})
      if (m == cache) return !atomic;
    for (const auto& [name, op] : {std::pair{"add", Atomic::add},
                                   {"exch", Atomic::exch},
                                   {"cas", Atomic::cas},
                                   {"or", Atomic::bit_or},
                                   {"and", Atomic::bit_and},
                                   {"xor", Atomic::bit_xor}})
      if (m == name) {
        i.atomic = op;
        return atomic;
      }
    if (m.size() < 2 || std::string_view("busf").find(m[0]) == std::string_view::npos) return false;
    for (const auto& [name, bytes] : {std::pair{"8", 1}, {"16", 2}, {"32", 4}, {"64", 8}})
      if (m.substr(1) == name) {
        a.bytes = static_cast<std::uint8_t>(bytes);
        a.is_signed = m[0] == 's';
        return typed = true;
      }
    return false;
  }

 private:
  bool space(Space s) {
    a.space = s;
    return true;
  }
};

[[noreturn]] void unknown(const std::string& opcode) { throw Violation("unknown opcode " + opcode); }

}  // namespace

bool decode_access(const std::string& opcode, std::vector<Operand>& operands, Instr& i) {
  const auto parts = split(opcode, '.');
  const std::string_view what = parts[0];
  if (what == "bar") {
    const bool red = opcode == "bar.red.or.pred";
    if (opcode != "bar.sync" && !red) unknown(opcode);
    if (operands.at(red ? 1 : 0).text != "0" || operands.size() != (red ? 3u : 1u))
      throw Violation("unknown opcode " + opcode + " with a number or a count of threads");
    if (red) i.to[0] = operands[0].slot, i.from[0] = operands[2].slot;
    i.which = red;
    i.run = run_barrier;
    return true;
  }
  if (what == "fence" || what == "membar") {
    const bool old = what == "membar";
    const auto& level = parts.at(old ? 1 : 2);
    if (parts.size() != (old ? 2u : 3u)) unknown(opcode);
    if (opcode == "fence.proxy.alias") {
      i.which = 1;
      i.strong = true;
      i.run = run_fence;
      return true;
    }
    if (level != "cta" && level != (old ? "gl" : "gpu") && level != "sys") unknown(opcode);
    if (!old && parts[1] != "sc" && parts[1] != "acq_rel") unknown(opcode);
    i.access.order = old || parts[1] == "sc" ? Order::sc : Order::acq_rel;
    i.access.scope = level == "cta" ? Scope::cta : level == "sys" ? Scope::sys : Scope::gpu;
    i.strong = true;
    i.run = run_fence;
    return true;
  }
  if (what != "ld" && what != "st" && what != "atom" && what != "red") return false;
  Modifiers m;
  m.atomic = what == "atom" || what == "red";
  if (m.atomic) m.a.order = Order::relaxed, m.a.scope = Scope::gpu;
  for (std::size_t k = 1; k < parts.size(); ++k)
    if (!m.take(parts[k], i)) unknown(opcode);
  const bool strong = m.a.order != Order::weak;
  if (!m.typed || (strong && !m.scoped && !m.atomic) || (!strong && m.scoped)) unknown(opcode);
  if ((what == "ld" && m.a.order > Order::acquire) || (what == "st" && m.a.order == Order::acquire))
    unknown(opcode);
  i.access = m.a;
  i.strong = strong;
  const std::size_t address = what == "ld" || what == "atom" ? 1 : 0;
  if (operands.at(address).kind != Operand::Kind::address) throw Violation(opcode + " has no address");
  i.offset = operands[address].offset;
  const auto values = [&](const Operand& o, int* slots) {
    const std::vector<int> list = o.kind == Operand::Kind::list ? o.slots : std::vector{o.slot};
    if (list.size() != m.a.width) throw Violation(opcode + " with another number of elements");
    std::copy(list.begin(), list.end(), slots);
  };
  if (what == "ld") {
    values(operands.at(0), i.to);
    i.from[0] = operands[1].slot;
    i.run = run_load;
  } else if (what == "st") {
    values(operands.at(1), i.from);
    i.to[0] = operands[0].slot;
    i.run = run_store;
  } else {
    if (address == 1) i.to[0] = operands[0].slot;
    i.from[0] = operands[address].slot;
    i.from[1] = operands.at(address + 1).slot;
    if (i.atomic == Atomic::cas) i.from[2] = operands.at(address + 2).slot;
    if (operands.size() != address + (i.atomic == Atomic::cas ? 3 : 2)) unknown(opcode);
    i.run = run_atomic;
  }
  return true;
}

}  // namespace ptx
