// Enumerates all executions of a litmus program with the interpreter's memory: every order of the threads'
// steps, and every store that a load may read. See litmus.h.
#include <optional>

#include "tests/ptx/litmus.h"

namespace ptx::litmus {
namespace {

/// Enumerates all sequences of choices, varying the last choice first.
class Every final : public Chooser {
 public:
  int pick(int n) override {
    if (n <= 1) return 0;
    if (at_ == path_.size()) path_.emplace_back(0, n);
    return path_[at_++].first;
  }
  bool next() {
    at_ = 0;
    while (!path_.empty() && path_.back().first + 1 == path_.back().second) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().first;
    return true;
  }

 private:
  std::vector<std::pair<int, int>> path_;
  std::size_t at_ = 0;
};

class Run {
 public:
  Run(const Program& p, Chooser& chooser)
      : p_(p),
        chooser_(chooser),
        memory_(chooser, static_cast<int>(p.threads.size()) + 1),
        words_(static_cast<std::size_t>(p.locations)),
        registers_(static_cast<std::size_t>(p.registers)),
        at_(p.threads.size()) {
    memory_.add(words_.data(), words_.size() * 8, Space::global, "words");
    for (const Place& place : p.places) {
      observers_.emplace_back();
      observers_.back().place = place;
      observers_.back().known = observers_.back().launched = memory_.nothing();
    }
  }
  std::string outcome() {
    try {
      while (step()) continue;
    } catch (const Violation&) {
      return "race";
    }
    std::string text;
    for (std::size_t i = 0; i < registers_.size(); ++i)
      text += (i == 0 ? "r" : " r") + std::to_string(i + 1) + "=" +
              (registers_[i] ? std::to_string(*registers_[i]) : "-");
    return text;
  }

 private:
  const Operation* next(std::size_t t) const {
    return at_[t] < p_.threads[t].size() ? &p_.threads[t][at_[t]] : nullptr;
  }
  /// Threads of a block pass a barrier together.
  bool meets(std::size_t t) {
    std::vector<Observer*> all;
    std::vector<std::size_t> who;
    for (std::size_t o = 0; o < at_.size(); ++o) {
      if (p_.places[o].block != p_.places[t].block) continue;
      const Operation* op = next(o);
      if (op == nullptr) continue;  // the thread has ended
      if (op->kind != Operation::Kind::barrier) return false;
      all.push_back(&observers_[o]);
      who.push_back(o);
    }
    memory_.meet(all);
    for (const std::size_t o : who) ++at_[o];
    return true;
  }
  bool step() {
    std::vector<std::size_t> ready;
    for (std::size_t t = 0; t < at_.size(); ++t) {
      const Operation* op = next(t);
      if (op == nullptr) continue;
      if (op->kind != Operation::Kind::barrier)
        ready.push_back(t);
      else if (meets(t))
        return true;
    }
    if (ready.empty()) return false;
    const std::size_t t = ready[static_cast<std::size_t>(chooser_.pick(static_cast<int>(ready.size())))];
    perform(observers_[t], p_.threads[t][at_[t]++]);
    return true;
  }
  void perform(Observer& o, const Operation& op) {
    if (op.guard >= 0) {
      const auto& value = registers_[static_cast<std::size_t>(op.guard)];
      if (!value || *value != op.guarded_by) return;
    }
    if (op.kind == Operation::Kind::fence) return memory_.fence(o, op.access.order, op.access.scope);
    Access access = op.access;
    access.bytes = 8;
    const auto address = reinterpret_cast<std::uint64_t>(&words_[static_cast<std::size_t>(op.location)]);
    if (op.kind == Operation::Kind::store) return memory_.store(o, address, op.value, access);
    const std::uint64_t value = op.kind == Operation::Kind::load
                                    ? memory_.load(o, address, access)
                                    : memory_.change(o, address, access, op.atomic, op.value, op.desired);
    if (op.to >= 0) registers_[static_cast<std::size_t>(op.to)] = value;
  }

  const Program& p_;
  Chooser& chooser_;
  Memory memory_;
  std::vector<std::uint64_t> words_;
  std::vector<std::optional<std::uint64_t>> registers_;
  std::vector<Observer> observers_;
  std::vector<std::size_t> at_;
};

}  // namespace

Found by_interpreter(const Program& p) {
  Found found;
  Every every;
  do {
    found.outcomes.insert(Run(p, every).outcome());
    if (++found.executions > 4'000'000) throw Violation("more executions than are worth the time");
  } while (every.next());
  return found;
}

}  // namespace ptx::litmus
