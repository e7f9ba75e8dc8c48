// The fake GPU in its harsh modes, in which it always does what CUDA does at times: loading, allocating and
// unmapping wait, streams share queues, streams are full.
#include "tests/kernels/device/fake_gpu_harness.h"

namespace ouro::gpu::test {
namespace {

constexpr auto kSoon = 30ms;  // how long a wait that must not end is observed

struct Nothing {};
Kernel nothing(const char* name) {
  return kernel<Nothing>(name, [](const Nothing&, int, int) {});
}

/// A call that waits for all work must not return while a stream waits, must be counted, and must
/// return afterwards.
void expect_wait(Rig& rig, const std::function<Status()>& call) {
  const int before = rig.gpu.stalls();
  OK(rig.enqueue(at_least(rig.host, 1)));
  EXPECT_THAT(call(), Fails(Reason::resource, "has not ended"));
  EXPECT_EQ(rig.gpu.stalls(), before + 1);
  store(rig.host, 1);
  OK(rig.gpu.synchronize(rig.stream));
  OK(call());
  store(rig.host, 0);
}

TEST(FakeGpuHarsh, TheFirstLaunchOfAKernelWaitsForAllStreams) {
  Rig rig({.harsh = {.lazy_loading = true, .patience = kSoon}});
  const Stream other = rig.another();
  const Nothing none;
  expect_wait(rig, [&] { return rig.gpu.launch(nothing("first"), {}, &none, other); });
  expect_wait(rig, [&] { return status(rig.gpu.info(nothing("second"), 0)); });
  expect_wait(rig, [&] { return status(rig.gpu.resident_blocks(nothing("third"), 32, 0)); });
  OK(rig.enqueue(at_least(rig.host, 1)));
  OK(rig.gpu.launch(nothing("first"), {}, &none, other)) << "it is loaded";
  store(rig.host, 1);
}

TEST(FakeGpuHarsh, KernelThatNeedsMoreStackWaitsForAllWork) {
  const auto need = [](const Kernel& k) {
    return std::size_t{k.name == std::string("large") ? 5000u : 900u};
  };
  Rig rig({.local_bytes = need, .harsh = {.stack_waits = true, .patience = kSoon}});
  EXPECT_EQ(value(rig.gpu.info(nothing("large"), 0)).local_bytes, 5000u);
  const Stream other = rig.another();
  const Nothing none;
  expect_wait(rig, [&] { return rig.gpu.launch(nothing("large"), {}, &none, other); });
  OK(rig.enqueue(at_least(rig.host, 1)));
  OK(rig.gpu.launch(nothing("small"), {}, &none, other)) << "it needs less than all have at first";
  OK(rig.gpu.launch(nothing("large"), {}, &none, other)) << "the stack stays as large";
  OK(rig.gpu.reserve_stack(0, 5000));
  EXPECT_THAT(rig.gpu.reserve_stack(0, 5001), Fails(Reason::resource, "has not ended"));
  store(rig.host, 1);
}

TEST(FakeGpuHarsh, AllocationWaitsForAllWork) {
  Rig rig({.harsh = {.allocation_waits = true, .patience = kSoon}});
  std::vector<std::byte> mine(4096);
  expect_wait(rig, [&] { return status(rig.gpu.alloc(0, 100)); });
  expect_wait(rig, [&] { return status(rig.gpu.alloc_shareable(0, 100)); });
  expect_wait(rig, [&] { return status(rig.gpu.alloc_pinned(100)); });
  expect_wait(rig, [&] { return status(rig.gpu.register_host(mine.data(), mine.size())); });
}

TEST(FakeGpuHarsh, ShareableMemoryWaitsForTheDevicesThatCanMapIt) {
  Rig rig({.devices = 3,
           .peer = [](int a, int b) { return a + b < 3; },
           .harsh = {.allocation_waits = true, .patience = kSoon}});
  expect_wait(rig, [&] { return status(rig.gpu.alloc_shareable(1, 100)); });
  OK(rig.enqueue(at_least(rig.host, 1), rig.another(2)));
  OK(rig.gpu.alloc_shareable(1, 100).status()) << "device 2 does not reach device 1";
  store(rig.host, 1);
}

TEST(FakeGpuHarsh, EnablingPeerAccessWaitsForBothDevicesOnce) {
  Rig rig({.devices = 3, .harsh = {.peering_waits = true, .patience = kSoon}});
  expect_wait(rig, [&] { return rig.gpu.enable_peer(0, 1); });
  expect_wait(rig, [&] { return rig.gpu.enable_peer(1, 0); });
  OK(rig.enqueue(at_least(rig.host, 1)));
  OK(rig.gpu.enable_peer(0, 1));
  OK(rig.gpu.enable_peer(1, 2)) << "neither of them is device 0";
  store(rig.host, 1);
}

TEST(FakeGpuHarsh, UnmappingWaitsForAllWork) {
  Rig rig({.harsh = {.unmapping_waits = true, .patience = kSoon}});
  const Region r = value(rig.gpu.alloc_shareable(0, 100));
  expect_wait(rig, [&] { return rig.gpu.free_region(r); });
  Rig mild;
  const Region other = value(mild.gpu.alloc_shareable(0, 100));
  OK(mild.enqueue(at_least(mild.host, 1)));
  OK(mild.gpu.free_region(other));
  store(mild.host, 1);
}

TEST(FakeGpuHarsh, StreamsShareHardwareQueues) {
  Rig rig({.harsh = {.connections = 2}});  // the legacy stream uses the first, rig.stream the second
  EXPECT_EQ(value(rig.gpu.properties(0)).connections, 2);
  const Stream first = rig.another(), second = rig.another();
  OK(rig.enqueue(at_least(rig.host, 1)));
  OK(rig.enqueue(write(rig.host + 1, 1), second));
  OK(rig.enqueue(write(rig.host + 2, 1), first));
  OK(rig.gpu.synchronize(first));
  EXPECT_FALSE(value(rig.gpu.query(second))) << "it is behind a wait of another stream";
  EXPECT_EQ(load(rig.host + 1), 0u);
  store(rig.host, 1);
  OK(rig.gpu.synchronize(second));
  OK(rig.enqueue(at_least(rig.words + 8, 1)));
  OK(rig.enqueue(write(rig.words + 8, 1), second));
  rig.gpu.lose(0);  // also ends calls that wait for a place in the stream
}

TEST(FakeGpuHarsh, FullStreamBlocksFurtherCalls) {
  const auto fill = [](Rig& rig) {
    for (auto op : {at_least(rig.host, 1), write(rig.host + 1, 1), write(rig.host + 1, 2)})
      OK(rig.enqueue(op));
  };
  Rig rig({.harsh = {.depth = 3, .patience = kSoon}});
  fill(rig);
  EXPECT_THAT(rig.enqueue(write(rig.host + 1, 3)), Fails(Reason::resource, "full"));
  EXPECT_EQ(rig.gpu.stalls(), 1);
  OK(rig.enqueue(write(rig.host, 1), rig.another()));
  Rig patient({.harsh = {.depth = 3}});
  fill(patient);
  std::thread release([&] {
    std::this_thread::sleep_for(kSoon / 3);
    store(patient.host, 1);
  });
  OK(patient.enqueue(write(patient.host + 1, 3))) << "it waited";
  release.join();
}

TEST(FakeGpuHarsh, OnlyUsedDevicesCountAsContexts) {
  FakeGpu gpu({.devices = 4});
  EXPECT_EQ(value(gpu.reachable(1)).size(), 3u);
  EXPECT_TRUE(gpu.peer_access(0, 3));
  EXPECT_EQ(gpu.contexts(), 0);
  (void)value(gpu.properties(1));
  (void)value(gpu.create_stream(2, 0));
  EXPECT_EQ(gpu.contexts(), 2);
}

TEST(FakeGpuHarsh, ProcessMaySeeASubsetOfTheDevices) {
  FakeGpu all({.devices = 3});
  FakeGpu one({.devices = 1, .first = 2, .host_devices = 3});
  EXPECT_EQ(value(one.properties(0)).uuid, value(all.properties(2)).uuid);
  EXPECT_EQ(value(one.reachable(0)), value(all.reachable(2)));
  FakeGpu apart(
      {.devices = 1, .peer = [](int a, int b) { return a + b == 1; }, .first = 1, .host_devices = 3});
  EXPECT_EQ(value(apart.reachable(0)), (std::vector<Uuid>{value(all.properties(0)).uuid}));
}

}  // namespace
}  // namespace ouro::gpu::test
