// Matched messages: no other thread can receive a message that one has matched; it is received completely and
// once, or returns to its place.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "tests/runtime/group/access.h"
#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro::test {
namespace {

using namespace std::chrono_literals;
using Ints = std::vector<int>;

/// Waits for a message of this source and tag.
Result<Matched> next(Group& g, int src, int tag) {
  for (const auto end = std::chrono::steady_clock::now() + kHang; std::chrono::steady_clock::now() < end;) {
    auto found = match(g, src, tag);
    OURO_TRY(found.status());
    if (*found) return **found;
    std::this_thread::yield();
  }
  return Status(Reason::deadline, "nothing came");
}

Result<Ints> receive(Group& g, const Matched& m) {
  Ints data(m.about().bytes / sizeof(int));
  auto got = recv(g, m, std::span(data));
  OURO_TRY(got.status());
  if (got->source != m.about().source || got->tag != m.about().tag || got->bytes != m.about().bytes)
    return invalid("another message came");
  return data;
}

bool stopped(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string id, name, state;
  in >> id >> name >> state;
  return state == "T";
}

class MessagesMatched : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, MessagesMatched, ::testing::Values(Mode::threads, Mode::processes),
                         [](const auto& mode) { return name(mode.param); });

TEST_P(MessagesMatched, MatchedMessageOfAnyLengthIsReceivedWhole) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  EXPECT_EQ("", run(GetParam(), 2, [](Context& c) -> std::string {
              constexpr std::size_t kLengths[] = {0, 1, 1000, 3'000'000};  // the last one needs many slots
              Group& g = c.world();
              for (const std::size_t n : kLengths) {
                if (c.rank() == 0) {
                  OURO_RANK_OK(send(g, std::span<const int>(Ints(n, static_cast<int>(n) + 5)), 1, 3));
                  continue;
                }
                auto found = next(g, kAnySource, 3);
                OURO_RANK_OK(found);
                OURO_RANK_CHECK(found->about().bytes == n * sizeof(int) && found->about().source == 0,
                                "{} bytes", found->about().bytes);
                auto data = receive(g, *found);
                OURO_RANK_OK(data);
                OURO_RANK_CHECK(*data == Ints(n, static_cast<int>(n) + 5), "of length {}", n);
              }
              OURO_RANK_OK(barrier(g));
              return "";
            }));
}

/// Two messages are set aside and received in another order; meanwhile an ordinary receive gets the third.
TEST_P(MessagesMatched, MatchedMessageIsHiddenFromOtherReceivesAndProbes) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  EXPECT_EQ("", run(GetParam(), 2, [](Context& c) -> std::string {
              Group& g = c.world();
              if (c.rank() == 0) {
                for (int k = 1; k <= 3; ++k) OURO_RANK_OK(send(g, std::span<const int>(&k, 1), 1));
                OURO_RANK_OK(barrier(g));
                return "";
              }
              auto first = next(g, 0, 0), second = next(g, 0, 0);
              OURO_RANK_OK(first);
              OURO_RANK_OK(second);
              int third = 0;
              OURO_RANK_OK(recv(g, std::span(&third, 1), 0));
              const auto nothing = probe(g, 0);
              OURO_RANK_OK(nothing);
              OURO_RANK_CHECK(!*nothing, "a probe finds what is set aside");
              auto two = receive(g, *second), one = receive(g, *first);
              OURO_RANK_OK(two);
              OURO_RANK_OK(one);
              OURO_RANK_CHECK(*one == Ints{1} && *two == Ints{2} && third == 3, "{} {} {}", (*one)[0],
                              (*two)[0], third);
              OURO_RANK_OK(barrier(g));
              return "";
            }));
}

/// If its handle is dropped, a message returns to its place: the order of its source and tag is kept.
TEST_P(MessagesMatched, DroppedMessageReturnsToItsPlaceInTheQueue) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  EXPECT_EQ("", run(GetParam(), 2, [](Context& c) -> std::string {
              Group& g = c.world();
              if (c.rank() == 0) {
                for (int k = 1; k <= 3; ++k) OURO_RANK_OK(send(g, std::span<const int>(&k, 1), 1));
                OURO_RANK_OK(barrier(g));
                return "";
              }
              {
                auto first = next(g, 0, 0), second = next(g, 0, 0);
                OURO_RANK_OK(first);
                OURO_RANK_OK(second);
                const Matched copy = *first;  // only dropping the last handle counts
                *first = Matched();
                const auto third = next(g, 0, 0);
                OURO_RANK_OK(third);
              }
              for (int want = 1; want <= 3; ++want) {
                int got = 0;
                OURO_RANK_OK(recv(g, std::span(&got, 1), 0));
                OURO_RANK_CHECK(got == want, "{} instead of {}", got, want);
              }
              OURO_RANK_OK(barrier(g));
              return "";
            }));
}

