// The ucx fabric between two ranks of one process: every chunk arrives once and unchanged.
#include <random>

#include "tests/timing.h"
#include "tests/transport/net/ucx/lab.h"
#include "transport/net/ucx/ucx_api.h"

namespace ouro::transport {
namespace {

constexpr std::uint32_t kSlot = 128 << 10;

class Ucx : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (auto api = UcxApi::load(); !api.ok()) GTEST_SKIP() << "no UCX: " << api.status().message();
    for (Rank* r : {&a_, &b_}) ASSERT_TRUE(r->status().ok()) << r->status().message();
    a_.knows(b_);
    b_.knows(a_);
  }
  Rank a_{0, 2, GetParam()}, b_{1, 2, GetParam()};
};

std::vector<std::size_t> sizes(std::uint32_t slot, int count, unsigned seed) {
  std::vector<std::size_t> all = {0,    1,    7,    8,    63,   64,    65,       1000, 2047,
                                  2048, 2049, 4096, 8191, 8192, 65536, slot - 1, slot};
  std::mt19937 random(seed);
  while (static_cast<int>(all.size()) < count) all.push_back(random() % (slot + 1));
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

void send_all(Rank& r, NetLink& link, std::uint64_t key, const std::vector<std::size_t>& bytes, int peer) {
  for (std::size_t i = 0; i < bytes.size(); ++i) ASSERT_TRUE(r.send(link, key, i, bytes[i], peer)) << i;
}
void receive_all(Rank& r, NetLink& link, std::uint64_t key, const std::vector<std::size_t>& bytes) {
  for (std::size_t i = 0; i < bytes.size(); ++i) ASSERT_EQ(r.receive(link, key, i, bytes[i]), "");
}

TEST_P(Ucx, ChunksOfAllSizesArriveInBothDirections) {
  const auto there = sizes(kSlot, 300, 1), back = sizes(kSlot, 300, 2);
  NetLink &la = a_.open(7, 1, kSlot), &lb = b_.open(7, 0, kSlot);
  std::thread other([&] {
    std::thread sends([&] { send_all(b_, lb, 7, back, 0); });
    receive_all(b_, lb, 7, there);
    sends.join();
  });
  std::thread sends([&] { send_all(a_, la, 7, there, 1); });
  receive_all(a_, la, 7, back);
  sends.join();
  other.join();
  EXPECT_TRUE(a_.failure(1).ok() && b_.failure(0).ok());
}

TEST_P(Ucx, ChunksLargerThanASegmentArriveByRendezvous) {
  constexpr std::uint32_t kLarge = 1 << 20;
  const auto bytes = sizes(kLarge, 40, 3);
  NetLink &la = a_.open(7, 1, kLarge), &lb = b_.open(7, 0, kLarge);
  std::thread other([&] { receive_all(b_, lb, 7, bytes); });
  send_all(a_, la, 7, bytes, 1);
  other.join();
}

TEST_P(Ucx, ManyLinkSetsWorkConcurrently) {
  constexpr std::uint64_t kLinkSets = 6;
  const auto bytes = sizes(4096 << 2, 120, 4);
  std::vector<NetLink*> la, lb;
  for (std::uint64_t k = 0; k < kLinkSets; ++k) {
    la.push_back(&a_.open(100 + k, 1, 4096 << 4, 2 + static_cast<std::uint32_t>(k)));
    lb.push_back(&b_.open(100 + k, 0, 4096 << 4, 2 + static_cast<std::uint32_t>(k)));
  }
  std::vector<std::thread> threads;
  for (std::uint64_t k = 0; k < kLinkSets; ++k) {
    threads.emplace_back([&, k] { send_all(a_, *la[k], 100 + k, bytes, 1); });
    threads.emplace_back([&, k] { receive_all(b_, *lb[k], 100 + k, bytes); });
  }
  for (auto& t : threads) t.join();
}

TEST_P(Ucx, ChunksAndCreditsArriveWithoutACaller) {
  NetLink &la = a_.open(7, 1, kSlot), &lb = b_.open(7, 0, kSlot);
  for (std::uint64_t i = 0; i < 8; ++i) {
    a_.send(la, 7, i, kSlot, 1);
    EXPECT_TRUE(eventually([&] { return load(*lb.in().full) >= i + 1; })) << i;
  }
  // Credits are sent too.
  publish(*lb.in().freed, 8);
  b_.fabric().kick(0);
  EXPECT_TRUE(eventually([&] { return load(*la.out().freed) == 8; }));
}

TEST_P(Ucx, RestEndsWhenAChunkArrives) {
  NetLink &la = a_.open(7, 1, kSlot), &lb = b_.open(7, 0, kSlot);
  ASSERT_TRUE(a_.send(la, 7, 0, 8, 1));
  ASSERT_TRUE(b_.await(*lb.in().full, 1));
  b_.fabric().enter();
  std::thread later([&] {
    std::this_thread::sleep_for(50ms);
    a_.send(la, 7, 1, 8, 1);
  });
  const auto start = Clock::now();
  while (load(*lb.in().full) < 2 && Clock::now() < start + 10s) {
    b_.fabric().rest(5s);
    b_.fabric().progress();
  }
  EXPECT_LT(Clock::now() - start, test::kHang);
  EXPECT_EQ(load(*lb.in().full), 2u);
  later.join();
  b_.fabric().leave();
}

TEST_P(Ucx, AChunkLargerThanItsSlotIsRefused) {
  NetLink& la = a_.open(7, 1, 8192);
  b_.open(7, 0, 4096);
  ASSERT_TRUE(a_.send(la, 7, 0, 8192, 1));
  ASSERT_TRUE(eventually([&] { return !b_.failure(0).ok(); }));
  EXPECT_EQ(b_.failure(0).reason(), Reason::ring_corrupt);
  EXPECT_EQ(b_.failure(0).failure()->rank, 0);
}

TEST_P(Ucx, ClosedLinkSetIsReleasedOnceItIsSent) {
  const auto bytes = sizes(kSlot, 60, 5);
  NetLink &la = a_.open(7, 1, kSlot), &lb = b_.open(7, 0, kSlot);
  std::thread other([&] { receive_all(b_, lb, 7, bytes); });
  send_all(a_, la, 7, bytes, 1);
  other.join();
  const auto room_a = a_.close(7), room_b = b_.close(7);
  EXPECT_TRUE(eventually([&] { return room_a.expired() && room_b.expired(); }));
}

INSTANTIATE_TEST_SUITE_P(Checks, Ucx, ::testing::Bool(), [](const auto& info) {
  return info.param ? "with_checksums" : "without_checksums";
});

}  // namespace
}  // namespace ouro::transport
