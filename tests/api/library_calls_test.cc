// Calls for libraries on top of the interface, such as the trainers: handles, deadlines, hosts, shared
// memory, weighted neighbours, warnings. match_test.cc tests matched messages.
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "runtime/core/log.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

using namespace std::chrono_literals;

std::vector<int> all_of(int n) {
  std::vector<int> all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// The group ends with its last handle, not before, and then on all ranks.
TEST(GroupsCopies, GroupEndsWithItsLastHandle) {
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              auto made = c.group(all_of(2), "copied");
              OURO_RANK_OK(made);
              Group copy = *made;
              OURO_RANK_CHECK(copy.name() == "copied" && copy.rank() == c.rank(), "{}", copy.name());
              *made = Group();
              OURO_RANK_CHECK(!made->valid() && copy.valid(), "handles");
              int mine = c.rank() + 1, sum = 0;
              OURO_RANK_OK(all_reduce(copy, std::span<const int>(&mine, 1), std::span(&sum, 1)));
              OURO_RANK_CHECK(sum == 3, "{}", sum);
              OURO_RANK_OK(barrier(c.world()));
              if (c.rank() == 0) {
                copy = Group();
                return "";
              }
              const Status ended = barrier(copy);
              const bool left = ended.reason() == Reason::revoked || ended.reason() == Reason::peer_dead;
              OURO_RANK_CHECK(left, "{}", ended.ok() ? "ok" : ended.message());
              return "";
            }));
}

TEST(GroupsDeadline, ChosenDeadlineOverridesThatOfTheContext) {
  InitOptions o = quick_options();
  o.deadline = 21s;
  EXPECT_EQ("", run_threads(
                    1,
                    [](Context& c) -> std::string {
                      const int me[] = {0};
                      auto own = c.group(me, "own", {.deadline = 5s});
                      auto longest = c.group(me, "longest", {.deadline = Milliseconds::max()});
                      OURO_RANK_OK(own);
                      OURO_RANK_OK(longest);
                      OURO_RANK_CHECK(c.deadline() == 21s && c.deadline_chosen(), "of the context");
                      OURO_RANK_CHECK(c.world().deadline() == 21s && own->deadline() == 5s, "of groups");
                      const auto end = std::chrono::steady_clock::now() + longest->deadline();
                      OURO_RANK_CHECK(end > std::chrono::steady_clock::now() + 24h, "the longest overflows");
                      return "";
                    },
                    o));
  auto defaults = Context::threads(1);
  ASSERT_TRUE(defaults.ok());
  EXPECT_FALSE((*defaults)[0].deadline_chosen());
  EXPECT_EQ((*defaults)[0].deadline(), InitOptions{}.deadline);
  EXPECT_EQ(Group().deadline(), 0ms);
}

/// The name makes the list of tests for several hosts include it.
TEST(GroupsHosts, AreNumberedByTheirFirstRanks) {
  EXPECT_EQ("", run_threads(4, [](Context& c) -> std::string {
              const int hosts = hosts_of(4);
              OURO_RANK_CHECK(c.hosts() == hosts, "{} hosts", c.hosts());
              OURO_RANK_CHECK(c.host(0) == 0 && c.host(3) == hosts - 1, "{} {}", c.host(0), c.host(3));
              int here = 0;
              for (int r = 0; r < 4; ++r) here += c.host(r) == c.host(c.rank());
              OURO_RANK_CHECK(here == c.local_world_size(), "{} ranks here", here);
              OURO_RANK_CHECK(c.host(4) == -1 && c.host(-1) == -1, "ranks that do not exist");
              return "";
            }));
  EXPECT_EQ(Context().hosts(), 1);
}

class SharedMemory : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, SharedMemory, ::testing::Values(Mode::threads, Mode::processes),
                         [](const auto& mode) { return name(mode.param); });

