// Runs a script against the clock: every class of ranks has a time, links are bounded queues of send times.
// The outcome does not depend on the order in which ranks are looked at: each waits for what it needs to
// know.
#include <algorithm>
#include <array>

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
    const int k = c.node_size(s.ranks);
    near_ = k - 1;
    far_ = s.ranks - k;
  }

  Outcome run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (std::size_t i = 0; i < classes_.size(); ++i) {
        while (classes_[i].round < s_.program_rounds && hop(i)) progress = true;
      }
    }
    Outcome out;
    out.finished = true;
    double folded_most = 0;
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      const Class& k = classes_[i];
      out.finished = out.finished && k.round == s_.program_rounds;
      out.seconds = std::max(out.seconds, k.now);
      out.intra += s_.weight[i] * k.folded * near_;
      out.inter += s_.weight[i] * k.folded * far_;
      if (s_.ranks > 1) folded_most = std::max(folded_most, k.folded);
    }
    for (const Link& link : links_) out.busiest = std::max(out.busiest, link.bytes);
    out.intra += intra_;
    out.inter += inter_;
    out.busiest += folded_most;  // a fold reads from all, so it adds to the pair that carries most
    return out;
  }

 private:
  struct Class {
    double now = 0, egress = 0, ingress = 0;  // seconds; ports are busy until then
    std::size_t step = 0;
    int round = 0, meets = 0;
    bool at_meet = false;
    int released = 0;
    struct Page {
      double posted = 0, result = 0;  // when
      int posted_round = -1, result_round = -1;
    };
    std::array<Page, BoardView::kPages> pages;
    double folded = 0;  // bytes that folds have read from each other rank
  };
  struct Link {
    std::int64_t sent = 0, taken = 0;
    double bytes = 0;
  };
  struct Gate {  // of a meet or the end of a round: who has come, and when the last one did
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
  double board_alpha() const { return far_ > 0 ? c_.inter.alpha : c_.board.alpha; }
  double from_everyone(double bytes) const {
    return near_ * c_.board.busy(bytes) + far_ * c_.inter.busy(bytes);
  }
  void account(int pair, double bytes) {
    (s_.pairs[index(pair)].inside ? intra_ : inter_) += bytes * s_.pairs[index(pair)].weight;
    links_[index(pair)].bytes += bytes;
  }

  void advance(Class& me, std::size_t i) {
    if (++me.step < s_.programs[i].size()) return;
    if (!s_.pipelined) gate(ended_, me.round).come(me.now);
    me.step = 0;
    ++me.round;
  }

  /// One step of class i; false: it must wait for another.
  bool hop(std::size_t i) {
    Class& me = classes_[i];
    if (s_.programs[i].empty()) return advance(me, i), true;
    const Op& op = s_.programs[i][me.step];
    const auto has = [&](std::uint32_t verbs) { return (op.verb & verbs) != 0; };
    const bool went = has(kMeet)      ? meet(me)
                      : has(kPost)    ? post(me, op)
                      : has(kPosted)  ? read_boards(me, op)
                      : has(kSpread)  ? spread(me)
                      : has(kRelease) ? release(me)
                                      : exchange(me, op);
    if (went) advance(me, i);
    return went;
  }

  bool exchange(Class& me, const Op& op) {
    const auto has = [&](std::uint32_t verbs) { return (op.verb & verbs) != 0; };
    const double in_bytes = s_.chunk_bytes * (has(kWideIn) ? s_.wide_ratio : 1);
    const double out_bytes = s_.chunk_bytes * (has(kWideOut) ? s_.wide_ratio : 1);
    Link* in = op.in < 0 ? nullptr : &links_[index(op.in)];
    Link* out = op.out < 0 ? nullptr : &links_[index(op.out)];
    if (in && in->taken == in->sent) return false;
    if (out && out->sent - out->taken >= c_.slots) return false;
    if (in) {
      const Wire& wire = s_.pairs[index(op.in)].wire;
      const double start = started_[index(op.in) * index(c_.slots) + index(in->taken % c_.slots)];
      me.ingress = std::max(start + wire.alpha, me.ingress) + wire.busy(in_bytes);
      me.now = std::max(me.now, me.ingress);
      account(op.in, in_bytes);
    }
    if (has(kInput | kAcc) && (in || has(kStore | kKeep))) me.now += in_bytes * c_.gamma;
    if (out) {
      const std::size_t slot = index(op.out) * index(c_.slots) + index(out->sent % c_.slots);
      if (out->sent >= c_.slots) me.now = std::max(me.now, freed_[slot]);
      me.egress = std::max(me.now, me.egress);
      started_[slot] = me.egress;
      me.egress += s_.pairs[index(op.out)].wire.busy(out_bytes);
      ++out->sent;
    }
    if (in) freed_[index(op.in) * index(c_.slots) + index(in->taken++ % c_.slots)] = me.now;
    return true;
  }

  bool meet(Class& me) {
    if (!me.at_meet) gate(met_, me.meets).come(me.now);
    me.at_meet = true;
    const Gate& all = gate(met_, me.meets);
    if (all.count < classes_.size()) return false;
    me.at_meet = false;
    ++me.meets;
    me.now = std::max(me.now, all.last + board_alpha());
    return true;
  }

  static int round_of(const Class& me, const Op& op) { return op.round < 0 ? me.round : op.round; }
  static auto& page_of(auto& k, int round) { return k.pages[index(round % BoardView::kPages)]; }

  bool release(Class& me) {
    gate(ended_, me.released++).come(me.now);
    return true;
  }

  /// Mine, into the outputs of all, once all have said where those lie.
  bool spread(Class& me) {
    double when = 0;
    for (const Class& k : classes_) {
      if (page_of(k, me.round).posted_round != me.round) return false;
      when = std::max(when, page_of(k, me.round).posted);
    }
    me.now = std::max(me.now, when + board_alpha()) + from_everyone(s_.chunk_bytes);
    me.folded += s_.chunk_bytes;
    return true;
  }

  bool post(Class& me, const Op& op) {
    const int round = round_of(me, op);
    if (round >= BoardView::kPages) {
      const Gate& free = gate(ended_, round - BoardView::kPages);
      if (free.count < classes_.size()) return false;
      me.now = std::max(me.now, free.last + board_alpha());
    }
    if (!s_.by_reference) me.now += c_.board.busy(op.span * s_.chunk_bytes);
    const bool is_result = (op.verb & kResult) != 0;
    auto& page = page_of(me, round);
    (is_result ? page.result : page.posted) = me.now;
    (is_result ? page.result_round : page.posted_round) = round;
    return true;
  }

  bool read_boards(Class& me, const Op& op) {
    const int round = round_of(me, op);
    const bool is_result = (op.verb & kResult) != 0, all = op.from < 0;
    const std::size_t first = all ? 0 : index(op.from), last = all ? classes_.size() - 1 : first;
    double when = 0;
    for (std::size_t q = first; q <= last; ++q) {
      const auto& page = page_of(classes_[q], round);
      if (&classes_[q] == &me && s_.weight[q] == 1 && all && !s_.by_reference) continue;  // mine is at hand
      if ((is_result ? page.result_round : page.posted_round) != round) return false;
      when = std::max(when, is_result ? page.result : page.posted);
    }
    if (!all) {
      const Wire& wire = s_.pairs[index(op.in)].wire;
      me.now = std::max(me.now, when + wire.alpha) + wire.busy(s_.chunk_bytes);
      if (op.verb & kSpread) me.now += from_everyone(s_.chunk_bytes), me.folded += s_.chunk_bytes;
      account(op.in, s_.chunk_bytes);
      return true;
    }
    const double passes = (op.verb & kSpread) != 0 ? 2 : 1;  // a spread writes as much as it reads
    me.now = std::max(me.now, when + board_alpha()) + passes * from_everyone(s_.chunk_bytes) +
             (s_.ranks - 1) * s_.chunk_bytes * c_.gamma;
    me.folded += passes * s_.chunk_bytes;
    return true;
  }

  const Cluster& c_;
  const Script& s_;
  std::vector<Class> classes_;
  std::vector<Link> links_;
  std::vector<double> started_, freed_;  // by link and slot
  std::vector<Gate> met_, ended_;
  double intra_ = 0, inter_ = 0;  // bytes over links and of fetches
  double near_ = 0, far_ = 0;     // other ranks on my node, and elsewhere
};

}  // namespace

Outcome run(const Cluster& cluster, const Script& script) { return Clock(cluster, script).run(); }

}  // namespace ouro::sim
