// Tests of counters, signals and the wait ladder: serial numbers that wrap around, sleepers that are woken,
// waits that end.
#include "runtime/core/wait.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <thread>

namespace ouro {
namespace {

using namespace std::chrono_literals;

TEST(Signal, SerialNumbersWrap) {
  EXPECT_TRUE(reached(5, 5));
  EXPECT_TRUE(reached(6, 5));
  EXPECT_FALSE(reached(4, 5));
  EXPECT_TRUE(reached(2, 0xfffffffe));  // reached four steps later
  EXPECT_FALSE(reached(0xfffffffe, 2));
  EXPECT_TRUE(reached(0x80000000, 1));
  EXPECT_FALSE(reached(0x80000001, 1) && reached(1, 0x80000001));
}

class TestWaiter final : public Waiter {
 public:
  TestWaiter(const std::uint32_t* abort, std::chrono::microseconds spin, int looks_allowed,
             bool crowded = false)
      : TestWaiter(abort, {.spin = spin, .crowded = crowded}, looks_allowed) {}
  TestWaiter(const std::uint32_t* abort, const Patience& patience, int looks_allowed)
      : Waiter(abort, patience), looks_left_(looks_allowed) {}
  int looks() const { return looks_; }

 protected:
  Status check(Clock::duration) override {
    ++looks_;
    return looks_left_-- > 0 ? Status() : Status(Reason::deadline, "enough");
  }

 private:
  int looks_ = 0, looks_left_;
};

class WaitLadder : public testing::TestWithParam<int> {};  // microseconds of spinning
INSTANTIATE_TEST_SUITE_P(Spin, WaitLadder, testing::Values(0, 50));

TEST_P(WaitLadder, SeesPresentAndLaterCounts) {
  const std::uint32_t abort = 0;
  const auto c = std::make_unique<Counter>();
  TestWaiter waiter(&abort, std::chrono::microseconds(GetParam()), 1000);
  publish(*c, 3);
  EXPECT_TRUE(waiter.until(*c, 3).ok());
  std::thread writer([&] {
    for (std::uint64_t v = 4; v <= 2000; ++v) publish(*c, v);
  });
  for (std::uint64_t v = 4; v <= 2000; v += 7) {
    EXPECT_TRUE(waiter.until(*c, v).ok());
    EXPECT_GE(load(*c), v);
  }
  writer.join();
}

/// Counters have 64 bits: a value far behind has not been reached, although its lower half looks as if
/// it had.
TEST_P(WaitLadder, CountersDoNotWrap) {
  const std::uint32_t abort = 0;
  const auto c = std::make_unique<Counter>();
  TestWaiter waiter(&abort, std::chrono::microseconds(GetParam()), 0);
  for (const std::uint64_t at_least : {std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 7, 3ul << 30}) {
    EXPECT_EQ(waiter.until(*c, at_least).reason(), Reason::deadline) << at_least;
    publish(*c, at_least);
    EXPECT_TRUE(waiter.until(*c, at_least).ok());
    publish(*c, 0);
  }
}

TEST_P(WaitLadder, SleepersAreWoken) {
  const std::uint32_t abort = 0;
  const auto c = std::make_unique<Counter>();
  std::thread writer([&] {
    std::this_thread::sleep_for(30ms);
    publish(*c, 1);
  });
  TestWaiter waiter(&abort, std::chrono::microseconds(GetParam()), 1000);
  EXPECT_TRUE(waiter.until(*c, 1).ok());
  EXPECT_EQ(load(*c), 1u);
  EXPECT_GT(waiter.looks(), 0);  // it waited long enough for a check
  writer.join();
  EXPECT_EQ(c->sleepers, 0u);
}

/// Processor time that a wait of 40 ms takes from its thread.
std::chrono::nanoseconds cost_of_wait(bool crowded, bool of_stream) {
  const std::uint32_t abort = 0;
  const auto c = std::make_unique<Counter>();
  std::chrono::nanoseconds cost{};
  std::thread waits([&] {
    if (of_stream) serve_stream();
    const auto now = [] {
      timespec t{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
      return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
    };
    TestWaiter waiter(&abort, 10s, 1000, crowded);
    const auto begin = now();
    EXPECT_TRUE(waiter.until(*c, 1).ok());
    cost = now() - begin;
  });
  std::this_thread::sleep_for(40ms);
  publish(*c, 1);
  waits.join();
  return cost;
}

TEST(TimedWait, StreamThreadSpinsOnASharedCoreOnlyIfACallerLendsIt) {
  // The other waits spin for all the time that the system gives them.
  const auto spun = std::min({cost_of_wait(false, true), cost_of_wait(true, false), [] {
                                const LentCore lent;
                                return cost_of_wait(true, true);
                              }()});
  EXPECT_LT(cost_of_wait(true, true), spun / 2);
}

/// A waiter that shares a core polls as often as configured before it yields the core.
TEST(WaitPatience, SharedCoreWaiterPollsAsOftenAsConfigured) {
  const auto gave_away = [](int polls, std::chrono::milliseconds publishes_after) {
    const std::uint32_t abort = 0;
    const auto c = std::make_unique<Counter>();
    long away = -1;
    std::thread waits([&] {
      const auto count = [] {
        rusage used{};
        ::getrusage(RUSAGE_THREAD, &used);
        return used.ru_nvcsw;
      };
      TestWaiter waiter(&abort, {.polls = polls}, 1000);
      const long before = count();
      EXPECT_TRUE(waiter.until(*c, 1).ok());
      away = count() - before;
    });
    std::this_thread::sleep_for(publishes_after);
    publish(*c, 1);
    waits.join();
    return away;
  };
  const long slept = gave_away(10, 300ms);  // in the end, also if the thread began late
  EXPECT_GT(slept, 0);
  const long polled = gave_away(2'000'000'000, 20ms);
  EXPECT_EQ(polled, 0);
}

TEST_P(WaitLadder, FailedCheckEndsTheWait) {
  const std::uint32_t abort = 0;
  const auto c = std::make_unique<Counter>();
  TestWaiter waiter(&abort, std::chrono::microseconds(GetParam()), 2);
  EXPECT_EQ(waiter.until(*c, 1).reason(), Reason::deadline);
  EXPECT_EQ(waiter.looks(), 3);
}

TEST_P(WaitLadder, SetAbortWordIsCheckedAtOnce) {
  const std::uint32_t abort = 1;
  const auto c = std::make_unique<Counter>();
  TestWaiter waiter(&abort, std::chrono::microseconds(GetParam()), 0);
  EXPECT_EQ(waiter.until(*c, 1).reason(), Reason::deadline);
  EXPECT_EQ(waiter.looks(), 1);
}

TEST(WaitPatiently, ReturnsWhenTheCountIsReached) {
  const auto c = std::make_unique<Counter>();
  std::thread writer([&] {
    for (std::uint64_t v = 1; v <= 3; ++v) {
      std::this_thread::sleep_for(2ms);
      publish(*c, v);
    }
  });
  wait_patiently(*c, 3);
  EXPECT_EQ(load(*c), 3u);
  writer.join();
}

}  // namespace
}  // namespace ouro
