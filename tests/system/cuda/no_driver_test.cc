// CUDA's Gpu without a driver: no devices, and a typed error from every call, never a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "kernels/device/cuda/cuda_gpu.h"
#include "kernels/device/cuda/cuda_terms.h"

namespace ouro::gpu {
namespace {

using ::testing::HasSubstr;

/// Skips if CUDA works: these tests check its absence.
class NoDriver : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda(nullptr) != nullptr) GTEST_SKIP() << "there is a CUDA driver here";
  }
  Gpu& g = cuda_even_without_driver();
};

TEST_F(NoDriver, ReasonForNoDeviceIsGiven) {
  std::string why;
  EXPECT_EQ(cuda(&why), nullptr);
  EXPECT_THAT(why, HasSubstr("driver"));
  EXPECT_THAT(why, HasSubstr("CUDA runtime 1"));
  EXPECT_EQ(g.version(), why);
  EXPECT_STREQ(g.name(), "cuda");
  EXPECT_EQ(g.devices(), 0);
  EXPECT_FALSE(g.peer_access(0, 0));
  EXPECT_FALSE(g.peer_access(0, 1));
}

TEST_F(NoDriver, MaxConnectionsAreSetBeforeTheFirstCall) {
  ASSERT_NE(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), nullptr);
}

/// Cooperative grids may exclude each other, and wait until all of their blocks fit at the same time.
TEST(CudaTerms, SpinningKernelsHavePriorityAndAreNotCooperative) {
  const LaunchTerms spins = launch_terms({.name = "spins", .spins = true}, -5);
  ASSERT_EQ(spins.count, 1u);
  EXPECT_EQ(spins.attribute.id, cudaLaunchAttributePriority);
  EXPECT_EQ(spins.attribute.val.priority, -5);
  EXPECT_EQ(launch_terms({.name = "ends"}, -5).count, 0u);
}

TEST(CudaTerms, ShareableMemoryAllowsRdmaIfSupported) {
  const CUmemAllocationProp p = shareable_terms(3, true);
  EXPECT_EQ(p.allocFlags.gpuDirectRDMACapable, 1);
  EXPECT_EQ(p.location.id, 3);
  EXPECT_EQ(p.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(shareable_terms(3, false).allocFlags.gpuDirectRDMACapable, 0) << "the driver would refuse it";
}

TEST(CudaTerms, MemoryWithoutADescriptorIsNotShared) {
  CUmemAllocationProp p = shareable_terms(0, false);
  EXPECT_EQ(why_not_shareable(p), "");
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  EXPECT_THAT(why_not_shareable(p), HasSubstr("without a shareable handle type"));
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_THAT(why_not_shareable(p), HasSubstr("do not include CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"));
  p = shareable_terms(0, false);
  p.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  EXPECT_THAT(why_not_shareable(p), HasSubstr("not memory of a device"));
}

TEST_F(NoDriver, EveryCallIsUnsupported) {
  std::array<std::byte, 64> bytes = {};
  void* p = bytes.data();
  const Stream s{0, nullptr};
  const Region region{.device = 0, .data = p, .bytes = bytes.size()};
  const Kernel kernel{.name = "nothing", .device = p, .arg_bytes = 1};
  const MemOp op{MemOp::Kind::write, 1, p};
  const auto refused = [](const char* call, const Status& status) {
    EXPECT_EQ(status.reason(), Reason::unsupported) << call << ": " << status.message();
    EXPECT_THAT(status.message(), HasSubstr("driver")) << call;
  };
  const auto result = [&](const char* call, const auto& r) { refused(call, r.status()); };

  result("properties", g.properties(0));
  refused("enable_peer", g.enable_peer(0, 0));
  result("current_device", g.current_device());
  refused("set_current_device", g.set_current_device(0));
  result("alloc", g.alloc(0, 1));
  refused("free", g.free(p));
  result("alloc_shareable", g.alloc_shareable(0, 1));
  result("export_fd", g.export_fd(region));
  result("import_fd", g.import_fd(0, Fd(), 1));
  refused("free_region", g.free_region(region));
  MappedRange range{.device = 0, .data = p, .bytes = 64};
  result("retain_piece", g.retain_piece(p));
  refused("release_piece", g.release_piece(region));
  result("export_piece", g.export_piece(region));
  refused("open_to_peers", g.open_to_peers(region));
  result("reserve_range", g.reserve_range(0, 1));
  refused("map_piece", g.map_piece(&range, Fd(), 1));
  refused("free_range", g.free_range(range));
  result("ipc_export", g.ipc_export(p));
  result("ipc_open", g.ipc_open(0, IpcHandle{}));
  refused("ipc_close", g.ipc_close(0, p));
  result("pointer", g.pointer(p));
  result("alloc_pinned", g.alloc_pinned(1));
  refused("free_pinned", g.free_pinned(p));
  result("register_host", g.register_host(p, 1));
  refused("unregister_host", g.unregister_host(p));
  result("create_stream", g.create_stream(0, 0));
  refused("check_context", g.check_context(s));
  refused("destroy_stream", g.destroy_stream(s));
  refused("synchronize(Stream)", g.synchronize(s));
  result("query(Stream)", g.query(s));
  result("create_event", g.create_event(0, true));
  refused("destroy_event", g.destroy_event({}));
  refused("record", g.record({}, s));
  refused("wait", g.wait(s, {}));
  refused("synchronize(Event)", g.synchronize(Event{}));
  result("query(Event)", g.query(Event{}));
  result("elapsed_ms", g.elapsed_ms({}, {}));
  refused("copy", g.copy(p, p, 1, s));
  refused("set", g.set(p, 0, 1, s));
  refused("enqueue", g.enqueue({&op, 1}, s));
  refused("launch(Kernel)", g.launch(kernel, {}, p, s));
  refused("call_host", g.call_host(
                           s, [](void*) {}, nullptr));
  result("capturing", g.capturing(s));
  refused("begin_capture", g.begin_capture(s));
  result("end_capture", g.end_capture(s));
  refused("launch(Graph)", g.launch(Graph{}, s));
  refused("destroy_graph", g.destroy_graph({}));
  result("info", g.info(kernel, 0));
  refused("reserve_stack", g.reserve_stack(0, 1));
  result("resident_blocks", g.resident_blocks(kernel, 32, 0));
}

}  // namespace
}  // namespace ouro::gpu
