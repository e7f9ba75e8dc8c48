// Where the words lie that streams wait for: in memory of the waiting stream's GPU where all ranks' devices
// can, else in pinned memory; and that waits in device memory end as others do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/device_memory/deferred_free.h"
#include "runtime/group/group.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

constexpr std::size_t kCount = 3000;

/// Operations on words since the last look, by where the words are. Pinned words that streams only write say
/// to the host that an operation has ended.
struct Words {
  std::atomic<int> pinned{0}, own{0}, of_others{0}, waits_for_others{0};
  void look_at(gpu::FakeOptions* o) {
    o->on_word = [this, one = o->devices == 1](const gpu::MemOp& op, int device, int memory, bool imported) {
      if (memory < 0) {
        pinned += op.kind != gpu::MemOp::Kind::write;
      } else if (memory == device && (one || !imported)) {
        ++own;
      } else {
        ++of_others;
        waits_for_others += op.kind != gpu::MemOp::Kind::write;
      }
    };
  }
};

struct Seat {
  Floats data;
  Stream stream;
  Status make(Context& c, float value = 1) {
    OURO_TRY(data.make(c, kCount));
    OURO_TRY(data.fill(value));
    OURO_ASSIGN(stream, Stream::create(c.device()));
    return {};
  }
  Result<Work> sum(Group& g) { return all_reduce(g, data.view(), data.view(), ReduceOp::sum, stream); }
};

/// "" if three sums are right.
std::string three_sums(Context& c, Seat& seat) {
  for (int k = 0; k < 3; ++k) OURO_RANK_OK(seat.sum(c.world()));
  OURO_RANK_OK(seat.stream.synchronize());
  OURO_EXPECT_ALL(seat.data, 27.0f);
  return "";
}

struct Case {
  const char* name;
  const char* path;
  int devices;
  bool can;
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }
class WordsPlace : public testing::TestWithParam<std::tuple<Case, Mode>> {};
INSTANTIATE_TEST_SUITE_P(All, WordsPlace,
                         testing::Combine(testing::Values(Case{"leader", "leader", 1, true},
                                                          Case{"leader_refused", "leader", 1, false},
                                                          Case{"stream", "stream", 1, true},
                                                          Case{"stream_apart", "stream", 3, true},
                                                          Case{"stream_refused", "stream", 3, false}),
                                          testing::Values(Mode::threads, Mode::processes)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) + "_" +
                                  name(std::get<1>(info.param));
                         });

TEST_P(WordsPlace, IsInMemoryOfTheGpuWhoseStreamWaits) {
  OURO_NEEDS_FAKES();
  const auto& [test, mode] = GetParam();
  if (mode == Mode::processes) OURO_NEEDS_PROCESSES();
  const ForcedPath forced(test.path);
  Words words;
  gpu::FakeOptions fakes{.devices = test.devices, .multiprocessors = 16, .device_words = test.can};
  words.look_at(&fakes);
  gpu::install(new gpu::FakeGpu(fakes));  // pools of the process keep its events
  const auto run_rank = [&, path = test.path](Context& c) -> std::string {
    Seat seat;
    OURO_RANK_OK(seat.make(c));
    if (std::string said = three_sums(c, seat); !said.empty()) return said;
    OURO_RANK_OK(barrier(c.world()));
    return only_ran(c.world(), path);
  };
  const auto check = [&, &test = test, mode = mode] {
    if (mode == Mode::threads && test.path == std::string_view("leader")) {
      EXPECT_EQ(words.pinned + words.own + words.of_others, 0) << "kernels meet, streams do not wait";
    } else if (!test.can) {
      EXPECT_GT(words.pinned, 0);
      EXPECT_EQ(words.own + words.of_others, 0);
    } else {
      EXPECT_EQ(words.pinned, 0) << "words are in pinned memory";
      EXPECT_GT(words.own, 0);
      EXPECT_EQ(words.of_others > 0, test.devices > 1);
      EXPECT_EQ(words.waits_for_others, 0) << "a stream polls memory of another GPU";
    }
  };
  Watchdog watchdog;
  if (mode == Mode::threads) {
    auto contexts = thread_contexts(3);
    on_threads(3, [&](int rank) { EXPECT_EQ(run_rank(contexts[static_cast<std::size_t>(rank)]), ""); });
    check();
  } else {
    const UniqueId id = new_id();
    Processes ranks(3, [&, devices = test.devices](int rank, Board&) {
      InitOptions o = options(rank, 3, id);
      o.gpu = rank % devices;
      auto c = Context::create(o);
      ASSERT_TRUE(c.ok()) << c.status().message();
      EXPECT_EQ(run_rank(*c), "");
      check();
      EXPECT_TRUE(c->close().ok());
    });
    ranks.join();
  }
  gpu::install(nullptr);
}

