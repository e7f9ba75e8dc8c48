// Roles, messages between them, and the replay service with its clients.
#include "ouro/train/roles.hpp"

#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "ouro/train/average.hpp"
#include "tests/golden_data.h"
#include "tests/runtime/ranks.h"

namespace ouro::train {
namespace {

using test::run_threads;
using namespace std::chrono_literals;

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes b;
  for (const int v : values) b.push_back(static_cast<std::byte>(v));
  return b;
}
std::vector<int> ints(const Bytes& b) {
  std::vector<int> v;
  for (const std::byte x : b) v.push_back(static_cast<int>(x));
  return v;
}

TEST(RolesGolden, FloatsTravelAsTheyAre) {
  const auto golden = test::golden("torchgfn_behaviour.json").at("send_float_payload");
  const auto payload = golden.at("payload").get<std::vector<float>>();
  test::CasesRun cases;
  cases.add("payloads");
  EXPECT_EQ("", run_threads(2, [&](Context& c) -> std::string {
              auto mail = Mailbox::create(Group(c.world().impl()));
              OURO_RANK_OK(mail);
              if (c.rank() == 0) {
                OURO_RANK_OK(mail->send(as_bytes(std::span<const float>(payload)), 1));
                return "";
              }
              auto m = mail->recv();
              OURO_RANK_OK(m);
              std::vector<float> got(payload.size());
              OURO_RANK_CHECK(m->data.size() == got.size() * sizeof(float), "{} bytes", m->data.size());
              std::memcpy(got.data(), m->data.data(), m->data.size());
              OURO_RANK_CHECK(got == payload, "{}", got);
              return "";
            }));
}

TEST(Mailbox, TakesFromAnySourceInAnyOrder) {
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              auto mail = Mailbox::create(Group(c.world().impl()));
              OURO_RANK_OK(mail);
              if (c.rank() < 2) {
                Bytes data;
                for (int k = 0; k <= c.rank() + 1; ++k) data.push_back(static_cast<std::byte>(k));
                OURO_RANK_OK(mail->send(data, 2));
                return "";
              }
              std::map<int, std::vector<int>> got;
              for (int k = 0; k < 2; ++k) {
                auto m = mail->recv();
                OURO_RANK_OK(m);
                got[m->source] = ints(m->data);
              }
              OURO_RANK_CHECK(got[0] == (std::vector{0, 1}) && got[1] == (std::vector{0, 1, 2}), "{}", got);
              return "";
            }));
}

TEST(Mailbox, KeepsOrderOfEveryLengthBesideCollectives) {
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              std::vector<int> all = {0, 1, 2};
              auto group = c.group(all, "mail");
              OURO_RANK_OK(group);
              auto mail = Mailbox::create(std::move(*group));
              OURO_RANK_OK(mail);
              constexpr std::size_t kLengths[] = {0, 1, 5000, 300'000, 3, 0, 70'000};
              const int next = (c.rank() + 1) % 3, before = (c.rank() + 2) % 3;
              std::string trouble;
              std::jthread receiver([&] {
                for (int tag = 0; tag < 2; ++tag)
                  for (const std::size_t n : kLengths) {
                    auto m = mail->recv(tag == 0 ? std::optional(before) : std::nullopt, tag);
                    if (!m.ok() || m->data.size() != n || m->source != before || m->tag != tag)
                      trouble +=
                          m.ok() ? fmt::format("{} bytes for {}", m->data.size(), n) : m.status().message();
                  }
              });
              std::vector<Work> works;
              for (int tag = 1; tag >= 0; --tag)
                for (const std::size_t n : kLengths) {
                  const Bytes data(n, std::byte{7});
                  if (n % 2 == 0) {
                    auto w = mail->isend(data, next, tag);
                    OURO_RANK_OK(w);
                    works.push_back(*w);
                  } else {
                    OURO_RANK_OK(mail->send(data, next, tag));
                  }
                }
              for (int k = 0; k < 50; ++k) {
                std::vector<float> x(100, 1);
                OURO_RANK_OK(all_reduce(c.world(), std::span<const float>(x), std::span<float>(x)));
              }
              for (const Work& w : works) {
                OURO_RANK_OK(w.wait());
                OURO_RANK_OK(w.wait());  // any number of times
                OURO_RANK_CHECK(w.test(), "an ended send");
              }
              receiver.join();
              OURO_RANK_OK(mail->close());
              OURO_RANK_OK(mail->close());
              return trouble;
            }));
}

