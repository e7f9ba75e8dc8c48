// Roles, and the replay service with its clients.
#include "ouro/train/roles.hpp"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "ouro/train/average.hpp"
#include "tests/api/train/payload.h"
#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro::train {
namespace {

using test::bytes_of;
using test::ints;
using test::run_threads;
using namespace std::chrono_literals;

TEST(Roles, EachRoleHasItsGroupsAndClosesOnAllRanks) {
  EXPECT_EQ("", run_threads(6, [](Context& c) -> std::string {
              auto roles = make_roles(c, {.buffers = 2, .agent_groups = 3, .coordinator = true});
              OURO_RANK_OK(roles);
              const int r = c.rank();  // groups {0}{1}{3}, buffers 2 and 4, coordinator 5
              const bool trains = r == 0 || r == 1 || r == 3, buffers = r == 2 || r == 4;
              OURO_RANK_CHECK(roles->train.has_value() == trains && roles->agents.has_value() == trains &&
                                  roles->buffers.has_value() == buffers,
                              "groups");
              OURO_RANK_CHECK(roles->layout.is_coordinator(r) == (r == 5), "coordinator");
              if (trains) {
                std::vector<double> x = {static_cast<double>(r)};
                const Param p{.name = "w", .value = std::span(x), .grad = {}};
                OURO_RANK_OK(average_models(*roles->train, {&p, 1}));
                OURO_RANK_CHECK(std::abs(x[0] - 4.0 / 3) < 1e-15, "{}", x[0]);
                OURO_RANK_OK(roles->mail->send(bytes_of({r}), *roles->layout.assigned_buffer(r)));
              }
              if (buffers)
                for (const std::vector<int> served = *roles->layout.assigned_training_ranks(r);
                     const int from : served)
                  OURO_RANK_OK(roles->mail->recv(from));
              OURO_RANK_OK(roles->close());
              OURO_RANK_OK(roles->close());
              return "";
            }));
}

/// Ranks that do not share memory count as different hosts, whatever the machine is called.
TEST(Roles, BuffersFollowTheHostsOfTheJob) {
  EXPECT_EQ("", run_threads(5, [](Context& c) -> std::string {
              auto roles = make_roles(c, {.buffers = 2});
              OURO_RANK_OK(roles);
              const auto got = roles->layout.buffer_ranks();
              // One host: chunks {0,1,2} and {3,4}. Two hosts: ranks 0, 1 and 2, 3, 4.
              const std::vector<int> want = test::hosts_of(5) == 2 ? std::vector{1, 4} : std::vector{2, 4};
              OURO_RANK_CHECK(std::equal(got.begin(), got.end(), want.begin(), want.end()), "{}", got);
              OURO_RANK_OK(roles->close());
              return "";
            }));
}

TEST(Roles, OneRankAloneIsTheTrainer) {
  EXPECT_EQ("", run_threads(1, [](Context& c) -> std::string {
              auto roles = make_roles(c);
              OURO_RANK_OK(roles);
              OURO_RANK_CHECK(roles->layout.is_training(0) && !roles->mail && roles->train->size() == 1,
                              "one training rank");
              OURO_RANK_OK(roles->close());
              return "";
            }));
}

TEST(Roles, DifferingOptionsAreRefusedOnEveryRank) {
  EXPECT_EQ(
      "", run_threads(3, [](Context& c) -> std::string {
        const auto code = [](const Result<Roles>& r) { return r.status().code(); };
        OURO_RANK_CHECK(code(make_roles(c, {.buffers = c.rank() == 1 ? 1 : 0})) == Code::invalid, "buffers");
        OURO_RANK_CHECK(code(make_roles(c, {.world_size = c.rank() == 2 ? 9 : 3})) == Code::invalid, "world");
        OURO_RANK_CHECK(code(make_roles(c, {.buffers = 3})) == Code::invalid, "nobody trains");
        std::vector<std::string> hosts = {"a", "b", "c"};
        if (c.rank() == 0) hosts[1] = "x";
        OURO_RANK_CHECK(code(make_roles(c, {.hosts = hosts})) == Code::invalid, "hosts");
        return "";
      }));
}

// ---- the replay service ------------------------------------------------------------------------------

/// 8 clients and 2 managers, with each client in its own manner; the score is the sum of the bytes.
TEST(Replay, TwoManagersServeAllKindsOfRequests) {
  constexpr int kRounds = 20;
  std::atomic<std::int64_t> stored{0};
  EXPECT_EQ(
      "", run_threads(10, [&](Context& c) -> std::string {
        auto roles = make_roles(c, {.buffers = 2});
        OURO_RANK_OK(roles);
        if (roles->layout.is_buffer(c.rank())) {
          const auto clients = *roles->layout.assigned_training_ranks(c.rank());
          std::map<int, int> synced;
          auto report = serve_replay(
              *roles->mail, static_cast<int>(clients.size()),
              {.store =
                   [](int, CBytes data) {
                     double sum = 0;
                     for (const std::byte b : data) sum += static_cast<double>(b);
                     return sum;
                   },
               .metadata =
                   [](int source) {
                     return bytes_of({source, 42});
                   },
               .baseline_sync = [&](int source,
                                    CBytes data) { synced[source] += static_cast<int>(data.size()); }});
          OURO_RANK_OK(report);
          stored += report->stored;
          OURO_RANK_CHECK(report->syncs == static_cast<std::int64_t>(clients.size()), "{} syncs",
                          report->syncs);
          for (const int r : clients)
            OURO_RANK_CHECK(synced[r] == 5, "rank {} synced {} bytes", r, synced[r]);
        } else {
          const auto scoring = static_cast<Scoring>(c.rank() % 3);
          ReplayClient client(*roles->mail, *roles->layout.assigned_buffer(c.rank()), scoring);
          OURO_RANK_OK(client.baseline_sync(Bytes(5)));
          std::vector<double> scores;
          for (int k = 0; k < kRounds; ++k) {
            auto s = client.submit(Bytes(static_cast<std::size_t>(100 * k), std::byte{2}));
            OURO_RANK_OK(s);
            OURO_RANK_CHECK(scoring != Scoring::synchronous || *s, "no score at once");
            OURO_RANK_CHECK(scoring != Scoring::deferred || s->has_value() == (k > 0), "deferred {}", k);
            if (*s) scores.push_back(**s);
            if (k % 7 == 3) {
              auto meta = client.metadata();
              OURO_RANK_OK(meta);
              OURO_RANK_CHECK(ints(*meta) == (std::vector{c.rank(), 42}), "{}", ints(*meta));
            }
          }
          for (std::size_t k = 0; k < scores.size(); ++k)  // in order, whenever they arrive
            OURO_RANK_CHECK(scores[k] == 200.0 * static_cast<double>(k), "score {} is {}", k, scores[k]);
          OURO_RANK_OK(client.leave(20s));
          OURO_RANK_CHECK(client.pending() == 0, "{} scores owed", client.pending());
        }
        OURO_RANK_OK(roles->close());
        return "";
      }));
  EXPECT_EQ(stored, 8 * kRounds);
}

/// A client that sends EXIT twice has left once; one that leaves twice sends it once.
TEST(Replay, ClientThatExitsTwiceIsCountedOnce) {
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              auto mail = Mailbox::create(c.world());
              OURO_RANK_OK(mail);
              if (c.rank() == 0) {
                auto report = serve_replay(*mail, 2, {.store = [](int, CBytes) { return 1.0; }});
                OURO_RANK_OK(report);
                OURO_RANK_CHECK(report->stored == 1, "{} stored", report->stored);
                auto more = mail->probe();
                OURO_RANK_OK(more);
                OURO_RANK_CHECK(!more->has_value(), "another EXIT");
              } else if (c.rank() == 1) {
                const Bytes exit = bytes_of({static_cast<int>(ReplayRequest::exit)});
                OURO_RANK_OK(mail->send(exit, 0));
                OURO_RANK_OK(mail->send(exit, 0));
                OURO_RANK_OK(mail->send({}, 2, 5));  // rank 2 may end now
              } else {
                OURO_RANK_OK(mail->recv(1, 5));
                ReplayClient client(*mail, 0, Scoring::synchronous);
                OURO_RANK_OK(client.submit(Bytes(3)));
                OURO_RANK_OK(client.leave());
                OURO_RANK_OK(client.leave());
                OURO_RANK_CHECK(client.submit(Bytes(3)).status().code() == Code::invalid, "after its end");
              }
              OURO_RANK_OK(barrier(c.world()));
              return "";
            }));
}

