// Budgets: the calls of the device that each operation makes, exactly. A call more is a regression; a call
// less is an improvement, and then the number here must be lowered. Each test names the target.
// docs/design/gpu-cost.md explains the numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/runtime/exec/gpu/counted_calls.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

using gpu::CallClass;
using gpu::CallCounts;
using gpu::GpuCall;

Status sum(CountedRank& r) {
  return status_of(all_reduce(r.group, r.input(r.count), r.output(r.count), ReduceOp::sum, r.stream));
}
Status blocking_sum(CountedRank& r) {
  return status_of(all_reduce(r.group, r.input(r.count), r.output(r.count), ReduceOp::sum));
}
Status gather(CountedRank& r) {
  const auto all = r.count * static_cast<std::size_t>(r.group.size());
  return status_of(all_gather(r.group, r.input(r.count), r.output(all), r.stream));
}
Status spread(CountedRank& r) {
  return status_of(broadcast(r.group, r.input(r.count), r.output(r.count), 0, r.stream));
}
/// A message to the next rank and one from the previous one, `each` times.
CountedCall messages(int each) {
  return [each](CountedRank& r) -> Status {
    const int n = r.group.size(), me = r.group.rank();
    group_start();
    for (int i = 0; i < each; ++i) {
      OURO_TRY(status_of(send(r.group, r.input(r.count), (me + 1) % n, i, r.stream)));
      OURO_TRY(status_of(recv(r.group, r.output(r.count), (me + n - 1) % n, i, r.stream)));
    }
    return status_of(group_end());
  };
}

std::string pieces(const CallCounts& c) { return c.text(CallClass::piece); }
/// `first` of one rank or more, then `last`.
std::vector<std::string> ranks(int n, const std::string& first, const std::string& last) {
  std::vector<std::string> all(static_cast<std::size_t>(n), first);
  all.back() = last;
  return all;
}
std::vector<std::string> pieces(const Counted& counted) {
  std::vector<std::string> all;
  for (const CallCounts& c : counted.ranks) all.push_back(pieces(c));
  return all;
}

class GpuCost : public testing::TestWithParam<int> {
 protected:
  const int n = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Ranks, GpuCost, testing::Values(2, 4, 8),
                         [](const auto& info) { return std::to_string(info.param); });

// ---- the leader's path among threads: a launch of each rank, and the leader's kernel. No more with a wait.

TEST_P(GpuCost, LeaderInARow) {
  OURO_NEEDS_FAKES();
  const Counted counted = count_calls({.path = "leader", .ranks = n}, sum);
  EXPECT_EQ(pieces(counted), ranks(n, "launch 1", "launch 2"));
  EXPECT_EQ(counted.pieces(), n + 1);
  for (const CallCounts& c : counted.ranks) {
    EXPECT_EQ(c.words, 0) << "kernels write and await them";
    EXPECT_EQ(c.queries(), 0);
    EXPECT_EQ(c.of(GpuCall::capturing), 1);
    EXPECT_EQ(c.of(GpuCall::pointer), 0) << "memory of ouro is known";
  }
}

TEST_P(GpuCost, LeaderWithAWait) {
  OURO_NEEDS_FAKES();
  const Counted counted = count_calls({.path = "leader", .ranks = n, .wait = true}, sum);
  EXPECT_EQ(pieces(counted), ranks(n, "launch 1", "launch 2"));
  EXPECT_EQ(counted.total.queries(), 0) << "who waits reads a word";
}

/// Calls that wait: one launch for all ranks, whichever arrives last, of any size.
TEST_P(GpuCost, CallsThatWait) {
  OURO_NEEDS_FAKES();
  for (const std::size_t count : {std::size_t{2}, std::size_t{32} << 10})
    for (const char* path : {"leader", "auto"}) {
      const CountedCase test{
          .path = path, .ranks = n, .count = count, .calls = 3, .checked = false, .one_gpu = true};
      const Counted counted = count_calls(test, blocking_sum);
      EXPECT_EQ(counted.pieces(), 3) << path << ", " << count;
      for (const CallCounts& c : counted.ranks) EXPECT_EQ(c.queries(), 0) << path << ", " << count;
    }
}

/// The driver's other calls: contexts pushed and popped around each call, the capture query. At most 6 where
/// the device's context is current in the thread.
TEST_P(GpuCost, LeaderDriverCalls) {
  OURO_NEEDS_FAKES();
  const Counted counted = count_calls({.path = "leader", .ranks = n}, sum);
  const std::uint64_t capturing = 4;
  const auto around = [](std::uint64_t pieces) { return 3 * pieces; };
  EXPECT_EQ(counted.ranks.front().other_driver_calls(), capturing + around(1));
  CallCounts leader = counted.ranks.back();
  leader.driver -= leader.of(GpuCall::properties);  // asked once by each rank that leads for the first time
  leader.contexts -= leader.of(GpuCall::properties);
  EXPECT_EQ(leader.other_driver_calls(), capturing + around(2));
  EXPECT_LE(leader.driver - leader.pieces(), 6);
}