/// All ranks decide alike: where one device refuses, no rank's words are in device memory.
TEST(WordsOfRanks, OneRefusingDeviceMovesAllWordsToPinnedMemory) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  for (const char* path : {"leader", "stream"}) {
    const ForcedPath forced(path);
    Watchdog watchdog;
    const UniqueId id = new_id();
    Processes ranks(3, [&](int rank, Board&) {
      Words words;
      gpu::FakeOptions fakes{.multiprocessors = 16, .device_words = rank != 1};
      words.look_at(&fakes);
      gpu::install(new gpu::FakeGpu(fakes));
      auto c = Context::create(options(rank, 3, id));
      ASSERT_TRUE(c.ok()) << c.status().message();
      Seat seat;
      ASSERT_TRUE(seat.make(*c).ok());
      EXPECT_EQ(three_sums(*c, seat), "");
      EXPECT_GT(words.pinned, 0);
      EXPECT_EQ(words.own + words.of_others, 0);
      EXPECT_TRUE(c->close().ok());
    });
    ranks.join();
  }
}

/// Kernels of ranks that are threads run at the same time, and use the words: streams wait for nothing.
TEST(WordsOfRanks, ThreadRanksMeetByKernels) {
  OURO_NEEDS_FAKES();
  constexpr int kRanks = 4, kTimes = 5;
  const ForcedPath forced("leader");
  std::atomic<int> words{0};
  gpu::FakeOptions fakes{.multiprocessors = 16};
  fakes.on_word = [&](const gpu::MemOp&, int, int, bool) { ++words; };
  gpu::install(new gpu::FakeGpu(fakes));
  Watchdog watchdog;
  auto contexts = thread_contexts(kRanks);
  on_threads(kRanks, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    Seat seat;
    ASSERT_TRUE(seat.make(c).ok());
    for (int k = 0; k < kTimes; ++k) ASSERT_TRUE(seat.sum(c.world()).ok());
    ASSERT_TRUE(seat.stream.synchronize().ok());
    EXPECT_EQ(seat.data.expect(1024.0f), "");
    ASSERT_TRUE(barrier(c.world()).ok());
  });
  EXPECT_EQ(words, 0);
  gpu::install(nullptr);
}

/// Under MPS kernels of processes run at the same time, too. A rank whose device does not say so keeps all
/// ranks from relying on it.
TEST(WordsOfRanks, ProcessesMeetByKernelsUnderMps) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  for (const bool all : {true, false}) {
    Watchdog watchdog;
    const UniqueId id = new_id();
    Processes ranks(3, [&](int rank, Board&) {
      std::atomic<int> words{0};
      gpu::FakeOptions fakes{.multiprocessors = 16, .mps = all || rank != 1};
      fakes.on_word = [&](const gpu::MemOp&, int, int, bool) { ++words; };
      gpu::install(new gpu::FakeGpu(fakes));
      auto c = Context::create(options(rank, 3, id));
      ASSERT_TRUE(c.ok()) << c.status().message();
      Seat seat;
      ASSERT_TRUE(seat.make(*c).ok());
      EXPECT_EQ(three_sums(*c, seat), "");
      EXPECT_EQ(only_ran(c->world(), all ? "resident" : "leader"), "");
      const int group[] = {0, 1, 2};
      auto large = c->group(group, "large");
      ASSERT_TRUE(large.ok());
      Floats data;
      constexpr std::size_t kLarge = 100'000;
      ASSERT_TRUE(data.make(*c, kLarge).ok() && data.fill(1).ok());
      for (int k = 0; k < 3; ++k)
        ASSERT_TRUE(all_reduce(*large, data.view(), data.view(), ReduceOp::sum, seat.stream).ok());
      ASSERT_TRUE(seat.stream.synchronize().ok());
      EXPECT_EQ(data.expect(27.0f), "");
      EXPECT_EQ(only_ran(*large, "leader"), "");
      EXPECT_EQ(words == 0, all) << "streams wait for each other only where kernels cannot";
      EXPECT_TRUE(c->close().ok());
    });
    ranks.join();
  }
}

