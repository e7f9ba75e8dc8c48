// The fake GPU: streams, copies, stream values, kernels; injected faults; shutdown.
#include "tests/kernels/device/fake_gpu_harness.h"
#include "tests/timing.h"

namespace ouro::gpu::test {
namespace {

TEST(FakeGpuWork, AStreamKeepsItsOrder) {
  Rig rig;
  struct Args {
    std::uint32_t *from, *to;
  };
  const Kernel doubled = kernel<Args>("doubled", [](const Args& a, int, int) { *a.to = 2 * *a.from; });
  const std::uint32_t seven = 7;
  std::uint32_t out = 0;
  for (int i = 0; i < 100; ++i) {
    OK(rig.gpu.set(rig.words, 0, 256, rig.stream));
    OK(rig.gpu.copy(rig.words, &seven, sizeof seven, rig.stream));
    const Args args{rig.words, rig.words + 1};
    OK(rig.gpu.launch(doubled, {}, &args, rig.stream));
    OK(rig.gpu.copy(rig.words + 2, rig.words + 1, 4, rig.stream));
    OK(rig.gpu.copy(&out, rig.words + 2, 4, rig.stream));
    OK(rig.gpu.synchronize(rig.stream));
    ASSERT_EQ(std::exchange(out, 0u), 14u);
  }
}

TEST(FakeGpuWork, StreamsRunConcurrently) {
  Rig rig;
  const Stream other = rig.another(), legacy{0, nullptr};
  OK(rig.enqueue(at_least(rig.words, 1)));
  OK(rig.enqueue(at_least(rig.words + 1, 1), other));
  OK(rig.enqueue(write(rig.words, 1), other));
  OK(rig.enqueue(write(rig.words + 1, 1), legacy));
  OK(rig.gpu.synchronize(rig.stream));
  OK(rig.gpu.synchronize(other));
  OK(rig.gpu.synchronize(legacy));
  EXPECT_THAT(rig.gpu.destroy_stream(legacy), Fails(Reason::invalid, "legacy"));
  EXPECT_THAT(rig.gpu.synchronize(Stream{1, nullptr}), Fails(Reason::invalid, "does not exist"));
}

TEST(FakeGpuWork, DestroyedStreamIsRefusedButFinishesItsWork) {
  Rig rig({.devices = 2});
  const Stream other = rig.another();
  EXPECT_THAT(rig.gpu.synchronize(Stream{1, other.handle}), Fails(Reason::invalid, "stream of device 0"));
  OK(rig.gpu.enqueue(std::array{at_least(rig.host, 1), write(rig.host + 1, 9)}, other));
  EXPECT_FALSE(value(rig.gpu.query(other)));
  OK(rig.gpu.destroy_stream(other));
  EXPECT_THAT(rig.gpu.query(other), Fails(Reason::invalid, "destroyed"));
  EXPECT_THAT(rig.gpu.destroy_stream(other), Fails(Reason::invalid, "destroyed"));
  store(rig.host, 1);
  EXPECT_TRUE(eventually([&] { return load(rig.host + 1) == 9; })) << "what was enqueued still runs";
  OK(rig.gpu.destroy_stream(rig.another())) << "which also collects the other's thread";
}

TEST(FakeGpuWork, CopiesStayInsideTheirMemory) {
  Rig rig;
  auto* p = static_cast<std::byte*>(value(rig.gpu.alloc(0, 4096)));
  std::array<std::byte, 8192> host{};
  EXPECT_THAT(rig.gpu.copy(p, host.data(), 4097, rig.stream), Fails(Reason::invalid, "leave device memory"));
  EXPECT_THAT(rig.gpu.copy(host.data(), p + 4000, 97, rig.stream),
              Fails(Reason::invalid, "leave device memory"));
  EXPECT_THAT(rig.gpu.set(p + 1, 0, 4096, rig.stream), Fails(Reason::invalid, "leave device memory"));
  EXPECT_THAT(rig.gpu.set(host.data(), 0, 1, rig.stream), Fails(Reason::invalid, "not memory of a device"));
  EXPECT_THAT(rig.gpu.copy(p, nullptr, 1, rig.stream), Fails(Reason::invalid, "not mapped"));
  OK(rig.gpu.copy(p, nullptr, 0, rig.stream));
  OK(rig.gpu.copy(p, host.data(), 4096, rig.stream));
  OK(rig.gpu.synchronize(rig.stream));
  OK(rig.gpu.free(p));
  EXPECT_FALSE(rig.gpu.set(p, 0, 1, rig.stream).ok());
}

TEST(FakeGpuWork, StreamValuesWaitAndWrite) {
  Rig rig;
  OK(rig.gpu.enqueue(
      std::array{equal(rig.host, 3), write(rig.host + 1, 1), at_least(rig.host, 5), write(rig.host + 1, 2)},
      rig.stream));
  store(rig.host, 4);
  std::this_thread::sleep_for(5ms);
  EXPECT_EQ(load(rig.host + 1), 0u) << "4 is not 3";
  store(rig.host, 3);
  EXPECT_TRUE(eventually([&] { return load(rig.host + 1) == 1; }));
  EXPECT_FALSE(value(rig.gpu.query(rig.stream)));
  store(rig.host, 6);
  OK(rig.gpu.synchronize(rig.stream));
  EXPECT_EQ(load(rig.host + 1), 2u);
  store(rig.host, 2);  // 5 after 0xfffffffd
  OK(rig.enqueue(at_least(rig.host, 0xfffffffdu)));
  OK(rig.gpu.synchronize(rig.stream));
}

TEST(FakeGpuWork, StreamValuesOrderEarlierWrites) {
  Rig rig;
  const Stream other = rig.another();
  std::uint32_t seen = 0;
  for (std::uint32_t i = 1; i <= 200; ++i) {  // ThreadSanitizer checks the order of the plain accesses
    OK(rig.gpu.copy(rig.words + 8, &i, sizeof i, rig.stream));
    OK(rig.enqueue(write(rig.words, i)));
    OK(rig.enqueue(at_least(rig.words, i), other));
    OK(rig.gpu.copy(&seen, rig.words + 8, sizeof seen, other));
    OK(rig.gpu.synchronize(other));
    ASSERT_EQ(seen, i);
  }
}

TEST(FakeGpuWork, StreamValuesNeedAWordThatTheDeviceCanReach) {
  Rig rig({.devices = 3, .peer = [](int d, int p) { return d + p != 3; }});
  void* there = value(rig.gpu.alloc(1, 8));
  EXPECT_THAT(rig.enqueue(write(static_cast<char*>(there) + 2, 1)), Fails(Reason::invalid, "aligned"));
  EXPECT_THAT(rig.enqueue(write(there, 1)), Fails(Reason::invalid, "enable_peer"));
  EXPECT_TRUE(rig.gpu.peer_access(0, 1));
  OK(rig.gpu.enable_peer(0, 1));
  OK(rig.gpu.enable_peer(0, 1));
  OK(rig.enqueue(write(there, 1)));
  const Region region = value(rig.gpu.alloc_shareable(2, 8)), closed = value(rig.gpu.alloc_shareable(1, 8));
  OK(rig.enqueue(write(region.data, 1)));
  EXPECT_THAT(rig.enqueue(write(closed.data, 1), rig.another(2)), Fails(Reason::invalid, "enable_peer"));
  EXPECT_FALSE(rig.gpu.peer_access(1, 2));
  EXPECT_THAT(rig.gpu.enable_peer(1, 2), Fails(Reason::unsupported, "cannot map"));
  OK(rig.gpu.synchronize(rig.stream));
  EXPECT_EQ(load(there), 1u);

  Rig pinned({.device_words = false});
  EXPECT_FALSE(value(pinned.gpu.properties(0)).device_words);
  EXPECT_THAT(pinned.enqueue(write(pinned.words, 1)), Fails(Reason::unsupported, "on device memory"));
  OK(pinned.enqueue(write(pinned.host, 1)));

  Rig none({.stream_values = false});
  EXPECT_THAT(none.enqueue(write(none.words, 1)), Fails(Reason::unsupported, "stream memory operations"));
}

TEST(FakeGpuWork, KernelsRunBlockAfterBlockOnACopyOfTheirArguments) {
  Rig rig;
  struct Args {
    std::uint32_t* at;
    std::uint32_t salt;
  };
  const Kernel order = kernel<Args>("order", [](const Args& a, int block, int blocks) {
    a.at[block] = a.salt + 100 * static_cast<std::uint32_t>(blocks) + static_cast<std::uint32_t>(block);
  });
  Args args{rig.words, 1000};
  OK(rig.enqueue(at_least(rig.host, 1)));
  OK(rig.gpu.launch(order, {.blocks = 5, .threads = 32}, &args, rig.stream));
  args.salt = 9;
  store(rig.host, 1);
  OK(rig.gpu.synchronize(rig.stream));
  for (std::uint32_t b = 0; b < 5; ++b) EXPECT_EQ(rig.words[b], 1500 + b);

  EXPECT_THAT(rig.gpu.launch(order, {.blocks = 0}, &args, rig.stream), Fails(Reason::invalid, "blocks"));
  EXPECT_THAT(rig.gpu.launch(order, {.threads = 1025}, &args, rig.stream), Fails(Reason::invalid, "threads"));
  EXPECT_THAT(rig.gpu.launch(order, {}, nullptr, rig.stream), Fails(Reason::invalid, "no arguments"));
  EXPECT_THAT(rig.gpu.launch(Kernel{}, {}, &args, rig.stream), Fails(Reason::unsupported, "host body"));
  EXPECT_THAT(rig.gpu.info(Kernel{}, 0), Fails(Reason::unsupported, "host body"));
  EXPECT_GT(value(rig.gpu.info(order, 0)).max_threads, 0);
  EXPECT_EQ(value(rig.gpu.resident_blocks(order, 1024, 0)), 4 * 2);
}

struct Meeting {
  std::atomic<int>* inside;
  std::atomic<int>* most;
};
/// Each block waits, with a time limit, until all blocks of its kernel are running.
constexpr auto kMeet = [](const Meeting& m, int, int blocks) {
  const int now = m.inside->fetch_add(1) + 1;
  for (int most = m.most->load(); most < now && !m.most->compare_exchange_weak(most, now);) continue;
  eventually([&] { return m.most->load() >= blocks; });
  std::this_thread::sleep_for(2ms);
  m.inside->fetch_sub(1);
};

TEST(FakeGpuWork, SpinningBlocksAreAllResidentAtOnce) {
  Rig rig({.multiprocessors = 2});
  const Kernel meet = kernel<Meeting>("meet", kMeet, true);
  const int fit = value(rig.gpu.resident_blocks(meet, 1024, 0));
  ASSERT_EQ(fit, 4);
  std::atomic<int> inside{0}, most{0};
  const Meeting args{&inside, &most};
  EXPECT_THAT(rig.gpu.launch(meet, {.blocks = fit + 1, .threads = 1024}, &args, rig.stream),
              Fails(Reason::resource, "fit at once"));
  const Stream other = rig.another();  // the two kernels do not fit at the same time
  OK(rig.gpu.launch(meet, {.blocks = fit, .threads = 1024}, &args, rig.stream));
  OK(rig.gpu.launch(meet, {.blocks = fit, .threads = 1024}, &args, other));
  OK(rig.gpu.synchronize(rig.stream));
  OK(rig.gpu.synchronize(other));
  EXPECT_EQ(most, fit);
}

struct Called {
  Rig* rig;
  std::uint32_t seen = 0;
  Status status;
};
void call(void* data) {
  auto* c = static_cast<Called*>(data);
  c->seen = *c->rig->words;
  c->status = c->rig->gpu.set(c->rig->words, 0, 4, c->rig->stream);
}

TEST(FakeGpuWork, HostFunctionsAreInOrderAndMayNotCallTheGpu) {
  Rig rig;
  Called called{&rig};
  OK(rig.enqueue(write(rig.words, 31)));
  OK(rig.gpu.call_host(rig.stream, call, &called));
  OK(rig.enqueue(write(rig.words, 32)));
  OK(rig.gpu.synchronize(rig.stream));
  EXPECT_EQ(called.seen, 31u);
  EXPECT_THAT(called.status, Fails(Reason::invalid, "must not call"));
  EXPECT_THAT(rig.gpu.call_host(rig.stream, nullptr, nullptr), Fails(Reason::invalid, "no function"));
}

TEST(FakeGpuFaults, InjectedFailureHappensOnceWithoutEffect) {
  Rig rig;
  rig.gpu.fail_next(FakeOp::alloc, Reason::resource);
  EXPECT_THAT(rig.gpu.alloc(0, 8), Fails(Reason::resource, "injected"));
  rig.gpu.fail_next(FakeOp::copy, Reason::unsupported);
  EXPECT_THAT(rig.gpu.copy(rig.words, rig.host, 4, rig.stream), Fails(Reason::unsupported, "injected"));
  rig.gpu.fail_next(FakeOp::free, Reason::resource);
  EXPECT_THAT(rig.gpu.free(rig.words), Fails(Reason::resource, "injected"));
  OK(rig.gpu.copy(rig.words, rig.host, 4, rig.stream));
  OK(rig.gpu.synchronize(rig.stream));
  OK(rig.gpu.free(rig.words));
}

TEST(FakeGpuFaults, DeviceFaultIsReportedByALaterCall) {
  Rig rig({.devices = 2});
  OK(rig.enqueue(at_least(rig.host, 1)));
  rig.gpu.fail_next(FakeOp::kernel, Reason::device);
  struct Args {
    std::uint32_t* at;
  } args{rig.host};
  const Kernel touch = kernel<Args>("touch", [](const Args& a, int, int) { a.at[4] = 1; });
  OK(rig.gpu.launch(touch, {}, &args, rig.stream));
  OK(rig.enqueue(write(rig.host + 1, 1)));
  store(rig.host, 1);
  EXPECT_THAT(rig.gpu.synchronize(rig.stream), Fails(Reason::device, "injected fault"));
  EXPECT_EQ(rig.host[4], 0u);
  EXPECT_EQ(load(rig.host + 1), 0u) << "what is behind the fault is dropped";
  EXPECT_THAT(rig.gpu.create_stream(0, 0), Fails(Reason::device, "lost"));
  OK(rig.gpu.synchronize(rig.another(1)));
}

TEST(FakeGpuFaults, LostDeviceEndsItsWaitsAndReleasesItsResources) {
  Rig rig({.devices = 2});
  const Stream there = rig.another(1);
  const Event e = rig.event();
  OK(rig.enqueue(at_least(rig.words, 1)));
  OK(rig.gpu.record(e, rig.stream));
  OK(rig.gpu.wait(there, e));
  Status waited;
  std::thread waiter([&] { waited = rig.gpu.synchronize(e); });
  std::this_thread::sleep_for(5ms);
  rig.gpu.lose(0);
  waiter.join();
  EXPECT_THAT(waited, Fails(Reason::device, "lose()"));
  OK(rig.gpu.synchronize(there)) << "another device goes on";
  EXPECT_THAT(rig.gpu.synchronize(rig.stream), Fails(Reason::device, "lost"));
  EXPECT_THAT(rig.gpu.query(e), Fails(Reason::device, "lost"));
  EXPECT_THAT(rig.gpu.properties(0), Fails(Reason::device, "lost"));
  EXPECT_THAT(rig.gpu.free(rig.words), Fails(Reason::device, "lost"));
  EXPECT_THAT(rig.gpu.destroy_stream(rig.stream), Fails(Reason::device, "lost"));
  EXPECT_THAT(rig.gpu.destroy_event(e), Fails(Reason::device, "lost"));
  OK(rig.gpu.free_pinned(rig.host));
  OK(rig.gpu.destroy_stream(there));
  EXPECT_EQ(rig.gpu.live(), FakeLive());
}

TEST(FakeGpuFaults, CopyFromFreedMemoryLosesTheDevice) {
  Rig rig({.devices = 2});
  void* there = value(rig.gpu.alloc(1, 8));
  OK(rig.enqueue(at_least(rig.host, 1)));
  OK(rig.gpu.copy(rig.words, there, 8, rig.stream));
  OK(rig.gpu.free(there)) << "its own device has nothing to do";
  store(rig.host, 1);
  EXPECT_THAT(rig.gpu.synchronize(rig.stream), Fails(Reason::device, "illegal address in copy"));
}

TEST(FakeGpuFaults, DelaySlowsItsKindOfOperation) {
  Rig rig;
  rig.gpu.delay(FakeOp::set, 30ms);
  const auto start = Clock::now();
  OK(rig.gpu.set(rig.words, 0, 4, rig.stream));
  EXPECT_FALSE(value(rig.gpu.query(rig.stream)));
  OK(rig.gpu.synchronize(rig.stream));
  EXPECT_GE(Clock::now() - start, 30ms);
}

TEST(FakeGpuFaults, JitterVariesTheOrder) {
  Rig rig;
  rig.gpu.jitter(12345);
  struct Args {
    std::atomic<int>* next;
    int *orders, stream;
  };
  const Kernel come =
      kernel<Args>("come", [](const Args& a, int, int) { a.orders[a.next->fetch_add(1)] = a.stream; });
  const Stream other = rig.another();
  int first[2] = {0, 0};
  for (int round = 0; round < 200 && (first[0] == 0 || first[1] == 0); ++round) {
    std::atomic<int> next{0};
    int order[2] = {};
    const Args a{&next, order, 0}, b{&next, order, 1};
    OK(rig.gpu.launch(come, {}, &a, rig.stream));
    OK(rig.gpu.launch(come, {}, &b, other));
    OK(rig.gpu.synchronize(rig.stream));
    OK(rig.gpu.synchronize(other));
    ++first[order[0]];
  }
  EXPECT_GT(first[0], 0);
  EXPECT_GT(first[1], 0);
}

TEST(FakeGpuEnd, WaitsEndWhenTheFakeGpuIsDestroyed) {
  const auto start = Clock::now();
  {
    Rig rig({.devices = 2});
    const Event e = rig.event();
    OK(rig.enqueue(at_least(rig.words, 1)));
    OK(rig.gpu.record(e, rig.stream));
    const Stream there = rig.another(1), captured = rig.another();
    OK(rig.gpu.wait(there, e));
    OK(rig.gpu.begin_capture(captured));
    const Stream gone = rig.another();
    OK(rig.enqueue(equal(rig.words, 4), gone));
    OK(rig.gpu.destroy_stream(gone));
    rig.gpu.delay(FakeOp::set, 60s);
    OK(rig.gpu.set(rig.words, 0, 4, Stream{1, nullptr}));
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_LT(Clock::now() - start, ouro::test::kHang);
}

TEST(FakeGpuEnd, WaitingCallerFailsWithRevoked) {
  auto rig = std::make_unique<Rig>();
  OK(rig->enqueue(at_least(rig->words, 1)));
  Status waited;
  std::thread waiter([&waited, r = rig.get()] { waited = r->gpu.synchronize(r->stream); });
  std::this_thread::sleep_for(20ms);  // a caller may enter before the end, but not during it
  rig.reset();
  waiter.join();
  EXPECT_THAT(waited, Fails(Reason::revoked, "destroyed"));
}

}  // namespace
}  // namespace ouro::gpu::test
