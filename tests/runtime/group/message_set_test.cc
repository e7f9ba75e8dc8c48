// Messages that one thread drives: what they carry, and how they end.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro::test {
namespace {

using Clock = std::chrono::steady_clock;

class MessagesOfASet : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, MessagesOfASet, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

/// Counts what has ended, and how.
struct Ends {
  std::atomic<int> ok{0}, revoked{0}, others{0};
  MessageSet::Then one() {
    return [this](const Result<Received>& r) {
      ++(r.ok() ? ok : r.status().reason() == Reason::revoked ? revoked : others);
    };
  }
  bool reach(int wanted) const {
    for (const auto until = Clock::now() + kHang; Clock::now() < until; std::this_thread::yield())
      if (ok + revoked + others >= wanted) return true;
    return false;
  }
};

/// Many messages with tags of their own, of several slots each, answered in the opposite order.
TEST_P(MessagesOfASet, AllArrive) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    constexpr int kMany = 100;
    auto set = MessageSet::create(c.world());
    OURO_RANK_OK(set);
    Ends ends;
    std::vector<std::vector<int>> in, out;
    const int next = (c.rank() + 1) % 3, before = (c.rank() + 2) % 3;
    for (int i = 0; i < kMany; ++i) {
      in.emplace_back(i % 10 == 0 ? 100'000 : 10, -1);
      out.emplace_back(in.back().size(), 1000 * c.rank() + i);
    }
    const auto bytes = [](std::vector<int>& v) { return View(v.data(), v.size(), DType::i32); };
    for (int i = 0; i < kMany; ++i)
      OURO_RANK_OK(set->recv(bytes(in[static_cast<std::size_t>(i)]), i % 2 == 0 ? before : kAnySource, i,
                             {.exact = true}, ends.one()));
    for (int i = kMany; i-- > 0;)
      OURO_RANK_OK(set->send(bytes(out[static_cast<std::size_t>(i)]), next, i, ends.one()));
    OURO_RANK_CHECK(ends.reach(2 * kMany) && ends.ok == 2 * kMany, "{} of {}", ends.ok.load(), 2 * kMany);
    for (int i = 0; i < kMany; ++i)
      for (const int x : in[static_cast<std::size_t>(i)])
        OURO_RANK_CHECK(x == 1000 * before + i, "message {}: {}", i, x);
    OURO_RANK_OK(barrier(c.world()));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Receives of one kind match in the order in which they were added, also among those of other callers.
TEST_P(MessagesOfASet, MatchInOrder) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    auto set = MessageSet::create(g);
    OURO_RANK_OK(set);
    Ends ends;
    int words[] = {1, 2, 3};
    if (c.rank() == 0) {
      OURO_RANK_OK(barrier(g));
      for (int& w : words) OURO_RANK_OK(set->send({&w, 1, DType::i32}, 1, 0, ends.one()));
      OURO_RANK_CHECK(ends.reach(3), "only {}", ends.ok.load());
    } else {
      int got[3] = {};
      for (int i : {0, 1}) OURO_RANK_OK(set->recv({&got[i], 1, DType::i32}, 0, 0, {}, ends.one()));
      OURO_RANK_OK(barrier(g));
      OURO_RANK_OK(recv(g, View(&got[2], 1, DType::i32), 0));
      OURO_RANK_CHECK(ends.reach(2), "only {}", ends.ok.load());
      OURO_RANK_CHECK(std::equal(got, got + 3, words), "{} {} {}", got[0], got[1], got[2]);
    }
    OURO_RANK_OK(barrier(g));
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// close() ends receives for which nothing has come, and no others, and loses no send.
TEST_P(MessagesOfASet, CloseEndsUnmatchedReceivesAndLosesNoSend) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    const int both[] = {0, 1};
    auto g = c.group(both, "closed", {.deadline = 4 * kHang});
    OURO_RANK_OK(g);
    std::vector<int> words(1 << 20, 7 * (1 - c.rank()));
    Ends ends;
    int never[2] = {};
    if (c.rank() == 0) {
      auto set = MessageSet::create(*g);
      OURO_RANK_OK(set);
      OURO_RANK_OK(set->recv({&never[0], 1, DType::i32}, 1, 5, {}, ends.one()));
      OURO_RANK_OK(set->recv({&never[1], 1, DType::i32}, kAnySource, 6, {}, ends.one()));
      OURO_RANK_OK(set->send({words.data(), words.size(), DType::i32}, 1, 1, ends.one()));
      const auto begin = Clock::now();
      set->close();
      OURO_RANK_CHECK(Clock::now() - begin < kHang, "close() has waited for receives");
      OURO_RANK_CHECK(ends.ok == 1 && ends.revoked == 2 && ends.others == 0, "{} {} {}", ends.ok.load(),
                      ends.revoked.load(), ends.others.load());
      OURO_RANK_CHECK(set->recv({&never[0], 1, DType::i32}, 1, 5, {}, ends.one()).reason() == Reason::revoked,
                      "a receive after close()");
      OURO_RANK_OK(send(*g, CView(&never[0], 1, DType::i32), 1, 2));  // the group goes on
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // most likely rank 0 is closing now
      OURO_RANK_OK(recv(*g, std::span<int>(words), 0, 1));
      OURO_RANK_CHECK(words == std::vector<int>(words.size(), 7), "{}", words[0]);
      OURO_RANK_OK(recv(*g, View(&never[0], 1, DType::i32), 0, 2));
    }
    OURO_RANK_OK(g->close());
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// The group's failure, its deadline, a peer that leaves, and the end of the last handle end all of them.
TEST_P(MessagesOfASet, EndWithTheirGroup) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    const int both[] = {0, 1};
    int word = 0;
    const auto ended = [&](Group& g, const char* how) -> std::string {
      std::mutex mutex;
      std::vector<Status> said;
      auto set = MessageSet::create(g);
      OURO_RANK_OK(set);
      for (int tag : {1, 2})
        OURO_RANK_OK(set->recv({&word, 1, DType::i32}, 1 - c.rank(), tag, {}, [&](const Result<Received>& r) {
          const std::lock_guard lock(mutex);
          said.push_back(r.status());
        }));
      const std::string what = how;
      if (what == "abort") g.abort("for a test");
      if (what == "handle") *set = MessageSet();
      for (const auto until = Clock::now() + kHang; Clock::now() < until; std::this_thread::yield()) {
        const std::lock_guard lock(mutex);
        if (said.size() == 2) break;
      }
      *set = MessageSet();  // nothing is called after this
      OURO_RANK_CHECK(said.size() == 2, "{}: {} ended", what, said.size());
      const Reason wanted = what == "deadline" ? Reason::deadline
                            : what == "left"   ? Reason::peer_dead
                                               : Reason::revoked;
      for (const Status& s : said) OURO_RANK_CHECK(s.reason() == wanted, "{}: {}", what, s.message());
      return "";
    };
    for (const char* how : {"abort", "handle", "deadline", "left"}) {
      const bool quick = std::string_view(how) == "deadline";
      auto g = c.group(both, how, {.deadline = quick ? Milliseconds(300) : 4 * kHang});
      OURO_RANK_OK(g);
      OURO_RANK_OK(barrier(c.world()));
      if (c.rank() == 0)
        if (std::string wrong = ended(*g, how); !wrong.empty()) return wrong;
      if (std::string_view(how) == "left" && c.rank() == 1) OURO_RANK_OK(g->close());
      OURO_RANK_OK(barrier(c.world()));
    }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Wrong arguments have no effect.
TEST(MessagesOfASetAlone, WrongArgumentsHaveNoEffect) {
  const std::string outcome = run_threads(1, [](Context& c) -> std::string {
    auto set = MessageSet::create(c.world());
    OURO_RANK_OK(set);
    int word = 5, got = 0;
    Ends ends;
    const View one(&got, 1, DType::i32);
    OURO_RANK_CHECK(!MessageSet::create(Group()).ok() && !MessageSet().send(one, 0, 0, ends.one()).ok(), "");
    for (const Status& s :
         {set->send(one, 1, 0, ends.one()), set->send(one, 0, -1, ends.one()),
          set->recv(one, 7, 0, {}, ends.one()), set->recv(one, 0, 0, {.deadline = kHang}, ends.one())})
      OURO_RANK_CHECK(s.reason() == Reason::invalid, "{}", s.message());
    OURO_RANK_OK(set->recv(one, 0, 3, {}, ends.one()));
    OURO_RANK_OK(set->send({&word, 1, DType::i32}, 0, 3, ends.one()));
    OURO_RANK_CHECK(ends.reach(2) && ends.ok == 2 && got == 5, "{} {}", ends.ok.load(), got);
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test
