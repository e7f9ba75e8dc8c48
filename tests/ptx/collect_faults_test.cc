// Faults in the text of the collective kernels, each of which the cases must detect, and the stop word. Used
// by tools/gate ptx.
#include <gtest/gtest-spi.h>

#include "tests/ptx/collect.h"

namespace ptx {
namespace {

/// Runs cases that use EXPECT and ASSERT; returns what they or the interpreter found wrong, or nothing.
template <class F>
std::optional<std::string> found_by(const F& cases) {
  testing::TestPartResultArray results;
  try {
    const testing::ScopedFakeTestPartResultReporter intercept(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    cases();
  } catch (const Violation& v) {
    return v.what();
  }
  if (results.size() == 0) return std::nullopt;
  return results.GetTestPartResult(0).message();
}

TEST(PtxCollect, PlantedFaultsAreFound) {
  OURO_NEEDS_PTX(text);
  using Place = Layout::Place;
  struct Planted {
    Fault fault;
    Collective collective;
    DType dtype;
    OpKind op;
    int ranks;
    Place place = Place::apart;
  };
  const std::string four = "\\{(%r\\d+), ?(%r\\d+), ?(%r\\d+), ?(%r\\d+)\\}",
                    nc = "ld\\.global\\.nc\\.L1::no_allocate\\.v4\\.u32 ",
                    plain = "ld\\.global\\.L1::no_allocate", store = "st\\.global\\.cs\\.v4\\.u32 (\\S+) ",
                    divide = "div\\.rn\\.f32 *\t(%f\\d+), (%f\\d+), (%f\\d+)";
  const auto all = Collective::all_reduce;
  const Planted faults[] = {
      {{"loads of two words", "fused_f32_sum_2", nc + four, "ld.global.nc.L1::no_allocate.v2.u32 {$1,$2}"},
       all,
       DType::f32,
       OpKind::sum,
       2},
      {{"loads of halves", "fused_f32_sum_4", "L1::no_allocate\\.v4\\.u32", "L1::no_allocate.v4.u16"},
       all,
       DType::f32,
       OpKind::sum,
       4},
      {{"two words of loads swapped", "fused_f32_sum_4", nc + four,
        "ld.global.nc.L1::no_allocate.v4.u32 {$2,$1,$3,$4}"},
       all,
       DType::f32,
       OpKind::sum,
       4},
      {{"stores of two words", "fused_bf16_sum_2", store + four, "st.global.cs.v2.u32 $1 {$2,$3}"},
       all,
       DType::bf16,
       OpKind::sum,
       2},
      {{"two words of stores swapped", "fused_f16_sum_8", store + four,
        "st.global.cs.v4.u32 $1 {$2,$4,$3,$5}"},
       all,
       DType::f16,
       OpKind::sum,
       8},
      {{"in place by the read-only path", "fused_f32_sum_2", plain, "ld.global.nc.L1::no_allocate"},
       all,
       DType::f32,
       OpKind::sum,
       2,
       Place::in_place},
      {{"in place by the read-only path", "fused_bf16_avg_n", plain, "ld.global.nc.L1::no_allocate"},
       Collective::reduce_scatter,
       DType::bf16,
       OpKind::avg,
       3,
       Place::in_place},
      {{"operands of a division swapped", "fused_f32_avg_n", divide, "div.rn.f32 \t$1, $3, $2"},
       all,
       DType::f32,
       OpKind::avg,
       5},
      {{"fp16 converted as an integer", "fused_f16_sum_n", "cvt\\.f32\\.f16", "cvt.rn.f32.u16"},
       all,
       DType::f16,
       OpKind::sum,
       6},
      {{"single elements by two bytes", "fused_f32_sum_8", "st\\.global\\.cs\\.u32", "st.global.cs.u16"},
       Collective::reduce_scatter,
       DType::f32,
       OpKind::sum,
       8},
      {{"an exchange by the read-only path", "fused_move", plain, "ld.global.nc.L1::no_allocate"},
       Collective::all_to_all,
       DType::f32,
       OpKind::sum,
       3,
       Place::in_place},
      {{"two words of stores swapped", "fused_move", store + four, "st.global.cs.v4.u32 $1 {$3,$2,$4,$5}"},
       Collective::broadcast,
       DType::f32,
       OpKind::sum,
       3},
      {{"bytes beyond the end", "fused_move", "st\\.global\\.cs\\.u8", "st.global.cs.u32"},
       Collective::all_gather,
       DType::u8,
       OpKind::sum,
       4},
  };
  for (const Planted& f : faults)
    expect_found(text, f.fault, [&](Module& module, std::uint64_t seed) {
      PtxRunner runner(module, seed);
      return found_by([&] {
        for (Layout::Skew skew : {Layout::Skew::aligned, Layout::Skew::together})
          run_fused(runner, f.collective, f.dtype, f.op, f.ranks, 157, {skew, f.place});
      });
    });

  struct PlantedHop {
    Fault fault;
    DType dtype;
    OpKind op;
    HopShape shape;
  };
  using Array = HopShape::Array;
  const HopShape both = {Array::wide, Array::narrow, Array::wide, true, true},
                 over = {Array::wide, Array::wide, Array::wide, false, true, 1, true},
                 move = {Array::narrow, Array::none, Array::narrow, true, false};
  const PlantedHop hops[] = {
      {{"stores of two words", "hop_f32_sum", store + four, "st.global.cs.v2.u32 $1 {$2,$3}"},
       DType::f32,
       OpKind::sum,
       both},
      {{"a wide value as two words swapped", "hop_bf16_sum", store + four,
        "st.global.cs.v4.u32 $1 {$3,$2,$4,$5}"},
       DType::bf16,
       OpKind::sum,
       both},
      {{"in place by the read-only path", "hop_f16_avg", plain, "ld.global.nc.L1::no_allocate"},
       DType::f16,
       OpKind::avg,
       over},
      {{"operands of a division swapped", "hop_f32_avg", divide, "div.rn.f32 \t$1, $3, $2"},
       DType::f32,
       OpKind::avg,
       both},
      {{"loads of two words", "hop_move", nc + four, "ld.global.nc.L1::no_allocate.v2.u32 {$1,$2}"},
       DType::f32,
       OpKind::sum,
       move},
  };
  for (const PlantedHop& f : hops)
    expect_found(text, f.fault, [&](Module& module, std::uint64_t seed) {
      PtxRunner runner(module, seed);
      return found_by(
          [&] { HopCase(runner, f.dtype, f.op, 157, {}, f.shape).run(runner.multiprocessors()); });
    });
}

/// Another device writes the stop word while a kernel runs.
TEST(PtxCollect, ConcurrentWriteOfTheStopWordIsNoRace) {
  OURO_NEEDS_PTX(text);
  const std::string writer =
      ".entry stopper(\n.param .u64 word\n)\n{\n.reg .b64 %rd<4>;\nld.param.u64 %rd1, [word];\n"
      "cvta.to.global.u64 %rd1, %rd1;\nst.relaxed.sys.global.u32 [%rd1], 1;\nret;\n}\n";
  Module other(writer);
  // Some lanes have read the word before it is written, so the results are not compared.
  const auto run = [&](Module& module, std::uint64_t seed) -> std::optional<std::string> {
    PtxRunner runner(module, seed);
    runner.beside = &other.function("stopper");
    const auto wrong =
        found_by([&] { run_fused(runner, Collective::all_reduce, DType::f32, OpKind::sum, 2, 157, {}); });
    return wrong && wrong->find("differs from byte") == std::string::npos ? wrong : std::nullopt;
  };
  Module module(text);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const auto wrong = run(module, seed);
    ASSERT_FALSE(wrong) << *wrong;
  }
  const std::string load = "ld\\.relaxed\\.sys\\.global\\.u32";
  expect_found(text, {"a stop word read by a plain load", "fused_f32_sum_2", load, "ld.global.u32"}, run);
  expect_found(
      text, {"the scope of the stop word too narrow", "fused_f32_sum_2", load, "ld.relaxed.gpu.global.u32"},
      run);
}

}  // namespace
}  // namespace ptx