/// A receive that is already waiting gets the message whose handle is dropped.
TEST(MessagesMatchedThreads, DroppedMessageIsGivenToAWaitingReceive) {
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              Group& g = c.world();
              const int word = 77;
              if (c.rank() == 0) {
                OURO_RANK_OK(send(g, std::span<const int>(&word, 1), 1));
                OURO_RANK_OK(barrier(g));
                return "";
              }
              auto found = next(g, 0, 0);
              OURO_RANK_OK(found);
              int got = 0;
              Status waited;
              std::jthread other([&] { waited = recv(g, std::span(&got, 1), 0, 0, kHang).status(); });
              // By now the receive is most likely posted; otherwise it finds the message.
              std::this_thread::sleep_for(20ms);
              *found = Matched();
              other.join();
              OURO_RANK_OK(waited);
              OURO_RANK_CHECK(got == 77, "{}", got);
              OURO_RANK_OK(barrier(g));
              return "";
            }));
}

/// Threads that receive from any source share the messages: each arrives once and unchanged.
TEST(MessagesMatchedThreads, ReceivesFromAnySourceGetEachMessageOnce) {
  constexpr int kEach = 300, kThreads = 3;
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              Group& g = c.world();
              if (c.rank() > 0) {
                for (int k = 0; k < kEach; ++k)
                  OURO_RANK_OK(
                      send(g, std::span<const int>(Ints(static_cast<std::size_t>(1 + k * 37 % 500), k)), 0));
                OURO_RANK_OK(barrier(g));
                return "";
              }
              std::atomic<int> seen[2][kEach] = {}, wrong{0}, left{2 * kEach};
              {
                std::vector<std::jthread> threads;
                for (int t = 0; t < kThreads; ++t)
                  threads.emplace_back([&] {
                    while (left.fetch_sub(1) > 0) {
                      auto found = next(g, kAnySource, 0);
                      auto data = found.ok() ? receive(g, *found) : Result<Ints>(found.status());
                      if (!data.ok() || *data != Ints(data->size(), (*data)[0])) {
                        ++wrong;
                        continue;
                      }
                      ++seen[found->about().source - 1][(*data)[0]];
                    }
                  });
              }
              OURO_RANK_CHECK(wrong == 0, "{} are wrong", wrong.load());
              for (int r = 0; r < 2; ++r)
                for (int k = 0; k < kEach; ++k)
                  OURO_RANK_CHECK(seen[r][k] == 1, "message {} of rank {} came {} times", k, r + 1,
                                  seen[r][k].load());
              OURO_RANK_OK(barrier(g));
              return "";
            }));
}

constexpr std::size_t kMany = 8 << 20;  // elements of a message of which only half fits into the links

/// Rank 0 sends a message of kMany sevens, is stopped while half of it is in flight, and completes it when it
/// is continued; then it returns. Rank 1 returns when rank 0, the process `*sender`, has stopped.
Status send_half(Context& c, pid_t* sender) {
  Group& g = c.world();
  const std::int64_t pid = ::getpid();
  std::vector<std::int64_t> pids(2);
  OURO_TRY(all_gather(g, std::span<const std::int64_t>(&pid, 1), std::span(pids)));
  OURO_TRY(probe(g, 1 - c.rank()).status());  // creates the links
  OURO_TRY(barrier(g));
  *sender = static_cast<pid_t>(pids[0]);
  if (c.rank() == 0) {
    const Ints data(kMany, 7);
    auto stream = Stream::create();
    OURO_TRY(stream.status());
    auto work = send(g, std::span<const int>(data), 1, 0, *stream);
    OURO_TRY(work.status());
    std::this_thread::sleep_for(200ms);  // time to send as much as fits without a receiver
    ::raise(SIGSTOP);
    return work->wait();
  }
  for (const auto end = std::chrono::steady_clock::now() + kHang;
       std::chrono::steady_clock::now() < end && !stopped(*sender);)
    std::this_thread::sleep_for(5ms);
  return {};
}

/// Half of a long message has arrived when its receive gives up: the message goes to the next receive.
TEST(MessagesHalfArrived, AreGivenToTheNextReceiveAfterATimeout) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(Mode::processes);
  EXPECT_EQ("", run_processes(2, [](Context& c) -> std::string {
              Group& g = c.world();
              pid_t sender = 0;
              OURO_RANK_OK(send_half(c, &sender));
              if (c.rank() == 0) return "";
              Ints first(kMany), second(kMany);
              Status gave_up, got = invalid("not received");
              std::jthread waits([&] {
                std::this_thread::sleep_for(100ms);  // the other one is posted first
                got = recv(g, std::span(second), 0, 0, kHang).status();
              });
              gave_up = recv(g, std::span(first), 0, 0, 500ms).status();
              ::kill(sender, SIGCONT);
              waits.join();
              OURO_RANK_CHECK(gave_up.reason() == Reason::deadline, "{}",
                              gave_up.ok() ? "ok" : gave_up.message());
              OURO_RANK_OK(got);
              OURO_RANK_CHECK(second == Ints(kMany, 7), "another message");
              return "";
            }));
}

