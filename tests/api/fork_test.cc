// Forked children that use, or release, objects of their parent. tests/runtime/failure/arguments_test.cc
// tests the errors of groups and contexts there.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ouro/train/window.hpp"
#include "tests/runtime/group/ranks.h"

namespace ouro {
namespace {

/// The wait status of a forked child that runs `does`; it may take ten seconds.
int child_that(const std::function<void()>& does) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);
    does();
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  return ::waitpid(child, &status, 0) == child ? status : -1;
}

Context alone() {
  InitOptions o = test::quick_options();
  o.rank = 0, o.world_size = 1;
  auto c = Context::create(o);
  if (!c.ok()) throw std::runtime_error(c.status().message());
  return std::move(*c);
}

constexpr Milliseconds kSoon{2000};
/// ThreadSanitizer does not let a child of a program with threads start a thread.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
/// The sanitizers' allocators have locks that other threads of the parent may hold.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitizer = true;
#else
constexpr bool kSanitizer = false;
#endif
#define EXPECT_FORKED(status) EXPECT_EQ((status).reason(), Reason::forked)

void uses_streams_of_its_parent(const Stream& s, const Work& ended, const Event& event) {
  EXPECT_FORKED(s.run([] { return Status(); }).wait(kSoon));
  EXPECT_FORKED(s.synchronize(kSoon));
  EXPECT_TRUE(ended.test());
  EXPECT_FORKED(ended.status());
  EXPECT_FORKED(ended.wait(kSoon));
  Status told;
  ended.then([&](const Status& outcome) { told = outcome; });
  EXPECT_FORKED(told);
  EXPECT_TRUE(event.query());
  EXPECT_FORKED(event.synchronize(kSoon));
  if (kThreadSanitizer) return;
  auto own = Stream::create();
  ASSERT_TRUE(own.ok());
  event.wait_on(*own);
  EXPECT_TRUE(own->run([] { return Status(); }).wait(kSoon).ok());
  EXPECT_TRUE(own->synchronize(kSoon).ok());
}

TEST(ForkedChild, IsRefusedByStreamsOfItsParent) {
  const Context c = alone();
  std::vector<Device> devices{{}};
  if (c.device().kind == Device::Kind::cuda) devices.push_back(c.device());
  for (const Device device : devices) {
    const auto s = Stream::create(device);
    ASSERT_TRUE(s.ok()) << s.status().message();
    const Work ended = s->run([] { return Status(); });
    ASSERT_TRUE(ended.wait(kSoon).ok());
    Event event;
    event.record(*s);
    EXPECT_EQ(child_that([&] { uses_streams_of_its_parent(*s, ended, event); }), 0);
    EXPECT_TRUE(s->synchronize(kSoon).ok());
  }
}

TEST(ForkedChild, IsRefusedByGroupsAndWindowsOfItsParent) {
  Context c = alone();
  float x[16] = {};
  auto w = train::Window::create(c.world(), View(x, 16, DType::f32));
  ASSERT_TRUE(w.ok()) << w.status().message();
  EXPECT_EQ(child_that([&] {
              EXPECT_FORKED(c.world().status());
              EXPECT_TRUE(c.world().failed());
              EXPECT_FORKED(w->get(0, View(x, 16, DType::f32)));
              EXPECT_FORKED(w->put(0, CView(x, 16, DType::f32)));
              EXPECT_FORKED(w->accumulate(0, CView(x, 16, DType::f32), ReduceOp::sum));
              EXPECT_FORKED(w->version(0).status());
              EXPECT_FORKED(w->fence());
            }),
            0);
  EXPECT_TRUE(w->get(0, View(x, 16, DType::f32)).ok());
}

/// The device, its driver and the shared pages belong to the parent: the child must release nothing.
TEST(ForkedChild, DropsGpuHandlesWithoutReleasingThem) {
  Context c = alone();
  if (c.device().kind != Device::Kind::cuda) GTEST_SKIP() << "no CUDA device";
  auto memory = c.alloc(4096, c.device());
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  auto stream = Stream::create(c.device());
  ASSERT_TRUE(stream.ok()) << stream.status().message();
  const auto mine = memory->as<float>();
  auto work = all_reduce(c.world(), mine, mine, ReduceOp::sum, *stream);
  ASSERT_TRUE(work.ok()) << work.status().message();
  EXPECT_EQ(child_that([&] {
              *work = Work();
              *memory = Memory();
              *stream = Stream();
              c = Context();
            }),
            0);
  EXPECT_TRUE(work->wait(kSoon).ok());
  EXPECT_TRUE(stream->synchronize(kSoon).ok());
}

constexpr const char* kDelay = "FORK_TEST_MICROSECONDS";

/// A program that forks while a thread joins its first job; the child joins one, too. Exits with 0 if
/// that succeeds.
[[noreturn]] void program(const char* delay) {
  std::thread joins([] { (void)Context::threads(2).ok(); });
  std::this_thread::sleep_for(std::chrono::microseconds(std::atoi(delay)));
  const int status = child_that([] { EXPECT_TRUE(Context::threads(2).ok()); });
  std::fflush(nullptr);
  ::_exit(status == 0 ? 0 : 1);  // does not wait for the thread
}

/// The fork happens at any moment from the first setting that is read to the calibration, while one thread is
/// starting the library. Run in separate programs, in which nothing of the library has been used before.
TEST(ForkedChild, BeginsWhateverItsParentsThreadsWereDoing) {
  if (kSanitizer) GTEST_SKIP() << "under a sanitizer: the child finds its locks held";
  if (const char* const delay = std::getenv(kDelay)) program(delay);
  for (const char* delay : {"0", "500", "1000", "2000", "4000", "7000", "12000", "20000", "30000", "45000"}) {
    const pid_t started = ::fork();
    if (started == 0) {
      ::setenv(kDelay, delay, 1);
      ::setenv("XDG_CACHE_HOME", "/proc/none", 1);  // so that it calibrates each time
      ::unsetenv("OURO_CALIBRATION");
      ::execl("/proc/self/exe", "test_init", "--gtest_brief=1", "--gtest_filter=ForkedChild.BeginsWhatever*",
              nullptr);
      ::_exit(127);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(started, &status, 0), started);
    EXPECT_EQ(status, 0) << "forked after " << delay << " us";
  }
}

TEST(ForkedChild, JoinsAJobWhileItsParentAllocates) {
  if (kSanitizer) GTEST_SKIP() << "under a sanitizer: the child finds its locks held";
  Context c = alone();
  std::atomic<bool> stop{false};
  std::thread allocates([&] {
    while (!stop) EXPECT_TRUE(c.alloc(4096).ok());
  });
  for (int i = 0; i < 100; ++i)
    if (const int status = child_that([] { (void)alone(); }); status != 0) {
      ADD_FAILURE() << "fork " << i << ": wait status " << status;
      break;
    }
  stop = true;
  allocates.join();
}

}  // namespace
}  // namespace ouro
