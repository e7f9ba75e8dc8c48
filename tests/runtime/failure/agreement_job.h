// One run of the agreement in virtual time: hosts, a network, failures, and the invariants that must always
// hold. Used by agreement_test.cc.
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "runtime/health/agreement.h"

namespace ouro::rt::played {

using namespace std::chrono_literals;
using Micros = std::chrono::microseconds;
using Time = std::chrono::steady_clock::time_point;

inline constexpr Micros kPatience = 200ms, kSilence = 100ms, kPoll = 20ms, kHorizon = 10s;
inline constexpr int kMaxEvents = 200'000;

/// What a rank publishes to others.
struct Page {
  bool called = false, out = false;
  std::uint64_t completed = 0;
  std::optional<Verdict> decided;
  Vote vote;
};

/// One run: ranks on hosts, a plan of failures, and the invariants. Ranks of the same host read a rank's page
/// directly; ranks of other hosts receive its versions late, in order, or never. `Agreement`: the
/// implementation under test.
template <class Agreement>
class Job {
 public:
  explicit Job(std::uint64_t seed) : random_(seed) {
    wild_ = chance(50);
    n_ = pick(2, 7);
    const int hosts = std::min(n_, pick(1, 3));
    for (int r = 0; r < n_; ++r) {
      Rank& me = ranks_.emplace_back();
      me.host = r < hosts ? r : pick(0, hosts - 1);  // every host has a rank
      me.page.completed = static_cast<std::uint64_t>(pick(5, 7));
    }
    std::shuffle(ranks_.begin(), ranks_.end(), random_);
    for (int r = 0; r < n_; ++r)
      ranks_[at(r)].agreement.emplace(r, n_, wild_ ? kPatience / 8 : kPatience, Vote{});
    pairs_.resize(at(n_ * n_));
    for (Pair& p : pairs_) p.delay = Micros(pick(20, 1 << (wild_ ? pick(9, 16) : pick(5, 14))));
    for (int i = 0; i < n_; ++i)
      for (int j = 0; j < n_; ++j) pair(i, j).copy = ranks_[at(j)].page;
    plan();
    if (wild_) quiet_ = false;
  }

  /// What went wrong, or "".
  std::string play() {
    for (int events = 0; !events_.empty() && wrong_.empty(); ++events) {
      if (events > kMaxEvents) return "it never ends";
      Event e = events_.top();
      events_.pop();
      now_ = e.at;
      if (now_ > Time(kHorizon)) break;
      e.what();
    }
    check_end();
    return wrong_;
  }
  std::string text() const {
    std::string s;
    for (int r = 0; r < n_; ++r) {
      const Rank& k = ranks_[at(r)];
      s += fmt::format(" {}@{}:{}", r, k.host,
                       !k.alive         ? "killed"
                       : k.no_quorum    ? "no-quorum"
                       : k.fenced       ? "fenced"
                       : k.page.decided ? "decided"
                                        : "undecided");
    }
    return s + "; " + story_;
  }

 private:
  struct Rank {
    int host = 0;
    bool alive = true, stopped = false, asleep = true, no_quorum = false, fenced = false;
    int dies_at_write = -1;  // number of writes to its page before it dies; -1: none
    Page page;
    std::optional<Agreement> agreement;
  };
  /// What rank i knows about rank j.
  struct Pair {
    Micros delay{0};
    Time last{};
    Page copy;  // of a rank on another host
    bool lost = false, known_dead = false;
    std::deque<Page> held;  // versions held back while the network between them is cut
  };
  struct Event {
    Time at;
    int order;
    std::function<void()> what;
    bool operator<(const Event& o) const { return at != o.at ? at > o.at : order > o.order; }
  };

  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  Pair& pair(int i, int j) { return pairs_[at(i * n_ + j)]; }
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }
  Micros upto(Micros most) { return Micros(pick(0, static_cast<int>(most.count()))); }
  void after(Micros d, std::function<void()> what) { events_.push({now_ + d, order_++, std::move(what)}); }
  bool near(int i, int j) const { return ranks_[at(i)].host == ranks_[at(j)].host; }
  bool is_cut(int i, int j) const {
    return cut_ >= 0 && (ranks_[at(i)].host == cut_) != (ranks_[at(j)].host == cut_);
  }

