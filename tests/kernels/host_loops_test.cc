// The host loops against the reference, on every instruction set of this machine: all types, ops, numbers of
// sources, alignments and sizes.
#include "kernels/host/host_loops.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "kernels/host/host_job.h"
#include "tests/kernels/reference.h"

namespace ouro::kernels {
namespace {

using reference::Bits;
using reference::kAllOps;
using reference::kAllTypes;
using reference::random_elements;
using Bytes = std::vector<std::byte>;

std::string label(DType t, OpKind op) { return std::string(name(t)) + ' ' + name(op); }

class HostLoops : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!use_instruction_set(GetParam())) GTEST_SKIP() << "this processor has no " << GetParam();
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, HostLoops, testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& info) { return std::string(info.param); });

std::vector<Scalar> factors(std::size_t n) {
  std::vector<Scalar> f;
  for (std::size_t k = 0; k < n; ++k)
    f.push_back({0.1 + 0.7 * static_cast<double>(k), static_cast<std::int64_t>(k * 0x9e3779b97f4a7c15 + 3)});
  return f;
}
std::vector<const void*> pointers(const std::vector<Bytes>& in) {
  std::vector<const void*> p;
  for (const Bytes& b : in) p.push_back(b.data());
  return p;
}

void expect_reduced(DType t, OpKind op, const std::vector<Bytes>& in, std::span<const Scalar> f, int ranks,
                    const Bytes& got) {
  std::vector<Bits> column(in.size());
  for (std::size_t i = 0; i < got.size() / size_of(t); ++i) {
    for (std::size_t k = 0; k < in.size(); ++k) column[k] = reference::load(t, in[k].data(), i);
    ASSERT_EQ(reference::load(t, got.data(), i), reference::reduce(t, op, column, f, ranks))
        << label(t, op) << " element " << i << " first " << std::hex << column[0] << " last "
        << column.back();
  }
}

TEST_P(HostLoops, FoldEqualsTheReference) {
  const std::size_t count = 2500;  // two blocks and a tail
  for (DType t : kAllTypes)
    for (OpKind op : kAllOps) {
      if (!applies(op, t)) continue;
      for (std::size_t n : {1, 2, 3, 4, 5, 8, 9}) {
        std::vector<Bytes> in;
        for (std::size_t k = 0; k < n; ++k) in.push_back(random_elements(t, count, 100 * n + k));
        Bytes out(count * size_of(t));
        const std::vector<Scalar> f = factors(n);
        fold({t, op, static_cast<int>(n), {}}, out.data(), pointers(in), f, count);
        expect_reduced(t, op, in, f, static_cast<int>(n), out);
        if (HasFatalFailure()) return;
      }
    }
}

/// Hop by hop, with accumulators in between, the result has the same bits as the fold.
TEST_P(HostLoops, HopsEqualFold) {
  const std::size_t count = 1500;
  for (DType t : kAllTypes)
    for (OpKind op : kAllOps) {
      if (!applies(op, t)) continue;
      const std::vector<Bytes> in = {random_elements(t, count, 1), random_elements(t, count, 2),
                                     random_elements(t, count, 3)};
      const std::vector<Scalar> f = factors(3);
      const auto rank = [&](std::size_t k) { return Reduction{t, op, 3, f[k]}; };
      Bytes want(count * size_of(t)), got(want.size()), a(count * accumulator_bytes(t, op)), b(a.size()),
          c(a.size());
      fold(rank(0), want.data(), pointers(in), f, count);

      widen(rank(0), a.data(), in[0].data(), count);
      reduce_input(rank(1), b.data(), a.data(), in[1].data(), 1, count);
      reduce_input_finish(rank(2), got.data(), b.data(), in[2].data(), count);
      ASSERT_EQ(got, want) << label(t, op) << " reduce_input_finish";

      reduce_input(rank(2), b.data(), b.data(), in[2].data(), 1, count);  // in place
      finish(rank(2), got.data(), b.data(), count);
      ASSERT_EQ(got, want) << label(t, op) << " finish";

      widen(rank(1), b.data(), in[1].data(), count);
      widen(rank(2), c.data(), in[2].data(), count);
      reduce_acc(rank(0), a.data(), a.data(), b.data(), 1, count);  // in place
      reduce_acc_finish(rank(0), got.data(), a.data(), c.data(), count);
      ASSERT_EQ(got, want) << label(t, op) << " reduce_acc_finish";
      reduce_acc(rank(0), c.data(), a.data(), c.data(), 1, count);  // in place of the second source
      finish(rank(0), got.data(), c.data(), count);
      ASSERT_EQ(got, want) << label(t, op) << " reduce_acc";
    }
}

