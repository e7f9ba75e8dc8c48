// Messages among ranks some of which have left.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "runtime/context/context.h"
#include "runtime/group/group.h"
#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro::test {
namespace {

using Clock = std::chrono::steady_clock;

class MessagesWhenRanksLeave : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, MessagesWhenRanksLeave, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

CView in(const int& x) { return {&x, 1, DType::i32}; }
View out(int& x) { return {&x, 1, DType::i32}; }

/// Waits until rank `r` has closed its context and no longer serves other ranks. In a job over several hosts
/// it may still wait for others to take its messages.
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

/// Two ranks start exchanging messages after others have left, and receive what one of those has sent before.
TEST_P(MessagesWhenRanksLeave, RemainingRanksStartToExchange) {
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

/// A message to a rank of this host that has left fails at the start; between hosts it fails while it waits.
TEST_P(MessagesWhenRanksLeave, SendToARankThatLeftFails) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    if (c.rank() == 1) return "";
    OURO_RANK_CHECK(has_ended(c, 1), "rank 1 stays");
    const std::vector<int> words(100'000);  // more than fits in flight
    const Status s = send(c.world(), CView(words.data(), words.size(), DType::i32), 1, 0);
    OURO_RANK_CHECK(s.reason() == Reason::peer_dead && s.failure()->rank == 1 &&
                        s.message().find("left the group before it took a message") != std::string::npos,
                    "{}", s.message());
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// A group of both ranks. Its default deadline is not reached if something else ends a message.
Result<Group> pair(Context& c, const char* name, Milliseconds deadline = 4 * kHang) {
  const int both[] = {0, 1};
  return c.group(both, name, {.deadline = deadline});
}

/// close() waits for operations that were submitted, on a stream or by other threads. No operation starts
/// after it.
TEST_P(MessagesWhenRanksLeave, CloseWaitsForSubmittedOperations) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    auto g = pair(c, "drained");
    OURO_RANK_OK(g);
    std::vector<int> words(100'000, 7 * (1 - c.rank())), more = words;
    OURO_RANK_OK(barrier(*g));
    if (c.rank() == 0) {
      std::this_thread::sleep_for(
          std::chrono::milliseconds(50));  // most likely the other rank is in close() now
      for (int tag : {1, 2}) OURO_RANK_OK(send(*g, std::span<const int>(words), 1, tag));
      OURO_RANK_OK(g->close());
      return Status(barrier(c.world())).ok() ? "" : "barrier";
    }
    auto stream = Stream::create();
    OURO_RANK_OK(stream);
    Status received;
    std::jthread other([&] { received = recv(*g, std::span<int>(more), 0, 2).status(); });
    while (!g->impl()->mailbox().in_flight().any()) std::this_thread::yield();
    auto work = recv(*g, View(words.data(), words.size(), DType::i32), 0, 1, *stream);
    OURO_RANK_OK(work);
    OURO_RANK_OK(g->close());
    OURO_RANK_OK(work->wait(kHang));
    OURO_RANK_CHECK(words == std::vector<int>(words.size(), 7), "{}", words[0]);
    other.join();
    OURO_RANK_OK(received);
    OURO_RANK_CHECK(more == words, "{}", more[0]);
    for (const Status& late : {recv(*g, out(words[0]), 0).status(), send(*g, in(words[0]), 0),
                               recv(*g, out(words[0]), 0, 0, *stream)->wait(), probe(*g, 0).status()})
      OURO_RANK_CHECK(
          late.reason() == Reason::revoked && late.message().find("is closed") != std::string::npos, "{}",
          late.message());
    return Status(barrier(c.world())).ok() ? "" : "barrier";
  });
  EXPECT_EQ(outcome, "");
}

/// An unmatched receive delays close() until its deadline, and no longer.
TEST_P(MessagesWhenRanksLeave, UnmatchedReceiveDelaysCloseUntilItsDeadline) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    auto g = pair(c, "unanswered", Milliseconds(300));
    OURO_RANK_OK(g);
    if (c.rank() == 1) {
      int word = 0;
      auto stream = Stream::create();
      OURO_RANK_OK(stream);
      auto work = recv(*g, out(word), 0, 1, *stream);
      OURO_RANK_OK(work);
      OURO_RANK_OK(g->close());
      const Status s = work->wait();
      OURO_RANK_CHECK(s.reason() == Reason::deadline, "{}", s.message());
    }
    return Status(barrier(c.world())).ok() ? "" : "barrier";
  });
  EXPECT_EQ(outcome, "");
}

