// The bodies of the fused and hop kernels with many lanes in shuffled order, on the cases of one lane: checks
// which elements each lane takes, and what it reads after others have written.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "kernels/gpu/collect_body.h"
#include "tests/kernels/gpu_gather_cases.h"
#include "tests/kernels/gpu_hop_cases.h"
#include "tests/kernels/lanes.h"

namespace ouro::gpu {
namespace {

using Body = void (*)(const void* args, const LaneBlock&);
template <class Args, void (*kBody)(const Args&, const LaneBlock&)>
void entry(const void* args, const LaneBlock& at) {
  kBody(*static_cast<const Args*>(args), at);
}
/// The body of each kernel of collect_kernels(), by name.
const std::map<std::string, Body>& bodies() {
  static const std::map<std::string, Body> all = [] {
    std::map<std::string, Body> m = {{"fused_move", entry<FusedArgs, collect::fused_move<LaneBlock>>},
                                     {"fused_generic", entry<FusedArgs, collect::fused_generic<LaneBlock>>},
                                     {"hop_move", entry<HopArgs, collect::hop_move<LaneBlock>>},
                                     {"hop_generic", entry<HopArgs, collect::hop_generic<LaneBlock>>},
                                     {"gather_runs", entry<GatherArgs, collect::gather_runs<LaneBlock>>}};
#define OURO_X(t, op)                                                                    \
  {                                                                                      \
    using R = arith::ReductionFor<DType::t, OpKind::op>;                                 \
    m["fused_" #t "_" #op "_2"] = entry<FusedArgs, collect::fused_hot<R, 2, LaneBlock>>; \
    m["fused_" #t "_" #op "_4"] = entry<FusedArgs, collect::fused_hot<R, 4, LaneBlock>>; \
    m["fused_" #t "_" #op "_8"] = entry<FusedArgs, collect::fused_hot<R, 8, LaneBlock>>; \
    m["fused_" #t "_" #op "_n"] = entry<FusedArgs, collect::fused_hot<R, 0, LaneBlock>>; \
    m["hop_" #t "_" #op] = entry<HopArgs, collect::hop_hot<R, LaneBlock>>;               \
  }
    OURO_HOT_REDUCTIONS(OURO_X)
#undef OURO_X
    return m;
  }();
  return all;
}

class LaneRunner : public Runner {
 public:
  LaneRunner() : memory_(static_cast<std::byte*>(std::aligned_alloc(64, kImageBytes))) {}
  std::byte* base() override { return memory_.get(); }
  void run(const Kernel& kernel, Shape shape, const void* args, Bytes& image) override {
    const Body body = bodies().at(kernel.name);
    std::memcpy(base(), image.data(), image.size());
    const int threads = kLanes[turn_++ % std::size(kLanes)];
    std::vector<int> blocks(static_cast<std::size_t>(shape.blocks));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    for (const int b : blocks)
      run_lanes(threads, b, shape.blocks, random_, [&](const LaneBlock& at) { body(args, at); });
    std::memcpy(image.data(), base(), image.size());
  }
  int multiprocessors() const override { return 2; }
  std::vector<std::size_t> sizes() const override { return {7, 261}; }

 private:
  static constexpr int kLanes[] = {2, 7, 32, 5, 64, 3, 17};
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::mt19937_64 random_{7};
  std::size_t turn_ = 0;
};

/// One block of lanes that meet at barriers.
template <class Body>
void run_fibers(int lanes, int block, int blocks, const Body& body) {
  Fibers fibers(static_cast<std::uint64_t>(lanes + block));
  fibers.run(lanes, [&](int lane) { body(FiberBlock{&fibers, lane, lanes, block, blocks}); });
}

class GpuCollectLanes : public testing::Test {
 protected:
  LaneRunner runner;
};

TEST_F(GpuCollectLanes, AllReduceEqualsTheHostLoops) { every_reduction(runner, Collective::all_reduce); }
TEST_F(GpuCollectLanes, ReduceScatterEqualsTheHostLoops) {
  every_reduction(runner, Collective::reduce_scatter);
}
TEST_F(GpuCollectLanes, BroadcastEqualsTheHostLoops) { every_movement(runner, Collective::broadcast); }
TEST_F(GpuCollectLanes, AllGatherEqualsTheHostLoops) { every_movement(runner, Collective::all_gather); }
TEST_F(GpuCollectLanes, AllToAllEqualsTheHostLoops) { every_movement(runner, Collective::all_to_all); }
TEST_F(GpuCollectLanes, UnevenReduceScatterEqualsTheHostLoops) {
  every_uneven(runner, Collective::reduce_scatter);
}
TEST_F(GpuCollectLanes, UnevenAllToAllEqualsTheHostLoops) { every_uneven_pair(runner); }
TEST_F(GpuCollectLanes, ManyRanksAndMissingOutputsEqualTheHostLoops) { many_ranks(runner); }
TEST_F(GpuCollectLanes, LargeCountsEqualTheHostLoops) { large_counts(runner, 20011); }
TEST_F(GpuCollectLanes, HopsEqualTheHostLoops) { every_hop(runner); }
TEST_F(GpuCollectLanes, PartsOfAMessageEqualTheHostLoops) { every_gather(runner); }

/// Each lane polls words of its own, and one of them ends the launch for all.
TEST_F(GpuCollectLanes, LanesMeetOtherRanksAndStopAtTheDeadline) {
  constexpr std::uint32_t kNumber = 7;
  constexpr int kWords = 5, kStride = 4;
  for (const int lanes : {1, 2, 3, 8, 32})
    for (const bool late : {false, true}) {
      std::uint32_t come[kWords * kStride] = {}, arrived = 0, finished = 0, ended = 0, stop = 0, missed = 0;
      for (int w = 0; w < kWords; ++w)
        come[w * kStride] = w == 1 ? 0 : kNumber + static_cast<std::uint32_t>(w % 2);
      MeetArgs a;
      a.arrived = {&arrived, kNumber};
      a.awaited = come, a.stride = kStride, a.words = kWords, a.skip = late ? -1 : 1;
      a.number = kNumber, a.deadline_ns = late ? 1 : UINT64_MAX;
      a.stop = &stop, a.late = &missed;
      a.end = {.blocks = nullptr, .finished = {&finished, kNumber}, .ended = {&ended, kNumber}};
      run_fibers(lanes, 0, 1, [&](const FiberBlock& at) { collect::meet(a, at); });
      EXPECT_EQ(arrived, kNumber);
      EXPECT_EQ(ended, kNumber);
      EXPECT_EQ(finished, late ? 0 : kNumber) << lanes << " lanes";
      EXPECT_EQ(stop, late ? 1u : 0u) << lanes << " lanes";
      EXPECT_EQ(missed, late ? 1u : 0u) << lanes << " lanes";
    }
}

/// A sum by several blocks of lanes, the last of which writes the words once all have ended.
TEST_F(GpuCollectLanes, LastBlockEndsTheLaunch) {
  std::vector<float> in(900, 1), out(900);
  std::uint32_t blocks = 0, finished = 0, ended = 0;
  FusedArgs a;
  a.collective = Collective::all_reduce, a.dtype = DType::f32, a.count = in.size(), a.ranks = 2;
  a.in[0] = a.in[1] = reinterpret_cast<const std::byte*>(in.data());
  a.out[0] = reinterpret_cast<std::byte*>(out.data());
  a.end = {.blocks = &blocks, .finished = {&finished, 1}, .ended = {&ended, 1}};
  for (int b = 0; b < 3; ++b) {
    EXPECT_EQ(ended, 0u) << "block " << b;
    run_fibers(32, b, 3, [&](const FiberBlock& at) {
      using Sum = arith::ReductionFor<DType::f32, OpKind::sum>;
      collect::fused_launch<FiberBlock, collect::fused_hot<Sum, 2, FiberBlock>>(a, at);
    });
  }
  EXPECT_EQ(ended, 1u);
  EXPECT_EQ(finished, 1u);
  EXPECT_EQ(blocks, 0u);
  for (const float x : out) ASSERT_EQ(x, 2.0f);
}

/// Every kernel is tested with lanes; "meet", which has a barrier, by a test of its own.
TEST_F(GpuCollectLanes, EveryKernelIsRunWithLanes) {
  for (const Kernel* k : collect_kernels())
    EXPECT_TRUE(bodies().contains(k->name) || k == meet().kernel) << k->name;
  EXPECT_EQ(bodies().size() + 1, collect_kernels().size());
}

}  // namespace
}  // namespace ouro::gpu
