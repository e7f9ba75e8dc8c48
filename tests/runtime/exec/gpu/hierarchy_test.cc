// Several hosts with several GPUs each: the GPUs of a host do its part, and shares alone go through the host.
// Results, bytes that are copied to and from the host, their order, and what comes of errors. On emulated
// devices, on hosts that share no memory.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <random>

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

constexpr int kRanks = 4, kMates = 2;

/// Bytes that the devices of this process have copied down to the host, and up.
class Crossed {
 public:
  static Crossed& seen() {
    static Crossed crossed;
    return crossed;
  }
  void begin() {
    std::lock_guard lock(mutex_);
    down_ = up_ = downs_ = ups_ = 0;
  }
  std::size_t down() { return read(down_); }
  std::size_t up() { return read(up_); }
  std::size_t downs() { return read(downs_); }  ///< how many copies
  std::size_t ups() { return read(ups_); }
  void die_at_up(std::size_t which) {
    std::lock_guard lock(mutex_);
    dies_at_ = which;
  }
  void copying(const void* to, const void* from, std::size_t bytes) {
    const bool into = on_device(to), out_of = on_device(from);
    if (into == out_of) return;
    std::lock_guard lock(mutex_);
    (into ? up_ : down_) += bytes;
    ++(into ? ups_ : downs_);
    if (into && ups_ == dies_at_) raise(SIGKILL);
  }

 private:
  static bool on_device(const void* p) {
    const auto info = gpu::gpu().pointer(p);
    return info.ok() && info->kind == gpu::MemoryKind::device;
  }
  std::size_t read(const std::size_t& value) {
    std::lock_guard lock(mutex_);
    return value;
  }
  std::mutex mutex_;
  std::size_t down_ = 0, up_ = 0, downs_ = 0, ups_ = 0, dies_at_ = 0;
};

/// `hosts`: as TEST_HOSTS; with 'i' the ranks of a host do not follow each other.
class GpuHierarchy : public testing::TestWithParam<std::tuple<Mode, const char*>> {
 protected:
  void SetUp() override { begin(std::get<1>(GetParam()), std::get<0>(GetParam())); }
  void begin(const char* hosts, Mode mode) {
    if (!std::getenv("OURO_FAKE_GPUS")) GTEST_SKIP() << "SKIP (only fake devices can be told what they do)";
    OURO_SKIP_PROCESSES_UNDER_TSAN(mode);
    for (const auto& [name, value] :
         {std::pair("TEST_HOSTS", hosts), {"OURO_SOCKET_IFNAME", "lo"}, {"OURO_INSECURE", "1"}}) {
      const char* const had = std::getenv(name);
      before_.emplace_back(name, had ? std::optional<std::string>(had) : std::nullopt);
      setenv(name, value, 1);
    }
    gpu::FakeOptions options;
    options.devices = kRanks;
    options.copying = [](const void* to, const void* from, std::size_t bytes) {
      Crossed::seen().copying(to, from, bytes);
    };
    fake_ = std::make_unique<gpu::FakeGpu>(options);
    gpu::install(fake_.get());
  }
  void TearDown() override {
    gpu::install(nullptr);
    for (const auto& [name, value] : before_) value ? setenv(name, value->c_str(), 1) : unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
  std::unique_ptr<gpu::FakeGpu> fake_;
};
INSTANTIATE_TEST_SUITE_P(All, GpuHierarchy,
                         testing::Combine(testing::Values(Mode::threads, Mode::processes),
                                          testing::Values("2", "2i")),
                         [](const auto& info) {
                           return fmt::format(
                               "{}_{}", name(std::get<0>(info.param)),
                               std::string_view(std::get<1>(info.param)) == "2" ? "in_a_row" : "in_turn");
                         });

/// One call on device memory, and what it has left of a room with guards around the buffers.
std::string check_call(Context& c, const Exchange& x, bool in_place, DeviceArena& arena) {
  constexpr std::size_t kGuard = 64;
  constexpr std::byte kCanary{0xA5};
  Group& g = c.world();
  const int r = g.rank();
  const std::size_t in = x.in_count(r), out = x.out_count(r), large = 4 * std::max(in, out);
  const bool aliased = in_place && x.reads(r) && x.writes(r);
  const std::size_t first = kGuard, second = aliased ? kGuard + 4 * x.in_place_at(r) : 2 * kGuard + large;
  const std::size_t in_at = in >= out ? first : second, out_at = in >= out ? second : first;
  std::vector<std::byte> before(3 * kGuard + 2 * large, kCanary);
  for (std::size_t i = 0; i < in && x.reads(r); ++i) {
    const float v = Exchange::value(r, i);
    std::memcpy(&before[in_at + 4 * i], &v, 4);
  }
  OURO_RANK_OK(arena.write(before));
  const CView input = x.reads(r) ? CView(arena.data() + in_at, in, DType::f32, c.device()) : CView();
  const View output = x.writes(r) ? View(arena.data() + out_at, out, DType::f32, c.device()) : View();
  OURO_RANK_OK(x.call(g, input, output, {}));
  auto after = arena.read(before.size());
  OURO_RANK_OK(after);
  const std::vector<float> expected = x.expected(r);
  std::memcpy(before.data() + out_at, expected.data(), 4 * out);
  const auto differs = std::mismatch(before.begin(), before.end(), after->begin()).first - before.begin();
  OURO_RANK_CHECK(*after == before, "byte {} of {} (output at {}), {} {} root {} in place {}", differs,
                  before.size(), out_at, name(x.form.collective), x.count, x.root, in_place);
  return "";
}

TEST_P(GpuHierarchy, EveryCollectiveIsExact) {
  const ForcedPath path("hierarchy");
  const auto body = [](Context& c) -> std::string {
    DeviceArena arenas[2];
    constexpr std::size_t kLarge = 40'003;
    for (DeviceArena& a : arenas)
      OURO_RANK_OK(a.make(c, 8 * kRanks * kLarge + 256, &a == arenas ? From::ouro : From::driver));
    for (const Collective of :
         {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather, Collective::broadcast})
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, kLarge})
        for (const int root : {0, 1, 3})
          for (const bool in_place : {false, true}) {
            if (root > 0 && of != Collective::broadcast) continue;
            const Exchange x{{of}, kRanks, count, root};
            if (auto said = check_call(c, x, in_place, arenas[root % 2]); !said.empty()) return said;
          }
    return only_ran(c.world(), "hierarchy");
  };
  ASSERT_EQ(run(std::get<0>(GetParam()), kRanks, body), "");
}

