// Parallel layouts, meshes and rank layouts: examples, properties and refusals of their definitions, and the
// groups with real ranks. layout_golden_test.cc has the reference tables.
#include "ouro/train/layout.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>

#include "runtime/context/context.h"
#include "runtime/group/group.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::train {
namespace {

using ::testing::ElementsAre;
using Ints = std::vector<int>;

ParallelLayout layout(int rank, Ints sizes, std::optional<int> hsdp,
                      FederatedGroups groups = FederatedGroups::senders) {
  const int n = std::accumulate(sizes.begin(), sizes.end(), 0);
  auto made = ParallelLayout::make(
      {.rank = rank, .world_size = n, .federations = std::move(sizes), .hsdp = hsdp, .groups = groups});
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *made;
}

/// (4,2), L = 2: the senders are 0,3 and 4,5.
TEST(ParallelLayouts, SitesOfFourAndTwoRanksGiveTheExpectedGroups) {
  const std::vector<Ints> federated{{0, 4}, {1}, {2}, {3, 5}, {0, 4}, {3, 5}};
  const std::vector<Ints> replica{{0, 2}, {1, 3}, {0, 2}, {1, 3}, {4}, {5}};
  const int from[] = {-1, 3, 0, -1, -1, -1};
  for (int r = 0; r < 6; ++r) {
    const auto l = layout(r, {4, 2}, 2);
    EXPECT_EQ(l.federated_group, federated[static_cast<std::size_t>(r)]);
    EXPECT_EQ(l.replica_group, replica[static_cast<std::size_t>(r)]);
    EXPECT_EQ(l.receive_from.value_or(-1), from[r]);
    EXPECT_EQ(l.is_sender, from[r] < 0);
    EXPECT_THAT(l.replica->world_size, ElementsAre(2, 1));
    // If sizes differ, this option gives the same groups.
    EXPECT_EQ(layout(r, {4, 2}, 2, FederatedGroups::all_replicas).federated_group, l.federated_group);
  }
}

/// With equal sites: either only senders form groups, or every rank forms one with its counterparts.
TEST(ParallelLayouts, SendersOrAllReplicasFormFederatedGroups) {
  for (const int width : {1, 2, 4})
    for (int r = 0; r < 12; ++r) {
      const auto few = layout(r, {4, 4, 4}, width),
                 all = layout(r, {4, 4, 4}, width, FederatedGroups::all_replicas);
      const int l = r % 4;
      EXPECT_THAT(all.federated_group, ElementsAre(l, 4 + l, 8 + l));
      if (!few.is_sender) {
        EXPECT_THAT(few.federated_group, ElementsAre(r));
        EXPECT_EQ(layout(*few.receive_from, {4, 4, 4}, width).is_sender, true);
        continue;
      }
      for (const int other : few.federated_group) {
        const auto theirs = layout(other, {4, 4, 4}, width);
        EXPECT_EQ(theirs.federated_group, few.federated_group);
        EXPECT_EQ(theirs.replica->local_rank, few.replica->local_rank);
      }
    }
}

TEST(ParallelLayouts, ShardedAndHybridPlansHaveTheirGroups) {
  const auto sharded = *ParallelLayout::make({.rank = 2, .world_size = 4});
  EXPECT_FALSE(sharded.federation || sharded.hsdp || sharded.replica);
  EXPECT_THAT(sharded.fsdp->ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(group_plan(sharded), ElementsAre(NamedRanks{"shard", {0, 1, 2, 3}}));
  EXPECT_FALSE(hybrid_shard(sharded));
  const auto hybrid = *ParallelLayout::make({.rank = 2, .world_size = 4, .hsdp = 2, .streams = 2});
  EXPECT_TRUE(hybrid_shard(hybrid));
  EXPECT_THAT(group_plan(hybrid),
              ElementsAre(NamedRanks{"replica", {0, 2}}, NamedRanks{"shard", {2, 3}},
                          NamedRanks{"replica_average/0", {0, 2}}, NamedRanks{"replica_average/1", {0, 2}}));
}

TEST(ParallelLayouts, InvalidOptionsAreRefused) {
  const auto refused = [](const LayoutOptions& o) {
    const auto made = ParallelLayout::make(o);
    return made.status().code() == Code::invalid;
  };
  EXPECT_TRUE(refused({.rank = 4, .world_size = 4}));
  EXPECT_TRUE(refused({.rank = -1, .world_size = 4}));
  EXPECT_TRUE(refused({.rank = 0, .world_size = 0}));
  EXPECT_TRUE(refused({.world_size = 4, .hsdp = 0}));
  EXPECT_TRUE(refused({.world_size = 4, .hsdp = 3}));
  // Not a federated layout.
  EXPECT_TRUE(refused({.world_size = 4, .hsdp = 3, .fallback = Fallback::drop_hsdp}));
  EXPECT_TRUE(refused({.world_size = 4, .federations = {3, 2}, .hsdp = 1}));
  EXPECT_TRUE(refused({.world_size = 4, .federations = {4, 0}, .hsdp = 1}));
  EXPECT_TRUE(refused({.world_size = 4, .federations = {3, 1}}));
  EXPECT_TRUE(refused({.world_size = 6, .federations = {4, 2}, .hsdp = 4}));
  EXPECT_TRUE(refused({.world_size = 6, .federations = {4, 2}, .hsdp = 4, .fallback = Fallback::drop_hsdp}));
  EXPECT_TRUE(refused({.world_size = 4, .streams = 0}));
  EXPECT_TRUE(refused({.world_size = 4, .node = NodeInfo{.local_rank = 2, .local_size = 2}}));
  EXPECT_TRUE(refused({.world_size = 4, .node = NodeInfo{.node_rank = 1}}));
  EXPECT_TRUE(
      refused({.world_size = 4, .node = NodeInfo{.local_size = 3, .node_count = 2}, .uniform_nodes = true}));
  EXPECT_TRUE(refused({.world_size = 4, .uniform_nodes = true}));
  EXPECT_FALSE(refused({.world_size = 4, .node = NodeInfo{.local_size = 3, .node_count = 2}}));
  EXPECT_FALSE(
      refused({.world_size = 4, .node = NodeInfo{.local_size = 2, .node_count = 2}, .uniform_nodes = true}));
  const auto dropped = ParallelLayout::make(
      {.rank = 5, .world_size = 8, .federations = {4, 4}, .hsdp = 3, .fallback = Fallback::drop_hsdp});
  ASSERT_TRUE(dropped.ok());
  EXPECT_THAT(dropped->fsdp->ranks, ElementsAre(4, 5, 6, 7));
}

TEST(ParallelLayouts, InitPlanChoosesTheRanksThatMaterialise) {
  const auto materialises = [](const ParallelLayout& l) { return init_plan(l, 4).materialises; };
  for (int r = 0; r < 6; ++r) {
    EXPECT_EQ(materialises(layout(r, {3, 3}, {})), r == 0 || r == 3);
    EXPECT_EQ(materialises(layout(r, {4, 2}, 2)), r % 2 == 0);
    EXPECT_EQ(materialises(*ParallelLayout::make({.rank = r, .world_size = 6})), r == 0);
  }
  EXPECT_TRUE(init_plan(layout(0, {3, 3}, {}), 2).meta);
  EXPECT_FALSE(init_plan(layout(0, {3, 3}, {}), 1).meta);
}

TEST(Meshes, AxisGroupsAreFoundInThreeDimensions) {
  const std::string axes[] = {"a", "b", "c"};
  const int shape[] = {2, 3, 4};
  const auto mesh = *make_mesh(shape, axes);
  ASSERT_EQ(mesh.ranks.size(), 24u);
  EXPECT_THAT(*mesh.coordinates(17), ElementsAre(1, 1, 1));
  EXPECT_EQ(mesh.coordinates(24), std::nullopt);
  EXPECT_THAT(*mesh.along("a", 17), ElementsAre(5, 17));
  EXPECT_THAT(*mesh.along("b", 17), ElementsAre(13, 17, 21));
  EXPECT_THAT(*mesh.along("c", 17), ElementsAre(16, 17, 18, 19));
  EXPECT_EQ(mesh.along("d", 17).status().code(), Code::invalid);
  EXPECT_EQ(mesh.along("a", 24).status().code(), Code::invalid);
  // The lines along an axis partition the mesh.
  for (const std::string& axis : axes)
    for (int r = 0; r < 24; ++r) {
      const Ints line = *mesh.along(axis, r);
      for (const int other : line) EXPECT_EQ(*mesh.along(axis, other), line);
    }
  EXPECT_THAT(make_mesh(shape)->axes, ElementsAre("0", "1", "2"));
  const auto hsdp = *layout(5, {4, 4}, 2).hsdp;  // ranks 4..7
  EXPECT_THAT(*hsdp.along("replica", 5), ElementsAre(5, 7));
  EXPECT_THAT(*hsdp.along("shard", 5), ElementsAre(4, 5));

  const int bad[] = {2, 0}, huge[] = {65536, 65536};
  const std::string twice[] = {"a", "b", "a"};
  EXPECT_EQ(make_mesh({}).status().code(), Code::invalid);
  EXPECT_EQ(make_mesh(bad).status().code(), Code::invalid);
  EXPECT_EQ(make_mesh(huge).status().code(), Code::invalid);
  EXPECT_EQ(make_mesh(shape, {axes, 2}).status().code(), Code::invalid);
  EXPECT_EQ(make_mesh(shape, twice).status().code(), Code::invalid);
}

TEST(Federations, WorldIsDividedIntoEqualSites) {
  EXPECT_THAT(*federation_sizes(6, 2), ElementsAre(2, 2, 2));
  for (const int k : {0, -1, 4, 6, 7}) EXPECT_EQ(federation_sizes(6, k).status().code(), Code::invalid) << k;
}

TEST(Federations, SizesAreReadFromTheEnvironment) {
  constexpr const char* kName = "XFFL_FEDERATED_LOCAL_WORLD_SIZE";
  const auto with = [&](const char* text, int local_size = 4) {
    setenv(kName, text, 1);
    auto sizes = federation_sizes_from_env(local_size);
    unsetenv(kName);
    return sizes;
  };
  EXPECT_THAT(*with("2,3"), ElementsAre(8, 12));
  EXPECT_THAT(*with("1"), ElementsAre(4));
  EXPECT_TRUE(with("")->empty());
  EXPECT_TRUE(federation_sizes_from_env(4)->empty());
  for (const char* bad : {"a", "2,", ",2", "2 3", "2,-1", "0", "99999999999", "2147483647"})
    EXPECT_EQ(with(bad).status().code(), Code::invalid) << bad;
  EXPECT_EQ(with("2", 0).status().code(), Code::invalid);
}

TEST(Federations, HostsAreGroupedIntoCellsByTheirNumbers) {
  const std::vector<std::string> hosts{"n0001", "n0002", "n0181", "n0182", "n0183"};
  EXPECT_THAT(*cell_sizes(hosts, 180), ElementsAre(2, 3));
  EXPECT_TRUE(cell_sizes(hosts, 1000)->empty());
  EXPECT_THAT(*cell_sizes(hosts, 1), ElementsAre(1, 1, 1, 1, 1));
  const std::vector<std::string> apart{"rack1-n1", "rack2-n1", "rack1-n2"};  // 11, 21, 12
  EXPECT_THAT(*cell_sizes(apart, 10), ElementsAre(1, 1, 1));
  EXPECT_EQ(cell_sizes(hosts, 0).status().code(), Code::invalid);
  const std::vector<std::string> nameless{"localhost"}, long_name{"n1234567890123456789"};
  EXPECT_EQ(cell_sizes(nameless, 2).status().code(), Code::invalid);
  EXPECT_EQ(cell_sizes(long_name, 2).status().code(), Code::invalid);
  EXPECT_TRUE(cell_sizes({}, 2)->empty());
}

TEST(RankLayouts, BothRankRulesAssignTheExpectedRoles) {
  for (const RankRule rule : {RankRule::contiguous, RankRule::interleaved}) {
    const auto l = *RankLayout::make(
        {.world_size = 6, .buffers = 2, .agent_groups = 3, .coordinator = true, .rule = rule});
    const bool old = rule == RankRule::contiguous;
    EXPECT_THAT(l.agent_groups(), ElementsAre(Ints{0}, Ints{1}, Ints{old ? 2 : 3}));
    EXPECT_EQ(l.coordinator(), 5);
    EXPECT_FALSE(l.agent_group_id(5));
    EXPECT_FALSE(l.assigned_training_ranks(5));
    EXPECT_FALSE(l.assigned_buffer(old ? 3 : 2));
    EXPECT_THAT(*l.assigned_training_ranks(old ? 3 : 2), ElementsAre(0, old ? 2 : 1));
  }
  const std::vector<std::string> hosts{"a", "a", "a", "a", "b", "b", "b", "b"};
  const auto l = *RankLayout::make({.world_size = 8, .buffers = 4, .agent_groups = 2, .hosts = hosts});
  EXPECT_THAT(l.agent_groups(), ElementsAre(Ints{0, 2}, Ints{4, 6}));
  EXPECT_THAT(l.buffer_ranks(), ElementsAre(1, 3, 5, 7));
}

/// Whatever the numbers, every rank has one role, and every agent a buffer that serves it.
TEST(RankLayouts, EveryRankHasOneRole) {
  int made = 0;
  for (int n = 1; n <= 12; ++n)
    for (int buffers = 0; buffers <= n; ++buffers)
      for (int groups = 1; groups <= n; ++groups)
        for (const bool coordinator : {false, true})
          for (const RankRule rule : {RankRule::contiguous, RankRule::interleaved})
            for (int hosts = 1; hosts <= 3; ++hosts) {
              RankLayoutOptions o{n, buffers, groups, coordinator, rule, {}};
              // Ranks of a host are not consecutive.
              for (int r = 0; r < n; ++r) o.hosts.push_back(std::to_string(r % hosts));
              const auto l = RankLayout::make(o);
              const int training = n - buffers - coordinator;
              if (training < 1 || training < buffers || training % groups != 0) {
                EXPECT_EQ(l.status().code(), Code::invalid);
                continue;
              }
              if (!l.ok()) {  // a host has too few ranks
                EXPECT_TRUE(rule == RankRule::interleaved && hosts > 1) << l.status().message();
                continue;
              }
              ++made;
              EXPECT_EQ(static_cast<int>(l->training_ranks().size()), training);
              EXPECT_EQ(static_cast<int>(l->agent_groups().size()), groups);
              for (int r = 0; r < n; ++r) {
                EXPECT_EQ(l->is_training(r) + l->is_buffer(r) + l->is_coordinator(r), 1);
                EXPECT_EQ(l->assigned_buffer(r).has_value(), l->is_training(r) && buffers > 0);
                if (!l->assigned_buffer(r)) continue;
                EXPECT_THAT(*l->assigned_training_ranks(*l->assigned_buffer(r)), ::testing::Contains(r));
                EXPECT_THAT(l->agent_groups()[static_cast<std::size_t>(*l->agent_group_id(r))],
                            ::testing::Contains(r));
              }
            }
  EXPECT_GT(made, 1000);
}

TEST(RankLayouts, InvalidOptionsAreRefused) {
  const auto refused = [](const RankLayoutOptions& o) {
    return RankLayout::make(o).status().code() == Code::invalid;
  };
  EXPECT_TRUE(refused({.world_size = 0}));
  EXPECT_TRUE(refused({.world_size = 4, .buffers = -1}));
  EXPECT_TRUE(refused({.world_size = 4, .agent_groups = 0}));
  EXPECT_TRUE(refused({.world_size = 1, .coordinator = true}));
  EXPECT_TRUE(refused({.world_size = 4, .hosts = {"a"}}));
  // The three ranks of the first host are one too few for two buffers with their agents.
  EXPECT_TRUE(
      refused({.world_size = 9, .buffers = 4, .hosts = {"a", "a", "a", "b", "b", "b", "b", "b", "b"}}));
  // The coordinator is alone on its host, so there is no place for that host's buffer.
  EXPECT_TRUE(
      refused({.world_size = 5, .buffers = 2, .coordinator = true, .hosts = {"a", "a", "a", "a", "b"}}));
}

// ---- groups ---------------------------------------------------------------------------------------

/// Each group of the plan sums over exactly its members.
TEST(LayoutGroups, SumTheirMembers) {
  for (const auto mode : {test::Mode::threads, test::Mode::processes}) {
    OURO_SKIP_PROCESSES_UNDER_TSAN(mode);
    const std::string wrong = test::run(mode, 6, [](Context& c) -> std::string {
      const auto mine = ParallelLayout::make(
          {.rank = c.rank(), .world_size = 6, .federations = {4, 2}, .hsdp = 2, .streams = 2});
      OURO_RANK_OK(mine);
      auto groups = create_groups(c, *mine);
      OURO_RANK_OK(groups);
      OURO_RANK_CHECK(groups->federated.size() == 2 && groups->replica_average.size() == 2, "streams");
      const auto sums = [&](Group& g, const Ints& ranks) -> std::string {
        const int in = c.rank();
        int out = -1;
        OURO_RANK_OK(all_reduce(g, std::span<const int>(&in, 1), std::span<int>(&out, 1)));
        OURO_RANK_CHECK(out == std::accumulate(ranks.begin(), ranks.end(), 0), "{} over {}", out, g.name());
        OURO_RANK_CHECK(std::equal(g.ranks().begin(), g.ranks().end(), ranks.begin(), ranks.end()), "{}",
                        g.name());
        return "";
      };
      Group* const all[] = {&*groups->replica,           &*groups->shard,
                            &groups->federated[0],       &groups->federated[1],
                            &groups->replica_average[0], &groups->replica_average[1],
                            &*groups->federation};
      const auto plan = group_plan(*mine);
      OURO_RANK_CHECK(plan.size() == std::size(all), "{} groups", plan.size());
      for (std::size_t k = 0; k < plan.size(); ++k)
        if (std::string w = sums(*all[k], plan[k].ranks); !w.empty()) return w;

      const int shape[] = {3, 2};
      const std::string axes[] = {"x", "y"};
      const auto mesh = make_mesh(shape, axes);
      auto lines = create_groups(c, *mesh);
      OURO_RANK_OK(lines);
      for (std::size_t d = 0; d < 2; ++d)
        if (std::string w = sums((*lines)[d], *mesh->along(axes[d], c.rank())); !w.empty()) return w;
      ParallelLayout other = *mine;
      other.rank = (c.rank() + 1) % 6;
      OURO_RANK_CHECK(create_groups(c, other).status().code() == Code::invalid, "the layout of another rank");
      return test::status_of(c.close()).ok() ? "" : "close";
    });
    EXPECT_EQ(wrong, "");
  }
}

/// A chosen deadline is used; without one, these groups have a longer default than other groups.
TEST(LayoutGroups, DefaultDeadlineIsAnHourUnlessOneIsChosen) {
  const auto shard_deadline = [](const InitOptions& init, const GroupOptions& options) {
    auto ranks = Context::threads(1, init);
    if (!ranks.ok()) return Milliseconds(-1);
    const auto layout = ParallelLayout::make({.rank = 0, .world_size = 1});
    auto groups = layout.ok() ? create_groups(ranks->front(), *layout, options) : layout.status();
    return groups.ok() ? groups->shard->impl()->spec().deadline : Milliseconds(-2);
  };
  const char* const set = std::getenv("OURO_DEADLINE");
  const std::string before = set ? set : "";
  unsetenv("OURO_DEADLINE");
  EXPECT_EQ(shard_deadline({}, {}), std::chrono::hours(1));
  EXPECT_EQ(shard_deadline({}, {.deadline = Milliseconds(7)}), Milliseconds(7));
  EXPECT_EQ(shard_deadline({.deadline = Milliseconds(9)}, {}), Milliseconds(9));
  setenv("OURO_DEADLINE", "600", 1);
  EXPECT_EQ(shard_deadline({}, {}), std::chrono::minutes(10));
  set ? setenv("OURO_DEADLINE", before.c_str(), 1) : unsetenv("OURO_DEADLINE");
}

/// Groups cost almost nothing before they are used: 33 of them take less than a millisecond, in the best of
/// 20 attempts.
TEST(TimedLayoutGroups, CreationTakesLessThanAMillisecond) {
  if (OURO_TEST_TSAN) GTEST_SKIP() << "under ThreadSanitizer: its code has other times";
  EXPECT_EQ("", test::run_threads(4, [](Context& c) -> std::string {
              const auto layout = ParallelLayout::make(
                  {.rank = c.rank(), .world_size = 4, .federations = {2, 2}, .hsdp = 1, .streams = 15});
              OURO_RANK_OK(layout);
              OURO_RANK_CHECK(group_plan(*layout).size() == 33, "{} groups", group_plan(*layout).size());
              std::chrono::duration<double, std::milli> best{1e9};
              for (int k = 0; k < 20; ++k) {
                const auto begin = std::chrono::steady_clock::now();
                OURO_RANK_OK(create_groups(c, *layout));
                best = std::min<decltype(best)>(best, std::chrono::steady_clock::now() - begin);
              }
              OURO_RANK_CHECK(best.count() < 1, "{} ms", best.count());
              return "";
            }));
}

}  // namespace
}  // namespace ouro::train
