// Tests of the PTX interpreter: opcodes against values computed by hand, the memory model by small grids
// whose races must be detected, and unknown opcodes.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "tests/ptx/machine.h"

namespace ptx {
namespace {

/// Runs `body` over an array of words; returns what was wrong, or nothing.
std::optional<std::string> run(const std::string& body, std::array<std::uint64_t, 64>& words, int blocks,
                               int threads, std::uint64_t seed = 1, int devices = 1) {
  try {
    Module module(
        ".entry k(\n.param .u64 words\n)\n{\n.reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<16>;\n"
        ".reg .b64 %rd<16>;\n.reg .f32 %f<8>;\n.shared .align 8 .b8 room[256];\n"
        "ld.param.u64 %rd1, [words];\ncvta.to.global.u64 %rd1, %rd1;\nmov.u32 %r1, %tid.x;\n"
        "mov.u32 %r2, %ctaid.x;\nmul.wide.u32 %rd2, %r1, 8;\nadd.s64 %rd3, %rd1, %rd2;\n" +
        body + "\nret;\n}\n");
    const Function& f = module.function("k");
    RandomChooser chooser(seed);
    Machine machine(chooser, devices * blocks * threads);
    machine.limit = 1'000'000;
    machine.memory().add(words.data(), sizeof words, Space::global, "words");
    const auto* p = words.data();
    std::vector<std::byte> arguments(8);
    std::memcpy(arguments.data(), &p, 8);
    std::vector<Stream> streams;
    for (int d = 0; d < devices; ++d) streams.push_back({d, {{&f, blocks, threads, arguments, true}}});
    machine.run(streams);
  } catch (const Violation& v) {
    return v.what();
  }
  return std::nullopt;
}
/// The value of a register that one lane stores after `body`.
std::uint64_t value(const std::string& body, const std::string& store) {
  std::array<std::uint64_t, 64> words = {};
  const auto wrong = run(body + "\n" + store, words, 1, 1);
  EXPECT_FALSE(wrong) << *wrong;
  return words[0];
}
std::uint64_t r(const std::string& body) { return value(body, "st.global.u32 [%rd1], %r9;"); }
std::uint64_t rd(const std::string& body) { return value(body, "st.global.u64 [%rd1], %rd9;"); }

TEST(PtxOpcodes, IntegerOpcodesGiveExactResults) {
  EXPECT_EQ(r("add.s32 %r9, -1, 2;"), 1u);
  EXPECT_EQ(r("shl.b32 %r9, 3, 40;"), 0u);
  EXPECT_EQ(r("shr.s32 %r9, -8, 99;"), 0xffffffffu);
  EXPECT_EQ(r("shr.u32 %r9, -8, 31;"), 1u);
  EXPECT_EQ(rd("mul.wide.s32 %rd9, -3, 5;"), static_cast<std::uint64_t>(-15));
  EXPECT_EQ(rd("mul.wide.u32 %rd9, -1, -1;"), 0xfffffffe00000001u);
  EXPECT_EQ(r("mov.u16 %h1, 65535;\nmul.wide.u16 %r9, %h1, %h1;"), 0xfffe0001u);
  EXPECT_EQ(rd("mul.hi.u64 %rd9, -1, -1;"), ~std::uint64_t{1});
  EXPECT_EQ(r("div.s32 %r9, -7, 2;"), static_cast<std::uint32_t>(-3));
  EXPECT_EQ(r("rem.s32 %r9, -7, 2;"), static_cast<std::uint32_t>(-1));
  EXPECT_EQ(r("min.s32 %r9, -7, 2;"), static_cast<std::uint32_t>(-7));
  EXPECT_EQ(r("prmt.b32 %r9, 0x33221100, 0x77665544, 0x7250;"), 0x77225500u);
  EXPECT_EQ(r("prmt.b32 %r9, 0x80, 0, 0x8888;"), 0xffffffffu);
  EXPECT_EQ(rd("bfi.b64 %rd9, 5, 0xff, 1, 3;"), 0xfbu);
  EXPECT_EQ(rd("cvt.s64.s32 %rd9, -2;"), static_cast<std::uint64_t>(-2));
  EXPECT_EQ(r("cvt.s32.s8 %r9, 0x1ff;"), 0xffffffffu);
  EXPECT_EQ(rd("mov.b64 %rd9, {1, 2};"), 0x200000001u);
  EXPECT_EQ(r("mov.b32 {%h1, %h2}, 0x12345678;\nmov.b32 %r9, {%h2, %h1};"), 0x56781234u);
  EXPECT_EQ(r("setp.lt.s32 %p1, -1, 0;\nselp.b32 %r9, 7, 8, %p1;"), 7u);
  EXPECT_EQ(r("setp.lt.u32 %p1, -1, 0;\nselp.b32 %r9, 7, 8, %p1;"), 8u);
}

TEST(PtxOpcodes, FloatingPointOpcodesRoundAsSpecified) {
  // Half of the last place, rounded to even.
  EXPECT_EQ(r("add.rn.f32 %r9, 0f3F800000, 0f33800000;"), 0x3f800000u);
  EXPECT_EQ(r("mul.rn.f32 %r9, 0f00800000, 0f3F000000;"), 0x00400000u);  // subnormal, not zero
  EXPECT_EQ(r("sub.rn.f32 %r9, 0f7F800000, 0f7F800000;"), 0x7fffffffu);
  EXPECT_EQ(r("neg.f32 %r9, 0f7F800001;"), 0xff800001u);
  EXPECT_EQ(r("cvt.rn.f16.f32 %h1, 0f477FF000;\ncvt.u32.u16 %r9, %h1;"), 0x7c00u);
  EXPECT_EQ(r("cvt.rn.f16.f32 %h1, 0f33000000;\ncvt.u32.u16 %r9, %h1;"), 0u);
  EXPECT_EQ(r("cvt.rn.f16.f32 %h1, 0f33000001;\ncvt.u32.u16 %r9, %h1;"), 1u);
  EXPECT_EQ(r("cvt.rn.f16.f32 %h1, 0f3F801000;\ncvt.u32.u16 %r9, %h1;"), 0x3c00u);
  EXPECT_EQ(r("cvt.rn.f16.f32 %h1, 0f80000000;\ncvt.u32.u16 %r9, %h1;"), 0x8000u);
  EXPECT_EQ(r("cvt.f32.f16 %r9, 1;"), 0x33800000u);
  EXPECT_EQ(r("setp.num.f32 %p1, 0f7FC00000, 0f00000000;\nselp.b32 %r9, 7, 8, %p1;"), 8u);
  EXPECT_EQ(r("setp.neu.f32 %p1, 0f7FC00000, 0f00000000;\nselp.b32 %r9, 7, 8, %p1;"), 7u);
  EXPECT_EQ(r("setp.ne.f32 %p1, 0f7FC00000, 0f00000000;\nselp.b32 %r9, 7, 8, %p1;"), 8u);
}

TEST(PtxOpcodes, UnknownOnesAreNamed) {
  std::array<std::uint64_t, 64> words = {};
  for (const char* opcode : {"tanh.approx.f32", "add.f32", "ld.relaxed.cluster.global.u32", "bar.arrive",
                             "fence.proxy.async", "add.rz.f32", "cvt.rna.tf32.f32"}) {
    const auto wrong = run(std::string(opcode) + " %r9, [%rd1];", words, 1, 1);
    ASSERT_TRUE(wrong) << opcode;
    EXPECT_NE(wrong->find(std::string("unknown opcode ") + opcode), std::string::npos) << *wrong;
  }
}

/// Lanes of one block pass words to each other; without the barrier this is a race.
TEST(PtxMachine, BarrierOrdersLanesAndItsAbsenceIsARace) {
  const std::string before = "mov.u64 %rd4, room;\nadd.s64 %rd5, %rd4, %rd2;\nst.shared.u32 [%rd5], %r1;\n",
                    after =
                        "xor.b32 %r3, %r1, 1;\nmul.wide.u32 %rd6, %r3, 8;\nadd.s64 %rd6, %rd4, %rd6;\n"
                        "ld.shared.u32 %r4, [%rd6];\nst.global.u32 [%rd3], %r4;";
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::array<std::uint64_t, 64> words = {};
    const auto wrong = run(before + "bar.sync 0;\n" + after, words, 1, 32, seed);
    ASSERT_FALSE(wrong) << *wrong;
    for (std::uint64_t t = 0; t < 32; ++t) ASSERT_EQ(words[t], t ^ 1);
    const auto race = run(before + after, words, 1, 32, seed);
    ASSERT_TRUE(race);
    EXPECT_NE(race->find("race: "), std::string::npos) << *race;
  }
  std::array<std::uint64_t, 64> words = {};
  const auto wrong =
      run("setp.eq.s32 %p1, %r1, 3;\n@%p1 bra other;\nbar.sync 0;\nret;\nother:\nbar.sync 0;", words, 1, 32);
  ASSERT_TRUE(wrong);
  EXPECT_NE(wrong->find("a warp that is divided"), std::string::npos) << *wrong;
}

/// Block 0 passes a word to block 1. `store`, `load`: the accesses of the flag.
std::optional<std::string> hand_over(const std::string& store, const std::string& load, std::uint64_t seed) {
  std::array<std::uint64_t, 64> words = {};
  const auto wrong = run("setp.eq.s32 %p1, %r2, 0;\n@%p1 bra giver;\nlook:\n" + load +
                             "setp.eq.s32 %p2, %r3, 0;\n@%p2 bra look;\nld.global.u32 %r4, [%rd1];\n"
                             "st.global.u32 [%rd1+16], %r4;\nret;\ngiver:\nst.global.u32 [%rd1], 5;\n" +
                             store,
                         words, 2, 1, seed);
  if (!wrong && words[2] != 5) return "an old word";
  return wrong;
}
TEST(PtxMemory, ReleaseAndAcquireHandDataOverWithoutARace) {
  const std::string release = "st.release.gpu.global.u32 [%rd1+8], 1;",
                    acquire = "ld.acquire.gpu.global.u32 %r3, [%rd1+8];\n",
                    relaxed = "st.relaxed.gpu.global.u32 [%rd1+8], 1;",
                    look = "ld.relaxed.gpu.global.u32 %r3, [%rd1+8];\n";
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const auto& [store, load] : {std::pair{release, acquire},
                                      {"fence.acq_rel.gpu;\n" + relaxed, acquire},
                                      {release, look + "fence.acq_rel.gpu;\n"},
                                      {"membar.gl;\n" + relaxed, look + "membar.gl;\n"},
                                      {release, "atom.acquire.gpu.global.or.b32 %r3, [%rd1+8], 0;\n"}}) {
      const auto wrong = hand_over(store, load, seed);
      ASSERT_FALSE(wrong) << *wrong << store << load;
    }
    for (const auto& [store, load] : {std::pair{relaxed, acquire},
                                      {release, look},
                                      {std::string("st.release.cta.global.u32 [%rd1+8], 1;"), acquire},
                                      {release, std::string("ld.acquire.cta.global.u32 %r3, [%rd1+8];\n")},
                                      {std::string("st.global.u32 [%rd1+8], 1;"), acquire},
                                      {relaxed + "\nfence.acq_rel.gpu;", acquire},
                                      {"fence.acq_rel.cta;\n" + relaxed, acquire}}) {
      const auto wrong = hand_over(store, load, seed);
      ASSERT_TRUE(wrong) << store << load;
    }
  }
}

