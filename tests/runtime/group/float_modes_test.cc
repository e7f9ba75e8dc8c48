// Collectives of ranks one of which computes in another floating-point mode: all get the bits that they get
// when none does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "tests/float_modes.h"
#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro::test {
namespace {

class NumericsInModes : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, NumericsInModes, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

using Bytes = std::vector<std::byte>;

/// Elements of which sums, products and means are rounded, and some are subnormal: small exponents, any
/// mantissa.
Bytes numbers(DType t, std::size_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 5);
  Bytes all(count * size_of(t));
  const std::size_t size = size_of(t);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t bits = std::uint64_t{random()} << 32 | random();
    if (t == DType::f64)
      bits = (bits >> 12) | (random() % 3 == 0 ? 0 : std::uint64_t{1022 + random() % 3} << 52);
    if (t == DType::f32)
      bits = (bits >> 41) | (random() % 3 == 0 ? 0 : std::uint64_t{126 + random() % 3} << 23);
    if (t == DType::f16)
      bits = (bits >> 54) | (random() % 3 == 0 ? 0 : std::uint64_t{14 + random() % 3} << 10);
    if (t == DType::bf16)
      bits = (bits >> 57) | (random() % 3 == 0 ? 0 : std::uint64_t{126 + random() % 3} << 7);
    if (t == DType::f8e4m3)
      bits = (bits >> 61) | (random() % 3 == 0 ? 0 : std::uint64_t{6 + random() % 3} << 3);
    std::memcpy(all.data() + i * size, &bits, size);
  }
  return all;
}

struct Call {
  DType dtype;
  std::size_t count;
  ReduceOp op;
  Numerics numerics;
  bool on_stream;
};

std::vector<Call> calls() {
  std::vector<Call> all;
  for (const DType t : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::f8e4m3})
    for (const std::size_t count : {1, 2, 5, 63, 1000, 20'000})
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::prod, ReduceOp::premul(0.3)})
        all.push_back({t, count, op, count % 2 ? Numerics::canonical : Numerics::inherit,
                       count == 63 || count == 1000});
  return all;
}

Result<Bytes> execute(Context& c, const Call& call, const Stream& stream) {
  const Bytes in = numbers(call.dtype, call.count, c.rank());
  Bytes out(in.size());
  const CView from(in.data(), call.count, call.dtype);
  const View to(out.data(), call.count, call.dtype);
  const CallOptions options{call.numerics};
  if (call.on_stream) {
    OURO_ASSIGN(const Work work, all_reduce(c.world(), from, to, call.op, stream, options));
    OURO_TRY(work.wait(kHang));
  } else {
    OURO_TRY(all_reduce(c.world(), from, to, call.op, options));
  }
  return out;
}

TEST_P(NumericsInModes, FloatModeOfOneRankDoesNotChangeResults) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  for (const int n : {2, 3}) {
    const std::string outcome = run(GetParam(), n, [n](Context& c) -> std::string {
      for (const FloatMode& mode : kFloatModes) {
        const FloatMode none{"", FE_TONEAREST, false, false};
        const InFloatMode mine(c.rank() == n - 1 ? mode : none);
        auto stream = Stream::create();  // its thread begins in this mode
        OURO_RANK_OK(stream);
        for (const Call& call : calls()) {
          auto got = execute(c, call, *stream);
          OURO_RANK_OK(got);
          OURO_RANK_CHECK(mine.holds(), "{}: the mode of the thread is lost", mode.name);
          const InFloatMode plain(none);
          auto expected = execute(c, call, Stream());
          if (call.on_stream) {
            auto fresh = Stream::create();
            OURO_RANK_OK(fresh);
            expected = execute(c, call, *fresh);
          }
          OURO_RANK_OK(expected);
          OURO_RANK_CHECK(*got == *expected, "{}: {} {} of {}, canonical {}", mode.name, call.count,
                          name(call.dtype), static_cast<int>(call.op.kind),
                          call.numerics == Numerics::canonical);
        }
      }
      return "";
    });
    EXPECT_EQ(outcome, "");
  }
}

}  // namespace
}  // namespace ouro::test
