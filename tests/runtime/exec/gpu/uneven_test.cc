// Uneven operations on the resident path: blocks of very different lengths and empty ones, by pointer and
// over slots; counts that disagree; graphs; a rank that is killed. collectives_test.cc has lengths that are
// alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <optional>
#include <thread>

#include "runtime/group/group.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

using gpu::gpu;
using Counts = std::vector<std::size_t>;
using Length = std::function<std::size_t(int from, int to)>;

/// Most pairs exchange nothing or a few elements; one rank receives nearly all of the data.
std::size_t skewed(int from, int to) {
  if (to == 1) return from == 0 ? 120'001 : 40'000;
  const int kind = (3 * from + to) % 4;
  return kind == 0 ? 0 : kind == 1 ? 1 : kind == 2 ? 77 : 2'050;
}

/// What rank `from` sends to rank `to`, and one rank's side of a call.
struct Pairs {
  int n;
  Length length;
  Counts sent(int r) const {
    Counts all;
    for (int to = 0; to < n; ++to) all.push_back(length(r, to));
    return all;
  }
  Counts received(int r) const {
    Counts all;
    for (int from = 0; from < n; ++from) all.push_back(length(from, r));
    return all;
  }
  static std::size_t sum(const Counts& c) { return std::accumulate(c.begin(), c.end(), std::size_t{0}); }
  /// Exact in a float, and another one at each place.
  static float value(int from, int to, std::size_t i) {
    return static_cast<float>(from * 1'000'003 + to * 130'003) + static_cast<float>(i);
  }
};

/// The buffers of one rank in one allocation, with a guard float around each. `skew` shifts both buffers by
/// as many floats.
struct Room {
  DeviceArena arena;
  std::size_t in = 0, out = 0, floats = 0;
  Device device;
  Counts sent, received;

  Status make(Context& c, const Pairs& p, From from, std::size_t skew) {
    sent = p.sent(c.rank()), received = p.received(c.rank());
    in = 1 + skew, out = in + Pairs::sum(sent) + 1 + skew;
    floats = out + Pairs::sum(received) + 1;
    device = c.device();
    return arena.make(c, 4 * floats, from);
  }
  CView input() const { return CView(at(in), Pairs::sum(sent), DType::f32, device); }
  View output() const { return View(at(out), Pairs::sum(received), DType::f32, device); }
  float* at(std::size_t i) const { return reinterpret_cast<float*>(arena.data()) + i; }

  Status fill(int rank) {
    std::vector<float> all(floats, -1);
    std::size_t i = in;
    for (std::size_t to = 0; to < sent.size(); ++to)
      for (std::size_t k = 0; k < sent[to]; ++k) all[i++] = Pairs::value(rank, static_cast<int>(to), k);
    std::vector<std::byte> bytes(4 * floats);
    std::memcpy(bytes.data(), all.data(), bytes.size());
    return arena.write(bytes);
  }
  /// "" if the output has what the others had for this rank, and nothing else has changed.
  std::string check(int rank) {
    auto bytes = arena.read(4 * floats);
    OURO_RANK_OK(bytes);
    std::vector<float> all(floats);
    std::memcpy(all.data(), bytes->data(), bytes->size());
    std::size_t i = out;
    for (std::size_t from = 0; from < received.size(); ++from)
      for (std::size_t k = 0; k < received[from]; ++k, ++i)
        OURO_RANK_CHECK(all[i] == Pairs::value(static_cast<int>(from), rank, k),
                        "element {} from rank {}: {}", k, from, all[i]);
    OURO_RANK_CHECK(all[in - 1] == -1 && all[out - 1] == -1 && all[floats - 1] == -1, "beside a buffer");
    i = in;
    for (std::size_t to = 0; to < sent.size(); ++to)
      for (std::size_t k = 0; k < sent[to]; ++k, ++i)
        OURO_RANK_CHECK(all[i] == Pairs::value(rank, static_cast<int>(to), k), "the input has changed");
    return "";
  }
  Status call(Group& g) const { return all_to_all_v(g, input(), output(), sent, received); }
};

class GpuUneven : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, GpuUneven, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return std::string(name(info.param)); });

