// Draws the events of a run. See scenario.h.
#include "tests/simulate/job/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace simulate {
namespace {

using Kind = Injection::Kind;
// Shorter pauses of a process or a path must not be noticed (docs/design/between-hosts.md).
constexpr Nanos kUnnoticedStop = 900 * kMilli, kUnnoticedCut = kSecond;
constexpr const char* kNames[] = {"kill",    "lose host", "suspend all", "stop", "part",
                                  "one way", "reset",     "slow",        "far"};

// Families of seeds, from 2^40, 2 * 2^40, ... on, which add to the general scenario: sockets with less room
// than most frames need, and connections that break; ranks that give each other up while their lines break; a
// tree of hosts without faults; groups that are created and destroyed while connections break; a tree of
// hosts, some of which get the table of ranks late; two ranks that give each other up and that all others
// hear, at different distances.
constexpr std::uint64_t kNarrow = 1, kQuarrels = 2, kQuiet = 3, kChurn = 4, kTree = 5, kRivals = 6;

double seconds(Nanos t) { return static_cast<double>(t) / static_cast<double>(kSecond); }

Injection draw(Random& random, int ranks, bool harmless) {
  Injection i;
  constexpr Kind kHarmless[] = {Kind::suspend, Kind::stop,  Kind::part, Kind::one_way,
                                Kind::reset,   Kind::reset, Kind::slow};
  constexpr Kind kAny[] = {Kind::kill, Kind::kill, Kind::kill,    Kind::lose,  Kind::stop, Kind::stop,
                           Kind::part, Kind::part, Kind::one_way, Kind::reset, Kind::slow};
  i.kind = harmless ? kHarmless[random.below(std::size(kHarmless))] : kAny[random.below(std::size(kAny))];
  i.when = random.spread(kMilli, 12 * kSecond);
  i.rank = static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
  i.other = static_cast<int>(random.below(static_cast<std::uint64_t>(ranks - 1)));
  i.other += i.other >= i.rank;
  const Nanos unnoticed = i.kind == Kind::stop ? kUnnoticedStop : kUnnoticedCut;
  i.lasts = random.spread(10 * kMilli, harmless ? unnoticed : 30 * kSecond);
  if (i.kind == Kind::suspend) i.lasts = random.spread(100 * kMilli, 20 * kSecond);
  const std::uint64_t all = (std::uint64_t{1} << ranks) - 1;
  i.side = 1 + random.below(all - 1);
  if (i.kind == Kind::slow) i.delay = random.spread(kMilli, 300 * kMilli);
  return i;
}

/// Some ranks stop hearing others, all at about the same time, so that opinions differ about who is alive. In
/// half of the cases the two lowest ranks, each of which others would follow, are among them.
std::vector<Injection> draw_quarrel(Random& random, int ranks) {
  std::vector<Injection> all;
  const Nanos when = random.spread(20 * kMilli, 6 * kSecond),
              lasts = random.between(8 * kSecond, 30 * kSecond);
  if (ranks >= 3 && random.chance(0.5))
    for (const int r : {0, 1})
      all.push_back({.kind = Kind::one_way, .when = when, .lasts = lasts, .rank = r, .other = 1 - r});
  for (int n = random.pick(all.empty() ? 1 : 0, all.empty() ? 4 : 1); n > 0; --n) {
    Injection i = draw(random, ranks, false);
    i.kind = random.chance(0.8) ? Kind::one_way : Kind::part;
    i.when = when + random.spread(kMicro, 300 * kMilli);
    i.lasts = lasts;
    all.push_back(i);
  }
  return all;
}

/// Lines break while the ranks learn of the first injection, and while they agree on its consequences.
void add_resets(Random& random, int ranks, Nanos silence, std::vector<Injection>* all) {
  const Injection& first = all->front();
  const Nanos news = first.when + (first.kind == Kind::kill ? 0 : silence);
  for (int n = random.pick(1, 6); n > 0; --n) {
    Injection i = draw(random, ranks, true);
    i.kind = Kind::reset;
    i.when = news + random.between(0, first.kind == Kind::kill ? 200 * kMilli : kSecond);
    all->push_back(i);
  }
}

}  // namespace

