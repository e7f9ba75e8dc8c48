// Several hosts with several GPUs each: the GPUs of a host do that host's part, and only shares go through
// the host. Tests results, the bytes copied to and from the host, and their order. On emulated devices, on
// hosts that share no memory; hierarchy_turns_test.cc tests turns and failures.
#include <algorithm>
#include <random>

#include "runtime/exec/gpu/staged_cut.h"
#include "tests/runtime/exec/gpu/hierarchy.h"
#include "tests/runtime/failure/harness.h"
#include "tests/runtime/group/exchange.h"

namespace ouro::test {
namespace {

using rt::StagedCut;
using namespace std::chrono_literals;

INSTANTIATE_TEST_SUITE_P(All, GpuHierarchy,
                         testing::Combine(testing::Values(Mode::threads, Mode::processes),
                                          testing::Values("2", "2i")),
                         [](const auto& info) {
                           return fmt::format(
                               "{}_{}", name(std::get<0>(info.param)),
                               std::string_view(std::get<1>(info.param)) == "2" ? "in_a_row" : "in_turn");
                         });

/// One call on device memory; checks its whole arena, with guards around the buffers.
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
  if (!expected.empty()) std::memcpy(before.data() + out_at, expected.data(), 4 * out);
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

/// Three and more ranks of a host, and counts that no share divides: some ranks have a shorter share, or
/// none.
class GpuHierarchyOdd : public GpuHierarchy {};
INSTANTIATE_TEST_SUITE_P(All, GpuHierarchyOdd,
                         testing::Values(std::tuple(Mode::threads, "2"), std::tuple(Mode::threads, "3i"),
                                         std::tuple(Mode::processes, "2i")),
                         [](const auto& info) {
                           return fmt::format("{}_hosts_{}", std::get<1>(info.param),
                                              name(std::get<0>(info.param)));
                         });

TEST_P(GpuHierarchyOdd, SharesOfAnyLengthAreExact) {
  const ForcedPath path("hierarchy");
  const int n = std::get<1>(GetParam()) == std::string_view("3i") ? 9 : 6;
  give({.multiprocessors = 16}, 9);
  const auto body = [&](Context& c) -> std::string {
    Group& g = c.world();
    DeviceArena arena;
    OURO_RANK_OK(arena.make(c, 1 << 20, From::ouro));
    for (std::size_t count : {1, 2, 3, 4, 5, 7, 255, 256, 257, 511, 513, 769, 1023, 2'001})
      for (const Collective of : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                  Collective::broadcast})
        for (const int root : {0, 1, n / 2, n - 1}) {
          if (root > 0 && of != Collective::broadcast) continue;
          const bool in_place = (count + static_cast<std::size_t>(root)) % 2 == 0;
          if (auto said = check_call(c, {{of}, n, count, root}, in_place, arena); !said.empty()) return said;
        }
    // Widened on the device, and in parts: sums of small integers in bf16, which holds them.
    for (std::size_t count : {1, 2, 5, 257, 1'023}) {
      std::vector<std::byte> in(2 * count);
      const auto put = [](std::byte* to, int v) {
        const auto f = static_cast<float>(v);
        std::uint32_t bits = 0;
        std::memcpy(&bits, &f, 4);
        const auto high = static_cast<std::uint16_t>(bits >> 16);
        std::memcpy(to, &high, 2);
      };
      std::vector<std::byte> expected(in.size());
      for (std::size_t i = 0; i < count; ++i) {
        put(&in[2 * i], g.rank() + static_cast<int>(i % 3));
        put(&expected[2 * i], n * (n - 1) / 2 + n * static_cast<int>(i % 3));
      }
      OURO_RANK_OK(arena.write(in));
      const View x(arena.data(), count, DType::bf16, c.device());
      OURO_RANK_OK(all_reduce(g, x, x));
      auto out = arena.read(in.size());
      OURO_RANK_OK(out);
      OURO_RANK_CHECK(*out == expected, "bf16, {} elements", count);
    }
    return only_ran(g, "hierarchy");
  };
  ASSERT_EQ(run(std::get<0>(GetParam()), n, body), "");
}

class GpuHierarchyOf4 : public GpuHierarchy {};
INSTANTIATE_TEST_SUITE_P(All, GpuHierarchyOf4, testing::Values(std::tuple(Mode::processes, "2")),
                         [](const auto&) { return "processes"; });

/// Sums whose partial results are exact are rounded once, so their bits do not depend on the order.
TEST_P(GpuHierarchyOf4, EveryTypeAndReductionHasTheBitsOfTheHost) {
  const ForcedPath path("hierarchy");
  const auto body = [](Context& c) -> std::string {
    Group& g = c.world();
    constexpr std::size_t kCount = 1003;
    std::mt19937 random(17u + static_cast<unsigned>(g.rank()));
    int served = 0;
    for (int t = 0; t < kDTypes; ++t) {
      const auto type = static_cast<DType>(t);
      // 16-bit types: any mantissa, and similar exponents. Others: small integers, which f32 and f64
      // represent exactly.
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
        // Products of four mantissas are longer than f32 can hold.
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

/// Of S bytes, each rank moves only its share over its bus, and in pieces.
TEST_P(GpuHierarchyOf4, EachRankMovesOnlyItsShareOverTheBus) {
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

/// While one host is absent, the other has copied down as many shares as there are slots. Several calls
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

}  // namespace
}  // namespace ouro::test
