// Which path serves which call, for all kinds of GPUs: what is chosen, and the error of a forced path that
// cannot serve. No device is used.
#include "runtime/exec/gpu/gpu_path.h"
#include "runtime/exec/gpu/resident_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace ouro::rt {
namespace {

using flow::Algorithm;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

GpuTopology one_gpu(int ranks) { return {.ranks = ranks, .apart = ranks == 1, .channels = 8}; }
GpuTopology a_gpu_each(int ranks) { return {.ranks = ranks, .one = ranks == 1, .channels = 8}; }
GpuTopology unreachable(int ranks) { return {.ranks = ranks, .one = false, .reach = false, .channels = 8}; }
GpuTopology processes_on_one_gpu(int ranks) {
  return {.ranks = ranks, .concurrent = false, .apart = false, .channels = 8};
}

Operation call(Collective c, bool uneven = false, Numerics n = Numerics::fast) {
  Operation o;
  o.collective = c, o.uneven = uneven, o.numerics = n;
  return o;
}
Choice named(Algorithm a, bool staging) {
  Choice c;
  c.algorithm = a, c.staging = staging, c.forced = true;
  return c;
}
/// The chosen path, or the error.
std::string chosen(const GpuTopology& t, std::string_view forced, const Operation& o, const Choice& c = {}) {
  std::string why;
  const auto path = GpuPathChooser(t, forced).choose(o, c, &why);
  if (!path.ok()) {
    EXPECT_EQ(path.status().reason(), Reason::unsupported);
    return path.status().message();
  }
  EXPECT_EQ(why.rfind(name(*path), 0), 0u) << why;
  return std::string(name(*path));
}

const Operation kSum = call(Collective::all_reduce), kUneven = call(Collective::all_gather, true);

TEST(GpuPathChoice, FollowsTheGpusOfAllRanks) {
  EXPECT_EQ(chosen(one_gpu(1), "auto", kSum), "alone");
  EXPECT_EQ(chosen(one_gpu(4), "auto", kSum), "resident") << "small sums by packets";
  EXPECT_EQ(chosen(one_gpu(33), "auto", kSum), "resident");
  Operation large = kSum;
  large.in.count = large.out.count = (64 << 10) / size_of(kSum.in.dtype);
  EXPECT_EQ(chosen(one_gpu(4), "auto", large), "resident");
  ++large.in.count, ++large.out.count;
  EXPECT_EQ(chosen(one_gpu(4), "auto", large), "leader");
  EXPECT_EQ(chosen(one_gpu(32), "auto", large), "leader");
  EXPECT_EQ(chosen(one_gpu(33), "auto", large), "stream") << "resident kernels wait for ranks of one GPU";
  GpuTopology without_room = one_gpu(4);
  without_room.channels = 0;
  EXPECT_EQ(chosen(without_room, "auto", kSum), "leader");
  EXPECT_EQ(chosen(processes_on_one_gpu(4), "auto", kSum), "leader");
  EXPECT_EQ(chosen(a_gpu_each(4), "auto", kSum), "resident");
  for (const Collective c : {Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all})
    for (const Numerics n : {Numerics::fast, Numerics::canonical})
      EXPECT_EQ(chosen(a_gpu_each(4), "auto", call(c, true, n)), "resident");
  EXPECT_EQ(chosen(a_gpu_each(4), "auto", kUneven, named(Algorithm::ring, false)), "stream");
  EXPECT_EQ(chosen(unreachable(4), "auto", kSum), "staged");
  GpuTopology few = a_gpu_each(4);
  few.channels = 0;
  EXPECT_EQ(chosen(few, "auto", kSum), "stream");
  EXPECT_EQ(chosen(few, "auto", call(Collective::reduce_scatter, false, Numerics::canonical)), "staged");
  GpuTopology crowded = one_gpu(4);
  crowded.queues = false;

  EXPECT_EQ(chosen(crowded, "auto", kSum), "staged");
  for (const char* path : {"leader", "resident", "stream"})
    EXPECT_THAT(chosen(crowded, path, kSum), HasSubstr("CUDA_DEVICE_MAX_CONNECTIONS"));
  crowded.ranks = 1;
  EXPECT_EQ(chosen(crowded, "auto", kSum), "alone");
  GpuTopology lacking = one_gpu(4);
  lacking.without = 2;
  EXPECT_THAT(chosen(lacking, "auto", kSum), HasSubstr("rank 2 has no GPU"));
}

TEST(GpuPathChoice, ForcedPathServesOrNamesTheReasonAndOtherPaths) {
  for (const char* path : {"leader", "resident", "stream", "staged"})
    EXPECT_EQ(chosen(one_gpu(4), path, kSum), path);
  EXPECT_THAT(
      chosen(a_gpu_each(4), "leader", kSum),
      AllOf(HasSubstr("all_reduce on device memory: OURO_GPU_PATH=leader cannot serve this call"),
            HasSubstr("its ranks have different GPUs"), HasSubstr("these can: resident, stream, staged")));
  EXPECT_THAT(chosen(one_gpu(33), "leader", kSum), HasSubstr("at most 32 ranks; these can: resident"));
  const Operation pairs = call(Collective::all_to_all, true);
  EXPECT_EQ(chosen(one_gpu(8), "leader", pairs), "leader");
  EXPECT_THAT(chosen(one_gpu(9), "leader", pairs), HasSubstr("at most 8 ranks of an uneven all_to_all"));
  EXPECT_EQ(chosen(one_gpu(4), "resident", kUneven), "resident");
  EXPECT_THAT(chosen(one_gpu(4), "resident", kUneven, named(Algorithm::ring, false)),
              HasSubstr("by name its kernels carry out even blocks only; these can: copies, stream"));
  EXPECT_THAT(chosen(processes_on_one_gpu(4), "resident", kSum), HasSubstr("in different processes"));
  EXPECT_THAT(chosen(unreachable(4), "resident", kSum), HasSubstr("can map each other; these can: staged"));
  EXPECT_THAT(chosen(unreachable(4), "stream", kSum), HasSubstr("can map each other; these can: staged"));
  EXPECT_THAT(chosen(a_gpu_each(257), "stream", kSum), HasSubstr("at most 256 ranks"));
  EXPECT_THAT(chosen(one_gpu(4), "stream", call(Collective::reduce_scatter, false, Numerics::canonical)),
              HasSubstr("rank order"));
  GpuTopology few = a_gpu_each(4);
  few.channels = 0;
  EXPECT_THAT(chosen(few, "resident", kSum), HasSubstr("too few multiprocessors"));
}

/// Several hosts of equal size do their parts on their GPUs, if that is worthwhile and keeps the
/// numerical contract.
TEST(GpuPathChoice, EqualHostsTakeTheHierarchyFromItsThresholdOn) {
  GpuTopology hosts = unreachable(8);
  hosts.mates = 4;
  const auto of = [](Collective c, std::size_t floats, Numerics n = Numerics::fast) {
    Operation o = call(c, false, n);
    o.in.count = o.out.count = floats, o.in.dtype = o.out.dtype = DType::f32;
    return o;
  };
  constexpr std::size_t kEnough = kHierarchyFrom / sizeof(float);
  for (const Collective c : {Collective::all_reduce, Collective::all_gather, Collective::broadcast}) {
    EXPECT_EQ(chosen(hosts, "auto", of(c, kEnough)), "hierarchy");
    EXPECT_EQ(chosen(hosts, "auto", of(c, kEnough - 1)), "staged");
    EXPECT_EQ(chosen(hosts, "hierarchy", of(c, 1)), "hierarchy");
    EXPECT_EQ(chosen(unreachable(8), "auto", of(c, kEnough)), "staged");
  }
  EXPECT_EQ(chosen(hosts, "auto", of(Collective::reduce_scatter, kEnough / 8)), "hierarchy");
  EXPECT_EQ(chosen(hosts, "auto", of(Collective::all_to_all, kEnough)), "staged");
  EXPECT_EQ(chosen(hosts, "auto", of(Collective::all_reduce, kEnough, Numerics::canonical)), "staged");
  EXPECT_EQ(chosen(hosts, "auto", of(Collective::broadcast, kEnough, Numerics::canonical)), "hierarchy");
  EXPECT_EQ(chosen(hosts, "auto", of(Collective::all_reduce, kEnough), named(Algorithm::ring, false)),
            "staged");
  EXPECT_THAT(chosen(hosts, "hierarchy", of(Collective::all_reduce, 1, Numerics::canonical)),
              AllOf(HasSubstr("not in rank order"), HasSubstr("these can: staged")));
  Operation average = of(Collective::all_reduce, kEnough);
  average.op = ReduceOp::avg;
  EXPECT_EQ(chosen(hosts, "auto", average), "hierarchy");
  average.out.dtype = DType::i32;
  EXPECT_THAT(chosen(hosts, "hierarchy", average), HasSubstr("no element type holds"));
  EXPECT_THAT(chosen(unreachable(8), "hierarchy", of(Collective::broadcast, 1)), HasSubstr("several hosts"));
  // Blocks of many ranks are not cut into pieces, and an uncut operation needs as much memory on the device.
  hosts.ranks = 128;
  EXPECT_EQ(chosen(hosts, "auto", of(Collective::all_gather, 128 * 1000)), "hierarchy");
  EXPECT_EQ(chosen(hosts, "auto", of(Collective::all_gather, 128 * 1'000'000)), "staged");
  EXPECT_EQ(chosen(hosts, "auto", of(Collective::all_reduce, 128 * 1'000'000)), "hierarchy");
  hosts.ranks = 257;
  EXPECT_THAT(chosen(hosts, "hierarchy", of(Collective::broadcast, 1)), HasSubstr("at most 256 ranks"));
}

/// Large operations that only move data between GPUs of different ranks use copy engines.
TEST(GpuPathChoice, CopyEnginesMoveLargeOperations) {
  const auto chosen_of = [](const GpuTopology& t, std::string_view forced, Operation o, std::size_t bytes,
                            const Choice& c = {}) {
    o.out.count = bytes, o.out.dtype = DType::u8;
    const auto path = GpuPathChooser(t, forced, 1000).choose(o, c);
    return path.ok() ? std::string(name(*path)) : path.status().message();
  };
  for (const bool uneven : {false, true})
    EXPECT_EQ(chosen_of(a_gpu_each(4), "auto", call(Collective::all_gather, uneven), 1000), "copies");
  EXPECT_EQ(chosen_of(a_gpu_each(4), "auto", call(Collective::broadcast), 1000), "copies");
  EXPECT_EQ(chosen_of(a_gpu_each(4), "auto", call(Collective::broadcast), 999), "resident");
  EXPECT_EQ(chosen_of(a_gpu_each(4), "auto", kSum, 1000), "resident");
  EXPECT_EQ(chosen_of(one_gpu(4), "auto", call(Collective::broadcast), 1000), "leader");
  EXPECT_EQ(chosen_of(unreachable(4), "auto", call(Collective::broadcast), 1000), "staged");
  EXPECT_EQ(chosen_of(a_gpu_each(4), "copies", call(Collective::broadcast), 1), "copies");
  EXPECT_EQ(
      chosen_of(a_gpu_each(4), "auto", call(Collective::all_gather), 1000, named(Algorithm::ring, false)),
      "stream")
      << "what is named is carried out by kernels";
  EXPECT_EQ(
      chosen_of(a_gpu_each(4), "copies", call(Collective::all_gather), 1, named(Algorithm::ring, false)),
      "copies");
  EXPECT_THAT(
      chosen_of(a_gpu_each(4), "copies", call(Collective::broadcast), 1, named(Algorithm::tree, false)),
      HasSubstr(
          "the ring of all_gather and the chain of broadcast alone; these can: resident, stream, staged"));
  EXPECT_THAT(chosen_of(a_gpu_each(4), "copies", kSum, 1000),
              HasSubstr("all_gather and broadcast alone; these can: resident, stream, staged"));
  EXPECT_THAT(chosen_of(unreachable(4), "copies", call(Collective::broadcast), 1),
              HasSubstr("can map each other"));
}

/// A chunk count that a resident kernel cannot number excludes this path: another path is chosen, the same on
/// all ranks.
TEST(GpuPathChoice, ResidentPathIsExcludedByTooManyChunks) {
  Operation o = kSum;
  o.in.dtype = o.out.dtype = DType::bf16;
  for (const auto& [count, path] :
       {std::pair(std::uint64_t{1} << 34, "resident"),  // 32 GiB
        std::pair(std::uint64_t{1} << 40, "resident"), std::pair(std::uint64_t{1} << 58, "stream")}) {
    o.in.count = o.out.count = count;
    EXPECT_EQ(chosen(a_gpu_each(8), "auto", o), path) << count;
    gpu::ResidentArgs a;
    a.layout = *gpu::resident_layout(resident_sizes(8, 8));
    a.collective = Collective::all_reduce, a.algorithm = Algorithm::direct, a.dtype = DType::bf16;
    a.by_pointer = true, a.count = count, a.channels = 8, a.deadline_ns = 1;
    std::uint32_t word = 0;
    gpu::ResidentError error{};
    std::byte arena{};
    a.abort = &word, a.error = &error;
    std::fill_n(a.arena, 8, &arena);
    EXPECT_EQ(gpu::resident(a).ok(), path == std::string_view("resident")) << count;
  }
  EXPECT_THAT(chosen(a_gpu_each(8), "resident", o), HasSubstr("too large to be numbered in one launch"));
}

/// A group of one rank exchanges nothing: no path applies, and a setting of the job must not break its ranks'
/// groups of one.
TEST(GpuPathChoice, AGroupOfOneRankIsAloneWhateverIsForced) {
  for (const char* path : {"auto", "leader", "resident", "stream"})
    EXPECT_EQ(chosen(one_gpu(1), path, kUneven), "alone") << path;
  EXPECT_EQ(chosen(one_gpu(1), "staged", kSum), "staged");
}

TEST(GpuPathChoice, NamedAlgorithmSelectsAPathThatHasIt) {
  const Choice ring = named(Algorithm::ring, false), direct = named(Algorithm::direct, true),
               tree = named(Algorithm::tree, false);
  EXPECT_EQ(chosen(one_gpu(4), "auto", kSum, ring), "stream") << "the leader has no ring";
  EXPECT_EQ(chosen(a_gpu_each(4), "auto", kSum, ring), "stream");
  EXPECT_EQ(chosen(a_gpu_each(4), "auto", kSum, direct), "resident");
  EXPECT_EQ(chosen(one_gpu(4), "auto", kSum, direct), "staged")
      << "neither the leader nor a stream has staging buffers";
  EXPECT_EQ(chosen(unreachable(4), "auto", kSum, tree), "staged");
  EXPECT_EQ(chosen(one_gpu(4), "resident", kSum, direct), "resident");
  EXPECT_THAT(chosen(one_gpu(4), "leader", kSum, ring),
              AllOf(HasSubstr("no algorithm that has been named"), EndsWith("resident, stream, staged")));
  EXPECT_THAT(chosen(one_gpu(4), "stream", kSum, direct), HasSubstr("over links only"));
}

/// Operations through a switch run only if each rank has a GPU with multicast objects.
TEST(GpuPathChoice, SwitchIsUsedOnlyIfTheCallNamesIt) {
  const Choice nvls = named(Algorithm::nvls, true);
  float x = 0;
  Operation sum = call(Collective::all_reduce);
  sum.in = CView(&x, 1, DType::f32), sum.out = View(&x, 1, DType::f32);
  EXPECT_EQ(chosen(a_gpu_each(4), "auto", sum, nvls), "resident");
  EXPECT_EQ(chosen(a_gpu_each(4), "resident", sum, nvls), "resident");
  for (const char* path : {"leader", "copies", "stream", "staged"})
    EXPECT_THAT(chosen(a_gpu_each(4), path, sum, nvls), EndsWith("these can: resident")) << path;
  EXPECT_THAT(chosen(one_gpu(4), "auto", sum, nvls), HasSubstr("all_reduce by nvls: ranks share a GPU"));
  EXPECT_THAT(chosen(unreachable(4), "auto", sum, nvls), HasSubstr("not all ranks' GPUs can map each other"));
  GpuTopology without = a_gpu_each(4);
  without.multicast = false;
  EXPECT_THAT(chosen(without, "auto", sum, nvls), HasSubstr("has no multicast objects"));
  EXPECT_EQ(chosen(without, "auto", sum), "resident");
  sum.op = ReduceOp::prod;
  EXPECT_THAT(chosen(a_gpu_each(4), "auto", sum, nvls), HasSubstr("a switch has no such reduction"));
  EXPECT_THAT(chosen(a_gpu_each(4), "auto", kUneven, nvls), HasSubstr("even blocks only"));
}

/// Operations too large for packets go by pointer if possible, or by flows that fold in the same order.
TEST(ResidentAlgorithm, FollowsSize) {
  constexpr std::size_t kSmall = 64 << 10;
  const auto of = [](Collective c, std::size_t bytes) {
    const Operation o = call(c, false);
    return std::pair(resident_by_pointer(o, bytes), resident_algorithm(o, bytes));
  };
  EXPECT_EQ(of(Collective::all_reduce, kSmall), std::pair(false, Algorithm::oneshot));
  for (const Collective c : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                             Collective::broadcast, Collective::all_to_all}) {
    EXPECT_EQ(of(c, kSmall + 1), std::pair(true, Algorithm::direct)) << name(c);
    EXPECT_FALSE(of(c, kSmall).first) << name(c);
  }
  EXPECT_EQ(of(Collective::gather, kSmall + 1), std::pair(false, Algorithm::direct));
}

}  // namespace
}  // namespace ouro::rt
