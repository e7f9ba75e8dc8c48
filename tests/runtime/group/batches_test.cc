// group_start and group_end: many operations, messages both ways, several ranks in one thread.
#include <gtest/gtest.h>

#include <vector>

#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

class Batches : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, Batches, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

CView in(const int& x) { return {&x, 1, DType::i32}; }
View out(int& x) { return {&x, 1, DType::i32}; }

TEST_P(Batches, ManyOperationsRunAtTheOutermostEnd) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    constexpr int kOps = 64;
    std::vector<int> from(kOps), to(kOps, -1);
    group_start();
    for (int i = 0; i < kOps; ++i) {
      from[static_cast<std::size_t>(i)] = i * (c.rank() + 1);
      OURO_RANK_OK(
          all_reduce(c.world(), in(from[static_cast<std::size_t>(i)]), out(to[static_cast<std::size_t>(i)])));
    }
    OURO_RANK_CHECK(to[5] == -1, "{}", "nothing runs before the end");
    OURO_RANK_OK(group_end());
    for (int i = 0; i < kOps; ++i) OURO_RANK_CHECK(to[static_cast<std::size_t>(i)] == 6 * i, "{}", i);
    // Each operation reads the output of the previous one: they run in the order of the calls.
    int a = c.rank(), b = 0, d = 0;
    group_start();
    OURO_RANK_OK(all_reduce(c.world(), in(a), out(b)));
    group_start();  // batches nest
    OURO_RANK_OK(all_reduce(c.world(), in(b), out(d)));
    OURO_RANK_OK(group_end());
    OURO_RANK_CHECK(d == 0, "{}", "only the outermost end submits");
    OURO_RANK_OK(broadcast(c.world(), in(d), out(d), 1));
    OURO_RANK_OK(group_end());
    OURO_RANK_CHECK(b == 3 && d == 9, "{} {}", b, d);
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Sends and receives between all pairs, larger than any queue, sends first: without a batch this
/// would block.
TEST_P(Batches, LargeExchangeBetweenAllPairsDoesNotBlock) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 4, [](Context& c) -> std::string {
    Group& g = c.world();
    const std::size_t count = 100'000;
    std::vector<std::vector<int>> to(4), from(4, std::vector<int>(count));
    group_start();
    for (int peer = 0; peer < 4; ++peer) {
      to[static_cast<std::size_t>(peer)].assign(count, 10 * c.rank() + peer);
      OURO_RANK_OK(send(g, std::span<const int>(to[static_cast<std::size_t>(peer)]), peer, 1));
    }
    for (int peer = 3; peer >= 0; --peer)
      OURO_RANK_OK(recv(g, std::span<int>(from[static_cast<std::size_t>(peer)]), peer, 1));
    int mine = c.rank(), sum = 0;
    OURO_RANK_OK(all_reduce(g, in(mine), out(sum)));
    OURO_RANK_OK(group_end());
    for (int peer = 0; peer < 4; ++peer)
      for (int x : from[static_cast<std::size_t>(peer)])
        OURO_RANK_CHECK(x == 10 * peer + c.rank(), "{} from {}", x, peer);
    OURO_RANK_CHECK(sum == 6, "{}", sum);
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// One batch on two groups and on streams: group_end() returns at once, and each Work tells when its
/// operation is done.
TEST_P(Batches, OneBatchSpansStreamsAndGroups) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    auto other = c.world().split(0, -c.rank());
    OURO_RANK_OK(other);
    auto first = Stream::create(), second = Stream::create();
    OURO_RANK_OK(first);
    OURO_RANK_OK(second);
    int mine = c.rank() + 1, sum = 0, top = 0, from = 0;
    group_start();
    auto summed = all_reduce(c.world(), in(mine), out(sum), ReduceOp::sum, *first);
    auto topped = all_reduce(*other, in(mine), out(top), ReduceOp::max, *second);
    auto sent = send(c.world(), in(mine), (c.rank() + 1) % 3, 9, *second);
    auto got = recv(c.world(), out(from), (c.rank() + 2) % 3, 9, *second);
    OURO_RANK_OK(group_end());
    for (const auto* work : {&summed, &topped, &sent, &got}) {
      OURO_RANK_OK(*work);
      OURO_RANK_OK((*work)->wait());
    }
    OURO_RANK_CHECK(sum == 6 && top == 3 && from == (c.rank() + 2) % 3 + 1, "{} {} {}", sum, top, from);
    // The same with blocking calls.
    sum = top = 0;
    group_start();
    OURO_RANK_OK(all_reduce(*other, in(mine), out(top), ReduceOp::max));
    OURO_RANK_OK(all_reduce(c.world(), in(mine), out(sum)));
    OURO_RANK_OK(group_end());
    OURO_RANK_CHECK(sum == 6 && top == 3, "{} {}", sum, top);
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Operations of one group keep the order of the calls, whichever streams each rank uses.
TEST_P(Batches, OperationsKeepCallOrderAcrossStreams) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    auto a = Stream::create(), b = Stream::create();
    OURO_RANK_OK(a);
    OURO_RANK_OK(b);
    int mine = c.rank() + 1, sum = 0, product = 0, least = 0;
    const bool zigzag = c.rank() == 0;
    group_start();
    auto w1 = all_reduce(c.world(), in(mine), out(sum), ReduceOp::sum, *a);
    auto w2 = all_reduce(c.world(), in(mine), out(product), ReduceOp::prod, zigzag ? *b : *a);
    auto w3 = all_reduce(c.world(), in(mine), out(least), ReduceOp::min, *a);
    OURO_RANK_OK(group_end());
    for (const auto* work : {&w1, &w2, &w3}) OURO_RANK_OK((*work)->wait());
    OURO_RANK_CHECK(sum == 3 && product == 2 && least == 1, "{} {} {}", sum, product, least);
    return "";
  });
  EXPECT_EQ(outcome, "");
}

