// Forked children that use, or let go of, what is their parent's. What groups and contexts say there is in
// tests/runtime/failure/arguments_test.cc.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <vector>

#include "ouro/train/window.hpp"
#include "tests/runtime/group/ranks.h"

namespace ouro {
namespace {

/// The wait status of a forked child that does this; it may take ten seconds.
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

/// The device, its driver and the shared pages are the parent's: nothing is given back.
TEST(ForkedChild, LetsGoOfWhatLiesOnAGpu) {
  Context c = alone();
  if (c.device().kind != Device::Kind::cuda) GTEST_SKIP() << "SKIP (no CUDA device)";
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

}  // namespace
}  // namespace ouro
