// Tests of the copies by kind of destination: every length and alignment around the limits between loops, and
// no writes beyond the end.
#include "kernels/host/copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ouro::kernels {
bool use_stream_loop(std::string_view set);

namespace {

using Copy = void (*)(void*, const void*, std::size_t);

class Copies : public testing::TestWithParam<Copy> {};
INSTANTIATE_TEST_SUITE_P(All, Copies, testing::Values(copy_slot, copy_buffer, copy_built_in, copy_stream),
                         [](const auto& info) {
                           return info.param == copy_slot       ? "slot"
                                  : info.param == copy_buffer   ? "buffer"
                                  : info.param == copy_built_in ? "built_in"
                                                                : "stream";
                         });

void check(Copy copy, std::size_t bytes, std::size_t to_shift, std::size_t from_shift) {
  constexpr std::size_t kGuard = 128;
  std::vector<std::byte> from(bytes + from_shift + kGuard),
      to(bytes + to_shift + 2 * kGuard, std::byte{0xEE});
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256);
  std::byte* const at = to.data() + kGuard + to_shift;
  copy(at, from.data() + from_shift, bytes);
  stream_fence();
  ASSERT_TRUE(bytes == 0 || std::memcmp(at, from.data() + from_shift, bytes) == 0)
      << bytes << " bytes, shifts " << to_shift << " " << from_shift;
  for (const std::byte* p = to.data(); p < at; ++p) ASSERT_EQ(*p, std::byte{0xEE});
  for (const std::byte* p = at + bytes; p < to.data() + to.size(); ++p) ASSERT_EQ(*p, std::byte{0xEE});
}

TEST_P(Copies, CopyEveryLengthAndAlignment) {
  for (std::size_t bytes = 0; bytes < 300; bytes += bytes < 140 ? 1 : 13)
    for (const std::size_t to : {0, 1, 8, 31, 63})
      for (const std::size_t from : {0, 3, 16, 64}) check(GetParam(), bytes, to, from);
}
TEST_P(Copies, CopyLengthsAroundTheLimitsBetweenLoops) {
  for (const std::size_t bytes : {1023, 1024, 1025, 4095, 4096, 4097, 65'536, 131'073})
    for (const std::size_t to : {0, 1, 32})
      for (const std::size_t from : {0, 5}) check(GetParam(), bytes, to, from);
}

/// Tests every loop of the streaming copy, on processors that support it.
class StreamLoops : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!use_stream_loop(GetParam())) GTEST_SKIP() << "this processor has no " << GetParam();
  }
  void TearDown() override {
    if (!use_stream_loop("avx512") && !use_stream_loop("avx2")) use_stream_loop("baseline");
  }
};
INSTANTIATE_TEST_SUITE_P(All, StreamLoops, testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& info) { return std::string(info.param); });
TEST_P(StreamLoops, CopyEveryLengthAndAlignment) {
  for (std::size_t bytes = 0; bytes < 1200; bytes += bytes < 600 ? 1 : 29)
    for (const std::size_t to : {0, 1, 32, 63})
      for (const std::size_t from : {0, 3, 32}) check(copy_stream, bytes, to, from);
  check(copy_stream, 131'073, 17, 5);
}
TEST(StreamLoop, UnknownNameIsRefused) { EXPECT_FALSE(use_stream_loop("neon9")); }

/// Each kind in force, at sizes of all classes and around the limits between them.
TEST(CopyKinds, EachKindCopiesTheSameBytes) {
  for (const auto& [memory, copy] :
       {std::pair<Shared, Copy>{Shared::slot, copy_slot}, {Shared::buffer, copy_buffer}}) {
    for (std::size_t k = 0; k < kCopyKinds; ++k) {
      CopyKinds kinds;
      kinds.fill(static_cast<CopyKind>(k));
      set_copy_kinds(memory, kinds);
      EXPECT_EQ(copy_kinds(memory), kinds);
      for (const std::size_t border : {1u << 10, 2u << 10, 16u << 10, 128u << 10, 512u << 10})
        for (const std::size_t bytes : {border - 1, border + 0, border + 65}) check(copy, bytes, 3, 1);
    }
    set_copy_kinds(memory, kDefaultCopyKinds);
  }
}
TEST(CopyKinds, SizeClassesMeetAtTheGeometricMean) {
  for (std::size_t i = 0; i < kCopySizes.size(); ++i) EXPECT_EQ(copy_size_class(kCopySizes[i]), i);
  for (const auto& [bytes, expected] :
       {std::pair{16'383, 0}, {16'384, 1}, {131'071, 1}, {131'072, 2}, {524'287, 2}, {524'288, 3}})
    EXPECT_EQ(copy_size_class(static_cast<std::size_t>(bytes)), static_cast<std::size_t>(expected)) << bytes;
}
TEST(CopyKinds, AreKeptForEachSizeClassAndMemory) {
  const CopyKinds mixed = {CopyKind::rep, CopyKind::stream, CopyKind::plain, CopyKind::prefetch};
  set_copy_kinds(Shared::buffer, mixed);
  EXPECT_EQ(copy_kinds(Shared::buffer), mixed);
  EXPECT_EQ(copy_kinds(Shared::slot), kDefaultCopyKinds);
  set_copy_kinds(Shared::buffer, kDefaultCopyKinds);
}

}  // namespace
}  // namespace ouro::kernels