/// An answer that arrives after its client's deadline is not taken for the answer to a later request.
TEST(Replay, LateAnswersAreDropped) {
  EXPECT_EQ(
      "", run_threads(2, [](Context& c) -> std::string {
        std::vector<int> both = {0, 1};
        auto group = c.group(both, "impatient", {.deadline = 500ms});
        OURO_RANK_OK(group);
        auto mail = Mailbox::create(*std::move(group));
        OURO_RANK_OK(mail);
        if (c.rank() == 0) {
          for (int k = 0; k < 2; ++k) OURO_RANK_OK(barrier(c.world()));  // both answers are late
          int asked = 0;
          OURO_RANK_OK(serve_replay(*mail, 1,
                                    {.store = [](int, CBytes data) { return static_cast<double>(data[0]); },
                                     .metadata = [&](int) { return bytes_of({++asked}); }},
                                    20s));
        } else {
          ReplayClient client(*mail, 0, Scoring::synchronous);
          OURO_RANK_CHECK(client.submit(bytes_of({1})).status().code() == Code::timeout, "in time");
          OURO_RANK_OK(barrier(c.world()));
          OURO_RANK_CHECK(client.metadata().status().code() == Code::timeout, "in time");
          OURO_RANK_OK(barrier(c.world()));
          for (const int k : {2, 3}) {
            auto score = client.submit(bytes_of({k}));
            OURO_RANK_OK(score);
            OURO_RANK_CHECK(**score == k && client.pending() == 0, "{}: {}", k, **score);
            auto about = client.metadata();
            OURO_RANK_OK(about);
            OURO_RANK_CHECK(ints(*about) == std::vector{k}, "{}: {}", k, ints(*about));
          }
          OURO_RANK_OK(client.leave());
        }
        return "";
      }));
}

