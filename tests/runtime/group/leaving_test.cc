// Messages among ranks of which some have left.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "runtime/context/context.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

using Clock = std::chrono::steady_clock;

class MessagesWhenRanksLeave : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, MessagesWhenRanksLeave, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

CView in(const int& x) { return {&x, 1, DType::i32}; }
View out(int& x) { return {&x, 1, DType::i32}; }

/// Waits until rank `r` has closed its context, and with it what its process serves to others. In a job over
/// several hosts it may still wait for others to take what it has sent.
bool has_ended(const Context& c, int r) {
  for (const auto until = Clock::now() + std::chrono::seconds(10); Clock::now() < until;
       std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    const auto state = static_cast<rt::ContextState>(c.impl()->members().page(r).state.get());
    if (state != rt::ContextState::closed && state != rt::ContextState::leaving) continue;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return true;
  }
  return false;
}

/// Two ranks begin when others have left, and what one of those sent before is there.
TEST_P(MessagesWhenRanksLeave, BeginAmongThoseThatStay) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 4, [](Context& c) -> std::string {
    Group& g = c.world();
    const int rank = c.rank(), word = 100 + rank;
    int got = -1;
    if (rank == 0) {
      OURO_RANK_OK(send(g, in(word), 2, 5));
      return "";
    }
    if (rank == 3) return "";
    OURO_RANK_CHECK(has_ended(c, 0) && has_ended(c, 3), "ranks 0 and 3 stay");
    const int other = 3 - rank;
    OURO_RANK_OK(send(g, in(word), other, 6));
    OURO_RANK_OK(recv(g, out(got), other, 6));
    OURO_RANK_CHECK(got == 100 + other, "{}", got);
    if (rank == 2) {
      OURO_RANK_OK(recv(g, out(got), 0, 5));
      OURO_RANK_CHECK(got == 100, "{}", got);
    }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// A message cannot begin towards a rank of this host that has left; between hosts it fails while it waits.
TEST_P(MessagesWhenRanksLeave, ToARankThatHasLeftFail) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    if (c.rank() == 1) return "";
    OURO_RANK_CHECK(has_ended(c, 1), "rank 1 stays");
    const std::vector<int> words(100'000);  // more than there is room for on the way
    const Status s = send(c.world(), CView(words.data(), words.size(), DType::i32), 1, 0);
    OURO_RANK_CHECK(s.reason() == Reason::peer_dead && s.failure()->rank == 1 &&
                        s.message().find("left the group before it took a message") != std::string::npos,
                    "{}", s.message());
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test
