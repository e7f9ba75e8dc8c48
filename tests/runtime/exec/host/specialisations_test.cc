// Every hand-written replacement of a flow (kernels/flow/specialisations.h) against the flow itself: an
// interpreter runs the flow's steps on plain arrays, and every bit must be equal.
#include "kernels/flow/specialisations.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>

#include "runtime/exec/host/single_round.h"
#include "tests/kernels/flow/interpreter.h"
#include "tests/kernels/gpu_resident_cases.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::flow {
namespace {

struct Entry {
  Specialisation kind;
  Collective collective;
  Algorithm algorithm;
  std::uint32_t needs;
};
std::string text(const Entry& e) {
  return std::string(name(e.kind)) + "_" + name(e.collective) + "_" + std::string(name(e.algorithm));
}
void PrintTo(const Entry& e, std::ostream* out) { *out << text(e); }

std::vector<Entry> entries() {
  std::vector<Entry> all;
  for_each_specialisation([&](auto... of) { all.push_back({of...}); });
  return all;
}

struct Numbers {
  DType dtype;
  OpKind op;
};
/// Floats whose sums depend on the order and on the rounding, and integers.
constexpr Numbers kNumbers[] = {{DType::f32, OpKind::sum},  {DType::f16, OpKind::sum},
                                {DType::bf16, OpKind::avg}, {DType::f32, OpKind::premulsum},
                                {DType::i32, OpKind::max},  {DType::f64, OpKind::prod}};

/// Element i of rank r: many magnitudes and both signs.
Bytes numbers(DType t, std::size_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(31 * rank + 7));
  Bytes bytes(count * size_of(t));
  const auto put = [&](std::size_t i, auto x) { std::memcpy(&bytes[i * sizeof(x)], &x, sizeof(x)); };
  for (std::size_t i = 0; i < count; ++i) {
    const auto integer = static_cast<std::int32_t>(random());
    const float f = static_cast<float>(integer % 4096) / static_cast<float>(1 << (random() % 12));
    switch (t) {
      case DType::f16:
        put(i, arith::narrow<arith::Half>(f));
        break;
      case DType::bf16:
        put(i, arith::narrow<arith::BFloat16>(f));
        break;
      case DType::f64:
        put(i, static_cast<double>(f));
        break;
      case DType::i32:
        put(i, integer);
        break;
      default:
        put(i, f);
    }
  }
  return bytes;
}

Interpreted example(const Entry& e, Numbers of, int ranks, int root, std::uint64_t unit) {
  const CollectiveTraits traits = traits_of(e.collective);
  Interpreted o{e.collective, of.dtype, of.op, ranks, root, unit, std::max<std::uint64_t>(1, unit / 3),
                {},           {}};
  for (int r = 0; r < ranks; ++r) {
    o.in.push_back(traits.in.counts(r, root) ? numbers(of.dtype, traits.in.elements(unit, ranks), r)
                                             : Bytes());
    o.premul.push_back({0.75 + r, 2 * r + 1});
  }
  return o;
}
Bytes room(const Entry& e, const Interpreted& o, int rank) {
  const CollectiveTraits::Side out = traits_of(e.collective).out;
  return Bytes(out.counts(rank, o.root) ? out.elements(o.unit, o.ranks) * size_of(o.dtype) : 0,
               std::byte{0xee});
}

/// The result of an operation by the entry's flow, in at least three rounds.
std::vector<Bytes> by_the_flow(const Entry& e, const Interpreted& o) {
  std::vector<Bytes> out;
  visit(e.collective, e.algorithm, [&]<class Flow>(const Flow& flow) {
    if constexpr (Flow::kStaging && Flow::kPipelined) out = Interpreter<Flow>(flow, o).run();
  });
  return out;
}

// ---- by hand ----------------------------------------------------------------------------------------

Status call(Group& g, const Entry& e, CView in, View out, ReduceOp op, int root) {
  const CallOptions o{.algorithm = name(e.algorithm)};
  switch (e.collective) {
    case Collective::all_reduce:
      return all_reduce(g, in, out, op, o);
    case Collective::reduce:
      return reduce(g, in, out, op, root, o);
    case Collective::reduce_scatter:
      return reduce_scatter(g, in, out, op, o);
    case Collective::all_gather:
      return all_gather(g, in, out, o);
    case Collective::broadcast:
      return broadcast(g, in, out, root, o);
    case Collective::gather:
      return gather(g, in, out, root, o);
    case Collective::scatter:
      return scatter(g, in, out, root, o);
    case Collective::all_to_all:
      return all_to_all(g, in, out, o);
    default:
      return invalid("no test knows how to call this collective");
  }
}

