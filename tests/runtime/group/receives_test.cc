// Posted receives: which of them a message goes to, and whose memory it is written to.
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

constexpr std::size_t kOneSlot = 1 << 12;  // elements of a message

class MessagesPosted : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, MessagesPosted, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

/// From rank 0.
rt::Message receive(Ints& to) {
  return {.data = reinterpret_cast<std::byte*>(to.data()), .bytes = to.size() * sizeof(int)};
}

Status complete(Group& g, rt::Message& m) { return g.impl()->mailbox().complete({&m}, kHang); }

/// Sets the next message of rank 0 aside: its key.
Result<std::uint64_t> set_aside(Group& g) {
  using Clock = std::chrono::steady_clock;
  for (const auto until = Clock::now() + kHang; Clock::now() < until; std::this_thread::yield()) {
    auto found = g.impl()->match(0, 0);
    OURO_TRY(found.status());
    if (*found) return (*found)->key;
  }
  return Status(Reason::deadline, "no message from rank 0");
}

/// Between hosts the link has been told of the memory of who waits, and is told that it is its owner's again.
TEST_P(MessagesPosted, ThatGetWhatIsPutBackGetNothingElse) {
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
    OURO_RANK_OK(g.impl()->post({&first}));
    g.impl()->put_back(*key);
    OURO_RANK_OK(complete(g, first));
    OURO_RANK_CHECK(data == Ints(kOneSlot, 1), "{}", data[0]);
    std::fill(data.begin(), data.end(), 7);
    OURO_RANK_OK(barrier(g));
    OURO_RANK_OK(set_aside(g));  // it has come, and there was nobody who waited
    OURO_RANK_CHECK(data == Ints(kOneSlot, 7), "the next message was written there");
    g.impl()->put_back(*key + 1);
    OURO_RANK_OK(g.impl()->post({&second}));
    OURO_RANK_OK(complete(g, second));
    OURO_RANK_CHECK(data == Ints(kOneSlot, 7) && next == Ints(kOneSlot, 2), "{}, {}", data[0], next[0]);
    OURO_RANK_OK(barrier(g));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test
