// The fused and hop kernels on a device: runs the cases of gpu_collect_test.cc, which uses host threads,
// through gpu(). Without a device all are skipped; OURO_FAKE_GPUS=1 runs them on an emulated one.
#include <gtest/gtest.h>

#include <memory>

#include "kernels/device/gpu.h"
#include "tests/kernels/gpu_collect_cases.h"
#include "tests/kernels/gpu_gather_cases.h"
#include "tests/kernels/gpu_hop_cases.h"

namespace ouro::gpu {
namespace {

class DeviceRunner : public Runner {
 public:
  DeviceRunner(std::byte* base, Stream stream, int multiprocessors)
      : base_(base), stream_(stream), multiprocessors_(multiprocessors) {}
  std::byte* base() override { return base_; }
  void run(const Kernel& kernel, Shape shape, const void* args, Bytes& image) override {
    Status all = gpu().copy(base_, image.data(), image.size(), stream_);
    if (all.ok()) all = gpu().launch(kernel, shape, args, stream_);
    if (all.ok()) all = gpu().copy(image.data(), base_, image.size(), stream_);
    if (all.ok()) all = gpu().synchronize(stream_);
    ASSERT_TRUE(all.ok()) << kernel.name << ": " << all.message();
  }
  int multiprocessors() const override { return multiprocessors_; }
  std::vector<std::size_t> sizes() const override { return {0, 1, 17, 1023, 5003}; }

 private:
  std::byte* const base_;
  const Stream stream_;
  const int multiprocessors_;
};

class DeviceCollect : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
    const Result<Properties> properties = gpu().properties(0);
    ASSERT_TRUE(properties.ok()) << properties.status().message();
    const Result<void*> memory = gpu().alloc(0, kImageBytes);
    ASSERT_TRUE(memory.ok()) << memory.status().message();
    memory_ = *memory;
    const Result<Stream> stream = gpu().create_stream(0, 0);
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    stream_ = *stream;
    device_ = std::make_unique<DeviceRunner>(static_cast<std::byte*>(memory_), stream_,
                                             properties->multiprocessors);
  }
  void TearDown() override {
    if (device_ == nullptr) return;
    EXPECT_TRUE(gpu().destroy_stream(stream_).ok());
    EXPECT_TRUE(gpu().free(memory_).ok());
  }
  Runner& runner() { return *device_; }

 private:
  void* memory_ = nullptr;
  Stream stream_;
  std::unique_ptr<DeviceRunner> device_;
};

TEST_F(DeviceCollect, MatchesTheReferenceInAllReduce) { every_reduction(runner(), Collective::all_reduce); }
TEST_F(DeviceCollect, MatchesTheReferenceInReduce) { every_reduction(runner(), Collective::reduce); }
TEST_F(DeviceCollect, MatchesTheReferenceInReduceScatter) {
  every_reduction(runner(), Collective::reduce_scatter);
}
TEST_F(DeviceCollect, MatchesTheReferenceInBroadcast) { every_movement(runner(), Collective::broadcast); }
TEST_F(DeviceCollect, MatchesTheReferenceInAllGather) { every_movement(runner(), Collective::all_gather); }
TEST_F(DeviceCollect, MatchesTheReferenceInGather) { every_movement(runner(), Collective::gather); }
TEST_F(DeviceCollect, MatchesTheReferenceInScatter) { every_movement(runner(), Collective::scatter); }
TEST_F(DeviceCollect, MatchesTheReferenceInAllToAll) { every_movement(runner(), Collective::all_to_all); }
TEST_F(DeviceCollect, MatchesTheReferenceIfUneven) {
  for (Collective c :
       {Collective::reduce_scatter, Collective::all_gather, Collective::gather, Collective::scatter})
    every_uneven(runner(), c);
  every_uneven_pair(runner());
}
TEST_F(DeviceCollect, ManyRanksAndMissingOutputsMatchTheReference) { many_ranks(runner()); }
TEST_F(DeviceCollect, LargeCountsMatchTheReference) { large_counts(runner(), 200003); }
TEST_F(DeviceCollect, EveryHopShapeMatchesTheReference) { every_hop(runner()); }
TEST_F(DeviceCollect, PartsOfAMessageAreGatheredInOrder) { every_gather(runner()); }
TEST_F(DeviceCollect, MatchesTheReferenceWithHopWeights) { weighted_hops(runner()); }

TEST_F(DeviceCollect, KernelsLoadAndHotOnesDoNotSpill) {
  for (const Kernel* kernel : all_kernels()) {
    if (std::string(gpu().name()) == "cuda") {
      ASSERT_NE(kernel->device, nullptr) << kernel->name;
    }
    const Result<KernelInfo> info = gpu().info(*kernel, 0);
    ASSERT_TRUE(info.ok()) << kernel->name << ": " << info.status().message();
    const std::string name = kernel->name;
    const bool is_hot = name.starts_with("fused_") || name.starts_with("hop_");
    if (is_hot && !name.ends_with("_generic")) {
      EXPECT_EQ(info->local_bytes, 0u) << name;
    }
  }
}

}  // namespace
}  // namespace ouro::gpu
