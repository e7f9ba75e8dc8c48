// Tests of the resident kernels through a switch, over multicast objects of emulated devices, and of
// these objects.
#include "tests/kernels/gpu_resident_cases.h"

namespace ouro::gpu::resident_test {
namespace {

/// Through a switch: every supported type and reduction, sizes that end within a unit of 16 bytes and within
/// a round, buffers at any address, in place, over the state that other flows leave.
class ResidentSwitch : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ResidentSwitch, testing::Values(2, 3, 8),
                         [](const auto& p) { return std::to_string(p.param); });

TEST_P(ResidentSwitch, EveryReductionAndMovementGivesTheExpectedResult) {
  const int n = GetParam();
  constexpr int kChannels = 2;
  World w(n, kChannels, 2);
  w.with_switch();
  std::vector<std::unique_ptr<Operation>> operations;
  int turn = 0, reductions = 0;
  const auto add = [&](Collective of, DType t, OpKind op) {
    for (const std::size_t count : {0, 1, 7, 333, 3001}) {
      Case c{of, Algorithm::nvls, t, op, count};
      c.root = ++turn % n;
      c.shift = static_cast<std::size_t>(turn % 4);
      if (turn % 5 == 0) c.skew = static_cast<std::size_t>(turn % 3);
      if (turn % 2 == 0) c.aliasing = Aliasing::exact;
      operations.push_back(make(w, c, turn % 7 == 0 ? 1 : kChannels));
    }
    operations.push_back(
        make(w, {Collective::all_reduce, Algorithm::direct, t, OpKind::max, 500}, kChannels));
  };
  for (int t = 0; t < kDTypes; ++t) {
    const auto type = static_cast<DType>(t);
    for (const Collective of : {Collective::all_gather, Collective::broadcast}) add(of, type, OpKind::sum);
    for (int k = 0; k < kOps; ++k) {
      const auto op = static_cast<OpKind>(k);
      if (!has_switched(Collective::all_reduce, type, op)) continue;
      add(Collective::all_reduce, type, op);
      add(Collective::reduce_scatter, type, op);
      ++reductions;
    }
  }
  EXPECT_EQ(reductions, 3 + 4 + 1 + 4 * 3 + 8 * 3);
  run_and_check(w, operations, kChannels);
}

TEST(ResidentSwitch, UnsupportedOperationsAreRefused) {
  World w(2, 1, 2);
  ResidentArgs a;
  a.layout = w.layout;
  a.algorithm = Algorithm::nvls;
  a.deadline_ns = 1, a.abort = &w.at(0).abort, a.error = &w.at(0).error;
  for (int r = 0; r < 2; ++r) a.arena[r] = w.at(r).arena;
  const auto refused = [&](Collective of, DType t, OpKind op) {
    a.collective = of, a.dtype = t, a.op = op;
    const auto made = resident(a);
    return made.ok() ? std::string("served") : made.status().message();
  };
  EXPECT_NE(refused(Collective::all_reduce, DType::f32, OpKind::max).find("a switch has no max of float"),
            std::string::npos);
  EXPECT_NE(refused(Collective::all_reduce, DType::i8, OpKind::sum).find("a switch has no sum of int8"),
            std::string::npos);
  EXPECT_NE(refused(Collective::all_to_all, DType::f32, OpKind::sum).find("has no all_to_all by nvls"),
            std::string::npos);
  EXPECT_NE(refused(Collective::all_reduce, DType::f32, OpKind::sum).find("have bound to a multicast object"),
            std::string::npos);
}

/// A kernel faults if it reads memory that not all have bound, or that somebody unbinds; an ordinary access
/// faults too.
TEST(ResidentSwitchDeathTest, MemoryThatIsNotBoundFaults) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  FakeGpu gpus({.devices = 2, .multicast = true});
  install(&gpus);
  const Multicast made = gpus.multicast_create(0, 2, 1000).value();
  EXPECT_EQ(made.bytes % (128 << 10), 0u);
  Multicast part[2];
  const Fd fd = gpus.export_fd(made).value();
  for (int d = 0; d < 2; ++d) part[d] = gpus.multicast_import(d, fd, made.bytes).value();
  const auto bind = [&](int d, std::size_t bytes) {
    return gpus.multicast_bind(&part[d], gpus.alloc_shareable(d, bytes).value());
  };
  EXPECT_TRUE(gpus.multicast_join(part[0]).ok());
  EXPECT_NE(bind(0, made.bytes).message().find("after all devices have joined"), std::string::npos);
  EXPECT_NE(gpus.multicast_join(part[0]).message().find("has joined this multicast object before"),
            std::string::npos);
  EXPECT_TRUE(gpus.multicast_join(part[1]).ok());
  EXPECT_NE(bind(0, 64 << 10).message().find("granularity"), std::string::npos);
  EXPECT_TRUE(bind(0, made.bytes).ok());
  std::byte* members[64];
  EXPECT_DEATH(gpus.multicast_members(part[0].data, members), "one has not bound any");
  EXPECT_TRUE(bind(1, made.bytes).ok());
  EXPECT_EQ(gpus.multicast_members(part[0].data, members), 2);
  EXPECT_EQ(members[1], part[1].region.data);
  EXPECT_DEATH(*static_cast<volatile int*>(part[0].data) = 1, "");
  EXPECT_TRUE(gpus.free_multicast(part[1]).ok());
  EXPECT_DEATH(gpus.multicast_members(part[0].data, members), "one has unbound its own");
  install(nullptr);
}

}  // namespace
}  // namespace ouro::gpu::resident_test
