// Messages: matching, order, unexpected messages, sizes, deadlines, many threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro::test {
namespace {

using Clock = std::chrono::steady_clock;

class MessagesOf : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, MessagesOf, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

CView in(const int& x) { return {&x, 1, DType::i32}; }
View out(int& x) { return {&x, 1, DType::i32}; }

/// Polls until a message has arrived, since it may still be in flight. Gives up after 10 s.
Result<Received> probe_until(Group& g, int source, int tag) {
  for (const auto until = Clock::now() + std::chrono::seconds(10); Clock::now() < until;
       std::this_thread::yield()) {
    auto found = probe(g, source, tag);
    if (!found.ok()) return found.status();
    if (*found) return **found;
  }
  return Status(Reason::deadline, fmt::format("no message from {} with tag {}", source, tag));
}

TEST_P(MessagesOf, UnexpectedMessagesKeepOrderWithinATag) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    constexpr int kEach = 50;
    if (c.rank() == 0) {
      for (int i = 0; i < kEach; ++i)
        for (int tag : {7, 0, 2147483647}) {
          const int word = 1000 * (tag % 10) + i;
          OURO_RANK_OK(send(g, in(word), 1, tag));
        }
    } else {
      for (int tag : {2147483647, 0, 7})  // the last sent is received first: all others wait in the queue
        for (int i = 0; i < kEach; ++i) {
          int word = -1;
          auto got = recv(g, out(word), 0, tag);
          OURO_RANK_OK(got);
          OURO_RANK_CHECK(word == 1000 * (tag % 10) + i, "{} at {}", word, i);
          OURO_RANK_CHECK(got->source == 0 && got->tag == tag && got->bytes == 4, "{} {} {}", got->source,
                          got->tag, got->bytes);
        }
    }
    return Status(barrier(g)).ok() ? "" : "barrier";
  });
  EXPECT_EQ(outcome, "");
}