/// Calls run by pointer from the third one on, as even operations do. Other processes do not map the driver's
/// memory, so calls on it run over slots.
std::string exchange_pairs(Context& c, int n, Mode mode) {
  Group& g = c.world();
  Room rooms[2][2];
  const Pairs lengths[2] = {
      {n, skewed}, {n, [](int from, int to) { return std::size_t{from == 1 && to == 0 ? 50'001u : 0u}; }}};
  for (int from : {0, 1})
    for (int k : {0, 1})
      OURO_RANK_OK(rooms[from][k].make(c, lengths[k], from == 0 ? From::ouro : From::driver,
                                       static_cast<std::size_t>(k)));
  int calls = 0;
  for (auto& room : rooms) {
    const bool mapped = mode == Mode::threads || &room == &rooms[0];
    for (int turn = 0; turn < 8; ++turn, ++calls) {
      Room& r = room[turn / 4];
      OURO_RANK_OK(r.fill(g.rank()));
      OURO_RANK_OK(barrier(g));
      const std::uint64_t before = g.impl()->gpu_named();
      OURO_RANK_OK(r.call(g));
      if (const std::string said = r.check(g.rank()); !said.empty())
        return fmt::format("call {}: {}", calls, said);
      if (turn % 4 == 3 && mapped)
        OURO_RANK_CHECK(g.impl()->gpu_named() == before + 1, "call {} goes over slots", calls);
    }
  }
  return only_ran(g, "resident");
}

TEST_P(GpuUneven, VeryUnevenPairsAreExact) {
  OURO_NEEDS_GPU();
  const Mode mode = GetParam();
  OURO_SKIP_PROCESSES_UNDER_TSAN(mode);
  OURO_NEEDS_GPU_EACH("resident", mode, 3);
  const ForcedPath path("resident", mode);
  for (int n : mode == Mode::threads ? std::vector<int>{2, 3} : std::vector<int>{3}) {
    ASSERT_EQ(run(mode, n, [&](Context& c) { return exchange_pairs(c, n, mode); }), "") << n << " ranks";
  }
}

/// Two ranks pass different numbers for the same block: the call and later ones fail on all ranks.
std::string disagree(Context& c) {
  Group& g = c.world();
  const Pairs pairs{g.size(), [](int from, int to) { return static_cast<std::size_t>(100 + from + to); }};
  Room room;
  OURO_RANK_OK(room.make(c, pairs, From::ouro, 0));
  for (int turn = 0; turn < 4; ++turn) {
    OURO_RANK_OK(room.fill(g.rank()));
    OURO_RANK_OK(barrier(g));
    OURO_RANK_OK(room.call(g));
    if (const std::string said = room.check(g.rank()); !said.empty()) return said;
    OURO_RANK_OK(barrier(g));
  }
  if (g.rank() == 1) room.sent[0] -= 7;  // its blocks for others begin earlier, too
  for (int turn = 0; turn < 2; ++turn) {
    const Status s = room.call(g);
    OURO_RANK_CHECK(s.reason() == Reason::mismatch && s.failure()->rank == 1, "{}", s.message());
    OURO_RANK_CHECK(
        s.message().find("it sends 94 elements to rank 0, which expects 101") != std::string::npos, "{}",
        s.message());
  }
  return "";
}

TEST(GpuUnevenFailure, CountsThatDisagreeAreNamed) {
  OURO_NEEDS_GPU();
  const ForcedPath path("resident");
  for (int n : {2, 3}) EXPECT_EQ(run_threads(n, disagree), "") << n << " ranks";
}

/// Arrival records have no room for the lengths of nine ranks, so only the kernels compare them. By default
/// an emulated device has too few multiprocessors for nine ranks.
class GpuUnevenMany : public testing::Test {
 protected:
  void SetUp() override {
    OURO_NEEDS_FAKES();
    gpu::install(&fake_.emplace(gpu::FakeOptions{.devices = 1, .multiprocessors = 64}));
  }
  void TearDown() override {
    if (fake_) gpu::install(nullptr);
  }

 private:
  std::optional<gpu::FakeGpu> fake_;
};

TEST_F(GpuUnevenMany, VeryUnevenPairsAreExact) {
  const ForcedPath path("resident");
  EXPECT_EQ(run_threads(9, [](Context& c) { return exchange_pairs(c, 9, Mode::threads); }), "");
}
TEST_F(GpuUnevenMany, CountsThatDisagreeAreNamed) {
  const ForcedPath path("resident");
  EXPECT_EQ(run_threads(9, disagree), "");
}

TEST(GpuUnevenFailure, InPlaceIsRefused) {
  OURO_NEEDS_GPU();
  const ForcedPath path("resident");
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    Floats x;
    OURO_RANK_OK(x.make(c, 60));
    OURO_RANK_OK(x.fill(1));
    const Counts each(3, 20);
    const Status s = all_to_all_v(g, x.view(), x.view(), each, each);
    OURO_RANK_CHECK(s.reason() == Reason::invalid, "{}", s.message());
    OURO_RANK_OK(g.status());
    OURO_RANK_OK(all_reduce(g, x.view(), x.view()));
    OURO_EXPECT_ALL(x, 3);
    return only_ran(g, "resident");
  };
  EXPECT_EQ(run_threads(3, body), "");
}

/// A captured call keeps its lengths at each replay, also between calls with other lengths.
TEST(GpuUnevenGraphs, ReplayKeepsTheLengthsOfTheCapture) {
  OURO_NEEDS_GPU();
  const ForcedPath path("resident");
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    auto made = gpu().create_stream(c.device().index, 0);
    OURO_RANK_OK(made);
    {
      auto s = Stream::cuda(made->handle, made->device);
      OURO_RANK_OK(s);
      const Pairs pairs{3, skewed}, others{3, [](int from, int to) { return std::size_t(50 * from + to); }};
      Room captured, between;
      OURO_RANK_OK(captured.make(c, pairs, From::ouro, 1));
      OURO_RANK_OK(between.make(c, others, From::ouro, 0));
      OURO_RANK_OK(captured.fill(g.rank()));
      OURO_RANK_OK(captured.call(g));
      OURO_RANK_OK(barrier(g));
      OURO_RANK_OK(gpu().begin_capture(*made));
      OURO_RANK_OK(
          all_to_all_v(g, captured.input(), captured.output(), captured.sent, captured.received, *s));
      auto graph = gpu().end_capture(*made);
      OURO_RANK_OK(graph);
      for (int turn = 0; turn < 4; ++turn) {
        OURO_RANK_OK(captured.fill(g.rank()));
        OURO_RANK_OK(between.fill(g.rank()));
        OURO_RANK_OK(barrier(g));
        OURO_RANK_OK(gpu().launch(*graph, *made));
        OURO_RANK_OK(all_to_all_v(g, between.input(), between.output(), between.sent, between.received, *s));
        OURO_RANK_OK(s->synchronize());
        if (const std::string said = captured.check(g.rank()); !said.empty()) return "captured: " + said;
        if (const std::string said = between.check(g.rank()); !said.empty()) return "between: " + said;
        OURO_RANK_OK(barrier(g));  // nobody fills again what others still read
      }
      OURO_RANK_OK(gpu().destroy_graph(*graph));
      OURO_RANK_OK(barrier(g));
    }
    OURO_RANK_OK(gpu().destroy_stream(*made));
    return only_ran(g, "resident");
  };
  EXPECT_EQ(run_threads(3, body), "");
}

/// One thread enqueues the call of each rank in full before the next, as in harsh_test.cc.
TEST(GpuUnevenDriver, NothingIsAllocatedOrLoadedWhileOthersWait) {
  OURO_NEEDS_FAKES();
  const ForcedPath path("resident");
  auto* const fake =
      new gpu::FakeGpu({.devices = 3,
                        .multiprocessors = 16,
                        .harsh = {.lazy_loading = true,
                                  .allocation_waits = true,
                                  .patience = 1000ms}});  // pools of the process keep events of it
  gpu::install(fake);
  {
    Watchdog watchdog;
    InitOptions o;
    o.deadline = 5s;
    auto contexts = thread_contexts(3, o);
    std::vector<Room> rooms(3);
    std::vector<Stream> streams;
    for (std::size_t r = 0; r < 3; ++r) {
      ASSERT_TRUE(rooms[r].make(contexts[r], {3, skewed}, From::ouro, 0).ok());
      ASSERT_TRUE(rooms[r].fill(static_cast<int>(r)).ok());
      streams.push_back(*Stream::create(contexts[r].device()));
    }
    for (int k = 0; k < 4; ++k) {
      std::vector<Work> works;
      for (std::size_t r = 0; r < 3; ++r) {
        const Room& x = rooms[r];
        auto w = all_to_all_v(contexts[r].world(), x.input(), x.output(), x.sent, x.received, streams[r]);
        ASSERT_TRUE(w.ok()) << "rank " << r << ": " << w.status().message();
        works.push_back(*w);
      }
      for (const Work& w : works) EXPECT_TRUE(w.wait().ok()) << w.wait().message();
    }
    for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(rooms[r].check(static_cast<int>(r)), "");
    EXPECT_EQ(fake->stalls(), 0);
  }
  gpu::install(nullptr);
}

/// A canonical sum takes the resident path, which has rank order; a named algorithm takes the stream-ordered
/// path.
TEST(GpuUnevenPaths, CanonicalSumsAndNamedAlgorithmsSelectTheirPaths) {
  OURO_NEEDS_FAKES();
  const FakeForEach fakes({.multiprocessors = 16});
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    const rt::Operation sum{.collective = Collective::reduce_scatter,
                            .in = CView(nullptr, 0, DType::f32, c.device()),
                            .out = View(nullptr, 0, DType::f32, c.device()),
                            .numerics = Numerics::canonical,
                            .uneven = true};
    auto why = g.impl()->explain(sum);
    OURO_RANK_OK(why);
    OURO_RANK_CHECK(why->starts_with("resident: "), "{}", *why);
    rt::Operation named = sum;
    named.numerics = Numerics::fast, named.algorithm = "ring";
    why = g.impl()->explain(named);
    OURO_RANK_OK(why);
    OURO_RANK_CHECK(*why == "stream-ordered ring: asked for by name", "{}", *why);
    return "";
  };
  EXPECT_EQ(run_threads(3, body), "");
}

TEST(TimedGpuUneven, RankKilledInMidCollectiveFailsItOnTheOthers) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  const FakeForEach fakes({.multiprocessors = 16});
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(3, [&](int rank, Board& board) {
    auto joined = Context::create(options(rank, 3, id));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    Room room;
    ASSERT_TRUE(room.make(*joined, {3, skewed}, From::ouro, 0).ok());
    ASSERT_TRUE(room.fill(rank).ok());
    ASSERT_TRUE(room.call(joined->world()).ok());
    board.stage[rank] = 1;
    Status s;
    while (s.ok()) s = room.call(joined->world());
    board.heard_ns[rank] = now_ns();
    EXPECT_THAT(s, Fails(Reason::peer_dead, 2));
    EXPECT_THAT(room.call(joined->world()), Fails(Reason::peer_dead, 2));  // it sticks
    auto rest = joined->world().shrink();
    ASSERT_TRUE(rest.ok()) << rest.status().message();
    Room fewer;
    ASSERT_TRUE(fewer.make(*joined, {2, skewed}, From::ouro, 0).ok());
    ASSERT_TRUE(fewer.fill(rank).ok());
    EXPECT_TRUE(fewer.call(*rest).ok());
    EXPECT_EQ(fewer.check(rank), "");
    EXPECT_EQ(only_ran(*rest, "resident"), "");
    EXPECT_TRUE(rest->close().ok());
  });
  ASSERT_TRUE(ranks.all_reach(1));
  std::this_thread::sleep_for(30ms);
  ranks.kill({2});
  ranks.join({2});
  for (int r : {0, 1})
    EXPECT_LT(std::chrono::nanoseconds(ranks.board().heard_ns[r] - ranks.board().killed_ns), kHardBound);
}

}  // namespace
}  // namespace ouro::test
