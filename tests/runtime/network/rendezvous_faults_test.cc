// Failures of the rendezvous: which ranks are refused or missing, the errors that all ranks get, strangers.
#include <sys/resource.h>

#include "runtime/core/log.h"
#include "runtime/network/frame_stream.h"
#include "tests/runtime/network/job.h"

namespace ouro::rt {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Cuts the TCP connections of this process to `endpoint`, as a flapping network would. Returns their number.
int cut_lines_to(const std::string& endpoint) {
  int cut = 0;
  for (int fd = 3; fd < 4096; ++fd) {
    NetAddress peer;
    peer.length = sizeof peer.at;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer.at), &peer.length) == 0 &&
        peer.at.ss_family == AF_INET && to_string(peer) == endpoint)
      cut += shutdown(fd, SHUT_RDWR) == 0;
  }
  return cut;
}

TEST(Rendezvous, MissingRanksAreNamedOnEveryRank) {
  Job job(5, [](RendezvousOptions& o) { o.deadline = 2s, o.late_after = 100ms; });
  job.serve();
  job.join(1), job.join(4);
  EXPECT_TRUE(run_until(job.io, [] {
    return log::last_warning().find("waiting for ranks {2,3}; joined 3/5") != std::string::npos;
  })) << log::last_warning();
  ASSERT_TRUE(job.all_told());
  for (const auto& n : job.nodes) {
    EXPECT_EQ(n->table->status().reason(), Reason::never_joined);
    EXPECT_THAT(n->table->status().message(), HasSubstr("ranks {2,3} never joined; 3/5 did within 2 s"));
  }
}

TEST(Rendezvous, NoAnswerFailsAtTheDeadlineWithTheCause) {
  Job job(2, [](RendezvousOptions& o) { o.deadline = 200ms; });
  job.place = "127.0.0.1:1";
  job.join(1);
  ASSERT_TRUE(job.all_told());
  const Status s = job.nodes[0]->table->status();
  EXPECT_EQ(s.reason(), Reason::never_joined);
  EXPECT_THAT(s.message(), AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("Connection refused")));
}

/// Rank 2 never comes, and nobody waits for it.
TEST(Rendezvous, ADuplicateEndsTheJobAndBothAreNamed) {
  Job job(3);
  job.serve();
  job.join(1);
  Node& twin = job.node(1);
  twin.identity.pid = twin.member.pid = 777, twin.identity.host = twin.member.host = "elsewhere";
  job.join(twin);
  ASSERT_TRUE(job.all_told());
  for (const auto& n : job.nodes) {
    EXPECT_EQ(n->table->status().reason(), Reason::refused);
    EXPECT_THAT(n->table->status().message(), AllOf(HasSubstr("duplicate-rank"), HasSubstr("node1, pid 1001"),
                                                    HasSubstr("elsewhere, pid 777")));
  }
}

TEST(Rendezvous, DuplicateBehindALeaderEndsTheJob) {
  Job job(3);
  job.serve();
  Node& leader = job.join(1);
  Node& twin = job.node(0);
  twin.member.pid = 777;
  leader.client->bring(twin.member, [](const Status&) {});
  ASSERT_TRUE(job.all_told());
  for (const Node* n : {job.root, &leader})
    EXPECT_THAT(n->table->status().message(),
                AllOf(HasSubstr("duplicate-rank"), HasSubstr("pid 777"), HasSubstr("pid 1000")));
}

TEST(Rendezvous, RefusedRankDoesNotEndItsHost) {
  Job job(3);
  job.serve();
  Node& leader = job.join(1);
  MemberRecord beyond = job.node(2).member;
  beyond.rank = 3;
  std::optional<Status> refused;
  leader.client->bring(beyond, [&](Status s) { refused = std::move(s); });
  ASSERT_TRUE(run_until(job.io, [&] { return refused.has_value(); }));
  EXPECT_THAT(refused->message(), HasSubstr("rank-range: rank 3 of 3"));
  job.join(2);
  ASSERT_TRUE(run_until(job.io, [&] { return leader.table.has_value(); }));
  expect_whole(leader.table, 3);
}