// ---- resident kernels: a launch of each rank, and no more with a wait.

TEST_P(GpuCost, Resident) {
  OURO_NEEDS_FAKES();
  const Counted in_a_row = count_calls({.path = "resident", .ranks = n}, sum);
  EXPECT_EQ(pieces(in_a_row), ranks(n, "launch 1", "launch 1"));
  const Counted waited = count_calls({.path = "resident", .ranks = n, .wait = true}, sum);
  EXPECT_EQ(pieces(waited), ranks(n, "launch 1", "launch 1"));
  const Counted large = count_calls({.path = "resident", .ranks = n, .count = 32 << 10}, sum);
  EXPECT_EQ(pieces(large), ranks(n, "launch 1", "launch 1")) << "by pointer";
}

// ---- streams that wait for each other. Each 32 hops one event more bounds the calls that are ahead.

/// Takes this event out, if this call recorded one. `own`: the events of the call itself.
void leave_out_bound(CallCounts* c, std::uint64_t own) {
  std::uint64_t& records = c->calls[static_cast<std::size_t>(GpuCall::record)];
  EXPECT_GE(records, own);
  EXPECT_LE(records, own + 1);
  records = own;
}

/// Eight bytes along a ring: 2(N - 1) hops of a rank, two batches each and two around, one kernel or two.
TEST_P(GpuCost, StreamOrderedRing) {
  OURO_NEEDS_FAKES();
  Counted counted = count_calls({.path = "stream", .ranks = n}, sum);
  std::vector<std::uint64_t> each;
  for (CallCounts& c : counted.ranks) {
    leave_out_bound(&c, 0);
    each.push_back(c.pieces());
    EXPECT_EQ(c.of(GpuCall::batch), 4 * n - 1) << "the last says that the operation has ended";
    EXPECT_EQ(c.words, 12 * (n - 1) + 1);
  }
  std::vector<std::uint64_t> expected(static_cast<std::size_t>(n), 4 * static_cast<std::uint64_t>(n) + 1);
  expected.front() -= 1;  // one rank has a single chunk to store
  EXPECT_EQ(each, expected);
}

TEST_P(GpuCost, Copies) {
  OURO_NEEDS_FAKES();
  Counted gathered = count_calls({.path = "copies", .ranks = n}, gather);
  for (CallCounts& c : gathered.ranks) {
    const auto forks = 2 * static_cast<std::uint64_t>(n - 2);  // to the second stream and back
    leave_out_bound(&c, forks);
    EXPECT_EQ(c.of(GpuCall::copy), 2 * n - 1);
    EXPECT_EQ(c.of(GpuCall::batch), 2 * n + 1);
    EXPECT_EQ(c.of(GpuCall::wait), forks);
    EXPECT_EQ(c.pieces(), 8 * (n - 1));
  }
  Counted all = count_calls({.path = "copies", .ranks = n}, spread);
  for (CallCounts& c : all.ranks) leave_out_bound(&c, c.of(GpuCall::wait));
  EXPECT_EQ(all.pieces(), 9 * (n - 1));  // 9 in the middle of the chain, 4 and 5 at its ends
}

// ---- through the host

TEST_P(GpuCost, Staged) {
  OURO_NEEDS_FAKES();
  const std::string one = "batch 2, copy 2, call_host 1";
  EXPECT_EQ(pieces(count_calls({.path = "staged", .ranks = n}, sum)), ranks(n, one, one));
}

/// A message to the next rank and one from the previous one, `each` times, in one exchange.
CountedCall exchanged(int each) {
  return [each](CountedRank& r) -> Status {
    const int n = r.group.size(), me = r.group.rank();
    std::vector<Transfer> all;
    for (int i = 0; i < each; ++i) {
      all.push_back(Transfer::send_to((me + 1) % n, r.input(r.count)));
      all.push_back(Transfer::receive_from((me + n - 1) % n, r.output(r.count)));
    }
    return status_of(exchange(r.group, all, r.stream));
  };
}

