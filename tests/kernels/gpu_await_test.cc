// The kernel that waits for the host and then copies: with many lanes in shuffled order, at any address.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "kernels/gpu/await_host_body.h"
#include "tests/kernels/lanes.h"

namespace ouro::gpu {
namespace {

std::vector<std::byte> noise(std::size_t bytes) {
  std::mt19937 random(7);
  std::vector<std::byte> all(bytes);
  for (std::byte& b : all) b = static_cast<std::byte>(random());
  return all;
}

TEST(GpuAwaitHost, CopiesAtAnyAddressAndClearsTheWord) {
  alignas(16) static std::byte to[8192];
  for (const int lanes : {1, 7, 32})
    for (const std::size_t skew : {0, 1, 16})
      for (const std::size_t bytes : {0, 1, 15, 16, 1000, 4096}) {
        const std::vector<std::byte> from = noise(bytes + 32);
        std::fill_n(to, sizeof to, std::byte{0});
        std::uint32_t word = 1, ended = 0;
        AwaitHostArgs args{.word = &word, .ended = {&ended, 7}, .copies = 2};
        args.copy[0] = {to + skew, from.data(), bytes};
        args.copy[1] = {to + 6000, from.data() + 3, 20};
        Fibers fibers(bytes + 1);
        fibers.run(lanes, [&](int lane) { await_host(args, FiberBlock{&fibers, lane, lanes, 0, 1}); });
        EXPECT_EQ(word, 0u);
        EXPECT_EQ(ended, 7u);
        EXPECT_TRUE(std::equal(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(bytes), to + skew));
        EXPECT_EQ(to[skew + bytes], std::byte{0});
        EXPECT_TRUE(std::equal(to + 6000, to + 6020, from.begin() + 3));
      }
}

TEST(GpuAwaitHost, CopiesWhatTheHostHasWrittenBeforeItSetTheWord) {
  std::vector<std::byte> from(100), to(100);
  const std::vector<std::byte> data = noise(100);
  std::uint32_t word = 0;
  AwaitHostArgs args{.word = &word, .copies = 1};
  args.copy[0] = {to.data(), from.data(), 100};
  std::thread kernel([&] { awaiting_kernel().host(&args, 0, 1); });
  from = data;
  std::atomic_ref(word).store(1, std::memory_order_release);
  kernel.join();
  EXPECT_EQ(to, data);
}

}  // namespace
}  // namespace ouro::gpu