TEST_P(HostLoops, EveryPairOfBytesEqualsTheReference) {
  const std::size_t count = 1 << 16;
  for (DType t : {DType::i8, DType::u8, DType::f8e4m3, DType::f8e5m2, DType::boolean})
    for (OpKind op : kAllOps) {
      if (!applies(op, t)) continue;
      std::vector<Bytes> in(2, Bytes(count));
      for (std::size_t i = 0; i < count; ++i) {
        in[0][i] = static_cast<std::byte>(i >> 8);
        in[1][i] = static_cast<std::byte>(i & 255);
      }
      Bytes out(count);
      const std::vector<Scalar> f = factors(2);
      fold({t, op, 2, {}}, out.data(), pointers(in), f, count);
      expect_reduced(t, op, in, f, 2, out);
      if (HasFatalFailure()) return;
    }
}

TEST_P(HostLoops, WeightMultipliesTheIncomingValue) {
  const std::size_t count = 1100;
  for (DType t : kAllTypes)
    for (double weight : {0.5, 0.3}) {
      const Bytes x = random_elements(t, count, 5), y = random_elements(t, count, 6);
      const Reduction r{t, t == DType::boolean ? OpKind::bxor : OpKind::sum, 2, {}};
      Bytes a(count * accumulator_bytes(t, r.op)), b(a.size()), got(x.size()), same(x.size());
      widen(r, a.data(), x.data(), count);
      reduce_input(r, b.data(), a.data(), y.data(), weight, count);
      finish(r, got.data(), b.data(), count);
      widen(r, b.data(), y.data(), count);
      reduce_acc(r, a.data(), a.data(), b.data(), weight, count);
      finish(r, same.data(), a.data(), count);
      ASSERT_EQ(got, same) << name(t);
      for (std::size_t i = 0; i < count; ++i) {
        const Bits column[] = {reference::load(t, x.data(), i), reference::load(t, y.data(), i)};
        Bits want = reference::reduce(t, r.op, column, {}, 2);  // integers have no weight
        if (is_float(t)) {
          const double w = reference::accumulated(t, weight);
          want = reference::encode(
              t, reference::accumulated(t, reference::accumulated(t, w * reference::decode(t, column[0])) +
                                               reference::decode(t, column[1])));
        }
        ASSERT_EQ(reference::load(t, got.data(), i), want) << name(t) << " element " << i;
      }
    }
}

TEST_P(HostLoops, WeightOfMinAndMaxRoundsToTheElement) {
  const Bytes x = random_elements(DType::bf16, 999, 7), y = random_elements(DType::bf16, 999, 8);
  Bytes got(x.size());
  reduce_input({DType::bf16, OpKind::max, 2, {}}, got.data(), x.data(), y.data(), 0.3, 999);
  for (std::size_t i = 0; i < 999; ++i) {
    const double scaled =
        static_cast<float>(reference::decode(DType::bf16, reference::load(DType::bf16, x.data(), i)) * 0.3f);
    const Bits column[] = {reference::encode(DType::bf16, scaled), reference::load(DType::bf16, y.data(), i)};
    ASSERT_EQ(reference::load(DType::bf16, got.data(), i),
              reference::reduce(DType::bf16, OpKind::max, column, {}, 2));
  }
}

/// An array at a given misalignment between canaries.
class Guarded {
 public:
  Guarded(std::size_t offset, std::size_t bytes) : begin_(kCanary + offset), bytes_(bytes) {
    memory_.reset(
        static_cast<unsigned char*>(std::aligned_alloc(64, (2 * kCanary + 64 + bytes + 63) / 64 * 64)));
    std::memset(memory_.get(), 0xa5, begin_ + bytes_ + kCanary);
  }
  void* data() { return memory_.get() + begin_; }
  void fill(const Bytes& from) { std::memcpy(data(), from.data(), bytes_); }
  bool intact() const {
    for (std::size_t i = 0; i < begin_; ++i)
      if (memory_[i] != 0xa5) return false;
    for (std::size_t i = 0; i < kCanary; ++i)
      if (memory_[begin_ + bytes_ + i] != 0xa5) return false;
    return true;
  }
  bool starts(const Bytes& want) const {
    return std::memcmp(memory_.get() + begin_, want.data(), bytes_) == 0;
  }

 private:
  static constexpr std::size_t kCanary = 64;
  struct Free {
    void operator()(unsigned char* p) const { std::free(p); }
  };
  std::unique_ptr<unsigned char[], Free> memory_;
  std::size_t begin_, bytes_;
};

class Alignment : public testing::TestWithParam<std::tuple<const char*, DType>> {};
INSTANTIATE_TEST_SUITE_P(Isa, Alignment,
                         testing::Combine(testing::Values("baseline", "avx2", "avx512"),
                                          testing::ValuesIn(kAllTypes)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" + name(std::get<1>(info.param));
                         });

