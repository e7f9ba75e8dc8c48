// Large operations on the staged path: pieces are copied down, sent over the network and copied up in an
// overlapping pipeline, with the same results and few pinned bytes; and errors in between. On emulated
// devices that record their copies.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/exec/gpu/staged_cut.h"
#include "runtime/group/group.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"
#include "tests/runtime/group/exchange.h"

namespace ouro::test {
namespace {

using rt::StagedCut;
using namespace std::chrono_literals;

constexpr std::size_t kPiece = StagedCut::kPiece / 4;  // floats of one piece
constexpr std::size_t kSlots = StagedCut::kSlots;

/// Records the copies that the devices of this process have started between a buffer and the host.
class Copies {
 public:
  static Copies& seen() {
    static Copies copies;
    return copies;
  }
  void watch(const std::byte* buffer, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    buffer_ = buffer, bytes_ = bytes;
    began_.clear();
    first_ = last_ = nullptr;
  }
  /// Number of copies that have started, down or up.
  std::size_t many(bool up) {
    std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(began_.begin(), began_.end(), [&](const auto& c) { return c.first == up; }));
  }
  /// The position of a piece's copy in the order in which all copies started; -1: it has not started.
  int place(bool up, std::size_t piece) {
    std::lock_guard lock(mutex_);
    const auto at = std::find(began_.begin(), began_.end(), std::pair(up, piece));
    return at == began_.end() ? -1 : static_cast<int>(at - began_.begin());
  }
  /// Bytes of host memory between the first and the last address that was copied to or from.
  std::size_t host_bytes() {
    std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(last_ - first_);
  }
  void copying(const void* to, const void* from, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    const auto* const t = static_cast<const std::byte*>(to);
    const auto* const f = static_cast<const std::byte*>(from);
    const bool up = t >= buffer_ && t < buffer_ + bytes_, down = f >= buffer_ && f < buffer_ + bytes_;
    if (up == down) return;
    const std::byte* const host = up ? f : t;
    if (!first_ || host < first_) first_ = host;
    last_ = std::max(last_, host + bytes);
    began_.emplace_back(up, static_cast<std::size_t>((up ? t : f) - buffer_) / StagedCut::kPiece);
    if (dies_at_ && up && began_.back().second == *dies_at_) raise(SIGKILL);
  }
  /// Ends the process when the copy up of a piece starts.
  void die_at(std::size_t piece) {
    std::lock_guard lock(mutex_);
    dies_at_ = piece;
  }

