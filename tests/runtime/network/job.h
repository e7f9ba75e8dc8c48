// A job of many hosts in one thread: a rendezvous server and one client per host. Used by the
// rendezvous tests.
#pragma once
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <algorithm>

#include <optional>

#include "runtime/join/rendezvous.h"
#include "tests/runtime/network/lab.h"

namespace ouro::rt {

using Table = Result<std::vector<MemberRecord>>;

/// A rank with its own listener; the leader of a host also has a client.
struct Node {
  Node(asio::io_context& io, Identity self, const std::string& settings = "A=1") : identity(std::move(self)) {
    auto opened = LineListener::open(io, identity, {.bind = "127.0.0.1"}, [this](Line line) {
      ++fetched;
      if (client && serves && line.purpose == Purpose::table) client->serve(std::move(line));
    });
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    listener = std::move(*opened);
    member = {identity.rank,
              identity.pid,
              identity.host,
              identity.host_id,
              listener->endpoint(),
              settings,
              {1, 2, static_cast<std::uint8_t>(identity.rank)}};
  }
  Identity identity;
  std::unique_ptr<LineListener> listener;
  MemberRecord member;
  std::unique_ptr<RendezvousClient> client;
  bool serves = true;
  int fetched = 0;
  std::optional<Table> table;
  std::vector<Status> refused;
};

class Job {
 public:
  explicit Job(int world, std::function<void(RendezvousOptions&)> change = {})
      : world_(world), change_(std::move(change)) {}
  ~Job() {
    server.reset();
    for (auto& n : nodes) n->client.reset();
  }
  Node& node(int rank) {
    nodes.push_back(std::make_unique<Node>(io, who(rank, world_)));
    return *nodes.back();
  }
  RendezvousOptions options(const Node& n) {
    RendezvousOptions o;
    o.identity = n.identity;
    o.place = server ? server->endpoint() : place;
    o.self = n.member;
    o.deadline = 10s, o.late_after = 5s, o.arity = 2;
    if (change_) change_(o);
    return o;
  }
  void serve() {
    root = &node(0);
    auto opened = RendezvousServer::open(io, options(*root));
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    server = std::move(*opened);
    server->async_table([this](Table t) { root->table = std::move(t); });
  }
  /// Makes the rank join as the leader of its host.
  Node& join(Node& n) {
    n.client = std::make_unique<RendezvousClient>(io, options(n));
    n.client->bring(n.member);
    n.client->async_table([&n](Table t) { n.table = std::move(t); });
    return n;
  }
  Node& join(int rank) { return join(node(rank)); }
  bool all_told(std::chrono::milliseconds limit = test::kHang) {
    return run_until(
        io,
        [&] {
          return std::all_of(nodes.begin(), nodes.end(),
                             [&](const auto& n) { return n->table || (!n->client && n.get() != root); });
        },
        limit);
  }
  void settle(std::chrono::milliseconds time) {
    run_until(
        io, [] { return false; }, time);
  }

  asio::io_context io;
  std::string place = "127.0.0.1:0";
  std::unique_ptr<RendezvousServer> server;
  std::vector<std::unique_ptr<Node>> nodes;
  Node* root = nullptr;

 private:
  int world_;
  std::function<void(RendezvousOptions&)> change_;
};

inline void expect_whole(const std::optional<Table>& t, int world) {
  ASSERT_TRUE(t && t->ok()) << (t ? t->status().message() : "nothing");
  ASSERT_EQ((*t)->size(), static_cast<std::size_t>(world));
  for (int r = 0; r < world; ++r) {
    const MemberRecord& s = (**t)[static_cast<std::size_t>(r)];
    EXPECT_EQ(s.rank, r);
    EXPECT_EQ(s.pid, 1000 + r);
    EXPECT_EQ(s.host, fmt::format("node{}", r));
    EXPECT_EQ(s.blob.back(), static_cast<std::uint8_t>(r));
    EXPECT_THAT(s.endpoint, testing::StartsWith("127.0.0.1:"));
  }
}

}  // namespace ouro::rt