bool Injection::serious() const {
  switch (kind) {
    case Kind::kill:
    case Kind::lose:
      return true;
    case Kind::stop:
      return lasts > kUnnoticedStop;
    case Kind::part:
    case Kind::one_way:
      return lasts > kUnnoticedCut;
    case Kind::suspend:
    case Kind::reset:
    case Kind::slow:
    case Kind::far:
      return false;
  }
  return false;
}

std::string Injection::text() const {
  std::string s = fmt::format("{:.6f} s {}", seconds(when), kNames[static_cast<int>(kind)]);
  if (kind == Kind::part)
    s += fmt::format(" {:b}", side);
  else
    s += fmt::format(" {}", rank);
  if (kind == Kind::one_way || kind == Kind::reset || kind == Kind::far) s += fmt::format(" -> {}", other);
  if (kind == Kind::slow || kind == Kind::far) s += fmt::format(" by {:.3f} s", seconds(delay));
  if (kind != Kind::kill && kind != Kind::lose && kind != Kind::reset)
    s += fmt::format(" for {:.3f} s", seconds(lasts));
  return s;
}

Scenario::Scenario(std::uint64_t number) : seed(number) {
  Random random(seed ^ 0x5ce9a210);
  // From 10 ranks on, the table of ranks is distributed along a tree of hosts.
  constexpr int kRanks[] = {2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 7, 8, 9, 9, 11};
  ranks = kRanks[random.below(std::size(kRanks))];
  const std::uint64_t family = seed >> 40;
  if (family == kQuarrels) ranks = std::clamp(ranks, 3, 5);
  if (family == kChurn) ranks = std::clamp(ranks, 2, 4);
  if (family == kRivals) ranks = 5;
  steps = random.pick(3, 12);
  delay = random.spread(10 * kMicro, random.chance(0.1) ? 100 * kMilli : 2 * kMilli);
  jitter = random.chance(0.5) ? random.between(0, delay) : 0;
  loss = random.chance(0.2) ? 0.001 * random.pick(1, 20) : 0;
  most_latency = random.spread(2 * kMicro, random.chance(0.1) ? 5 * kMilli : 200 * kMicro);
  preempted = random.chance(0.3) ? 0 : random.chance(0.5) ? 0.001 : 0.02;
  pause = random.spread(kMilli, 2 * kSecond);
  clock_error = random.chance(0.5) ? 0 : random.chance(0.5) ? 1e-4 : 0.01;
  send_room = static_cast<std::size_t>(random.spread(8 << 10, 256 << 10));
  receive_room = static_cast<std::size_t>(random.spread(8 << 10, 256 << 10));
  if (family == kNarrow) send_room = 600, receive_room = 900, pause = std::min(pause, 20 * kMilli);
  if (family >= kQuiet) loss = 0, jitter = 0, delay = std::min(delay, kMilli), most_latency = 20 * kMicro;
  if (family == kQuiet || family == kTree) ranks = 11;
  count = static_cast<std::size_t>(random.spread(1, 4096));
  slot_bytes = static_cast<std::uint32_t>(4096 << random.below(3));
  connections = random.pick(1, 2);
  silent_fail_ms = random.chance(0.7) ? 5000 : 2500;
  for (int r = 0; r < ranks; ++r)
    starts.push_back(random.between(0, random.chance(0.2) ? 2 * kSecond : 20 * kMilli));
  if (family >= kChurn) {
    if (family == kChurn) draw_churn(random);
    if (family == kTree) draw_tree(random);
    if (family == kRivals) draw_rivals(random);
    return;
  }
  const double drawn = static_cast<double>(random.below(100)) / 100, kind = family == kQuarrels ? 0.9
                                                                            : family == kQuiet  ? 0
                                                                                                : drawn;
  const bool harmless = kind < 0.3;
  const int faults = kind < 0.1 ? 0 : random.pick(1, random.chance(0.3) ? 4 : 2);
  if (kind > 0.8) injections = draw_quarrel(random, ranks);
  for (int i = 0; i < faults && kind <= 0.8; ++i) injections.push_back(draw(random, ranks, harmless));
  for (int i = 0; i < 8 && family == kNarrow; ++i) {
    injections.push_back(draw(random, ranks, true));
    injections.back().kind = Kind::reset;
    injections.back().when = random.spread(20 * kMilli, 6 * kSecond);
  }
  if (serious() && random.chance(family == kQuarrels ? 1 : 0.3))
    add_resets(random, ranks, silent_fail_ms * kMilli, &injections);
}

