// Uneven operations on memory that the program has registered: blocks across registrations, ranks without
// data, and buffers that no other rank accesses. Ranks are threads or processes with a fake GPU each.
#include <cstdlib>
#include <vector>

#include "tests/runtime/device_memory/own_memory.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

using Counts = std::vector<std::size_t>;
constexpr int kRanks = 3;

class RegisteredUneven : public testing::TestWithParam<Mode> {
 protected:
  void SetUp() override {
    OURO_NEEDS_FAKES();
    OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
    setenv("OURO_FAKE_GPUS", "8", 1);
  }
  std::string on_gpus(const Body& body) {
    if (GetParam() == Mode::processes) return run_processes(kRanks, [&](Context& c) { return body(c); });
    gpu::FakeGpu shared({.devices = 8, .multiprocessors = 16});
    gpu::install(&shared);
    std::string said = run_threads(kRanks, body);
    gpu::install(nullptr);
    return said;
  }
  ForcedPath path{"resident", Mode::threads};
};
INSTANTIATE_TEST_SUITE_P(All, RegisteredUneven, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return std::string(name(info.param)); });

/// Memory of two chunks, each registered by itself: buffers across both are in the export of both together.
struct Segment {
  Own own;
  std::vector<Registration> parts;
  Status make(Context& c, std::size_t units) {
    OURO_TRY(own.make_chunks(c, {units, units}, 2 * units));
    for (const std::size_t from : {std::size_t{0}, units}) {
      OURO_ASSIGN(auto r, c.register_memory(own.data() + from * kUnit, units * kUnit, c.device()));
      parts.push_back(std::move(r));
    }
    return {};
  }
  Status release() {
    for (Registration& r : parts) OURO_TRY(r.release());
    return {};
  }
};

/// Calls f four times; then the last call has gone by pointer, or not.
template <class F>
std::string settles(Group& g, bool by_pointer, F&& f) {
  bool named = false;
  for (int call = 1; call <= kNamedFrom + 1; ++call) {
    const std::uint64_t before = g.impl()->gpu_named();
    OURO_RANK_OK(barrier(g));
    if (std::string said = f(); !said.empty()) return fmt::format("call {}: {}", call, said);
    named = g.impl()->gpu_named() > before;
  }
  OURO_RANK_CHECK(named == by_pointer, "named: {}", named);
  return "";
}

float value(int from, int to) { return static_cast<float>(10 * from + to + 1); }

/// `sent[from][to]` elements. The input begins at an odd place of `in`, the output at `out`.
std::string exchange(Context& c, const std::vector<Counts>& sent, Own& in, std::size_t in_at, Own& out,
                     std::size_t out_at) {
  const int rank = c.rank();
  const auto me = static_cast<std::size_t>(rank);
  Counts received;
  std::size_t sends = 0, receives = 0;
  for (std::size_t p = 0; p < sent.size(); ++p) {
    OURO_RANK_OK(in.fill(in_at + 4 * sends, sent[me][p], value(rank, static_cast<int>(p))));
    sends += sent[me][p];
    received.push_back(sent[p][me]);
    receives += sent[p][me];
  }
  OURO_RANK_OK(out.fill(out_at, receives + 1, -1));
  const CView from(sends ? in.data() + in_at : nullptr, sends, DType::f32, c.device());
  const View to(receives ? out.data() + out_at : nullptr, receives, DType::f32, c.device());
  OURO_RANK_OK(all_to_all_v(c.world(), from, to, sent[me], received));
  std::size_t at = out_at;
  for (std::size_t p = 0; p < sent.size(); ++p) {
    if (std::string said = out.expect(at, received[p], value(static_cast<int>(p), rank)); !said.empty())
      return fmt::format("from rank {}: {}", p, said);
    at += 4 * received[p];
  }
  return out.expect(at, 1, -1);
}

