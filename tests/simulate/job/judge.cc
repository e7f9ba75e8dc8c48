// Safety and liveness of a run. See judge.h and docs/design/simulation.md.
#include "tests/simulate/job/judge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace simulate {
namespace {

using ouro::Reason;
using Kind = Injection::Kind;

constexpr Nanos kJoinDeadline = 60 * kSecond;
// Tolerance beyond the guaranteed times: pauses of processors and packets, which a scenario draws.
constexpr Nanos kSlack = 8 * kSecond;

double seconds(Nanos t) { return static_cast<double>(t) / static_cast<double>(kSecond); }

const char* name(Call::Kind k) {
  constexpr const char* kCalls[] = {"join", "group", "all_reduce", "shrink", "close"};
  return kCalls[static_cast<int>(k)];
}

class Judge {
 public:
  Judge(const Scenario& s, const std::vector<std::unique_ptr<Rank>>& ranks, Nanos end)
      : s_(s), ranks_(ranks), end_(end) {}

  std::vector<std::string> all() {
    look_at_ends();
    look_at_memberships();
    for (const auto& r : ranks_)
      for (const Call& c : r->calls) look_at(*r, c);
    look_at_survivors();
    return std::move(wrong_);
  }

 private:
  template <class... Args>
  void wrong(fmt::format_string<Args...> text, Args&&... args) {
    wrong_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }
  bool died(const Rank& r) const { return r.process.dead && !r.over; }

  /// Every program must end, without leftovers.
  void look_at_ends() {
    for (const auto& r : ranks_) {
      if (died(*r)) continue;
      if (!r->over) {
        const Call& last = r->calls.back();
        wrong("rank {} has not ended: {} since {:.3f} s, at {:.3f} s", r->process.rank, name(last.kind),
              seconds(last.began), seconds(end_));
      } else if (r->descriptors_left > 0 || r->threads_left > 0) {
        wrong("rank {} has left {} descriptors and {} threads", r->process.rank, r->descriptors_left,
              r->threads_left);
      } else if (r->lingering > 0 || r->unanswered > 0) {
        wrong("rank {} keeps {} link sets of groups that have ended, and waits for {} farewells",
              r->process.rank, r->lingering, r->unanswered);
      }
    }
  }

  /// There is one membership per generation, so that two groups never both continue.
  void look_at_memberships() {
    std::map<std::uint64_t, std::pair<const Rank*, const Call*>> agreed;
    for (const auto& r : ranks_)
      for (const Call& c : r->calls) {
        if (c.kind != Call::Kind::shrink || c.ended < 0 || !c.outcome.ok()) continue;
        const auto [at, fresh] = agreed.try_emplace(c.generation + 1, r.get(), &c);
        if (!fresh && at->second.second->members != c.members)
          wrong("generation {} is {} of rank {} and {} of rank {}", c.generation + 1,
                fmt::join(at->second.second->members, ","), at->second.first->process.rank,
                fmt::join(c.members, ","), r->process.rank);
        for (int m = 0; m < s_.ranks; ++m)
          if (std::find(c.members.begin(), c.members.end(), m) == c.members.end() && !suspected(m, c.ended))
            wrong("rank {} goes on in generation {} without rank {}, to which nothing was done",
                  r->process.rank, c.generation + 1, m);
      }
  }

  /// Whether the rank may be blamed at this time: something noticeable was done to it before, its program had
  /// ended, or it had not joined when something was done.
  bool suspected(int rank, Nanos before) const {
    const bool done = std::any_of(s_.injections.begin(), s_.injections.end(),
                                  [&](const Injection& i) { return i.when <= before && i.serious(); });
    if (done && !joined(rank, before)) return true;
    for (const Injection& i : s_.injections) {
      if (i.when > before || !i.serious()) continue;
      if (i.kind == Kind::part || i.rank == rank || (i.kind == Kind::one_way && i.other == rank)) return true;
    }
    const Rank& r = *ranks_[static_cast<std::size_t>(rank)];
    return !r.calls.empty() && r.calls.back().kind == Call::Kind::close && r.calls.back().began <= before;
  }

  bool joined(int rank, Nanos before) const {
    const auto& calls = ranks_[static_cast<std::size_t>(rank)]->calls;
    return !calls.empty() && calls.front().ended >= 0 && calls.front().ended <= before &&
           calls.front().outcome.ok();
  }

  Nanos bound(const Call& c) const {
    Nanos last = c.began;
    Nanos joined = 0;
    for (const auto& r : ranks_)
      if (!r->calls.empty() && r->calls.front().ended > joined) joined = r->calls.front().ended;
    bool early = false;  // a rank may still be joining when its silence is not judged yet
    for (const Injection& i : s_.injections) {
      if (i.when > c.ended) continue;
      last = std::max(last, i.kind == Kind::kill || i.kind == Kind::lose ? i.when : i.when + i.lasts);
      early |= i.when < joined + 2 * kSecond;
    }
    const Nanos silence = s_.silent_fail_ms * kMilli;
    switch (c.kind) {
      case Call::Kind::join:
        return s_.serious() ? c.began + kJoinDeadline + kSlack : last + kSlack;
      case Call::Kind::group:
        return last + kSlack;
      case Call::Kind::reduce:
        return last + silence + 2 * s_.pause + kSlack + (early && s_.serious() ? kJoinDeadline : 0);
      case Call::Kind::shrink:
        return last + 3 * silence + kSlack + (early && s_.serious() ? kJoinDeadline : 0);
      case Call::Kind::close:
        return last + silence + kSlack + 2 * s_.pause;
    }
    return last;
  }

