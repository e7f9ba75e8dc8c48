// Proofs of the gossip flow: random directed graphs of up to 12 ranks, complete with their weights, without
// deadlock with two slots, nothing left in flight; and the mistakes that the verifier must find.
#include "kernels/flow/gossip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "tests/kernels/flow/verifier.h"

namespace ouro::flow {
namespace {

using Terms = std::vector<std::pair<int, double>>;

struct Graph {
  std::vector<double> self;
  std::vector<Terms> in_neighbours;
  std::vector<std::vector<int>> out_neighbours;
};

/// Each possible link with this probability; weights are all different. Some ranks keep nothing of their own.
Graph random_graph(int n, double density, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> unit;
  const auto size = static_cast<std::size_t>(n);
  Graph g{std::vector<double>(size), std::vector<Terms>(size), std::vector<std::vector<int>>(size)};
  for (int r = 0; r < n; ++r) {
    const auto me = static_cast<std::size_t>(r);
    for (int from = 0; from < n; ++from) {
      if (from == r || unit(random) >= density) continue;
      g.in_neighbours[me].emplace_back(from, unit(random));
      g.out_neighbours[static_cast<std::size_t>(from)].push_back(r);
    }
    const double kind = unit(random);
    g.self[me] = kind < 0.2 ? 0 : kind < 0.4 ? 1 : unit(random);
  }
  return g;
}

Program record(const Graph& g, int rounds) {
  Program p;
  p.collective = Collective::mix;
  p.size = static_cast<int>(g.self.size());
  p.rounds = p.chunks = rounds;
  p.pipelined = Gossip::kPipelined;
  p.keeps = Gossip::kKeeps;
  p.self = g.self;
  p.in_neighbours = g.in_neighbours;
  p.steps.resize(g.self.size());
  for (std::size_t r = 0; r < g.self.size(); ++r) {
    Gossip flow;
    flow.self = g.self[r], flow.in_neighbours = g.in_neighbours[r], flow.out_neighbours = g.out_neighbours[r];
    const Place at{static_cast<int>(r), p.size, 0, rounds};
    EXPECT_EQ(flow.chunks(at), rounds);
    flow(at, [&](const Step& s) { p.steps[r].push_back(s); });
  }
  return p;
}

constexpr double kDensities[] = {0, 0.15, 0.5, 1};

TEST(Gossip, RandomDirectedGraphs) {
  int cases = 0, links = 0;
  for (int n = 1; n <= 12; ++n) {
    for (const double density : kDensities) {
      for (unsigned seed = 0; seed < 8; ++seed) {
        const Graph g = random_graph(n, density, 1000 * seed + static_cast<unsigned>(n));
        for (const Terms& in_neighbours : g.in_neighbours) links += static_cast<int>(in_neighbours.size());
        for (const int rounds : {1, 2, 3, 7}) {
          const Program p = record(g, rounds);
          ASSERT_EQ(aliasings(p).size(), 2u);  // x may be y
          ASSERT_EQ(refusal(p), "") << "n " << n << " density " << density << " seed " << seed << " rounds "
                                    << rounds;
          ++cases;
        }
      }
    }
  }
  RecordProperty("cases", cases);
  EXPECT_EQ(cases, 12 * 4 * 8 * 4);
  EXPECT_GT(links, 1000);
}

/// The documented precondition: a chunk leaves one ahead of the chunk that is summed up.
TEST(Gossip, OneSlotDeadlocks) {
  const Program p = record(random_graph(3, 1, 1), 2);
  EXPECT_NE(verify(p, {1}).find("deadlock"), std::string::npos);
  EXPECT_EQ(verify(p, {2}), "");
}

TEST(Gossip, RowsThatDoNotMatch) {
  Graph deaf = random_graph(4, 1, 2);
  deaf.out_neighbours[1].pop_back();  // rank 3 waits for rank 1
  EXPECT_NE(refusal(record(deaf, 1)).find("deadlock (rank 3"), std::string::npos);
  Graph chatty = random_graph(4, 0, 3);
  chatty.out_neighbours[1].push_back(0);  // rank 0 takes nothing
  EXPECT_EQ(refusal(record(chatty, 1)), "messages left in flight");
}

TEST(Gossip, NothingTravelsButInputs) {
  for (const auto& steps : record(random_graph(6, 0.5, 4), 3).steps) {
    for (const Step& s : steps) {
      if (s.verb & kSend) {
        EXPECT_EQ(s.verb, kInput | kSend);
      }
    }
  }
}

/// Alters step i of a rank; false where it does not apply.
struct Mutation {
  const char* name;
  std::function<bool(std::vector<Step>&, std::size_t)> apply;
};
const Mutation kMutations[] = {
    {"StepSkipped", [](auto& s, std::size_t i) { return s.erase(s.begin() + static_cast<long>(i)), true; }},
    {"StepDuplicated",
     [](auto& s, std::size_t i) { return s.insert(s.begin() + static_cast<long>(i), Step(s[i])), true; }},
    {"OtherWeight", [](auto& s, std::size_t i) { return s[i].weight += 0.125, (s[i].verb & kRecv) != 0; }},
    {"WeightedWithoutMessage",
     [](auto& s, std::size_t i) { return s[i].weight = 2, (s[i].verb & kRecv) == 0; }},
    {"OtherSource",
     [](auto& s, std::size_t i) { return s[i].from = (s[i].from + 1) % 5, (s[i].verb & kRecv) != 0; }},
    {"OtherTarget",
     [](auto& s, std::size_t i) { return s[i].to = (s[i].to + 1) % 5, (s[i].verb & kSend) != 0; }},
    {"NextChunk", [](auto& s, std::size_t i) { return s[i].chunk = (s[i].chunk + 1) % 3, true; }},
    {"MineForgotten",
     [](auto& s, std::size_t i) {
       const bool applies = (s[i].verb & kRecv) && (s[i].verb & (kInput | kAcc));
       return s[i].verb &= ~(kInput | kAcc), applies;
     }},
    {"InputForAccumulator",
     [](auto& s, std::size_t i) {
       return s[i].verb ^= kInput | kAcc, (s[i].verb & (kRecv | kInput)) == (kRecv | kInput);
     }},
    {"KeptForStored",
     [](auto& s, std::size_t i) {
       return s[i].verb ^= kKeep | kStore, (s[i].verb & (kKeep | kStore)) != 0 && !(s[i].verb & kSend);
     }},
    {"WideSent", [](auto& s, std::size_t i) { return s[i].verb |= kWideOut, (s[i].verb & kSend) != 0; }},
    {"WideTaken", [](auto& s, std::size_t i) { return s[i].verb |= kWideIn, (s[i].verb & kRecv) != 0; }},
};

TEST(Gossip, MutantsAreRefused) {
  int planted = 0;
  for (const double density : {0.3, 0.6, 1.0}) {
    for (unsigned seed = 0; seed < 6; ++seed) {
      const Program proven = record(random_graph(5, density, 77 + seed), 3);
      ASSERT_EQ(refusal(proven), "");
      for (const Mutation& m : kMutations) {
        for (std::size_t r = 0; r < proven.steps.size(); ++r) {
          for (std::size_t i = 0; i < proven.steps[r].size(); ++i) {
            Program mutant = proven;
            if (!m.apply(mutant.steps[r], i)) continue;
            ++planted;
            ASSERT_NE(refusal(mutant), "") << m.name << ", seed " << seed << ", rank " << r << ", step " << i;
          }
        }
      }
    }
  }
  EXPECT_GT(planted, 2000);
}

}  // namespace
}  // namespace ouro::flow