class GpuHierarchyOf4 : public GpuHierarchy {};
INSTANTIATE_TEST_SUITE_P(All, GpuHierarchyOf4, testing::Values(std::tuple(Mode::processes, "2")),
                         [](const auto&) { return "processes"; });

/// Sums that partial results hold exactly are rounded once: their bits are those of any order.
TEST_P(GpuHierarchyOf4, EveryTypeAndReductionHasTheBitsOfTheHost) {
  const ForcedPath path("hierarchy");
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    constexpr std::size_t kCount = 1003;
    std::mt19937 random(17u + static_cast<unsigned>(g.rank()));
    int served = 0;
    for (int t = 0; t < kDTypes; ++t) {
      const auto type = static_cast<DType>(t);
      // Of 16 bits: any mantissa, and exponents that are alike. Else small integers, which f32 and f64 hold.
      std::vector<std::byte> in(kCount * size_of(type)), expected(in.size());
      for (std::size_t i = 0; i < kCount; ++i) {
        const auto x = static_cast<std::uint32_t>(random());
        std::byte* const to = &in[i * size_of(type)];
        if (type == DType::bf16 || type == DType::f16) {
          const auto bits = static_cast<std::uint16_t>(
              (type == DType::bf16 ? 0x3f80u | (x & 0x7fu) : 0x3c00u | (x & 0x3ffu)) | (x >> 16 & 0x8000u));
          std::memcpy(to, &bits, 2);
        } else if (type == DType::f8e4m3 || type == DType::f8e5m2) {
          *to = static_cast<std::byte>((type == DType::f8e4m3 ? 0x38u : 0x3cu) | (x & 0x83u));
        } else if (type == DType::f32) {
          const auto v = static_cast<float>(x % 7) - 3;
          std::memcpy(to, &v, 4);
        } else if (type == DType::f64) {
          const double v = static_cast<double>(x % 7) - 3;
          std::memcpy(to, &v, 8);
        } else {
          std::memset(to, 0, size_of(type));
          *to = static_cast<std::byte>(type == DType::boolean ? x & 1u : x & 0x7fu);
        }
      }
      for (int k = 0; k < kOps; ++k) {
        const auto kind = static_cast<OpKind>(k);
        if (!applies(kind, type)) continue;
        const ReduceOp op{kind, {1.5, 3}};
        OURO_RANK_OK(all_reduce(g, CView(in.data(), kCount, type), View(expected.data(), kCount, type), op,
                                {.numerics = Numerics::canonical}));
        DeviceArena arena;
        OURO_RANK_OK(arena.make(c, in.size(), From::ouro));
        OURO_RANK_OK(arena.write(in));
        const Status said = all_reduce(g, CView(arena.data(), kCount, type, c.device()),
                                       View(arena.data(), kCount, type, c.device()), op);
        const bool scaled = kind == OpKind::avg || kind == OpKind::premulsum;
        if (scaled && !is_float(type)) {
          OURO_RANK_CHECK(said.reason() == Reason::unsupported, "{} {}: {}", name(type), name(kind),
                          said.message());
          continue;
        }
        OURO_RANK_OK(said);
        ++served;
        // Products of four mantissas are longer than what f32 holds.
        if (kind == OpKind::prod && (type == DType::f16 || type == DType::bf16)) continue;
        auto out = arena.read(in.size());
        OURO_RANK_OK(out);
        OURO_RANK_CHECK(*out == expected, "{} {}", name(type), name(kind));
      }
    }
    OURO_RANK_CHECK(served > 60, "{} served", served);
    return only_ran(g, "hierarchy");
  };
  ASSERT_EQ(run_processes(kRanks, body), "");
}

