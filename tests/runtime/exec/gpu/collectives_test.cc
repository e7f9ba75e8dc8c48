// Every collective on device memory: on each path, with ranks as threads and as processes, out of place and
// in place, memory of ouro and of the driver, several sizes, uneven forms. On fake devices, or on the device
// that is present.
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "runtime/group/group.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/group/exchange.h"

namespace ouro::test {
namespace {

constexpr std::size_t kGuard = 64;  // bytes that are checked before and after a buffer
constexpr std::byte kCanary{0xA5}, kUnwritten{0xCD};

struct Param {
  Form form;
  std::string path;
  std::string algorithm;
  Mode mode;
};
std::string label(const Param& p) {
  return fmt::format("{}{}_{}{}_{}", name(p.form.collective), p.form.uneven ? "_v" : "", p.path, p.algorithm,
                     name(p.mode));
}
std::ostream& operator<<(std::ostream& o, const Param& p) { return o << label(p); }

void put(std::vector<std::byte>& arena, std::size_t at, std::size_t i, float v) {
  std::memcpy(&arena[at + 4 * i], &v, 4);
}
float get(const std::vector<std::byte>& arena, std::size_t at, std::size_t i) {
  float v;
  std::memcpy(&v, &arena[at + 4 * i], 4);
  return v;
}

/// One call with all checks that this rank can make. Both buffers are in one arena, one behind the other if
/// out of place, with guards around them.
std::string check_call(Context& c, const Exchange& x, const Param& p, bool in_place, DeviceArena& arena) {
  Group& g = c.world();
  const int r = g.rank();
  const std::size_t in_count = x.in_count(r), out_count = x.out_count(r);
  const bool reads = x.reads(r), writes = x.writes(r), aliased = in_place && reads && writes;
  const std::size_t large = 4 * std::max(in_count, out_count), small = 4 * std::min(in_count, out_count);
  const std::size_t outer = kGuard + 4,
                    inner = aliased ? outer + 4 * x.in_place_at(r) : outer + large + 2 * kGuard;
  const std::size_t in = in_count >= out_count ? outer : inner, out = in_count >= out_count ? inner : outer;
  std::vector<std::byte> before(outer + large + small + 4 * kGuard, kCanary);
  for (std::size_t i = 0; i < 4 * out_count && writes; ++i) before[out + i] = kUnwritten;
  for (std::size_t i = 0; i < in_count && reads; ++i) put(before, in, i, Exchange::value(r, i));

  OURO_RANK_OK(arena.write(before));
  const CView input = reads ? CView(arena.data() + in, in_count, DType::f32, c.device()) : CView();
  const View output = writes ? View(arena.data() + out, out_count, DType::f32, c.device()) : View();
  OURO_RANK_OK(x.call(g, input, output, {.algorithm = p.algorithm}));

  auto after = arena.read(before.size());
  OURO_RANK_OK(after);
  std::vector<std::byte> expected = before;
  if (writes) {
    const std::vector<float> result = x.expected(r);
    for (std::size_t i = 0; i < out_count; ++i) put(expected, out, i, result[i]);
  }
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (expected[i] != (*after)[i]) {
      const std::size_t element = i >= out ? (i - out) / 4 : 0;
      return fmt::format("byte {} (input at {}, output at {}), output element {}: {} in place of {}", i, in,
                         out, element, get(*after, out, element), get(expected, out, element));
    }
  return "";
}

class GpuCollectives : public testing::TestWithParam<Param> {};

TEST_P(GpuCollectives, ResultIsExact) {
  OURO_NEEDS_GPU();
  const Param& p = GetParam();
  OURO_SKIP_PROCESSES_UNDER_TSAN(p.mode);
  OURO_NEEDS_GPU_EACH(p.path, p.mode, 3);
  const ForcedPath path(p.path, p.mode);
  std::optional<FakeForEach> fakes;
  std::vector<int> sizes{1, 2, 3, 8};
  if (OURO_TEST_TSAN || p.mode == Mode::processes) sizes = {3};
  if (p.algorithm == "nvls") {
    std::erase_if(sizes, [](int n) { return n > multicast_gpus(); });
    if (multicast_gpus() < 2 || sizes.empty())
      GTEST_SKIP() << "fewer GPUs than ranks: nvls needs one with multicast objects for each";
    if (std::getenv("OURO_FAKE_GPUS"))
      fakes.emplace(gpu::FakeOptions{.multiprocessors = 16, .multicast = true});
  }
  for (int n : sizes) {
    const auto body = [&](Context& c) -> std::string {
      constexpr std::size_t kLarge = 20'003;
      const std::set<std::size_t> counts{0, 1, static_cast<std::size_t>(n), 1000, kLarge};
      // Allocated once: the driver may wait for all work of a process when memory is freed, while ranks that
      // are threads wait for each other.
      const std::size_t most = 8 * static_cast<std::size_t>(n) * (kLarge + 40) + 8 * kGuard;
      DeviceArena arenas[2];
      OURO_RANK_OK(arenas[0].make(c, most, From::ouro));
      OURO_RANK_OK(arenas[1].make(c, most, From::driver));
      for (std::size_t count : counts)
        for (int root : {0, n - 1}) {
          const Exchange x{p.form, n, count, root};
          const bool rooted = !x.reads(0) || !x.reads(n - 1) || !x.writes(0) || !x.writes(n - 1);
          if (root > 0 && !rooted) continue;
          for (From from : {From::ouro, From::driver})
            for (bool in_place : {false, true}) {
              if (in_place && p.form.uneven && p.form.collective == Collective::all_to_all)
                continue;  // not a legal combination
              const std::string said = check_call(c, x, p, in_place, arenas[from == From::driver]);
              if (!said.empty())
                return fmt::format("count {} root {} {} in_place {}: {}", count, root, name(from), in_place,
                                   said);
            }
        }
      // The named algorithm is a flow over links.
      return only_ran(c.world(), p.path != "auto" ? p.path : n == 1 ? "alone" : "stream");
    };
    ASSERT_EQ(run(p.mode, n, body), "") << n << " ranks";
  }
}

std::vector<Param> all_params() {
  std::vector<Param> all;
  const auto add = [&](Form form, const char* path, const char* algorithm = "") {
    for (Mode mode : {Mode::threads, Mode::processes}) all.push_back({form, path, algorithm, mode});
  };
  for (int i = 1; i < static_cast<int>(Collective::barrier); ++i) {
    const auto c = static_cast<Collective>(i);
    const bool has_uneven =
        c == Collective::reduce_scatter || c == Collective::all_gather || c == Collective::all_to_all;
    for (const char* path : {"leader", "resident", "stream", "staged"}) {
      add({c}, path);
      if (has_uneven) add({c, true}, path);
    }
  }
  for (const auto& form :
       {Form{Collective::all_gather}, {Collective::all_gather, true}, {Collective::broadcast}})
    add(form, "copies");
  for (const Collective of :
       {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather, Collective::broadcast})
    add({of}, "resident", "nvls");
  for (const char* flow : {"chain", "tree", "halving"}) add({Collective::all_reduce}, "auto", flow);
  for (const char* flow : {"tree"}) add({Collective::broadcast}, "auto", flow);
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, GpuCollectives, testing::ValuesIn(all_params()),
                         [](const auto& info) { return label(info.param); });

/// Large operations on the resident path: they go through slots until every rank has mapped the buffers of
/// all, and by pointer from then on. One call announces its buffers, the next maps what was announced, and
/// names what all had mapped before. Other processes cannot map memory of the driver.
class GpuPointers : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, GpuPointers, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST_P(GpuPointers, AreUsedOnceAllRanksHaveMappedTheBuffers) {
  OURO_NEEDS_GPU();
  const Mode mode = GetParam();
  OURO_SKIP_PROCESSES_UNDER_TSAN(mode);
  OURO_NEEDS_GPU_EACH("resident", mode, 3);
  const ForcedPath path("resident", mode);
  std::vector<int> sizes{2, 3, 8};
  if (OURO_TEST_TSAN || mode == Mode::processes) sizes = {3};
  for (int n : sizes) {
    const auto body = [&](Context& c) -> std::string {
      constexpr std::size_t kLarge = 20'003;
      Group& g = c.world();
      const std::size_t most = 8 * static_cast<std::size_t>(n) * (kLarge + 40) + 8 * kGuard;
      DeviceArena arenas[2];
      OURO_RANK_OK(arenas[0].make(c, most, From::ouro));
      OURO_RANK_OK(arenas[1].make(c, most, From::driver));
      for (DeviceArena& arena : arenas) {
        int calls = 0;
        for (const Collective of : {Collective::all_reduce, Collective::reduce_scatter,
                                    Collective::all_gather, Collective::broadcast, Collective::all_to_all})
          for (const bool in_place : {false, false, false, true, true}) {
            const Param p{{of}, "resident", "", mode};
            OURO_RANK_OK(barrier(g));
            const std::uint64_t before = g.impl()->gpu_named();
            const std::string said = check_call(c, Exchange{p.form, n, kLarge, n - 1}, p, in_place, arena);
            if (!said.empty()) return fmt::format("{} in_place {}: {}", label(p), in_place, said);
            const bool mapped = mode == Mode::threads || &arena == &arenas[0];
            const bool overwrites = in_place && of == Collective::all_to_all;
            const bool named = g.impl()->gpu_named() > before;
            if (++calls == 2) continue;  // the first call of the others may or may not have mapped it
            OURO_RANK_CHECK(named == (mapped && calls > 2 && !overwrites), "{}, call {}", label(p), calls);
          }
      }
      return only_ran(g, "resident");
    };
    ASSERT_EQ(run(mode, n, body), "") << n << " ranks";
  }
}

/// Types and reductions use the same code on all paths; each is compared once with the host's own result, bit
/// for bit.
class GpuReductions : public testing::TestWithParam<const char*> {};

TEST_P(GpuReductions, SameBitsAsOnTheHost) {
  OURO_NEEDS_GPU();
  const ForcedPath path(GetParam());
  constexpr std::size_t kCount = 1003;
  ASSERT_EQ(
      run_threads(3,
                  [](Context& c) -> std::string {
                    Group& g = c.world();
                    for (int t = 0; t < kDTypes; ++t)
                      for (int k = 0; k < kOps; ++k) {
                        const auto type = static_cast<DType>(t);
                        const auto kind = static_cast<OpKind>(k);
                        if (!applies(kind, type)) continue;
                        std::vector<std::byte> in(kCount * size_of(type)), expected(in.size());
                        std::uint32_t x = 12345u + static_cast<std::uint32_t>(97 * g.rank() + 13 * t + k);
                        for (std::byte& b : in)
                          b = static_cast<std::byte>((x = x * 1664525u + 1013904223u) >> 24);
                        const ReduceOp op{kind, {1.5, 3}};
                        const CallOptions exact{.numerics = Numerics::canonical};
                        OURO_RANK_OK(all_reduce(g, CView(in.data(), kCount, type),
                                                View(expected.data(), kCount, type), op, exact));
                        DeviceArena arena;
                        OURO_RANK_OK(arena.make(c, in.size(), From::ouro));
                        OURO_RANK_OK(arena.write(in));
                        OURO_RANK_OK(all_reduce(g, CView(arena.data(), kCount, type, c.device()),
                                                View(arena.data(), kCount, type, c.device()), op, exact));
                        auto out = arena.read(in.size());
                        OURO_RANK_OK(out);
                        OURO_RANK_CHECK(*out == expected, "{} {}", name(type), name(kind));
                      }
                    return only_ran(g, GetParam());
                  }),
      "");
}
INSTANTIATE_TEST_SUITE_P(All, GpuReductions, testing::Values("leader", "resident", "stream", "staged"),
                         [](const auto& info) { return info.param; });

/// A forced path that cannot serve a call makes that call fail, on all ranks alike; later calls are
/// not affected.
TEST(GpuForcedPath, RefusedCallNamesTheReasonAndOtherPaths) {
  OURO_NEEDS_GPU();
  const ForcedPath path("resident");
  ASSERT_EQ(run_threads(3,
                        [](Context& c) -> std::string {
                          Group& g = c.world();
                          DeviceArena a;
                          OURO_RANK_OK(a.make(c, 64, From::ouro));
                          const std::vector<std::size_t> counts{1, 2, 3};
                          const auto mine = static_cast<std::size_t>(c.rank()) + 1;
                          const CallOptions kRing{.algorithm = "ring"};
                          const CView in(a.data(), mine, DType::f32, c.device());
                          const View all(a.data() + 32, 6, DType::f32, c.device());
                          for (bool on_a_stream : {false, true}) {
                            auto s = Stream::create(c.device());
                            OURO_RANK_OK(s);
                            const Status said = on_a_stream
                                                    ? all_gather_v(g, in, all, counts, *s, kRing).status()
                                                    : all_gather_v(g, in, all, counts, kRing);
                            OURO_RANK_CHECK(said.reason() == Reason::unsupported, "{}", said.message());
                            for (const char* part : {"all_gather on device memory: OURO_GPU_PATH=resident",
                                                     "by name its kernels carry out even blocks only",
                                                     "these can: copies, stream, staged"})
                              OURO_RANK_CHECK(said.message().find(part) != std::string::npos, "no '{}' in {}",
                                              part, said.message());
                          }
                          OURO_RANK_OK(g.status());
                          OURO_RANK_OK(all_reduce(g, all, all));
                          return only_ran(g, "resident");
                        }),
            "");
}

/// Copies of many slots, which are reused several times; the sizes from which this path is taken, with one
/// GPU for each rank; and a graph that has captured such an operation.
TEST(GpuCopies, AreUsedFromTheConfiguredSizeOn) {
  OURO_NEEDS_FAKES();
  OURO_SKIP_PROCESSES_UNDER_TSAN(Mode::processes);
  struct Settings {
    Settings() {
      setenv("OURO_FAKE_GPUS", "3", 1);
      setenv("OURO_GPU_COPY_BYTES", "240000", 1);
    }
    ~Settings() {
      setenv("OURO_FAKE_GPUS", "1", 1);
      unsetenv("OURO_GPU_COPY_BYTES");
    }
  } settings;
  const auto ran = [](Group& g, rt::GpuPath p) { return g.impl()->gpu_ran(p); };
  // "" if part r, of n floats, is first + r.
  const auto parts_of = [](Floats& all, std::size_t n, int first) -> std::string {
    auto bytes = all.arena.read();
    OURO_RANK_OK(bytes);
    for (std::size_t i = 0; i < 3 * n; ++i) {
      float x;
      std::memcpy(&x, &(*bytes)[4 * i], 4);
      const auto expected = static_cast<float>(first) + static_cast<float>(i / n);
      OURO_RANK_CHECK(x == expected, "element {}: {} in place of {}", i, x, expected);
    }
    return "";
  };
  ASSERT_EQ(run_processes(
                3,
                [&](Context& c) -> std::string {
                  Group& g = c.world();
                  constexpr std::size_t kEnough = 20'000;  // floats of a rank: 240,000 bytes in all
                  Floats all;
                  OURO_RANK_OK(all.make(c, 3 * kEnough));
                  for (int round = 0; round < 3; ++round)
                    for (const std::size_t n : {kEnough, kEnough - 1}) {
                      const auto mark = static_cast<float>(10 * round + g.rank());
                      OURO_RANK_OK(all.fill(mark));
                      View out = all.view();
                      out.count = 3 * n;
                      const CView in(static_cast<float*>(out.data) + n * static_cast<std::size_t>(g.rank()),
                                     n, DType::f32, c.device());
                      const auto before = ran(g, rt::GpuPath::copies);
                      OURO_RANK_OK(all_gather(g, in, out));
                      OURO_RANK_CHECK(ran(g, rt::GpuPath::copies) == before + (n == kEnough), "{}", n);
                      if (const auto said = parts_of(all, n, 10 * round); !said.empty()) return said;
                      OURO_RANK_OK(all.fill(mark));
                      OURO_RANK_OK(broadcast(g, all.view(), all.view(), 1));
                      OURO_EXPECT_ALL(all, static_cast<float>(10 * round + 1));
                    }
                  OURO_RANK_CHECK(ran(g, rt::GpuPath::copies) == 9, "broadcasts");
                  OURO_RANK_CHECK(ran(g, rt::GpuPath::resident) == 3, "small ones");
                  auto made = gpu::gpu().create_stream(c.device().index, 0);
                  auto second = gpu::gpu().create_stream(c.device().index, 0);
                  OURO_RANK_OK(made);
                  OURO_RANK_OK(second);
                  {
                    auto s = Stream::cuda(made->handle, made->device);
                    auto t = Stream::cuda(second->handle, second->device);
                    OURO_RANK_OK(s);
                    OURO_RANK_OK(t);
                    OURO_RANK_OK(gpu::gpu().begin_capture(*made));
                    const View out = all.view();
                    const CView in(
                        static_cast<float*>(out.data) + kEnough * static_cast<std::size_t>(g.rank()), kEnough,
                        DType::f32, c.device());
                    OURO_RANK_OK(all_gather(g, in, out, *s));
                    // Between them, one operation that is in no graph, and one in another graph.
                    OURO_RANK_OK(all.fill(static_cast<float>(50 + g.rank())));
                    OURO_RANK_OK(all_gather(g, in, out));
                    if (const auto said = parts_of(all, kEnough, 50); !said.empty()) return said;
                    OURO_RANK_OK(gpu::gpu().begin_capture(*second));
                    OURO_RANK_OK(all_gather(g, in, out, *t));
                    auto graph = gpu::gpu().end_capture(*made);
                    OURO_RANK_OK(graph);
                    auto another = gpu::gpu().end_capture(*second);
                    OURO_RANK_OK(another);
                    OURO_RANK_OK(gpu::gpu().destroy_graph(*another));
                    for (int replay = 1; replay < 4; ++replay) {
                      OURO_RANK_OK(all.fill(static_cast<float>(100 * replay + g.rank())));
                      OURO_RANK_OK(gpu::gpu().launch(*graph, *made));
                      OURO_RANK_OK(s->synchronize());
                      if (const auto said = parts_of(all, kEnough, 100 * replay); !said.empty()) return said;
                    }
                    OURO_RANK_OK(gpu::gpu().destroy_graph(*graph));
                    OURO_RANK_OK(barrier(g));
                  }
                  OURO_RANK_OK(gpu::gpu().destroy_stream(*made));
                  OURO_RANK_OK(gpu::gpu().destroy_stream(*second));
                  return "";
                }),
            "");
}

/// A path that cannot carry out the algorithm named by the call is an error too; if the path is not forced,
/// one that can is taken.
TEST(GpuForcedPath, MissingAlgorithmIsAnErrorUnlessThePathIsAutomatic) {
  OURO_NEEDS_GPU();
  for (const char* forced : {"leader", "stream", "auto"}) {
    const ForcedPath path(forced);
    ASSERT_EQ(run_threads(3,
                          [&](Context& c) -> std::string {
                            Group& g = c.world();
                            DeviceArena a;
                            OURO_RANK_OK(a.make(c, 4000, From::ouro));
                            const View v(a.data(), 1000, DType::f32, c.device());
                            const Status said = all_reduce(g, v, v, ReduceOp::sum,
                                                           {.algorithm = "direct"});  // over staging buffers
                            if (forced == std::string("auto")) {
                              OURO_RANK_OK(said);
                              return only_ran(g, "staged");
                            }
                            OURO_RANK_CHECK(said.reason() == Reason::unsupported, "{}", said.message());
                            OURO_RANK_CHECK(
                                said.message().find("these can: resident, staged") != std::string::npos, "{}",
                                said.message());
                            OURO_RANK_OK(all_reduce(g, v, v));
                            return only_ran(g, forced);
                          }),
              "")
        << forced;
  }
}

}  // namespace
}  // namespace ouro::test