/// A rank may be 64 operations ahead; the sums are right only if the leader waits for the streams of all
/// ranks to reach its own operation.
TEST(WordsOfRanks, LeaderWaitsForTheStreamsOfItsOwnOperation) {
  OURO_NEEDS_FAKES();
  constexpr int kTimes = 300;
  const ForcedPath forced("leader");
  gpu::install(new gpu::FakeGpu({.multiprocessors = 16}));
  Watchdog watchdog;
  auto contexts = thread_contexts(3);
  on_threads(3, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    DeviceArena in, out;
    ASSERT_TRUE(in.make(c, 4, From::ouro).ok());
    ASSERT_TRUE(out.make(c, 4 * kTimes, From::ouro).ok());
    auto s = Stream::create(c.device());
    ASSERT_TRUE(s.ok());
    DeviceArena values;  // each is copied to the input, in the stream, before its operation
    ASSERT_TRUE(values.make(c, 4 * kTimes, From::ouro).ok());
    std::vector<std::byte> bytes(4 * kTimes);
    for (std::int32_t k = 0; k < kTimes; ++k) {
      const std::int32_t v = 10 * k + rank;
      std::memcpy(&bytes[4 * static_cast<std::size_t>(k)], &v, 4);
    }
    ASSERT_TRUE(values.write(bytes).ok());
    const gpu::Stream on{c.device().index, s->cuda_handle()};
    for (std::size_t k = 0; k < kTimes; ++k) {
      if (rank == 2 && k % 70 == 0) std::this_thread::sleep_for(5ms);  // the others come to their limit
      ASSERT_TRUE(gpu::gpu().copy(in.data(), values.data() + 4 * k, 4, on).ok());
      ASSERT_TRUE(all_reduce(c.world(), View(in.data(), 1, DType::i32, c.device()),
                             View(out.data() + 4 * k, 1, DType::i32, c.device()), ReduceOp::sum, *s)
                      .ok());
    }
    ASSERT_TRUE(s->synchronize().ok());
    const auto result = out.read();
    ASSERT_TRUE(result.ok());
    for (std::int32_t k = 0; k < kTimes; ++k) {
      std::int32_t x;
      std::memcpy(&x, &(*result)[4 * static_cast<std::size_t>(k)], 4);
      ASSERT_EQ(x, 30 * k + 3) << "operation " << k;
    }
    ASSERT_TRUE(barrier(c.world()).ok());
  });
  gpu::install(nullptr);
}

