// The rendezvous with lines that break, are damaged or lead to the wrong place, and messages while ranks
// are missing.
#include <filesystem>
#include <fstream>

#include "runtime/core/log.h"
#include "tests/runtime/network/job.h"
#include "tests/runtime/network/relay.h"

namespace ouro::rt {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// A file in which ranks find rank 0; removed with this object.
struct Rendezvous {
  Rendezvous() : path(std::filesystem::temp_directory_path() / fmt::format("ouro-stale-{}", getpid())) {}
  ~Rendezvous() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  std::filesystem::path path;
};

TEST(Rendezvous, DeathOfRankZeroAfterItsWelcomeIsReported) {
  Job job(4);
  int welcomed = 0;
  auto dying = LineListener::open(job.io, who(0), {.bind = "127.0.0.1"}, [&](Line line) {
    ++welcomed;
    reset(line.socket);
  });
  ASSERT_TRUE(dying.ok());
  job.place = (*dying)->endpoint();
  Node& leader = job.join(1);
  for (int r : {2, 3}) leader.client->bring(job.node(r).member);
  ASSERT_TRUE(run_until(job.io, [&] { return welcomed >= 5; }));
  EXPECT_FALSE(leader.table) << leader.table->status().message();
  dying->reset();
  ASSERT_TRUE(run_until(job.io, [&] { return leader.table.has_value(); }));
  EXPECT_EQ(leader.table->status().reason(), Reason::peer_dead);
  EXPECT_EQ(leader.table->status().failure()->rank, 0);
}

TEST(TimedRendezvous, UnreachableRanksDoNotHideTheReasonFromOthers) {
  Job job(9);
  job.serve();
  std::vector<Line> lost;
  for (int r = 3; r < 9; ++r)
    dial(job.io, job.server->endpoint(), Purpose::join, who(r, 9), 0, Clock::now() + 5s,
         [&](Result<Line> line) {
           ASSERT_TRUE(line.ok()) << line.status().message();
           lost.push_back(std::move(*line));
         });
  ASSERT_TRUE(run_until(job.io, [&] { return lost.size() == 6; }));
  job.join(1), job.join(2);
  job.settle(100ms);
  for (Line& line : lost) reset(line.socket);
  job.server->lost(0);  // reported to all at once, before any of the resets is noticed
  ASSERT_TRUE(job.all_told());
  for (const auto& n : job.nodes)
    EXPECT_EQ(n->table->status().reason(), Reason::peer_dead) << n->identity.rank;
}

TEST(Rendezvous, DamagedConnectionIsRetriedAndTheJobForms) {
  Job job(2);
  job.serve();
  // HELLO: magic, major version, payload; PROVE: minor version, payload; WELCOME; a sealed frame.
  constexpr std::size_t kHello = 24 + 56, kProve = 24 + 92 + 32;
  const std::vector<Relay::Flip> flips{{true, 2},   {true, 4},           {true, 40},          {false, 5},
                                       {false, 60}, {true, kHello + 30}, {false, kProve + 20}};
  Relay relay(job.server->endpoint(), flips);
  Node& n = job.node(1);
  RendezvousOptions options = job.options(n);
  options.place = relay.endpoint();
  n.client = std::make_unique<RendezvousClient>(job.io, options);
  n.client->bring(n.member);
  n.client->async_table([&n](Table t) { n.table = std::move(t); });
  ASSERT_TRUE(job.all_told());
  for (const auto& node : job.nodes) expect_whole(node->table, 2);
  EXPECT_EQ(relay.connections(), static_cast<int>(flips.size()) + 1)
      << "each was damaged where it was meant to be";
}

TEST(Rendezvous, FileOfAnEarlierJobIsReadAgainUntilReplaced) {
  Rendezvous rendezvous;
  Job job(2, [&](RendezvousOptions& o) { o.place = "file:" + rendezvous.path.string(); });
  Identity other = who(0);
  other.job[7] = 1;
  int strangers = 0;
  auto stale = LineListener::open(job.io, other, {.bind = "127.0.0.1"}, [&](const Line&) { ++strangers; });
  ASSERT_TRUE(stale.ok());
  std::ofstream(rendezvous.path) << (*stale)->endpoint() << "\n";
  Node& n = job.join(1);
  ASSERT_TRUE(run_until(job.io, [&] { return (*stale)->counts().refused >= 2; }));
  EXPECT_FALSE(n.table) << n.table->status().message();
  job.serve();
  ASSERT_TRUE(job.all_told());
  for (const auto& node : job.nodes) expect_whole(node->table, 2);
  EXPECT_EQ(strangers, 0);
}

TEST(Rendezvous, WrongSecretIsFinalWithAFileToo) {
  Rendezvous rendezvous;
  Job job(2, [&](RendezvousOptions& o) { o.place = "file:" + rendezvous.path.string(); });
  job.serve();
  Node& n = job.node(1);
  n.identity.secret = secret(9);
  job.join(n);
  ASSERT_TRUE(run_until(job.io, [&] { return n.table.has_value(); }));
  EXPECT_EQ(n.table->status().reason(), Reason::refused);
  EXPECT_THAT(n.table->status().message(), HasSubstr("bad-mac"));
}

TEST(TimedRendezvous, RankWithoutAConnectionWarnsRepeatedly) {
  Job job(2, [](RendezvousOptions& o) { o.late_after = 50ms; });
  job.place = "127.0.0.1:1";
  job.join(1);
  for (int i = 0; i < 2; ++i) {
    OURO_WARN("quiet");
    job.settle(150ms);
    EXPECT_THAT(log::last_warning(),
                AllOf(HasSubstr("rank 1 waits for rank 0 at 127.0.0.1:1"), HasSubstr("Connection refused")));
  }
}

TEST(TimedRendezvous, NumberOfJoinedRanksIsReportedRepeatedly) {
  Job job(3, [](RendezvousOptions& o) { o.late_after = 50ms; });
  job.serve();
  for (int joined = 1; joined < 3; ++joined) {
    OURO_WARN("quiet");
    job.settle(150ms);
    EXPECT_THAT(log::last_warning(), HasSubstr(fmt::format("joined {}/3", joined)));
    job.join(joined);
  }
}

/// In containers a new process often gets the pid of the old one.
TEST(TimedRendezvous, NewProcessWithAnOldPidIsADuplicate) {
  Job job(3);
  job.serve();
  Node& first = job.node(1);
  first.identity.process = 5;
  job.join(first);
  job.settle(50ms);
  Node& second = job.node(1);
  second.identity.process = 6;
  job.join(second);
  ASSERT_TRUE(job.all_told());
  for (const Node* n : {job.root, &first, &second})
    EXPECT_THAT(n->table->status().message(), HasSubstr("duplicate-rank"));
}

TEST(Rendezvous, DifferentWorldSizeBehindALeaderEndsTheJob) {
  for (const bool by_root : {false, true}) {
    Job job(4);
    job.serve();
    Node& leader = job.join(1);
    const MemberRecord odd = job.node(2).member;
    const auto ignore = [](const Status&) {};
    by_root ? job.server->bring(odd, ignore, 5) : leader.client->bring(odd, ignore, 5);
    ASSERT_TRUE(job.all_told());
    for (const Node* n : {job.root, &leader}) {
      EXPECT_EQ(n->table->status().reason(), Reason::mismatch);
      EXPECT_THAT(n->table->status().message(), AllOf(HasSubstr("rank 2 (node2, pid 1002) says 5"),
                                                      HasSubstr("rank 0 (node0, pid 1000) says 4")));
    }
  }
}

}  // namespace
}  // namespace ouro::rt
