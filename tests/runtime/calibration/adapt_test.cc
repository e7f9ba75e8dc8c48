// A group whose record is wrong measures again and replaces it, all members with the same operation; one
// whose record is right does not.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/context/machine.h"
#include "runtime/group/group.h"
#include "tests/runtime/calibration/invented.h"
#include "tests/runtime/group/access.h"
#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro {
namespace {

using rt::TestAccess;
constexpr std::size_t kCount = 16384;  // ints: 64 KiB
constexpr int kSoon = 1000;            // operations
constexpr const char* kBusy = "other work keeps the cores from answering each other";
constexpr int kStride = 64;  // of those that are watched

struct Ran {
  int switches = 0, first = 0;  // operations whose algorithm is another than that of the one before
  std::string error;
};

/// Operation after operation, each checked; looks at how this rank has signed the all-reduces of 64 KiB.
Ran run(Context& c, int operations) {
  Ran ran;
  Group& world = c.world();
  const rt::GroupRecord& record = *c.impl()->members().find_record(c.rank(), world.impl()->spec().key);
  std::vector<int> in(kCount, c.rank() + 1), out(kCount), few(8, 1), sums(8);
  const int n = world.size(), expected = n * (n + 1) / 2;
  std::optional<std::uint64_t> before;
  for (int i = 0; i < operations; ++i) {
    std::fill(out.begin(), out.end(), 0);
    Status s = all_reduce(world, std::span<const int>(in), std::span(out));
    const auto signature = entered_as(record, record.entered.get());
    if (s.ok() && i % 5 == 0) s = broadcast(world, std::span<const int>(few), std::span(few), i % n);
    if (s.ok() && i % 7 == 0) s = all_reduce(world, std::span<const int>(few), std::span(sums));
    if (!s.ok() || !signature) return ran.error = s.ok() ? "nothing entered" : s.message(), ran;
    if (std::count(out.begin(), out.end(), expected) != static_cast<std::ptrdiff_t>(kCount))
      return ran.error = fmt::format("operation {}: {} instead of {}", i, out[0], expected), ran;
    const std::uint64_t how = signature->what >> rt::Signature::kHowShift;
    if (before && *before != how && ran.switches++ == 0) ran.first = i;
    before = how;
  }
  return ran;
}

class Adapts : public testing::TestWithParam<test::Mode> {};

TEST_P(Adapts, AWrongRecordWithinAThousandOperations) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  for (const int n : {2, 3, 4}) {
    const auto outcome = test::run(GetParam(), n, [](Context& c) -> std::string {
      OURO_RANK_OK(
          TestAccess::adapt(*c.world().impl(), rt::too_fast(), [](int) { return rt::as_near_cores(); }));
      OURO_RANK_OK(barrier(c.world()));
      const Ran ran = run(c, kSoon);
      OURO_RANK_CHECK(ran.error.empty(), "{}", ran.error);
      // With fewer cores than ranks algorithms are not chosen by the record; it is replaced all the same.
      const int switches = c.impl()->cores().enough_here() ? 1 : 0;
      OURO_RANK_CHECK(ran.switches == switches && (switches == 0 || ran.first > 64),
                      "{} switches, the first at {}", ran.switches, ran.first);
      const rt::Calibration now = TestAccess::record(*c.world().impl());
      OURO_RANK_CHECK(now.pair[0].handoff == 60, "a hand-off of {} ns", now.pair[0].handoff);
      const std::string since = TestAccess::since(*c.world().impl());
      OURO_RANK_CHECK(since.find("by revision 1 of the calibration") == 0, "{}", since);
      return "";
    });
    EXPECT_EQ(outcome, "") << n << " ranks";
  }
}

/// Operations take longer than the model says, and each check says that the record holds.
TEST_P(Adapts, ARightRecordStays) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const auto outcome = test::run(GetParam(), 2, [](Context& c) -> std::string {
    const auto checks = std::make_shared<std::atomic<int>>(0);
    OURO_RANK_OK(TestAccess::adapt(*c.world().impl(), rt::too_fast(), [checks](int) {
      ++*checks;
      return rt::too_fast().pair[0];
    }));
    OURO_RANK_OK(barrier(c.world()));
    const Ran ran = run(c, 3 * kSoon);
    OURO_RANK_CHECK(ran.error.empty() && ran.switches == 0, "{} {} switches", ran.error, ran.switches);
    if (c.rank() == 0) OURO_RANK_CHECK(*checks > 0 && *checks < 8, "{} checks", checks->load());
    return "";
  });
  EXPECT_EQ(outcome, "");
}

INSTANTIATE_TEST_SUITE_P(, Adapts, testing::Values(test::Mode::threads, test::Mode::processes),
                         [](const auto& info) { return test::name(info.param); });

