// Proofs: every flow of the list, for every n up to 64, every root, two windows, several numbers of rounds.
#include <gtest/gtest.h>

#include <functional>

#include "kernels/flow/list.h"
#include "runtime/core/collectives.h"
#include "tests/kernels/flow/verifier.h"

namespace ouro::flow {
namespace {

struct Row {
  std::string name;
  std::function<Program(int size, int root, int rounds)> record;
  bool staging;
};

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

std::vector<Row> rows() {
  std::vector<Row> all;
  for_each_flow([&](Collective c, Algorithm a, auto flow) {
    all.push_back({std::string(name(c)) + "_" + std::string(name(a)),
                   [c, flow](int size, int root, int rounds) { return record(c, flow, size, root, rounds); },
                   decltype(flow)::kStaging});
  });
  return all;
}

class Flows : public testing::TestWithParam<Row> {};

TEST_P(Flows, Proved) {
  int cases = 0;
  for (int n = 1; n <= kMaxRanks; ++n) {
    for (int root = 0; root < n; ++root) {
      if (n > 16 && root > 1 && root != n / 2 && root != n - 1) continue;
      for (const int rounds : {1, 2, 3, 7, 40}) {
        if (rounds == 40 && n > 16 && GetParam().staging) continue;
        Program p = GetParam().record(n, root, rounds);
        if (!p.pipelined && rounds != 1 && rounds != 3) continue;
        for (const int window : {2, 8}) {
          if (p.staging && window == 8) continue;  // no links
          for (const Aliasing aliasing : aliasings(p)) {
            const std::string wrong = verify(p, {window, aliasing});
            ASSERT_EQ(wrong, "") << "n " << n << " root " << root << " rounds " << rounds << " window "
                                 << window << " aliasing " << static_cast<int>(aliasing);
            ++cases;
          }
        }
      }
      if (!traits_of(GetParam().record(n, 0, 1).collective).rooted()) break;
    }
  }
  RecordProperty("cases", cases);
  EXPECT_GE(cases, 64 * 2);
}

INSTANTIATE_TEST_SUITE_P(List, Flows, testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name; });

/// The documented precondition: slots >= 2. A forwarding hop holds its input slot until its output has room.
TEST(Window, OneSlotDeadlocksTheRings) {
  for (const int n : {3, 4, 8}) {
    const Program ring = record(Collective::all_reduce, RingAllReduce{}, n, 0, 1);
    EXPECT_NE(verify(ring, {1}).find("deadlock"), std::string::npos) << n;
    EXPECT_EQ(verify(ring, {2}), "") << n;
    const Program gather = record(Collective::all_gather, RingAllGather{}, n, 0, 1);
    EXPECT_NE(verify(gather, {1}).find("deadlock"), std::string::npos) << n;
  }
}

TEST(List, NamesParseBack) {
  int flows = 0;
  for_each_flow([&](Collective c, Algorithm a, auto) {
    EXPECT_EQ(parse_algorithm(name(a)), a);
    EXPECT_TRUE(visit(c, a, [](auto) {}));
    ++flows;
  });
  EXPECT_EQ(flows, 40);
  EXPECT_FALSE(parse_algorithm("rings").has_value());
  EXPECT_FALSE(visit(Collective::barrier, Algorithm::ring, [](auto) {}));
}

}  // namespace
}  // namespace ouro::flow
