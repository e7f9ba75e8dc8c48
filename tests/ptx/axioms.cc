// Enumerates all executions of a litmus program that the axioms of the PTX memory model allow (PTX ISA,
// "Memory Consistency Model"): which write each read reads, the order of the writes of each location, and the
// order of the fences of kind sc. See litmus.h.
#include <algorithm>
#include <array>
#include <optional>

#include "tests/ptx/litmus.h"

namespace ptx::litmus {
namespace {

constexpr std::size_t kMost = 40, kNone = kMost;
/// A relation between events, with a row of bits for each.
struct Relation {
  std::array<std::uint64_t, kMost> row = {};
  bool has(std::size_t a, std::size_t b) const { return (row[a] >> b & 1) != 0; }
  void add(std::size_t a, std::size_t b) { row[a] |= std::uint64_t{1} << b; }
  void close() {
    for (std::size_t k = 0; k < kMost; ++k)
      for (std::size_t i = 0; i < kMost; ++i)
        if (has(i, k)) row[i] |= row[k];
  }
  bool cyclic() const {
    Relation all = *this;
    all.close();
    for (std::size_t i = 0; i < kMost; ++i)
      if (all.has(i, i)) return true;
    return false;
  }
};

struct Event {
  enum class Kind : std::uint8_t { init, read, write, fence, barrier } kind;
  const Operation* op = nullptr;
  int location = -1;
  std::size_t other = kNone;  // for the write of an atomic operation its read, and vice versa
};

class Executions {
 public:
  explicit Executions(const Program& p) : p_(p) {
    for (int l = 0; l < p.locations; ++l) events_.push_back({Event::Kind::init, nullptr, l});
    for (const auto& thread : p.threads)
      for (const Operation& op : thread) {
        using Kind = Operation::Kind;
        if (op.kind == Kind::fence || op.kind == Kind::barrier)
          events_.push_back({op.kind == Kind::fence ? Event::Kind::fence : Event::Kind::barrier, &op});
        if (op.kind == Kind::load || op.kind == Kind::atomic)
          events_.push_back({Event::Kind::read, &op, op.location});
        if (op.kind == Kind::store || op.kind == Kind::atomic)
          events_.push_back({Event::Kind::write, &op, op.location});
        if (op.kind == Kind::atomic)
          events_.back().other = events_.size() - 2, events_[events_.size() - 2].other = events_.size() - 1;
      }
    if (events_.size() > kMost) throw Violation("more events than the axioms are written for");
    source_.assign(events_.size(), 0);
    for (std::size_t e = 0; e < events_.size(); ++e)
      if (events_[e].kind == Event::Kind::read) reads_.push_back(e);
  }
  Found all() {
    choose_source(0);
    return found_;
  }

 private:
  bool memory(std::size_t e) const {
    return events_[e].kind != Event::Kind::fence && events_[e].kind != Event::Kind::barrier;
  }
  bool writes(std::size_t e) const {
    return events_[e].kind == Event::Kind::write || events_[e].kind == Event::Kind::init;
  }
  int thread(std::size_t e) const { return events_[e].op == nullptr ? -1 : events_[e].op->thread; }
  bool strong(std::size_t e) const {
    const Event& x = events_[e];
    return x.op != nullptr && x.kind != Event::Kind::barrier && x.op->access.order != Order::weak;
  }
  bool releases(std::size_t e) const { return events_[e].op->access.order >= Order::release; }
  bool acquires(std::size_t e) const {
    const Order o = events_[e].op->access.order;
    return o == Order::acquire || o >= Order::acq_rel;
  }
  const Place& place(std::size_t e) const { return p_.places[static_cast<std::size_t>(thread(e))]; }
  bool before_in_program(std::size_t a, std::size_t b) const {
    return a < b && thread(a) >= 0 && thread(a) == thread(b);
  }
  bool morally_strong(std::size_t a, std::size_t b) const {
    if (thread(a) >= 0 && thread(a) == thread(b)) return true;
    if (!strong(a) || !strong(b)) return false;
    if (memory(a) && memory(b) && events_[a].location != events_[b].location) return false;
    return includes(events_[a].op->access.scope, place(a), place(b)) &&
           includes(events_[b].op->access.scope, place(b), place(a));
  }