/// Ranks compare OURO_ALGO as they join; one that sets it for a group of its own later does so for that one.
TEST(Adapting, WhatAProgramSetsLaterIsForOtherGroups) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "needs processes";
#endif
  const auto outcome = test::run(test::Mode::processes, 2, [](Context& c) -> std::string {
    OURO_RANK_OK(
        TestAccess::adapt(*c.world().impl(), rt::too_fast(), [](int) { return rt::as_near_cores(); }));
    OURO_RANK_OK(barrier(c.world()));
    if (c.rank() == 0) ::setenv("OURO_ALGO", "ring", 1);
    const Ran ran = run(c, kSoon);
    const int switches = c.impl()->cores().enough_here() ? 1 : 0;
    OURO_RANK_CHECK(ran.error.empty() && ran.switches == switches, "{} {} switches", ran.error, ran.switches);
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Plans that were made long before their turn: the switch comes in between.
TEST(Adapting, WhatWaitsInAStreamIsPlannedAgain) {
  const auto outcome = test::run_threads(2, [](Context& c) -> std::string {
    OURO_RANK_OK(
        TestAccess::adapt(*c.world().impl(), rt::too_fast(), [](int) { return rt::as_near_cores(); }));
    OURO_RANK_OK(barrier(c.world()));
    auto stream = Stream::create();
    OURO_RANK_OK(stream);
    std::vector<int> in(kCount, 1), out(kCount);
    std::vector<Result<Work>> works;
    for (int i = 0; i < kSoon; ++i)
      works.push_back(
          all_reduce(c.world(), std::span<const int>(in), std::span(out), ReduceOp::sum, *stream));
    for (const auto& w : works) OURO_RANK_OK(w.ok() ? w->wait() : w.status());
    OURO_RANK_CHECK(!TestAccess::since(*c.world().impl()).empty(), "no switch");
    const rt::GroupRecord& record = *c.impl()->members().find_record(c.rank(), c.world().impl()->spec().key);
    const auto last = entered_as(record, record.entered.get());
    OURO_RANK_CHECK(last && (last->what >> rt::Signature::kHowShift & rt::Signature::kPull) == 0,
                    "the last one is planned by the first record");
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Two ranks measure between their own cores, while they work and others may, too.
TEST(TimedAdapting, RanksMeasureWithEachOther) {
  const auto outcome = test::run(
      OURO_TEST_TSAN ? test::Mode::threads : test::Mode::processes, 2, [](Context& c) -> std::string {
        if (!c.impl()->cores().enough_here()) return "";  // nobody to measure with at the same time
        if (const auto cpus = rt::affinity_of(0);
            cpus.size() > 1) {  // a core each, or they take turns on one
          cpu_set_t mine;
          CPU_ZERO(&mine);
          CPU_SET(cpus[static_cast<std::size_t>(c.rank())], &mine);
          ::pthread_setaffinity_np(::pthread_self(), sizeof mine, &mine);
        }
        OURO_RANK_OK(TestAccess::adapt(*c.world().impl(), rt::too_fast(), {}));
        OURO_RANK_OK(barrier(c.world()));
        std::vector<int> in(kCount, 1), out(kCount);
        const auto begin = std::chrono::steady_clock::now();
        for (bool late = false; !late && TestAccess::since(*c.world().impl()).empty();) {
          in[0] = std::chrono::steady_clock::now() - begin < test::kHang ? 0 : 1;
          for (int i = 0; i < kStride; ++i)
            OURO_RANK_OK(all_reduce(c.world(), std::span<const int>(in), std::span(out)));
          late = out[0] > 0;  // the same on all ranks
        }
        const rt::Calibration now = TestAccess::record(*c.world().impl());
        // In the time for it there may have been answers to the first questions only.
        if (now.pair[0].copies[1][1] == rt::too_fast().pair[0].copies[1][1]) return kBusy;
        OURO_RANK_CHECK(now.pair[0].handoff >= 5 &&
                            now.pair[0].copies[1][1].read > rt::too_fast().pair[0].copies[1][1].read,
                        "{} ns", now.pair[0].handoff);
        return "";
      });
  if (outcome.find(kBusy) != outcome.npos) GTEST_SKIP() << kBusy;
  EXPECT_EQ(outcome, "");
}

/// Pinned, off, and of one rank: no operation is watched.
TEST(Adapting, WhatIsPinnedIsNotWatched) {
  const auto watched = [](int n) {
    return test::run_threads(
        n, [](Context& c) -> std::string { return TestAccess::watched(*c.world().impl()) ? "watched" : ""; });
  };
  ::setenv("OURO_CALIBRATION", "off", 1);
  EXPECT_EQ(watched(2), "");
  ::unsetenv("OURO_CALIBRATION");
  EXPECT_EQ(watched(1), "");
}

}  // namespace
}  // namespace ouro