/// Elements of a vector are separate accesses: a flag in one says nothing about another.
TEST(PtxMemory, VectorElementsAreSeparateAccesses) {
  const auto torn = [](const std::string& store, const std::string& load, std::uint64_t seed) {
    std::array<std::uint64_t, 64> words = {};
    const auto wrong =
        run("setp.eq.s32 %p1, %r2, 0;\n@%p1 bra giver;\n" + load +
                "st.global.u32 [%rd1+16], %r3;\nst.global.u32 [%rd1+20], %r4;\nret;\ngiver:\n" + store,
            words, 2, 1, seed);
    EXPECT_FALSE(wrong) << *wrong;
    return words[2] != 0 && words[2] != 0x100000005;
  };
  int by_words = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    by_words += torn("st.volatile.global.v2.u32 [%rd1], {5, 1};",
                     "ld.volatile.global.v2.u32 {%r3, %r4}, [%rd1];\n", seed);
    EXPECT_FALSE(torn("mov.b64 %rd4, {5, 1};\nst.volatile.global.v2.u64 [%rd1+32], {%rd4, %rd4};",
                      "ld.volatile.global.v2.u64 {%rd4, %rd5}, [%rd1+32];\nmov.b64 {%r3, %r4}, %rd4;\n",
                      seed));
  }
  EXPECT_GT(by_words, 0);
}

