// The machine behind verify(): steps, links and their values; memory and staging buffers are in files beside
// it. Used by the flow tests.
#include "tests/kernels/flow/verifier.h"

#include <algorithm>
#include <cstdint>

#include "tests/kernels/flow/staging.h"

namespace ouro::flow {
namespace {

class Machine : private StagingBuffers {
 public:
  Machine(const Program& p, Setting s)
      : StagingBuffers(p, s), acc_(index(n_ * keys_)), link_of_(index(n_ * n_), -1) {
    for (int r = 0; r < n_; ++r) ranks_[index(r)].heard = bit(r);
  }

  std::string run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (int r = 0; r < n_; ++r) {
        while (error_.empty() && !done(r) && hop(r)) progress = true;
      }
      if (!error_.empty()) return error_;
    }
    for (int r = 0; r < n_; ++r) {
      if (!done(r)) return fail(r, "deadlock");
    }
    for (const Link& link : links_) {
      if (link.count != 0) return "messages left in flight";
    }
    return check_outputs();
  }

 private:
  Link& link(int from, int to) {
    int& at = link_of_[index(from * n_ + to)];
    if (at < 0) {
      at = static_cast<int>(links_.size());
      links_.emplace_back();
    }
    return links_[index(at)];
  }

  bool done(int r) const { return ranks_[index(r)].round == rounds_; }
  void advance(int r) {
    Rank& me = ranks_[index(r)];
    if (me.step < p_.steps[index(r)].size()) ++me.step;
    if (me.step < p_.steps[index(r)].size()) return;
    if (p_.collective == Collective::barrier && me.heard != everyone()) fail(r, "leaves a barrier too early");
    if (p_.pipelined) {
      if (p_.staging && n_ > 1 && me.released != p_.rounds) fail(r, "keeps a round open");
    } else {
      ++released_[index(me.round)];
    }
    ++me.round;
    me.step = 0;
    me.heard = bit(r);
  }

  /// Executes one step of rank r; false: it must wait (or error_ is set).
  bool hop(int r) {
    Rank& me = ranks_[index(r)];
    if (p_.steps[index(r)].empty()) return advance(r), true;
    const Step s = p_.steps[index(r)][me.step];
    const auto has = [&](std::uint32_t verbs) { return (s.verb & verbs) != 0; };
    if (s.chunk < 0 || s.chunk >= p_.chunks) return broken(r, "no such chunk");
    const bool mixes = p_.collective == Collective::mix;
    if (s.weight != 1 && !(mixes && has(kRecv))) return broken(r, "a weighted sum");
    if (!p_.staging && has(kPosted | kPost | kBarrier | kMulticast | kRelease))
      return broken(r, "undeclared use of staging buffers");
    if (!p_.multicast && has(kMulticast)) return broken(r, "undeclared use of registered outputs");
    if (has(kRecv) && has(kPosted)) return broken(r, "a step with two sources");
    if (!p_.keeps && has(kKeep)) return broken(r, "undeclared use of accumulators");
    if (has(kBarrier)) return barrier(r);
    if (has(kPost)) {
      if (!post(r, s)) return false;
      advance(r);
      return true;
    }
    if (has(kRelease)) return release(r);
    if (has(kMulticast)) {  // outputs may be written once their owners have published where they are
      for (int q = 0; q < n_; ++q) {
        if (ranks_[index(q)].slots[staging_round(r, s.chunk) % kSlots].round != staging_round(r, s.chunk))
          return false;
      }
    }

    Link *in = nullptr, *out = nullptr;
    if (has(kRecv)) {
      if (s.from < 0 || s.from >= n_ || s.from == r) return broken(r, "no such peer");
      if (link(s.from, r).count == 0) return false;
    }
    if (has(kSend)) {
      if (s.to < 0 || s.to >= n_ || s.to == r) return broken(r, "no such peer");
      out = &link(r, s.to);
      if (out->count == s_.window) return false;
    }
    Value came, v;
    if (has(kRecv)) {
      in = &link(s.from, r);
      came = in->slots[in->head];
      in->head = (in->head + 1) % kMaxWindow;
      --in->count;
    }
    if (p_.collective == Collective::barrier) {
      if (has(kRecv)) me.heard |= static_cast<std::uint64_t>(came.expr);
      v = {static_cast<std::int64_t>(me.heard), Kind::raw};
    } else {
      if (has(kPosted) && !take_posted(r, s, came)) return false;
      if (!(mixes ? mix(r, s, came, v) : combine(r, s, came, v))) return false;
    }
    if (has(kSend)) {
      out = &link(r, s.to);
      if (has(kPartialOut) && v.kind != Kind::wide) return broken(r, "sends a narrow value as wide");
      if (!has(kPartialOut) && v.kind == Kind::wide) v.kind = Kind::rounded;
      out->slots[(out->head + out->count++) % kMaxWindow] = v;
    }
    if (!error_.empty()) return false;
    advance(r);
    return true;
  }

