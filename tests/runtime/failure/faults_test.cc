// OURO_FAULT: its grammar, and that the fault happens on the named rank and appears to the others like a
// real one.
#include "runtime/context/faults.h"

#include <fmt/format.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "tests/runtime/failure/harness.h"
#include "tests/runtime/failure/two_hosts.h"

namespace ouro::test {
namespace {

using rt::Fault;

/// Sets an environment variable for ranks that join during its lifetime.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

TEST(FaultGrammar, ParsesActionRankPlaceAndOperation) {
  const auto all = rt::parse_faults(
      "kill:rank=2,op=100;stop:rank=0;delay:op=3,every=10,rank=1,ms=50;;corrupt:rank=3,op=7;"
      "cut:rank=1,op=2;error:rank=4,what=exit,code=9,at=close;error:rank=5,at=shrink;");
  ASSERT_TRUE(all.ok()) << all.status().message();
  ASSERT_EQ(all->size(), 7u);
  const auto is = [&](std::size_t i, Fault::Action action, int rank, Fault::At at, std::uint64_t op) {
    const Fault& f = (*all)[i];
    return f.action == action && f.rank == rank && f.at == at && f.op == op;
  };
  EXPECT_TRUE(is(0, Fault::Action::kill, 2, Fault::At::operation, 100));
  EXPECT_TRUE(is(1, Fault::Action::stop, 0, Fault::At::operation, 1));
  EXPECT_TRUE(is(2, Fault::Action::delay, 1, Fault::At::operation, 3));
  EXPECT_EQ((*all)[2].every, 10u);
  EXPECT_EQ((*all)[2].pause, 50ms);
  EXPECT_TRUE(is(3, Fault::Action::corrupt, 3, Fault::At::operation, 7));
  EXPECT_TRUE(is(4, Fault::Action::cut, 1, Fault::At::operation, 2));
  EXPECT_TRUE(is(5, Fault::Action::error, 4, Fault::At::close, 1));
  EXPECT_TRUE((*all)[5].exits);
  EXPECT_EQ((*all)[5].code, 9);
  EXPECT_TRUE(is(6, Fault::Action::error, 5, Fault::At::shrink, 1));
  EXPECT_FALSE((*all)[6].exits);
  EXPECT_EQ((*all)[6].text, "error:rank=5,at=shrink");
  EXPECT_TRUE(rt::parse_faults("")->empty());
}

TEST(FaultGrammar, ErrorsNameTheWordAndTheExpectation) {
  const struct {
    const char *text, *word, *expected;
  } table[] = {
      {"kil:rank=1", "'kil'", "expected kill, stop, delay, corrupt, cut or error"},
      {"kill", "'kill'", "expected rank=R behind the colon"},
      {"kill:", "'kill:'", "expected rank=R behind the colon"},
      {"kill:op=3", "'kill:op=3'", "expected rank=R"},
      {"kill:rank=one", "'rank=one'", "expected rank= and a number from 0 to 1023"},
      {"kill:rank=-1", "'rank=-1'", "a number from 0 to 1023"},
      {"kill:rank=1024", "'rank=1024'", "a number from 0 to 1023"},
      {"kill:rank=1,op=0", "'op=0'", "expected op= and a number from 1 to"},
      {"kill:rank=1,op=5x", "'op=5x'", "expected op= and a number"},
      {"kill:rank=1,op=", "'op='", "expected op= and a number"},
      {"kill:rank=1,rank=2", "'rank=2'", "expected rank once"},
      {"kill:rank=1,ms=5", "'ms=5'", "expected rank=R, op=N or at=PLACE"},
      {"kill:rank=1, op=5", "' op=5'", "expected rank=R, op=N or at=PLACE"},
      {"kill:rank=1,at=lunch", "'at=lunch'", "expected at=join, at=shrink or at=close"},
      {"kill:rank=1,at=join,op=4", "'kill:rank=1,at=join,op=4'", "not both"},
      {"delay:rank=1", "'delay:rank=1'", "expected ms=T"},
      {"delay:rank=1,ms=0", "'ms=0'", "a number from 1 to 86400000"},
      {"delay:rank=1,what=memory,ms=1", "'what=memory'", "expected rank=R, op=N, at=PLACE, every=M or ms=T"},
      {"error:rank=1,what=fire", "'what=fire'", "expected what=memory or what=exit"},
      {"error:rank=1,code=3", "'error:rank=1,code=3'", "code=C with what=exit only"},
      {"error:rank=1,what=exit,code=256", "'code=256'", "a number from 0 to 255"},
      {"error:rank=1,at=close", "'error:rank=1,at=close'", "leaving needs no memory"},
      {"corrupt:rank=1,at=close", "'corrupt:rank=1,at=close'", "expected op=N"},
      {"cut:rank=1,at=join", "'cut:rank=1,at=join'", "expected op=N"},
      {"stop:rank=0;kill", "'kill'", "expected rank=R"},
  };
  for (const auto& row : table) {
    const auto parsed = rt::parse_faults(row.text);
    ASSERT_FALSE(parsed.ok()) << row.text;
    EXPECT_EQ(parsed.status().reason(), Reason::invalid) << row.text;
    EXPECT_TRUE(has(parsed.status().message(), row.word)) << parsed.status().message();
    EXPECT_TRUE(has(parsed.status().message(), row.expected)) << parsed.status().message();
  }
}

TEST(FaultGrammar, InvalidFaultsFailTheJoin) {
  const std::pair<const char*, const char*> table[] = {
      {"kill:rank=x", "expected rank= and a number"},
      {"kill:rank=2,op=1", "'rank=2' in 'kill:rank=2,op=1': expected a rank of 0 to 1"},
      {"cut:rank=1,op=4", "expected a job on several hosts"}};
  for (const auto& [text, expected] : table) {
    const Setting faults("OURO_FAULT", text);
    const auto contexts = Context::threads(2);
    ASSERT_FALSE(contexts.ok()) << text;
    EXPECT_EQ(contexts.status().reason(), Reason::invalid);
    EXPECT_TRUE(has(contexts.status().message(), expected)) << contexts.status().message();
  }
}

// ---- ranks as threads -------------------------------------------------------------------------------

constexpr int kRanks = 3, kVictim = 1;

struct Form {
  const char* name;
  std::function<Status(Group&)> call;
};
std::ostream& operator<<(std::ostream& os, const Form& f) { return os << f.name; }

Status reduce_to(Group& g, int root) {
  std::vector<float> data(500, 1), sum(500);
  return reduce(g, std::span<const float>(data), std::span<float>(sum), ReduceOp::sum, root);
}
Status pass_on(Group& g) {
  int value = g.rank();
  const int n = g.size();
  OURO_TRY(send(g, CView(&value, 1, DType::i32), (g.rank() + 1) % n));
  OURO_TRY(recv(g, View(&value, 1, DType::i32), (g.rank() + n - 1) % n).status());
  return value == (g.rank() + n - 1) % n ? Status() : Status(Reason::data_corrupt, "another message");
}
const Form kForms[] = {
    {"small", [](Group& g) { return exact_all_reduce(g, 2); }},
    {"medium", [](Group& g) { return exact_all_reduce(g, 5000); }},
    {"large", [](Group& g) { return exact_all_reduce(g, 400'000); }},
    {"ring", [](Group& g) { return exact_all_reduce(g, 5000, {.algorithm = "ring"}); }},
    {"barrier", [](Group& g) { return barrier(g); }},
    {"reduce", [](Group& g) { return reduce_to(g, 0); }},
    {"reduce_to_itself", [](Group& g) { return reduce_to(g, kVictim); }},  // the victim sends in the next one
    {"messages", pass_on},
};

class FaultOf : public testing::TestWithParam<Form> {
 protected:
  /// Runs operations until one fails. Returns the status on every rank. Then all ranks continue in a group
  /// of all.
  static std::vector<Status> hear(const std::string& faults) {
    const Setting setting("OURO_FAULT", faults);
    auto contexts = thread_contexts(kRanks);
    std::vector<Status> heard(kRanks);
    on_threads(kRanks, [&](int rank) {
      Group& g = contexts[static_cast<std::size_t>(rank)].world();
      Status& s = heard[static_cast<std::size_t>(rank)];
      for (int i = 0; i < 20 && s.ok(); ++i) s = i % 2 == 0 ? GetParam().call(g) : exact_all_reduce(g);
      auto next = g.shrink();
      ASSERT_TRUE(next.ok()) << next.status().message();
      EXPECT_EQ(next->size(), kRanks);
      EXPECT_TRUE(exact_all_reduce(*next, 5000).ok());
    });
    return heard;
  }
};

TEST_P(FaultOf, DamageIsReportedByAllRanksWithTheFaultyRank) {
  Watchdog watchdog;
  for (const Status& s : hear("corrupt:rank=1,op=5")) EXPECT_THAT(s, Fails(Reason::ring_corrupt, kVictim));
}

/// A link that is full has no slot to damage. The damage waits for a later message; it used to be forgotten.
TEST(TimedFault, DamageIsDeferredUntilALinkHasRoom) {
  Watchdog watchdog;
  constexpr int kMany = 600;     // more than a link has slots
  constexpr int kLater = 2'000;  // the first of them that finds room bears the damage
  const Setting setting("OURO_FAULT", fmt::format("corrupt:rank=0,op={}", kMany + 1));
  auto contexts = thread_contexts(2);
  const CView byte("x", 1, DType::u8);
  std::atomic<bool> posted{false};
  on_threads(2, [&](int rank) {
    Group& g = contexts[static_cast<std::size_t>(rank)].world();
    if (rank == 0) {
      std::thread many([&] {  // fills the link, and waits for the receiver
        group_start();
        for (int i = 0; i < kMany; ++i) EXPECT_TRUE(send(g, byte, 1).ok());
        (void)group_end();
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // if that is too short, the link has room
      std::thread one([&] { (void)send(g, byte, 1); });
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      posted = true;
      many.join(), one.join();
      Status s;
      for (int i = 0; i < kLater && s.ok(); ++i) {
        s = send(g, byte, 1);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the receiver makes room
      }
      return;
    }
    while (!posted) std::this_thread::yield();
    char got = 0;
    Status s;
    for (int i = 0; i < kMany + 1 + kLater && s.ok(); ++i) s = recv(g, View(&got, 1, DType::u8), 0).status();
    EXPECT_THAT(s, Fails(Reason::ring_corrupt, 0));
  });
}

TEST_P(FaultOf, ShortageOfMemoryIsReportedToAllRanks) {
  Watchdog watchdog;
  for (const Status& s : hear("error:rank=1,op=5")) {
    EXPECT_THAT(s, Fails(Reason::resource, kVictim));
    EXPECT_TRUE(has(s.message(), "OURO_FAULT")) << s.message();
  }
}

INSTANTIATE_TEST_SUITE_P(, FaultOf, testing::ValuesIn(kForms),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(FaultDelay, DelaysTheRankInEachNamedOperation) {
  Watchdog watchdog;
  const Setting setting("OURO_FAULT", "delay:rank=1,op=4,ms=20,every=2");
  auto contexts = thread_contexts(kRanks);
  on_threads(kRanks, [&](int rank) {
    Group& g = contexts[static_cast<std::size_t>(rank)].world();
    for (int op = 1; op <= 8; ++op) {
      const auto start = Clock::now();
      EXPECT_TRUE(barrier(g).ok());
      if (op >= 4 && op % 2 == 0) {
        EXPECT_GE(Clock::now() - start, rank == kVictim ? 20ms : 1ms) << "operation " << op;
      }
    }
  });
}

TEST(FaultOfHosts, CutRankIsUnresponsiveAndHasNoQuorum) {
  Watchdog watchdog;
  const Setting warn("OURO_SILENT_WARN", "0.4"), fail("OURO_SILENT_FAIL", "0.8");
  const Setting setting("OURO_FAULT", "cut:rank=1,op=3");
  auto contexts = TwoHosts::contexts();
  std::vector<std::string> end(2);
  on_threads(2, [&](int rank) {
    Group& g = contexts[static_cast<std::size_t>(rank)].world();
    Status s;
    for (int i = 0; i < 20 && s.ok(); ++i) s = exact_all_reduce(g);
    EXPECT_THAT(s, Fails(Reason::peer_unresponsive, 1 - rank));
    EXPECT_EQ(s.failure()->detector, "heartbeat");
    const auto next = g.shrink();
    EXPECT_EQ(next.ok(), rank == 0) << next.status().message();  // exactly half, with the lowest
    EXPECT_EQ(next.status().reason(), rank == 0 ? Reason::none : Reason::no_quorum);
  });
}

TEST(FaultOfHosts, RanksThatDoNotWaitSeeTheErrorToo) {
  Watchdog watchdog;
  const Setting setting("OURO_FAULT", "error:rank=1,op=2");
  auto contexts = TwoHosts::contexts();
  on_threads(2, [&](int rank) {
    Group& g = contexts[static_cast<std::size_t>(rank)].world();
    EXPECT_TRUE(exact_all_reduce(g).ok());
    Status s;
    if (rank == 1) {
      s = barrier(g);
    } else {
      eventually([&] { return !g.status().ok(); });
      s = g.status();
    }
    EXPECT_THAT(s, Fails(Reason::resource, 1)) << "rank " << rank;
  });
}

TEST(FaultOfHosts, RepeatedlyDamagedChunkFailsTheGroup) {
  Watchdog watchdog;
  const std::pair<const char*, Reason> table[] = {{"auth", Reason::data_corrupt},
                                                  {"tls", Reason::ring_corrupt}};
  for (const auto& [security, reason] : table) {
    const std::string secret(32, '7');
    const Setting setting("OURO_FAULT", "corrupt:rank=1,op=3"), how("OURO_SECURITY", security);
    const Setting key("OURO_SECRET", secret), fail("OURO_SILENT_FAIL", "2");
    auto contexts = TwoHosts::contexts();
    on_threads(2, [&](int rank) {
      Group& g = contexts[static_cast<std::size_t>(rank)].world();
      Status s;
      for (int i = 0; i < 20 && s.ok(); ++i) s = exact_all_reduce(g);
      EXPECT_THAT(s, Fails(reason, 1)) << "rank " << rank;  // rank 1, the sender, too
    });
  }
}

// ---- ranks as processes -----------------------------------------------------------------------------

/// Ranks run operations until one fails; the survivors run one more in the remaining group.
void survive(int rank, Board& board, const UniqueId& id, const std::vector<int>& dead) {
  auto joined = Context::create(options(rank, 3, id));
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  board.stage[rank] = 1;
  Status s;
  while (s.ok()) s = exact_all_reduce(joined->world());
  EXPECT_THAT(s, Fails(Reason::peer_dead));
  EXPECT_THAT(dead, testing::Contains(s.failure()->rank)) << s.message();
  Group g;
  for (Group* from = &joined->world();;) {
    auto next = from->shrink();
    ASSERT_TRUE(next.ok()) << next.status().message();
    g = std::move(*next);
    if (exact_all_reduce(g).ok()) break;
    from = &g;
  }
  EXPECT_EQ(g.size(), 3 - static_cast<int>(dead.size()));
  EXPECT_TRUE(joined->close().ok());
}

TEST(FaultOfProcesses, KillsTheRanksThatItNames) {
  Watchdog watchdog;
  OURO_NEEDS_PROCESSES();
  const UniqueId id = new_id();
  const Setting setting("OURO_FAULT", "kill:rank=2,op=100;kill:rank=0,at=shrink");
  Processes ranks(3, [&](int rank, Board& board) { survive(rank, board, id, {0, 2}); });
  ranks.join({0, 2});  // killed by a signal
}

TEST(FaultOfProcesses, ExitEndsTheRankWithoutClosing) {
  Watchdog watchdog;
  OURO_NEEDS_PROCESSES();
  const UniqueId id = new_id();
  const Setting setting("OURO_FAULT", "error:rank=1,op=100,what=exit");
  Processes ranks(3, [&](int rank, Board& board) { survive(rank, board, id, {1}); });
  ranks.join();  // all end with code 0
}

TEST(FaultOfProcesses, StoppedRankResumesWhenContinued) {
  Watchdog watchdog;
  OURO_NEEDS_PROCESSES();
  const UniqueId id = new_id();
  const Setting setting("OURO_FAULT", "stop:rank=1,op=50");
  Processes ranks(3, [&](int rank, Board& board) {
    auto joined = Context::create(options(rank, 3, id));
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    for (int i = 1; i <= 100; ++i) {
      EXPECT_TRUE(exact_all_reduce(joined->world()).ok());
      board.stage[rank] = i;
    }
  });
  const auto stopped = [&] {
    std::ifstream stat(fmt::format("/proc/{}/stat", ranks.pid(1)));
    std::string text;
    std::getline(stat, text);
    return has(text, ") T ");
  };
  ASSERT_TRUE(eventually(stopped));
  EXPECT_EQ(ranks.board().stage[1], 49);
  EXPECT_LE(ranks.board().stage[0], 50);
  kill(ranks.pid(1), SIGCONT);
  ranks.join();
}

}  // namespace
}  // namespace ouro::test
