// Posted receives: which of them gets a message, and whose memory the message is written to.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "runtime/group/group.h"
#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro::test {
namespace {

using Ints = std::vector<int>;

constexpr std::size_t kOneSlot = 1 << 12, kManySlots = 1 << 19;  // elements of a message

class MessagesPosted : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, MessagesPosted, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

/// A receive from rank 0.
rt::Message receive(Ints& to, bool exact = false) {
  return {{.bytes = to.size() * sizeof(int), .exact = exact}, reinterpret_cast<std::byte*>(to.data())};
}

Status complete(Group& g, rt::Message& m) { return g.impl()->mailbox().complete({&m}, kHang); }

/// Sets the next message from rank 0 aside and returns its key.
Result<std::uint64_t> set_aside(Group& g) {
  using Clock = std::chrono::steady_clock;
  for (const auto until = Clock::now() + kHang; Clock::now() < until; std::this_thread::yield()) {
    auto found = g.impl()->match(0, 0);
    OURO_TRY(found.status());
    if (*found) return (*found)->key;
  }
  return Status(Reason::deadline, "no message from rank 0");
}

/// Between hosts the link knows the memory of a waiting receive. When the receive has got a message that was
/// put back, the link must not write to that memory any more.
TEST_P(MessagesPosted, ReceiveIsNotWrittenAfterItGotAReturnedMessage) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    Ints data(kOneSlot), next(kOneSlot);
    if (c.rank() == 0) {
      for (int k : {1, 2}) {
        std::fill(data.begin(), data.end(), k);
        OURO_RANK_OK(send(g, std::span<const int>(data), 1));
        OURO_RANK_OK(barrier(g));
      }
      return "";
    }
    const auto key = set_aside(g);
    OURO_RANK_OK(key);
    rt::Message first = receive(data), second = receive(next);
    OURO_RANK_OK(g.impl()->mailbox().post({&first}));
    g.impl()->put_back(*key);
    OURO_RANK_OK(complete(g, first));
    OURO_RANK_CHECK(data == Ints(kOneSlot, 1), "{}", data[0]);
    std::fill(data.begin(), data.end(), 7);
    OURO_RANK_OK(barrier(g));
    OURO_RANK_OK(set_aside(g));  // it has arrived, and no receive was waiting
    OURO_RANK_CHECK(data == Ints(kOneSlot, 7), "the next message was written there");
    g.impl()->put_back(*key + 1);
    OURO_RANK_OK(g.impl()->mailbox().post({&second}));
    OURO_RANK_OK(complete(g, second));
    OURO_RANK_CHECK(data == Ints(kOneSlot, 7) && next == Ints(kOneSlot, 2), "{}, {}", data[0], next[0]);
    OURO_RANK_OK(barrier(g));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// A receive that expects another length fails at the first slot: the rest is not written to its memory.
TEST_P(MessagesPosted, LengthMismatchEndsTheReceiveAtTheFirstSlot) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    for (int turn = 0; turn < (g.impl()->one_host() ? 1 : 10); ++turn) {
      Ints data(kManySlots, c.rank() == 0 ? 3 : 0), more(2 * kManySlots);
      if (c.rank() == 0) {
        OURO_RANK_OK(barrier(g));
        OURO_RANK_OK(send(g, std::span<const int>(data), 1));
      } else {
        rt::Message other = receive(more, true);
        OURO_RANK_OK(g.impl()->mailbox().post({&other}));
        OURO_RANK_OK(barrier(g));
        const Status told = complete(g, other);
        OURO_RANK_CHECK(told.reason() == Reason::mismatch, "{}", told.message());
        std::fill(more.begin(), more.end(), 7);
        OURO_RANK_OK(recv(g, std::span<int>(data), 0));
        OURO_RANK_CHECK(data == Ints(kManySlots, 3), "{} to {}", data[0], data[kManySlots - 1]);
        OURO_RANK_CHECK(more == Ints(2 * kManySlots, 7), "the message was written there");
      }
      OURO_RANK_OK(barrier(g));
    }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// A message that does not fit the first receive goes to the next in order, whether it arrives or is
/// put back.
TEST_P(MessagesPosted, MisfitMessageGoesToTheNextReceive) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    for (bool comes : {true, false})
      for (bool exact : {false, true}) {
        Ints data{1, 1}, next{2, 2}, other(exact ? 3 : 1), third = other;
        if (c.rank() == 0) {
          if (comes) OURO_RANK_OK(barrier(g));
          OURO_RANK_OK(send(g, std::span<const int>(data), 1));
          if (!comes) OURO_RANK_OK(barrier(g));
          OURO_RANK_OK(send(g, std::span<const int>(next), 1));
        } else {
          const auto key = comes ? 0 : set_aside(g);
          OURO_RANK_OK(key);
          rt::Message misfits[] = {receive(other, exact), receive(third, exact)};
          rt::Message fits = receive(data, exact);
          data = next = {0, 0};
          OURO_RANK_OK(g.impl()->mailbox().post({&misfits[0], &misfits[1], &fits}));
          if (comes)
            OURO_RANK_OK(barrier(g));
          else
            g.impl()->put_back(*key);
          for (rt::Message& m : misfits) {
            const Status told = complete(g, m);
            OURO_RANK_CHECK(told.reason() == (exact ? Reason::mismatch : Reason::invalid), "{}",
                            told.message());
          }
          OURO_RANK_OK(complete(g, fits));
          if (!comes) OURO_RANK_OK(barrier(g));
          OURO_RANK_OK(recv(g, std::span<int>(next), 0));
          OURO_RANK_CHECK(data == Ints({1, 1}) && next == Ints({2, 2}) && other[0] == 0 && third[0] == 0,
                          "{}, {}, {}, {}", data[0], next[0], other[0], third[0]);
        }
        OURO_RANK_OK(barrier(g));
      }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test