TEST_P(MessagesOf, AnySourceKeepsTheOrderOfEachSource) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 4, [](Context& c) -> std::string {
    Group& g = c.world();
    constexpr int kEach = 20;
    if (c.rank() != 2) {
      for (int i = 0; i < kEach; ++i) OURO_RANK_OK(send(g, in(i), 2, 5));
    } else {
      std::vector<int> next(4, 0);
      for (int i = 0; i < 3 * kEach; ++i) {
        int word = -1;
        auto got = recv(g, out(word), kAnySource, 5);
        OURO_RANK_OK(got);
        OURO_RANK_CHECK(word == next[static_cast<std::size_t>(got->source)]++, "{} from {}", word,
                        got->source);
      }
      OURO_RANK_CHECK((next == std::vector{kEach, kEach, 0, kEach}), "{}", next[0]);
    }
    OURO_RANK_OK(barrier(g));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// A message that is too long for a receive is refused and kept, and taken by a receive with more room.
TEST_P(MessagesOf, TooLongMessageIsRefusedAndKept) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    for (std::size_t count : {std::size_t{10}, std::size_t{50'000}})
      for (bool wait_first : {true, false}) {  // either the receive or the message waits for the other
        std::vector<int> data(count);
        if (c.rank() == 0) {
          std::iota(data.begin(), data.end(), 3);
          if (wait_first) std::this_thread::sleep_for(std::chrono::milliseconds(10));
          OURO_RANK_OK(send(g, std::span<const int>(data), 1, 1));
        } else {
          if (!wait_first) OURO_RANK_OK(probe_until(g, 0, 1));
          auto small = recv(g, std::span<int>(data).first(count - 1), 0, 1);
          OURO_RANK_CHECK(small.status().reason() == Reason::invalid, "{}", small.status().message());
          OURO_RANK_OK(g.status());
          auto seen = probe_until(g, kAnySource, 1);
          OURO_RANK_OK(seen);
          OURO_RANK_CHECK(seen->bytes == 4 * count && seen->source == 0, "{}", seen->bytes);
          OURO_RANK_OK(recv(g, std::span<int>(data), 0, 1));
          for (std::size_t i = 0; i < count; ++i)
            OURO_RANK_CHECK(data[i] == static_cast<int>(i) + 3, "{} at {}", data[i], i);
        }
        OURO_RANK_OK(barrier(g));
      }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

TEST_P(MessagesOf, EmptyAndSelfMessagesArriveAndAreProbed) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    const int other = 1 - c.rank();
    OURO_RANK_OK(send(g, CView(), other, 3));
    auto got = recv(g, View(), other, 3);
    OURO_RANK_OK(got);
    OURO_RANK_CHECK(got->bytes == 0 && got->source == other, "{}", got->bytes);
    // A send to oneself does not wait, whatever the size; order is kept.
    auto none = probe(g, c.rank(), 8);
    OURO_RANK_OK(none);
    OURO_RANK_CHECK(!none->has_value(), "{}", "nothing was sent");
    std::vector<int> big(300'000, 17), back(big.size());
    const int word = 4;
    OURO_RANK_OK(send(g, std::span<const int>(big), c.rank(), 8));
    OURO_RANK_OK(send(g, in(word), c.rank(), 8));
    auto first = probe(g, kAnySource, 8);
    OURO_RANK_OK(first);
    OURO_RANK_CHECK(first->has_value() && (*first)->bytes == 4 * big.size(), "{}", "the first one first");
    OURO_RANK_OK(recv(g, std::span<int>(back), c.rank(), 8));
    OURO_RANK_CHECK(back == big, "{}", back[5]);
    int heard = 0;
    OURO_RANK_OK(recv(g, out(heard), c.rank(), 8));
    OURO_RANK_CHECK(heard == 4, "{}", heard);
    OURO_RANK_OK(barrier(g));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Both directions at once, many times the size of all slots.
TEST_P(MessagesOf, LargeMessagesInBothDirectionsArrive) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    const std::size_t count = (OURO_TEST_TSAN ? 1'000'000 : 5'000'000) / sizeof(int) + 1;
    std::vector<int> data(count), got(count);
    for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<int>(i) * (c.rank() + 1);
    auto stream = Stream::create();
    OURO_RANK_OK(stream);
    for (int turn = 0; turn < 2; ++turn) {
      auto sent = send(g, std::span<const int>(data), 1 - c.rank(), turn, *stream);
      OURO_RANK_OK(sent);
      auto received = recv(g, std::span<int>(got), 1 - c.rank(), turn);
      OURO_RANK_OK(received);
      OURO_RANK_OK(sent->wait());
      for (std::size_t i = 0; i < count; ++i)
        OURO_RANK_CHECK(got[i] == static_cast<int>(i) * (2 - c.rank()), "{} at {}", got[i], i);
      std::fill(got.begin(), got.end(), 0);
    }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Messages of many lengths, received before or after they arrive, from one source or from any; some
/// receives give up while their message is in flight. Data arrives unchanged, and memory of a finished
/// receive is not written.
TEST_P(MessagesOf, DataIsWrittenOnlyToWaitingReceives) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    constexpr int kMessages = 60;
    const auto bytes_of = [](int i) {
      constexpr std::size_t kEnds[] = {0, 1, 5000, 131'072, 131'073, 400'000, 1'100'000};
      return kEnds[static_cast<std::size_t>(i) % std::size(kEnds)] + static_cast<std::size_t>(i % 3);
    };
    const auto byte_of = [](int i, std::size_t at) {
      return static_cast<std::uint8_t>(at * 31 + static_cast<std::size_t>(i));
    };
    if (c.rank() == 0) {
      for (int i = 0; i < kMessages; ++i) {
        std::vector<std::uint8_t> data(bytes_of(i));
        for (std::size_t at = 0; at < data.size(); ++at) data[at] = byte_of(i, at);
        if (i % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        OURO_RANK_OK(send(g, {data.data(), data.size(), DType::u8}, 1, i % 2));
      }
      return Status(barrier(g)).ok() ? "" : "barrier";
    }
    int given_up = 0;
    for (int i = 0; i < kMessages; ++i) {
      std::vector<std::uint8_t> data(bytes_of(i) + static_cast<std::size_t>(i % 4) * 1000, 0xee);
      const View room{data.data(), data.size(), DType::u8};
      if (i % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      Result<Received> got = recv(g, room, i % 3 == 0 ? kAnySource : 0, i % 2, std::chrono::milliseconds(1));
      if (!got.ok()) {
        OURO_RANK_CHECK(got.status().reason() == Reason::deadline, "{}", got.status().message());
        ++given_up;
        std::fill(data.begin(), data.end(), std::uint8_t{0xdd});
        std::vector<std::uint8_t> second(data.size());
        got = recv(g, {second.data(), second.size(), DType::u8}, 0, i % 2);
        OURO_RANK_OK(got);
        OURO_RANK_CHECK(std::all_of(data.begin(), data.end(), [](std::uint8_t x) { return x == 0xdd; }),
                        "message {} was written where nobody waited any more", i);
        std::swap(data, second);
      }
      OURO_RANK_CHECK(got->bytes == bytes_of(i), "message {}: {} bytes", i, got->bytes);
      for (std::size_t at = 0; at < got->bytes; ++at)
        OURO_RANK_CHECK(data[at] == byte_of(i, at), "message {} at {}", i, at);
    }
    OURO_RANK_CHECK(given_up < kMessages, "{}", given_up);
    return Status(barrier(g)).ok() ? "" : "barrier";
  });
  EXPECT_EQ(outcome, "");
}

/// The memory of a long message is released when the message ends, whatever is sent after it.
TEST_P(MessagesOf, ShortMessageDoesNotDelayTheEndOfALongOne) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    const int both[] = {0, 1};
    auto g = c.group(both, "a deadline of its own", {.deadline = 3 * kHang});
    OURO_RANK_OK(g);
    std::vector<int> words(50'000, c.rank() == 0 ? 3 : 0);
    int word = c.rank() == 0 ? 4 : 0;
    const auto start = Clock::now();
    if (c.rank() == 0) {
      group_start();
      OURO_RANK_OK(send(*g, std::span<const int>(words), 1, 1));
      OURO_RANK_OK(send(*g, in(word), 1, 2));
      OURO_RANK_OK(group_end());
    } else {
      OURO_RANK_OK(recv(*g, std::span<int>(words), 0, 1));
      OURO_RANK_OK(recv(*g, out(word), 0, 2));
    }
    OURO_RANK_CHECK(Clock::now() - start < kHang, "it took as long as its deadline");
    OURO_RANK_CHECK(word == 4 && std::count(words.begin(), words.end(), 3) == 50'000, "{} came", word);
    return Status(barrier(*g)).ok() ? "" : "barrier";
  });
  EXPECT_EQ(outcome, "");
}

/// A receive without a message ends at its deadline; the group stays usable, and a message that arrives later
/// is kept.
TEST_P(MessagesOf, ReceiveEndsAtItsDeadlineAndALateMessageIsKept) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    int word = 0;
    if (c.rank() == 1) {
      const auto start = Clock::now();
      auto got = recv(g, out(word), 0, 1, Milliseconds(30));
      OURO_RANK_CHECK(got.status().reason() == Reason::deadline, "{}", got.status().message());
      const auto waited = Clock::now() - start;
      OURO_RANK_CHECK(waited >= std::chrono::milliseconds(30) && waited < kHang, "{} us",
                      std::chrono::duration_cast<std::chrono::microseconds>(waited).count());
      OURO_RANK_OK(g.status());
    }
    OURO_RANK_OK(barrier(g));
    if (c.rank() == 0)
      OURO_RANK_OK(send(g, in(77), 1, 1));
    else
      OURO_RANK_OK(recv(g, out(word), 0, 1));
    OURO_RANK_CHECK(c.rank() == 0 || word == 77, "{}", word);
    OURO_RANK_OK(barrier(g));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Threads of one rank receive and send at the same time; each gets the message that it asked for.
TEST_P(MessagesOf, ConcurrentThreadsGetTheirOwnMessages) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    constexpr int kThreads = 6, kTurns = 60;
    std::vector<std::string> said(kThreads);
    std::vector<std::thread> threads;
    for (int k = 0; k < kThreads; ++k)
      threads.emplace_back([&, k] {
        said[static_cast<std::size_t>(k)] = [&]() -> std::string {
          for (int turn = 0; turn < kTurns; ++turn) {
            std::vector<int> data(static_cast<std::size_t>(1 + 997 * (turn % 13)), 100 * k + turn),
                got(data.size());
            if ((k + c.rank()) % 2 == 0) {
              OURO_RANK_OK(send(g, std::span<const int>(data), 1 - c.rank(), k));
              OURO_RANK_OK(recv(g, std::span<int>(got), 1 - c.rank(), k));
            } else {
              OURO_RANK_OK(recv(g, std::span<int>(got), 1 - c.rank(), k));
              OURO_RANK_OK(send(g, std::span<const int>(data), 1 - c.rank(), k));
            }
            OURO_RANK_CHECK(got == data, "thread {} turn {}: {}", k, turn, got[0]);
          }
          return "";
        }();
      });
    for (auto& t : threads) t.join();
    OURO_RANK_OK(barrier(g));
    return std::accumulate(said.begin(), said.end(), std::string());
  });
  EXPECT_EQ(outcome, "");
}

/// Many threads wait for the same tag: each message goes to exactly one of them.
TEST_P(MessagesOf, EachMessageGoesToOneThreadOfATag) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    Group& g = c.world();
    constexpr int kThreads = 4, kEach = 40;
    if (c.rank() > 0) {
      for (int i = 0; i < 2 * kEach; ++i) {
        const int word = 1000 * c.rank() + i;
        OURO_RANK_OK(send(g, in(word), 0, 2));
      }
    } else {
      std::vector<std::vector<int>> got(kThreads);
      std::vector<std::string> said(kThreads);
      std::vector<std::thread> threads;
      for (std::size_t k = 0; k < kThreads; ++k)
        threads.emplace_back([&, k] {
          for (int i = 0; i < kEach; ++i) {
            int word = 0;
            if (auto r = recv(g, out(word), kAnySource, 2); !r.ok()) said[k] = r.status().message();
            got[k].push_back(word);
          }
        });
      for (auto& t : threads) t.join();
      for (const std::string& s : said) OURO_RANK_CHECK(s.empty(), "{}", s);
      std::set<int> all;
      for (const auto& mine : got) all.insert(mine.begin(), mine.end());
      OURO_RANK_CHECK(all.size() == kThreads * kEach && !all.contains(0), "{}", all.size());
    }
    OURO_RANK_OK(barrier(g));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

TEST(Message, WrongArgumentsDoNotFailTheGroup) {
  const std::string outcome = run_threads(2, [](Context& c) -> std::string {
    Group& g = c.world();
    int word = 1;
    for (const Status& s : {send(g, in(word), 2), send(g, in(word), -1), send(g, in(word), 0, -1),
                            recv(g, out(word), 5).status(), recv(g, out(word), 0, -7).status(),
                            send(g, CView(nullptr, 3, DType::f32), 0), probe(g, 9).status()})
      OURO_RANK_CHECK(s.reason() == Reason::invalid, "{}", s.message());
    OURO_RANK_OK(g.status());
    OURO_RANK_OK(barrier(g));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test
