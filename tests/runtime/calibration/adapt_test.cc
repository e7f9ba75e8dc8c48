// A group whose record is wrong measures again and replaces it, all members at the same operation; a group
// whose record is right does not.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/context/machine.h"
#include "runtime/context/own_records.h"
#include "runtime/group/group.h"
#include "tests/runtime/calibration/invented.h"
#include "tests/runtime/group/access.h"
#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro {
namespace {

using rt::TestAccess;
constexpr std::size_t kCount = 16384;  // ints: 64 KiB
constexpr int kSoon = 1000;            // enough operations for a wrong record to be replaced
constexpr const char* kBusy = "the cores do not answer each other in time";
constexpr const char* kOneCore = "one core";
constexpr int kStride = 64;  // distance of the operations that are watched

struct Ran {
  int switches = 0, first = 0;  // operations whose algorithm differs from that of the one before
  std::string error;
};

/// Runs operations, each checked, and records which algorithm this rank's signatures of the 64 KiB
/// all-reduces name.
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

TEST_P(Adapts, WrongRecordIsReplacedWithinAThousandOperations) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  for (const int n : {2, 3, 4}) {
    const auto outcome = test::run(GetParam(), n, [](Context& c) -> std::string {
      OURO_RANK_OK(
          TestAccess::adapt(*c.world().impl(), rt::too_fast(), [](int) { return rt::as_near_cores(); }));
      OURO_RANK_OK(barrier(c.world()));
      const Ran ran = run(c, kSoon);
      OURO_RANK_CHECK(ran.error.empty(), "{}", ran.error);
      // With fewer cores than ranks, the record does not choose algorithms; it is replaced nevertheless.
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

/// Repeats one kind of operation, `which`, with root `root` if it is rooted: no rank hears from all others,
/// and roots and readers run at their own pace.
std::string run_rooted(Context& c, int which, int root, int operations) {
  Group& world = c.world();
  const auto n = static_cast<std::size_t>(world.size()), piece = kCount / 4;
  std::vector<int> in(kCount, c.rank() + 1), out(kCount), many(n * piece, 3);
  const std::span<int> some(out.data(), piece);
  for (int i = 0; i < operations; ++i) {
    if (i % 97 == c.rank() * 31) ::usleep(300);  // makes each rank fall behind at times
    std::fill(out.begin(), out.end(), 0);
    std::fill(in.begin(), in.end(), which == 0 ? i : c.rank() + 1);
    int expected = 3;
    Status s;
    if (which == 0) {
      s = broadcast(world, std::span<const int>(in), std::span(out), root), expected = i;
    } else if (which == 1) {
      s = reduce(world, std::span<const int>(in), std::span(out), ReduceOp::sum, root);
      expected = c.rank() == root ? world.size() * (world.size() + 1) / 2 : 0;
    } else {
      s = scatter(world, std::span<const int>(many), some, root);
    }
    OURO_RANK_OK(s);
    OURO_RANK_CHECK(out.front() == expected && out[piece - 1] == expected, "operation {}: {} instead of {}",
                    i, out.front(), expected);
  }
  return "";
}

/// Predicts no cost at all, so even a rank that only posts appears slow.
rt::Calibration at_no_cost() {
  rt::Calibration c = rt::too_fast();
  for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s) {
    for (rt::CopyCost& cost : c.pair[0].copies[s]) cost = {1, 1};
    c.pair[0].pull[s] = c.pair[0].pull_huge[s] = 1;
  }
  return c;
}

TEST_P(Adapts, RanksAgreeOnTheRevisionInRootedOperations) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  for (int which = 0; which < 3; ++which)
    for (const int root : {0, 2}) {
      const auto outcome = test::run(GetParam(), 3, [which, root](Context& c) -> std::string {
        TestAccess::pretend_cores(*c.impl());
        OURO_RANK_OK(
            TestAccess::adapt(*c.world().impl(), at_no_cost(), [](int) { return rt::as_near_cores(); }));
        OURO_RANK_OK(barrier(c.world()));
        if (std::string wrong = run_rooted(c, which, root, kSoon); !wrong.empty()) return wrong;
        // The model does not cover scatters; their expected time is what the first ones took.
        const std::string since = TestAccess::since(*c.world().impl());
        OURO_RANK_CHECK(which == 2 || since.find("by revision 1 of the calibration") == 0, "'{}'", since);
        std::vector<std::size_t> mine(1, std::hash<std::string>()(since)), first = mine;
        OURO_RANK_OK(broadcast(c.world(), std::span<const std::size_t>(mine), std::span(first), 0));
        OURO_RANK_CHECK(mine == first, "another record, or since another operation: {}", since);
        return "";
      });
      EXPECT_EQ(outcome, "") << "operation " << which << ", root " << root;
    }
}

/// Each host adapts by itself: no model predicts the time of operations between hosts, but they take longer
/// than they did at first.
TEST(Adapting, EachHostReplacesItsRecordByItself) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "under ThreadSanitizer: it does not follow processes";
#endif
  ::setenv("TEST_HOSTS", "2", 1);
  const auto outcome = test::run(test::Mode::processes, 4, [](Context& c) -> std::string {
    rt::Calibration before = rt::too_fast();
    before.wake = 25'000;
    OURO_RANK_OK(TestAccess::adapt(*c.world().impl(), before, [](int) { return rt::as_near_cores(); }));
    if (!c.impl()->cores().enough_here()) return kOneCore;
    OURO_RANK_OK(barrier(c.world()));  // takes the first ticket
    std::vector<int> in(kCount / 8, 1), out(kCount / 8);
    for (int i = 1; i < 24 * kStride; ++i) {
      if (i >= 9 * kStride && i % kStride == 0 && c.rank() % 2 == 1) ::usleep(20'000);
      OURO_RANK_OK(all_reduce(c.world(), std::span<const int>(in), std::span(out)));
      OURO_RANK_CHECK(out.front() == 4 && out.back() == 4, "operation {}: {}", i, out.front());
    }
    const rt::Calibration now = TestAccess::record(*c.world().impl());
    OURO_RANK_CHECK(now.pair[0].handoff == 60, "a hand-off of {} ns", now.pair[0].handoff);
    const auto spin = c.impl()->cores().patience().spin;
    OURO_RANK_CHECK(spin == std::chrono::microseconds(400), "spins {} us", spin.count());
    return "";
  });
  ::unsetenv("TEST_HOSTS");
  if (outcome.find(kOneCore) != outcome.npos) GTEST_SKIP() << "this machine has no second core";
  EXPECT_EQ(outcome, "");
}

/// The register of a record whose group's first member has left is not reused while other members may still
/// read it.
TEST(Adapting, RegisterOfAClosedGroupIsNotReused) {
  const auto page = std::make_unique<rt::ControlPage>();
  rt::OwnRecords groups(*page);
  const auto left = groups.claim(1);
  ASSERT_TRUE(left.ok());
  rt::RevisionRegister* const kept = rt::claim_revision(*page, **left);
  kept->kept.set(1);
  (*left)->state.set(static_cast<std::uint32_t>(rt::GroupState::closed));
  for (std::uint64_t key = 2; key < 2 + 2 * rt::kRecords; ++key) {
    const auto record = groups.claim(key);
    ASSERT_TRUE(record.ok());
    ASSERT_NE(*record, *left);
    ASSERT_NE(rt::claim_revision(*page, **record), kept);
    (*record)->state.set(static_cast<std::uint32_t>(rt::GroupState::closed));
  }
  EXPECT_EQ(rt::find_revision(*page, **left, 1), kept);
}

/// A closed group's register stays reserved for the life of the page, because some member may still read it;
/// a failed group's register is released, because none will.
TEST(Adapting, FailedGroupReleasesItsRegisterButAClosedOneDoesNot) {
  for (const bool fails : {false, true})
    EXPECT_EQ(test::run(test::Mode::threads, 2,
                        [fails](Context& c) -> std::string {
                          const std::vector<int> all{0, 1};
                          auto g = c.group(all, "adapts");
                          OURO_RANK_OK(g);
                          rt::RevisionRegister* const kept =
                              c.rank() == 0 ? TestAccess::take_alone(*g->impl()) : nullptr;
                          OURO_RANK_OK(barrier(c.world()));
                          if (fails) g->abort("for the test");
                          OURO_RANK_CHECK(c.rank() == 1 || kept, "no register");
                          if (c.rank() == 0) OURO_RANK_OK(g->close());
                          OURO_RANK_CHECK(c.rank() == 1 || (kept->kept.get() == 0) == fails, "kept: {}",
                                          kept->kept.get());
                          OURO_RANK_OK(barrier(c.world()));  // rank 1 leaves only after this
                          return "";
                        }),
              "");
}

/// Operations take longer than the model predicts, but each check confirms the record.
TEST_P(Adapts, RightRecordIsCheckedAndStays) {
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

/// Ranks compare OURO_ALGO when they join; if one sets it later, only groups that are made afterwards
/// are affected.
TEST(Adapting, AlgorithmSetAfterJoiningDoesNotAffectOpenGroups) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "under ThreadSanitizer: it does not follow processes";
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

/// Plans are made long before their turn, and the switch of algorithms happens in between.
TEST(Adapting, QueuedStreamOperationsArePlannedAgainAfterARevision) {
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

/// Two ranks measure between their own cores, while they work and others may work too.
TEST(TimedAdapting, RanksMeasureBetweenTheirOwnCores) {
  const auto outcome = test::run(
      OURO_TEST_TSAN ? test::Mode::threads : test::Mode::processes, 2, [](Context& c) -> std::string {
        if (!c.impl()->cores().enough_here()) return kOneCore;  // none is left to measure with
        if (const auto cpus = rt::affinity_of(0);
            cpus.size() > 1) {  // each rank gets a core, unless they share one
          cpu_set_t mine;
          CPU_ZERO(&mine);
          CPU_SET(cpus[static_cast<std::size_t>(c.rank())], &mine);
          ::pthread_setaffinity_np(::pthread_self(), sizeof mine, &mine);
        }
        OURO_RANK_OK(TestAccess::adapt(*c.world().impl(), rt::too_fast(), {}));
        OURO_RANK_OK(barrier(c.world()));
        std::vector<int> in(kCount, 1), out(kCount);
        const auto begin = std::chrono::steady_clock::now();
        const auto measured = [&] {  // the first questions may be all that was answered for a revision
          const rt::Calibration now = TestAccess::record(*c.world().impl());
          return !(now.pair[0].copies[1][1] == rt::too_fast().pair[0].copies[1][1]);
        };
        for (bool late = false; !late && !measured();) {
          in[0] = std::chrono::steady_clock::now() - begin < test::kHang ? 0 : 1;
          for (int i = 0; i < kStride; ++i)
            OURO_RANK_OK(all_reduce(c.world(), std::span<const int>(in), std::span(out)));
          late = out[0] > 0;  // equal on all ranks
        }
        const rt::Calibration now = TestAccess::record(*c.world().impl());
        if (!measured()) return kBusy;
        OURO_RANK_CHECK(now.pair[0].handoff >= 5 &&
                            now.pair[0].copies[1][1].read > rt::too_fast().pair[0].copies[1][1].read,
                        "{} ns", now.pair[0].handoff);
        if (now.wake == 0) return kBusy;
        OURO_RANK_CHECK(now.wake > now.pair[0].handoff, "woken within {} ns", now.wake);
        return "";
      });
  if (outcome.find(kOneCore) != outcome.npos) GTEST_SKIP() << "this machine has no second core";
  if (outcome.find(kBusy) != outcome.npos) GTEST_SKIP() << "other work: " << outcome;
  EXPECT_EQ(outcome, "");
}

/// No operation is watched if the record is pinned, if calibration is off, and in groups of one rank.
TEST(Adapting, OperationsAreNotWatchedWithoutCalibrationOrPeers) {
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