/// After a failure, words in device memory are set by a stream, which may lie behind a stream that waits, in
/// a hardware queue that they share: whichever queue that is, the wait ends.
class WordsBehind : public testing::TestWithParam<int> {};
constexpr int kQueues = 16;
INSTANTIATE_TEST_SUITE_P(Streams, WordsBehind, testing::Range(0, kQueues));
TEST_P(WordsBehind, FailureReleasesAWaitInAnyHardwareQueue) {
  OURO_NEEDS_FAKES();
  const ForcedPath forced("leader");
  gpu::install(new gpu::FakeGpu({.multiprocessors = 16, .harsh = {.connections = kQueues}}));
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  on_threads(2, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    const int both[] = {0, 1};
    auto g = c.group(both, "ends");
    ASSERT_TRUE(g.ok());
    Seat seat;
    ASSERT_TRUE(seat.make(c).ok());
    ASSERT_TRUE(seat.sum(*g)->wait().ok());
    ASSERT_TRUE(barrier(c.world()).ok());
    if (rank == 1) {  // it does not come
      std::this_thread::sleep_for(50ms);
      g->abort("enough");
      ASSERT_TRUE(barrier(c.world()).ok());
      return;
    }
    std::vector<Stream> others;
    for (int k = 0; k < GetParam(); ++k) others.push_back(*Stream::create(c.device()));
    const Stream waits = *Stream::create(c.device());
    auto w = all_reduce(*g, seat.data.view(), seat.data.view(), ReduceOp::sum, waits);
    ASSERT_TRUE(w.ok()) << w.status().message();
    EXPECT_THAT(w->wait(), Fails(Reason::revoked));
    Event mark;
    mark.record(waits);
    EXPECT_TRUE(mark.synchronize(kHang).ok()) << "it waits on, behind " << GetParam() << " streams";
    ASSERT_TRUE(barrier(c.world()).ok());
  });
  contexts.clear();
  gpu::install(nullptr);
}

class TimedWordsKill : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, TimedWordsKill,
                         testing::Values(Case{"leader_refused", "leader", 1, false},
                                         Case{"stream_apart", "stream", 4, true},
                                         Case{"stream_refused", "stream", 4, false},
                                         Case{"copies_apart", "copies", 4, true}),
                         [](const auto& info) { return info.param.name; });

/// Rank 0, in whose memory the leader's words are, or another one dies; the others' streams continue in time.
TEST_P(TimedWordsKill, DeathOfARankEndsAllWaits) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  const Case& test = GetParam();
  const ForcedPath forced(test.path);
  for (const int victim : {0, 2}) {
    Watchdog watchdog;
    const UniqueId id = new_id();
    Processes ranks(4, [&](int rank, Board& board) {
      gpu::install(
          new gpu::FakeGpu({.devices = test.devices, .multiprocessors = 16, .device_words = test.can}));
      InitOptions o = options(rank, 4, id);
      o.gpu = rank % test.devices;
      auto c = Context::create(o);
      ASSERT_TRUE(c.ok()) << c.status().message();
      Seat seat;
      ASSERT_TRUE(seat.make(*c, 0).ok());
      const auto operate = [&]() -> Result<Work> {
        if (test.path != std::string_view("copies")) return seat.sum(c->world());
        return broadcast(c->world(), seat.data.view(), seat.data.view(), 1, seat.stream);
      };
      ASSERT_TRUE(operate()->wait().ok());
      board.stage[rank] = 1;
      Status s;
      std::vector<Work> works;
      while (s.ok()) {
        auto w = operate();
        s = w.ok() ? (works.size() % 8 == 7 ? w->wait() : Status()) : w.status();
        if (w.ok()) works.push_back(*w);
      }
      board.heard_ns[rank] = now_ns();
      EXPECT_THAT(s, Fails(Reason::peer_dead, victim));
      Event mark;
      mark.record(seat.stream);
      EXPECT_TRUE(mark.synchronize(kHang).ok()) << "a stream waits on";
      auto rest = c->world().shrink();
      ASSERT_TRUE(rest.ok()) << rest.status().message();
      auto w = all_reduce(*rest, seat.data.view(), seat.data.view(), ReduceOp::max, seat.stream);
      if (test.path != std::string_view("copies")) {
        ASSERT_TRUE(w.ok()) << w.status().message();
        EXPECT_TRUE(w->wait().ok()) << w->wait().message();
      }
      EXPECT_TRUE(rest->close().ok());
    });
    ASSERT_TRUE(ranks.all_reach(1));
    std::this_thread::sleep_for(30ms);
    ranks.kill({victim});
    ranks.join({victim});
    for (int r = 0; r < 4; ++r)
      if (r != victim) {
        EXPECT_LT(std::chrono::nanoseconds(ranks.board().heard_ns[r] - ranks.board().killed_ns), kHardBound);
      }
  }
}