TEST_P(RegisteredUneven, PairwiseBlocksMaySpanRegistrations) {
  // The border is at float 32,768. Of rank 0 the block for rank 1 lies across it, of rank 1 that for rank 2;
  // rank 2 sends from one side.
  const std::vector<Counts> sent = {{7, 60'001, 20}, {20'000, 0, 30'003}, {1, 12'345, 0}};
  ASSERT_EQ(on_gpus([&](Context& c) -> std::string {
              Segment in;
              Own out;
              OURO_RANK_OK(in.make(c, 2));
              OURO_RANK_OK(out.make(c, 8 * kUnit));  // no other rank accesses it
              std::string said =
                  settles(c.world(), true, [&] { return exchange(c, sent, in.own, 12, out, 8); });
              if (!said.empty()) return said;
              OURO_RANK_OK(barrier(c.world()));
              OURO_RANK_OK(in.release());
              said = settles(c.world(), false, [&] { return exchange(c, sent, in.own, 12, out, 8); });
              OURO_RANK_OK(barrier(c.world()));
              return said.empty() ? only_ran(c.world(), "resident") : said;
            }),
            "");
}

/// A rank that sends and receives nothing has no buffers, which does not mean that it overwrites its input.
TEST_P(RegisteredUneven, RankWithoutDataDoesNotBlockOthers) {
  const std::vector<Counts> sent = {{5, 40'001, 0}, {30'000, 0, 0}, {0, 0, 0}};
  ASSERT_EQ(on_gpus([&](Context& c) -> std::string {
              Segment in;
              Own out;
              OURO_RANK_OK(in.make(c, 2));
              OURO_RANK_OK(out.make(c, 8 * kUnit));
              std::string said =
                  settles(c.world(), true, [&] { return exchange(c, sent, in.own, 4, out, 0); });
              OURO_RANK_OK(barrier(c.world()));
              return said;
            }),
            "");
}

/// Of an all_gather others write the outputs, of a reduce_scatter they read the inputs. The other buffer of
/// each rank may be any memory.
TEST_P(RegisteredUneven, BuffersThatNoOtherRankAccessesNeedNoRegistration) {
  const Counts counts = {30'001, 0, 20'020};
  constexpr std::size_t kAll = 50'021;
  ASSERT_EQ(on_gpus([&](Context& c) -> std::string {
              Segment shared;
              Own own;
              OURO_RANK_OK(shared.make(c, 2));
              OURO_RANK_OK(own.make(c, 4 * kAll));
              const std::size_t mine = counts[static_cast<std::size_t>(c.rank())];
              const View all(shared.own.data(), kAll, DType::f32, c.device());
              const View block(own.data(), mine, DType::f32, c.device());
              std::string said = settles(c.world(), true, [&]() -> std::string {
                OURO_RANK_OK(own.fill(0, mine, value(c.rank(), 0)));
                OURO_RANK_OK(all_gather_v(c.world(), block, all, counts));
                std::size_t at = 0;
                for (int r = 0; r < kRanks; ++r) {
                  const std::size_t count = counts[static_cast<std::size_t>(r)];
                  if (std::string wrong = shared.own.expect(4 * at, count, value(r, 0)); !wrong.empty())
                    return wrong;
                  at += count;
                }
                return "";
              });
              if (!said.empty()) return "all_gather_v: " + said;
              said = settles(c.world(), true, [&]() -> std::string {
                OURO_RANK_OK(shared.own.fill(0, kAll, value(c.rank(), 0)));
                OURO_RANK_OK(barrier(c.world()));
                OURO_RANK_OK(reduce_scatter_v(c.world(), all, block, counts));
                return own.expect(0, mine, value(0, 0) + value(1, 0) + value(2, 0));
              });
              if (!said.empty()) return "reduce_scatter_v: " + said;
              const View even_block(own.data(), 17'000, DType::f32, c.device());
              const View even_all(shared.own.data(), 3 * 17'000, DType::f32, c.device());
              said = settles(c.world(), true, [&]() -> std::string {
                OURO_RANK_OK(own.fill(0, 17'000, 3));
                OURO_RANK_OK(all_gather(c.world(), even_block, even_all));
                return shared.own.expect(0, 3 * 17'000, 3);
              });
              OURO_RANK_OK(barrier(c.world()));
              return said.empty() ? only_ran(c.world(), "resident") : "all_gather: " + said;
            }),
            "");
}

}  // namespace
}  // namespace ouro::test
