// Sizes, splits and the checks across options of ouro-perf.
// Run by ctest.
#include "tools/perf/options.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace ouro::perf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ParseSize, UnitsAreBinary) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("512"), 512u);
  EXPECT_EQ(parse_size("4K"), 4096u);
  EXPECT_EQ(parse_size("4kB"), 4096u);
  EXPECT_EQ(parse_size("3M"), 3u << 20);
  EXPECT_EQ(parse_size("2G"), std::size_t{2} << 30);
}

TEST(ParseSize, InvalidSizesAreRefused) {
  for (const char* s : {"", "K", "B", "-1", "1.5M", "4KK", "0x10", " 4", "1T", "99999999999999999999",
                        "18446744073709551615G"})
    EXPECT_FALSE(parse_size(s)) << s;
}

std::vector<std::size_t> list(std::size_t b, std::size_t e, std::size_t i, std::size_t f,
                              std::size_t element = 4) {
  Options o;
  o.min_bytes = b, o.max_bytes = e, o.step_bytes = i, o.step_factor = f;
  return sizes(o, element);
}

TEST(Sizes, AdvanceByStepOrFactor) {
  EXPECT_THAT(list(8, 64, 1, 2), ElementsAre(8, 16, 32, 64));
  EXPECT_THAT(list(8, 60, 1, 2), ElementsAre(8, 16, 32));
  EXPECT_THAT(list(0, 3000, 1000, 1), ElementsAre(0, 1000, 2000, 3000));
  EXPECT_THAT(list(32, 32, 1, 1), ElementsAre(32));
}

TEST(Sizes, FactorFromZeroContinuesFromOneElement) {
  EXPECT_THAT(list(0, 40, 1, 3), ElementsAre(0, 4, 12, 36));
  EXPECT_THAT(list(0, 40, 1, 3, 1), ElementsAre(0, 1, 3, 9, 27));
}

TEST(Sizes, EndAtTheLargestNumber) {
  const std::size_t huge = ~std::size_t{0};
  EXPECT_THAT(list(huge / 2, huge, 1, 4), ElementsAre(huge / 2));
  EXPECT_THAT(list(huge - 2, huge, 2, 1), ElementsAre(huge - 2, huge));
}

int color(const char* split, int rank) {
  const auto s = parse_split(split);
  EXPECT_TRUE(s) << split;
  return s ? s->color(rank) : -1;
}

TEST(Split, OperatorsGiveTheColour) {
  EXPECT_EQ(color("MOD 8", 11), 3);
  EXPECT_EQ(color("%8", 11), 3);
  EXPECT_EQ(color("AND 0x7", 11), 3);
  EXPECT_EQ(color("and0b11", 6), 2);
  EXPECT_EQ(color("DIV 4", 11), 2);
  EXPECT_EQ(color("/ 4", 11), 2);
  EXPECT_EQ(color("OR 0x7", 11), 15);
  EXPECT_EQ(color("|7", 3), 7);
  EXPECT_EQ(Split{}.color(5), 0);
}

TEST(Split, InvalidExpressionsAreRefused) {
  for (const char* s : {"", "8", "MOD", "MOD x", "XOR 3", "MOD 0", "/0", "MOD -1", "AND 0x"})
    EXPECT_FALSE(parse_split(s)) << s;
}

TEST(Split, EnvironmentIsReadAndInvalidValuesRefused) {
  ::unsetenv("NCCL_TESTS_SPLIT");
  ::setenv("NCCL_TESTS_SPLIT_MASK", "10", 1);  // hexadecimal, as strtoul base 16 reads it
  EXPECT_EQ(split_from_env()->color(0x1f), 0x10);
  ::setenv("NCCL_TESTS_SPLIT", "DIV 2", 1);  // takes precedence
  EXPECT_EQ(split_from_env()->color(5), 2);
  ::setenv("NCCL_TESTS_SPLIT", "two by two", 1);
  EXPECT_FALSE(split_from_env());
  ::unsetenv("NCCL_TESTS_SPLIT");
  ::setenv("NCCL_TESTS_SPLIT_MASK", "zz", 1);
  EXPECT_FALSE(split_from_env());
  ::unsetenv("NCCL_TESTS_SPLIT_MASK");
  EXPECT_EQ(split_from_env()->op, 0);
}

TEST(Names, AllIsExpandedAndUnknownNamesAreRefused) {
  EXPECT_EQ(parse_dtypes("all")->size(), static_cast<std::size_t>(kDTypes));
  EXPECT_EQ(parse_ops("all")->size(), static_cast<std::size_t>(kOps));
  EXPECT_THAT(*parse_dtypes("bfloat16"), ElementsAre(DType::bf16));
  EXPECT_THAT(*parse_ops("mulsum"), ElementsAre(OpKind::premulsum));
  EXPECT_THAT(parse_dtypes("fp32").status().message(), HasSubstr("bfloat16"));
  EXPECT_THAT(parse_ops("median").status().message(), HasSubstr("avg"));
}

TEST(Collectives, AreFoundByNameAndByProgramPath) {
  EXPECT_EQ(parse_kind("all_reduce"), Kind::all_reduce);
  EXPECT_EQ(parse_kind("/usr/bin/reduce_scatter_perf"), Kind::reduce_scatter);
  EXPECT_EQ(parse_kind("all_to_all"), Kind::alltoall);
  EXPECT_EQ(parse_kind("ouro-perf"), std::nullopt);
  for (const KindInfo& k : all_kinds())
    EXPECT_EQ(&info(k.kind), &k) << "the table is not in the order of Kind";
}

TEST(Collectives, LayoutCountsAsNcclTests) {
  const Layout reduce = layout(Kind::all_reduce, 1002, 4, 4);
  EXPECT_EQ(reduce.count, 250u);
  EXPECT_EQ(reduce.bytes, 1000u);
  const Layout gather = layout(Kind::all_gather, 1024, 4, 3);
  EXPECT_EQ(gather.count, 85u);
  EXPECT_EQ(gather.in, 85u);
  EXPECT_EQ(gather.out, 255u);
  EXPECT_EQ(gather.bytes, 1020u);
  const Layout scatter = layout(Kind::reduce_scatter, 1024, 8, 2);
  EXPECT_EQ(scatter.in, 128u);
  EXPECT_EQ(scatter.out, 64u);
  EXPECT_EQ(layout(Kind::alltoall, 10, 4, 4).bytes, 0u);
}

TEST(Collectives, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Kind::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Kind::all_reduce, 1), 0);
  for (const Kind k : {Kind::reduce_scatter, Kind::all_gather, Kind::alltoall, Kind::gather, Kind::scatter})
    EXPECT_DOUBLE_EQ(bus_factor(k, 4), 0.75);
  for (const Kind k : {Kind::broadcast, Kind::reduce, Kind::sendrecv}) EXPECT_DOUBLE_EQ(bus_factor(k, 4), 1);
}

}  // namespace
}  // namespace ouro::perf