  /// Plans the failures of this run.
  void plan() {
    for (int r = 0; r < n_; ++r) after(upto(chance(80) ? 5ms : 150ms), [this, r] { call(r); });
    const int kind = pick(0, 7);
    const int deaths = kind == 7 ? 0 : pick(kind < 5 ? 1 : 0, std::max(1, n_ - 1));
    std::vector<int> order(at(n_));
    for (int r = 0; r < n_; ++r) order[at(r)] = r;
    std::shuffle(order.begin(), order.end(), random_);
    for (int i = 0; i < deaths; ++i) {
      const int r = order[at(i)];
      story_ += fmt::format("kill {}; ", r);
      if (chance(50)) ranks_[at(r)].dies_at_write = pick(0, 6);
      after(chance(30) ? 0us : upto(40ms), [this, r] {
        if (ranks_[at(r)].dies_at_write < 0) kill(r);
      });
      after(60ms, [this, r] { kill(r); });
    }
    if (kind >= 3 && kind != 7) quiet_ = false, disturb();
    if (kind == 7) disturb(), quiet_ = false;
  }
  void disturb() {
    if (chance(60)) {  // cuts one host off
      const int host = ranks_[at(pick(0, n_ - 1))].host;
      const Micros start = upto(30ms), length = chance(50) ? Micros(kHorizon) : upto(2 * kSilence);
      story_ += fmt::format("cut host {} for {} ms; ", host, length / 1ms);
      after(start, [this, host] { cut(host); });
      after(start + length, [this] { heal(); });
    }
    for (int i = wild_ ? pick(2, 8) : pick(0, 3); i > 0; --i) {  // a rank gives up a living rank
      const int a = pick(0, n_ - 1), b = pick(0, n_ - 1);
      if (near(a, b)) continue;
      story_ += fmt::format("{} loses {}; ", a, b);
      after(upto(40ms), [this, a, b] { lose(a, b, kSilence); });
    }
    if (chance(30)) {
      const int r = pick(0, n_ - 1);
      story_ += fmt::format("stop {}; ", r);
      after(upto(20ms), [this, r] { ranks_[at(r)].stopped = true; });
      after(kSilence, [this, r] {
        for (int o = 0; o < n_; ++o)
          if (!near(o, r) && ranks_[at(r)].stopped) lose(o, r, 4 * kSilence);
      });
      after(20ms + upto(3 * kSilence), [this, r] { ranks_[at(r)].stopped = false, wake(r); });
    }
  }

  void call(int r) {
    Rank& me = ranks_[at(r)];
    if (!me.alive) return;
    me.page.called = true;
    write(r);
    poll(r);
  }
  void poll(int r) {
    wake(r);
    if (!ended(r)) after(kPoll, [this, r] { poll(r); });
  }
  bool ended(int r) const {
    const Rank& me = ranks_[at(r)];
    return !me.alive || me.no_quorum || me.fenced || me.page.decided;
  }
  void wake(int r) {
    Rank& me = ranks_[at(r)];
    if (!me.asleep || !me.page.called || ended(r)) return;
    me.asleep = false;
    after(upto(chance(wild_ ? 60 : 90) ? 500us
               : wild_                 ? 60ms
                                       : 5ms),
          [this, r] {
            ranks_[at(r)].asleep = true;
            step(r);
          });
  }

  void step(int r) {
    Rank& me = ranks_[at(r)];
    if (ended(r) || me.stopped) return;
    std::vector<typename Agreement::Member> view(at(n_));
    for (int o = 0; o < n_; ++o) {
      typename Agreement::Member& m = view[at(o)];
      const Page& page = near(r, o) ? ranks_[at(o)].page : pair(r, o).copy;
      const bool dead = near(r, o) && (pair(r, o).known_dead || page.out);
      m.standing = dead              ? Agreement::Standing::dead
                   : page.out        ? Agreement::Standing::out
                   : pair(r, o).lost ? Agreement::Standing::lost
                                     : Agreement::Standing::live;
      m.called = page.called, m.completed = page.completed, m.decided = page.decided, m.vote = page.vote;
    }
    const auto outcome = me.agreement->step(view, now_);
    if (!(me.page.vote == me.agreement->vote())) {
      me.page.vote = me.agreement->vote();
      if (!write(r)) return;
    }
    if (outcome.state == Agreement::Outcome::no_quorum) {
      me.no_quorum = me.page.out = true;
      write(r);
    } else if (outcome.state == Agreement::Outcome::decided) {
      decide(r, outcome.verdict);
    }
  }

  void decide(int r, const Verdict& v) {
    Rank& me = ranks_[at(r)];
    if (verdict_ && !(*verdict_ == v))
      wrong_ = fmt::format("two verdicts: {{{}}} and {{{}}}", fmt::join(list(verdict_->dead), ","),
                           fmt::join(list(v.dead), ","));
    if (!verdict_) {
      verdict_ = v;
      std::uint64_t resume = ~std::uint64_t{0};
      int kept = 0, gone = 0;
      for (int o = 0; o < n_; ++o) {
        const Rank& other = ranks_[at(o)];
        const bool in = !v.dead.has(o);
        kept += in;
        gone += !other.alive || other.page.out;
        if (in) resume = std::min(resume, other.page.completed + 1);
        if (in && !other.page.called) wrong_ = fmt::format("{} is kept and has not called", o);
        // If ranks wait longer than it takes to notice a death everywhere, no rank is excluded without cause.
        if (!wild_ && !in && other.alive && !other.page.out && !blamed_.has(o))
          wrong_ = fmt::format("{} is out, and nothing happened to it", o);
      }
      if (resume != v.resume) wrong_ = fmt::format("resume at {}, expected {}", v.resume, resume);
      if (2 * kept < n_ - gone) wrong_ = fmt::format("{} of {} go on, {} are gone", kept, n_, gone);
    }
    me.page.decided = v;
    me.fenced = v.dead.has(r);
    if (!write(r)) return;
    if (chance(50))
      after(upto(20ms), [this, r] {  // the rank closes the old group
        Rank& k = ranks_[at(r)];
        if (k.alive) k.page.out = true, write(r);
      });
  }
  std::vector<int> list(const RankSet& set) const {
    std::vector<int> v;
    for (int r = 0; r < n_; ++r)
      if (set.has(r)) v.push_back(r);
    return v;
  }