/// Of S bytes each rank moves its share over its bus, not all of them, and in pieces.
TEST_P(GpuHierarchyOf4, ASharePerRankCrossesTheBus) {
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    constexpr std::size_t kPieces = 5, kShare = StagedCut::kPiece / 4;
    struct Case {
      Collective of;
      std::size_t count, down, up;  // down, up: elements
    };
    const std::size_t region = kMates * kShare * (kPieces - 1) + 4'444,
                      block = (kPieces - 1) * kShare / 2 + 222;
    const bool first_host = g.rank() < kMates;
    Crossed& crossed = Crossed::seen();
    for (const Case& x : {Case{Collective::all_reduce, region, region / kMates, region / kMates},
                          Case{Collective::broadcast, region, first_host ? region / kMates : 0,
                               first_host ? 0 : region / kMates},
                          Case{Collective::reduce_scatter, block, 2 * block, block},
                          Case{Collective::all_gather, block, block, 2 * block}}) {
      const Exchange e{{x.of}, kRanks, x.count, 0};
      Floats in, out;
      OURO_RANK_OK(in.make(c, e.in_count(g.rank())));
      OURO_RANK_OK(out.make(c, e.out_count(g.rank())));
      OURO_RANK_OK(in.fill(static_cast<float>(1 + g.rank())));
      OURO_RANK_OK(barrier(g));
      crossed.begin();
      OURO_RANK_OK(e.call(g, e.reads(g.rank()) ? CView(in.view()) : CView(), out.view(), {}));
      OURO_RANK_CHECK(crossed.down() == 4 * x.down && crossed.up() == 4 * x.up,
                      "{}: {} bytes down and {} up; expected {} and {}", name(x.of), crossed.down(),
                      crossed.up(), 4 * x.down, 4 * x.up);
      OURO_RANK_CHECK(crossed.downs() == (x.down ? kPieces : 0) && crossed.ups() == (x.up ? kPieces : 0),
                      "{}: {} copies down, {} up", name(x.of), crossed.downs(), crossed.ups());
      if (x.of == Collective::all_reduce || x.of == Collective::reduce_scatter) OURO_EXPECT_ALL(out, 10.0f);
      if (x.of == Collective::broadcast) OURO_EXPECT_ALL(out, 1.0f);
      if (x.of == Collective::all_gather) {
        auto bytes = out.arena.read();
        OURO_RANK_OK(bytes);
        for (std::size_t i = 0; i < out.count; ++i) {
          float v;
          std::memcpy(&v, &(*bytes)[4 * i], 4);
          OURO_RANK_CHECK(v == static_cast<float>(1 + i / block), "element {}: {}", i, v);
        }
      }
      OURO_RANK_OK(barrier(g));
    }
    return only_ran(g, "hierarchy");
  };
  ASSERT_EQ(run_processes(kRanks, body), "");
}

