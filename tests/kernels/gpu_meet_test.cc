// How launches say that they have ended, and the kernel by which streams of ranks meet; run by host threads.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/gpu/collect.h"

namespace ouro::gpu {
namespace {

using namespace std::chrono_literals;

void run(const Launch& l, const void* args) {
  std::vector<std::thread> blocks;
  for (int b = 0; b < l.shape.blocks; ++b)
    blocks.emplace_back([&, b] { l.kernel->host(args, b, l.shape.blocks); });
  for (std::thread& t : blocks) t.join();
}
std::uint32_t value(std::uint32_t& word) { return std::atomic_ref(word).load(std::memory_order_acquire); }

/// A sum of two ranks over several blocks, again and again: the words are written by the last block, when all
/// outputs are there, and the count of blocks is 0 again.
TEST(GpuLaunchEnd, IsWrittenOnceAllBlocksHaveEnded) {
  constexpr std::size_t kCount = 64 << 10;
  std::vector<float> in(kCount, 1.5f), out(kCount);
  std::uint32_t blocks = 0, finished = 0, ended = 0;
  FusedArgs a;
  a.collective = Collective::all_reduce;
  a.dtype = DType::f32;
  a.ranks = 2;
  a.count = kCount;
  for (int r = 0; r < 2; ++r) a.in[r] = reinterpret_cast<const std::byte*>(in.data());
  a.out[0] = reinterpret_cast<std::byte*>(out.data());
  const Launch l = fused(a, 4);
  ASSERT_GT(l.shape.blocks, 1);
  for (std::uint32_t k = 1; k <= 20; ++k) {
    std::fill(out.begin(), out.end(), 0.0f);
    a.end = {.blocks = &blocks, .finished = {&finished, k}, .ended = {&ended, 100 + k}};
    std::thread reader([&] {
      while (value(ended) != 100 + k) std::this_thread::yield();
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(out[i], 3.0f) << i;
    });
    run(l, &a);
    reader.join();
    EXPECT_EQ(finished, k);
    EXPECT_EQ(blocks, 0u);
  }
}

/// A launch that was stopped has not done its work: it ends without the number for others.
TEST(GpuLaunchEnd, OfAStoppedLaunchDoesNotSayThatItsWorkIsDone) {
  float in = 1, out = 0;
  std::uint32_t blocks = 0, finished = 0, ended = 0, stop = 1;
  FusedArgs a;
  a.collective = Collective::all_reduce;
  a.dtype = DType::f32;
  a.count = 1;
  a.stop = &stop;
  a.in[0] = reinterpret_cast<const std::byte*>(&in);
  a.out[0] = reinterpret_cast<std::byte*>(&out);
  a.end = {.blocks = &blocks, .finished = {&finished, 1}, .ended = {&ended, 1}};
  run(fused(a, 4), &a);
  EXPECT_EQ(out, 0);
  EXPECT_EQ(finished, 0u);
  EXPECT_EQ(ended, 1u);
}

struct Meeting {
  static constexpr int kRanks = 3, kStride = 16;
  std::uint32_t come[kRanks * kStride] = {}, finished = 0, stop = 0;
  std::uint32_t late[kRanks] = {}, ended[kRanks] = {};
  MeetArgs args(int rank, std::uint32_t number, std::chrono::nanoseconds deadline = 60s) {
    MeetArgs a;
    a.arrived = {&come[rank * kStride], number};
    a.number = number;
    a.deadline_ns = static_cast<std::uint64_t>(deadline.count());
    a.stop = &stop, a.late = &late[rank];
    a.end.ended = {&ended[rank], number};
    return a;
  }
  MeetArgs leader(int rank, std::uint32_t number, std::chrono::nanoseconds deadline = 60s) {
    MeetArgs a = args(rank, number, deadline);
    a.awaited = come, a.stride = kStride, a.words = kRanks, a.skip = rank;
    a.end.finished = {&finished, number};
    return a;
  }
  MeetArgs follower(int rank, std::uint32_t number, std::chrono::nanoseconds deadline = 60s) {
    MeetArgs a = args(rank, number, deadline);
    a.awaited = &finished, a.words = 1;
    return a;
  }
};

/// Barriers, whose leader changes; numbers wrap around.
TEST(GpuMeet, RanksWaitForEachOther) {
  constexpr std::uint32_t kFirst = 0xfffffff0;
  Meeting m;
  for (std::uint32_t& w : m.come) w = kFirst - 1;
  m.finished = kFirst - 1;
  std::atomic<int> here{0};
  std::vector<std::thread> ranks;
  for (int r = 0; r < Meeting::kRanks; ++r)
    ranks.emplace_back([&, r] {
      for (std::uint32_t k = 0; k < 100; ++k) {
        ++here;
        const MeetArgs a = k % Meeting::kRanks == static_cast<std::uint32_t>(r) ? m.leader(r, kFirst + k)
                                                                                : m.follower(r, kFirst + k);
        run(meet(), &a);
        EXPECT_GE(here, static_cast<int>(k + 1) * Meeting::kRanks) << "rank " << r << " did not wait";
      }
    });
  for (std::thread& t : ranks) t.join();
  for (int r = 0; r < Meeting::kRanks; ++r) {
    EXPECT_EQ(m.ended[r], kFirst + 99);
    EXPECT_EQ(m.late[r], 0u);
  }
  EXPECT_EQ(m.stop, 0u);
}

/// After the deadline later kernels are stopped, nobody is told that the work is done, and the launch ends.
TEST(GpuMeet, DeadlineStopsWhatFollows) {
  Meeting m;
  const MeetArgs leads = m.leader(0, 1, 5ms);
  run(meet(), &leads);
  EXPECT_EQ(m.stop, 1u);
  EXPECT_EQ(m.late[0], 1u);
  EXPECT_EQ(m.ended[0], 1u);
  EXPECT_EQ(m.finished, 0u);
  const MeetArgs follows = m.follower(1, 1, 5ms);
  run(meet(), &follows);
  EXPECT_EQ(m.late[1], 1u);
  EXPECT_EQ(m.ended[1], 1u);
}

}  // namespace
}  // namespace ouro::gpu