/// One kernel of a rank carries all messages of a call, whatever their number and length.
TEST_P(GpuCost, Exchange) {
  OURO_NEEDS_FAKES();
  for (const int each : {1, 3, 40}) {
    const CountedCase ring{.path = "auto", .ranks = n, .count = 10'000, .checked = false};
    const Counted counted = count_calls(ring, exchanged(each));
    EXPECT_EQ(pieces(counted), ranks(n, "launch 1", "launch 1"));
    for (const CallCounts& c : counted.ranks) {
      EXPECT_EQ(c.of(GpuCall::capturing), 1);
      EXPECT_EQ(c.of(GpuCall::pointer), 0) << "memory of ouro is known";
      EXPECT_EQ(c.queries(), 0);
    }
  }
}
/// Through the host a receive copies nothing down, as its whole buffer is filled.
TEST_P(GpuCost, ExchangeThroughTheHost) {
  OURO_NEEDS_FAKES();
  const CountedCase ring{.path = "staged", .ranks = n, .checked = false};
  const std::string one = "batch 1, record 1, copy 2, call_host 1";
  EXPECT_EQ(pieces(count_calls(ring, exchanged(1))), ranks(n, one, one));
}

/// Messages with tags go through the host.
TEST_P(GpuCost, Messages) {
  OURO_NEEDS_FAKES();
  const CountedCase ring{.path = "auto", .ranks = n, .checked = false};
  const std::string one = "batch 1, record 1, copy 3, call_host 1";
  EXPECT_EQ(pieces(count_calls(ring, messages(1))), ranks(n, one, one));
  const std::string three = "batch 1, record 1, copy 9, call_host 1";
  EXPECT_EQ(pieces(count_calls(ring, messages(3))), ranks(n, three, three));
}

TEST(GpuCostOfOneRank, Alone) {
  OURO_NEEDS_FAKES();
  const Counted counted = count_calls({.path = "leader", .ranks = 1}, sum);
  EXPECT_EQ(pieces(counted), std::vector<std::string>{"batch 1, copy 1"});
}

// ---- look-ups of the program's own memory

/// The places of both buffers are asked for in each call, and at every fourth look-up an address that is
/// known is asked for again, to notice that it was freed. Target: 1 call of the driver for a buffer.
TEST_P(GpuCost, PointersOfTheProgramsMemory) {
  OURO_NEEDS_FAKES();
  constexpr int kCalls = 20;
  const CountedCase staged{.path = "staged", .ranks = n, .calls = kCalls, .from = From::driver};
  for (const CallCounts& c : count_calls(staged, sum).ranks)
    EXPECT_EQ(c.of(GpuCall::pointer), kCalls * 2 + kCalls * 2 / 4);
  for (const char* path : {"leader", "resident", "stream"}) {
    const CountedCase test{.path = path, .ranks = n, .calls = kCalls, .from = From::driver};
    for (const CallCounts& c : count_calls(test, sum).ranks)
      EXPECT_EQ(c.of(GpuCall::pointer), 0) << path << ": the cached plan has been checked";
  }
}

// ---- queries that nobody waits for

/// The watch thread of each rank reads the words of operations that nobody has waited for; it asks the device
/// only about one that has not ended for 10 ms.
TEST_P(GpuCost, QueriesWithoutAWaiter) {
  OURO_NEEDS_FAKES();
  using namespace std::chrono_literals;
  constexpr int kCalls = 20;
  constexpr auto kCheck = 50ms;
  const auto begin = std::chrono::steady_clock::now();
  const auto watched = [&](const CallCounts&) {
    return std::chrono::steady_clock::now() - begin > 4 * kCheck;
  };
  const Counted counted = count_calls({.path = "leader", .ranks = n, .calls = kCalls, .until = watched}, sum);
  const auto checks = (std::chrono::steady_clock::now() - begin) / kCheck + 1;
  for (const CallCounts& c : counted.ranks) EXPECT_EQ(c.queries(), 0) << "a rank that does not wait";
  EXPECT_LE(counted.total.queries(), checks * n);
}

// ---- ranks as processes, whose kernels may not run together: batches of the streams. N + 2 pieces.

TEST_P(GpuCost, LeaderOfProcesses) {
  OURO_NEEDS_FAKES();
  OURO_NEEDS_PROCESSES();
  const ForcedPath forced("leader");
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes processes(n, [&](int rank, Board& board) {
    const CountedGpus devices;
    gpu::CountingGpu& counting = CountedGpus::counting();
    InitOptions o = options(rank, n, id);
    o.gpu = 0;
    auto c = Context::create(o);
    ASSERT_TRUE(c.ok()) << c.status().message();
    CountedRank r{.group = c->world(), .count = 2};
    ASSERT_TRUE(r.in.make(*c, 2).ok() && r.out.make(*c, 2).ok());
    r.stream = *Stream::create(c->device());
    const auto call = [&] { return sum(r).ok() && r.stream.synchronize().ok(); };
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(call());
    const CallCounts before = counting.mine();
    ASSERT_TRUE(call());
    const CallCounts mine = counting.mine() - before;
    const bool leads = mine.of(GpuCall::launch) != 0;
    EXPECT_EQ(pieces(mine), leads ? "launch 1, batch 2" : "batch 1");
    EXPECT_EQ(mine.words, leads ? n + 1 : 3)
        << "the leader waits for the others' words and writes one for all";
    board.completed[rank] = mine.pieces();
    EXPECT_EQ(only_ran(c->world(), "leader"), "");
    EXPECT_TRUE(c->close().ok());
  });
  processes.join();
  std::uint64_t sum_of_pieces = 0;
  for (int r = 0; r < n; ++r) sum_of_pieces += processes.board().completed[r];
  EXPECT_EQ(sum_of_pieces, n + 2);
}

}  // namespace
}  // namespace ouro::test
