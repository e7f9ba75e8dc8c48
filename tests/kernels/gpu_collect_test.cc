// The bodies of the fused and hop kernels, run by host threads, against the host loops, bit for bit.
#include "kernels/gpu/collect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "tests/kernels/gpu_collect_cases.h"
#include "tests/kernels/gpu_gather_cases.h"
#include "tests/kernels/gpu_hop_cases.h"

namespace ouro::gpu {
namespace {

class HostRunner : public Runner {
 public:
  HostRunner() : memory_(static_cast<std::byte*>(std::aligned_alloc(64, kImageBytes))) {}
  std::byte* base() override { return memory_.get(); }
  void run(const Kernel& kernel, Shape shape, const void* args, Bytes& image) override {
    std::memcpy(base(), image.data(), image.size());
    for (int block = shape.blocks - 1; block >= 0; --block) kernel.host(args, block, shape.blocks);
    std::memcpy(image.data(), base(), image.size());
  }
  int multiprocessors() const override { return 4; }
  std::vector<std::size_t> sizes() const override { return {0, 1, 3, 17, 157, 1023}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> memory_;
};

class GpuCollect : public testing::Test {
 protected:
  HostRunner runner;
};

TEST_F(GpuCollect, AllReduceEqualsTheHostLoops) { every_reduction(runner, Collective::all_reduce); }
TEST_F(GpuCollect, ReduceEqualsTheHostLoops) { every_reduction(runner, Collective::reduce); }
TEST_F(GpuCollect, ReduceScatterEqualsTheHostLoops) { every_reduction(runner, Collective::reduce_scatter); }
TEST_F(GpuCollect, BroadcastEqualsTheHostLoops) { every_movement(runner, Collective::broadcast); }
TEST_F(GpuCollect, AllGatherEqualsTheHostLoops) { every_movement(runner, Collective::all_gather); }
TEST_F(GpuCollect, GatherEqualsTheHostLoops) { every_movement(runner, Collective::gather); }
TEST_F(GpuCollect, ScatterEqualsTheHostLoops) { every_movement(runner, Collective::scatter); }
TEST_F(GpuCollect, AllToAllEqualsTheHostLoops) { every_movement(runner, Collective::all_to_all); }
TEST_F(GpuCollect, UnevenReduceScatterEqualsTheHostLoops) {
  every_uneven(runner, Collective::reduce_scatter);
}
TEST_F(GpuCollect, UnevenAllGatherEqualsTheHostLoops) { every_uneven(runner, Collective::all_gather); }
TEST_F(GpuCollect, UnevenGatherEqualsTheHostLoops) { every_uneven(runner, Collective::gather); }
TEST_F(GpuCollect, UnevenScatterEqualsTheHostLoops) { every_uneven(runner, Collective::scatter); }
TEST_F(GpuCollect, UnevenAllToAllEqualsTheHostLoops) { every_uneven_pair(runner); }
TEST_F(GpuCollect, ManyRanksAndMissingOutputsEqualTheHostLoops) { many_ranks(runner); }
TEST_F(GpuCollect, LargeCountsEqualTheHostLoops) { large_counts(runner, 20011); }
TEST_F(GpuCollect, HopsEqualTheHostLoops) { every_hop(runner); }
TEST_F(GpuCollect, PartsOfAMessageEqualTheHostLoops) { every_gather(runner); }
TEST_F(GpuCollect, HopWeightsEqualTheHostLoops) { weighted_hops(runner); }

TEST_F(GpuCollect, NoKernelIsLaunchedWithoutElementsOrDestination) {
  FusedArgs args;
  args.collective = Collective::barrier;
  args.ranks = 4;
  EXPECT_EQ(fused(args, 132).kernel, nullptr);
  args.collective = Collective::all_reduce;
  EXPECT_EQ(fused(args, 132).kernel, nullptr) << "no elements";
  HopArgs step;
  step.mine = runner.base();
  step.store = runner.base() + 64;
  EXPECT_EQ(hop(step, 132).kernel, nullptr) << "no elements";
  step.count = 1;
  EXPECT_NE(hop(step, 132).kernel, nullptr);
  step.store = nullptr;
  EXPECT_EQ(hop(step, 132).kernel, nullptr) << "no destination";
}

TEST_F(GpuCollect, LaunchShapesFollowTheSize) {
  FusedArgs args;
  args.collective = Collective::all_reduce;
  args.ranks = 2;
  for (int r = 0; r < 2; ++r) {
    args.in[r] = runner.base() + 1024 * r;
    args.out[r] = runner.base() + 4096 + 1024 * r;
  }
  args.count = 1;
  const Launch small = fused(args, 132);
  EXPECT_EQ(small.shape.blocks, 1);
  args.count = std::uint64_t{1} << 33;
  const Launch large = fused(args, 132);
  EXPECT_GE(large.shape.blocks, 2 * 132);
  EXPECT_LE(large.shape.blocks, 4 * 132);
  EXPECT_EQ(large.kernel, small.kernel);
  args.op = OpKind::prod;
  EXPECT_NE(fused(args, 132).kernel, large.kernel);
}

TEST(GpuKernels, HaveUniqueNamesAndAHostBody) {
  std::vector<std::string> names;
  for (const Kernel* k : all_kernels()) {
    EXPECT_NE(k->host, nullptr) << k->name;
    EXPECT_GT(k->arg_bytes, 0u) << k->name;
    names.emplace_back(k->name);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

}  // namespace
}  // namespace ouro::gpu