TEST(PtxMemory, AtomicsCountAllLanes) {
  std::array<std::uint64_t, 64> words = {};
  const auto wrong = run("atom.global.add.u32 %r3, [%rd1], 1;", words, 3, 40);
  ASSERT_FALSE(wrong) << *wrong;
  EXPECT_EQ(words[0], 120u);
  const auto race = run("atom.global.add.u32 %r3, [%rd1], 1;", words, 1, 1, 1, 2);  // on two devices
  ASSERT_TRUE(race);
  EXPECT_NE(race->find("scopes"), std::string::npos);
}

/// A thread that reads the result of an atomic operation on a store is ordered after that store, so the last
/// thread may reset the count. If the store was only overwritten, this is a race.
TEST(PtxMemory, LastAtomicThreadMayResetTheCount) {
  const std::string end = "setp.ne.s32 %p1, %r3, 2;\n@%p1 bra done;\nst.global.u32 [%rd1], 7;\ndone:";
  int races = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    std::array<std::uint64_t, 64> words = {};
    const auto wrong =
        run("membar.gl;\natom.global.add.u32 %r3, [%rd1], 1;\nmembar.gl;\n" + end, words, 3, 1, seed);
    ASSERT_FALSE(wrong) << *wrong;
    ASSERT_EQ(words[0], 7u);
    std::array<std::uint64_t, 64> other = {};
    races += run("setp.eq.s32 %p2, %r2, 2;\n@%p2 bra look;\nadd.s32 %r4, %r2, 1;\n"
                 "st.relaxed.gpu.global.u32 [%rd1], %r4;\nmov.u32 %r3, 0;\nbra there;\nlook:\n"
                 "ld.relaxed.gpu.global.u32 %r3, [%rd1];\nthere:\n" +
                     end,
                 other, 3, 1, seed)
                 .has_value();
  }
  EXPECT_GT(races, 0);
}

