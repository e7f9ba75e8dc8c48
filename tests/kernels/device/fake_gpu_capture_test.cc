// The fake GPU: events, capture and graphs, with CUDA's rules for what breaks a capture.
#include "tests/kernels/device/fake_gpu_harness.h"

namespace ouro::gpu::test {
namespace {

TEST(FakeGpuEvents, AnEventThatWasNeverRecordedHasPassed) {
  Rig rig;
  const Event e = rig.event();
  EXPECT_TRUE(value(rig.gpu.query(e)));
  OK(rig.gpu.synchronize(e));
  OK(rig.gpu.wait(rig.stream, e));
  OK(rig.gpu.synchronize(rig.stream));
}

TEST(FakeGpuEvents, AWaitIsForTheLastRecordBeforeIt) {
  Rig rig;
  const Stream other = rig.another(), third = rig.another();
  const Event e = rig.event();
  OK(rig.enqueue(at_least(rig.host, 1)));
  OK(rig.gpu.record(e, rig.stream));
  OK(rig.gpu.wait(other, e));
  OK(rig.enqueue(at_least(rig.host, 2)));
  OK(rig.gpu.record(e, rig.stream));  // not the event that `other` waits for
  OK(rig.gpu.wait(third, e));
  EXPECT_FALSE(value(rig.gpu.query(other)));
  store(rig.host, 1);
  OK(rig.gpu.synchronize(other));
  EXPECT_FALSE(value(rig.gpu.query(third)));
  EXPECT_FALSE(value(rig.gpu.query(e)));
  store(rig.host, 2);
  OK(rig.gpu.synchronize(e));
  EXPECT_TRUE(value(rig.gpu.query(e)));
  OK(rig.gpu.synchronize(third));
}

TEST(FakeGpuEvents, OrderStreamsOfTwoDevices) {
  Rig rig({.devices = 2});
  const Stream there = rig.another(1);
  const Event e = rig.event();
  EXPECT_THAT(rig.gpu.record(e, there), Fails(Reason::invalid, "event of device 0"));
  OK(rig.gpu.enable_peer(1, 0));
  for (std::uint32_t i = 1; i <= 100; ++i) {
    std::uint32_t seen = 0;
    OK(rig.gpu.copy(rig.words, &i, sizeof i, rig.stream));
    OK(rig.gpu.record(e, rig.stream));
    OK(rig.gpu.wait(there, e));
    OK(rig.gpu.copy(&seen, rig.words, sizeof seen, there));
    OK(rig.gpu.synchronize(there));
    ASSERT_EQ(seen, i);
  }
}

TEST(FakeGpuEvents, MeasureTime) {
  Rig rig;
  const Event a = rig.event(true), b = rig.event(true), c = rig.event(false);
  EXPECT_THAT(rig.gpu.elapsed_ms(a, b), Fails(Reason::invalid, "never recorded"));
  OK(rig.gpu.record(a, rig.stream));
  OK(rig.enqueue(at_least(rig.host, 1)));
  OK(rig.gpu.record(b, rig.stream));
  OK(rig.gpu.record(c, rig.stream));
  EXPECT_THAT(rig.gpu.elapsed_ms(a, b), Fails(Reason::invalid, "not passed"));
  EXPECT_THAT(rig.gpu.elapsed_ms(a, c), Fails(Reason::invalid, "without timing"));
  std::this_thread::sleep_for(20ms);
  store(rig.host, 1);
  OK(rig.gpu.synchronize(b));
  EXPECT_GE(value(rig.gpu.elapsed_ms(a, b)), 15);
  EXPECT_LT(value(rig.gpu.elapsed_ms(b, a)), 0);
}

TEST(FakeGpuEvents, CannotBeUsedOnceTheyAreDestroyed) {
  Rig rig;
  const Stream other = rig.another();
  const Event e = rig.event();
  OK(rig.enqueue(at_least(rig.host, 1)));
  OK(rig.gpu.record(e, rig.stream));
  OK(rig.gpu.wait(other, e));
  OK(rig.gpu.destroy_event(e));
  EXPECT_THAT(rig.gpu.destroy_event(e), Fails(Reason::invalid, "destroyed"));
  EXPECT_THAT(rig.gpu.record(e, rig.stream), Fails(Reason::invalid, "destroyed"));
  EXPECT_THAT(rig.gpu.wait(rig.stream, e), Fails(Reason::invalid, "destroyed"));
  EXPECT_FALSE(value(rig.gpu.query(other))) << "who waits already goes on waiting";
  store(rig.host, 1);
  OK(rig.gpu.synchronize(other));
}

struct Add {
  std::uint32_t* to;
  const std::uint32_t* from;
};
const Kernel kAdd = kernel<Add>("add", [](const Add& a, int, int) { *a.to += *a.from; });

void count(void* n) { ++*static_cast<int*>(n); }

TEST(FakeGpuCapture, CapturedWorkRunsAtEachLaunchOnly) {
  Rig rig;
  const std::uint32_t one = 1;
  int calls = 0;
  EXPECT_EQ(value(rig.gpu.capturing(rig.stream)), 0u);
  OK(rig.gpu.begin_capture(rig.stream));
  EXPECT_NE(value(rig.gpu.capturing(rig.stream)), 0u);
  Add add{rig.words, rig.words + 1};
  OK(rig.gpu.set(rig.words + 1, 0, 4, rig.stream));
  OK(rig.gpu.copy(rig.words + 1, &one, 4, rig.stream));
  OK(rig.gpu.launch(kAdd, {}, &add, rig.stream));
  OK(rig.enqueue(write(rig.words + 2, 5)));
  OK(rig.enqueue(at_least(rig.words + 2, 5)));
  OK(rig.gpu.call_host(rig.stream, count, &calls));
  add = {};
  const Graph g = value(rig.gpu.end_capture(rig.stream));
  EXPECT_EQ(value(rig.gpu.capturing(rig.stream)), 0u);
  OK(rig.gpu.synchronize(rig.stream));
  EXPECT_EQ(rig.words[0], 0u);
  EXPECT_EQ(calls, 0);
  for (std::uint32_t i = 1; i <= 3; ++i) {
    OK(rig.gpu.launch(g, rig.stream));
    OK(rig.gpu.synchronize(rig.stream));
    EXPECT_EQ(rig.words[0], i);
    EXPECT_EQ(calls, static_cast<int>(i));
  }
  const Stream others[] = {rig.another(),
                           {0, nullptr}};  // counted without atomics: a graph runs only once at a time
  for (int i = 0; i < 20; ++i) OK(rig.gpu.launch(g, others[i % 2]));
  for (const Stream& s : others) OK(rig.gpu.synchronize(s));
  EXPECT_EQ(calls, 23);
  OK(rig.gpu.destroy_graph(g));
  EXPECT_THAT(rig.gpu.launch(g, rig.stream), Fails(Reason::invalid, "destroyed"));
  EXPECT_THAT(rig.gpu.destroy_graph(g), Fails(Reason::invalid, "destroyed"));
}

TEST(FakeGpuCapture, ForksAndJoinsByEvents) {
  Rig rig({.devices = 2});
  const Stream there = rig.another(1);
  const Event fork = rig.event(), join = rig.event(false, 1);
  const std::uint32_t one = 1;
  OK(rig.gpu.begin_capture(rig.stream));
  OK(rig.gpu.copy(rig.words + 1, &one, 4, rig.stream));
  OK(rig.gpu.record(fork, rig.stream));
  OK(rig.gpu.wait(there, fork));
  EXPECT_EQ(value(rig.gpu.capturing(there)), value(rig.gpu.capturing(rig.stream)));
  // Each stream waits for the other, so they finish only if they run concurrently.
  OK(rig.enqueue(at_least(rig.host, 1)));
  OK(rig.enqueue(write(rig.host + 1, 1)));
  OK(rig.enqueue(write(rig.host, 1), there));
  OK(rig.enqueue(at_least(rig.host + 1, 1), there));
  const Add add{rig.words, rig.words + 1}, again{rig.words + 2, rig.words};
  OK(rig.gpu.launch(kAdd, {}, &add, there));
  OK(rig.gpu.record(join, there));
  OK(rig.gpu.wait(rig.stream, join));
  OK(rig.gpu.launch(kAdd, {}, &again, rig.stream));
  const Graph g = value(rig.gpu.end_capture(rig.stream));
  EXPECT_EQ(value(rig.gpu.capturing(there)), 0u) << "a capture ends for all of its streams";
  OK(rig.gpu.synchronize(there));
  for (std::uint32_t total = 0, i = 1; i <= 20; ++i) {
    store(rig.host, 0);
    store(rig.host + 1, 0);
    OK(rig.gpu.launch(g, rig.stream));
    OK(rig.gpu.synchronize(rig.stream));
    ASSERT_EQ(rig.words[0], i);
    ASSERT_EQ(rig.words[2], total += i);
  }
}

TEST(FakeGpuCapture, AGraphCanBePartOfAGraph) {
  Rig rig;
  const Add add{rig.words, rig.words + 1};
  rig.words[1] = 3;
  OK(rig.gpu.begin_capture(rig.stream));
  OK(rig.gpu.launch(kAdd, {}, &add, rig.stream));
  const Graph inner = value(rig.gpu.end_capture(rig.stream));
  OK(rig.gpu.begin_capture(rig.stream));
  OK(rig.gpu.launch(inner, rig.stream));
  OK(rig.gpu.launch(inner, rig.stream));
  const Graph outer = value(rig.gpu.end_capture(rig.stream));
  OK(rig.gpu.destroy_graph(inner));
  OK(rig.gpu.launch(outer, rig.stream));
  OK(rig.gpu.synchronize(rig.stream));
  EXPECT_EQ(rig.words[0], 6u);
}

/// Captures while doing `wrong`; returns the result of end_capture.
Status broken_by(Rig& rig, const std::function<Status()>& wrong, const char* why) {
  EXPECT_TRUE(rig.gpu.begin_capture(rig.stream).ok());
  EXPECT_THAT(wrong(), Fails(Reason::invalid, why));
  EXPECT_THAT(rig.gpu.set(rig.words, 0, 4, rig.stream), Fails(Reason::invalid, "broken"))
      << "it stays broken";
  EXPECT_THAT(rig.gpu.capturing(rig.stream), Fails(Reason::invalid, "broken")) << "until it is ended";
  const Status end = rig.gpu.end_capture(rig.stream).status();
  EXPECT_TRUE(rig.gpu.set(rig.words, 0, 4, rig.stream).ok()) << "then the stream is as before";
  EXPECT_TRUE(rig.gpu.synchronize(rig.stream).ok());
  return end;
}

TEST(FakeGpuCapture, IsBrokenByCallsThatWaitForWork) {
  Rig rig;
  const Event e = rig.event(), outside = rig.event();
  const Stream other = rig.another();
  FakeGpu& gpu = rig.gpu;
  const auto with_event = [&](auto f) {
    return [&gpu, &rig, e, f] {
      EXPECT_TRUE(gpu.record(e, rig.stream).ok());
      return status(f());
    };
  };
  EXPECT_THAT(broken_by(
                  rig, [&] { return gpu.synchronize(rig.stream); }, "synchronized"),
              Fails(Reason::invalid, "synchronized"));
  EXPECT_THAT(broken_by(
                  rig, [&] { return status(gpu.query(rig.stream)); }, "queried"),
              Fails(Reason::invalid, "queried"));
  EXPECT_THAT(broken_by(rig, with_event([&] { return gpu.synchronize(e); }), "recorded in a capture"),
              Fails(Reason::invalid, "broken"));
  EXPECT_THAT(broken_by(rig, with_event([&] { return gpu.query(e); }), "recorded in a capture"),
              Fails(Reason::invalid, "broken"));
  EXPECT_THAT(broken_by(
                  rig, [&] { return gpu.begin_capture(rig.stream); }, "begun in a capture"),
              Fails(Reason::invalid, "broken"));
  EXPECT_THAT(broken_by(
                  rig, [&] { return gpu.destroy_stream(rig.stream); }, "destroyed"),
              Fails(Reason::invalid, "broken"));
  EXPECT_THAT(broken_by(rig, with_event([&] {
                          return gpu.wait(Stream{0, nullptr}, e);
                        }),
                        "legacy"),
              Fails(Reason::invalid, "legacy"));
  OK(gpu.record(outside, other));
  EXPECT_THAT(broken_by(
                  rig, [&] { return gpu.wait(rig.stream, outside); }, "outside the capture"),
              Fails(Reason::invalid, "outside"));
  EXPECT_EQ(gpu.live().graphs, 0);
  EXPECT_THAT(gpu.begin_capture(Stream{0, nullptr}), Fails(Reason::invalid, "legacy"));
  EXPECT_THAT(gpu.end_capture(rig.stream), Fails(Reason::invalid, "not being captured"));
}

TEST(FakeGpuCapture, EventRecordedInItCannotBeWaitedForOutside) {
  Rig rig;
  const Event e = rig.event(true);
  OK(rig.gpu.begin_capture(rig.stream));
  OK(rig.gpu.record(e, rig.stream));
  value(rig.gpu.end_capture(rig.stream));
  EXPECT_THAT(rig.gpu.query(e), Fails(Reason::invalid, "marks nothing"));
  EXPECT_THAT(rig.gpu.synchronize(e), Fails(Reason::invalid, "marks nothing"));
  EXPECT_THAT(rig.gpu.wait(rig.stream, e), Fails(Reason::invalid, "has ended"));
  EXPECT_THAT(rig.gpu.elapsed_ms(e, e), Fails(Reason::invalid, "never recorded"));
  OK(rig.gpu.record(e, rig.stream));
  OK(rig.gpu.synchronize(e)) << "until it is recorded again";
}

TEST(FakeGpuCapture, ForkedStreamsMustJoinBeforeTheEnd) {
  Rig rig;
  const Stream other = rig.another();
  const Event fork = rig.event(), join = rig.event();
  const auto forked = [&](bool work_after_join) {
    EXPECT_TRUE(rig.gpu.begin_capture(rig.stream).ok());
    EXPECT_TRUE(rig.gpu.record(fork, rig.stream).ok());
    EXPECT_TRUE(rig.gpu.wait(other, fork).ok());
    EXPECT_TRUE(rig.gpu.set(rig.words, 1, 4, other).ok());
    if (!work_after_join) return;
    EXPECT_TRUE(rig.gpu.record(join, other).ok());
    EXPECT_TRUE(rig.gpu.wait(rig.stream, join).ok());
    EXPECT_TRUE(rig.gpu.set(rig.words, 2, 4, other).ok());
  };
  for (bool work_after_join : {false, true}) {
    forked(work_after_join);
    EXPECT_THAT(rig.gpu.end_capture(rig.stream), Fails(Reason::invalid, "not waited for"));
    EXPECT_EQ(value(rig.gpu.capturing(other)), 0u);
  }
  forked(false);
  EXPECT_THAT(rig.gpu.end_capture(other), Fails(Reason::invalid, "only joined"));
  EXPECT_THAT(rig.gpu.end_capture(rig.stream), Fails(Reason::invalid, "broken"));
}

TEST(FakeGpuCapture, TwoCapturesDoNotMix) {
  Rig rig;
  const Stream other = rig.another();
  const Event e = rig.event();
  OK(rig.gpu.begin_capture(rig.stream));
  OK(rig.gpu.begin_capture(other));
  EXPECT_NE(value(rig.gpu.capturing(rig.stream)), value(rig.gpu.capturing(other)));
  OK(rig.gpu.record(e, rig.stream));
  EXPECT_THAT(rig.gpu.wait(other, e), Fails(Reason::invalid, "another capture"));
  EXPECT_THAT(rig.gpu.end_capture(rig.stream), Fails(Reason::invalid, "broken"));
  EXPECT_THAT(rig.gpu.end_capture(other), Fails(Reason::invalid, "broken"));
}

TEST(FakeGpuCapture, FailedCallIsNotCaptured) {
  Rig rig;
  OK(rig.gpu.begin_capture(rig.stream));
  rig.gpu.fail_next(FakeOp::set, Reason::resource);
  EXPECT_THAT(rig.gpu.set(rig.words, 1, 4, rig.stream), Fails(Reason::resource, "injected"));
  OK(rig.gpu.set(rig.words + 1, 1, 4, rig.stream));
  const Graph g = value(rig.gpu.end_capture(rig.stream));
  OK(rig.gpu.launch(g, rig.stream));
  OK(rig.gpu.synchronize(rig.stream));
  EXPECT_EQ(rig.words[0], 0u);
  EXPECT_EQ(rig.words[1], 0x01010101u);
}

TEST(FakeGpuCapture, AReplayOfFreedMemoryLosesTheDevice) {
  Rig rig;
  void* p = value(rig.gpu.alloc(0, 8));
  OK(rig.gpu.begin_capture(rig.stream));
  OK(rig.gpu.set(p, 1, 8, rig.stream));
  const Graph g = value(rig.gpu.end_capture(rig.stream));
  OK(rig.gpu.free(p));
  OK(rig.gpu.launch(g, rig.stream));
  EXPECT_THAT(rig.gpu.synchronize(rig.stream), Fails(Reason::device, "illegal address in set"));
}

TEST(FakeGpuCapture, BlockedReplayEndsWhenTheFakeGpuIsDestroyed) {
  Rig rig({.devices = 2});
  const Stream there = rig.another(1);
  const Event fork = rig.event(), join = rig.event(false, 1);
  OK(rig.gpu.begin_capture(rig.stream));
  OK(rig.gpu.record(fork, rig.stream));
  OK(rig.gpu.wait(there, fork));
  OK(rig.enqueue(at_least(rig.host, 1), there));
  OK(rig.gpu.record(join, there));
  OK(rig.gpu.wait(rig.stream, join));
  const Graph g = value(rig.gpu.end_capture(rig.stream));
  OK(rig.gpu.launch(g, rig.stream));
  std::this_thread::sleep_for(5ms);
}

}  // namespace
}  // namespace ouro::gpu::test
