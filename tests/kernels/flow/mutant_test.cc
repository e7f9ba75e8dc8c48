// Planted mutants, each of which the verifier must refuse. Operators alter one step of a proven flow, at
// every place where they apply; wrong_flow_test.cc has wrong flows written by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iostream>

#include "kernels/flow/list.h"
#include "tests/kernels/flow/worlds.h"

namespace ouro::flow {
namespace {

using Steps = std::vector<Step>;

bool has(const Step& s, std::uint32_t verbs) { return (s.verb & verbs) != 0; }
bool flip(Step& s, std::uint32_t verbs, bool applies) {
  if (applies) s.verb ^= verbs;
  return applies;
}
Step& at(Steps& steps, int i) { return steps[static_cast<std::size_t>(i)]; }

/// Alters step i of `steps`, the program of one rank of p; false if it does not apply.
struct Operator {
  const char* name;
  std::function<bool(const Program& p, Steps& steps, int i)> apply;
};

void PrintTo(const Operator& o, std::ostream* out) { *out << o.name; }

bool moves(const Step& s) { return has(s, kRecv | kSend | kInput | kAcc | kResult | kPosted); }

const Operator kOperators[] = {
    {"StepSkipped", [](const Program&, Steps& s, int i) { return s.erase(s.begin() + i), true; }},
    {"StepDuplicated",
     [](const Program&, Steps& s, int i) { return s.insert(s.begin() + i, Step(at(s, i))), true; }},
    {"NextChunk",
     [](const Program& p, Steps& s, int i) {
       at(s, i).chunk = (at(s, i).chunk + 1) % p.chunks;
       return p.chunks > 1 && moves(at(s, i));
     }},
    {"NegativeChunk", [](const Program&, Steps& s, int i) { return at(s, i).chunk = -1, true; }},
    {"WrongSource",
     [](const Program& p, Steps& s, int i) {
       if (at(s, i).from < 0) return false;
       at(s, i).from = (at(s, i).from + 1) % p.size;
       return true;
     }},
    {"WrongTarget",
     [](const Program& p, Steps& s, int i) {
       if (at(s, i).to < 0) return false;
       at(s, i).to = (at(s, i).to + 1) % p.size;
       return true;
     }},
    {"StoreOmitted",
     [](const Program& p, Steps& s, int i) {
       return flip(at(s, i), kStore, has(at(s, i), kStore) && p.collective != Collective::barrier);
     }},
    {"SendOmitted",
     [](const Program&, Steps& s, int i) { return flip(at(s, i), kSend, has(at(s, i), kSend)); }},
    {"SpreadOmitted",
     [](const Program&, Steps& s, int i) { return flip(at(s, i), kMulticast, has(at(s, i), kMulticast)); }},
    {"SpreadToMyselfOnly",
     [](const Program&, Steps& s, int i) {
       return flip(at(s, i), kMulticast | kStore, has(at(s, i), kMulticast));
     }},
    {"ReduceDropped",
     [](const Program&, Steps& s, int i) {
       return flip(at(s, i), kInput, has(at(s, i), kRecv) && has(at(s, i), kInput));
     }},
    {"AccumulatorDropped",
     [](const Program&, Steps& s, int i) {
       return flip(at(s, i), kAcc, has(at(s, i), kRecv) && has(at(s, i), kAcc));
     }},
    {"ReceivedDropped",
     [](const Program&, Steps& s, int i) {
       return flip(at(s, i), kRecv | kPartialIn, has(at(s, i), kRecv) && has(at(s, i), kInput | kAcc));
     }},
    {"InputForAccumulator",
     [](const Program&, Steps& s, int i) { return flip(at(s, i), kInput | kAcc, has(at(s, i), kAcc)); }},
    {"AccumulatorForInput",
     [](const Program& p, Steps& s, int i) {
       return flip(at(s, i), kInput | kAcc,
                   has(at(s, i), kInput) && !has(at(s, i), kPost) && p.collective != Collective::barrier);
     }},
    {"InputForResult", [](const Program&, Steps& s,
                          int i) { return flip(at(s, i), kInput | kResult, has(at(s, i), kResult)); }},
    {"NarrowSentForWide",
     [](const Program&, Steps& s, int i) { return flip(at(s, i), kPartialOut, has(at(s, i), kPartialOut)); }},
    {"WideSentForNarrow",
     [](const Program& p, Steps& s, int i) {
       return flip(
           at(s, i), kPartialOut,
           has(at(s, i), kSend) && !has(at(s, i), kPartialOut) && p.collective != Collective::barrier);
     }},
    {"WideTakenForNarrow",
     [](const Program&, Steps& s, int i) {
       return flip(at(s, i), kPartialIn, has(at(s, i), kPartialIn) && has(at(s, i), kRecv | kPosted));
     }},
    {"NarrowTakenForWide",
     [](const Program& p, Steps& s, int i) {
       return flip(at(s, i), kPartialIn,
                   has(at(s, i), kRecv | kPosted) && !has(at(s, i), kPartialIn) &&
                       p.collective != Collective::barrier);
     }},
    {"StoredForKept",
     [](const Program&, Steps& s, int i) { return flip(at(s, i), kKeep | kStore, has(at(s, i), kKeep)); }},
    {"KeptForStored",
     [](const Program& p, Steps& s, int i) {
       return flip(at(s, i), kKeep | kStore, has(at(s, i), kStore) && p.collective != Collective::barrier);
     }},
    {"WrongBoardIndex",
     [](const Program& p, Steps& s, int i) {
       at(s, i).at = (at(s, i).at + 1) % std::max(2, p.chunks);
       return has(at(s, i), kPosted);
     }},
    {"OneBoardForAll",
     [](const Program&, Steps& s, int i) {
       if (at(s, i).from != kEveryone) return false;
       at(s, i).from = 0;
       return true;
     }},
    {"AllBoardsForOne",
     [](const Program&, Steps& s, int i) {
       if (!has(at(s, i), kPosted) || at(s, i).from == kEveryone) return false;
       at(s, i).from = kEveryone;
       return true;
     }},
    {"ResultForPosted",
     [](const Program&, Steps& s, int i) {
       return flip(at(s, i), kResult, has(at(s, i), kPosted) && at(s, i).from != kEveryone);
     }},
    {"PostTooShort",
     [](const Program&, Steps& s, int i) {
       at(s, i).span = std::max(0, at(s, i).span - 2);  // one less may hit a block that its owner keeps
       return has(at(s, i), kPost) && has(at(s, i), kInput);
     }},
    {"PostTooLong",
     [](const Program& p, Steps& s, int i) {
       at(s, i).span = p.chunks + 1;
       return has(at(s, i), kPost) && has(at(s, i), kInput);
     }},
    {"ReleasedEarly",
     [](const Program&, Steps& s, int i) {
       if (i == 0 || !has(at(s, i), kRelease) || !has(at(s, i - 1), kPost | kPosted)) return false;
       std::swap(at(s, i), at(s, i - 1));
       return true;
     }},
    {"PostedAhead",  // as far ahead as pages allow, and one further
     [](const Program& p, Steps& s, int i) {
       if (!has(at(s, i), kPost) || p.by_reference) return false;
       at(s, i).chunk += kSlots * p.cut().per_round;
       return true;
     }},
    {"MeetForStep",
     [](const Program&, Steps& s, int i) {
       if (has(at(s, i), kBarrier)) return false;
       at(s, i) = barrier();
       return true;
     }},
    {"Weighted", [](const Program&, Steps& s, int i) { return at(s, i).weight = 0.5, true; }},
};

class StepMutants : public testing::TestWithParam<Operator> {};

TEST_P(StepMutants, AllRefused) {
  int planted = 0;
  for_each_plain_flow([&](Collective c, Algorithm a, auto flow) {
    for (const int n : {3, 4, 5, 8}) {
      const Program proven = record(c, flow, n, n / 2, 2);
      for (int r = 0; r < n; ++r) {
        const auto mine = static_cast<std::size_t>(r);
        for (int i = 0; i < static_cast<int>(proven.steps[mine].size()); ++i) {
          Program mutant = proven;
          if (!GetParam().apply(mutant, mutant.steps[mine], i)) continue;
          ++planted;
          EXPECT_NE(refusal(mutant), "") << name(a) << " of collective " << static_cast<int>(c) << ", n " << n
                                         << ", rank " << r << ", step " << i;
        }
      }
    }
  });
  EXPECT_GT(planted, 0);
  std::cout << GetParam().name << ": " << planted << " planted, all refused unless said otherwise\n";
}

INSTANTIATE_TEST_SUITE_P(Operators, StepMutants, testing::ValuesIn(kOperators),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ouro::flow
