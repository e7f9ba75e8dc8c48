// Runs a script against the clock: every class of ranks has a time; links are bounded queues of send times.
// The result does not depend on the order in which classes are processed, because each waits until the times
// it needs are known. Only if ranks share a port are they served in the order of their times.
#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/core/link_view.h"
#include "tools/sim/script.h"

namespace ouro::sim {
namespace {

using namespace flow;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

class Clock {
 public:
  Clock(const Cluster& c, const Script& s)
      : c_(c), s_(s), classes_(s.programs.size()), links_(s.pairs.size()) {
    started_.resize(links_.size() * index(c.slots));
    freed_.resize(started_.size());
    std::vector<int> sizes(index(s.nodes));
    for (const int node : s.node_of) ++sizes[index(node)];
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      const int node = s.node_of[index(s.members[i])];
      classes_[i].near = sizes[index(node)] - 1;
      classes_[i].far = s.ranks - sizes[index(node)];
      classes_[i].node = alike() ? 0 : index(node);
    }
    ports_.resize(index(s.nodes));
  }

  Outcome run() {
    c_.node_port ? run_in_time() : run_in_any_order();
    Outcome out;
    out.finished = true;
    double folded_most = 0;
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      const Class& k = classes_[i];
      out.finished = out.finished && k.round == s_.program_rounds;
      out.seconds = std::max(out.seconds, k.now);
      out.intra += s_.weight[i] * k.folded * k.near;
      out.inter += s_.weight[i] * k.folded * k.far;
      ports_[k.node].received += s_.weight[i] * k.folded * k.far;
      if (s_.ranks > 1) folded_most = std::max(folded_most, k.folded);
    }
    for (const Link& link : links_) out.busiest = std::max(out.busiest, link.bytes);
    for (const Port& port : ports_) out.busiest_node = std::max({out.busiest_node, port.sent, port.received});
    if (alike()) out.busiest_node /= s_.nodes;
    out.intra += intra_;
    out.inter += inter_;
    // A fold reads from all other ranks, so it adds to the pair that carries most.
    out.busiest += folded_most;
    return out;
  }

 private:
  struct Class {
    double now = 0, egress = 0, ingress = 0;  // seconds; egress and ingress: until when the ports are busy
    std::size_t step = 0;
    int round = 0, meets = 0;
    bool at_barrier = false, stuck = false;  // stuck: it waits for a step of another class
    int released = 0;
    struct Page {
      double posted = 0, result = 0;  // times
      int posted_round = -1, result_round = -1;
    };
    std::array<Page, StagingView::kSlots> slots;
    double folded = 0;         // bytes that folds have read from each of the other ranks
    double near = 0, far = 0;  // number of other ranks on its node, and on other nodes
    std::size_t node = 0;
  };
  /// The port of a node to the other nodes.
  struct Port {
    double out = 0, in = 0;         // until when it is busy, if ranks share it
    double sent = 0, received = 0;  // bytes
  };
  struct Link {
    std::int64_t sent = 0, taken = 0;
    double bytes = 0;
  };
  struct Gate {  // a meet or the end of a round: the number of ranks that have reached it, and the time of
                 // the last one
    std::size_t count = 0;
    double last = 0;
    void come(double when) {
      ++count;
      last = std::max(last, when);
    }
  };

  static Gate& gate(std::vector<Gate>& gates, int i) {
    if (gates.size() <= index(i)) gates.resize(index(i) + 1);
    return gates[index(i)];
  }
  bool alike() const { return s_.symmetry.kind != Symmetry::Kind::none; }
  double staging_alpha() const { return s_.nodes > 1 ? c_.inter.alpha : c_.staging.alpha; }
  double from_everyone(const Class& me, double bytes) const {
    return me.near * c_.staging.busy(bytes) + me.far * c_.inter.busy(bytes);
  }
  void account(int pair, double bytes) {
    const Pair& p = s_.pairs[index(pair)];
    (p.inside ? intra_ : inter_) += bytes * p.weight;
    links_[index(pair)].bytes += bytes;
    if (p.inside) return;
    ports_[p.from_node].sent += bytes * p.weight;
    ports_[p.to_node].received += bytes * p.weight;
  }