  /// Publishes the changed page of rank r. False if the rank died at that moment.
  bool write(int r) {
    Rank& me = ranks_[at(r)];
    const bool dies = me.dies_at_write >= 0 && me.dies_at_write-- == 0;
    for (int o = 0; o < n_; ++o) {
      if (near(o, r)) {
        wake(o);
      } else if (!pair(o, r).lost && !(dies && chance(50))) {
        Pair& p = pair(o, r);
        p.last = std::max(p.last, now_ + p.delay + upto(p.delay));
        events_.push({p.last, order_++, [this, o, r, page = me.page] { deliver(o, r, page); }});
      }
    }
    if (dies) kill(r);
    return !dies;
  }
  void deliver(int to, int from, const Page& page) {
    Pair& p = pair(to, from);
    if (p.lost) return;
    if (is_cut(to, from) || !p.held.empty()) return p.held.push_back(page);
    p.copy = page;
    wake(to);
  }

  void kill(int r) {
    Rank& me = ranks_[at(r)];
    if (!me.alive) return;
    me.alive = false;
    blamed_.add(r);
    for (int o = 0; o < n_; ++o) {
      if (o == r) continue;
      if (near(o, r))
        after(upto(3ms), [this, o, r] { pair(o, r).known_dead = true, wake(o); });
      else
        after(pair(o, r).delay * 2 + upto(5ms), [this, o, r] {
          if (!is_cut(o, r)) pair(o, r).lost = true, wake(o);
        });
    }
  }
  /// Rank a gives up rank b; b gives up a after at most `most`.
  void lose(int a, int b, Micros most) {
    blamed_.add(a), blamed_.add(b);
    pair(a, b).lost = true;
    wake(a);
    after(upto(most), [this, a, b] { pair(b, a).lost = true, wake(b); });
  }
  void cut(int host) {
    cut_ = host;
    after(kSilence, [this, host] {
      if (cut_ != host) return;
      for (int i = 0; i < n_; ++i)
        for (int j = 0; j < n_; ++j)
          if (is_cut(i, j)) {
            blamed_.add(i);
            after(upto(10ms), [this, i, j] { pair(i, j).lost = true, wake(i); });
          }
    });
  }
  void heal() {
    cut_ = -1;
    for (int i = 0; i < n_; ++i)
      for (int j = 0; j < n_; ++j) {
        auto held = std::exchange(pair(i, j).held, {});
        for (const Page& page : held) deliver(i, j, page);
        if (!ranks_[at(j)].alive && !near(i, j)) pair(i, j).lost = true;
        wake(i);
      }
  }

  void check_end() {
    if (!wrong_.empty()) return;
    for (int r = 0; r < n_; ++r)
      if (!ended(r)) wrong_ = fmt::format("rank {} goes on for ever", r);
    if (!quiet_ || !wrong_.empty()) return;
    // If there were only deaths, the survivors continue if they are a quorum of the ranks that are not
    // proven dead.
    int all = 0, left = 0, first = -1;
    for (int r = 0; r < n_; ++r) {
      bool proven = false;
      for (int o = 0; o < n_; ++o) proven |= !ranks_[at(r)].alive && near(o, r) && ranks_[at(o)].alive;
      if (proven) continue;
      if (first < 0) first = r;
      ++all;
      left += ranks_[at(r)].alive;
    }
    const bool quorum = 2 * left > all || (2 * left == all && first >= 0 && ranks_[at(first)].alive);
    for (int r = 0; quorum && r < n_; ++r)
      if (ranks_[at(r)].alive && !ranks_[at(r)].page.decided)
        wrong_ = fmt::format("rank {} of a quorum gave up", r);
    for (int r = 0; r < n_; ++r)
      if (ranks_[at(r)].alive && ranks_[at(r)].fenced)
        wrong_ = fmt::format("rank {} was put out without cause", r);
  }

  std::mt19937_64 random_;
  int n_ = 0, order_ = 0, cut_ = -1;
  bool quiet_ = true, wild_ = false;  // wild: so slow and impatient that several ranks propose at once
  Time now_{};
  std::vector<Rank> ranks_;
  std::vector<Pair> pairs_;
  std::priority_queue<Event> events_;
  std::optional<Verdict> verdict_;
  RankSet blamed_;  // ranks that something happened to
  std::string wrong_, story_;
};

}  // namespace ouro::rt::played
