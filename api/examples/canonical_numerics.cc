// Reproducible sums: with `canonical`, the bits depend only on the inputs and the number of ranks, not on the
// algorithm, the buffers or the layout of ranks. Run it with: ouro-run -n 4 example-canonical-numerics
#include <cmath>
#include <iostream>
#include <string_view>
#include <vector>

#include "ouro/ouro.hpp"

namespace {

constexpr std::size_t kCount = 10'000;

/// Values whose sum depends on the order of the additions.
std::vector<float> numbers(int rank) {
  std::vector<float> out(kCount);
  for (std::size_t i = 0; i < kCount; ++i)
    out[i] =
        std::sin(static_cast<float>(i + 1) * static_cast<float>(rank + 1)) * std::pow(10.0F, rank - 2.0F);
  return out;
}

ouro::Status run() {
  ouro::Result<ouro::Context> context = ouro::Context::from_env();
  if (!context) return context.status();
  ouro::Group& world = context->world();
  const std::vector<float> mine = numbers(world.rank());

  // The result that canonical guarantees, computed by hand: rank 0 + rank 1 + ..., in this order,
  // rounded to float.
  std::vector<float> expected = numbers(0);
  for (int r = 1; r < world.size(); ++r) {
    const std::vector<float> next = numbers(r);
    for (std::size_t i = 0; i < kCount; ++i) expected[i] += next[i];
  }

  // Chosen per call here. GroupOptions, InitOptions and OURO_NUMERICS choose it for a group and for a job.
  std::vector<float> sum(kCount);
  const ouro::CallOptions canonical{.numerics = ouro::Numerics::canonical};
  OURO_TRY(ouro::all_reduce(world, std::span(mine), std::span(sum), ouro::ReduceOp::sum, canonical));
  if (sum != expected) return {ouro::Reason::data_corrupt, "all_reduce differs from rank order"};

  // Another collective that computes the same sum has the same bits, element by element.
  std::vector<float> root(kCount);
  OURO_TRY(ouro::reduce(world, std::span(mine), std::span(root), ouro::ReduceOp::sum, 0, canonical));
  if (world.rank() == 0 && root != expected) return {ouro::Reason::data_corrupt, "reduce differs"};

  // `fast`, the default, may add in another order. Equal calls still give equal bits on every rank.
  std::vector<float> fast(kCount);
  const ouro::CallOptions ring{.numerics = ouro::Numerics::fast, .algorithm = "ring"};
  OURO_TRY(ouro::all_reduce(world, std::span(mine), std::span(fast), ouro::ReduceOp::sum, ring));
  std::size_t different = 0;
  for (std::size_t i = 0; i < kCount; ++i) different += fast[i] != expected[i];

  // Group::explain returns the algorithm that would run, and the reason.
  const auto why = world.explain(ouro::Collective::all_reduce, kCount, ouro::DType::f32, ouro::ReduceOp::sum,
                                 ouro::Numerics::canonical);
  if (!why) return why.status();
  if (world.rank() == 0)
    std::cout << "canonical: bits of rank order; fast ring: " << different << " of " << kCount
              << " elements have other last bits\n"
              << *why << '\n';
  return context->close();
}

}  // namespace

int main() {
  const ouro::Status outcome = run();
  if (!outcome) std::cerr << outcome.message() << '\n';
  return outcome ? 0 : 1;
}
