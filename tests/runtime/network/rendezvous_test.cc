// The rendezvous without failures: the tree, ranks that arrive one by one, early clients, files.
#include <sys/stat.h>

#include <filesystem>

#include "tests/runtime/network/job.h"

namespace ouro::rt {
namespace {

TEST(Rendezvous, OneRankCompletesAlone) {
  Job job(1);
  job.serve();
  ASSERT_TRUE(job.all_told());
  expect_whole(job.root->table, 1);
  EXPECT_TRUE(job.server->served());
}

TEST(Rendezvous, SixtyFourHostsGetTheTableAlongATree) {
  Job job(64);
  job.serve();
  for (int r = 1; r < 64; ++r) job.join(r);
  ASSERT_TRUE(job.all_told());
  for (const auto& n : job.nodes) expect_whole(n->table, 64);
  int fetched = 0, most = 0;
  for (const auto& n : job.nodes) fetched += n->fetched, most = std::max(most, n->fetched);
  EXPECT_EQ(fetched, 61) << "all but the two that hang on the root";
  EXPECT_EQ(most, 2) << "no host sends more copies than the arity";
  EXPECT_TRUE(run_until(job.io, [&] {
    return job.server->served() && std::all_of(job.nodes.begin(), job.nodes.end(), [](const auto& n) {
             return !n->client || n->client->served();
           });
  }));
}

TEST(Rendezvous, RanksOfAHostMayJoinOneByOne) {
  Job job(6);
  job.serve();
  Node& leader = job.join(1);
  Node& two = job.node(2);
  Node& three = job.node(3);
  Node& five = job.node(5);
  job.settle(50ms);
  leader.client->bring(two.member);
  job.settle(50ms);
  job.server->bring(five.member);  // rank 5 is on rank 0's host
  job.join(4);
  job.settle(50ms);
  EXPECT_FALSE(leader.table);
  leader.client->bring(three.member);
  ASSERT_TRUE(run_until(job.io, [&] { return leader.table && job.root->table; }));
  expect_whole(leader.table, 6);
  expect_whole(job.root->table, 6);
}

TEST(Rendezvous, ClientsMayStartBeforeTheServer) {
  Job job(3);
  {
    asio::io_context other;
    auto probe = LineListener::open(other, who(0), {.bind = "127.0.0.1"}, [](Line) {});
    job.place = (*probe)->endpoint();  // a port that becomes free at the end of this block
  }
  job.join(1), job.join(2);
  job.settle(100ms);
  job.serve();
  ASSERT_TRUE(job.all_told());
  for (const auto& n : job.nodes) expect_whole(n->table, 3);
}

TEST(Rendezvous, FilePassesTheAddressAndIsRemoved) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("ouro-meet-{}", getpid())).string();
  std::filesystem::remove(path);
  Job job(2, [&](RendezvousOptions& o) { o.place = "file:" + path; });
  job.join(1);
  job.settle(50ms);
  job.serve();
  ASSERT_TRUE(job.all_told());
  for (const auto& n : job.nodes) expect_whole(n->table, 2);
  struct stat file {};
  ASSERT_EQ(stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  job.server.reset();
  EXPECT_FALSE(std::filesystem::exists(path)) << "it leaves nothing behind";
}

}  // namespace
}  // namespace ouro::rt