/// Connections break, mostly while groups end.
void Scenario::draw_churn(Random& random) {
  groups = true;
  connections = 1;
  steps = 12;
  pause = std::min(pause, 20 * kMilli);
  count = std::min<std::size_t>(count, 64);
  for (int n = random.pick(4, 40); n > 0; --n) {
    injections.push_back(draw(random, ranks, true));
    injections.back().kind = Kind::reset;
    injections.back().when = random.between(20 * kMilli, 600 * kMilli);
  }
}

/// Hosts that have to hand the table of ranks to others do not hear rank 0 while the table is
/// being distributed.
void Scenario::draw_tree(Random& random) {
  const Nanos all_there = *std::max_element(starts.begin(), starts.end());
  for (int n = random.pick(1, 4); n > 0; --n)
    injections.push_back({.kind = Kind::one_way,
                          .when = std::max(kMilli, all_there + random.between(-5 * kMilli, 20 * kMilli)),
                          .lasts = random.between(100 * kMilli, kUnnoticedCut - 50 * kMilli),
                          .rank = 0,
                          .other = random.pick(1, ranks - 1)});
}

/// Ranks 0 and 1 lose each other and both ask the other three ranks. Rank 0 is nearer to them, but not so
/// near that they learn of its success before rank 1 asks them; and ranks 0 and 1 learn of each other last.
void Scenario::draw_rivals(Random& random) {
  const Nanos when = random.between(50 * kMilli, 3 * kSecond), lasts = 40 * kSecond;
  pause = std::min(pause, 100 * kMilli), steps = 200;
  const auto add = [&](Kind kind, int a, int b, Nanos delayed) {
    injections.push_back(
        {.kind = kind, .when = when, .lasts = lasts, .rank = a, .other = b, .delay = delayed});
  };
  add(Kind::one_way, 0, 1, 0), add(Kind::one_way, 1, 0, 0);
  const Nanos near = random.between(100 * kMilli, 300 * kMilli);
  for (int r = 2; r < ranks; ++r) {
    add(Kind::far, 0, r, near), add(Kind::far, 1, r, random.between(near, 2 * near));
    for (int other = 2; other < r; ++other) add(Kind::far, other, r, random.between(near, 2 * near));
  }
}

bool Scenario::serious() const {
  return std::any_of(injections.begin(), injections.end(), [](const Injection& i) { return i.serious(); });
}

std::string Scenario::text() const {
  std::string s = fmt::format(
      "seed {}: {} ranks, {} steps of {} elements, a pause of {:.3f} s; delay {:.6f} s, jitter {:.6f} s, "
      "loss {:.3f}; "
      "latency {:.6f} s, preempted {:.3f}; clocks {:.4f}; silence {} ms; {} connections\n",
      seed, ranks, steps, count, seconds(pause), seconds(delay), seconds(jitter), loss, seconds(most_latency),
      preempted, clock_error, silent_fail_ms, connections);
  for (const Injection& i : injections) s += "  " + i.text() + "\n";
  return s;
}

}  // namespace simulate