TEST_P(Alignment, EveryOffsetAndSizeGivesTheSameBits) {
  const auto [isa, t] = GetParam();
  if (!use_instruction_set(isa)) GTEST_SKIP() << "this processor has no " << isa;
  const std::size_t most = 257;
  const std::vector<Bytes> in = {random_elements(t, most, 11), random_elements(t, most, 12)};
  for (OpKind op : {OpKind::sum, OpKind::avg}) {
    if (!applies(op, t)) continue;
    const Reduction r{t, op, 2, {}};
    const std::size_t size = size_of(t), wide = accumulator_bytes(t, op);
    Bytes folded(most * size), acc(most * wide), reduced(most * wide), finished(most * size);
    fold(r, folded.data(), pointers(in), {}, most);  // aligned, which the tests above verify
    widen(r, acc.data(), in[0].data(), most);
    reduce_input(r, reduced.data(), acc.data(), in[1].data(), 1, most);
    finish(r, finished.data(), acc.data(), most);
    for (std::size_t offset = 0; offset < 64; ++offset)
      for (std::size_t count = 0; count <= most; ++count) {
        Guarded a(offset, count * size), b((offset * 7 + 3) % 64, count * size),
            out((offset + 29) % 64, count * size);
        Guarded wide_in((offset * 5 + 1) % 64, count * wide), wide_out(offset, count * wide);
        a.fill(in[0]);
        b.fill(in[1]);
        wide_in.fill(acc);
        const void* sources[] = {a.data(), b.data()};
        fold(r, out.data(), sources, {}, count);
        ASSERT_TRUE(out.intact() && out.starts(folded)) << label(t, op) << " fold " << offset << ' ' << count;
        reduce_input(r, wide_out.data(), wide_in.data(), b.data(), 1, count);
        ASSERT_TRUE(wide_out.intact() && wide_out.starts(reduced))
            << label(t, op) << ' ' << offset << ' ' << count;
        finish(r, out.data(), wide_in.data(), count);
        ASSERT_TRUE(out.intact() && out.starts(finished))
            << label(t, op) << " finish " << offset << ' ' << count;
        fold(r, b.data(), sources, {}, count);  // in place
        ASSERT_TRUE(b.intact() && b.starts(folded)) << label(t, op) << " in place " << offset << ' ' << count;
        ASSERT_TRUE(a.intact() && a.starts(in[0]) && wide_in.intact() && wide_in.starts(acc));
      }
  }
}

TEST_P(HostLoops, FoldMayOverwriteAnySource) {
  const std::size_t count = 3000;
  for (DType t : kAllTypes)
    for (std::size_t n : {1, 2, 3, 4, 6, 8})
      for (std::size_t target = 0; target < n; ++target) {
        std::vector<Bytes> in;
        for (std::size_t k = 0; k < n; ++k) in.push_back(random_elements(t, count, 40 + k));
        Bytes want(count * size_of(t));
        const Reduction r{t, OpKind::sum, static_cast<int>(n), {}};
        fold(r, want.data(), pointers(in), {}, count);
        fold(r, in[target].data(), pointers(in), {}, count);
        ASSERT_EQ(in[target], want) << name(t) << " n " << n << " target " << target;
      }
}

TEST(InstructionSet, UnknownOneIsRefused) {
  EXPECT_FALSE(use_instruction_set("neon9"));
  ASSERT_TRUE(use_instruction_set("baseline"));
  EXPECT_STREQ(instruction_set(), "baseline");
}

/// The environment is read only once, so each value is tested in a process of its own.
int exit_code_with(const char* wanted, bool (*good)(std::string_view)) {
  setenv("OURO_ISA", wanted, 1);
  return good(instruction_set()) ? 0 : 1;
}
TEST(InstructionSet, FollowsTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::exit(exit_code_with("baseline", [](std::string_view s) { return s == "baseline"; })),
              testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      std::exit(exit_code_with(
          "sse9",
          [](std::string_view s) { return s.find("OURO_ISA=sse9 (from environment): expected") != s.npos; })),
      testing::ExitedWithCode(0),
      "OURO WARN OURO_ISA=sse9 .*expected avx512.avx2.baseline; the host loops use");
  EXPECT_EXIT(std::exit(exit_code_with("", [](std::string_view s) { return s.find("OURO_ISA") == s.npos; })),
              testing::ExitedWithCode(0), "");
}

TEST(InstructionSet, FollowsTheConfigurationFile) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string file = testing::TempDir() + "ouro_isa.conf";
  std::ofstream(file) << "OURO_ISA=baseline\n";
  const auto code = [&] {
    setenv("OURO_CONF_FILE", file.c_str(), 1);
    return exit_code_with("", [](std::string_view s) { return s == "baseline"; });
  };
  EXPECT_EXIT(std::exit(code()), testing::ExitedWithCode(0), "");
}

TEST(Dispatch, HasAKernelForExactlyTheApplicableReductions) {
  for (DType t : kAllTypes)
    for (OpKind op : kAllOps) EXPECT_EQ(baseline_kernel(t, op) != nullptr, applies(op, t)) << label(t, op);
}

}  // namespace
}  // namespace ouro::kernels
