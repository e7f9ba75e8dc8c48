// Compares single rounds with the flows that they replace: every one in the list, over many shapes, bit
// for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/flow/list.h"
#include "tests/runtime/group/access.h"
#include "tests/runtime/group/exchange.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

struct Named {
  Collective collective;
  flow::Algorithm algorithm;
};

/// All flows that have a hand-written single round.
std::vector<Named> all_single_rounds() {
  std::vector<Named> all;
  flow::for_each_flow([&]<class Flow>(Collective c, flow::Algorithm a, Flow) {
    if (std::is_base_of_v<flow::Staged, Flow> && !Flow::kPostsResult && !Flow::kSwitched)
      all.push_back({c, a});
  });
  return all;
}

Status call(Group& g, const Exchange& x, CView in, View out, ReduceOp op, const CallOptions& o) {
  switch (x.form.collective) {
    case Collective::all_reduce:
      return all_reduce(g, in, out, op, o);
    case Collective::reduce:
      return reduce(g, in, out, op, x.root, o);
    case Collective::reduce_scatter:
      return reduce_scatter(g, in, out, op, o);
    default:
      return x.call(g, in, out, o);
  }
}

/// Runs a call. *memory: afterwards, the content of all memory that it could touch.
Status run_into(std::vector<float>* memory, bool* single, Group& g, const Exchange& x, bool in_place,
                ReduceOp op, std::string_view algorithm) {
  const int r = g.rank();
  const std::size_t in = x.in_count(r), out = x.out_count(r), large = std::max(in, out);
  std::mt19937 values(static_cast<unsigned>(17 + r));
  memory->resize(2 * large + 2);
  for (float& v : *memory)
    v = std::uniform_real_distribution<float>(-3, 3)(values);  // sums depend on the order
  float* const first = memory->data() + 1;
  float* const second = in_place ? first + x.in_place_at(r) : first + large;
  float* const input = in >= out ? first : second;
  float* const output = in >= out ? second : first;
  const CView from(input, in, DType::f32);
  const View to(output, out, DType::f32);
  *single = rt::TestAccess::runs_single_round(*g.impl(), {.collective = x.form.collective,
                                                          .in = from,
                                                          .out = to,
                                                          .op = op,
                                                          .root = x.root,
                                                          .algorithm = algorithm});
  return call(g, x, from, to, op, {.algorithm = algorithm});
}

class SingleRounds : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, SingleRounds, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(SingleRounds, GiveTheResultsOfTheirFlows) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  if (hosts_of(2) > 1) GTEST_SKIP() << "on several hosts: they share no staging buffers";
  ASSERT_GE(all_single_rounds().size(), 10u);
  for (const int n : {2, 3, 5}) {
    const std::string outcome = run(GetParam(), n, [](Context& c) -> std::string {
      Group& g = c.world();
      const int n = g.size();
      for (const auto& [collective, algorithm] : all_single_rounds())
        for (const std::size_t count : {1, 3, 14, 60, 1000, 5000})
          for (const int root : {0, n - 1})
            for (const bool in_place : {false, true})
              for (const ReduceOp op :
                   {ReduceOp(ReduceOp::sum), ReduceOp(ReduceOp::avg), ReduceOp::premul(0.3)}) {
                const Exchange x{{collective}, n, count, root};
                const bool reduces = collective == Collective::all_reduce ||
                                     collective == Collective::reduce ||
                                     collective == Collective::reduce_scatter;
                if (!reduces && op.kind != OpKind::sum) continue;
                if (in_place && collective == Collective::all_to_all) continue;
                if (algorithm == flow::Algorithm::inlined && count * sizeof(float) > Arrival::kInline)
                  continue;
                std::vector<float> by_hand, by_flow;
                const auto what = flow::name(algorithm);
                bool single = false;
                rt::TestAccess::single_rounds(*g.impl(), true);
                OURO_RANK_OK(run_into(&by_hand, &single, g, x, in_place, op, what));
                OURO_RANK_CHECK(single, "{} by {}, count {}: not by hand", name(collective), what, count);
                rt::TestAccess::single_rounds(*g.impl(), false);
                OURO_RANK_OK(run_into(&by_flow, &single, g, x, in_place, op, what));
                OURO_RANK_CHECK(!single, "{} by {}, count {}: not by the flow", name(collective), what,
                                count);
                OURO_RANK_CHECK(
                    std::memcmp(by_hand.data(), by_flow.data(), by_hand.size() * sizeof(float)) == 0,
                    "{} by {} over {} ranks, count {}, root {}, {}", name(collective), what, n, count, root,
                    in_place ? "in place" : "apart");
              }
      return "";
    });
    EXPECT_EQ(outcome, "") << n << " ranks";
  }
}

}  // namespace
}  // namespace ouro::test