TEST(Batch, ArgumentErrorDropsTheWholeBatch) {
  const std::string outcome = run_threads(2, [](Context& c) -> std::string {
    int mine = 1, sum = 0;
    auto stream = Stream::create();
    OURO_RANK_OK(stream);
    group_start();
    OURO_RANK_OK(all_reduce(c.world(), in(mine), out(sum)));
    auto work = all_reduce(c.world(), in(mine), out(sum), ReduceOp::sum, *stream);
    OURO_RANK_OK(work);
    const Status wrong = broadcast(c.world(), in(mine), out(sum), 2);
    OURO_RANK_CHECK(wrong.reason() == Reason::invalid, "{}", wrong.message());
    const Status end = group_end();
    OURO_RANK_CHECK(end.reason() == Reason::invalid, "{}", end.message());
    OURO_RANK_CHECK(work->wait().reason() == Reason::invalid, "{}", work->wait().message());
    OURO_RANK_CHECK(sum == 0, "{}", sum);
    OURO_RANK_CHECK(group_end().reason() == Reason::invalid, "{}", "an end without a start");
    OURO_RANK_OK(all_reduce(c.world(), in(mine), out(sum)));
    OURO_RANK_CHECK(sum == 2, "{}", sum);
    group_start();
    OURO_RANK_OK(group_end());  // an empty batch
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// One thread drives all ranks, which works because a batch submits to all groups before it waits for any.
TEST(Batch, OneThreadDrivesAllRanks) {
  auto contexts = Context::threads(3, quick_options());
  ASSERT_TRUE(contexts.ok()) << contexts.status().message();
  std::vector<std::vector<float>> from, to(3, std::vector<float>(5000));
  std::vector<std::vector<float>> all(3, std::vector<float>(3 * 5000));
  std::vector<int> word(3), heard(3, -1);
  for (int r = 0; r < 3; ++r) from.emplace_back(5000, static_cast<float>(r + 1));
  for (int turn = 0; turn < 3; ++turn) {
    group_start();
    for (std::size_t r = 0; r < 3; ++r) {
      Group& g = (*contexts)[r].world();
      ASSERT_TRUE(all_reduce(g, std::span<const float>(from[r]), std::span<float>(to[r])).ok());
      ASSERT_TRUE(all_gather(g, std::span<const float>(from[r]), std::span<float>(all[r])).ok());
      word[r] = static_cast<int>(r) + turn;
      ASSERT_TRUE(send(g, in(word[r]), static_cast<int>((r + 1) % 3)).ok());
      ASSERT_TRUE(recv(g, out(heard[r]), static_cast<int>((r + 2) % 3)).ok());
      ASSERT_TRUE(barrier(g).ok());
    }
    const Status end = group_end();
    ASSERT_TRUE(end.ok()) << end.message();
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(to[r].front(), 6);
      EXPECT_EQ(to[r].back(), 6);
      for (std::size_t b = 0; b < 3; ++b) EXPECT_EQ(all[r][b * 5000 + 17], static_cast<float>(b + 1));
      EXPECT_EQ(heard[r], static_cast<int>((r + 2) % 3) + turn);
    }
  }
}

}  // namespace
}  // namespace ouro::test