/// What the leader of a host has found out reaches rank 0 even if its line breaks at that moment.
TEST(Rendezvous, ObjectionOfALeaderEndsTheJob) {
  for (const bool breaks : {false, true}) {
    Job job(3);
    job.serve();
    Node& leader = job.join(1);
    if (breaks) {
      ASSERT_TRUE(run_until(job.io, [&] { return cut_lines_to(job.server->endpoint()) > 0; }));
    }
    leader.client->give_up(leader.member, {Reason::refused, "duplicate-rank: two of them"});
    ASSERT_TRUE(job.all_told());
    for (const Node* n : {job.root, &leader}) {
      EXPECT_EQ(n->table->status().reason(), Reason::refused);
      EXPECT_THAT(n->table->status().message(), HasSubstr("duplicate-rank: two of them"));
    }
  }
}

TEST(TimedRendezvous, LateObjectionOfALeaderEndsNothing) {
  Job job(2);
  job.serve();
  Node& leader = job.join(1);
  ASSERT_TRUE(
      run_until(job.io, [&] { return job.root->table.has_value(); }));  // the other has it a moment later
  leader.client->give_up(leader.member, {Reason::refused, "duplicate-rank: two of them"});
  ASSERT_TRUE(job.all_told());
  job.settle(100ms);
  for (const Node* n : {job.root, &leader}) expect_whole(n->table, 2);
}

TEST(TimedRendezvous, DisagreementIsReportedToAllWithBothSides) {
  const auto outcome = [](const std::function<void(Node&)>& change, std::vector<const char*> words) {
    Job job(4);
    job.serve();
    job.join(1);
    job.settle(50ms);
    Node& odd = job.node(2);
    change(odd);
    job.join(odd);
    ASSERT_TRUE(job.all_told());
    Node& late = job.join(3);  // arrives a moment later: gets the same reason, not just a closed connection
    ASSERT_TRUE(job.all_told());
    EXPECT_TRUE(late.table);
    for (const auto& n : job.nodes) {
      EXPECT_EQ(n->table->status().reason(), Reason::mismatch) << n->identity.rank;
      for (const char* word : words)
        EXPECT_THAT(n->table->status().message(), HasSubstr(word)) << n->identity.rank;
    }
  };
  outcome([](Node& n) { n.identity.world = 5; },
          {"world sizes differ", "rank 2 (node2, pid 1002) says 5", "rank 0 (node0, pid 1000) says 4"});
  outcome([](Node& n) { n.member.settings = "A=2"; },
          {"settings differ", "'A=1'", "'A=2'", "node2", "node0"});
}

TEST(Rendezvous, RanksWithAnotherJobOrSecretAreRefusedAtBothEnds) {
  Job job(3);
  job.serve();
  job.join(1);
  const std::pair<std::function<void(Identity&)>, const char*> cases[] = {
      {[](Identity& i) { i.secret = secret(9); }, "bad-mac"},
      {[](Identity& i) { i.secret = {}; }, "bad-mac"},
      {[](Identity& i) { i.job[5] = 1; }, "wrong-job"},
      {[](Identity& i) { i.generation = 4; }, "generation"}};
  for (const auto& [change, word] : cases) {
    Node& n = job.node(2);
    change(n.identity);
    job.join(n);
    ASSERT_TRUE(run_until(job.io, [&] { return n.table.has_value(); })) << word;
    EXPECT_EQ(n.table->status().reason(), Reason::refused);
    EXPECT_THAT(n.table->status().message(), HasSubstr(word));
  }
  job.join(2);
  ASSERT_TRUE(job.all_told());
  expect_whole(job.root->table, 3);
}

TEST(Rendezvous, LateRankIsRefusedAsClosed) {
  Job job(2);
  job.serve();
  job.join(1);
  ASSERT_TRUE(job.all_told());
  Node& late = job.node(1);
  late.member.pid = 4;
  job.join(late);
  ASSERT_TRUE(job.all_told());
  EXPECT_EQ(late.table->status().reason(), Reason::refused);
  EXPECT_THAT(late.table->status().message(), HasSubstr("closed"));
}