/// Receives that nobody can answer any more, as all members close the group, end at once; what was sent
/// before arrives.
TEST_P(MessagesWhenRanksLeave, UnanswerableReceivesEndWhenAllClose) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    const int all[] = {0, 1, 2};
    auto g = c.group(all, "all close", {.deadline = 4 * kHang});
    OURO_RANK_OK(g);
    const int next = (c.rank() + 1) % 3, before = (c.rank() + 2) % 3, word = 100 + c.rank();
    int named = 0, any = 0, own = 0, sent = 0, late = -1;
    Stream streams[5];
    for (Stream& s : streams) {
      auto made = Stream::create();
      OURO_RANK_OK(made);
      s = *made;
    }
    auto answered = recv(*g, out(sent), before, 1, streams[0]);
    const Result<Work> in_vain[] = {recv(*g, out(named), next, 2, streams[1]),
                                    recv(*g, out(any), kAnySource, 3, streams[2]),
                                    recv(*g, out(own), c.rank(), 4, streams[3])};
    OURO_RANK_OK(answered);
    // It is submitted, and is sent when this rank is closing the group already.
    streams[4].run([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return Status();
    });
    auto send_late = send(*g, in(word), next, 1, streams[4]);
    OURO_RANK_OK(send_late);
    if (c.rank() == 0) {  // a batch of a send and a receive is over as far as its send is
      group_start();
      auto give = send(*g, in(word), 1, 5, streams[4]);
      auto take = recv(*g, out(late), 1, 6, streams[4]);
      OURO_RANK_OK(group_end());
      OURO_RANK_OK(g->close());
      OURO_RANK_OK(give);
      OURO_RANK_OK(take);
      OURO_RANK_CHECK(take->wait(kHang).reason() == Reason::revoked, "{}", take->wait(kHang).message());
    } else {
      OURO_RANK_OK(g->close());
    }
    OURO_RANK_OK(answered->wait(kHang));
    OURO_RANK_CHECK(sent == 100 + before, "{}", sent);
    for (const auto& w : in_vain) {
      OURO_RANK_OK(w);
      const Status s = w->wait(kHang);
      OURO_RANK_CHECK(s.reason() == Reason::revoked &&
                          s.message().find("closed before a message came") != std::string::npos,
                      "{}", s.message());
    }
    OURO_RANK_OK(barrier(c.world()));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// A receive from any source ends when all others have left, as one from a certain rank does.
TEST_P(MessagesWhenRanksLeave, ReceiveFromAnySourceFailsWhenAllOthersLeft) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    if (c.rank() != 0) return "";
    int word = 0;
    const Status s = recv(c.world(), out(word), kAnySource).status();
    OURO_RANK_CHECK(
        s.reason() == Reason::peer_dead && s.message().find("all others left") != std::string::npos, "{}",
        s.message());
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Destroying the last handle of a group, or its context, ends messages in flight, whatever their deadline.
TEST_P(MessagesWhenRanksLeave, PendingReceivesEndWithTheLastHandle) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    auto g = pair(c, "dropped");
    OURO_RANK_OK(g);
    OURO_RANK_OK(barrier(c.world()));
    int word = 0;
    auto stream = Stream::create();
    OURO_RANK_OK(stream);
    const auto revoked = [](const Work& w) {
      const Status s = w.wait(kHang);
      return w.test() && s.reason() == Reason::revoked;
    };
    if (c.rank() == 1) {
      auto work = recv(*g, out(word), 0, 1, *stream);
      OURO_RANK_OK(work);
      *g = Group();
      OURO_RANK_CHECK(revoked(*work), "{}", work->wait(kHang).message());
    }
    (void)barrier(c.world());  // it may fail because of what follows
    if (c.rank() == 1) {
      const Group copy = c.world();
      auto work = recv(c.world(), out(word), 0, 1, *stream);
      OURO_RANK_OK(work);
      c = Context();
      OURO_RANK_CHECK(revoked(*work), "{}", work->wait(kHang).message());
    }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test