 private:
  std::mutex mutex_;
  const std::byte* buffer_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<std::pair<bool, std::size_t>> began_;  // up, piece
  const std::byte *first_ = nullptr, *last_ = nullptr;
  std::optional<std::size_t> dies_at_;
};

class StagedPieces : public testing::Test {
 protected:
  void SetUp() override {
    OURO_NEEDS_FAKES();
    OURO_SKIP_PROCESSES_UNDER_TSAN(Mode::processes);
    gpu::FakeOptions options;
    options.copying = [](const void* to, const void* from, std::size_t bytes) {
      Copies::seen().copying(to, from, bytes);
    };
    fake_ = std::make_unique<gpu::FakeGpu>(options);
    gpu::install(fake_.get());
  }
  void TearDown() override { gpu::install(nullptr); }
  std::unique_ptr<gpu::FakeGpu> fake_;
  const ForcedPath path_{"staged"};
};

/// Rank 1 does not enter before rank 0 has copied down everything that it may: then the network part of no
/// piece has ended, but the pieces after the first are already down.
TEST_F(StagedPieces, NextPieceIsCopiedWhileOneIsOnTheNetwork) {
  constexpr std::size_t kPieces = 7, kCount = (kPieces - 1) * kPiece + 12'345;
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    const int both[] = {0, 1};
    auto gate = c.group(both, "gate");
    OURO_RANK_OK(gate);
    Floats v;
    OURO_RANK_OK(v.make(c, kCount));
    OURO_RANK_OK(v.fill(static_cast<float>(1 + g.rank())));
    auto s = Stream::create(c.device());
    OURO_RANK_OK(s);
    Copies& copies = Copies::seen();
    copies.watch(v.arena.data(), 4 * kCount);
    if (g.rank() == 1) OURO_RANK_OK(barrier(*gate));
    auto w = all_reduce(g, v.view(), v.view(), ReduceOp::sum, *s);
    OURO_RANK_OK(w);
    if (g.rank() == 0) {
      OURO_RANK_CHECK(eventually([&] { return copies.many(false) >= kSlots; }), "{} are down",
                      copies.many(false));
      OURO_RANK_CHECK(copies.many(true) == 0, "a copy up before the network");
      OURO_RANK_CHECK(copies.many(false) == kSlots, "more than the slots");
      OURO_RANK_OK(barrier(*gate));
    }
    OURO_RANK_OK(w->wait());
    OURO_RANK_CHECK(copies.many(false) == kPieces && copies.many(true) == kPieces, "{} down, {} up",
                    copies.many(false), copies.many(true));
    for (std::size_t k = kSlots; k < kPieces; ++k)
      OURO_RANK_CHECK(copies.place(false, k) > copies.place(true, k - kSlots), "piece {} took a slot in use",
                      k);
    if (g.rank() == 0)
      for (std::size_t k = 0; k + 1 < kSlots; ++k)
        OURO_RANK_CHECK(copies.place(false, k + 1) < copies.place(true, k), "piece {} waited", k + 1);
    OURO_RANK_CHECK(copies.host_bytes() <= kSlots * StagedCut::kPiece, "{} bytes of the host for {}",
                    copies.host_bytes(), 4 * kCount);
    OURO_EXPECT_ALL(v, 3.0f);
    return only_ran(g, "staged");
  };
  ASSERT_EQ(run_processes(2, body), "");
}

/// Pieces start on a thread of the driver, behind slow work. A function enqueued behind them allocates pinned
/// memory, for which the driver waits until they have ended.
TEST_F(StagedPieces, FunctionBehindPiecesDoesNotDeadlockThem) {
  // It is kept for good: events of it may be in pools.
  static auto& fake = *new gpu::FakeGpu({.harsh = {.allocation_waits = true, .patience = 3000ms}});
  gpu::install(&fake);
  constexpr std::size_t kSmall = 1000;
  const auto body = [](Context& c) -> std::string {
    Floats a, slow;
    OURO_RANK_OK(a.make(c, 4 * kPiece));
    OURO_RANK_OK(a.fill(1));
    OURO_RANK_OK(slow.make(c, kSmall));
    auto native = gpu::gpu().create_stream(c.device().index, 0);
    OURO_RANK_OK(native);
    auto s = Stream::cuda(native->handle, c.device().index);
    OURO_RANK_OK(s);
    const View v = a.view();
    OURO_RANK_OK(all_reduce(c.world(), v, v, ReduceOp::max, *s)->wait());  // allocates what pieces need
    const int before = fake.stalls();
    fake.delay(gpu::FakeOp::set, 300ms);
    OURO_RANK_OK(gpu::gpu().set(slow.arena.data(), 0, 4 * kSmall, *native));
    auto w = all_reduce(c.world(), v, v, ReduceOp::max, *s);
    OURO_RANK_OK(w);
    auto behind = s->run([] { return Status(); });
    OURO_RANK_OK(w->wait());
    OURO_RANK_OK(behind.wait());
    OURO_RANK_CHECK(fake.stalls() == before, "the driver waited for the function, and that for the driver");
    return only_ran(c.world(), "staged");
  };
  EXPECT_EQ(run_processes(2, body), "");
}

