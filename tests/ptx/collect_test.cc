// The collective kernels as compiled by nvcc, on the cases of the host and of devices. Used by
// tools/gate ptx.
#include "tests/ptx/collect.h"

#include "tests/kernels/gpu_gather_cases.h"

namespace ptx {
namespace {

constexpr std::pair<DType, OpKind> kHot[] = {
#define OURO_X(t, op) {DType::t, OpKind::op},
    OURO_HOT_REDUCTIONS(OURO_X)
#undef OURO_X
};
/// Layouts whose elements are at multiples of their size; generic kernels handle the others.
Layout whole(std::uint64_t i) {
  return {static_cast<Layout::Skew>(i % 3), static_cast<Layout::Place>(i / 3 % 3)};
}

/// Each seed has different layouts and sizes.
TEST(PtxCollect, ReductionsMatchTheReference) {
  OURO_NEEDS_PTX(text);
  Module module(std::move(text));
  PtxRunner runner(module, first_seed());
  std::uint64_t turn = first_seed() * 5;
  for (const auto& [t, op] : kHot)
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (Collective c : {Collective::all_reduce, Collective::reduce, Collective::reduce_scatter})
        for (int again = 0; again < 3; ++again, ++turn) {
          run_fused(runner, c, t, op, ranks, runner.sizes()[turn / 2 % 4], whole(turn));
          ASSERT_FALSE(HasFatalFailure());
        }
}

TEST(PtxCollect, DataMovementMatchesTheReference) {
  OURO_NEEDS_PTX(text);
  Module module(std::move(text));
  PtxRunner runner(module, first_seed());
  std::uint64_t turn = first_seed() * 7;
  for (DType t : {DType::u8, DType::bf16, DType::f32, DType::f64})
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (Collective c : {Collective::broadcast, Collective::all_gather, Collective::gather,
                           Collective::scatter, Collective::all_to_all}) {
        for (int again = 0; again < 2; ++again, ++turn)
          run_fused(runner, c, t, OpKind::sum, ranks, runner.sizes()[turn / 5 % 4],
                    layout(static_cast<int>(turn % kLayouts)));
        ASSERT_FALSE(HasFatalFailure());
      }
}

TEST(PtxCollect, UnevenBlocksMatchTheReference) {
  OURO_NEEDS_PTX(text);
  Module module(std::move(text));
  PtxRunner runner(module, first_seed());
  std::mt19937_64 random(first_seed());
  std::uint64_t turn = first_seed();
  for (const auto& [t, op] : kHot)
    for (int ranks = 2; ranks <= 8; ++ranks, ++turn) {
      Blocks blocks = {0};
      for (int r = 0; r < ranks; ++r)
        blocks.push_back(blocks.back() + (random() % 4 == 0 ? 0 : random() % 300));
      for (Collective c : {Collective::reduce_scatter, Collective::all_gather}) {
        FusedCase(runner, c, t, op, ranks, whole(turn)).run(blocks, true, runner.multiprocessors());
        ASSERT_FALSE(HasFatalFailure());
      }
      const auto n = static_cast<std::size_t>(ranks);
      std::vector<Blocks> counts(n, Blocks(n));
      for (std::size_t p = 0; p < n; ++p)
        for (std::size_t q = 0; q < n; ++q) counts[p][q] = q < p ? counts[q][p] : random() % 90;
      FusedCase(runner, Collective::all_to_all, t, op, ranks, whole(turn))
          .run_pairs(counts, runner.multiprocessors());
      ASSERT_FALSE(HasFatalFailure());
    }
}

TEST(PtxCollect, EveryHopShapeMatchesTheReference) {
  OURO_NEEDS_PTX(text);
  Module module(std::move(text));
  PtxRunner runner(module, first_seed());
  std::uint64_t turn = first_seed() * 11;
  for (const auto& [t, op] : kHot)
    every_shape([&](HopShape shape) {
      if (HasFatalFailure()) return;
      if (shape.incoming != HopShape::Array::none && turn % 5 == 0) shape.weight = 0.3;
      HopCase(runner, t, op, runner.sizes()[turn / 3 % 4], whole(turn), shape).run(runner.multiprocessors());
      ++turn;
    });
}

TEST(PtxCollect, PartsOfAMessageAreGatheredInOrder) {
  OURO_NEEDS_PTX(text);
  Module module(std::move(text));
  PtxRunner runner(module, first_seed());
  for (const std::size_t skew : {0, 1, 8, 23})
    for (const std::vector<std::size_t>& lengths :
         std::vector<std::vector<std::size_t>>{{1031}, {16, 16, 16}, {1, 2, 3, 5, 7, 11}, {500, 1, 0, 500}}) {
      gather_case(runner, lengths, skew);
      ASSERT_FALSE(HasFatalFailure());
    }
}

/// The group has failed before the launch: the kernel must touch nothing, whatever the arguments are.
TEST(PtxCollect, StoppedLaunchesTouchNothing) {
  OURO_NEEDS_PTX(text);
  Module module(std::move(text));
  alignas(16) std::byte arrays[2][64] = {};
  std::uint32_t stop = 1;
  const auto run = [&](const Kernel& kernel, auto args) {
    const Function* const f = entry_of(module, kernel);
    args.stop = &stop;
    run_streams(1, {{0, {{f, 2, 64, bytes_of(args), false}}}},
                [&](Memory& m) { m.add(&stop, sizeof stop, Space::global, "the stop word"); });
  };
  for (const Kernel* kernel : collect_kernels()) {
    const std::string_view name = kernel->name;
    if (name.ends_with("generic") || name == "gather_runs" || name == "meet")
      continue;  // they have no such word
    if (name.starts_with("hop")) {
      run(*kernel, HopArgs{.count = 16, .incoming = arrays[0], .mine = arrays[0], .store = arrays[1]});
    } else {
      FusedArgs a{.collective = Collective::all_reduce, .ranks = 2, .count = 16};
      a.in[0] = a.in[1] = arrays[0], a.out[0] = arrays[1];
      run(*kernel, a);
    }
  }
}

}  // namespace
}  // namespace ptx