  // ---- Values: what is read, which operations are executed, what is written. A cycle of values would be out
  // of thin air.
  void choose_source(std::size_t k) {
    if (k == reads_.size()) return with_sources();
    const std::size_t r = reads_[k];
    for (std::size_t w = 0; w < events_.size(); ++w) {
      if (!writes(w) || events_[w].location != events_[r].location || w == events_[r].other) continue;
      source_[r] = w;
      choose_source(k + 1);
    }
  }
  void with_sources() {
    values_.assign(events_.size(), std::nullopt);
    done_.assign(events_.size(), std::nullopt);
    for (bool more = true; more;) {
      more = false;
      for (std::size_t e = 0; e < events_.size(); ++e) {
        const bool knew = done_[e].has_value() && values_[e].has_value();
        if (knew) continue;
        resolve(e);
        more |= done_[e].has_value() && values_[e].has_value();
      }
    }
    for (std::size_t e = 0; e < events_.size(); ++e) {
      if (!done_[e] || !values_[e]) return;
      if (events_[e].kind != Event::Kind::read) continue;
      if (!*done_[e] && source_[e] >= events_.size()) return;
      // A read that is not executed needs only one source.
      if (!*done_[e] && events_[source_[e]].kind != Event::Kind::init) return;
      if (*done_[e] && !*done_[source_[e]]) return;
    }
    locations_.clear();
    for (int l = 0; l < p_.locations; ++l) {
      locations_.emplace_back();
      for (std::size_t e = 0; e < events_.size(); ++e)
        if (writes(e) && events_[e].location == l && *done_[e]) locations_.back().push_back(e);
    }
    order_location(0);
  }
  void resolve(std::size_t e) {
    const Event& x = events_[e];
    if (x.kind == Event::Kind::init) {
      done_[e] = true, values_[e] = 0;
      return;
    }
    if (!done_[e]) {
      if (x.op->guard < 0) {
        done_[e] = true;
      } else {
        for (const std::size_t r : reads_)
          if (events_[r].op->to == x.op->guard && done_[r] && values_[r])
            done_[e] = *done_[r] && *values_[r] == x.op->guarded_by;
      }
      if (!done_[e]) return;
    }
    if (!*done_[e] || !memory(e)) {
      values_[e] = 0;
    } else if (x.kind == Event::Kind::read) {
      values_[e] = values_[source_[e]];
    } else if (x.op->kind == Operation::Kind::store) {
      values_[e] = x.op->value;
    } else if (values_[x.other]) {
      const std::uint64_t old = *values_[x.other];
      if (x.op->atomic == Atomic::cas && old != x.op->value) done_[e] = false;
      values_[e] = x.op->atomic == Atomic::add      ? old + x.op->value
                   : x.op->atomic == Atomic::bit_or ? old | x.op->value
                   : x.op->atomic == Atomic::cas    ? x.op->desired
                                                    : x.op->value;
    }
  }

  // ---- Orders.
  void order_location(std::size_t l) {
    if (l == locations_.size()) {
      fences_.clear();
      for (std::size_t e = 0; e < events_.size(); ++e)
        if (events_[e].kind == Event::Kind::fence && events_[e].op->access.order == Order::sc && *done_[e])
          fences_.push_back(e);
      do check();
      while (std::next_permutation(fences_.begin(), fences_.end()));
      return;
    }
    auto& writes_of = locations_[l];
    const auto first = writes_of.begin() + 1;  // the initial write stays first
    std::sort(first, writes_of.end());
    do order_location(l + 1);
    while (std::next_permutation(first, writes_of.end()));
  }