/// Two threads receive the same message, of which half has arrived: one gets it, the other gets an error
/// at once.
TEST(MessagesHalfArrived, AreReceivedByOnlyOneOfTwoThreads) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(Mode::processes);
  EXPECT_EQ("", run_processes(2, [](Context& c) -> std::string {
              Group& g = c.world();
              pid_t sender = 0;
              OURO_RANK_OK(send_half(c, &sender));
              if (c.rank() == 0) return "";
              auto found = next(g, 0, 0);
              OURO_RANK_OK(found);
              const Matched copy = *found;
              Ints data[2] = {Ints(kMany), Ints(kMany)};
              Status outcome[2];
              std::atomic<int> ended{0};
              {
                std::vector<std::jthread> threads;
                for (int t = 0; t < 2; ++t)
                  threads.emplace_back([&, t] {
                    outcome[t] = recv(g, t == 0 ? *found : copy, std::span(data[t]), kHang).status();
                    ++ended;
                  });
                for (const auto end = std::chrono::steady_clock::now() + kHang / 4;
                     std::chrono::steady_clock::now() < end && ended == 0;)
                  std::this_thread::sleep_for(1ms);
                const int before = ended;
                ::kill(sender, SIGCONT);
                if (before != 1) return fmt::format("{} receives ended while the message was coming", before);
              }
              const int winner = outcome[0].ok() ? 0 : 1, loser = 1 - winner;
              OURO_RANK_OK(outcome[winner]);
              OURO_RANK_CHECK(outcome[loser].reason() == Reason::invalid, "{}", outcome[loser].message());
              OURO_RANK_CHECK(outcome[loser].message().find("another receive has it") != std::string::npos,
                              "{}", outcome[loser].message());
              OURO_RANK_CHECK(data[winner] == Ints(kMany, 7), "another message");
              return "";
            }));
}

/// A handle may be kept longer than its group is open: its use returns an error, and creates no links for a
/// closed group.
TEST_P(MessagesMatched, HandleKeptAfterItsGroupIsClosedReturnsAnError) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  EXPECT_EQ("", run(GetParam(), 2, [](Context& c) -> std::string {
              const int both[] = {0, 1};
              auto made = c.group(both, "closed early");
              OURO_RANK_OK(made);
              Group& g = *made;
              const int word = 77;
              int got = 0;
              OURO_RANK_OK(send(g, std::span<const int>(&word, 1), 1 - c.rank()));
              auto kept = next(g, 1 - c.rank(), 0);
              OURO_RANK_OK(kept);
              OURO_RANK_OK(barrier(g));
              OURO_RANK_OK(g.close());
              const Status late = recv(g, *kept, std::span(&got, 1)).status();
              OURO_RANK_CHECK(late.reason() == Reason::revoked, "{}", late.message());
              OURO_RANK_CHECK(late.message().find("group 'closed early' is closed") != std::string::npos,
                              "{}", late.message());
              const bool had = rt::TestAccess::has_message_links(*g.impl());
              *kept = Matched();  // there is no place to return it to
              const bool has = rt::TestAccess::has_message_links(*g.impl());
              OURO_RANK_CHECK(has == had, "links made for a message that is gone");
              OURO_RANK_CHECK(g.impl()->one_host() || !has, "a closed group has links between hosts");
              OURO_RANK_OK(barrier(c.world()));
              return "";
            }));
}

TEST(MessagesMatchedThreads, WrongArgumentsAreRefused) {
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              Group& g = c.world();
              const auto invalid = [](const Status& s) { return s.reason() == Reason::invalid; };
              Ints data(4);
              OURO_RANK_CHECK(invalid(match(g, 2).status()) && invalid(match(g, 0, -1).status()),
                              "rank, tag");
              OURO_RANK_CHECK(invalid(recv(g, Matched(), std::span(data)).status()), "an empty handle");
              const int both[] = {0, 1};
              auto other = c.group(both, "other");
              OURO_RANK_OK(other);
              OURO_RANK_OK(send(g, std::span<const int>(data), 1 - c.rank()));
              auto found = next(g, 1 - c.rank(), 0);
              OURO_RANK_OK(found);
              OURO_RANK_CHECK(invalid(recv(*other, *found, std::span(data)).status()), "another group");
              OURO_RANK_CHECK(invalid(recv(g, *found, std::span(data).first(3)).status()), "too little room");
              OURO_RANK_OK(recv(g, *found, std::span(data)));
              OURO_RANK_CHECK(invalid(recv(g, *found, std::span(data)).status()), "received twice");
              OURO_RANK_OK(barrier(g));
              return "";
            }));
}

}  // namespace
}  // namespace ouro::test
