// Tests of the resident kernels: ranks and channels are host threads, each of them a block, that run the
// kernels' own bodies over the same slots, flags, staging buffers and packets as on a device.
#include <atomic>
#include <chrono>

#include "kernels/gpu/resident_channel.h"
#include "tests/kernels/gpu_resident_cases.h"

namespace ouro::gpu::resident_test {
namespace {

using std::chrono::steady_clock;

struct Pair {
  DType dtype;
  OpKind op;
};
constexpr Pair kPairs[] = {
    {DType::f32, OpKind::sum},       {DType::f16, OpKind::sum},       {DType::bf16, OpKind::sum},
    {DType::i32, OpKind::sum},       {DType::u8, OpKind::sum},        {DType::f64, OpKind::sum},
    {DType::f32, OpKind::avg},       {DType::f16, OpKind::avg},       {DType::i32, OpKind::avg},
    {DType::u8, OpKind::avg},        {DType::f64, OpKind::avg},       {DType::f32, OpKind::max},
    {DType::f16, OpKind::max},       {DType::i32, OpKind::max},       {DType::u8, OpKind::max},
    {DType::f64, OpKind::max},       {DType::f32, OpKind::premulsum}, {DType::f16, OpKind::premulsum},
    {DType::i32, OpKind::premulsum}, {DType::u8, OpKind::premulsum},  {DType::f64, OpKind::premulsum},
    {DType::bf16, OpKind::avg}};

class Resident : public testing::TestWithParam<int> {};

/// Operations of all kinds in sequence over the same state, without a pause between them.
TEST_P(Resident, EveryFlowGivesTheExpectedResult) {
  const int n = GetParam();
  // Alternates pairs and shapes, so that all combinations occur.
  std::size_t turn = static_cast<std::size_t>(n);
  for (int channels = 1; channels <= 3; ++channels) {
    World w(n, channels, channels == 2 ? 4 : 2);
    std::vector<std::unique_ptr<Operation>> operations;
    for (const std::size_t count : {0, 1, 3, 17, 1000, 6001})
      for (const Row& row : rows()) {
        for (const Aliasing aliasing : {Aliasing::separate, Aliasing::exact, Aliasing::first_block}) {
          const bool rooted_blocks =
              row.collective == Collective::gather || row.collective == Collective::scatter;
          if (aliasing == Aliasing::first_block && !rooted_blocks) continue;
          if (aliasing != Aliasing::separate && (!row.in_place || row.collective == Collective::barrier))
            continue;
          const Pair pair = kPairs[++turn % std::size(kPairs)];
          Case c{row.collective, row.algorithm, pair.dtype, pair.op, count};
          c.packets = row.packets;
          c.pointers = row.pointers, c.uneven = row.uneven ? 1 + static_cast<unsigned>(turn) : 0;
          c.root = static_cast<int>(turn / 2 % static_cast<std::size_t>(n));
          c.aliasing = aliasing;
          c.shift = turn % 4;
          if (turn % 3 == 0) c.declines = static_cast<int>(turn % static_cast<std::size_t>(n));
          // Every fifth case uses fewer channels than the arenas have.
          const int used = turn % 5 == 0 ? 1 : channels;
          if (c.packets && count * size_of(c.dtype) > resident_packet_limit(w.layout, used)) c.count = 512;
          operations.push_back(make(w, c, used));
        }
      }
    run_and_check(w, operations, channels);
    if (HasFatalFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, Resident, testing::Range(1, 10),
                         [](const auto& p) { return std::to_string(p.param); });

/// Buffers that are not aligned to their elements. Accesses that would fault on a device do so here.
TEST(ResidentTypes, UnalignedBuffersGiveTheExpectedResult) {
  constexpr int kRanks = 3, kChannels = 2;
  World w(kRanks, kChannels, 2);
  std::vector<std::unique_ptr<Operation>> operations;
  for (const Row& row : rows())
    for (const DType type : {DType::f16, DType::f32, DType::f64, DType::i32})
      for (const std::size_t skew : {1, 2, 4}) {
        if (skew >= size_of(type) || row.collective == Collective::barrier) continue;
        Case c{row.collective, row.algorithm, type, OpKind::sum, 333};
        c.packets = row.packets;
        c.pointers = row.pointers, c.uneven = row.uneven ? 1 : 0;
        c.skew = skew;
        operations.push_back(make(w, c, kChannels));
      }
  run_and_check(w, operations, kChannels);
}

/// Every existing reduction, by every flow that reduces.
TEST(ResidentTypes, EveryReductionGivesTheExpectedResult) {
  constexpr int kRanks = 3, kChannels = 2;
  World w(kRanks, kChannels, 2);
  std::vector<std::unique_ptr<Operation>> operations;
  for (const Row& row : rows()) {
    if (!reduces(row.collective)) continue;
    for (int t = 0; t < kDTypes; ++t)
      for (int op = 0; op < kOps; ++op) {
        Case c{row.collective, row.algorithm, static_cast<DType>(t), static_cast<OpKind>(op), 333};
        c.packets = row.packets;
        c.pointers = row.pointers, c.uneven = row.uneven ? 1 : 0;
        if (applies(c.op, c.dtype)) operations.push_back(make(w, c, kChannels));
      }
  }
  run_and_check(w, operations, kChannels);
}

/// The number of an operation by packets is a flag of 32 bits: it wraps around, and old packets
/// are refreshed.
TEST(ResidentPackets, OperationNumbersMayWrap) {
  constexpr int kRanks = 3;
  for (const std::uint64_t before : {(std::uint64_t{1} << 32) - 4, (std::uint64_t{1} << 20) - 4}) {
    World w(kRanks, 1, 2);
    for (int r = 0; r < kRanks; ++r)
      reinterpret_cast<ResidentState*>(w.at(r).arena + ResidentLayout::kHeaderBytes)->operations = before;
    std::vector<std::unique_ptr<Operation>> operations;
    for (const std::size_t count : {1000, 900, 7, 1, 1024, 3, 1, 513, 2})
      operations.push_back(make(w,
                                {.collective = Collective::all_reduce,
                                 .algorithm = Algorithm::oneshot,
                                 .count = count,
                                 .packets = true},
                                1));
    run_and_check(w, operations, 1);
    EXPECT_EQ(reinterpret_cast<ResidentState*>(w.at(0).arena + ResidentLayout::kHeaderBytes)->operations,
              before + 9);
  }
}

/// Packets that only some operations use are refreshed by all operations: here the factors, after a long
/// sequence of other operations.
TEST(ResidentPackets, UnusedPacketsAreRefreshedBeforeNumbersRepeat) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kLater = 1 << 20;
  World w(kRanks, 1, 2);
  const auto runs = [&](std::uint64_t before, OpKind op) {
    std::vector<std::unique_ptr<Operation>> operations;
    for (int r = 0; r < kRanks; ++r)
      reinterpret_cast<ResidentState*>(w.at(r).arena + ResidentLayout::kHeaderBytes)->operations = before;
    for (int i = 0; i < 2; ++i)  // of both parities
      operations.push_back(make(w,
                                {.collective = Collective::all_reduce,
                                 .algorithm = Algorithm::oneshot,
                                 .op = op,
                                 .count = 9,
                                 .packets = true},
                                1));
    run_and_check(w, operations, 1);
  };
  runs(2, OpKind::premulsum);
  runs(kLater - 1, OpKind::sum);
  const ResidentLayout& layout = w.layout;
  for (int r = 0; r < kRanks; ++r)
    for (int set = 0; set < 2 * kRanks; ++set) {
      if (set % kRanks == r) continue;
      const auto* packets =
          reinterpret_cast<const Packet*>(w.at(r).arena + ResidentLayout::kHeaderBytes + layout.packets_at +
                                          static_cast<std::uint64_t>(set) * layout.packet_set_bytes());
      for (std::uint64_t j = 0; j < 3 + layout.packet_bytes / 8; ++j)
        for (const std::uint64_t half : packets[j].half)
          ASSERT_GE(half >> 32, kLater) << "rank " << r << " set " << set << " packet " << j;
    }
}

/// A launch that is replayed with the same arguments repeats the operation: everything that changes is in
/// the arenas.
TEST(ResidentReplay, SameArgumentsRepeatTheOperation) {
  constexpr int kRanks = 4, kChannels = 2;
  for (const Row& row : rows()) {
    World w(kRanks, kChannels, 2);
    Case c{row.collective, row.algorithm, DType::f32, OpKind::sum, 1500};
    c.packets = row.packets;
    c.pointers = row.pointers, c.uneven = row.uneven ? 1 : 0;
    std::vector<std::unique_ptr<Operation>> once;
    once.push_back(make(w, c, kChannels));
    ASSERT_NE(once[0], nullptr);
    for (int replay = 0; replay < 6; ++replay) {
      for (Buffers& b : once[0]->ranks) std::fill_n(b.out, b.expected.size(), std::byte{});
      run(once, kRanks, kChannels, [](int) { return false; });
      check(*once[0], w);
      if (HasFatalFailure()) return;
    }
  }
}

/// Rank 2 is absent. A rank that needs it leaves at the deadline and names the rank that it waited for; later
/// launches leave at once.
TEST(ResidentFailure, AbsentRankIsNamedAtTheDeadline) {
  constexpr int kRanks = 3, kChannels = 2, kAbsent = 2;
  for (const Row& row : rows()) {
    if (row.collective == Collective::scatter || row.collective == Collective::broadcast)
      continue;  // see MissingRootIsNamedAtTheDeadline
    World w(kRanks, kChannels, 2);
    Case c{row.collective, row.algorithm, DType::f32, OpKind::sum, 2000};
    c.packets = row.packets;
    c.pointers = row.pointers, c.uneven = row.uneven ? 1 : 0;
    std::vector<std::unique_ptr<Operation>> operations;
    operations.push_back(make(w, c, kChannels, 50'000'000));
    const bool rooted = row.collective == Collective::reduce || row.collective == Collective::gather;
    if (!rooted) operations.push_back(make(w, c, kChannels, 600'000'000'000));
    const auto start = steady_clock::now();
    run(operations, kRanks, kChannels, [](int r) { return r == kAbsent; });
    EXPECT_LT(steady_clock::now() - start, std::chrono::minutes(1)) << describe(c);
    bool named = false;
    for (int r = 0; r < kAbsent; ++r) {
      const ResidentError& e = w.at(r).error;
      // It only sends, and has sent everything.
      if (rooted && r != c.root && e.fault == ResidentFault::none) continue;
      EXPECT_EQ(e.fault, ResidentFault::deadline) << describe(c) << ", rank " << r;
      EXPECT_NE(e.peer, r);
      EXPECT_GE(e.peer, 0);
      EXPECT_LT(e.peer, kRanks);
      EXPECT_GE(e.channel, 0);
      EXPECT_LT(e.channel, kChannels);
      EXPECT_EQ(e.step == 0, row.packets);
      named = named || e.peer == kAbsent;
    }
    EXPECT_TRUE(named) << describe(c);
  }
}

/// The root of a broadcast or scatter is missing: all others wait for it, or for a rank that does.
TEST(ResidentFailure, MissingRootIsNamedAtTheDeadline) {
  constexpr int kRanks = 3, kRoot = 1;
  for (const Row& row : rows()) {
    if (row.collective != Collective::scatter && row.collective != Collective::broadcast) continue;
    World w(kRanks, 1, 2);
    Case c{row.collective, row.algorithm, DType::f32, OpKind::sum, 700, kRoot};
    std::vector<std::unique_ptr<Operation>> operations;
    operations.push_back(make(w, c, 1, 50'000'000));
    run(operations, kRanks, 1, [](int r) { return r == kRoot; });
    bool named = false;
    for (int r = 0; r < kRanks; ++r) {
      if (r == kRoot) continue;
      EXPECT_EQ(w.at(r).error.fault, ResidentFault::deadline) << describe(c) << ", rank " << r;
      named = named || w.at(r).error.peer == kRoot;
    }
    EXPECT_TRUE(named) << describe(c);
  }
}

TEST(ResidentFailure, AbortEndsAllWaits) {
  constexpr int kRanks = 3, kChannels = 3;
  for (const bool packets : {false, true}) {
    World w(kRanks, kChannels, 2);
    Case c{Collective::all_reduce, Algorithm::oneshot, DType::f32, OpKind::sum, 2000};
    c.packets = packets;
    std::vector<std::unique_ptr<Operation>> operations;
    operations.push_back(make(w, c, kChannels, 600'000'000'000));
    operations.push_back(make(w, c, kChannels, 600'000'000'000));
    std::thread raise([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      for (int r = 0; r < kRanks; ++r) std::atomic_ref(w.at(r).abort).store(1, std::memory_order_relaxed);
    });
    const auto start = steady_clock::now();
    run(operations, kRanks, kChannels, [](int r) { return r == 0; });
    raise.join();
    EXPECT_LT(steady_clock::now() - start, std::chrono::minutes(1));
    for (int r = 1; r < kRanks; ++r) {
      EXPECT_EQ(w.at(r).error.fault, ResidentFault::aborted);
      EXPECT_EQ(w.at(r).error.peer, 0);
      // Operations after the failure must not have touched anything.
      const Buffers& b = operations[1]->ranks[static_cast<std::size_t>(r)];
      EXPECT_TRUE(std::all_of(b.out_storage.begin(), b.out_storage.end(),
                              [](std::byte x) { return x == kUntouched; }));
    }
  }
}

/// Ranks in different operations detect this at the first chunk, by links, staging buffers and packets.
TEST(ResidentFailure, DifferentOperationsAreDetected) {
  constexpr int kRanks = 2;
  for (const Row& row : rows()) {
    if (row.collective != Collective::all_reduce) continue;
    World w(kRanks, 1, 2);
    Case c{row.collective, row.algorithm, DType::f32, OpKind::sum, 100};
    c.packets = row.packets;
    c.pointers = row.pointers, c.uneven = row.uneven ? 1 : 0;
    std::vector<std::unique_ptr<Operation>> operations;
    operations.push_back(make(w, c, 1, 50'000'000));
    operations[0]->args[1].tag ^= 0x8001;
    run(operations, kRanks, 1, [](int) { return false; });
    bool found = false;
    for (int r = 0; r < kRanks; ++r) {
      found = found || w.at(r).error.fault == ResidentFault::mismatch;
      EXPECT_NE(w.at(r).error.fault, ResidentFault::none) << describe(c);
      EXPECT_EQ(w.at(r).error.peer, 1 - r) << describe(c);
    }
    EXPECT_TRUE(found) << describe(c);
  }
}

TEST(ResidentArguments, InvalidLayoutsAreRefusedAndChannelsFollowTheSize) {
  const auto reason = [](ResidentSizes s) { return resident_layout(s).status().reason(); };
  EXPECT_EQ(reason({}), Reason::none);
  EXPECT_EQ(reason({.ranks = 0}), Reason::invalid);
  EXPECT_EQ(reason({.ranks = 65}), Reason::invalid);
  EXPECT_EQ(reason({.channels = 0}), Reason::invalid);
  EXPECT_EQ(reason({.slots = 1}), Reason::invalid);
  EXPECT_EQ(reason({.slots = 3}), Reason::invalid);
  EXPECT_EQ(reason({.slot_bytes = 2049}), Reason::invalid);
  EXPECT_EQ(reason({.slot_bytes = 1024}), Reason::invalid);
  EXPECT_EQ(reason({.ranks = 64, .staging_bytes = 4096}), Reason::invalid);
  EXPECT_EQ(reason({.packet_bytes = 0}), Reason::invalid);
  // 64 KiB by packets, over four channels of the default layout.
  EXPECT_EQ(resident_packet_limit(resident_layout({}).value(), 4), 65536u);
  const ResidentLayout layout = resident_layout({.channels = 32}).value();
  EXPECT_EQ(resident_channels(layout, 0, false), 1);
  EXPECT_EQ(resident_channels(layout, 65537, false), 5);
  EXPECT_EQ(resident_channels(layout, 1 << 30, false), 32);
  EXPECT_EQ(resident_channels(layout, 4096, true), 1);
  EXPECT_EQ(resident_channels(layout, 65536, true), 16);
}

TEST(ResidentArguments, InvalidOnesAreRefused) {
  World w(2, 2, 2);
  const auto good = make(w, {Collective::all_reduce, Algorithm::zerocopy, DType::f32, OpKind::sum, 10}, 2);
  ASSERT_NE(good, nullptr);
  const auto reason = [&](auto&& change) {
    ResidentArgs a = good->args[0];
    change(a);
    return resident(a).status().reason();
  };
  EXPECT_EQ(reason([](ResidentArgs&) {}), Reason::none);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.algorithm = Algorithm::inlined; }), Reason::unsupported);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.algorithm = Algorithm::pull; }), Reason::unsupported);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.algorithm = Algorithm::pairwise; }), Reason::unsupported);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.op = OpKind::band; }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.packets = true; }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.packets = true, a.algorithm = Algorithm::oneshot; }),
            Reason::none);
  EXPECT_EQ(
      reason([](ResidentArgs& a) { a.packets = true, a.algorithm = Algorithm::oneshot, a.count = 2049; }),
      Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.deadline_ns = 0; }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.abort = nullptr; }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.channels = 3; }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.rank = 2; }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.out_of[1] = nullptr; }), Reason::invalid);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.arena[1] = nullptr; }), Reason::invalid);
  // By reference everything is one chunk; through slots chunks have numbers.
  EXPECT_EQ(reason([](ResidentArgs& a) { a.count = std::uint64_t{1} << 60; }), Reason::none);
  EXPECT_EQ(
      reason([](ResidentArgs& a) { a.count = std::uint64_t{1} << 60, a.algorithm = Algorithm::direct; }),
      Reason::unsupported);
  EXPECT_EQ(reason([](ResidentArgs& a) {
              a.collective = Collective::all_to_all, a.out = const_cast<std::byte*>(a.in);
            }),
            Reason::invalid);
}