/// Each rank writes into the memory of the next one, which reads it there without any call.
TEST_P(SharedMemory, IsMappedByAllRanks) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  EXPECT_EQ("", run(GetParam(), 3, [](Context& c) -> std::string {
              Group& g = c.world();
              auto shown = g.alloc_shared(sizeof(int) * static_cast<std::size_t>(c.rank() + 1));
              OURO_RANK_OK(shown);
              OURO_RANK_CHECK(shown->size() == 3, "{} ranks", shown->size());
              for (std::size_t r = 0; r < 3; ++r) {
                const auto theirs = (*shown)[r].as<int>();
                OURO_RANK_CHECK(theirs.size() == r + 1, "{} elements of rank {}", theirs.size(), r);
              }
              OURO_RANK_OK(barrier(g));
              const auto next = static_cast<std::size_t>((c.rank() + 1) % 3),
                         mine = static_cast<std::size_t>(c.rank());
              std::atomic_ref((*shown)[next].as<int>()[0]).store(100 + c.rank());
              OURO_RANK_OK(barrier(g));
              const int got = std::atomic_ref((*shown)[mine].as<int>()[0]).load();
              OURO_RANK_CHECK(got == 100 + (c.rank() + 2) % 3, "{}", got);
              // Memory that a peer has released stays mapped here.
              if (c.rank() == 1) shown->clear();
              OURO_RANK_OK(barrier(g));
              if (c.rank() != 1)
                OURO_RANK_CHECK((*shown)[1].as<int>()[0] == 100, "{}", (*shown)[1].as<int>()[0]);
              return "";
            }));
}

TEST(SharedMemoryErrors, AreReportedOnAllRanks) {
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              const auto refused = c.world().alloc_shared(c.rank() == 1 ? std::size_t{1} << 60 : 64);
              OURO_RANK_CHECK(!refused.ok(), "rank 1 asked for too much");
              OURO_RANK_CHECK(refused.status().message().find("rank 1") != std::string::npos || c.rank() == 1,
                              "{}", refused.status().message());
              auto none = c.world().alloc_shared(c.rank() == 0 ? 0 : 8);
              OURO_RANK_OK(none);
              OURO_RANK_CHECK(!(*none)[0] && (*none)[1].bytes() == 8, "of nothing");
              group_start();
              const auto deferred = c.world().alloc_shared(8);
              OURO_RANK_OK(group_end());
              OURO_RANK_CHECK(deferred.status().reason() == Reason::invalid, "in a batch");
              return "";
            }));
  EXPECT_EQ(Group().alloc_shared(8).status().reason(), Reason::invalid);
}

TEST(InBatch, IsTrueOnlyInTheThreadThatStartedTheBatch) {
  EXPECT_FALSE(in_batch());
  group_start();
  EXPECT_TRUE(in_batch());
  bool elsewhere = true;
  std::thread([&] { elsewhere = in_batch(); }).join();
  EXPECT_FALSE(elsewhere);
  EXPECT_TRUE(group_end().ok());
  EXPECT_FALSE(in_batch());
}

TEST(GroupsMix, AddsWeightedNeighbours) {
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              const int next = (c.rank() + 1) % 3, before = (c.rank() + 2) % 3;
              const std::pair<int, double> in[] = {{before, 0.25}};
              const int out[] = {next};
              std::vector<double> x(5, c.rank() + 1.0), y(5), z(5);
              OURO_RANK_OK(mix(c.world(), std::span<const double>(x), std::span(y), 0.5, in, out));
              const double want = 0.5 * (c.rank() + 1) + 0.25 * (before + 1);
              OURO_RANK_CHECK(y == std::vector<double>(5, want), "{}", y[0]);
              auto stream = Stream::create();
              OURO_RANK_OK(stream);
              auto work = mix(c.world(), std::span<const double>(x), std::span(z), 0.5, in, out, *stream);
              OURO_RANK_OK(work);
              OURO_RANK_OK(work->wait());
              OURO_RANK_CHECK(z == y, "{} on a stream", z[0]);
              const View gpu(y.data(), 5, DType::f64, Device{Device::Kind::cuda, 0});
              const Status s = mix(c.world(), gpu, gpu, 1, {}, {});
              OURO_RANK_CHECK(s.reason() == Reason::unsupported, "{}", s.ok() ? "ok" : s.message());
              return "";
            }));
}

TEST(LogWarning, BecomesTheLastWarningOfTheLog) {
  log_warning("a library on top says so");
  EXPECT_EQ(log::last_warning(), "a library on top says so");
}

}  // namespace
}  // namespace ouro::test
