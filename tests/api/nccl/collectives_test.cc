// Every collective with every type and reduction, in all three ways of driving ranks, compared with a
// serial loop.
#include "cases.h"

namespace ouro::test {
namespace {

constexpr Op kOps[] = {Op::all_reduce,     Op::reduce,     Op::broadcast, Op::bcast,  Op::all_gather,
                       Op::reduce_scatter, Op::all_to_all, Op::gather,    Op::scatter};
bool reduces(Op op) { return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter; }

std::vector<Step> of_all_types(int size) {
  std::vector<Step> steps;
  for (const Op op : kOps)
    for (int type = 0; type < ncclNumTypes; ++type)
      for (int redop = 0; redop <= (reduces(op) ? ncclNumOps : 0); ++redop)
        for (const bool in_place : {false, true}) {
          if (in_place && op == Op::all_to_all) continue;  // nccl.h has no in-place form of it
          Case c{op, static_cast<ncclDataType_t>(type), redop, 7, in_place, (type + redop) % size};
          steps.push_back(step_of(c, size));
        }
  return steps;
}

std::vector<Step> of_all_counts(int size) {
  std::vector<Step> steps;
  const auto n = static_cast<std::size_t>(size);
  for (const Op op : kOps)
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, n - 1, n, n + 1, std::size_t{4099},
                                    ((std::size_t{1} << 20) + 3) / n})
      for (const bool in_place : {false, true}) {
        if (in_place && op == Op::all_to_all) continue;
        steps.push_back(step_of({op, ncclFloat32, ncclSum, count, in_place, size - 1}, size));
      }
  return steps;
}

const KnownSteps kTypes("types", of_all_types), kCounts("counts", of_all_counts);

class Collectives : public ::testing::TestWithParam<std::tuple<How, int>> {};

TEST_P(Collectives, AllTypesAndReductionsGiveTheRightResults) {
  run(std::get<0>(GetParam()), std::get<1>(GetParam()), "types");
}
TEST_P(Collectives, AllCountsGiveTheRightResults) {
  run(std::get<0>(GetParam()), std::get<1>(GetParam()), "counts");
}

INSTANTIATE_TEST_SUITE_P(Host, Collectives,
                         ::testing::Combine(::testing::Values(How::processes, How::threads, How::one_thread),
                                            ::testing::Values(1, 2, 3, 4, 7, 16)),
                         [](const auto& p) {
                           std::ostringstream name;
                           name << std::get<0>(p.param) << "_" << std::get<1>(p.param);
                           return name.str();
                         });

}  // namespace
}  // namespace ouro::test