/// The result has the rank order of the operation in one part, wherever pieces end; and nothing else
/// is written.
TEST_F(StagedPieces, GiveTheBitsOfTheHost) {
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    for (const auto& [count, in_place] : {std::pair(2 * kPiece + 1, true), {3 * kPiece + 777, false}}) {
      std::vector<float> in(count), expected(count);
      std::uint32_t x = 7u + static_cast<std::uint32_t>(g.rank());
      for (float& v : in) v = static_cast<float>((x = x * 1664525u + 1013904223u) >> 8) * 1e-3f;
      const CallOptions exact{.numerics = Numerics::canonical};
      OURO_RANK_OK(
          all_reduce(g, std::span<const float>(in), std::span<float>(expected), ReduceOp::sum, exact));
      DeviceArena from, to;
      OURO_RANK_OK(from.make(c, 4 * count + 64, From::driver));
      OURO_RANK_OK(to.make(c, 4 * count + 64, From::ouro));
      std::vector<std::byte> bytes(4 * count + 64, std::byte{0xA5});
      std::memcpy(bytes.data(), in.data(), 4 * count);
      OURO_RANK_OK(from.write(bytes));
      std::vector<std::byte> wanted = bytes;
      std::memcpy(wanted.data(), expected.data(), 4 * count);
      OURO_RANK_OK(to.write(std::vector(bytes.size(), std::byte{0xA5})));
      DeviceArena& out = in_place ? from : to;
      OURO_RANK_OK(all_reduce(g, CView(from.data(), count, DType::f32, c.device()),
                              View(out.data(), count, DType::f32, c.device()), ReduceOp::sum, exact));
      auto after = out.read();
      OURO_RANK_OK(after);
      OURO_RANK_CHECK(*after == wanted, "{} elements, in place: {}", count, in_place);
      OURO_RANK_OK(barrier(g));
    }
    return only_ran(g, "staged");
  };
  ASSERT_EQ(run_processes(3, body), "");
}

/// For collectives over blocks, a piece is a part of each block. Tested in place too, and for ranks that only
/// read or write.
TEST_F(StagedPieces, EveryCollectiveIsExact) {
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    const int r = g.rank();
    for (int i = 1; i < static_cast<int>(Collective::barrier); ++i) {
      Exchange x{{static_cast<Collective>(i)}, 2, 0, 1};
      const bool blocks = x.blocks_in() || x.blocks_out();
      x.count = 2 * kPiece + (blocks ? kPiece / 2 : 0) + 1;  // blocks: more pieces than slots
      const bool in_place = blocks;
      const std::size_t in = x.in_count(r), out = x.out_count(r);
      DeviceArena large, small;
      OURO_RANK_OK(large.make(c, 4 * std::max(in, out), From::ouro));
      OURO_RANK_OK(small.make(c, 4 * std::min(in, out), From::driver));
      std::byte* at[] = {in < out ? small.data() : large.data(), in < out ? large.data() : small.data()};
      if (in_place && x.reads(r) && x.writes(r)) at[in < out ? 0 : 1] = large.data() + 4 * x.in_place_at(r);
      std::vector<float> host(in);
      for (std::size_t k = 0; k < in; ++k) host[k] = Exchange::value(r, k);
      auto s = gpu::gpu().create_stream(c.device().index, 0);
      OURO_RANK_OK(s);
      OURO_RANK_OK(gpu::gpu().copy(at[0], host.data(), 4 * in, *s));
      OURO_RANK_OK(gpu::gpu().synchronize(*s));
      Copies::seen().watch(x.reads(r) ? at[0] : at[1], 4 * (x.reads(r) ? in : out));
      const CView input = x.reads(r) ? CView(at[0], in, DType::f32, c.device()) : CView();
      const View output = x.writes(r) ? View(at[1], out, DType::f32, c.device()) : View();
      OURO_RANK_OK(x.call(g, input, output, {}));
      OURO_RANK_CHECK(Copies::seen().many(!x.reads(r)) >= StagedCut::kFewest, "{} was not cut", i);
      if (x.writes(r)) {
        std::vector<float> found(out);
        OURO_RANK_OK(gpu::gpu().copy(found.data(), at[1], 4 * out, *s));
        OURO_RANK_OK(gpu::gpu().synchronize(*s));
        OURO_RANK_CHECK(found == x.expected(r), "{} in place: {}", i, in_place);
      }
      OURO_RANK_OK(gpu::gpu().destroy_stream(*s));
      OURO_RANK_OK(barrier(g));
    }
    return only_ran(g, "staged");
  };
  ASSERT_EQ(run_processes(2, body), "");
}