/// Hot sums have kernels of their own; all other operations share one kernel for reductions of floats, one
/// for those of integers, one for movement, and one for packets.
TEST(ResidentArguments, EachOperationSelectsItsKernel) {
  World w(2, 2, 2);
  const auto kernel = [&](Case c) {
    const auto o = make(w, c, 2);
    return std::string(o ? o->kernel->name : "none");
  };
  EXPECT_EQ(kernel({Collective::all_reduce, Algorithm::ring, DType::bf16}), "resident_ring_all_reduce_bf16");
  EXPECT_EQ(kernel({Collective::all_reduce, Algorithm::ring, DType::f64}), "resident_any_float");
  EXPECT_EQ(kernel({Collective::all_reduce, Algorithm::oneshot, DType::f16, OpKind::max}),
            "resident_any_float");
  EXPECT_EQ(kernel({Collective::all_reduce, Algorithm::oneshot, DType::i32}), "resident_any_integer");
  EXPECT_EQ(kernel({Collective::broadcast, Algorithm::chain, DType::u8, OpKind::max}),
            "resident_chain_broadcast");
  EXPECT_EQ(kernel({Collective::broadcast, Algorithm::tree, DType::f32}), "resident_any_moves");
  EXPECT_EQ(kernel({Collective::barrier, Algorithm::direct, DType::i32}), "resident_any_moves");
  Case c{Collective::all_reduce, Algorithm::oneshot, DType::f32};
  c.packets = true;
  EXPECT_EQ(kernel(c), "resident_packets_f32");
  c.op = OpKind::avg;
  EXPECT_EQ(kernel(c), "resident_any_packets");
  Case uneven{Collective::reduce_scatter, Algorithm::direct, DType::f16, OpKind::sum, 9};
  uneven.pointers = true, uneven.uneven = 1;
  EXPECT_EQ(kernel(uneven), "resident_uneven_reduce_scatter_f16");
  uneven.op = OpKind::max;
  EXPECT_EQ(kernel(uneven), "resident_any_float");
  uneven.collective = Collective::all_to_all, uneven.algorithm = Algorithm::pairwise;
  EXPECT_EQ(kernel(uneven), "resident_uneven_all_to_all");
  for (const Kernel* k : resident_kernels()) {
    EXPECT_TRUE(k->spins);
    EXPECT_NE(k->host, nullptr);
    EXPECT_EQ(k->arg_bytes, sizeof(ResidentArgs));
  }
}

}  // namespace
}  // namespace ouro::gpu::resident_test