TEST(TimedRendezvous, ARankThatDiesWhileJoiningIsNamedEverywhere) {
  Job job(4);
  job.serve();
  job.join(1);
  Node& victim = job.join(3);
  job.settle(100ms);
  victim.client.reset(), victim.listener.reset();
  const auto start = Clock::now();
  ASSERT_TRUE(job.all_told());
  EXPECT_LT(Clock::now() - start, 900ms);
  for (const auto& n : job.nodes) {
    if (n.get() == &victim) continue;
    const Status s = n->table->status();
    EXPECT_EQ(s.reason(), Reason::peer_dead);
    EXPECT_EQ(s.failure()->rank, 3);
    EXPECT_EQ(s.failure()->host, "node3");
    EXPECT_EQ(s.failure()->pid, 1003);
  }
}

TEST(TimedRendezvous, ADeathThatALeaderReportsIsNamedEverywhere) {
  Job job(4);
  job.serve();
  Node& leader = job.join(1);
  Node& victim = job.node(2);
  leader.client->bring(victim.member);
  job.settle(50ms);
  leader.client->lost(2);
  ASSERT_TRUE(run_until(job.io, [&] { return leader.table && job.root->table; }));
  for (const Node* n : {&leader, job.root}) {
    EXPECT_EQ(n->table->status().reason(), Reason::peer_dead);
    EXPECT_EQ(n->table->status().failure()->rank, 2);
  }
}

TEST(TimedRendezvous, DeathOfRankZeroIsReportedAsItsDeath) {
  Job job(3);
  job.serve();
  job.join(1);
  job.settle(100ms);
  job.server.reset();
  ASSERT_TRUE(run_until(job.io, [&] { return job.nodes[1]->table.has_value(); }));
  const Status s = job.nodes[1]->table->status();
  EXPECT_EQ(s.reason(), Reason::peer_dead);
  EXPECT_EQ(s.failure()->rank, 0);
  EXPECT_EQ(s.failure()->pid, 1000);
}

TEST(TimedRendezvous, BrokenConnectionIsNoDeath) {
  Job job(4);
  job.serve();
  job.join(1), job.join(2);
  for (int i = 0; i < 3; ++i) {
    job.settle(100ms);
    EXPECT_GE(cut_lines_to(job.server->endpoint()), 2);
  }
  job.settle(600ms);
  EXPECT_FALSE(job.root->table) << job.root->table->status().message();
  job.join(3);
  ASSERT_TRUE(job.all_told());
  for (const auto& n : job.nodes) expect_whole(n->table, 4);
}