/// Of uneven blocks a piece has the same range of each, as far as it has one: short blocks end before the
/// last piece, and a rank may have nothing. In place and not, with the bits of the host.
TEST_F(StagedPieces, UnevenBlocksAreCutToo) {
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    const auto r = static_cast<std::size_t>(g.rank());
    const CallOptions exact{.numerics = Numerics::canonical};
    for (const auto& counts : {std::vector<std::size_t>{3 * kPiece + 77, 0, kPiece / 2 + 1},
                               std::vector<std::size_t>{5, kPiece + 1, 2 * kPiece}}) {
      std::size_t all = 0, before = 0;
      for (std::size_t b = 0; b < counts.size(); ++b) before += b < r ? counts[b] : 0, all += counts[b];
      const std::size_t mine = counts[r];
      std::vector<float> in(all), gathered(all), reduced(mine);
      std::uint32_t x = 3u + static_cast<std::uint32_t>(r);
      for (float& v : in) v = static_cast<float>((x = x * 1664525u + 1013904223u) >> 8) * 1e-3f;
      const auto at = static_cast<std::ptrdiff_t>(before);
      const std::vector<float> block(in.begin() + at, in.begin() + at + static_cast<std::ptrdiff_t>(mine));
      OURO_RANK_OK(all_gather_v(g, std::span<const float>(block), std::span<float>(gathered), counts));
      OURO_RANK_OK(reduce_scatter_v(g, std::span<const float>(in), std::span<float>(reduced), counts,
                                    ReduceOp::sum, exact));
      DeviceArena whole, part;
      OURO_RANK_OK(whole.make(c, 4 * all, From::ouro));
      OURO_RANK_OK(part.make(c, 4 * mine + 4, From::driver));
      const auto write = [](DeviceArena& to, const std::vector<float>& from) {
        std::vector<std::byte> bytes(4 * from.size());
        std::memcpy(bytes.data(), from.data(), bytes.size());
        return bytes.empty() ? Status() : to.write(bytes);
      };
      const auto has = [](DeviceArena& on, std::size_t from, const std::vector<float>& expected) {
        auto bytes = on.read();
        return bytes.ok() && (expected.empty() || std::memcmp(bytes->data() + 4 * from, expected.data(),
                                                              4 * expected.size()) == 0);
      };
      for (const bool in_place : {false, true}) {
        std::byte* const own = in_place ? whole.data() + 4 * before : part.data();
        const CView in_block(own, mine, DType::f32, c.device());
        const View out_block(own, mine, DType::f32, c.device());
        const View region(whole.data(), all, DType::f32, c.device());
        OURO_RANK_OK(write(whole, in_place ? in : std::vector<float>(all, -1)));
        OURO_RANK_OK(write(part, block));
        Copies::seen().watch(whole.data(), 4 * all);
        OURO_RANK_OK(all_gather_v(g, in_block, region, counts));
        OURO_RANK_CHECK(Copies::seen().many(true) > counts.size() - 1, "all_gather_v was not cut");
        OURO_RANK_CHECK(Copies::seen().host_bytes() < 4 * all || all < 4 * kPiece, "{} bytes of the host",
                        Copies::seen().host_bytes());
        OURO_RANK_CHECK(has(whole, 0, gathered), "all_gather_v, in place: {}", in_place);
        OURO_RANK_OK(write(whole, in));
        Copies::seen().watch(whole.data(), 4 * all);
        OURO_RANK_OK(reduce_scatter_v(g, region, out_block, counts, ReduceOp::sum, exact));
        OURO_RANK_CHECK(Copies::seen().many(false) > counts.size() - 1, "reduce_scatter_v was not cut");
        OURO_RANK_CHECK(has(in_place ? whole : part, in_place ? before : 0, reduced),
                        "reduce_scatter_v, in place: {}", in_place);
        OURO_RANK_OK(barrier(g));
      }
    }
    return only_ran(g, "staged");
  };
  ASSERT_EQ(run_processes(3, body), "");
}

