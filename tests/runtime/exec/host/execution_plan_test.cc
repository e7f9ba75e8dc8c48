// Execution plans: what runs an operation, where its posts are, and how it is cut, at the limits between
// two choices.
#include <gtest/gtest.h>

#include <vector>

#include "runtime/exec/host/by_reference.h"
#include "runtime/exec/host/execution_plan.h"
#include "runtime/exec/host/ring_places.h"
#include "runtime/exec/host/single_round.h"

namespace ouro::rt {
namespace {

using flow::Algorithm;
using On = StagingUse::On;
constexpr SlotBytes kSlots{
    .link = 4096, .staging = 8192, .eager = 512, .ring = StagingView::least_ring(8192)};

/// The plan of rank `rank` of `n` on one host, for a region or blocks of `count` floats.
struct Case {
  Collective collective = Collective::all_reduce;
  Algorithm algorithm = Algorithm::oneshot;
  std::size_t count = 2;
  int n = 2, rank = 0;
  Choice also = {};  // options other than the algorithm
  bool single_rounds = true;
  OpKind op = OpKind::sum;

  std::shared_ptr<const ExecutionPlan> make() const {
    const std::vector<int> hosts(static_cast<std::size_t>(n), 0);
    std::vector<int> world(static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r) world[static_cast<std::size_t>(r)] = r;
    const Members members(rank, world, hosts);
    const CollectiveTraits traits = traits_of(collective);
    float data = 0;
    Plan plan;
    plan.op.collective = collective;
    plan.op.in = CView(&data, traits.in.elements(count, n), DType::f32);
    plan.op.out = View(&data, traits.out.elements(count, n), DType::f32);
    plan.op.op.kind = op;
    plan.choice = also;
    plan.choice.algorithm = algorithm;
    return make_execution_plan(plan, members, kSlots, single_rounds);
  }
};

TEST(ExecutionPlans, SingleRoundIsRunBySpecialisedCode) {
  EXPECT_TRUE(is_single_round(Case{}.make()->run));
  EXPECT_TRUE(is_single_round(Case{.count = 2048}.make()->run)) << "a whole slot";
  const auto two_rounds = Case{.count = 2049}.make();
  EXPECT_FALSE(is_single_round(two_rounds->run));
  EXPECT_EQ(two_rounds->run, two_rounds->flow.run);
  EXPECT_EQ(two_rounds->flow.cut.rounds(), 2);
  const auto posts_results = Case{.algorithm = Algorithm::direct}.make();
  EXPECT_EQ(posts_results->run, posts_results->flow.run);
  const auto by_flow = Case{.single_rounds = false}.make();
  EXPECT_EQ(by_flow->run, by_flow->flow.run);
  Choice streams;
  streams.streams = true;
  const auto past_caches = Case{.also = streams}.make();
  EXPECT_EQ(past_caches->run, past_caches->flow.run);
  const auto alone = Case{.n = 1}.make();
  EXPECT_EQ(alone->run, alone->flow.run);
}

TEST(ExecutionPlans, RowWithZeroCopyRunsByReference) {
  Choice asks;
  asks.try_zero_copy = true;
  const auto asked = Case{.also = asks}.make();
  EXPECT_EQ(asked->run, run_by_reference);
  EXPECT_NE(asked->zero_copy.run, nullptr);
  EXPECT_NE(asked->flow.run, nullptr) << "where buffers are not registered";
  EXPECT_EQ(asked->pull.run, nullptr);
  const auto forced = Case{.algorithm = Algorithm::zerocopy}.make();
  EXPECT_EQ(forced->run, run_by_reference);
  EXPECT_EQ(forced->flow.run, nullptr) << "there is nothing to fall back to";
  const auto alone = Case{.algorithm = Algorithm::zerocopy, .n = 1}.make();
  EXPECT_EQ(alone->run, alone->zero_copy.run) << "nobody to ask";
  EXPECT_EQ((Case{.algorithm = Algorithm::pull}.make()->pull.cut.rounds()), 1);
}

TEST(ExecutionPlans, PostsArePlacedBySize) {
  const auto staging = [](const Case& c) { return c.make()->flow.staging; };
  EXPECT_EQ(staging({.count = 14}).on, On::arrival) << "56 bytes";
  EXPECT_EQ(staging({.count = 15}).on, On::slot) << "all post and hear of each other";
  EXPECT_EQ(staging({.count = 14}).depth, std::uint64_t{StagingView::kArrivals});
  EXPECT_EQ(staging({.count = 15}).depth, std::uint64_t{StagingView::kSlots});
  const Case broadcast{.collective = Collective::broadcast, .algorithm = Algorithm::direct};
  const auto of = [&](std::size_t count, int n = 2) {
    Case c = broadcast;
    c.count = count, c.n = n;
    return staging(c);
  };
  EXPECT_EQ(of(15).on, On::eager) << "the root runs ahead";
  EXPECT_EQ(of(128).on, On::eager) << "512 bytes";
  EXPECT_EQ(of(129).on, On::slot);
  // The root of a scatter posts a piece for each other rank.
  const auto scatter = [&](std::size_t count, int n) {
    return staging(
        {.collective = Collective::scatter, .algorithm = Algorithm::direct, .count = count, .n = n});
  };
  EXPECT_EQ(scatter(7, 3).on, On::arrival);
  EXPECT_EQ(scatter(8, 3).on, On::eager);
  EXPECT_EQ(scatter(7, 3).stride, 28u);
  EXPECT_EQ(scatter(8, 3).stride, 64u);
  EXPECT_TRUE(scatter(8, 3).others);
}

TEST(ExecutionPlans, PostsOverAPageUseTheRingIfChosen) {
  Choice round;
  round.ring = true;
  const auto use = [&](Case c) {
    c.also = round;
    return c.make()->flow.staging;
  };
  EXPECT_EQ(use({.count = 1024}).on, On::slot) << "4 KiB stay in the nearest caches";
  EXPECT_EQ(use({.count = 1024}).span, 0u);
  EXPECT_EQ(use({.count = 1025}).on, On::ring);
  EXPECT_EQ(use({.count = 1025}).span, 4160u) << "whole lines";
  EXPECT_EQ(use({.count = 1025}).depth, std::uint64_t{StagingView::kSlots});
  EXPECT_EQ((Case{.count = 1025}.make()->flow.staging.on), On::slot);
  EXPECT_EQ(use({.count = 5000}).span, 8192u) << "several rounds of a slot each";
  // All pieces of a post count, also the result.
  EXPECT_EQ(use({.algorithm = Algorithm::direct, .count = 1200, .n = 2}).span, 2 * 4096u)
      << "half a slot each";
  EXPECT_EQ(
      use({.collective = Collective::all_to_all, .algorithm = Algorithm::direct, .count = 400, .n = 4}).span,
      3 * 1600u);
  EXPECT_EQ(use({.count = 14}).on, On::arrival);
  EXPECT_EQ(use({.collective = Collective::broadcast, .algorithm = Algorithm::direct, .count = 128}).on,
            On::eager);
}

TEST(ExecutionPlans, PostersAndReadersFollowTheCollective) {
  struct Row {
    Collective collective;
    int rank;
    bool posts, copies_own;
    int sources;
  };
  for (const Row& row :
       {Row{Collective::broadcast, 0, true, true, 0}, Row{Collective::broadcast, 2, false, false, 1},
        Row{Collective::reduce, 0, false, false, 2}, Row{Collective::reduce, 1, true, false, 0},
        Row{Collective::gather, 0, false, true, 2}, Row{Collective::gather, 2, true, false, 0},
        Row{Collective::scatter, 0, true, true, 0}, Row{Collective::scatter, 1, false, false, 1},
        Row{Collective::all_gather, 1, true, true, 2}, Row{Collective::all_to_all, 1, true, true, 2},
        Row{Collective::reduce_scatter, 1, true, false, 2}}) {
    const auto plan =
        Case{.collective = row.collective, .algorithm = Algorithm::direct, .n = 3, .rank = row.rank}.make();
    const std::string what = std::string(name(row.collective)) + ", rank " + std::to_string(row.rank);
    EXPECT_TRUE(is_single_round(plan->run)) << what;
    EXPECT_EQ(plan->once.posts, row.posts) << what;
    EXPECT_EQ(plan->once.copies_own, row.copies_own) << what;
    EXPECT_EQ(plan->once.sources, row.sources) << what;
    EXPECT_EQ(plan->once.bytes, 8u) << what;
  }
}

TEST(ExecutionPlans, LinksAreCutByTheWiderType) {
  const auto narrow =
      Case{.collective = Collective::all_gather, .algorithm = Algorithm::ring, .count = 5000}.make();
  EXPECT_EQ(narrow->flow.cut.capacity(), 1024u) << "a slot of 4 KiB";
  EXPECT_EQ(narrow->flow.accumulators, 0u);
  const auto tree = Case{.algorithm = Algorithm::tree, .count = 5000, .n = 4}.make();
  EXPECT_EQ(tree->flow.accumulators, tree->flow.cut.capacity() * tree->wire.accumulator)
      << "a pipelined flow has one at a time";
}

}  // namespace
}  // namespace ouro::rt
