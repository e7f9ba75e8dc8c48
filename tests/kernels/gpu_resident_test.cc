// Tests of the resident kernels: ranks and channels as host threads, each a block, that run the kernels' own
// bodies over the same slots, flags, boards and packets as on a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/arith/floats.h"
#include "kernels/gpu/resident.h"
#include "kernels/gpu/resident_channel.h"
#include "kernels/host_loops.h"

namespace ouro::gpu {
namespace {

using flow::Algorithm;
using std::chrono::steady_clock;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kGuard = 64;
constexpr std::byte kUntouched{0xa5};

/// What one rank of a group keeps: its arena, an abort word and the error record.
struct RankMemory {
  std::unique_ptr<std::byte[]> storage;
  std::byte* arena = nullptr;
  std::uint32_t abort = 0;
  ResidentError error = {};
  explicit RankMemory(std::uint64_t bytes) : storage(new std::byte[bytes + 128]()) {
    void* p = storage.get();
    std::size_t space = bytes + 128;
    arena = static_cast<std::byte*>(std::align(128, bytes, p, space));
  }
};

struct World {
  ResidentLayout layout;
  std::vector<std::unique_ptr<RankMemory>> ranks;
  World(int n, int channels, int slots) {
    ResidentSizes sizes{.ranks = n,
                        .channels = channels,
                        .slots = slots,
                        .slot_bytes = 2048,
                        .page_bytes = 2304,
                        .packet_bytes = 4096};
    layout = resident_layout(sizes).value();
    for (int r = 0; r < n; ++r) ranks.push_back(std::make_unique<RankMemory>(layout.bytes()));
  }
  RankMemory& at(int r) { return *ranks[static_cast<std::size_t>(r)]; }
};

/// exact: chunk c of the input lies where chunk c of the output does; first_block: at the root of a gather or
/// scatter, its own block lies where block 0 does.
enum class Aliasing { separate, exact, first_block };

struct Case {
  Collective collective;
  Algorithm algorithm;
  DType dtype = DType::f32;
  OpKind op = OpKind::sum;
  std::size_t count = 0;
  int root = 0;
  Aliasing aliasing = Aliasing::separate;
  bool packets = false;
  std::size_t shift = 0;  // elements by which buffers are off their alignment, times the rank
};

std::string describe(const Case& c) {
  return std::string(name(c.collective)) + " " + std::string(flow::name(c.algorithm)) +
         (c.packets ? " packets " : " ") + name(c.dtype) + " " + name(c.op) + " count " +
         std::to_string(c.count) + " root " + std::to_string(c.root) + " aliasing " +
         std::to_string(static_cast<int>(c.aliasing));
}

bool reduces(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce || c == Collective::reduce_scatter;
}
std::size_t input_blocks(Collective c, int rank, int root, std::size_t n) {
  if (c == Collective::barrier) return 0;
  if (c == Collective::broadcast) return rank == root ? 1 : 0;
  if (c == Collective::scatter) return rank == root ? n : 0;
  return c == Collective::reduce_scatter || c == Collective::all_to_all ? n : 1;
}
std::size_t output_blocks(Collective c, int rank, int root, std::size_t n) {
  if (c == Collective::barrier) return 0;
  if (c == Collective::reduce) return rank == root ? 1 : 0;
  if (c == Collective::gather) return rank == root ? n : 0;
  return c == Collective::all_gather || c == Collective::all_to_all ? n : 1;
}

/// A rank's buffers in one operation, with guards around them, and what they must hold afterwards.
struct Buffers {
  Bytes in_storage, out_storage;
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  Bytes given, expected;
};

struct Operation {
  Case c;
  Scalar premul(int rank) const { return {static_cast<double>(rank % 3 + 1), rank % 3 + 1}; }
  std::vector<Buffers> ranks;
  std::vector<ResidentArgs> args;
  const Kernel* kernel = nullptr;
};

/// Element `i` of a rank's input: integers so small that every order gives the same sums, or, where the order
/// is the contract, bits that show it.
void fill(Bytes& bytes, const Case& c, int rank, bool any_order) {
  const std::size_t size = size_of(c.dtype);
  std::uint32_t x =
      2463534242u + 97u * static_cast<std::uint32_t>(rank) + static_cast<std::uint32_t>(c.count);
  const auto put = [&](std::size_t i, auto value) { std::memcpy(&bytes[i], &value, size); };
  for (std::size_t i = 0; i + size <= bytes.size(); i += size) {
    x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    const int small = c.op == OpKind::prod ? 1 + static_cast<int>(x % 2) : static_cast<int>(x % 5);
    const float f =
        any_order ? static_cast<float>(small) : static_cast<float>(static_cast<int>(x % 2000) - 1000) / 37;
    if (!reduces(c.collective) || !is_float(c.dtype)) {
      for (std::size_t k = 0; k < size; ++k) bytes[i + k] = static_cast<std::byte>(x >> (8 * (k % 4)));
    } else if (c.dtype == DType::f64) {
      put(i, static_cast<double>(f));
    } else if (c.dtype == DType::f32) {
      put(i, f);
    } else if (c.dtype == DType::f16) {
      put(i, arith::narrow<arith::Half>(f));
    } else if (c.dtype == DType::bf16) {
      put(i, arith::narrow<arith::BFloat16>(f));
    } else if (c.dtype == DType::f8e4m3) {
      put(i, arith::narrow<arith::F8E4M3>(f));
    } else {
      put(i, arith::narrow<arith::F8E5M2>(f));
    }
  }
}

void expect_outputs(Operation& o) {
  const Case& c = o.c;
  const std::size_t n = o.ranks.size(), block = c.count * size_of(c.dtype);
  const auto root = static_cast<std::size_t>(c.root);
  const auto fold = [&](Bytes& to, std::size_t offset) {
    std::vector<const void*> sources;
    std::vector<Scalar> factors;
    for (std::size_t r = 0; r < n; ++r) {
      sources.push_back(o.ranks[r].given.data() + offset);
      factors.push_back(o.premul(static_cast<int>(r)));
    }
    if (c.count > 0)
      kernels::fold({c.dtype, c.op, static_cast<int>(n)}, to.data(), sources, factors, c.count);
  };
  const auto copy = [&](std::size_t to, std::size_t to_block, std::size_t from, std::size_t from_block) {
    std::copy_n(o.ranks[from].given.begin() + static_cast<std::ptrdiff_t>(from_block * block), block,
                o.ranks[to].expected.begin() + static_cast<std::ptrdiff_t>(to_block * block));
  };
  for (std::size_t r = 0; r < n; ++r) {
    Bytes& to = o.ranks[r].expected;
    to.assign(output_blocks(c.collective, static_cast<int>(r), c.root, n) * block, kUntouched);
    if (to.empty()) continue;
    if (reduces(c.collective)) fold(to, c.collective == Collective::reduce_scatter ? r * block : 0);
    if (c.collective == Collective::broadcast) copy(r, 0, root, 0);
    if (c.collective == Collective::scatter) copy(r, 0, root, r);
    if (c.collective == Collective::all_gather || c.collective == Collective::gather)
      for (std::size_t b = 0; b < n; ++b) copy(r, b, b, 0);
    if (c.collective == Collective::all_to_all)
      for (std::size_t b = 0; b < n; ++b) copy(r, b, b, r);
  }
}

void make_buffers(Operation& o, int rank) {
  const Case& c = o.c;
  const std::size_t n = o.ranks.size(), elem = size_of(c.dtype), block = c.count * elem;
  Buffers& b = o.ranks[static_cast<std::size_t>(rank)];
  const std::size_t in_blocks = input_blocks(c.collective, rank, c.root, n);
  const std::size_t out_blocks = output_blocks(c.collective, rank, c.root, n);
  const std::size_t shift = c.shift * static_cast<std::size_t>(rank) * elem;
  const auto take = [&](Bytes& storage, std::size_t bytes) {
    storage.assign(2 * kGuard + shift + bytes, kUntouched);
    return storage.data() + kGuard + shift;
  };
  b.given.assign(in_blocks * block, std::byte{});
  bool canonical = true;
  flow::visit(c.collective, c.algorithm, [&]<class Flow>(Flow) { canonical = Flow::kCanonical; });
  fill(b.given, c, rank, !canonical);
  const bool alias = c.aliasing != Aliasing::separate && in_blocks > 0 && out_blocks > 0;
  b.out = take(b.out_storage, alias ? std::max(in_blocks, out_blocks) * block : out_blocks * block);
  if (alias) {
    // The side with one block lies where this rank's block does on the other.
    const std::size_t own = c.aliasing == Aliasing::exact ? static_cast<std::size_t>(rank) * block : 0;
    b.in = b.out;
    if (in_blocks < out_blocks) b.in = b.out + own;
    if (out_blocks < in_blocks) b.out += own;
  } else {
    b.in = take(b.in_storage, in_blocks * block);
  }
  std::copy(b.given.begin(), b.given.end(), b.in);
}

std::unique_ptr<Operation> make(World& w, const Case& c, int channels,
                                std::uint64_t deadline_ns = 120'000'000'000) {
  auto o = std::make_unique<Operation>();
  const int n = w.layout.ranks;
  o->c = c;
  o->ranks.resize(static_cast<std::size_t>(n));
  for (int r = 0; r < n; ++r) make_buffers(*o, r);
  expect_outputs(*o);
  for (int r = 0; r < n; ++r) {
    ResidentArgs a;
    a.collective = c.collective;
    a.algorithm = c.algorithm;
    a.dtype = c.dtype;
    a.op = c.op;
    a.packets = c.packets;
    a.tag = static_cast<std::uint16_t>(c.count + static_cast<std::size_t>(c.collective));
    a.rank = r;
    a.root = c.root;
    a.channels = channels;
    a.count = c.count;
    a.in = o->ranks[static_cast<std::size_t>(r)].in;
    a.out = o->ranks[static_cast<std::size_t>(r)].out;
    a.premul = o->premul(r);
    a.deadline_ns = deadline_ns;
    a.abort = &w.at(r).abort;
    a.error = &w.at(r).error;
    a.layout = w.layout;
    for (int p = 0; p < n; ++p) {
      a.arena[p] = w.at(p).arena;
      a.in_of[p] = o->ranks[static_cast<std::size_t>(p)].in;
      a.out_of[p] = o->ranks[static_cast<std::size_t>(p)].out;
    }
    auto launch = resident(a);
    EXPECT_TRUE(launch.ok()) << describe(c) << ": " << launch.status().message();
    if (!launch.ok()) return nullptr;
    EXPECT_EQ(launch->shape.blocks, channels);
    o->kernel = launch->kernel;
    o->args.push_back(a);
  }
  return o;
}

/// One thread a block runs all operations in a row; ranks for which absent(r) holds never come.
template <class Absent>
void run(std::vector<std::unique_ptr<Operation>>& operations, int n, int channels, Absent&& absent) {
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    for (int c = 0; c < channels && !absent(r); ++c)
      threads.emplace_back([&operations, r, c] {
        for (const auto& o : operations) {
          const ResidentArgs& a = o->args[static_cast<std::size_t>(r)];
          if (c < a.channels) o->kernel->host(&a, c, a.channels);
        }
      });
  for (std::thread& t : threads) t.join();
}

void check(const Operation& o, World& w) {
  for (int r = 0; r < w.layout.ranks; ++r) {
    const Buffers& b = o.ranks[static_cast<std::size_t>(r)];
    ASSERT_EQ(w.at(r).error.fault, ResidentFault::none) << describe(o.c) << ", rank " << r;
    if (!b.expected.empty()) {
      ASSERT_EQ(std::memcmp(b.out, b.expected.data(), b.expected.size()), 0)
          << describe(o.c) << ", rank " << r;
    }
    if (!b.in_storage.empty() && !b.given.empty()) {
      ASSERT_EQ(std::memcmp(b.in, b.given.data(), b.given.size()), 0)
          << describe(o.c) << ": input of rank " << r;
    }
    for (const Bytes* s : {&b.out_storage, &b.in_storage})
      for (std::size_t i = 0; i < std::min(kGuard, s->size()); ++i) {
        ASSERT_EQ((*s)[i], kUntouched) << describe(o.c) << ", before a buffer of rank " << r;
        ASSERT_EQ((*s)[s->size() - 1 - i], kUntouched) << describe(o.c) << ", behind a buffer of rank " << r;
      }
  }
}

void run_and_check(World& w, std::vector<std::unique_ptr<Operation>>& operations, int channels) {
  ASSERT_EQ(std::count(operations.begin(), operations.end(), nullptr), 0);
  run(operations, w.layout.ranks, channels, [](int) { return false; });
  for (const auto& o : operations) check(*o, w);
  operations.clear();
}

struct Row {
  Collective collective;
  Algorithm algorithm;
  bool packets, in_place;
};
/// Every flow that resident kernels serve, and packets.
std::vector<Row> rows() {
  std::vector<Row> all;
  flow::for_each_flow([&]<class Flow>(Collective c, Algorithm a, Flow) {
    if (!Flow::kInLine && !Flow::kPulls) all.push_back({c, a, false, Flow::kInPlace});
  });
  all.push_back({Collective::all_reduce, Algorithm::oneshot, true, true});
  return all;
}

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

/// Operations of all kinds in a row over the same state, without a pause between them.
TEST_P(Resident, EveryFlow) {
  const int n = GetParam();
  std::size_t turn = static_cast<std::size_t>(n);  // pairs and shapes go round, so that all meet
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
          c.root = static_cast<int>(turn / 2 % static_cast<std::size_t>(n));
          c.aliasing = aliasing;
          c.shift = turn % 4;
          if (c.packets && count * size_of(c.dtype) > resident_packet_limit(w.layout, channels))
            c.count = 512;
          // Fewer channels than the arenas have, now and then.
          operations.push_back(make(w, c, turn % 5 == 0 ? 1 : channels));
        }
      }
    run_and_check(w, operations, channels);
    if (HasFatalFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, Resident, testing::Range(1, 10),
                         [](const auto& p) { return std::to_string(p.param); });

/// Every reduction that exists, by every flow that reduces.
TEST(ResidentTypes, EveryReduction) {
  constexpr int kRanks = 3, kChannels = 2;
  World w(kRanks, kChannels, 2);
  std::vector<std::unique_ptr<Operation>> operations;
  for (const Row& row : rows()) {
    if (!reduces(row.collective)) continue;
    for (int t = 0; t < kDTypes; ++t)
      for (int op = 0; op < kOps; ++op) {
        Case c{row.collective, row.algorithm, static_cast<DType>(t), static_cast<OpKind>(op), 333};
        c.packets = row.packets;
        if (applies(c.op, c.dtype)) operations.push_back(make(w, c, kChannels));
      }
  }
  run_and_check(w, operations, kChannels);
}

/// The number of an operation by packets is 32 bits of flag: it wraps, and old packets are refreshed.
TEST(ResidentPackets, NumbersWrap) {
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

/// A launch that is replayed with the same arguments does the same again: all that changes is in the arenas.
TEST(ResidentReplay, SameArguments) {
  constexpr int kRanks = 4, kChannels = 2;
  for (const Row& row : rows()) {
    World w(kRanks, kChannels, 2);
    Case c{row.collective, row.algorithm, DType::f32, OpKind::sum, 1500};
    c.packets = row.packets;
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

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

/// Rank 2 never comes. Whoever needs it leaves at the deadline and names whom it waited for; later launches
/// leave at once.
TEST(ResidentFailure, Deadline) {
  constexpr int kRanks = 3, kChannels = 2, kAbsent = 2;
  for (const Row& row : rows()) {
    if (row.collective == Collective::scatter || row.collective == Collective::broadcast)
      continue;  // see below
    World w(kRanks, kChannels, 2);
    Case c{row.collective, row.algorithm, DType::f32, OpKind::sum, 2000};
    c.packets = row.packets;
    std::vector<std::unique_ptr<Operation>> operations;
    operations.push_back(make(w, c, kChannels, 50'000'000));
    const bool rooted = row.collective == Collective::reduce || row.collective == Collective::gather;
    if (!rooted) operations.push_back(make(w, c, kChannels, 600'000'000'000));
    const auto start = steady_clock::now();
    run(operations, kRanks, kChannels, [](int r) { return r == kAbsent; });
    EXPECT_LT(seconds_since(start), 60) << describe(c);
    bool named = false;
    for (int r = 0; r < kAbsent; ++r) {
      const ResidentError& e = w.at(r).error;
      if (rooted && r != c.root && e.fault == ResidentFault::none) continue;  // it only gives, and has given
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

/// The root of a broadcast or scatter is the one that is missing: all others wait for it, or for one that
/// does.
TEST(ResidentFailure, RootIsMissing) {
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

TEST(ResidentFailure, Abort) {
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
    EXPECT_LT(seconds_since(start), 60);
    for (int r = 1; r < kRanks; ++r) {
      EXPECT_EQ(w.at(r).error.fault, ResidentFault::aborted);
      EXPECT_EQ(w.at(r).error.peer, 0);
      // What came after the failure has touched nothing.
      const Buffers& b = operations[1]->ranks[static_cast<std::size_t>(r)];
      EXPECT_TRUE(std::all_of(b.out_storage.begin(), b.out_storage.end(),
                              [](std::byte x) { return x == kUntouched; }));
    }
  }
}

/// Ranks in different operations find out at the first chunk, by links, boards and packets.
TEST(ResidentFailure, Mismatch) {
  constexpr int kRanks = 2;
  for (const Row& row : rows()) {
    if (row.collective != Collective::all_reduce) continue;
    World w(kRanks, 1, 2);
    Case c{row.collective, row.algorithm, DType::f32, OpKind::sum, 100};
    c.packets = row.packets;
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

TEST(ResidentArguments, Layout) {
  const auto reason = [](ResidentSizes s) { return resident_layout(s).status().reason(); };
  EXPECT_EQ(reason({}), Reason::none);
  EXPECT_EQ(reason({.ranks = 0}), Reason::invalid);
  EXPECT_EQ(reason({.ranks = 65}), Reason::invalid);
  EXPECT_EQ(reason({.channels = 0}), Reason::invalid);
  EXPECT_EQ(reason({.slots = 1}), Reason::invalid);
  EXPECT_EQ(reason({.slots = 3}), Reason::invalid);
  EXPECT_EQ(reason({.slot_bytes = 2049}), Reason::invalid);
  EXPECT_EQ(reason({.slot_bytes = 1024}), Reason::invalid);
  EXPECT_EQ(reason({.ranks = 64, .page_bytes = 4096}), Reason::invalid);
  EXPECT_EQ(reason({.packet_bytes = 0}), Reason::invalid);
  // 64 KiB by packets, over four channels of the default layout.
  EXPECT_EQ(resident_packet_limit(resident_layout({}).value(), 4), 65536u);
  EXPECT_EQ(resident_channels(resident_layout({}).value(), 0), 1);
  EXPECT_EQ(resident_channels(resident_layout({}).value(), 65537), 3);
  EXPECT_EQ(resident_channels(resident_layout({}).value(), 1 << 30), 8);
}

TEST(ResidentArguments, Refusals) {
  World w(2, 2, 2);
  const auto good = make(w, {Collective::all_reduce, Algorithm::inplace, DType::f32, OpKind::sum, 10}, 2);
  ASSERT_NE(good, nullptr);
  const auto reason = [&](auto&& change) {
    ResidentArgs a = good->args[0];
    change(a);
    return resident(a).status().reason();
  };
  EXPECT_EQ(reason([](ResidentArgs&) {}), Reason::none);
  EXPECT_EQ(reason([](ResidentArgs& a) { a.algorithm = Algorithm::line; }), Reason::unsupported);
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
  EXPECT_EQ(reason([](ResidentArgs& a) { a.count = std::uint64_t{1} << 40; }), Reason::unsupported);
  EXPECT_EQ(reason([](ResidentArgs& a) {
              a.collective = Collective::all_to_all, a.out = const_cast<std::byte*>(a.in);
            }),
            Reason::invalid);
}

/// Hot sums have kernels of their own; everything else shares two.
TEST(ResidentArguments, Kernels) {
  World w(2, 2, 2);
  const auto kernel = [&](Case c) {
    const auto o = make(w, c, 2);
    return std::string(o ? o->kernel->name : "none");
  };
  EXPECT_EQ(kernel({Collective::all_reduce, Algorithm::ring, DType::bf16}), "resident_ring_all_reduce_bf16");
  EXPECT_EQ(kernel({Collective::all_reduce, Algorithm::ring, DType::f64}), "resident_any");
  EXPECT_EQ(kernel({Collective::all_reduce, Algorithm::oneshot, DType::f16, OpKind::max}), "resident_any");
  EXPECT_EQ(kernel({Collective::broadcast, Algorithm::chain, DType::u8, OpKind::max}),
            "resident_chain_broadcast");
  Case c{Collective::all_reduce, Algorithm::oneshot, DType::f32};
  c.packets = true;
  EXPECT_EQ(kernel(c), "resident_packets_f32");
  c.op = OpKind::avg;
  EXPECT_EQ(kernel(c), "resident_packets_any");
  for (const Kernel* k : resident_kernels()) {
    EXPECT_TRUE(k->spins);
    EXPECT_NE(k->host, nullptr);
    EXPECT_EQ(k->arg_bytes, sizeof(ResidentArgs));
  }
}

}  // namespace
}  // namespace ouro::gpu
