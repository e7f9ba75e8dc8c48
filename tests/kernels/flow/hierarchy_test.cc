// Hierarchical flows: compares the values that cross the network link of each host with the minimum; planted
// mutants. Their proofs are in verify_test.cc.
#include "kernels/flow/hierarchy.h"

#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <numeric>
#include <random>
#include <set>

#include "runtime/core/collectives.h"
#include "tests/kernels/flow/worlds.h"

namespace ouro::flow {
namespace {

using Steps = std::vector<Step>;

TEST(HostLayout, HostNumbersMayBeArbitrary) {
  const std::vector<int> names = {70, -3, 70, 5, -3, 70};
  const HostMap map(names);
  const HostLayout hosts = map.view();
  EXPECT_EQ(Sizes(hosts.order.begin(), hosts.order.end()), (Sizes{0, 2, 5, 1, 4, 3}));
  EXPECT_EQ(Sizes(hosts.first.begin(), hosts.first.end()), (Sizes{0, 3, 5, 6}));
  EXPECT_EQ(Sizes(hosts.host.begin(), hosts.host.end()), (Sizes{0, 1, 0, 2, 1, 0}));
  EXPECT_EQ(Sizes(hosts.index.begin(), hosts.index.end()), (Sizes{0, 0, 1, 0, 1, 2}));
  EXPECT_EQ(hosts.smallest, 1);
  const Site here(hosts, Place{4, 6});
  EXPECT_EQ(here.ranks_on(0, 3), 6);
  EXPECT_EQ(here.ranks_on(2, 2), 4);
  EXPECT_EQ(here.ranks_on(1, 0), 0);
  EXPECT_EQ(here.mate(1), 1);
}

/// Number of chunks that leave and enter each host in all rounds.
struct Crossings {
  Sizes out, in;
  int total() const { return std::accumulate(out.begin(), out.end(), 0); }
};
Crossings crossings(const Program& p, const std::vector<int>& host_of) {
  const auto hosts = static_cast<std::size_t>(*std::max_element(host_of.begin(), host_of.end()) + 1);
  Crossings x{Sizes(hosts), Sizes(hosts)};
  for (std::size_t r = 0; r < p.steps.size(); ++r) {
    for (const Step& s : p.steps[r]) {
      if ((s.verb & kSend) == 0) continue;
      const int from = host_of[r], to = host_of[static_cast<std::size_t>(s.to)];
      if (from == to) continue;
      x.out[static_cast<std::size_t>(from)] += p.pipelined ? 1 : p.rounds;
      x.in[static_cast<std::size_t>(to)] += p.pipelined ? 1 : p.rounds;
    }
  }
  return x;
}

/// The chunks that each host sends and receives are the minimum; for trees, in the sum over all hosts.
TEST(Hierarchy, CrossesNetworkLinksAsSeldomAsPossible) {
  constexpr int kRounds = 3;
  int shapes = 0;
  const auto count = [&](const Sizes& sizes) {
    const std::vector<int> host_of = in_order(sizes);
    const HostMap map(host_of);
    const int n = static_cast<int>(host_of.size()), m = static_cast<int>(sizes.size());
    for_each_between_hosts(map.view(), [&](Collective c, std::string_view algorithm, auto flow) {
      SCOPED_TRACE(std::string(name(c)) + " " + std::string(algorithm) + " on " + text(sizes));
      const int root = n / 2, chunks = flow.chunks(Place{0, n, root, 1});
      const bool tree = algorithm == "hierarchy_tree";
      const Crossings x = crossings(record(c, flow, n, root, kRounds), host_of);
      const std::size_t hosts = sizes.size(),
                        home = static_cast<std::size_t>(host_of[static_cast<std::size_t>(root)]);
      for (std::size_t q = 0; q < hosts; ++q) {
        const int others = kRounds * (n - sizes[q]), away = q == home ? 0 : kRounds;
        if (algorithm == "exchange") {  // the data of each rank for each other rank
          EXPECT_EQ(x.out[q], kRounds * sizes[q] * (n - sizes[q]));
          EXPECT_EQ(x.in[q], x.out[q]);
        } else if (c == Collective::all_reduce && !tree) {  // 2(M-1)/M of the data
          EXPECT_EQ(x.out[q] * m, 2 * (m - 1) * chunks * kRounds);
          EXPECT_EQ(x.in[q], x.out[q]);
        }
        if (c == Collective::all_gather) {
          EXPECT_EQ(x.in[q], others);
        }
        if (c == Collective::reduce_scatter) {
          EXPECT_EQ(x.out[q], others);
        }
        if (c == Collective::broadcast) {
          EXPECT_EQ(x.in[q], away);
        }
        if (c == Collective::reduce) {
          EXPECT_EQ(x.out[q], away);
        }
        if (c == Collective::broadcast && !tree) {
          EXPECT_LE(x.out[q], kRounds);
        }
        if (c == Collective::reduce && !tree) {
          EXPECT_LE(x.in[q], kRounds);
        }
      }
      if (c == Collective::all_reduce && tree) {
        EXPECT_EQ(x.total(), 2 * (m - 1) * kRounds);
      }
    });
    ++shapes;
  };
  for (int n = 1; n <= 8; ++n)
    for (const Sizes& sizes : compositions(n)) count(sizes);
  for (const Sizes& sizes : kSelected) count(sizes);
  EXPECT_EQ(shapes, 255 + 21);
}

/// No host receives the same block twice, and no block returns to its host.
TEST(Hierarchy, AllGatherBringsEachBlockToEachNodeOnce) {
  for (const Sizes& sizes : {Sizes{7, 8}, {1, 5, 2}, {3, 3, 3}, {2, 1, 6, 4}}) {
    const std::vector<int> host_of = in_order(sizes);
    const HostMap map(host_of);
    const Program p = record(Collective::all_gather, HierarchyAllGather{{}, map.view()},
                             static_cast<int>(host_of.size()), 0, 1);
    std::set<std::pair<int, int>> seen;  // block, host
    for (std::size_t r = 0; r < p.steps.size(); ++r) {
      for (const Step& s : p.steps[r]) {
        if ((s.verb & kSend) == 0) continue;
        const int to = host_of[static_cast<std::size_t>(s.to)];
        if (to == host_of[r]) continue;
        EXPECT_NE(to, host_of[static_cast<std::size_t>(s.chunk)]);
        EXPECT_TRUE(seen.insert({s.chunk, to}).second);
      }
    }
    EXPECT_EQ(seen.size(), host_of.size() * (sizes.size() - 1)) << "each block to each other host";
  }
}

/// All ranks of a host communicate with other hosts, not only as many as the smallest host has.
TEST(Hierarchy, AllRanksOfALargeHostUseTheNetwork) {
  for (const Sizes& sizes : {Sizes{7, 8}, {1, 5, 2}, {2, 6}}) {
    const std::vector<int> host_of = in_order(sizes);
    const HostMap map(host_of);
    const Program p = record(Collective::all_reduce, HierarchyAllReduce{{}, map.view()},
                             static_cast<int>(host_of.size()), 0, 8);
    for (std::size_t r = 0; r < p.steps.size(); ++r) {
      EXPECT_TRUE(std::any_of(p.steps[r].begin(), p.steps[r].end(),
                              [&](const Step& s) {
                                return (s.verb & kSend) != 0 &&
                                       host_of[static_cast<std::size_t>(s.to)] != host_of[r];
                              }))
          << text(sizes) << " rank " << r;
    }
  }
}

/// For comparison, a flow that ignores hosts: a ring enters and leaves each host once if ranks are sorted by
/// host, and then sends 2(n-1)/n of the data over each host's link; if ranks are dealt out in turn, k times
/// as much.
TEST(Hierarchy, PlainRingDependsOnTheOrderOfRanks) {
  const std::vector<int> sorted = in_order({4, 4}), dealt = {0, 1, 0, 1, 0, 1, 0, 1};
  const Program ring = record(Collective::all_reduce, RingAllReduce{}, 8, 0, 1);
  EXPECT_EQ(crossings(ring, sorted).out, (Sizes{14, 14}));
  EXPECT_EQ(crossings(ring, dealt).out, (Sizes{4 * 14, 4 * 14}));
  const HostMap map(sorted);
  const HierarchyAllReduce flow{{}, map.view()};
  EXPECT_EQ(flow.chunks(Place{0, 8}), 8);
  EXPECT_EQ(crossings(record(Collective::all_reduce, flow, 8, 0, 1), sorted).out, (Sizes{8, 8}));
}

/// The documented precondition of two slots: rounds overlap.
TEST(Hierarchy, OneSlotDeadlocks) {
  for (const Sizes& sizes : {Sizes{2, 2}, {1, 1, 1}, {4, 4, 4}}) {
    const HostMap map(in_order(sizes));
    const int n = std::accumulate(sizes.begin(), sizes.end(), 0);
    const Program p = record(Collective::all_reduce, HierarchyAllReduce{{}, map.view()}, n, 0, 3);
    EXPECT_NE(verify(p, {1}).find("deadlock"), std::string::npos) << text(sizes);
    EXPECT_EQ(verify(p, {2}), "");
  }
}

/// One rank assumes a different placement of ranks on hosts than all others.
TEST(Hierarchy, RanksThatDisagreeOnTheNodesAreRefused) {
  const HostMap map(in_order({2, 3})), other(in_order({3, 2}));
  int refused = 0;
  for_each_between_hosts(map.view(), [&](Collective c, std::string_view algorithm, auto flow) {
    if (algorithm != "hierarchy" || traits_of(c).rooted() || c == Collective::barrier)
      return;  // some ranks have the same steps in both placements
    auto deviant = flow;
    if constexpr (requires { deviant.hosts; }) deviant.hosts = other.view();
    const Program wrong = record(c, deviant, 5, 0, 2);
    for (std::size_t r = 0; r < 5; ++r) {
      Program p = record(c, flow, 5, 0, 2);
      ASSERT_EQ(p.chunks, wrong.chunks);
      p.steps[r] = wrong.steps[r];
      EXPECT_NE(refusal(p), "") << name(c) << ", rank " << r;
      ++refused;
    }
  });
  EXPECT_EQ(refused, 3 * 5);
}

bool has(const Step& s, std::uint32_t verbs) { return (s.verb & verbs) != 0; }

/// Alters step i of `steps`, the program of one rank of p; false if it does not apply.
struct Mutation {
  const char* name;
  std::function<bool(const Program& p, Steps& steps, std::size_t i)> apply;
};
bool flip(Step& s, std::uint32_t verbs, bool applies) {
  if (applies) s.verb ^= verbs;
  return applies;
}
const Mutation kMutations[] = {
    {"StepSkipped",
     [](const Program&, Steps& s, std::size_t i) { return s.erase(s.begin() + static_cast<long>(i)), true; }},
    {"StepDuplicated",
     [](const Program&, Steps& s, std::size_t i) {
       if (s[i].verb == (kInput | kKeep)) return false;  // the mutation would change nothing
       return s.insert(s.begin() + static_cast<long>(i), Step(s[i])), true;
     }},
    {"NextChunk", [](const Program& p, Steps& s,
                     std::size_t i) { return s[i].chunk = (s[i].chunk + 1) % p.chunks, p.chunks > 1; }},
    {"WrongSource",
     [](const Program& p, Steps& s, std::size_t i) {
       return s[i].from >= 0 && (s[i].from = (s[i].from + 1) % p.size, true);
     }},
    {"WrongTarget", [](const Program& p, Steps& s,
                       std::size_t i) { return s[i].to >= 0 && (s[i].to = (s[i].to + 1) % p.size, true); }},
    {"StoreOmitted",
     [](const Program& p, Steps& s, std::size_t i) {
       return flip(s[i], kStore, has(s[i], kStore) && p.collective != Collective::barrier);
     }},
    {"SendOmitted",
     [](const Program&, Steps& s, std::size_t i) { return flip(s[i], kSend, has(s[i], kSend)); }},
    {"MineForgotten",
     [](const Program&, Steps& s, std::size_t i) {
       return flip(s[i], s[i].verb & (kInput | kAcc), has(s[i], kRecv) && has(s[i], kInput | kAcc));
     }},
    {"ReceivedDropped",
     [](const Program&, Steps& s, std::size_t i) {
       return flip(s[i], kRecv | kPartialIn, has(s[i], kRecv) && has(s[i], kInput | kAcc));
     }},
    {"OperandsSwapped",
     [](const Program& p, Steps& s, std::size_t i) {
       return flip(s[i], kAfter, p.canonical && has(s[i], kRecv) && has(s[i], kAcc));
     }},
    {"InputOrAccumulator",
     [](const Program& p, Steps& s, std::size_t i) {
       return flip(s[i], kInput | kAcc, has(s[i], kInput | kAcc) && p.collective != Collective::barrier);
     }},
    {"InputForResult",
     [](const Program&, Steps& s, std::size_t i) {
       const bool own = s[i].verb == (kResult | kSend);
       return flip(s[i], kInput | kResult, own);
     }},
    {"WideForNarrow",
     [](const Program& p, Steps& s, std::size_t i) {
       return flip(s[i], kPartialOut, has(s[i], kSend) && p.collective != Collective::barrier);
     }},
    {"TakenAsTheOther",
     [](const Program& p, Steps& s, std::size_t i) {
       return flip(s[i], kPartialIn, has(s[i], kRecv) && p.collective != Collective::barrier);
     }},
    {"KeptForStored",
     [](const Program& p, Steps& s, std::size_t i) {
       return flip(s[i], kKeep | kStore, has(s[i], kKeep | kStore) && p.collective != Collective::barrier);
     }},
};

class HierarchyMutants : public testing::TestWithParam<Mutation> {};
void PrintTo(const Mutation& m, std::ostream* out) { *out << m.name; }

TEST_P(HierarchyMutants, AllRefused) {
  int planted = 0;
  for (const Sizes& sizes : {Sizes{2, 3}, {1, 2}, {2, 1, 2}, {3}, {1, 1, 1, 1}}) {
    const HostMap map(in_order(sizes));
    const int n = std::accumulate(sizes.begin(), sizes.end(), 0);
    for_each_between_hosts(map.view(), [&](Collective c, std::string_view algorithm, auto flow) {
      const Program proven = record(c, flow, n, n / 2, 2);
      for (std::size_t r = 0; r < proven.steps.size(); ++r) {
        for (std::size_t i = 0; i < proven.steps[r].size(); ++i) {
          Program mutant = proven;
          if (!GetParam().apply(mutant, mutant.steps[r], i)) continue;
          ++planted;
          EXPECT_NE(refusal(mutant), "")
              << name(c) << " " << algorithm << " on " << text(sizes) << ", rank " << r << ", step " << i;
        }
      }
    });
  }
  EXPECT_GT(planted, 0);
  std::cout << GetParam().name << ": " << planted << " planted, all refused unless said otherwise\n";
}

INSTANTIATE_TEST_SUITE_P(Operators, HierarchyMutants, testing::ValuesIn(kMutations),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ouro::flow
