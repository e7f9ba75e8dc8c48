// Messages that wait for receives, and receives that wait for messages, many of them at a time; and their
// types.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "runtime/group/group.h"
#include "tests/runtime/group/access.h"
#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro::test {
namespace {

class MessagesInNumbers : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, MessagesInNumbers, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

CView in(const int& x) { return {&x, 1, DType::i32}; }
View out(int& x) { return {&x, 1, DType::i32}; }

// With a walk over all that wait, for each message, any of these tests takes minutes. Between hosts a sender
// waits for each few of its slots.
int many() { return hosts_of(2) == 1 ? 200'000 : 20'000; }
int tagged() { return hosts_of(2) == 1 ? 50'000 : 5'000; }

TEST_P(MessagesInNumbers, ABacklogIsReceivedInLinearTime) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    int word = 0;
    const auto all_sent = [&]() -> Status {
      return c.rank() == 0 ? send(g, in(word), 1, 7) : recv(g, out(word), 0, 7).status();
    };
    for (const int source : {0, kAnySource}) {
      if (c.rank() == 0)
        for (int k = 0; k < many(); ++k) OURO_RANK_OK(send(g, in(k), 1));
      OURO_RANK_OK(all_sent());  // after this message all others are in the backlog
      if (c.rank() == 1)
        for (int k = 0; k < many(); ++k) {
          OURO_RANK_OK(recv(g, out(word), source));
          OURO_RANK_CHECK(word == k, "{} of {}", word, k);
        }
    }
    // From the last to the first, each set aside and put back once before.
    if (c.rank() == 0)
      for (int k = 0; k < tagged(); ++k) OURO_RANK_OK(send(g, in(k), 1, 100 + k));
    OURO_RANK_OK(all_sent());
    if (c.rank() == 1)
      for (int k = tagged() - 1; k >= 0; --k) {
        OURO_RANK_OK(match(g, k % 2 ? 0 : kAnySource, 100 + k));
        OURO_RANK_OK(recv(g, out(word), k % 3 ? 0 : kAnySource, 100 + k));
        OURO_RANK_CHECK(word == k, "{} of {}", word, k);
      }
    OURO_RANK_CHECK(rt::TestAccess::backlog(*g.impl()) == 0, "{}", rt::TestAccess::backlog(*g.impl()));
    OURO_RANK_OK(barrier(g));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

TEST_P(MessagesInNumbers, ManyReceivesAreServedInLinearTime) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    std::vector<int> words(tagged(), -1);
    if (c.rank() == 1) {
      group_start();
      for (int k = 0; k < tagged(); ++k)
        (void)recv(g, out(words[static_cast<std::size_t>(k)]), k % 2 ? 0 : kAnySource, k).ok();
      OURO_RANK_OK(group_end());
      for (int k = 0; k < tagged(); ++k) OURO_RANK_CHECK(words[static_cast<std::size_t>(k)] == k, "{}", k);
    } else {
      for (int k = tagged() - 1; k >= 0; --k) OURO_RANK_OK(send(g, in(k), 1, k));
    }
    OURO_RANK_OK(barrier(g));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// A rank takes messages without a receive up to a limit; then their sender waits. What it does wait for
/// itself still comes.
TEST_P(MessagesInNumbers, SenderWaitsWhenTheBacklogIsFull) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    constexpr std::size_t kWords = 1 << 18, kLimit = 4 << 20;  // a message of 1 MiB
    constexpr int kMessages = 40, kLater = 1, kAsked = 2, kGo = 3, kProbed = 4;
    Group& g = c.world();
    std::vector<int> words(kWords);
    int word = 0;
    if (c.rank() == 0) {
      OURO_RANK_OK(rt::TestAccess::limit_backlog(*g.impl(), kLimit));
      OURO_RANK_OK(recv(g, out(word), 2, kGo));  // meanwhile rank 1 sends as much as it can
      const std::size_t taken = rt::TestAccess::backlog(*g.impl());
      OURO_RANK_CHECK(taken <= kLimit, "{} bytes taken", taken);
      // It can be looked past: for a receive...
      OURO_RANK_OK(send(g, in(word), 1, kGo));
      OURO_RANK_OK(recv(g, out(word), 1, kAsked));
      OURO_RANK_CHECK(rt::TestAccess::backlog(*g.impl()) == kMessages * kWords * sizeof(int), "{} bytes",
                      rt::TestAccess::backlog(*g.impl()));
      // ...and for a question.
      for (bool seen = false; !seen;) {
        const auto found = probe(g, 1, kProbed);
        OURO_RANK_OK(found);
        seen = found->has_value();
      }
      OURO_RANK_OK(recv(g, out(word), 1, kProbed));
      for (int k = 0; k < kMessages; ++k) {
        OURO_RANK_OK(recv(g, std::span<int>(words), 1, kLater));
        OURO_RANK_CHECK(words[0] == k && words.back() == k, "{} of {}", words[0], k);
      }
      return "";
    }
    if (c.rank() == 1) {
      for (int k = 0; k < kMessages; ++k) {
        std::fill(words.begin(), words.end(), k);
        OURO_RANK_OK(send(g, std::span<const int>(words), 0, kLater));
      }
      OURO_RANK_OK(send(g, in(word), 0, kAsked));
      OURO_RANK_OK(send(g, in(word), 0, kProbed));
      return "";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // rank 1 has most likely filled the backlog
    OURO_RANK_OK(send(g, in(word), 0, kGo));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Two ranks that both send before they receive are not held up by the limit.
TEST_P(MessagesInNumbers, BacklogLimitDoesNotBlockAnExchange) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    OURO_RANK_OK(rt::TestAccess::limit_backlog(*g.impl(), 1));
    std::vector<int> mine(1 << 20, c.rank()), theirs(mine.size());
    for (int k = 0; k < 3; ++k) OURO_RANK_OK(send(g, std::span<const int>(mine), 1 - c.rank()));
    for (int k = 0; k < 3; ++k) {
      OURO_RANK_OK(recv(g, std::span<int>(theirs), 1 - c.rank()));
      OURO_RANK_CHECK(theirs == std::vector<int>(mine.size(), 1 - c.rank()), "{}", theirs[0]);
    }
    OURO_RANK_OK(barrier(g));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// A message of one type is not received as another, whichever comes first; bytes are of any type.
TEST_P(MessagesInNumbers, MessageOfAnotherTypeIsNotReceived) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    float number = 1.5F;
    int word = 0;
    const auto turn = [&] { return Status(barrier(g)); };
    if (c.rank() == 0) {
      OURO_RANK_OK(send(g, CView(&number, 1, DType::f32), 1, 1));  // before its receive
      OURO_RANK_OK(turn());
      OURO_RANK_OK(turn());
      OURO_RANK_OK(send(g, CView(&number, 1, DType::f32), 1, 2));  // after it
      OURO_RANK_OK(send(g, CView(&number, 4, DType::u8), 1, 3));
      OURO_RANK_OK(send(g, CView(&number, 1, DType::f32), 1, 4));
      return "";
    }
    const auto refused = [](const Status& s, int tag) {
      return s.reason() == Reason::mismatch &&
             s.message().find(fmt::format("from rank 0 with tag {} has 1 elements of float; expected int32",
                                          tag)) != std::string::npos;
    };
    OURO_RANK_OK(turn());
    Status s = recv(g, out(word), 0, 1).status();
    OURO_RANK_CHECK(refused(s, 1), "{}", s.message());
    OURO_RANK_OK(recv(g, View(&number, 1, DType::f32), 0, 1));  // it has stayed
    auto stream = Stream::create();
    OURO_RANK_OK(stream);
    auto posted = recv(g, out(word), 0, 2, *stream);
    OURO_RANK_OK(posted);
    while (rt::TestAccess::wanted_receives(*g.impl()) == 0) std::this_thread::yield();
    OURO_RANK_OK(turn());
    s = posted->wait(kHang);
    OURO_RANK_CHECK(refused(s, 2), "{}", s.message());
    number = 0;
    OURO_RANK_OK(recv(g, View(&number, 1, DType::f32), 0, 2));
    OURO_RANK_CHECK(number == 1.5F, "{}", number);
    OURO_RANK_OK(recv(g, View(&number, 1, DType::f32), 0, 3));
    unsigned char bytes[4];
    OURO_RANK_OK(recv(g, View(bytes, 4, DType::u8), 0, 4));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test
