// The wait ladder: it wakes at each of its stages, ends on abort, and makes its check from time to time, but
// not too early.
#include "runtime/core/wait.h"
#include "tests/timing.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace ouro {
namespace {

using namespace std::chrono_literals;

class Watcher final : public Waiter {
 public:
  Watcher(const std::uint32_t* abort, std::chrono::microseconds spin) : Waiter(abort, {.spin = spin}) {}
  int looks = 0;
  Clock::duration limit = 3 * test::kHang;
  const std::uint32_t* aborted = nullptr;

 protected:
  Status check(Clock::duration elapsed) override {
    ++looks;
    if (aborted && std::atomic_ref(*const_cast<std::uint32_t*>(aborted)).load() != 0)
      return {Reason::revoked, "aborted"};
    if (elapsed < limit) return {};
    return {Reason::deadline, "too long"};
  }
};

class Ladder : public testing::TestWithParam<int> {};  // microseconds of spinning

TEST_P(Ladder, WakesAtEveryStage) {
  std::uint32_t abort = 0;
  Counter c{};
  Watcher w(&abort, std::chrono::microseconds(GetParam()));
  for (const auto delay : {0us, 20us, 150us, 500us, 3000us, 20'000us}) {
    const std::uint64_t next = load(c) + 1;
    std::thread writer([&] {
      std::this_thread::sleep_for(delay);
      publish(c, next);
    });
    EXPECT_TRUE(w.until(c, next).ok());
    EXPECT_GE(load(c), next);
    writer.join();
  }
  EXPECT_TRUE(w.until(c, 1).ok()) << "what has been need not be waited for";
}

TEST_P(Ladder, WakesWithEarlierWritesVisible) {
  std::uint32_t abort = 0;
  Counter there{}, back{};
  std::uint64_t payload = 0;
  constexpr std::uint64_t kTimes = 2000;
  std::thread echo([&] {
    Watcher w(&abort, std::chrono::microseconds(GetParam()));
    for (std::uint64_t i = 1; i <= kTimes; ++i) {
      EXPECT_TRUE(w.until(there, i).ok());
      payload *= 3;
      publish(back, i);
    }
  });
  Watcher w(&abort, std::chrono::microseconds(GetParam()));
  for (std::uint64_t i = 1; i <= kTimes; ++i) {
    payload = i;
    publish(there, i);
    ASSERT_TRUE(w.until(back, i).ok());
    ASSERT_EQ(payload, 3 * i);
  }
  echo.join();
}

TEST_P(Ladder, EndsOnAbort) {
  std::uint32_t abort = 0;
  Counter c{};
  Watcher w(&abort, std::chrono::microseconds(GetParam()));
  w.aborted = &abort;
  Clock::time_point raised;
  std::thread breaker([&] {
    std::this_thread::sleep_for(30ms);
    raised = Clock::now();
    std::atomic_ref(abort).store(1);
  });
  EXPECT_EQ(w.until(c, 1).reason(), Reason::revoked);
  const auto ended = Clock::now();
  breaker.join();
  EXPECT_LT(ended - raised, test::kHang);
}

TEST_P(Ladder, ChecksPeriodicallyAndEndsOnAFailedCheck) {
  std::uint32_t abort = 0;
  Counter c{};
  Watcher w(&abort, std::chrono::microseconds(GetParam()));
  w.limit = 100ms;
  const auto start = Clock::now();
  EXPECT_EQ(w.until(c, 1).reason(), Reason::deadline);
  EXPECT_GE(Clock::now() - start, 100ms);
  EXPECT_LT(Clock::now() - start, test::kHang);
  EXPECT_GE(w.looks, 2);
  EXPECT_LE(w.looks, 26) << "about every 4 ms";
}

INSTANTIATE_TEST_SUITE_P(Spin, Ladder, testing::Values(0, 50, 1000));

TEST(Counters, CountsPublishedBeforeAnAbortAreSeen) {
  std::uint32_t abort = 1;
  Counter c{};
  publish(c, 5);
  Watcher w(&abort, 0us);
  w.aborted = &abort;
  EXPECT_TRUE(w.until(c, 5).ok());
  EXPECT_EQ(w.until(c, 6).reason(), Reason::revoked);
}

TEST(Counters, LowHalfMayWrap) {  // the kernel compares only 32 bits
  std::uint32_t abort = 0;
  Counter c{};
  const std::uint64_t edge = std::uint64_t{1} << 32;
  publish(c, edge - 1);
  Watcher w(&abort, 0us);
  std::thread writer([&] {
    std::this_thread::sleep_for(10ms);
    publish(c, edge);
  });
  EXPECT_TRUE(w.until(c, edge).ok());
  EXPECT_EQ(load(c), edge);
  writer.join();
}

TEST(Counters, ManySleepersAllWake) {
  std::uint32_t abort = 0;
  Counter c{};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 8; ++i)
    sleepers.emplace_back([&] {
      Watcher w(&abort, 0us);
      EXPECT_TRUE(w.until(c, 8).ok());
      EXPECT_EQ(load(c), 8u);
    });
  std::this_thread::sleep_for(5ms);
  for (int i = 0; i < 8; ++i) bump(c);
  for (auto& t : sleepers) t.join();
  EXPECT_EQ(c.sleepers, 0u);
}

}  // namespace
}  // namespace ouro