/// The rank that has the words in its memory ends its group while the last operations of the others are in
/// their streams, and they write words there. Nothing of it may be unmapped under them.
TEST(WordsOfRanks, WordsOutliveTheGroupOfTheirOwner) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  for (const auto& [path, devices] : {std::pair("leader", 1), std::pair("stream", 3)}) {
    const ForcedPath forced(path);
    Watchdog watchdog;
    const UniqueId id = new_id();
    Processes ranks(3, [&, path = path, devices = devices](int rank, Board&) {
      auto* const fake = new gpu::FakeGpu(
          {.devices = devices, .multiprocessors = 16, .harsh = {.unmapping_waits = true, .patience = 1s}});
      gpu::install(fake);
      InitOptions o = options(rank, 3, id);
      o.gpu = rank % devices;
      auto c = Context::create(o);
      ASSERT_TRUE(c.ok()) << c.status().message();
      const int all[] = {0, 1, 2};
      Seat seat;
      ASSERT_TRUE(seat.make(*c).ok());
      for (int turn = 0; turn < 5; ++turn) {
        auto g = c->group(all, fmt::format("group {}", turn));
        ASSERT_TRUE(g.ok()) << g.status().message();
        ASSERT_TRUE(seat.sum(*g)->wait().ok());
        if (rank != 0) fake->delay(gpu::FakeOp::mem_op, 20ms);
        Work last;
        for (int k = 0; k < 3; ++k) {
          auto w = seat.sum(*g);
          ASSERT_TRUE(w.ok()) << w.status().message();
          last = *w;
        }
        EXPECT_TRUE(last.wait().ok()) << last.wait().message();
        EXPECT_EQ(only_ran(*g, path), "");
        EXPECT_TRUE(g->close().ok());
        rt::free_if_idle();
        fake->delay(gpu::FakeOp::mem_op, 0us);
      }
      EXPECT_TRUE(seat.stream.synchronize().ok());
      EXPECT_EQ(fake->stalls(), 0);
      EXPECT_TRUE(c->close().ok());
    });
    ranks.join();
  }
}

/// Between GPUs, each slot has a word in the memory of each end; captured and replayed between eager
/// operations, all are 0 again when nothing is under way.
TEST(WordsOfRanks, WordsBetweenGpusServeGraphsAndEagerOperations) {
  OURO_NEEDS_FAKES();
  const ForcedPath forced("stream");
  gpu::install(new gpu::FakeGpu({.devices = 3, .multiprocessors = 16}));
  Watchdog watchdog;
  auto contexts = thread_contexts(3);
  on_threads(3, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    auto made = gpu::gpu().create_stream(c.device().index, 0);
    ASSERT_TRUE(made.ok());
    Seat seat;
    ASSERT_TRUE(seat.make(c).ok());
    seat.stream = *Stream::cuda(made->handle, made->device);
    ASSERT_TRUE(seat.sum(c.world())->wait().ok());
    ASSERT_TRUE(barrier(c.world()).ok());
    ASSERT_TRUE(gpu::gpu().begin_capture(*made).ok());
    ASSERT_TRUE(seat.sum(c.world()).ok());
    auto graph = gpu::gpu().end_capture(*made);
    ASSERT_TRUE(graph.ok());
    for (int k = 0; k < 4; ++k) {
      ASSERT_TRUE(gpu::gpu().launch(*graph, *made).ok());
      ASSERT_TRUE(seat.sum(c.world()).ok());
    }
    ASSERT_TRUE(seat.stream.synchronize().ok());
    EXPECT_EQ(seat.data.expect(19683.0f), "");
    EXPECT_EQ(only_ran(c.world(), "stream"), "");
    ASSERT_TRUE(barrier(c.world()).ok());
    ASSERT_TRUE(gpu::gpu().destroy_graph(*graph).ok());
  });
  gpu::install(nullptr);
}

}  // namespace
}  // namespace ouro::test
