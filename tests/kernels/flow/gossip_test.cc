// The gossip flow: its preconditions, and the mistakes that the verifier must find. Its proof is
// in verify_test.cc.
#include "kernels/flow/gossip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/kernels/flow/worlds.h"

namespace ouro::flow {
namespace {

/// The documented precondition of two slots: a chunk is sent one ahead of the chunk that is summed up.
TEST(Gossip, OneSlotDeadlocks) {
  const Program p = record(random_graph(3, 1, 1), 2);
  EXPECT_NE(verify(p, {1}).find("deadlock"), std::string::npos);
  EXPECT_EQ(verify(p, {2}), "");
}

TEST(Gossip, MismatchedNeighbourRowsAreRefused) {
  Graph deaf = random_graph(4, 1, 2);
  deaf.out_neighbours[1].pop_back();  // rank 3 waits for rank 1 in vain
  EXPECT_NE(refusal(record(deaf, 1)).find("deadlock (rank 3"), std::string::npos);
  Graph chatty = random_graph(4, 0, 3);
  chatty.out_neighbours[1].push_back(0);  // rank 0 takes nothing from it
  EXPECT_EQ(refusal(record(chatty, 1)), "messages left in flight");
}

TEST(Gossip, OnlyInputsAreSent) {
  for (const auto& steps : record(random_graph(6, 0.5, 4), 3).steps) {
    for (const Step& s : steps) {
      if (s.verb & kSend) {
        EXPECT_EQ(s.verb, kInput | kSend);
      }
    }
  }
}

/// Alters step i of a rank; false if it does not apply.
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
    {"WideSent", [](auto& s, std::size_t i) { return s[i].verb |= kPartialOut, (s[i].verb & kSend) != 0; }},
    {"WideTaken", [](auto& s, std::size_t i) { return s[i].verb |= kPartialIn, (s[i].verb & kRecv) != 0; }},
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