TEST(Mailbox, ManyThreadsReceiveFromAnySource) {
  constexpr int kEach = 200, kThreads = 3;
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              auto mail = Mailbox::create(Group(c.world().impl()));
              OURO_RANK_OK(mail);
              if (c.rank() > 0) {
                for (int k = 0; k < kEach; ++k)
                  OURO_RANK_OK(mail->isend(
                      Bytes(static_cast<std::size_t>(k * 37 % 900), static_cast<std::byte>(k % 256)), 0));
                OURO_RANK_OK(mail->drain());
                OURO_RANK_OK(barrier(c.world()));
                return "";
              }
              std::atomic<int> got{0}, wrong{0};
              {
                std::vector<std::jthread> threads;
                for (int t = 0; t < kThreads; ++t)
                  threads.emplace_back([&] {
                    while (got.fetch_add(1) < 2 * kEach) {
                      auto m = mail->recv({}, 0, 20s);
                      if (!m.ok()) {
                        ++wrong;
                        continue;
                      }
                      for (const std::byte b : m->data) wrong += b != m->data[0];
                    }
                  });
              }
              OURO_RANK_OK(barrier(c.world()));
              OURO_RANK_CHECK(wrong == 0, "{} messages are wrong", wrong.load());
              return "";
            }));
}

TEST(Mailbox, RefusesAndTimesOut) {
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              auto mail = Mailbox::create(Group(c.world().impl()));
              OURO_RANK_OK(mail);
              const auto invalid_code = [](const Status& s) { return s.code() == Code::invalid; };
              OURO_RANK_CHECK(invalid_code(mail->send({}, 2)) && invalid_code(mail->send({}, -1)), "rank");
              OURO_RANK_CHECK(
                  invalid_code(mail->isend({}, 2).status()) && invalid_code(mail->isend({}, 0, -1).status()),
                  "isend");
              OURO_RANK_CHECK(
                  invalid_code(mail->recv(5).status()) && invalid_code(mail->recv({}, -1).status()), "recv");
              const Status late = mail->recv({}, 3, 50ms).status();
              OURO_RANK_CHECK(late.code() == Code::timeout, "{}", late.message());
              auto nothing = mail->probe();
              OURO_RANK_OK(nothing);
              OURO_RANK_CHECK(!nothing->has_value(), "a message out of nowhere");
              // And the group is whole.
              OURO_RANK_OK(mail->send(bytes_of({1, 2}), 1 - c.rank(), 9));
              auto m = mail->recv(1 - c.rank(), 9);
              OURO_RANK_OK(m);
              return "";
            }));
}

TEST(Roles, HaveTheirGroupsAndCloseEverywhere) {
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

TEST(Roles, OfOneRankNeedNobody) {
  EXPECT_EQ("", run_threads(1, [](Context& c) -> std::string {
              auto roles = make_roles(c);
              OURO_RANK_OK(roles);
              OURO_RANK_CHECK(roles->layout.is_training(0) && !roles->mail && roles->train->size() == 1,
                              "one training rank");
              OURO_RANK_OK(roles->close());
              return "";
            }));
}

TEST(Roles, ThatDifferAreRefusedOnEveryRank) {
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

/// 8 clients and 2 managers, each client in its own manner; the score is the sum of the bytes.
TEST(Replay, ClientsOfEveryKindAndTwoManagers) {
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
          for (std::size_t k = 0; k < scores.size(); ++k)  // in order, whenever they come
            OURO_RANK_CHECK(scores[k] == 200.0 * static_cast<double>(k), "score {} is {}", k, scores[k]);
          OURO_RANK_OK(client.leave(20s));
          OURO_RANK_CHECK(client.pending() == 0, "{} scores owed", client.pending());
        }
        OURO_RANK_OK(roles->close());
        return "";
      }));
  EXPECT_EQ(stored, 8 * kRounds);
}

TEST(Replay, RefusesWhatIsNoRequest) {
  EXPECT_EQ(
      "", run_threads(2, [](Context& c) -> std::string {
        auto mail = Mailbox::create(Group(c.world().impl()));
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

/// A client is killed while its manager serves: the manager learns of it, long before the deadline.
TEST(Replay, AKilledClientEndsTheService) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(test::Mode::processes);
  const std::string said = test::run_processes(3, [](Context& c) -> std::string {
    auto mail = Mailbox::create(Group(c.world().impl()));
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
    OURO_RANK_CHECK(took < 10s, "took {} s", std::chrono::duration<double>(took).count());
    return "";
  });
  EXPECT_THAT(said, ::testing::HasSubstr("rank 2"));  // the one that was killed, and nobody else
  EXPECT_THAT(said, ::testing::Not(::testing::HasSubstr("rank 0")));
  EXPECT_THAT(said, ::testing::Not(::testing::HasSubstr("rank 1")));
}

}  // namespace
}  // namespace ouro::train