/// While a host is not there, the other has brought down as many shares as there are slots; several calls
/// follow each other, on several streams.
TEST_P(GpuHierarchyOf4, PiecesOverlapAndCallsFollowEachOther) {
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    const int all[] = {0, 1, 2, 3};
    auto gate = c.group(all, "gate");
    OURO_RANK_OK(gate);
    constexpr std::size_t kCount = kMates * (StagedCut::kPiece / 4) * 5;
    Floats v;
    OURO_RANK_OK(v.make(c, kCount));
    OURO_RANK_OK(v.fill(1));
    auto s = Stream::create(c.device());
    auto t = Stream::create(c.device());
    OURO_RANK_OK(s);
    OURO_RANK_OK(t);
    OURO_RANK_OK(barrier(g));
    Crossed& crossed = Crossed::seen();
    crossed.begin();
    if (g.rank() >= kMates) OURO_RANK_OK(barrier(*gate));
    auto first = all_reduce(g, v.view(), v.view(), ReduceOp::sum, *s);
    OURO_RANK_OK(first);
    if (g.rank() < kMates) {
      OURO_RANK_CHECK(eventually([&] { return crossed.downs() >= StagedCut::kSlots; }), "{} are down",
                      crossed.downs());
      OURO_RANK_CHECK(crossed.ups() == 0 && crossed.downs() == StagedCut::kSlots, "{} up", crossed.ups());
      OURO_RANK_OK(barrier(*gate));
    }
    std::vector<Work> more;
    for (int i = 0; i < 3; ++i) {
      View part = v.view();
      part.count = 100'000;
      auto w = all_reduce(g, part, part, ReduceOp::avg, i % 2 ? *s : *t);
      OURO_RANK_OK(w);
      more.push_back(*w);
    }
    auto last = all_reduce(g, v.view(), v.view(), ReduceOp::sum, *s);
    OURO_RANK_OK(last);
    OURO_RANK_OK(last->wait());
    for (Work& w : more) OURO_RANK_OK(w.wait());
    OURO_EXPECT_ALL(v, 16.0f);
    return only_ran(g, "hierarchy");
  };
  ASSERT_EQ(run_processes(kRanks, body), "");
}

/// Mates who disagree, and hosts that do: all ranks hear of it, as of the call, and streams go on.
TEST_P(GpuHierarchyOf4, DisagreementsEndOnAllRanks) {
  for (const bool mates : {true, false}) {
    const auto body = [mates](Context& c) -> std::string {
      Group& g = c.world();
      Floats v;
      OURO_RANK_OK(v.make(c, 200'000));
      OURO_RANK_OK(v.fill(1));
      auto s = Stream::create(c.device());
      OURO_RANK_OK(s);
      View mine = v.view();
      if (mates ? g.rank() == 1 : g.rank() >= kMates) mine.count -= 2;
      auto w = all_reduce(g, mine, mine, ReduceOp::sum, *s);
      const Status said = w.ok() ? w->wait() : w.status();
      OURO_RANK_CHECK(said.reason() == Reason::mismatch, "{}", said.message());
      OURO_RANK_CHECK(said.message().find("199998") != std::string::npos, "{}", said.message());
      Event mark;
      mark.record(*s);
      OURO_RANK_OK(mark.synchronize(Milliseconds(20'000)));
      return "";
    };
    ASSERT_EQ(run_processes(kRanks, body), "") << mates;
  }
}

/// A rank dies between two pieces. Its mate, its partner and the rank that is neither hear of it; the streams
/// of all go on, and the three go on without it, on the path that takes hosts of unequal size.
TEST_P(GpuHierarchyOf4, ARankThatDiesInBetweenHoldsUpNobody) {
  OURO_NEEDS_PROCESSES();
  Watchdog watchdog;
  const UniqueId id = new_id();
  const std::string meeting =
      fmt::format("file:{}/ouro-hierarchy-{}", std::filesystem::temp_directory_path().string(), ::getpid());
  Processes ranks(kRanks, [&](int rank, Board& board) {
    InitOptions o = options(rank, kRanks, id);
    take_place(&o, rank, kRanks, meeting);
    auto joined = Context::create(o);
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    Floats v;
    ASSERT_TRUE(v.make(*joined, kMates * (StagedCut::kPiece / 4) * 4).ok());
    ASSERT_TRUE(v.fill(1).ok());
    auto s = Stream::create(joined->device());
    ASSERT_TRUE(s.ok());
    Crossed::seen().begin();
    board.stage[rank] = 1;
    if (rank == 3) Crossed::seen().die_at_up(2);
    auto w = all_reduce(joined->world(), v.view(), v.view(), ReduceOp::sum, *s);
    const Status said = w.ok() ? w->wait() : w.status();
    EXPECT_THAT(said, Fails(Reason::peer_dead, 3));
    Event mark;
    mark.record(*s);
    EXPECT_TRUE(mark.synchronize(20s).ok()) << "a stream waits on";
    auto rest = joined->world().shrink();
    ASSERT_TRUE(rest.ok()) << rest.status().message();
    ASSERT_TRUE(v.fill(static_cast<float>(1 + rank)).ok());
    EXPECT_TRUE(all_reduce(*rest, v.view(), v.view(), ReduceOp::sum).ok());
    EXPECT_EQ(v.expect(6), "");
    EXPECT_EQ(only_ran(*rest, "staged"), "");
    EXPECT_TRUE(rest->close().ok());
  });
  ASSERT_TRUE(ranks.all_reach(1));
  ranks.join({3});
  std::error_code ignored;
  std::filesystem::remove(meeting.substr(5), ignored);
}

}  // namespace
}  // namespace ouro::test