  /// Computes the value of a step and stores it where the step says (but does not send it).
  bool combine(int r, const Step& s, const Value& came, Value& v) {
    const auto has = [&](std::uint32_t verbs) { return (s.verb & verbs) != 0; };
    const int slot = r * keys_ + (p_.pipelined ? 0 : key_of(r, s.chunk));
    const bool enters = has(kRecv | kPosted);
    if (enters && has(kPartialIn) != (came.kind == Kind::wide)) {
      return broken(r, std::string("takes a value as ") + (has(kPartialIn) ? "wide" : "narrow") +
                           " that is " + name(came.kind));
    }
    if (has(kRecv) && has(kKeep) && came.kind != Kind::none && expr_.of(came.expr).key != key_of(r, s.chunk))
      return broken(r, "keeps another chunk");
    Value mine, before;  // before: the first of a step's two own values
    if (has(kAcc) && has(kInput)) {
      if (enters || has(kSend)) return broken(r, "three values in a step");
      before = acc_[index(slot)];
      if (before.kind != Kind::wide || expr_.of(before.expr).key != key_of(r, s.chunk))
        return broken(r, "adds its input to nothing");
    }
    if (has(kInput)) {
      if (!read_input(r, r, s.chunk, mine)) return false;
      if (enters || has(kAcc | kKeep | kPartialIn | kPartialOut)) mine.kind = Kind::wide;
    } else if (has(kAcc)) {
      mine = acc_[index(slot)];
      if (mine.kind != Kind::wide) return broken(r, "reads an empty accumulator");
      if (expr_.of(mine.expr).key != key_of(r, s.chunk))
        return broken(r, "reads another chunk's accumulator");
    } else if (has(kResult) && !has(kPosted)) {
      Cell& cell = output(r, key_of(r, s.chunk));
      if (!touch(cell, r, false)) return false;
      if (!cell.stored) return broken(r, "reads a result that is not there");
      mine = cell.value;
    }
    v = enters ? came : mine;
    if (enters && mine.kind != Kind::none) {
      if (came.kind != Kind::wide || mine.kind != Kind::wide) return broken(r, "reduces a narrow value");
      v = {has(kAfter) ? expr_.add(mine.expr, came.expr) : expr_.add(came.expr, mine.expr), Kind::wide};
    }
    if (has(kAfter) && !(has(kRecv) && has(kAcc))) return broken(r, "an order of nothing");
    if (before.kind != Kind::none) v = {expr_.add(before.expr, mine.expr), Kind::wide};
    if (v.kind == Kind::none) return broken(r, "a step without a value");
    if (has(kKeep)) {
      if (v.kind != Kind::wide) return broken(r, "keeps a narrow value");
      acc_[index(slot)] = v;
    }
    const Value finished{v.expr, v.kind == Kind::wide ? Kind::rounded : v.kind};
    if (has(kStore) && !store(r, r, s.chunk, finished)) return false;
    for (int owner = 0; has(kMulticast) && owner < n_; ++owner) {
      if (!store(r, owner, s.chunk, finished)) return false;
    }
    return true;
  }

  /// Computes the value of a step of a weighted sum: inputs are sent raw and multiplied by the receiver; a
  /// rank's own input is multiplied where it is added or stored.
  bool mix(int r, const Step& s, const Value& came, Value& v) {
    const auto has = [&](std::uint32_t verbs) { return (s.verb & verbs) != 0; };
    if (has(kRecv) && (has(kPartialIn) || came.kind != Kind::raw))
      return broken(r, "takes a value that is not raw");
    if (has(kRecv) && expr_.of(came.expr).key != key_of(r, s.chunk)) return broken(r, "takes another chunk");
    if (has(kPartialOut | kResult) || (has(kSend) && has(kRecv | kAcc | kKeep | kStore)))
      return broken(r, "sends more than its input");
    if (has(kInput) && !read_input(r, r, s.chunk, v)) return false;
    if (has(kSend)) return has(kInput) || broken(r, "a step without a value");
    if (has(kInput))
      v = {expr_.scale(v.expr, has(kRecv | kPartialIn | kKeep) ? p_.self[index(r)] : 1), Kind::wide};
    if (has(kAcc)) {
      if (has(kInput)) return broken(r, "two values of its own");
      v = acc_[index(r * keys_)];
      if (v.kind != Kind::wide) return broken(r, "reads an empty accumulator");
      if (expr_.of(v.expr).key != key_of(r, s.chunk)) return broken(r, "reads another chunk's accumulator");
    }
    if (has(kRecv)) {
      const std::int64_t term = expr_.scale(came.expr, s.weight);
      v = {v.kind == Kind::none ? term : expr_.add(v.expr, term), Kind::wide};
    }
    if (v.kind == Kind::none) return broken(r, "a step without a value");
    if (has(kKeep)) acc_[index(r * keys_)] = v;
    return !has(kStore) || store(r, r, s.chunk, {v.expr, Kind::rounded});
  }
  std::int64_t mixed(int r, int key) {
    const auto& in_neighbours = p_.in_neighbours[index(r)];
    const double self = p_.self[index(r)];
    std::int64_t sum = self != 0 || in_neighbours.empty() ? expr_.scale(expr_.leaf(r, key), self) : -1;
    for (const auto& [from, weight] : in_neighbours) {
      const std::int64_t term = expr_.scale(expr_.leaf(from, key), weight);
      sum = sum < 0 ? term : expr_.add(sum, term);
    }
    return sum;
  }

