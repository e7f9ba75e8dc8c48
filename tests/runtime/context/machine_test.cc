// The machine as hwloc and invented descriptions report it: cores, caches, places of ranks, masks, binding.
// Run by ctest.
#include "runtime/context/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>
#include <thread>

namespace ouro::rt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Two sockets with one NUMA node each, two L3 caches per socket, four cores per L3, two hardware threads per
/// core with consecutive numbers: core c has 2c and 2c + 1.
constexpr const char* kTwoSockets = "pack:2 [numa(memory=1GB)] l3:2(size=32MiB) l2:4(size=1MiB) core:1 pu:2";

Machine invented(const std::string& description) {
  Result<Machine> m = read_machine(description);
  EXPECT_TRUE(m.ok()) << m.status().message();
  return m.ok() ? *m : Machine{};
}

Cpus range(int first, int last) {
  Cpus cpus(static_cast<std::size_t>(last - first + 1));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

std::vector<std::string> places(const Machine& m, int ranks, Bind policy) {
  std::vector<std::string> list;
  for (int r = 0; r < ranks; ++r) list.push_back(to_text(m.place(r, ranks, policy).cpus));
  return list;
}

TEST(ReadMachine, ReportsCoresCachesAndNodesOfTwoSockets) {
  const Machine m = invented(kTwoSockets);
  ASSERT_EQ(m.cores.size(), 16u);
  EXPECT_EQ(m.threads(), 32);
  EXPECT_EQ(m.nodes(), 2);
  EXPECT_EQ(m.l3_bytes, 32u << 20);
  EXPECT_TRUE(m.invented);
  EXPECT_EQ(m.source, "hwloc");
  for (int c = 0; c < 16; ++c) {
    const Core& core = m.cores[static_cast<std::size_t>(c)];
    EXPECT_EQ(core.id, c);
    EXPECT_THAT(core.cpus, ElementsAre(2 * c, 2 * c + 1));
    EXPECT_EQ(core.l2, c);
    EXPECT_EQ(core.l2_bytes, 1u << 20);
    EXPECT_EQ(core.l3, c / 4);
    EXPECT_EQ(core.domain, c / 4);
    EXPECT_EQ(core.node, c / 8);
  }
  EXPECT_TRUE(m.same_cache(0, 3));
  EXPECT_FALSE(m.same_cache(3, 4));
  EXPECT_FALSE(m.same_cache(0, 16)) << "no such core";
  EXPECT_FALSE(m.same_cache());
}

TEST(ReadMachine, SingleCoreServesEveryBinding) {
  const Machine m = invented("l3:1(size=8MiB) core:1 pu:1");
  ASSERT_EQ(m.cores.size(), 1u);
  EXPECT_TRUE(m.same_cache());
  EXPECT_EQ(m.l3_bytes, 8u << 20);
  for (const Bind b : {Bind::core, Bind::cache, Bind::numa}) {
    EXPECT_THAT(places(m, 1, b), ElementsAre("0"));
    EXPECT_EQ(m.place(0, 1, b).node, -1) << "there is only one node";
  }
}

TEST(ReadMachine, WithoutAnL3TheL2IsTheOutermostCache) {
  const Machine m = invented("pack:1 l2:2(size=4MiB) core:2 pu:1");
  EXPECT_EQ(m.l3_bytes, 4u << 20);
  EXPECT_EQ(m.cores[0].l3, -1);
  EXPECT_TRUE(m.same_cache(0, 1));
  EXPECT_FALSE(m.same_cache(1, 2));
  EXPECT_THAT(places(m, 2, Bind::cache), ElementsAre("0-1", "2-3"));
}

TEST(ReadMachine, WithoutCachesNothingIsShared) {
  const Machine m = invented("core:4 pu:1");
  EXPECT_EQ(m.l3_bytes, 0u);
  EXPECT_FALSE(m.same_cache(0, 1));
  EXPECT_FALSE(m.same_cache(2, 2));
  EXPECT_THAT(places(m, 2, Bind::cache), ElementsAre("0-3", "0-3"));
}

TEST(ReadMachine, RanksAreBoundToEachMemoryNodeOfAPackage) {
  const Machine m = invented("pack:2 group:2 [numa(memory=1GB)] l3:2(size=16MiB) core:1 pu:1");
  EXPECT_EQ(m.nodes(), 4);
  EXPECT_THAT(places(m, 4, Bind::numa), ElementsAre("0-1", "2-3", "4-5", "6-7"));
  EXPECT_EQ(m.place(3, 4, Bind::numa).node, 3);
}

/// A common numbering: first one thread of each core, then the second threads.
TEST(ReadMachine, SiblingsNumberedLastBelongToTheirCores) {
  const Machine m = invented("l3:2(size=16MiB) core:2 pu:2(indexes=0,4,1,5,2,6,3,7)");
  EXPECT_THAT(m.cores[1].cpus, ElementsAre(1, 5));
  EXPECT_THAT(places(m, 4, Bind::core), ElementsAre("0,4", "1,5", "2,6", "3,7"));
  EXPECT_THAT(places(m, 8, Bind::core), ElementsAre("0", "1", "2", "3", "4", "5", "6", "7"));
  EXPECT_THAT(places(m, 2, Bind::cache), ElementsAre("0-1,4-5", "2-3,6-7"));
}

TEST(ReadMachine, RefusesAnInvalidDescription) {
  const Result<Machine> none = read_machine("node:");
  EXPECT_EQ(none.status().code(), Code::invalid);
  EXPECT_THAT(none.status().message(), HasSubstr("node:"));
}

TEST(LimitedMachine, DropsThreadsCoresAndCachesOutsideTheMask) {
  const Machine all = invented("pack:2 [numa(memory=1GB)] l3:1(size=16MiB) core:4 pu:2");
  const Machine m = all.limited_to({1, 6, 7, 9, 99});  // half a core, a core, half a core of the other socket
  ASSERT_EQ(m.cores.size(), 3u);
  EXPECT_THAT(m.cores[0].cpus, ElementsAre(1));
  EXPECT_THAT(m.cores[1].cpus, ElementsAre(6, 7));
  EXPECT_THAT(m.cores[2].cpus, ElementsAre(9));
  EXPECT_EQ(m.cores[1].id, 3);
  EXPECT_EQ(m.threads(), 4);
  EXPECT_EQ(m.nodes(), 2);
  EXPECT_TRUE(m.same_cache(0, 1));
  EXPECT_FALSE(m.same_cache());
  EXPECT_THAT(places(m, 3, Bind::core), ElementsAre("1", "6-7", "9"));
  EXPECT_THAT(places(m, 4, Bind::core), ElementsAre("1", "6", "9", "7"));
  EXPECT_THAT(places(m, 2, Bind::numa), ElementsAre("1,6-7", "1,6-7"));
  const Machine right = all.limited_to(range(8, 15));
  EXPECT_TRUE(right.same_cache());
  EXPECT_EQ(right.nodes(), 1);
  EXPECT_EQ(right.place(0, 1, Bind::numa).node, -1);
  EXPECT_TRUE(all.limited_to({}).cores.empty());
  EXPECT_EQ(all.limited_to({}).l3_bytes, 0u);
}

TEST(Placement, CoreBindingGivesEachRankACoreAndFillsCaches) {
  const Machine m = invented(kTwoSockets);
  EXPECT_THAT(places(m, 4, Bind::core), ElementsAre("0-1", "2-3", "4-5", "6-7"));
  const auto full = places(m, 16, Bind::core);
  EXPECT_EQ(full.back(), "30-31");
  EXPECT_EQ(m.place(0, 16, Bind::core).node, 0);
  EXPECT_EQ(m.place(15, 16, Bind::core).node, 1);
  EXPECT_FALSE(m.place(15, 16, Bind::core).shared);
}

TEST(Placement, CoreBindingUsesSecondThreadsLastThenSharesThem) {
  const Machine m = invented(kTwoSockets);
  const auto some = places(m, 18, Bind::core);
  for (int r = 0; r < 16; ++r) EXPECT_EQ(some[static_cast<std::size_t>(r)], std::to_string(2 * r));
  EXPECT_EQ(some[16], "1");
  EXPECT_EQ(some[17], "3");
  EXPECT_FALSE(m.place(31, 32, Bind::core).shared);
  EXPECT_EQ(to_text(m.place(31, 32, Bind::core).cpus), "31");
  EXPECT_TRUE(m.place(0, 33, Bind::core).shared);
  EXPECT_EQ(to_text(m.place(32, 33, Bind::core).cpus), "0");
  EXPECT_THAT(places(invented("core:2 pu:1"), 5, Bind::core), ElementsAre("0", "1", "0", "1", "0"));
}

TEST(Placement, CacheAndNumaBindingSpreadRanksInBlocks) {
  const Machine m = invented(kTwoSockets);
  EXPECT_THAT(places(m, 4, Bind::cache), ElementsAre("0-7", "8-15", "16-23", "24-31"));
  EXPECT_THAT(places(m, 3, Bind::cache), ElementsAre("0-7", "8-15", "16-23"));
  EXPECT_THAT(places(m, 8, Bind::cache),
              ElementsAre("0-7", "0-7", "8-15", "8-15", "16-23", "16-23", "24-31", "24-31"));
  EXPECT_THAT(places(m, 3, Bind::numa), ElementsAre("0-15", "0-15", "16-31"));
  EXPECT_EQ(m.place(2, 3, Bind::numa).node, 1);
  EXPECT_EQ(to_text(m.place(99, 100, Bind::numa).cpus), "16-31");
  EXPECT_FALSE(m.place(99, 100, Bind::numa).shared);
}

TEST(Placement, NoBindingLeavesProcessorsUnrestricted) {
  const Placement p = invented(kTwoSockets).place(3, 4, Bind::none);
  EXPECT_TRUE(p.cpus.empty());
  EXPECT_EQ(p.node, -1);
  EXPECT_TRUE(Machine{}.place(0, 1, Bind::core).cpus.empty());
}

/// Cores that differ: the first has two threads and no L3 (but an L2), the others one thread and an L3.
TEST(Placement, UnequalCoresAreAllUsed) {
  Machine m;
  m.cores = {{.id = 0, .cpus = {0, 1}, .l2 = 0, .l2_bytes = 1, .domain = 0, .node = 0},
             {.id = 1, .cpus = {2}, .l2 = 1, .l3 = 0, .l3_bytes = 4, .domain = 1, .node = 0},
             {.id = 2, .cpus = {3}, .l2 = 2, .l3 = 0, .l3_bytes = 4, .domain = 1, .node = 0}};
  EXPECT_THAT(places(m, 3, Bind::core), ElementsAre("0-1", "2", "3"));
  EXPECT_THAT(places(m, 4, Bind::core), ElementsAre("0", "2", "3", "1"));
  EXPECT_THAT(places(m, 3, Bind::cache), ElementsAre("0-1", "2-3", "2-3"));
  EXPECT_EQ(m.limited_to({0, 1}).l3_bytes, 1u);
  EXPECT_EQ(m.limited_to({1, 3}).l3_bytes, 4u);
}

TEST(FlatMachine, HasOneCoreForEachThreadOfTheMask) {
  const Machine m = flat_machine({2, 5}, "no hwloc");
  ASSERT_EQ(m.cores.size(), 2u);
  EXPECT_EQ(m.source, "no hwloc");
  EXPECT_FALSE(m.invented);
  EXPECT_EQ(m.nodes(), 0);
  EXPECT_FALSE(m.same_cache(0, 1)) << "unknown";
  EXPECT_THAT(places(m, 3, Bind::core), ElementsAre("2", "5", "2"));
  EXPECT_THAT(places(m, 2, Bind::cache), ElementsAre("2,5", "2,5"));
  EXPECT_EQ(flat_machine({}, "").cores.size(), 1u);
}

TEST(Here, HasExactlyTheThreadsOfTheMask) {
  const Machine& m = machine();
  EXPECT_EQ(&m, &machine());
  if (m.invented) GTEST_SKIP() << "set by the user: HWLOC_XMLFILE or HWLOC_SYNTHETIC";
  Cpus cpus;
  for (const Core& c : m.cores) cpus.insert(cpus.end(), c.cpus.begin(), c.cpus.end());
  std::sort(cpus.begin(), cpus.end());
  EXPECT_EQ(cpus, affinity_of(::getpid()));
}

/// The return value of `f` in a fresh process; failures of EXPECT there would be lost.
template <class F>
int in_a_process(F&& f) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(f());
  int status = -1;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

TEST(Here, AMaskSetBeforeTheFirstCallLimitsIt) {
  const Cpus mine = affinity_of(0);
  if (mine.size() < 2) GTEST_SKIP() << "this machine has no second core";
  // This process may have read the machine already, so a new process starts with the mask.
  EXPECT_EQ(in_a_process([&] {
              if (!bind_this_thread({.cpus = {mine.back()}}).ok()) return 1;
              ::execl("/proc/self/exe", "test_machine", "--gtest_filter=Here.HasExactlyTheThreadsOfTheMask",
                      nullptr);
              return 2;
            }),
            0);
}

TEST(Binding, ReallyBindsThisThreadAndItsChildrenOnly) {
  const Cpus mine = affinity_of(0);
  std::thread([&] {
    const Status s = bind_this_thread({.cpus = {mine.back()}});
    EXPECT_TRUE(s.ok()) << s.message();
    EXPECT_THAT(affinity_of(0), ElementsAre(mine.back()));
    std::thread([&] { EXPECT_THAT(affinity_of(0), ElementsAre(mine.back())) << "inherited"; }).join();
    EXPECT_EQ(affinity_of(::getpid()), mine) << "the main thread's";
  }).join();
  EXPECT_EQ(affinity_of(0), mine);
}

TEST(Binding, EmptyBindingChangesNothing) {
  const Cpus mine = affinity_of(0);
  EXPECT_TRUE(bind_this_thread({}).ok());
  EXPECT_EQ(affinity_of(0), mine);
}

TEST(Binding, FailureNamesTheProcessorAndTheCause) {
  const Status s = bind_this_thread({.cpus = {65000}});
  EXPECT_EQ(s.code(), Code::system) << s.message();
  EXPECT_THAT(s.message(), HasSubstr("65000"));
  EXPECT_THAT(s.message(), HasSubstr("Invalid argument"));
}

TEST(Binding, PrefersTheMemoryOfANode) {
  const int node = machine().cores.front().node;
  if (machine().invented) GTEST_SKIP() << "set by the user: HWLOC_XMLFILE or HWLOC_SYNTHETIC";
  if (node < 0) GTEST_SKIP() << "this machine has no NUMA node that is known";
  std::thread([&] {
    const int error = Binding({.node = node}).prefer_memory();
    if (error == ENOSYS || error == EPERM) GTEST_SKIP() << "this system has no memory policies";
    ASSERT_EQ(error, 0);
    int mode = -1;
    unsigned long nodes[16] = {};
    ASSERT_EQ(::syscall(SYS_get_mempolicy, &mode, nodes, sizeof nodes * 8, nullptr, 0), 0);
    EXPECT_EQ(mode, MPOL_PREFERRED);
    EXPECT_EQ(nodes[node / 64], 1ul << (node % 64));
  }).join();
}

TEST(Affinity, OfAnUnknownProcessIsEmpty) { EXPECT_TRUE(affinity_of(1 << 30).empty()); }

TEST(RoomForEach, NeedsOneCoreForEveryMask) {
  const auto room = [](std::vector<Cpus> masks) { return room_for_each(masks); };
  EXPECT_TRUE(room({{0}, {1}}));
  EXPECT_FALSE(room({{0}, {0}}));
  EXPECT_TRUE(room({{0, 1}, {0, 1}}));
  EXPECT_FALSE(room({{0, 1}, {0, 1}, {0, 1}}));
  EXPECT_TRUE(room({{0, 1}, {0}}));
  EXPECT_FALSE(room({{0, 1}, {0}, {1}}));
  EXPECT_FALSE(room({{0, 1, 2, 3}, {0}, {0}})) << "room in all, but not in the inner";
  EXPECT_FALSE(room({{0, 1}, {}})) << "unknown";
  EXPECT_FALSE(room({{0, 1}, {1, 2}, {0, 2}, {0, 1}})) << "room in each, but not in all";
  EXPECT_TRUE(room({}));
}

TEST(BindNames, ParseBackAndProcessorListsUseRanges) {
  for (const Bind b : {Bind::none, Bind::core, Bind::cache, Bind::numa}) {
    const Result<Bind> parsed = parse_bind(name(b));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, b);
    EXPECT_EQ(*chosen_bind(name(b)), b);
  }
  const Result<Bind> bad = parse_bind("socket");
  EXPECT_EQ(bad.status().code(), Code::invalid);
  EXPECT_THAT(bad.status().message(), HasSubstr("core, cache, numa, none"));
  EXPECT_EQ(to_text({}), "");
  EXPECT_EQ(to_text({3}), "3");
  EXPECT_EQ(to_text({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

TEST(BindNames, EnvironmentAppliesOnlyWithoutACommandLineChoice) {
  ::setenv("OURO_BIND", "cache", 1);
  EXPECT_EQ(*chosen_bind(""), Bind::cache);
  EXPECT_EQ(*chosen_bind("numa"), Bind::numa);
  ::setenv("OURO_BIND", "socket", 1);
  EXPECT_THAT(chosen_bind("").status().message(), HasSubstr("core|cache|numa|none"));
  ::unsetenv("OURO_BIND");
  EXPECT_EQ(*chosen_bind(""), Bind::none);
}

}  // namespace
}  // namespace ouro::rt