/// A leader that claims a rank outside of the job, or is refused as the rank that it claims, brings another
/// rank of its host. Its line breaks, and that rank may come back on a new line.
TEST(TimedRendezvous, LeaderThatHasNotJoinedItselfMayReconnect) {
  for (const int says : {60'000, 1}) {
    Job job(4);
    job.serve();
    job.join(1);
    Identity leader = who(says, 65'536);
    leader.pid = 4711, leader.host = "elsewhere";
    const Node& guest = job.node(2);
    std::shared_ptr<FrameStream> line;
    const auto bring = [&] {
      line.reset();
      dial(job.io, job.server->endpoint(), Purpose::join, leader, 0, Clock::now() + 5s, [&](Result<Line> to) {
        ASSERT_TRUE(to.ok()) << to.status().message();
        line = std::make_shared<FrameStream>(job.io, std::move(*to), wire::kMaxControl);
        line->start([](const auto&) {});
        line->send(wire::MemberOffer{4, guest.member});
      });
      ASSERT_TRUE(run_until(job.io, [&] { return line != nullptr; }));
    };
    bring();
    job.settle(50ms);
    line->close();
    job.settle(50ms);
    EXPECT_FALSE(job.root->table) << job.root->table->status().message();
    bring();
    job.join(3);
    ASSERT_TRUE(run_until(job.io, [&] { return job.root->table.has_value(); }));
    expect_whole(job.root->table, 4);
    line->close();
  }
}

/// After a few lost packets, TCP may deliver nothing new for seconds.
TEST(TimedRendezvous, LivingHostMayReconnectLate) {
  Job job(3);
  job.serve();
  Node& late = job.join(1);
  job.settle(100ms);
  late.client.reset();
  job.settle(1500ms);
  EXPECT_FALSE(job.root->table) << job.root->table->status().message();
  job.join(late), job.join(2);
  ASSERT_TRUE(job.all_told());
  for (const auto& n : job.nodes) expect_whole(n->table, 3);
}

TEST(TimedRendezvous, UnresponsiveHostEndsTheJob) {
  Job job(4);  // one host never joins
  job.serve();
  Node& victim = job.node(1);
  // The kernel accepts connections for a process that is stopped.
  asio::io_context never_run;
  auto still = LineListener::open(never_run, victim.identity, {.bind = "127.0.0.1"}, [](const Line&) {});
  ASSERT_TRUE(still.ok());
  victim.member.endpoint = (*still)->endpoint();
  job.join(victim);
  Node& other = job.join(2);
  job.settle(100ms);
  victim.client.reset();
  ASSERT_TRUE(run_until(job.io, [&] { return other.table && job.root->table; }));
  for (const Node* n : {&other, job.root}) {
    EXPECT_EQ(n->table->status().reason(), Reason::peer_unresponsive);
    EXPECT_EQ(n->table->status().failure()->rank, 1);
  }
}

TEST(Rendezvous, ParentThatDoesNotServeIsBypassed) {
  Job job(16);
  job.serve();
  for (int r = 1; r < 16; ++r) job.join(r).serves = r % 3 == 0;
  ASSERT_TRUE(job.all_told());
  for (const auto& n : job.nodes) expect_whole(n->table, 16);
}

/// Row F47 of the fault matrix. All connect from one address, so at most 16 handshakes run at a time, and
/// many are refused and retry.
TEST(TimedRendezvous, TwoThousandHostsJoinAtOnce) {
  constexpr int kHosts = 2000;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < 6 * kHosts)
    GTEST_SKIP() << "this system allows no more descriptors than " << limit.rlim_max;
  const rlimit before = limit;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  {
    Job job(kHosts);
    job.serve();
    const auto start = Clock::now();
    for (int r = 1; r < kHosts; ++r) job.join(r);
    ASSERT_TRUE(run_until(job.io, [&] { return job.root->table.has_value(); }));
    EXPECT_LT(Clock::now() - start, 10s);
    expect_whole(job.root->table, kHosts);
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(TimedRendezvous, FloodOfGarbageDelaysTheJoinOnlyBriefly) {
  Job job(16);
  job.serve();
  const auto to = *parse_address(job.server->endpoint());
  std::vector<Fd> flood;
  std::size_t sent = 0;
  const auto garbage = [&](int n) {  // connects and sends garbage
    for (int i = 0; i < n; ++i, ++sent) {
      Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      (void)connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.at), to.length);
      static constexpr std::string_view kWords[] = {"GET / HTTP/1.0\r\n\r\n", "\x16\x03\x01\x00", "", "OURO",
                                                    "OURO\x01\x00\x01\x01\xff\xff\xff\xff"};
      (void)!::send(fd.get(), kWords[sent % 5].data(), kWords[sent % 5].size(), MSG_NOSIGNAL);
      flood.push_back(std::move(fd));
      if (flood.size() > 1000) flood.erase(flood.begin(), flood.begin() + 500);
    }
  };
  garbage(1000);
  const auto start = Clock::now();
  for (int r = 1; r < 16; ++r) job.join(r);
  while (Clock::now() - start < 8s && !std::all_of(job.nodes.begin(), job.nodes.end(),
                                                   [](const auto& n) { return n->table.has_value(); })) {
    garbage(20);
    job.settle(1ms);
  }
  const auto took = Clock::now() - start;
  garbage(sent < 3000 ? 3000 - static_cast<int>(sent) : 0);
  for (const auto& n : job.nodes) expect_whole(n->table, 16);
  EXPECT_LT(took, 4s);
  job.settle(100ms);
  RecordProperty("garbage", static_cast<int>(sent));
  RecordProperty("milliseconds", static_cast<int>(took / 1ms));
}

TEST(TimedRendezvous, ThousandSilentClientsBlockNoRank) {
  Job job(16);
  job.serve();
  const auto to = *parse_address(job.server->endpoint());
  std::vector<Fd> silent;
  for (int i = 0; i < 1000; ++i) {
    silent.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    (void)connect(silent.back().get(), reinterpret_cast<const sockaddr*>(&to.at), to.length);
  }
  const auto start = Clock::now();
  for (int r = 1; r < 16; ++r) job.join(r);
  ASSERT_TRUE(job.all_told());
  for (const auto& n : job.nodes) expect_whole(n->table, 16);
  EXPECT_LT(Clock::now() - start, 4s);
}

}  // namespace
}  // namespace ouro::rt