/// Whether the host would run it by hand, with slots no larger than the real ones.
bool planned_by_hand(const Entry& e, const Interpreted& o, int rank) {
  std::vector<int> world(static_cast<std::size_t>(o.ranks));
  std::iota(world.begin(), world.end(), 0);
  const rt::Members members(rank, world, std::vector<int>(world.size(), 0));
  const CollectiveTraits traits = traits_of(e.collective);
  std::byte data{};
  rt::Plan plan;
  plan.op.collective = e.collective;
  plan.op.root = o.root;
  plan.op.in = CView(&data, traits.in.elements(o.unit, o.ranks), o.dtype);
  plan.op.out = View(&data, traits.out.elements(o.unit, o.ranks), o.dtype);
  plan.op.op.kind = o.op;
  plan.choice.algorithm = e.algorithm;
  const auto made = rt::make_execution_plan(plan, members, {4096, 4096, 512}, true);
  return rt::is_single_round(made->run);
}

std::vector<Bytes> single_round(const Entry& e, const Interpreted& o) {
  std::vector<Bytes> out;
  for (int r = 0; r < o.ranks; ++r) {
    out.push_back(room(e, o, r));
    EXPECT_TRUE(planned_by_hand(e, o, r)) << text(e);
  }
  const auto said = test::run_threads(o.ranks, [&](Context& c) -> std::string {
    Group& g = c.world();
    const auto me = static_cast<std::size_t>(g.rank());
    const std::size_t size = size_of(o.dtype);
    const CView in = o.in[me].empty() ? CView() : CView(o.in[me].data(), o.in[me].size() / size, o.dtype);
    const View to = out[me].empty() ? View() : View(out[me].data(), out[me].size() / size, o.dtype);
    for (int twice = 0; twice < 2; ++twice) OURO_RANK_OK(call(g, e, in, to, {o.op, o.premul[me]}, o.root));
    return "";
  });
  EXPECT_EQ(said, "") << text(e);
  return out;
}

std::vector<Bytes> fused(const Entry& e, const Interpreted& o) {
  std::vector<Bytes> out;
  gpu::FusedArgs a;
  a.collective = e.collective, a.dtype = o.dtype, a.op = o.op;
  a.ranks = o.ranks, a.root = o.root, a.count = o.unit;
  for (int r = 0; r < o.ranks; ++r) out.push_back(room(e, o, r));
  for (int r = 0; r < o.ranks; ++r) {
    const auto i = static_cast<std::size_t>(r);
    a.in[r] = o.in[i].empty() ? nullptr : o.in[i].data();
    a.out[r] = out[i].empty() ? nullptr : out[i].data();
    a.premul[r] = o.premul[i];
  }
  const gpu::Launch launch = gpu::fused(a, 4);
  EXPECT_NE(launch.kernel, nullptr) << text(e);
  for (int block = 0; launch.kernel && block < launch.shape.blocks; ++block)
    launch.kernel->host(&a, block, launch.shape.blocks);
  return out;
}

std::vector<Bytes> packets(const Entry& e, const Interpreted& o) {
  constexpr int kChannels = 2;
  gpu::resident_test::World world(o.ranks, kChannels, 2);
  gpu::resident_test::Case c{e.collective, e.algorithm, o.dtype, o.op, o.unit, o.root};
  c.packets = true;
  std::vector<std::unique_ptr<gpu::resident_test::Operation>> run;
  run.push_back(gpu::resident_test::make(world, c, kChannels));
  if (run[0] == nullptr) return {};
  const std::string kernel = run[0]->kernel->name;
  EXPECT_NE(kernel.find("packets"), std::string::npos) << kernel;
  // A kernel of its own, or the one for all types and reductions.
  EXPECT_EQ(kernel.find("any") == std::string::npos,
            o.op == OpKind::sum && size_of(o.dtype) <= 4 && is_float(o.dtype))
      << kernel;
  for (int r = 0; r < o.ranks; ++r) {
    const auto i = static_cast<std::size_t>(r);
    std::copy(o.in[i].begin(), o.in[i].end(), run[0]->ranks[i].in);
    run[0]->args[i].premul = o.premul[i];
  }
  gpu::resident_test::run(run, o.ranks, kChannels, [](int) { return false; });
  std::vector<Bytes> out;
  for (int r = 0; r < o.ranks; ++r) {
    EXPECT_EQ(world.at(r).error.fault, gpu::ResidentFault::none);
    const std::byte* const from = run[0]->ranks[static_cast<std::size_t>(r)].out;
    out.emplace_back(from, from + o.unit * size_of(o.dtype));
  }
  return out;
}

