// The fake GPU: devices and memory, each rule with its errors; which GPU a process gets.
// fake_gpu_work_test.cc tests the work that runs on it.
#include "kernels/device/fake/fake_gpu.h"

#include <sys/mman.h>

#include "runtime/core/segment.h"
#include "tests/kernels/device/fake_gpu_harness.h"

namespace ouro::gpu::test {
namespace {

TEST(FakeGpu, DevicesReportTheirProperties) {
  FakeGpu gpu({.devices = 2, .memory_bytes = 1 << 20, .multiprocessors = 7, .ipc = false});
  const Properties a = value(gpu.properties(0)), b = value(gpu.properties(1));
  EXPECT_EQ(gpu.devices(), 2);
  EXPECT_STREQ(gpu.name(), "fake");
  EXPECT_EQ(a.multiprocessors, 7);
  EXPECT_EQ(a.memory_bytes, 1u << 20);
  EXPECT_FALSE(a.ipc);
  EXPECT_NE(a.uuid, b.uuid);
  EXPECT_NE(a.pci_bus_id, b.pci_bus_id);
  EXPECT_EQ(FakeGpu({.devices = 2}).properties(1).value().uuid, b.uuid) << "equal in all processes";
  for (int bad : {-1, 2}) {
    EXPECT_THAT(gpu.properties(bad), Fails(Reason::invalid, "does not exist"));
    EXPECT_THAT(gpu.alloc(bad, 1), Fails(Reason::invalid, "does not exist"));
    EXPECT_THAT(gpu.create_stream(bad, 0), Fails(Reason::invalid, "does not exist"));
    EXPECT_THAT(gpu.create_event(bad, false), Fails(Reason::invalid, "does not exist"));
    EXPECT_THAT(gpu.set_current_device(bad), Fails(Reason::invalid, "does not exist"));
    EXPECT_THAT(gpu.record({}, {bad, nullptr}), Fails(Reason::invalid, "does not exist"));
  }
  EXPECT_THAT(gpu.create_stream(0, 1), Fails(Reason::invalid, "priority"));
}

TEST(FakeGpu, TheCurrentDeviceBelongsToTheThread) {
  FakeGpu gpu({.devices = 2});
  OK(gpu.set_current_device(1));
  std::thread([&] { EXPECT_EQ(value(gpu.current_device()), 0); }).join();
  EXPECT_EQ(value(gpu.current_device()), 1);
  OK(gpu.set_current_device(0));
}

TEST(FakeGpu, MemoryIsLimitedAndNotZero) {
  FakeGpu gpu({.memory_bytes = 1 << 20});
  void* p = value(gpu.alloc(0, 600 << 10));
  EXPECT_NE(*static_cast<unsigned char*>(p), 0);
  EXPECT_THAT(gpu.alloc(0, 600 << 10), Fails(Reason::resource, "left"));
  EXPECT_THAT(gpu.alloc_shareable(0, 600 << 10), Fails(Reason::resource, "left"));
  OK(gpu.free(p));
  p = value(gpu.alloc(0, 600 << 10));
  OK(gpu.free(p));
}

TEST(FakeGpu, PointersAreClassified) {
  FakeGpu gpu;
  auto* p = static_cast<std::byte*>(value(gpu.alloc(0, 1000)));
  const PointerInfo inside = value(gpu.pointer(p + 999));
  EXPECT_EQ(inside.kind, MemoryKind::device);
  EXPECT_EQ(inside.base, p);
  EXPECT_EQ(inside.bytes, 1000u);
  EXPECT_EQ(inside.device, 0);
  EXPECT_TRUE(inside.legacy_ipc);
  OK(gpu.free(p));
  auto* again = static_cast<std::byte*>(value(gpu.alloc(0, 1000)));
  EXPECT_NE(value(gpu.pointer(again)).allocation, inside.allocation) << "wherever it lies";
  OK(gpu.free(again));

  void* pinned = value(gpu.alloc_pinned(100));
  EXPECT_EQ(value(gpu.pointer(pinned)).kind, MemoryKind::pinned);
  int local = 0;
  EXPECT_EQ(value(gpu.pointer(&local)).kind, MemoryKind::host);
  EXPECT_EQ(value(gpu.pointer(nullptr)).kind, MemoryKind::unknown);
  const Region r = value(gpu.alloc_shareable(0, 1000));
  EXPECT_GE(r.bytes, 1000u);
  EXPECT_FALSE(value(gpu.pointer(r.data)).legacy_ipc);
  OK(gpu.free_region(r));
  OK(gpu.free_pinned(pinned));
}

TEST(FakeGpu, MemoryIsReleasedOnlyOnceAndOnlyIfAllocated) {
  FakeGpu gpu;
  auto* p = static_cast<std::byte*>(value(gpu.alloc(0, 1000)));
  int local = 0;
  EXPECT_THAT(gpu.free(&local), Fails(Reason::invalid, "unknown memory"));
  EXPECT_THAT(gpu.free(p + 8), Fails(Reason::invalid, "inside"));
  EXPECT_THAT(gpu.free_pinned(p), Fails(Reason::invalid, "device memory"));
  EXPECT_THAT(gpu.ipc_close(0, p), Fails(Reason::invalid, "device memory"));
  OK(gpu.free(p));
  EXPECT_THAT(gpu.free(p), Fails(Reason::invalid, "released already"));
  OK(gpu.free(nullptr));

  const Region r = value(gpu.alloc_shareable(0, 1));
  Region other = r;
  ++other.handle;
  EXPECT_THAT(gpu.free_region(other), Fails(Reason::invalid, "does not exist"));
  EXPECT_THAT(gpu.free(r.data), Fails(Reason::invalid, "shareable region"));
  OK(gpu.free_region(r));
  EXPECT_THAT(gpu.free_region(r), Fails(Reason::invalid, "released already"));
}

TEST(FakeGpu, ReleasingMemoryWaitsForItsDevice) {
  Rig rig;
  void* p = value(rig.gpu.alloc(0, 8));
  OK(rig.enqueue(at_least(rig.host, 1)));
  OK(rig.gpu.set(p, 1, 8, rig.stream));
  std::atomic<bool> freed{false};
  std::thread releaser([&] {
    EXPECT_TRUE(rig.gpu.free(p).ok());
    freed = true;
  });
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(freed);
  store(rig.host, 1);
  releaser.join();
}

TEST(FakeGpu, ReleasingARegionDoesNotWait) {
  Rig rig;
  const Region r = value(rig.gpu.alloc_shareable(0, 64));
  struct Args {
    Rig* rig;
    void* at;
  } args{&rig, r.data};
  const Kernel late = kernel<Args>("late", [](const Args& a, int, int) {
    eventually([&] { return load(a.rig->host) == 1; });
    store(a.at, 8);  // the memory stays mapped until this store has run
  });
  OK(rig.gpu.launch(late, {}, &args, rig.stream));
  OK(rig.gpu.free_region(r));
  EXPECT_EQ(value(rig.gpu.pointer(r.data)).kind, MemoryKind::host);
  store(rig.host, 1);
  OK(rig.gpu.synchronize(rig.stream));
  EXPECT_EQ(rig.gpu.live().allocations, 2) << "those of the rig";
}

TEST(FakeGpu, ImportsAndExportsAreChecked) {
  FakeGpu gpu({.devices = 2, .ipc = false});
  const Region r = value(gpu.alloc_shareable(0, 64 << 10));
  const Fd fd = value(gpu.export_fd(r));
  EXPECT_THAT(gpu.import_fd(0, fd, r.bytes + 1), Fails(Reason::invalid, "expected"));
  EXPECT_THAT(gpu.import_fd(0, Fd(), 1), Fails(Reason::invalid, "no usable descriptor"));
  const Fd other(memfd_create("other", MFD_CLOEXEC));
  EXPECT_THAT(gpu.import_fd(0, other, r.bytes), Fails(Reason::invalid, "not one of"));
  const Region again = value(gpu.import_fd(1, fd, r.bytes));
  static_cast<char*>(r.data)[5] = 'x';
  EXPECT_EQ(static_cast<char*>(again.data)[5], 'x');
  EXPECT_EQ(value(gpu.pointer(again.data)).device, 1);
  EXPECT_THAT(gpu.export_fd(again), Fails(Reason::invalid, "imported region"));
  OK(gpu.free_region(r));
  EXPECT_EQ(static_cast<char*>(again.data)[5], 'x') << "an import outlives what it maps";
  OK(gpu.free_region(again));

  void* p = value(gpu.alloc(0, 8));
  EXPECT_THAT(gpu.ipc_export(p), Fails(Reason::unsupported, "IPC"));
  EXPECT_THAT(gpu.ipc_open(0, {}), Fails(Reason::unsupported, "IPC"));
  OK(gpu.free(p));
  EXPECT_THAT(FakeGpu({.shareable_memory = false}).alloc_shareable(0, 8),
              Fails(Reason::unsupported, "shareable"));
}

TEST(FakeGpu, IpcHandleNeedsABaseAddressAndAnotherProcess) {
  FakeGpu gpu;
  auto* p = static_cast<std::byte*>(value(gpu.alloc(0, 1000)));
  EXPECT_THAT(gpu.ipc_export(p + 8), Fails(Reason::invalid, "inside"));
  const IpcHandle handle = value(gpu.ipc_export(p));
  EXPECT_THAT(gpu.ipc_open(0, handle), Fails(Reason::invalid, "process that exported"));
  EXPECT_THAT(gpu.ipc_open(0, {}), Fails(Reason::invalid, "not an IPC handle"));
  OK(gpu.free(p));
  EXPECT_THAT(gpu.ipc_export(p), Fails(Reason::invalid, "released already"));
  const Region r = value(gpu.alloc_shareable(0, 8));
  EXPECT_THAT(gpu.ipc_export(r.data), Fails(Reason::unsupported, "no IPC handle"));
  OK(gpu.free_region(r));
}

TEST(FakeGpu, RegisteredMemoryHasAnAddressForDevices) {
  Rig rig;
  const auto segment = value(SharedSegment::create(64 << 10, "test"));
  auto* host = segment->data() + 100;  // in the middle of a page
  auto* seen = static_cast<std::byte*>(value(rig.gpu.register_host(host, 8192)));
#if !defined(__SANITIZE_THREAD__)
  EXPECT_NE(seen, host);
  EXPECT_THAT(rig.enqueue(write(host, 1)), Fails(Reason::invalid, "not an address that devices know"));
#endif
  EXPECT_EQ(value(rig.gpu.pointer(host)).kind, MemoryKind::pinned);
  EXPECT_EQ(value(rig.gpu.pointer(seen)).kind, MemoryKind::pinned);
  OK(rig.enqueue(write(seen + 4, 77)));
  OK(rig.gpu.synchronize(rig.stream));
  EXPECT_EQ(load(host + 4), 77u);
  EXPECT_THAT(rig.gpu.register_host(host + 8, 8), Fails(Reason::invalid, "already"));
  EXPECT_THAT(rig.gpu.register_host(host - 50, 8192), Fails(Reason::invalid, "already"));
  EXPECT_THAT(rig.gpu.unregister_host(host + 8), Fails(Reason::invalid, "inside"));
  OK(rig.gpu.unregister_host(host));
  EXPECT_THAT(rig.gpu.unregister_host(host), Fails(Reason::invalid, "released already"));
  EXPECT_THAT(rig.enqueue(write(seen + 4, 1)), Fails(Reason::invalid, ""));
}

TEST(FakeGpu, PrivateMemoryCanBeRegisteredToo) {
  Rig rig;
  std::array<std::uint32_t, 4> mine{};
  EXPECT_THAT(rig.enqueue(write(mine.data(), 1)), Fails(Reason::invalid, "not an address that devices know"));
  void* seen = value(rig.gpu.register_host(mine.data(), sizeof mine));
  OK(rig.enqueue(write(seen, 5)));
  OK(rig.gpu.synchronize(rig.stream));
  EXPECT_EQ(load(mine.data()), 5u);
  OK(rig.gpu.unregister_host(mine.data()));
}

TEST(FakeGpu, LiveResourcesAreCounted) {
  FakeGpu gpu;
  const FakeLive nothing;
  EXPECT_EQ(gpu.live(), nothing);
  void* a = value(gpu.alloc(0, 8));
  void* b = value(gpu.alloc_pinned(8));
  const Region r = value(gpu.alloc_shareable(0, 8));
  const Region i = value(gpu.import_fd(0, value(gpu.export_fd(r)), r.bytes));
  std::array<int, 2> mine{};
  value(gpu.register_host(mine.data(), sizeof mine));
  const Stream s = value(gpu.create_stream(0, 0));
  const Event e = value(gpu.create_event(0, true));
  OK(gpu.begin_capture(s));
  const Graph g = value(gpu.end_capture(s));
  EXPECT_EQ(gpu.live(), (FakeLive{3, 1, 1, 1, 1, 1, 0}));
  OK(gpu.free(a));
  OK(gpu.free_pinned(b));
  OK(gpu.free_region(i));
  OK(gpu.free_region(r));
  OK(gpu.unregister_host(mine.data()));
  OK(gpu.destroy_stream(s));
  OK(gpu.destroy_event(e));
  OK(gpu.destroy_graph(g));
  EXPECT_EQ(gpu.live(), nothing);
}

TEST(ChosenGpu, IsTheInstalledOne) {
  FakeGpu fake;
  install(&fake);
  EXPECT_EQ(&gpu(), &fake);
  install(nullptr);  // FakeGpuProcesses tests what gpu() returns then
}

TEST(ChosenGpu, WithoutDevicesCallsFailWithTheReason) {
  const auto none = no_gpu("the reason");
  EXPECT_EQ(none->devices(), 0);
  EXPECT_STREQ(none->name(), "none");
  EXPECT_EQ(none->version(), "the reason");
  EXPECT_THAT(none->alloc(0, 8), Fails(Reason::unsupported, "the reason"));
  EXPECT_THAT(none->synchronize(Stream()), Fails(Reason::unsupported, "the reason"));
  EXPECT_FALSE(none->peer_access(0, 0));
}

}  // namespace
}  // namespace ouro::gpu::test