TEST(PtxMemory, OutOfBoundsOrMisalignedAccessIsReported) {
  std::array<std::uint64_t, 64> words = {};
  EXPECT_NE(run("ld.global.u32 %r3, [%rd1+512];", words, 1, 1).value_or("").find("outside all memory"),
            std::string::npos);
  EXPECT_NE(run("ld.global.u32 %r3, [%rd1+2];", words, 1, 1).value_or("").find("not aligned"),
            std::string::npos);
  EXPECT_NE(run("ld.global.nc.u32 %r3, [%rd1];\nst.global.u32 [%rd1], %r3;", words, 1, 1)
                .value_or("")
                .find("non-coherent"),
            std::string::npos);
}

/// Three words represent three members of the multicast address 2^40: each of its words is one word of
/// each member.
std::optional<std::string> run_multimem(const std::string& body, std::array<std::uint64_t, 64>& words) {
  try {
    Module module(
        ".entry k(\n.param .u64 words\n)\n{\n.reg .pred %p<8>;\n.reg .b32 %r<16>;\n.reg .b64 %rd<16>;\n"
        "ld.param.u64 %rd1, [words];\ncvta.to.global.u64 %rd1, %rd1;\nmov.u64 %rd2, 1099511627776;\n" +
        body + "\nret;\n}\n");
    RandomChooser chooser(1);
    Machine machine(chooser, 1);
    machine.memory().add(words.data(), sizeof words, Space::global, "words");
    const auto at = reinterpret_cast<std::uint64_t>(words.data());
    machine.memory().add_multicast(std::uint64_t{1} << 40, 64, {at, at + 64, at + 128});
    const auto* p = words.data();
    std::vector<std::byte> arguments(8);
    std::memcpy(arguments.data(), &p, 8);
    machine.run({{0, {{&module.function("k"), 1, 1, arguments, true}}}});
  } catch (const Violation& v) {
    return v.what();
  }
  return std::nullopt;
}