  bool barrier(int r) {
    Rank& me = ranks_[index(r)];
    if (p_.by_reference && me.posted != me.round)
      return broken(r, "meets before it has said where its buffers lie");
    if (!me.at_barrier) {
      me.at_barrier = true;
      if (met_.size() <= index(me.barriers)) met_.push_back(0);
      ++met_[index(me.barriers)];
    }
    if (met_[index(me.barriers)] < n_) return false;
    me.at_barrier = false;
    ++me.barriers;
    me.heard = everyone();
    advance(r);
    return true;
  }

  bool release(int r) {
    Rank& me = ranks_[index(r)];
    if (!p_.pipelined) return broken(r, "releases a round that ends by itself");
    if (me.released == p_.rounds) return broken(r, "releases a round that there is not");
    ++released_[index(me.released++)];
    advance(r);
    return true;
  }

  std::string check_outputs() {
    if (p_.collective == Collective::barrier) return "";
    for (int key = 0; key < keys_; ++key) {
      const int c = key % p_.chunks;
      std::int64_t want = -1;
      if (reduces(p_) && p_.canonical) want = expr_.in_rank_order(key);
      for (int r = 0; r < n_; ++r) {
        if (!has_output(r, c)) continue;
        const Cell& cell = output(r, key);
        const std::string where = " (output " + std::to_string(key) + " of rank " + std::to_string(r) + ")";
        if (!cell.stored) return "missing" + where;
        if (p_.collective == Collective::mix) {
          if (cell.value.kind != Kind::rounded || cell.value.expr != mixed(r, key))
            return "another weighted sum" + where;
          continue;
        }
        if (cell.value.kind != (reduces(p_) ? Kind::rounded : Kind::raw))
          return name(cell.value.kind) + where;
        if (reduces(p_)) {
          const Expressions::Sum sum = expr_.of(cell.value.expr);
          if (sum.key != key || sum.ranks != everyone()) return "incomplete or repeated terms" + where;
          if (want < 0) want = cell.value.expr;
        } else {
          want = meaning(r, key, cut_.within_round(c));
        }
        if (cell.value.expr != want) return (reduces(p_) ? "another association" : "wrong block") + where;
      }
    }
    return check_lifetimes();
  }
  std::int64_t meaning(int r, int key, int c) const {
    switch (p_.collective) {
      case Collective::all_gather:
      case Collective::gather:
        return expr_.leaf(c, key);
      case Collective::all_to_all:
        return expr_.leaf(c, key - c + r);
      default:
        return expr_.leaf(p_.root, key);
    }
  }

  std::vector<Value> acc_;
  std::vector<int> link_of_;  // indices into links_, made on first use
  std::vector<Link> links_;
  std::vector<int> met_;  // by meet: number of ranks that have reached it
};

}  // namespace

std::vector<Aliasing> aliasings(const Program& p) {
  if (!p.in_place || p.collective == Collective::barrier) return {Aliasing::separate};
  if (p.collective == Collective::gather || p.collective == Collective::scatter) {
    return {Aliasing::separate, Aliasing::exact, Aliasing::first_block};
  }
  return {Aliasing::separate, Aliasing::exact};
}

std::string verify(const Program& p, Setting s) {
  if (p.size < 1 || p.size > kMaxRanks || s.window < 1 || s.window > kMaxWindow) return "not a setting";
  if (p.chunks < 1 || (p.pipelined && p.chunks % p.rounds != 0)) return "wrong number of chunks";
  return Machine(p, s).run();
}

std::string refusal(const Program& p) {
  for (const Aliasing aliasing : aliasings(p)) {
    for (const int window : {2, kMaxWindow}) {
      const std::string wrong = verify(p, {window, aliasing});
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

}  // namespace ouro::flow
