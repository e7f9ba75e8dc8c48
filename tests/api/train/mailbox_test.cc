// Messages between ranks: complete, of any length, from any source, and while others are still in flight.
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "ouro/train/roles.hpp"
#include "tests/api/train/payload.h"
#include "tests/golden_data.h"
#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro::train {
namespace {

using test::bytes_of;
using test::ints;
using test::run_threads;
using namespace std::chrono_literals;

TEST(RolesGolden, SentFloatsArriveUnchanged) {
  test::CasesRun cases{"payloads"};
  const auto golden = test::golden("torchgfn_behaviour.json");
  if (!golden.contains("send_float_payload")) return;
  const auto payload = golden["send_float_payload"].at("payload").get<std::vector<float>>();
  cases.add("payloads");
  EXPECT_EQ("", run_threads(2, [&](Context& c) -> std::string {
              auto mail = Mailbox::create(c.world());
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
              auto mail = Mailbox::create(c.world());
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

TEST(Mailbox, MessagesOfEveryLengthKeepOrderDuringCollectives) {
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
                    if (!m.ok() || m->data != Bytes(n, std::byte{7}) || m->source != before || m->tag != tag)
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
                OURO_RANK_OK(w.wait());  // may be repeated
                OURO_RANK_CHECK(w.test(), "an ended send");
              }
              receiver.join();
              OURO_RANK_OK(mail->close());
              OURO_RANK_OK(mail->close());
              return trouble;
            }));
}

/// Message k of a rank.
Bytes payload(int k) {
  return Bytes(static_cast<std::size_t>(k * 37 % 900), static_cast<std::byte>(k % 256));
}

TEST(Mailbox, ManyThreadsReceiveFromAnySource) {
  constexpr int kEach = 200, kThreads = 3;
  EXPECT_EQ("", run_threads(3, [](Context& c) -> std::string {
              auto mail = Mailbox::create(c.world());
              OURO_RANK_OK(mail);
              if (c.rank() > 0) {
                for (int k = 0; k < kEach; ++k) OURO_RANK_OK(mail->isend(payload(k), 0));
                OURO_RANK_OK(mail->drain());
                OURO_RANK_OK(barrier(c.world()));
                return "";
              }
              std::atomic<int> got{0}, wrong{0}, seen[2][kEach] = {};
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
                      const int k = m->data.empty() ? 0 : std::to_integer<int>(m->data[0]);
                      if (k < kEach && m->data == payload(k)) ++seen[m->source - 1][k];
                    }
                  });
              }
              OURO_RANK_OK(barrier(c.world()));
              OURO_RANK_CHECK(wrong == 0, "{} receives failed", wrong.load());
              for (int r = 0; r < 2; ++r)
                for (int k = 0; k < kEach; ++k)
                  OURO_RANK_CHECK(seen[r][k] == 1, "message {} of rank {} came {} times", k, r + 1,
                                  seen[r][k].load());
              return "";
            }));
}

TEST(Mailbox, WrongArgumentsAreRefusedAndReceivesTimeOut) {
  EXPECT_EQ("", run_threads(2, [](Context& c) -> std::string {
              auto mail = Mailbox::create(c.world());
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
              // The group still works.
              OURO_RANK_OK(mail->send(bytes_of({1, 2}), 1 - c.rank(), 9));
              auto m = mail->recv(1 - c.rank(), 9);
              OURO_RANK_OK(m);
              OURO_RANK_CHECK(ints(m->data) == (std::vector{1, 2}), "{}", ints(m->data));
              return "";
            }));
}

/// Half of a large message has arrived and its sender is stopped: messages from others are
/// received meanwhile.
TEST(Mailbox, HalfMessageDoesNotBlockOtherSenders) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(test::Mode::processes);
  EXPECT_EQ("", test::run_processes(3, [](Context& c) -> std::string {
              constexpr std::size_t kLarge = 32 << 20;
              auto mail = Mailbox::create(c.world());
              OURO_RANK_OK(mail);
              const std::int64_t pid = ::getpid();
              std::vector<std::int64_t> pids(3);
              OURO_RANK_OK(all_gather(c.world(), std::span<const std::int64_t>(&pid, 1), std::span(pids)));
              if (c.rank() == 0) {
                auto work = mail->isend(Bytes(kLarge, std::byte{5}), 1);
                OURO_RANK_OK(work);
                std::this_thread::sleep_for(200ms);  // time to send as much as fits without a receiver
                ::raise(SIGSTOP);
                OURO_RANK_OK(work->wait());
              } else if (c.rank() == 2) {
                OURO_RANK_OK(mail->send(bytes_of({7}), 1, 1));
                OURO_RANK_OK(mail->send(bytes_of({8}), 1, 0));
              } else {
                const auto sender = static_cast<pid_t>(pids[0]);
                const auto stopped = [&] {
                  std::ifstream in(fmt::format("/proc/{}/stat", sender));
                  std::string id, name, state;
                  in >> id >> name >> state;
                  return state == "T";
                };
                const auto until = std::chrono::steady_clock::now() + 20s;
                while (!stopped() && std::chrono::steady_clock::now() < until)
                  std::this_thread::sleep_for(5ms);
                Result<Message> large = invalid("not received");
                std::jthread receiver([&] { large = mail->recv(0, 0, 3 * test::kHang); });
                std::this_thread::sleep_for(100ms);
                const auto begin = std::chrono::steady_clock::now();
                const auto other = mail->recv(2, 1, 2 * test::kHang),
                           same_tag = mail->recv({}, 0, 2 * test::kHang);
                const auto took = std::chrono::steady_clock::now() - begin;
                ::kill(sender, SIGCONT);
                receiver.join();
                OURO_RANK_OK(other);
                OURO_RANK_OK(same_tag);
                OURO_RANK_CHECK(same_tag->source == 2 && took < test::kHang, "from {}, after {} s",
                                same_tag->source, std::chrono::duration<double>(took).count());
                OURO_RANK_OK(large);
                OURO_RANK_CHECK(large->data == Bytes(kLarge, std::byte{5}), "{} bytes", large->data.size());
              }
              OURO_RANK_OK(barrier(c.world()));
              return "";
            }));
}

}  // namespace
}  // namespace ouro::train
