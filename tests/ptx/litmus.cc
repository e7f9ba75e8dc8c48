// Parses the text of litmus shapes. See litmus.h.
#include "tests/ptx/litmus.h"

#include <algorithm>
#include <map>
#include <sstream>

namespace ptx::litmus {
namespace {

/// Registers and constants become slots of the decoder; constants start at kConstants.
constexpr int kConstants = 1000, kAddress = 5000;

class Reader {
 public:
  explicit Reader(Program& p) : p_(p) {}

  void line(std::string text, int thread) {
    Operation op{};
    op.thread = thread;
    if (text.starts_with("if ")) {
      const std::size_t equals = text.find('='), colon = text.find(':');
      if (equals > colon || colon == std::string::npos) throw Violation("no condition: " + text);
      op.guard = reg(text.substr(3, equals - 3));
      op.guarded_by = std::stoull(text.substr(equals + 1));
      text = text.substr(text.find_first_not_of(' ', colon + 1));
    }
    const std::size_t space = std::min(text.find(' '), text.size());
    const std::string opcode = text.substr(0, space);
    std::vector<Operand> operands;
    constants_.clear();
    std::string word;
    for (char c : text.substr(space) + ",") {
      if (c == ',') {
        if (!word.empty()) operands.push_back(operand(word));
        word.clear();
      } else if (c != ' ') {
        word += c;
      }
    }
    if (opcode == "bar.sync") {
      op.kind = Operation::Kind::barrier;
      p_.threads.back().push_back(op);
      return;
    }
    Instr instr;
    // The axioms do not cover proxies.
    if (opcode.starts_with("fence.proxy") || !decode_access(opcode, operands, instr))
      throw Violation("unknown opcode " + opcode);
    op.access = instr.access;
    op.atomic = instr.atomic;
    const bool atomic = opcode.starts_with("atom.") || opcode.starts_with("red.");
    if (opcode.starts_with("fence") || opcode.starts_with("membar")) {
      op.kind = Operation::Kind::fence;
      p_.threads.back().push_back(op);
      return;
    }
    op.kind = atomic                     ? Operation::Kind::atomic
              : opcode.starts_with("ld") ? Operation::Kind::load
                                         : Operation::Kind::store;
    for (int k = 0; k < instr.access.width; ++k) {  // each element is an access of its own
      Operation one = op;
      const bool stores = op.kind == Operation::Kind::store;
      one.location = (stores ? instr.to[0] : instr.from[0]) - kAddress + k;
      p_.locations = std::max(p_.locations, one.location + 1);
      if (!stores) one.to = instr.to[k];
      if (stores) one.value = constant(instr.from[k]);
      if (atomic) one.value = constant(instr.from[1]);
      if (atomic && op.atomic == Atomic::cas) one.desired = constant(instr.from[2]);
      p_.threads.back().push_back(one);
    }
  }

 private:
  int reg(const std::string& name) {
    const auto n = std::stoi(name.substr(1));
    if (name[0] != 'r' || n < 1 || n > 99) throw Violation("no register: " + name);
    p_.registers = std::max(p_.registers, n);
    return n - 1;
  }
  std::uint64_t constant(int slot) const {
    if (slot < kConstants || slot >= kAddress) throw Violation("not a constant");
    return constants_[static_cast<std::size_t>(slot - kConstants)];
  }
  int value(const std::string& word) {
    if (word[0] == 'r') return reg(word);
    constants_.push_back(std::stoull(word));
    return kConstants + static_cast<int>(constants_.size()) - 1;
  }
  Operand operand(const std::string& word) {
    Operand o;
    o.text = word;
    if (word[0] == '[') {
      o.kind = Operand::Kind::address;
      const std::string name = word.substr(1, word.size() - 2);
      const auto [at, fresh] = locations_.try_emplace(name, next_);
      if (fresh) next_ += 4;  // room for the elements of a vector
      o.slot = kAddress + at->second;
    } else if (word[0] == '{') {
      o.kind = Operand::Kind::list;
      std::istringstream parts(word.substr(1, word.size() - 2));
      for (std::string part; std::getline(parts, part, '+');) o.slots.push_back(value(part));
    } else {
      o.slot = value(word);
    }
    return o;
  }

  Program& p_;
  std::map<std::string, int> locations_;
  int next_ = 0;
  std::vector<std::uint64_t> constants_;
};

std::set<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::set<std::string> all;
  for (std::string word; in >> word;) all.insert(word);
  return all;
}

}  // namespace

Program parse(const Shape& shape) {
  Program p;
  Reader reader(p);
  for (const Thread& t : shape.threads) {
    const int number = static_cast<int>(p.places.size());
    p.places.push_back({number + 1, t.block, t.device});
    p.threads.emplace_back();
    std::istringstream lines(t.text);
    for (std::string line; std::getline(lines, line, ';');) {
      const std::size_t begin = line.find_first_not_of(" \n");
      if (begin == std::string::npos) continue;
      try {
        reader.line(line.substr(begin), number);
      } catch (const Violation& v) {
        throw Violation(std::string(shape.name) + ": " + line + ": " + v.what());
      }
    }
  }
  return p;
}

bool matches(const std::string& outcome, const std::string& pattern) {
  const auto has = words(outcome), wants = words(pattern);
  return std::includes(has.begin(), has.end(), wants.begin(), wants.end());
}

}  // namespace ptx::litmus