std::vector<Bytes> multimem(const Entry& e, const Interpreted& o) {
  constexpr int kChannels = 2;
  gpu::resident_test::World world(o.ranks, kChannels, 2);
  world.with_switch();
  gpu::resident_test::Case c{e.collective, e.algorithm, o.dtype, o.op, o.unit, o.root};
  std::vector<std::unique_ptr<gpu::resident_test::Operation>> run;
  run.push_back(gpu::resident_test::make(world, c, kChannels));
  if (run[0] == nullptr) return {};
  EXPECT_NE(std::string(run[0]->kernel->name).find("switch"), std::string::npos) << run[0]->kernel->name;
  std::vector<Bytes> out;
  for (int r = 0; r < o.ranks; ++r) {
    const auto i = static_cast<std::size_t>(r);
    std::copy(o.in[i].begin(), o.in[i].end(), run[0]->ranks[i].in);
  }
  gpu::resident_test::run(run, o.ranks, kChannels, [](int) { return false; });
  for (int r = 0; r < o.ranks; ++r) {
    EXPECT_EQ(world.at(r).error.fault, gpu::ResidentFault::none);
    const auto& b = run[0]->ranks[static_cast<std::size_t>(r)];
    out.emplace_back(b.out, b.out + b.expected.size());
  }
  return out;
}

/// The differential test of each specialisation; a new specialisation without a case here fails.
std::vector<Bytes> by_hand(const Entry& e, const Interpreted& o) {
  switch (e.kind) {
    case Specialisation::single_round:
      return single_round(e, o);
    case Specialisation::fused:
      return fused(e, o);
    case Specialisation::packets:
      return packets(e, o);
    case Specialisation::multimem:
      return multimem(e, o);
  }
  ADD_FAILURE() << text(e) << " has no differential test";
  return {};
}

class Specialisations : public testing::TestWithParam<Entry> {};

TEST_P(Specialisations, HaveTheBitsOfTheirFlows) {
  const Entry& e = GetParam();
  int compared = 0;
  // A switch has only some reductions, and adds in an order of its own.
  const bool own_order = e.kind == Specialisation::multimem && traits_of(e.collective).reduces_all();
  for (const int ranks : {2, 3, 5})
    for (const Numbers of : kNumbers) {
      if (own_order && (is_float(of.dtype) || !gpu::has_switched(e.collective, of.dtype, of.op))) continue;
      // An inlined post has at most 56 bytes.
      for (const std::uint64_t unit : {std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{61}}) {
        if (e.algorithm == Algorithm::inlined && unit * size_of(of.dtype) > 56) continue;
        const Interpreted o = example(e, of, ranks, ranks / 2, unit);
        const std::vector<Bytes> want = by_the_flow(e, o), got = by_hand(e, o);
        ASSERT_EQ(want.size(), static_cast<std::size_t>(ranks)) << "the interpreter does not know this flow";
        ASSERT_EQ(got.size(), want.size());
        for (std::size_t r = 0; r < want.size(); ++r)
          ASSERT_EQ(got[r], want[r]) << text(e) << ": rank " << r << " of " << ranks << ", " << unit << " "
                                     << name(of.dtype) << " " << name(of.op);
        ++compared;
      }
    }
  EXPECT_GE(compared, own_order ? 3 * 3 : 3 * 6 * 2 - 3);
}

INSTANTIATE_TEST_SUITE_P(Table, Specialisations, testing::ValuesIn(entries()),
                         [](const auto& info) { return text(info.param); });

/// The table lists exactly what the host can run by hand, and every condition is needed.
TEST(SpecialisationTable, IsComplete) {
  for_each_flow([]<class Flow>(Collective c, Algorithm a, const Flow&) {
    const bool staged = std::is_base_of_v<Staged, Flow> && !Flow::kPostsResult && !Flow::kSwitched;
    EXPECT_EQ(specialised(Specialisation::single_round, c, a, ~0u), staged) << name(c) << " " << name(a);
  });
  for (int i = 0; i < kCollectives; ++i) {
    const auto c = static_cast<Collective>(i);
    const bool devices = traits_of(c).moves() && !traits_of(c).neighbours();
    EXPECT_EQ(specialised(Specialisation::fused, c, kAllReached), devices) << name(c);
    EXPECT_FALSE(specialised(Specialisation::fused, c, 0));
  }
  for (const Entry& e : entries())
    for (std::uint32_t bit = 1; bit != 0; bit <<= 1) {
      if ((e.needs & bit) == 0) continue;
      EXPECT_FALSE(specialised(e.kind, e.collective, e.algorithm, e.needs & ~bit)) << text(e);
    }
}

}  // namespace
}  // namespace ouro::flow