TEST(Replay, InvalidRequestsAreRefused) {
  EXPECT_EQ(
      "", run_threads(2, [](Context& c) -> std::string {
        auto mail = Mailbox::create(c.world());
        OURO_RANK_OK(mail);
        const ReplayHandlers handlers{.store = [](int, CBytes) { return 0.0; }};
        if (c.rank() == 0) {
          const auto code = [](const Result<ReplayReport>& r) { return r.status().code(); };
          OURO_RANK_CHECK(code(serve_replay(*mail, 0, handlers)) == Code::invalid, "no clients");
          OURO_RANK_CHECK(code(serve_replay(*mail, 1, {})) == Code::invalid, "no store");
          for (int k = 0; k < 2; ++k) {
            const Status s = serve_replay(*mail, 1, handlers).status();
            OURO_RANK_CHECK(s.code() == Code::invalid && s.message().find("rank 1 sent") != std::string::npos,
                            "{}", s.ok() ? "ok" : s.message());
          }
          OURO_RANK_CHECK(code(serve_replay(*mail, 1, handlers, 50ms)) == Code::timeout, "a silent client");
        } else {
          OURO_RANK_OK(mail->send(bytes_of({9, 1}), 0));
          OURO_RANK_OK(mail->send({}, 0));
        }
        OURO_RANK_OK(barrier(c.world()));
        return "";
      }));
}

/// A client is killed while its manager serves: the manager learns of it long before the deadline.
TEST(Replay, AKilledClientEndsTheService) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(test::Mode::processes);
  const std::string said = test::run_processes(3, [](Context& c) -> std::string {
    auto mail = Mailbox::create(c.world());
    OURO_RANK_OK(mail);
    if (c.rank() == 2) {
      OURO_RANK_OK(mail->send(bytes_of({static_cast<int>(ReplayRequest::data)}), 0));
      ::kill(::getpid(), SIGKILL);
    }
    const auto start = std::chrono::steady_clock::now();
    const Status s = c.rank() == 0
                         ? serve_replay(*mail, 2, {.store = [](int, CBytes) { return 0.0; }}).status()
                         : mail->recv(0).status();
    const auto took = std::chrono::steady_clock::now() - start;
    OURO_RANK_CHECK(s.code() == Code::peer_lost || s.code() == Code::timeout, "{}",
                    s.ok() ? "ok" : s.message());
    OURO_RANK_CHECK(took < test::kHang, "took {} s", std::chrono::duration<double>(took).count());
    return "";
  });
  EXPECT_THAT(said, ::testing::HasSubstr("rank 2"));  // the killed one, and no other
  EXPECT_THAT(said, ::testing::Not(::testing::HasSubstr("rank 0")));
  EXPECT_THAT(said, ::testing::Not(::testing::HasSubstr("rank 1")));
}

}  // namespace
}  // namespace ouro::train
