// How ranks that are processes reach each other's device memory, whatever the device can share: descriptors,
// legacy handles, stand-ins, or the host. On fake devices that are told what they can do.
#include <gtest/gtest.h>

#include "kernels/device/fake/fake_gpu.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

struct Kind {
  const char* name;
  gpu::FakeOptions options;
  bool device_each = false;  ///< rank r has GPU r
  const char* expected;      ///< how explain() begins
};
std::ostream& operator<<(std::ostream& os, const Kind& k) { return os << k.name; }

constexpr std::size_t kCount = 3001;

/// All-reduce of ones, and a gather of ranks, in place and not; freeing and allocating in between.
void exchange(Context& c, From from) {
  Group& g = c.world();
  for (int turn = 0; turn < 3; ++turn) {
    DeviceArena in, out;
    ASSERT_TRUE(in.make(c, 4 * kCount, from).ok());
    ASSERT_TRUE(out.make(c, 4 * kCount * 3, from).ok());
    std::vector<std::byte> bytes(4 * kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::int32_t v = g.rank() + turn;
      std::memcpy(&bytes[4 * i], &v, 4);
    }
    ASSERT_TRUE(in.write(bytes).ok());
    const View mine(in.data(), kCount, DType::i32, c.device());
    const View all(out.data(), 3 * kCount, DType::i32, c.device());
    Status s = all_gather(g, mine, all);
    ASSERT_TRUE(s.ok()) << s.message();
    s = all_reduce(g, mine, mine);
    ASSERT_TRUE(s.ok()) << s.message();
    auto sums = in.read(), ranks = out.read();
    ASSERT_TRUE(sums.ok() && ranks.ok());
    for (std::size_t i = 0; i < 3 * kCount; ++i) {
      std::int32_t sum, rank;
      std::memcpy(&rank, &(*ranks)[4 * i], 4);
      ASSERT_EQ(rank, static_cast<std::int32_t>(i / kCount) + turn) << "element " << i << " turn " << turn;
      if (i >= kCount) continue;
      std::memcpy(&sum, &(*sums)[4 * i], 4);
      ASSERT_EQ(sum, 3 + 3 * turn) << "element " << i << " turn " << turn;
    }
    ASSERT_TRUE(barrier(g).ok());
  }
}

class Sharing : public testing::TestWithParam<Kind> {};

TEST_P(Sharing, ProcessesReachEachOther) {
  OURO_NEEDS_PROCESSES();
  if (!std::getenv("OURO_FAKE_GPUS")) GTEST_SKIP() << "SKIP (only fake devices can be told what they can do)";
  const Kind& kind = GetParam();
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(3, [&](int rank, Board&) {
    gpu::install(new gpu::FakeGpu(kind.options));
    InitOptions o = options(rank, 3, id);
    if (kind.device_each) o.gpu = rank;
    auto c = Context::create(o);
    ASSERT_TRUE(c.ok()) << c.status().message();
    auto why = c->world().explain(Collective::all_reduce, kCount, DType::i32, ReduceOp::sum,
                                  Numerics::inherit, c->device());
    ASSERT_TRUE(why.ok()) << why.status().message();
    EXPECT_EQ(why->rfind(kind.expected, 0), 0u) << *why;
    exchange(*c, From::ouro);
    exchange(*c, From::driver);
    EXPECT_TRUE(c->close().ok());
  });
  ranks.join();
}

const Kind kKinds[] = {
    {"descriptors", {.devices = 1}, false, "leader"},
    {"legacy_handles", {.devices = 1, .shareable_memory = false}, false, "leader"},
    {"stand_ins", {.devices = 1, .ipc = false}, false, "leader"},
    {"devices_that_reach", {.devices = 3, .multiprocessors = 16}, true, "resident"},
    {"devices_with_legacy_handles",
     {.devices = 3, .multiprocessors = 16, .shareable_memory = false},
     true,
     "resident"},
    {"few_multiprocessors", {.devices = 3, .multiprocessors = 1}, true, "stream-ordered"},
    {"devices_apart", {.devices = 3, .peer = [](int, int) { return false; }}, true, "staged"},
};
INSTANTIATE_TEST_SUITE_P(All, Sharing, testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Sharing, WhatCannotBeSharedSaysSo) {
  OURO_NEEDS_PROCESSES();
  if (!std::getenv("OURO_FAKE_GPUS")) GTEST_SKIP() << "SKIP (only fake devices can be told what they can do)";
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(2, [&](int rank, Board&) {
    gpu::install(new gpu::FakeGpu({.shareable_memory = false, .ipc = false}));
    auto c = Context::create(options(rank, 2, id));
    ASSERT_TRUE(c.ok()) << c.status().message();
    DeviceArena arena;
    ASSERT_TRUE(arena.make(*c, 400, From::driver).ok());
    const View v(arena.data(), 100, DType::f32, c->device());
    const Status s = all_reduce(c->world(), v, v);
    EXPECT_THAT(s, Fails(Reason::unsupported));
    EXPECT_TRUE(has(s.message(), "cannot be shared between processes")) << s.message();
    EXPECT_TRUE(c->world().status().ok());  // it does not stick
    EXPECT_TRUE(barrier(c->world()).ok());
  });
  ranks.join();
}

}  // namespace
}  // namespace ouro::test