  void run_in_any_order() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (std::size_t i = 0; i < classes_.size(); ++i) {
        while (classes_[i].round < s_.program_rounds && hop(i)) progress = true;
      }
    }
  }
  /// Ranks that share a port use it in the order in which they reach it.
  void run_in_time() {
    for (;;) {
      std::size_t first = classes_.size();
      double earliest = INFINITY;
      for (std::size_t i = 0; i < classes_.size(); ++i) {
        if (const double when = ready(i); when < earliest) earliest = when, first = i;
      }
      if (first == classes_.size()) return;
      if (!hop(first)) {
        stuck_.push_back(first);
        classes_[first].stuck = true;
      } else {
        for (const std::size_t i : stuck_) classes_[i].stuck = false;
        stuck_.clear();
      }
    }
  }
  /// The earliest time of the next step of class i, as far as its links determine it; infinity:
  /// not yet known.
  double ready(std::size_t i) const {
    const Class& me = classes_[i];
    if (me.stuck || me.round == s_.program_rounds) return INFINITY;
    if (s_.programs[i].empty()) return me.now;
    const Op& op = s_.programs[i][me.step];
    if ((op.verb & kRecv) == 0) return me.now;
    const Link& in = links_[index(op.in)];
    if (in.taken == in.sent) return INFINITY;
    return std::max(me.now, started_[index(op.in) * index(c_.slots) + index(in.taken % c_.slots)]);
  }

  void advance(Class& me, std::size_t i) {
    if (++me.step < s_.programs[i].size()) return;
    if (!s_.pipelined) gate(ended_, me.round).come(me.now);
    me.step = 0;
    ++me.round;
  }

  /// Executes one step of class i. Returns false if it must wait for another class.
  bool hop(std::size_t i) {
    Class& me = classes_[i];
    if (s_.programs[i].empty()) return advance(me, i), true;
    const Op& op = s_.programs[i][me.step];
    const auto has = [&](std::uint32_t verbs) { return (op.verb & verbs) != 0; };
    const bool went = has(kBarrier)     ? barrier(me)
                      : has(kPost)      ? post(me, op)
                      : has(kPosted)    ? read_staging(me, op)
                      : has(kMulticast) ? multicast(me)
                      : has(kRelease)   ? release(me)
                                        : exchange(me, op);
    if (went) advance(me, i);
    return went;
  }

  bool exchange(Class& me, const Op& op) {
    const auto has = [&](std::uint32_t verbs) { return (op.verb & verbs) != 0; };
    const double in_bytes = s_.chunk_bytes * (has(kPartialIn) ? s_.wide_ratio : 1);
    const double out_bytes = s_.chunk_bytes * (has(kPartialOut) ? s_.wide_ratio : 1);
    Link* in = op.in < 0 ? nullptr : &links_[index(op.in)];
    Link* out = op.out < 0 ? nullptr : &links_[index(op.out)];
    if (in && in->taken == in->sent) return false;
    if (out && out->sent - out->taken >= c_.slots) return false;
    if (in) {
      const Pair& pair = s_.pairs[index(op.in)];
      const double start = started_[index(op.in) * index(c_.slots) + index(in->taken % c_.slots)];
      if (!shared(pair))
        me.ingress = std::max(start + pair.wire.alpha, me.ingress) + pair.wire.busy(in_bytes);
      me.now = std::max(me.now, shared(pair) ? start : me.ingress);
      account(op.in, in_bytes);
    }
    if (has(kInput | kAcc) && (in || has(kStore | kKeep))) me.now += in_bytes * c_.gamma;
    if (out) {
      const std::size_t slot = index(op.out) * index(c_.slots) + index(out->sent % c_.slots);
      if (out->sent >= c_.slots) me.now = std::max(me.now, freed_[slot]);
      const Pair& pair = s_.pairs[index(op.out)];
      if (shared(pair)) {
        started_[slot] = carry(pair, me.now, out_bytes);
      } else {
        me.egress = std::max(me.now, me.egress);
        started_[slot] = me.egress;
        me.egress += pair.wire.busy(out_bytes);
      }
      ++out->sent;
    }
    if (in) freed_[index(op.in) * index(c_.slots) + index(in->taken++ % c_.slots)] = me.now;
    return true;
  }

  bool shared(const Pair& pair) const { return c_.node_port && !pair.inside; }
  /// Sends a message over the ports of two nodes and returns its arrival time.
  double carry(const Pair& pair, double now, double bytes) {
    Port &from = ports_[pair.from_node], &to = ports_[pair.to_node];
    const double start = std::max(now, from.out);
    from.out = start + pair.wire.busy(bytes);
    to.in = std::max(start + pair.wire.alpha, to.in) + pair.wire.busy(bytes);
    return to.in;
  }

  bool barrier(Class& me) {
    if (!me.at_barrier) gate(met_, me.meets).come(me.now);
    me.at_barrier = true;
    const Gate& all = gate(met_, me.meets);
    if (all.count < classes_.size()) return false;
    me.at_barrier = false;
    ++me.meets;
    me.now = std::max(me.now, all.last + staging_alpha());
    return true;
  }

  static int round_of(const Class& me, const Op& op) { return op.round < 0 ? me.round : op.round; }
  static auto& page_of(auto& k, int round) { return k.slots[index(round % StagingView::kSlots)]; }

  bool release(Class& me) {
    gate(ended_, me.released++).come(me.now);
    return true;
  }

  /// Stores this rank's chunk into the outputs of all, once all have published where these are.
  bool multicast(Class& me) {
    double when = 0;
    for (const Class& k : classes_) {
      if (page_of(k, me.round).posted_round != me.round) return false;
      when = std::max(when, page_of(k, me.round).posted);
    }
    me.now = std::max(me.now, when + staging_alpha()) + from_everyone(me, s_.chunk_bytes);
    me.folded += s_.chunk_bytes;
    return true;
  }

  bool post(Class& me, const Op& op) {
    const int round = round_of(me, op);
    if (round >= StagingView::kSlots) {
      const Gate& free = gate(ended_, round - StagingView::kSlots);
      if (free.count < classes_.size()) return false;
      me.now = std::max(me.now, free.last + staging_alpha());
    }
    if (!s_.by_reference) me.now += c_.staging.busy(op.span * s_.chunk_bytes);
    const bool is_result = (op.verb & kResult) != 0;
    auto& slot = page_of(me, round);
    (is_result ? slot.result : slot.posted) = me.now;
    (is_result ? slot.result_round : slot.posted_round) = round;
    return true;
  }

  bool read_staging(Class& me, const Op& op) {
    const int round = round_of(me, op);
    // A result by reference is in an output, and the meet before this step has already waited for it.
    const bool is_result = (op.verb & kResult) != 0 && !s_.by_reference, all = op.from < 0;
    const std::size_t first = all ? 0 : index(op.from), last = all ? classes_.size() - 1 : first;
    double when = 0;
    for (std::size_t q = first; q <= last; ++q) {
      const auto& slot = page_of(classes_[q], round);
      // A rank does not wait for its own data.
      if (&classes_[q] == &me && s_.weight[q] == 1 && all && !s_.by_reference) continue;
      if ((is_result ? slot.result_round : slot.posted_round) != round) return false;
      when = std::max(when, is_result ? slot.result : slot.posted);
    }
    if (!all) {
      const Wire& wire = s_.pairs[index(op.in)].wire;
      me.now = std::max(me.now, when + wire.alpha) + wire.busy(s_.chunk_bytes);
      if (op.verb & kMulticast) me.now += from_everyone(me, s_.chunk_bytes), me.folded += s_.chunk_bytes;
      account(op.in, s_.chunk_bytes);
      return true;
    }
    const double passes = (op.verb & kMulticast) != 0 ? 2 : 1;  // a multicast writes as much as it reads
    me.now = std::max(me.now, when + staging_alpha()) + passes * from_everyone(me, s_.chunk_bytes) +
             (s_.ranks - 1) * s_.chunk_bytes * c_.gamma;
    me.folded += passes * s_.chunk_bytes;
    return true;
  }

  const Cluster& c_;
  const Script& s_;
  std::vector<Class> classes_;
  std::vector<Link> links_;
  // Indexed by link and slot; over shared ports started_ is the time of arrival.
  std::vector<double> started_, freed_;
  std::vector<Port> ports_;  // by node
  std::vector<std::size_t> stuck_;
  std::vector<Gate> met_, ended_;
  double intra_ = 0, inter_ = 0;  // bytes over links and of fetches
};

}  // namespace

Outcome run(const Cluster& cluster, const Script& script) { return Clock(cluster, script).run(); }

}  // namespace ouro::sim
