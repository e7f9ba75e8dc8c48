// Tests of the exchange kernel: ranks and channels as host threads, one thread or several for a block. The
// several threads of a block have the barriers that a device has, so that a race detector sees them.
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/gpu/exchange_body.h"

namespace ouro::gpu {
namespace {

using Bytes = std::vector<std::byte>;

struct RankMemory {
  std::unique_ptr<std::byte[]> storage;
  std::byte* arena = nullptr;
  std::uint32_t abort = 0;
  ResidentError error = {};
  std::uint32_t waits[ExchangeLayout::kMaxRanks] = {};
  std::uint32_t launches = 0, ended = 0;
  explicit RankMemory(std::uint64_t bytes) : storage(new std::byte[bytes + 128]()) {
    void* p = storage.get();
    std::size_t space = bytes + 128;
    arena = static_cast<std::byte*>(std::align(128, bytes, p, space));
  }
};

struct World {
  ExchangeLayout layout;
  std::vector<std::unique_ptr<RankMemory>> ranks;
  World(int n, int channels) : layout(exchange_layout(n, channels).value()) {
    for (int r = 0; r < n; ++r) ranks.push_back(std::make_unique<RankMemory>(layout.bytes()));
  }
  RankMemory& at(int r) { return *ranks[static_cast<std::size_t>(r)]; }
};

/// Which ranks can use addresses of which others.
enum class Reach { all, none };

/// A message, and the buffers of its two ends, which begin at any address.
struct Traffic {
  int from, to;
  std::size_t bytes, sent_skew, received_skew;
  Bytes source, target;
  Traffic(int f, int t, std::size_t b, std::size_t s, std::size_t r)
      : from(f),
        to(t),
        bytes(b),
        sent_skew(s),
        received_skew(r),
        source(b + 64),
        target(b + 64, std::byte{0xa5}) {
    std::uint32_t x = 2463534242u + static_cast<std::uint32_t>(97 * f + 31 * t + static_cast<int>(b));
    for (std::byte& each : source) x ^= x << 13, x ^= x >> 17, x ^= x << 5, each = std::byte(x);
  }
  std::byte* sent() { return source.data() + sent_skew; }
  std::byte* received() { return target.data() + received_skew; }
  bool arrived() const {
    return bytes == 0 || std::memcmp(source.data() + sent_skew, target.data() + received_skew, bytes) == 0;
  }
  bool guards_are_intact() const {
    for (std::size_t i = 0; i < target.size(); ++i)
      if ((i < received_skew || i >= received_skew + bytes) && target[i] != std::byte{0xa5}) return false;
    return true;
  }
};

/// The launches of one rank, in order: each has sends and receives with their peers.
struct Call {
  std::vector<std::pair<int, ExchangeTransfer>> sends, receives;
};
struct Packed {
  ExchangeArgs args;
  std::vector<ExchangeTransfer> many;
  Launch launch = {};
};

std::unique_ptr<Packed> pack(World& w, int rank, const Call& call, Reach reach) {
  auto packed = std::make_unique<Packed>();
  ExchangeArgs& a = packed->args;
  const int n = w.layout.ranks;
  a.layout = w.layout, a.rank = rank;
  a.same_process = reach == Reach::all ? ~std::uint64_t{0} : std::uint64_t{1} << rank;
  a.deadline_ns = 20'000'000'000;
  a.abort = &w.at(rank).abort, a.error = &w.at(rank).error, a.waits = w.at(rank).waits;
  a.ended = {&w.at(rank).ended, ++w.at(rank).launches};
  for (int r = 0; r < n; ++r) a.arena[r] = w.at(r).arena;
  for (int p = 0; p < n; ++p) {
    a.sends[p] = static_cast<std::uint32_t>(packed->many.size());
    for (const auto& [to, t] : call.sends)
      if (to == p) packed->many.push_back(t), a.channels |= exchange_channels(w.layout, rank, p, t.bytes);
  }
  a.sends[n] = static_cast<std::uint32_t>(packed->many.size());
  for (int p = 0; p < n; ++p) {
    a.receives[p] = static_cast<std::uint32_t>(packed->many.size());
    for (const auto& [from, t] : call.receives)
      if (from == p) packed->many.push_back(t), a.channels |= exchange_channels(w.layout, p, rank, t.bytes);
  }
  a.receives[n] = static_cast<std::uint32_t>(packed->many.size());
  if (packed->many.size() > ExchangeArgs::kInline)
    a.many = packed->many.data();
  else
    std::copy(packed->many.begin(), packed->many.end(), a.few);
  const auto launch = exchange(a);
  EXPECT_TRUE(launch.ok()) << launch.status().message();
  if (launch.ok()) packed->launch = *launch;
  return packed;
}

constexpr int kThreads = 3;
struct Team {
  pthread_barrier_t barrier;
  std::atomic<bool> said[3] = {};
  ExchangeShared shared;
  Team() { pthread_barrier_init(&barrier, nullptr, kThreads); }
  ~Team() { pthread_barrier_destroy(&barrier); }
};
struct TeamBlock {
  Team& team;
  int thread_, block_, blocks_;
  mutable int turn = 0;
  int thread() const { return thread_; }
  int threads() const { return kThreads; }
  int block() const { return block_; }
  int blocks() const { return blocks_; }
  void sync() const { pthread_barrier_wait(&team.barrier); }
  bool any(bool mine) const {
    const int now = turn, before = (turn + 2) % 3;
    turn = (turn + 1) % 3;
    if (mine) team.said[now] = true;
    sync();
    if (thread_ == 0) team.said[before] = false;
    return team.said[now];
  }
};

enum class Blocks { one_thread, teams };

void run_launch(const Packed& p, Blocks blocks) {
  std::vector<std::unique_ptr<Team>> teams;
  std::vector<std::thread> threads;
  for (int b = 0; b < p.launch.shape.blocks; ++b) {
    if (blocks == Blocks::one_thread) {
      threads.emplace_back([&p, b] { p.launch.kernel->host(&p.args, b, p.launch.shape.blocks); });
      continue;
    }
    teams.push_back(std::make_unique<Team>());
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&p, b, t, team = teams.back().get()] {
        const TeamBlock block{*team, t, b, p.launch.shape.blocks};
        Exchange<TeamBlock>(p.args, block, team->shared).run();
      });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(*p.args.ended.word, p.args.ended.number) << "the host is told of the end, also of an early one";
}

/// Runs calls[rank] of all ranks: launches of one rank one after the other.
void run_calls(World& w, const std::vector<std::vector<Call>>& calls, Reach reach, Blocks blocks) {
  std::vector<std::thread> ranks;
  for (int r = 0; r < w.layout.ranks; ++r)
    ranks.emplace_back([&, r] {
      for (const Call& call : calls[static_cast<std::size_t>(r)])
        run_launch(*pack(w, r, call, reach), blocks);
    });
  for (std::thread& t : ranks) t.join();
}

using TrafficList = std::vector<std::unique_ptr<Traffic>>;

/// All messages in one call of each rank.
void run_in_one_call(World& w, const TrafficList& all, Reach reach, Blocks blocks) {
  std::vector<std::vector<Call>> calls(static_cast<std::size_t>(w.layout.ranks), std::vector<Call>(1));
  for (const auto& m : all) {
    calls[static_cast<std::size_t>(m->from)][0].sends.push_back({m->to, {m->sent(), m->bytes}});
    calls[static_cast<std::size_t>(m->to)][0].receives.push_back({m->from, {m->received(), m->bytes}});
  }
  std::vector<std::vector<Call>> taking_part = calls;
  for (auto& of_rank : taking_part)
    if (of_rank[0].sends.empty() && of_rank[0].receives.empty()) of_rank.clear();
  run_calls(w, taking_part, reach, blocks);
}

void expect_arrived(World& w, const TrafficList& all) {
  for (const auto& m : all) {
    EXPECT_TRUE(m->arrived()) << m->from << " to " << m->to << ", " << m->bytes << " bytes";
    EXPECT_TRUE(m->guards_are_intact()) << m->from << " to " << m->to << ", " << m->bytes << " bytes";
  }
  for (const auto& r : w.ranks) EXPECT_EQ(r->error.fault, ResidentFault::none);
}

class GpuExchange : public testing::TestWithParam<std::tuple<Reach, Blocks>> {
 protected:
  const Reach reach = std::get<0>(GetParam());
  const Blocks blocks = std::get<1>(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Kernels, GpuExchange,
                         testing::Combine(testing::Values(Reach::all, Reach::none),
                                          testing::Values(Blocks::one_thread, Blocks::teams)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == Reach::all ? "addresses" : "slots") +
                                  (std::get<1>(info.param) == Blocks::teams ? "_teams" : "");
                         });

TEST_P(GpuExchange, EverySizeAndAlignmentArrives) {
  for (const int n : {2, 3, 5}) {
    World w(n, 4);
    for (const std::size_t bytes : {0, 1, 8, 15, 127, 4096, 8192, 8193, 16384, 16385, 50'000, 200'001}) {
      TrafficList all;
      for (int r = 0; r < n; ++r) {
        const auto skew = static_cast<std::size_t>(r);
        all.push_back(std::make_unique<Traffic>(r, (r + 1) % n, bytes, 3 * skew, 3 * skew));
        all.push_back(std::make_unique<Traffic>(r, (r + n - 1) % n, bytes, 16, 5 * skew));
      }
      run_in_one_call(w, all, reach, blocks);
      expect_arrived(w, all);
    }
  }
}

TEST_P(GpuExchange, AllPairsAndEachRankItself) {
  constexpr int n = 5;
  World w(n, 3);
  for (int round = 0; round < 20; ++round) {  // rings wrap around
    TrafficList all;
    for (int k = 0; k < 3; ++k)
      for (int from = 0; from < n; ++from)
        for (int to = 0; to < n; ++to)
          all.push_back(std::make_unique<Traffic>(
              from, to, static_cast<std::size_t>(1000 * k * k * (from + 2 * to)), 0, 0));
    run_in_one_call(w, all, reach, blocks);
    expect_arrived(w, all);
  }
}

/// More messages of a pair than its ring has entries, and more than fit into the arguments.
TEST_P(GpuExchange, ManyMessagesOfOnePair) {
  World w(2, 2);
  TrafficList all;
  for (int k = 0; k < 200; ++k)
    all.push_back(std::make_unique<Traffic>(k % 3 == 0 ? 1 : 0, k % 3 == 0 ? 0 : 1,
                                            k % 7 == 0 ? 20'000u : static_cast<std::size_t>(10 * k), 0, 0));
  run_in_one_call(w, all, reach, blocks);
  expect_arrived(w, all);
}

/// The ranks cut the same messages into calls in different ways.
TEST_P(GpuExchange, CallsNeedNotCorrespond) {
  World w(3, 2);
  TrafficList all;
  std::vector<std::vector<Call>> calls(3);
  calls[0].resize(1);
  for (int k = 0; k < 70; ++k) {
    all.push_back(std::make_unique<Traffic>(0, 1, static_cast<std::size_t>(400 * k), 0, 0));
    calls[0][0].sends.push_back({1, {all.back()->sent(), all.back()->bytes}});
    calls[1].push_back({{}, {{0, {all.back()->received(), all.back()->bytes}}}});
  }
  run_calls(w, calls, reach, blocks);
  expect_arrived(w, all);
}

/// Rank 0 receives from 1 and 2 in one call. What 1 sends depends on what 2 sends after rank 0 has received
/// from it: neither receive may wait for the other.
TEST_P(GpuExchange, ReceivesOfOneCallDoNotWaitForEachOther) {
  World w(3, 1);
  Traffic a(1, 0, 30'000, 0, 0), b(2, 0, 30'000, 0, 0), c(2, 1, 30'000, 0, 0);
  std::vector<std::vector<Call>> calls(3);
  calls[0] = {{{}, {{1, {a.received(), a.bytes}}, {2, {b.received(), b.bytes}}}}};
  calls[1] = {{{}, {{2, {c.received(), c.bytes}}}}, {{{0, {a.sent(), a.bytes}}}, {}}};
  calls[2] = {{{{0, {b.sent(), b.bytes}}}, {}}, {{{1, {c.sent(), c.bytes}}}, {}}};
  run_calls(w, calls, reach, blocks);
  EXPECT_TRUE(a.arrived() && b.arrived() && c.arrived());
}

TEST_P(GpuExchange, AnotherLengthIsReportedWithBothNumbers) {
  for (const auto& [sent, expected] :
       {std::pair<std::size_t, std::size_t>{8, 40'000}, {40'000, 8}, {100, 104}}) {
    World w(2, 2);
    Traffic m(0, 1, std::max(sent, expected), 0, 0);
    std::vector<std::vector<Call>> calls(2);
    calls[1] = {{{}, {{0, {m.received(), expected}}}}};
    calls[0] = {{{{1, {m.sent(), sent}}}, {}}};
    std::thread end([&] {  // the sender of a long message waits for it to be taken
      while (std::atomic_ref(w.at(1).error.fault).load() == ResidentFault::none) std::this_thread::yield();
      std::atomic_ref(w.at(0).abort).store(1);
    });
    run_calls(w, calls, reach, blocks);
    end.join();
    EXPECT_EQ(w.at(1).error.fault, ResidentFault::counts);
    EXPECT_EQ(w.at(1).error.peer, 0);
    EXPECT_EQ(w.at(1).error.sent, sent);
    EXPECT_EQ(w.at(1).error.expected, expected);
  }
}

/// A rank that has failed moves nothing in later launches.
TEST_P(GpuExchange, DeadlineAndAbortEndEveryWait) {
  for (const bool aborts : {false, true}) {
    World w(2, 2);
    Traffic m(0, 1, 40'000, 0, 0);
    auto packed = pack(w, 1, {{}, {{0, {m.received(), m.bytes}}}}, reach);
    packed->args.deadline_ns = aborts ? 20'000'000'000 : 1'000'000;
    if (aborts) w.at(1).abort = 1;
    run_launch(*packed, blocks);
    EXPECT_EQ(w.at(1).error.fault, aborts ? ResidentFault::aborted : ResidentFault::deadline);
    EXPECT_EQ(w.at(1).error.peer, 0);
    w.at(1).abort = 0, packed->args.deadline_ns = 20'000'000'000;
    run_launch(*packed, blocks);
    EXPECT_TRUE(m.guards_are_intact());
    EXPECT_EQ(m.target[0], std::byte{0xa5});
  }
}

/// A rank that fails keeps the others from reading buffers that it has announced: its program may free them.
TEST(GpuExchangeFailure, RevokesWhatWasAnnounced) {
  World w(2, 2);
  Traffic m(0, 1, 40'000, 0, 0);
  auto sends = pack(w, 0, {{{1, {m.sent(), m.bytes}}}, {}}, Reach::all);
  sends->args.deadline_ns = 5'000'000;
  run_launch(*sends, Blocks::one_thread);
  EXPECT_EQ(w.at(0).error.fault, ResidentFault::deadline);
  EXPECT_EQ(w.at(0).error.peer, 1);
  EXPECT_GE(w.at(0).waits[1], 1u) << "the host is told whom the launch waits for";
  EXPECT_EQ(w.at(0).waits[0], 0u);
  run_launch(*pack(w, 1, {{}, {{0, {m.received(), m.bytes}}}}, Reach::all), Blocks::one_thread);
  EXPECT_EQ(w.at(1).error.fault, ResidentFault::aborted);
  EXPECT_EQ(m.target[0], std::byte{0xa5});
}

/// The shares of the channels are the message, in order.
TEST(GpuExchangeShares, CoverEveryMessage) {
  for (const int channels : {1, 3, 8, 32, 64})
    for (const std::uint64_t bytes : {0ull, 1ull, 16384ull, 16385ull, 100'001ull, 5'000'000ull, 1ull << 40}) {
      const int lanes = exchange_lanes(bytes, channels);
      ASSERT_GE(lanes, 1);
      ASSERT_LE(lanes, channels);
      std::uint64_t at = 0;
      for (int lane = 0; lane < lanes; ++lane) {
        const ExchangeShare share = exchange_share(bytes, lane, lanes);
        EXPECT_TRUE(share.bytes == 0 || share.offset == at);
        at += share.bytes;
      }
      EXPECT_EQ(at, bytes) << bytes << " over " << lanes;
    }
}

TEST(GpuExchangeArguments, AreChecked) {
  World w(2, 2);
  Traffic m(0, 1, 100, 0, 0);
  auto packed = pack(w, 0, {{{1, {m.sent(), m.bytes}}}, {}}, Reach::all);
  const auto refuses = [&](auto&& change) {
    ExchangeArgs a = packed->args;
    change(a);
    return exchange(a).status().reason() == Reason::invalid;
  };
  EXPECT_TRUE(refuses([](ExchangeArgs& a) { a.rank = 2; }));
  EXPECT_TRUE(refuses([](ExchangeArgs& a) { a.channels = 0; }));
  EXPECT_TRUE(refuses([](ExchangeArgs& a) { a.channels = 4; }));
  EXPECT_TRUE(refuses([](ExchangeArgs& a) { a.deadline_ns = 0; }));
  EXPECT_TRUE(refuses([](ExchangeArgs& a) { a.arena[1] = nullptr; }));
  EXPECT_TRUE(refuses([](ExchangeArgs& a) { a.arena[0] = nullptr; }));
  EXPECT_TRUE(refuses([](ExchangeArgs& a) { a.same_process = 2; }));
  EXPECT_TRUE(refuses([](ExchangeArgs& a) { a.receives[2] = 49; }));
  EXPECT_TRUE(refuses([](ExchangeArgs& a) { a.sends[1] = 5; }));
  EXPECT_FALSE(exchange_layout(65, 1).ok());
  EXPECT_FALSE(exchange_layout(2, 0).ok());
}

}  // namespace
}  // namespace ouro::gpu