TEST(PtxMultimem, ReducesOverAndStoresToAllCopies) {
  const auto reduced = [](const std::string& what, std::uint64_t a, std::uint64_t b, std::uint64_t c,
                          const char* to = "%rd3", const char* store = "st.global.u64 [%rd1+256], %rd3;") {
    std::array<std::uint64_t, 64> words = {};
    words[0] = a, words[8] = b, words[16] = c;
    const auto wrong = run_multimem(
        "multimem.ld_reduce.relaxed.sys.global." + what + " " + to + ", [%rd2];\n" + store, words);
    EXPECT_FALSE(wrong) << what << ": " << *wrong;
    return words[32];
  };
  EXPECT_EQ(reduced("add.u64", 1, 2, ~std::uint64_t{0}), 2u);
  EXPECT_EQ(reduced("min.s64", 1, 2, ~std::uint64_t{0}), ~std::uint64_t{0});
  EXPECT_EQ(reduced("max.u64", 1, 2, ~std::uint64_t{0}), ~std::uint64_t{0});
  const auto word = [&](const std::string& what, std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    return reduced(what, a, b, c, "%r3", "st.global.u32 [%rd1+256], %r3;");
  };
  EXPECT_EQ(word("min.s32", 5, 0xfffffff0, 7), 0xfffffff0u);
  EXPECT_EQ(word("and.b32", 7, 14, 6), 6u);
  EXPECT_EQ(word("xor.b32", 1, 2, 8), 11u);
  const std::string four = "{%r3,%r4,%r5,%r6}";
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  EXPECT_EQ(
      reduced("add.v4.f32", bits(1.5f), bits(2), bits(4), four.c_str(), "st.global.u32 [%rd1+256], %r3;"),
      bits(7.5f));
  // 2048 + 1 + 1: in fp16 alone each addition would be lost.
  EXPECT_EQ(reduced("add.acc::f32.v4.f16x2", 0x6800, 0x3c00, 0x3c00, four.c_str(),
                    "st.global.u32 [%rd1+256], %r3;"),
            0x6801u);
  EXPECT_EQ(reduced("max.v4.bf16x2", 0x3f80'0000, 0x4000'0000, 0xc000'0000, four.c_str(),
                    "st.global.u32 [%rd1+256], %r3;"),
            0x4000'0000u);
  std::array<std::uint64_t, 64> words = {};
  EXPECT_FALSE(run_multimem(
      "mov.u32 %r3, 9;\nmultimem.st.relaxed.sys.global.v4.f32 [%rd2], {%r3,%r3,%r3,%r3};", words));
  for (const int at : {0, 1, 8, 9, 16, 17})
    EXPECT_EQ(words[static_cast<std::size_t>(at)], 0x9'0000'0009u) << at;
}

TEST(PtxMultimem, UnknownOpcodesAndAddressesAreRefused) {
  std::array<std::uint64_t, 64> words = {};
  const auto says = [&](const std::string& body) { return run_multimem(body, words).value_or(""); };
  EXPECT_NE(says("multimem.red.relaxed.sys.global.add.u32 [%rd2], %r3;").find("unknown opcode multimem.red"),
            std::string::npos);
  EXPECT_NE(says("multimem.ld_reduce.relaxed.sys.global.max.v4.f32 {%r3,%r4,%r5,%r6}, [%rd2];")
                .find("unknown opcode"),
            std::string::npos);
  EXPECT_NE(says("multimem.ld_reduce.relaxed.sys.global.add.u32 %r3, [%rd1];").find("not a multicast one"),
            std::string::npos);
  EXPECT_NE(says("ld.global.u32 %r3, [%rd2];").find("outside all memory"), std::string::npos);
}

TEST(PtxMultimem, AliasesNeedAFence) {
  std::array<std::uint64_t, 64> words = {};
  const std::string plain = "st.global.u32 [%rd1], %r3;\n",
                    reduce = "multimem.ld_reduce.relaxed.sys.global.add.u32 %r4, [%rd2];\n",
                    fence = "fence.proxy.alias;\n";
  EXPECT_NE(run_multimem(plain + reduce, words).value_or("").find("no fence.proxy.alias"), std::string::npos);
  EXPECT_EQ(run_multimem(plain + fence + reduce, words), std::nullopt);
  EXPECT_NE(run_multimem(reduce + plain, words).value_or("").find("no fence.proxy.alias"), std::string::npos);
  EXPECT_EQ(run_multimem(reduce + fence + plain, words), std::nullopt);
  EXPECT_NE(run_multimem(fence + plain + reduce, words).value_or("").find("no fence.proxy.alias"),
            std::string::npos);
}

}  // namespace
}  // namespace ptx