  void check() {
    const std::size_t n = events_.size();
    const auto done = [&](std::size_t e) { return *done_[e]; };
    Relation from, coherence, after_read, base, sc;
    for (const std::size_t r : reads_)
      if (done(r)) from.add(source_[r], r);
    for (const auto& l : locations_)
      for (std::size_t i = 0; i < l.size(); ++i)
        for (std::size_t j = i + 1; j < l.size(); ++j) coherence.add(l[i], l[j]);
    for (const std::size_t r : reads_)
      if (done(r)) after_read.row[r] = coherence.row[source_[r]];
    for (std::size_t i = 0; i < fences_.size(); ++i)
      for (std::size_t j = i + 1; j < fences_.size(); ++j)
        if (morally_strong(fences_[i], fences_[j])) sc.add(fences_[i], fences_[j]);

    // Atomicity, and coherence for each location.
    Relation local;
    for (std::size_t a = 0; a < n; ++a)
      for (std::size_t b = 0; b < n; ++b) {
        if (a == b || !done(a) || !done(b) || !memory(a) || !memory(b)) continue;
        if (events_[a].location != events_[b].location) continue;
        const bool communicates = from.has(a, b) || coherence.has(a, b) || after_read.has(a, b);
        if (before_in_program(a, b) ||
            (communicates && (events_[a].kind == Event::Kind::init || morally_strong(a, b))))
          local.add(a, b);
        if (events_[a].kind == Event::Kind::read && events_[a].other != kNone && done(events_[a].other) &&
            after_read.has(a, b) && coherence.has(b, events_[a].other) && morally_strong(a, b))
          return;
      }
    if (local.cyclic()) return;

    // Observation: reading a write, also through a chain of atomic operations.
    Relation observed;
    for (const std::size_t r : reads_)
      if (done(r) && morally_strong(source_[r], r)) observed.add(source_[r], r);
    for (std::size_t round = 0; round < reads_.size(); ++round)
      for (std::size_t w = 0; w < n; ++w)
        for (const std::size_t r : reads_)
          if (observed.has(w, r) && events_[r].other != kNone && done(events_[r].other))
            observed.row[w] |= observed.row[events_[r].other];

    // Base causality: program order, synchronisation, barriers, the order of sc fences.
    for (std::size_t a = 0; a < n; ++a) {
      base.row[a] |= sc.row[a];
      for (std::size_t b = 0; b < n; ++b) {
        if (a == b || !done(a) || !done(b)) continue;
        const bool meets = events_[a].kind == Event::Kind::barrier &&
                           events_[b].kind == Event::Kind::barrier && place(a).block == place(b).block;
        if (before_in_program(a, b) || meets || events_[a].kind == Event::Kind::init ||
            synchronizes(a, b, observed))
          base.add(a, b);
      }
    }
    base.close();
    for (const std::size_t a : fences_)
      for (const std::size_t b : fences_)
        if (sc.has(b, a) && base.has(a, b)) return;
    Relation cause = base;
    for (std::size_t a = 0; a < n; ++a)
      for (const std::size_t z : reads_)
        if (observed.has(a, z))
          for (std::size_t b = 0; b < n; ++b)
            if (base.has(z, b) && memory(b) && events_[b].location == events_[z].location) cause.add(a, b);
    // An atomic operation is a single event: what its write precedes, its read precedes too.
    const auto ordered = [&](std::size_t x, std::size_t y) {
      const std::size_t write = events_[x].kind == Event::Kind::read ? events_[x].other : kNone;
      return cause.has(x, y) || (write != kNone && done(write) && cause.has(write, y));
    };
    bool race = false;
    for (std::size_t a = 0; a < n; ++a)
      for (std::size_t b = 0; b < n; ++b) {
        if (a == b || !done(a) || !done(b) || !memory(a) || !memory(b)) continue;
        if (events_[a].location != events_[b].location) continue;
        if (cause.has(a, b)) {
          if (writes(a) && writes(b) && !coherence.has(a, b)) return;  // coherence
          if (from.has(b, a) || after_read.has(b, a)) return;          // causality
        }
        if (a < b && (writes(a) || writes(b)) && thread(a) != thread(b) && !morally_strong(a, b) &&
            !ordered(a, b) && !ordered(b, a))
          race = true;
      }
    ++found_.executions;
    found_.outcomes.insert(race ? "race" : outcome());
  }
  /// a: the first event of a release pattern, b: the last event of an acquire pattern that observes it.
  bool synchronizes(std::size_t a, std::size_t b, const Relation& observed) const {
    if (!strong(a) || !strong(b) || !morally_strong(a, b) || thread(a) == thread(b)) return false;
    const bool fence_a = events_[a].kind == Event::Kind::fence,
               fence_b = events_[b].kind == Event::Kind::fence;
    if (!fence_a && (events_[a].kind != Event::Kind::write || !releases(a))) return false;
    if (!fence_b && (events_[b].kind != Event::Kind::read || !acquires(b))) return false;
    for (std::size_t w = 0; w < events_.size(); ++w) {
      if (!writes(w) || !strong(w) || !*done_[w]) continue;
      const bool given =
          w == a || (before_in_program(a, w) && (fence_a || events_[a].location == events_[w].location));
      if (!given) continue;
      for (const std::size_t r : reads_) {
        if (!*done_[r] || !strong(r) || !observed.has(w, r)) continue;
        if (r == b || (before_in_program(r, b) && (fence_b || events_[r].location == events_[b].location)))
          return true;
      }
    }
    return false;
  }
  std::string outcome() const {
    std::vector<std::string> values(static_cast<std::size_t>(p_.registers), "-");
    for (const std::size_t r : reads_)
      if (*done_[r] && events_[r].op->to >= 0)
        values[static_cast<std::size_t>(events_[r].op->to)] = std::to_string(*values_[r]);
    std::string text;
    for (std::size_t i = 0; i < values.size(); ++i)
      text += (i == 0 ? "r" : " r") + std::to_string(i + 1) + "=" + values[i];
    return text;
  }

  const Program& p_;
  std::vector<Event> events_;
  std::vector<std::size_t> reads_, source_, fences_;
  std::vector<std::vector<std::size_t>> locations_;
  std::vector<std::optional<std::uint64_t>> values_;
  std::vector<std::optional<bool>> done_;
  Found found_;
};

}  // namespace

Found by_axioms(const Program& p) { return Executions(p).all(); }

}  // namespace ptx::litmus
