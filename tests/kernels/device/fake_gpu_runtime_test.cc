// The fake GPU: features of CUDA's runtime beyond Gpu: default streams, blocking streams,
// stream-ordered memory.
#include "tests/kernels/device/fake_gpu_harness.h"

namespace ouro::gpu::test {
namespace {

void* handle(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

TEST(FakeGpuRuntime, HandlesAreAlignedTo16Bytes) {
  Rig rig;
  const Stream s = value(rig.gpu.create_stream(0, 0));
  const Event e = value(rig.gpu.create_event(0, false));
  for (const void* handle : {s.handle, e.handle})
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(handle) % 16, 0u);
  EXPECT_NE(s.handle, value(rig.gpu.create_stream(0, 0)).handle);
  OK(rig.gpu.destroy_event(e));
}

TEST(FakeGpuRuntime, LegacyAndBlockingStreamsWaitForEachOther) {
  Rig rig;
  const Stream blocking = value(rig.gpu.create_blocking_stream(0, 0)), legacy{0, nullptr}, same{0, handle(1)};
  for (const Stream& end : {legacy, same}) {
    std::memset(rig.host, 0, 64);
    OK(rig.enqueue(at_least(rig.host, 1), blocking));
    OK(rig.enqueue(write(rig.host + 1, 1), end));         // waits for the blocking stream
    OK(rig.enqueue(write(rig.host + 2, 1), blocking));    // waits for the legacy stream
    OK(rig.enqueue(write(rig.host + 3, 1), rig.stream));  // waits for neither
    OK(rig.gpu.synchronize(rig.stream));
    EXPECT_EQ(load(rig.host + 3), 1u);
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(load(rig.host + 1), 0u);
    store(rig.host, 1);
    OK(rig.gpu.synchronize(end));
    EXPECT_EQ(load(rig.host + 1), 1u);
    OK(rig.gpu.synchronize(blocking));
    EXPECT_EQ(load(rig.host + 2), 1u);
  }
  OK(rig.gpu.begin_capture(blocking));
  EXPECT_THAT(rig.enqueue(write(rig.host, 1), legacy), Fails(Reason::invalid, "being captured"));
  EXPECT_THAT(rig.gpu.end_capture(blocking), Fails(Reason::invalid, "broken"));
}

TEST(FakeGpuRuntime, EachThreadHasADefaultStreamOfItsOwn) {
  Rig rig;
  const Stream mine{0, handle(2)};
  OK(rig.enqueue(at_least(rig.host, 1), mine));
  std::thread([&] {
    OK(rig.enqueue(write(rig.host, 1), mine));  // is not behind the other thread's wait
    OK(rig.gpu.synchronize(mine));
  }).join();
  OK(rig.gpu.synchronize(mine));
  EXPECT_THAT(rig.gpu.destroy_stream(mine), Fails(Reason::invalid, "of a thread"));
}

TEST(FakeGpuRuntime, MemoryIsFreedInStreamOrder) {
  Rig rig;
  const std::size_t before = value(rig.gpu.memory_left(0));
  void* const p = value(rig.gpu.alloc(0, 1 << 20));
  OK(rig.enqueue(at_least(rig.host, 1)));
  OK(rig.gpu.set(p, 7, 1 << 20, rig.stream));
  OK(rig.gpu.free(p, rig.stream));
  EXPECT_EQ(value(rig.gpu.memory_left(0)), before - (1 << 20)) << "the stream has not come to it";
  store(rig.host, 1);
  OK(rig.gpu.synchronize(0));  // synchronises the device
  EXPECT_EQ(value(rig.gpu.memory_left(0)), before);
  EXPECT_THAT(rig.gpu.free(p, rig.stream), Fails(Reason::invalid, "released already"));
  OK(rig.gpu.begin_capture(rig.stream));
  EXPECT_THAT(rig.gpu.free(rig.words, rig.stream), Fails(Reason::unsupported, "capture"));
  EXPECT_THAT(rig.gpu.synchronize(0), Fails(Reason::invalid, "being captured"));
}

}  // namespace
}  // namespace ouro::gpu::test