/// Lengths that differ among ranks are found in the first piece, and streams continue.
TEST_F(StagedPieces, LengthsThatDifferAreAMismatch) {
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    std::vector<std::size_t> counts{kPiece / 4, 4 * kPiece};
    Floats whole;
    OURO_RANK_OK(whole.make(c, counts[0] + counts[1] + 1));
    if (g.rank() == 0) counts[1] += 1;
    auto s = Stream::create(c.device());
    OURO_RANK_OK(s);
    const std::size_t at = g.rank() == 0 ? 0 : counts[0];
    const CView mine(whole.arena.data() + 4 * at, counts[static_cast<std::size_t>(g.rank())], DType::f32,
                     c.device());
    const View region(whole.arena.data(), counts[0] + counts[1], DType::f32, c.device());
    auto w = all_gather_v(g, mine, region, counts, *s);
    const Status said = w.ok() ? w->wait() : w.status();
    OURO_RANK_CHECK(said.reason() == Reason::mismatch, "{}", said.message());
    Event mark;
    mark.record(*s);
    OURO_RANK_OK(mark.synchronize(Milliseconds(20'000)));
    return "";
  };
  ASSERT_EQ(run_processes(2, body), "");
}

/// Ranks that disagree detect this in the first piece: an in-place buffer is unchanged, and streams continue.
TEST_F(StagedPieces, ADisagreementIsFoundBeforeAnythingIsWritten) {
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    Floats v;
    OURO_RANK_OK(v.make(c, 5 * kPiece));
    OURO_RANK_OK(v.fill(static_cast<float>(1 + g.rank())));
    auto s = Stream::create(c.device());
    OURO_RANK_OK(s);
    View mine = v.view();
    if (g.rank() == 1) mine.count = 5 * kPiece - 1;  // the same number of pieces, and all but the last equal
    auto w = all_reduce(g, mine, mine, ReduceOp::sum, *s);
    const Status said = w.ok() ? w->wait() : w.status();
    OURO_RANK_CHECK(said.reason() == Reason::mismatch, "{}", said.message());
    Event mark;
    mark.record(*s);
    OURO_RANK_OK(mark.synchronize(Milliseconds(20'000)));
    OURO_EXPECT_ALL(v, static_cast<float>(1 + g.rank()));
    return "";
  };
  ASSERT_EQ(run_processes(2, body), "");
}

/// A rank dies between two pieces: the others learn of it, their streams continue, and the survivors continue
/// in pieces too.
TEST_F(StagedPieces, RankThatDiesBetweenPiecesDoesNotBlockSurvivors) {
  OURO_NEEDS_PROCESSES();
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(3, [&](int rank, Board& board) {
    auto joined = Context::create(options(rank, 3, id));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    Floats v;
    ASSERT_TRUE(v.make(*joined, 6 * kPiece).ok());
    ASSERT_TRUE(v.fill(1).ok());
    auto s = Stream::create(joined->device());
    ASSERT_TRUE(s.ok());
    Copies::seen().watch(v.arena.data(), 4 * v.count);
    board.stage[rank] = 1;
    if (rank == 2) Copies::seen().die_at(1);
    auto w = all_reduce(joined->world(), v.view(), v.view(), ReduceOp::sum, *s);
    const Status said = w.ok() ? w->wait() : w.status();
    EXPECT_THAT(said, Fails(Reason::peer_dead, 2));
    Event mark;
    mark.record(*s);
    EXPECT_TRUE(mark.synchronize(20s).ok()) << "a stream waits on";
    EXPECT_GT(Copies::seen().many(true), 1u);
    auto rest = joined->world().shrink();
    ASSERT_TRUE(rest.ok()) << rest.status().message();
    ASSERT_TRUE(v.fill(static_cast<float>(1 + rank)).ok());
    EXPECT_TRUE(all_reduce(*rest, v.view(), v.view(), ReduceOp::sum).ok());
    EXPECT_EQ(v.expect(3), "");
    EXPECT_TRUE(rest->close().ok());
  });
  ASSERT_TRUE(ranks.all_reach(1));
  ranks.join({2});
}

}  // namespace
}  // namespace ouro::test