  /// If one process ends and nothing else is done, on fast paths and processors, its death must be reported
  /// within a second. If nothing that takes long is done, ranks must have joined two seconds after all are
  /// there. If nothing is done, closing must take at most a second.
  void look_at_times(const Rank& r, const Call& c) {
    if (s_.delay + s_.jitter > 2 * kMilli || s_.most_latency > kMilli || s_.loss > 0) return;
    Nanos last = -1;
    bool only_ends = true, only_cuts = !s_.serious();
    for (const Injection& i : s_.injections) {
      last = std::max(last, i.when);
      only_ends &= i.kind == Kind::kill;
      only_cuts &= i.kind == Kind::one_way;
    }
    Nanos joined = 0;
    for (const auto& other : ranks_)
      if (!other->calls.empty()) joined = std::max(joined, other->calls.front().ended);
    if (c.kind == Call::Kind::reduce && !c.outcome.ok() && only_ends && s_.injections.size() == 1 &&
        last > joined + kSecond && c.ended > std::max(last, c.began) + kSecond)
      wrong("rank {} learns of a death at {:.3f} s at {:.3f} s only", r.process.rank, seconds(last),
            seconds(c.ended));
    if (c.kind == Call::Kind::join && only_cuts) {
      Nanos all_there = std::max(c.began, *std::max_element(s_.starts.begin(), s_.starts.end()));
      for (const Injection& i : s_.injections) all_there = std::max(all_there, i.when + i.lasts);
      if (c.ended - all_there > 2 * kSecond)
        wrong("rank {} has joined {:.3f} s after all were there", r.process.rank,
              seconds(c.ended - all_there));
    }
    if (c.kind == Call::Kind::close && s_.injections.empty() && c.ended - c.began > kSecond)
      wrong("rank {} has closed for {:.3f} s", r.process.rank, seconds(c.ended - c.began));
  }

  void look_at(const Rank& r, const Call& c) {
    if (c.ended < 0) return;
    look_at_times(r, c);
    const auto what = [&] {
      return fmt::format("rank {}, {} in generation {} from {:.3f} to {:.3f} s: {}", r.process.rank,
                         name(c.kind), c.generation, seconds(c.began), seconds(c.ended),
                         c.outcome.ok() ? "success" : c.outcome.message());
    };
    if (!c.right) wrong("a wrong result is called success: {}", what());
    if (c.ended > bound(c)) wrong("later than {:.3f} s: {}", seconds(bound(c)), what());
    if (c.outcome.ok()) return;
    if (!s_.serious()) return wrong("nothing was done that a call may fail for: {}", what());
    const ouro::Failure& f = *c.outcome.failure();
    switch (f.reason) {
      case Reason::peer_dead:
      case Reason::peer_unresponsive:
      case Reason::link_lost:
      case Reason::no_quorum:
      case Reason::fenced:
        break;
      case Reason::never_joined:
        if (c.kind == Call::Kind::join) break;
        [[fallthrough]];
      default:
        return wrong("a reason that nothing here is: {}", what());
    }
    if (c.kind == Call::Kind::join) {
      if (f.rank >= 0 && !suspected(f.rank, c.ended)) wrong("nothing was done to the culprit: {}", what());
      return;
    }
    if (c.kind != Call::Kind::reduce) return;
    std::set<int> named(f.dead.begin(), f.dead.end());
    if (f.rank >= 0) named.insert(f.rank);
    if (named.empty()) wrong("no culprit is named: {}", what());
    for (const int m : named)
      if (!suspected(c.members[static_cast<std::size_t>(m)], c.ended))
        wrong("nothing was done to rank {}: {}", c.members[static_cast<std::size_t>(m)], what());
  }

  /// If processes end and nothing else is serious, and more than half of the ranks are left, these must
  /// continue to the end of their program. Ranks that left after their last step count neither as survivors
  /// nor in the total.
  void look_at_survivors() {
    int dead = 0;
    Nanos joined = 0;
    for (const auto& r : ranks_) {
      if (r->calls.empty() || r->calls.front().ended < 0 || !r->calls.front().outcome.ok()) return;
      joined = std::max(joined, r->calls.front().ended);
      dead += died(*r);
    }
    for (const Injection& i : s_.injections)
      if (i.serious() && ((i.kind != Kind::kill && i.kind != Kind::lose) || i.when < joined)) return;
    for (const auto& r : ranks_) {
      if (!r->over || r->complete) continue;
      const Call& last = r->calls[r->calls.size() - 2];
      const int left = static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(), [&](const auto& other) {
        return other->over && other->complete && other->calls.back().began <= last.ended;
      }));
      const int here = s_.ranks - left, live = here - dead;
      if (2 * live > here)
        wrong("rank {} does not go on, although {} of {} ranks live: {}", r->process.rank, live, here,
              last.outcome.message());
    }
  }

  const Scenario& s_;
  const std::vector<std::unique_ptr<Rank>>& ranks_;
  const Nanos end_;
  std::vector<std::string> wrong_;
};

}  // namespace

std::vector<std::string> judge(const Scenario& s, const std::vector<std::unique_ptr<Rank>>& ranks,
                               Nanos end) {
  return Judge(s, ranks, end).all();
}

}  // namespace simulate
