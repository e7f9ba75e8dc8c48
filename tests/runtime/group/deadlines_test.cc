// The largest possible deadlines: each call that takes one waits instead of timing out at once.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "ouro/ouro.h"
#include "ouro/train/roles.hpp"
#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

using namespace std::chrono_literals;
constexpr Milliseconds kMax = Milliseconds::max();
constexpr auto kPause = 60ms;  // longer than a call that times out at once takes

InitOptions longest() {
  InitOptions o;
  o.join_deadline = o.deadline = o.late_after = kMax;
  return o;
}

/// Enqueues work that ends after a pause.
Work sleeper(const Stream& s) {
  return s.run([] {
    std::this_thread::sleep_for(kPause);
    return Status{};
  });
}

TEST(Deadlines, WaitsOnStreamsWorkAndEventsAcceptExtremeValues) {
  for (const Milliseconds wait : {kMax, kMax - 1ms, Milliseconds::min(), Milliseconds(-1)}) {
    auto stream = Stream::create();
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    const Work first = sleeper(*stream);
    const Status waited = first.wait(wait);
    EXPECT_TRUE(waited.ok() && first.test()) << waited.message();
    const Work second = sleeper(*stream);
    const Status synchronized = stream->synchronize(wait);
    EXPECT_TRUE(synchronized.ok() && second.test()) << synchronized.message();
    const Work third = sleeper(*stream);
    Event mark;
    mark.record(*stream);
    const Status marked = mark.synchronize(wait);
    EXPECT_TRUE(marked.ok() && third.test()) << marked.message();
  }
}

/// Rank 1 is late for everything that rank 0 waits for; the deadlines are those of the job, then of the
/// groups. The name matches the filters of tests that run on several hosts.
TEST(GroupsDeadlines, LongestDeadlinesOfGroupsAndMessagesDoNotOverflow) {
  const auto body = [](Context& c) -> std::string {
    auto made = c.world().split(0, c.rank(), {.deadline = kMax});
    OURO_RANK_OK(made);
    for (Group* g : {&c.world(), &*made}) {
      const int other = 1 - c.rank();
      int mine = c.rank() + 1, sum = 0, got = 0;
      const auto late = [&] {
        if (c.rank() == 1) std::this_thread::sleep_for(kPause);
      };
      late();
      OURO_RANK_OK(all_reduce(*g, CView(&mine, 1, DType::i32), View(&sum, 1, DType::i32)));
      OURO_RANK_CHECK(sum == 3, "{}", sum);
      for (const Milliseconds deadline : {Milliseconds(0), kMax}) {
        late();
        if (c.rank() == 1) OURO_RANK_OK(send(*g, CView(&mine, 1, DType::i32), other, 7));
        if (c.rank() == 0) OURO_RANK_OK(recv(*g, View(&got, 1, DType::i32), other, 7, deadline));
      }
      OURO_RANK_CHECK(c.rank() == 1 || got == 2, "{}", got);
    }
    auto boxes = c.world().split(0, c.rank(), {.deadline = kMax});
    OURO_RANK_OK(boxes);
    auto mail = train::Mailbox::create(std::move(*boxes));
    OURO_RANK_OK(mail);
    if (c.rank() == 1) {
      std::this_thread::sleep_for(kPause);
      OURO_RANK_OK(mail->isend(CBytes(), 0, 3));
      OURO_RANK_OK(mail->drain(kMax));
    } else {
      OURO_RANK_OK(mail->recv(1, 3, kMax));
    }
    if (c.rank() == 1) std::this_thread::sleep_for(kPause);
    auto again = made->shrink();
    OURO_RANK_OK(again);
    OURO_RANK_CHECK(again->size() == 2, "{}", again->size());
    // A message is in flight when the group closes: the sender waits until it has been taken.
    int word = 5;
    if (c.rank() == 0) OURO_RANK_OK(send(*again, CView(&word, 1, DType::i32), 1));
    if (c.rank() == 1) std::this_thread::sleep_for(kPause);
    if (c.rank() == 1) OURO_RANK_OK(recv(*again, View(&word, 1, DType::i32), 0));
    OURO_RANK_OK(again->close());
    return "";
  };
  EXPECT_EQ(run_threads(2, body, longest()), "");
  InitOptions nearly = longest();  // just below overflow, in every unit in which a deadline is stored
  nearly.deadline = nearly.join_deadline = nearly.late_after =
      std::chrono::duration_cast<Milliseconds>(std::chrono::nanoseconds::max());
  EXPECT_EQ(run_threads(2, body, nearly), "");
}

TEST(GroupsDeadlines, EnvironmentAcceptsTheMaximumAndRefusesMore) {
  const char* const names[] = {"OURO_DEADLINE", "OURO_JOIN_DEADLINE", "OURO_LATE"};
  const auto set_all = [&](const char* value) {
    for (const char* name : names) ASSERT_EQ(setenv(name, value, 1), 0);
  };
  set_all("1e9");  // the maximum that they accept
  const std::string outcome = run_threads(2, [](Context& c) -> std::string {
    if (c.rank() == 1) std::this_thread::sleep_for(kPause);
    OURO_RANK_OK(barrier(c.world()));
    return "";
  });
  set_all("1e300");
  const auto refused = Context::threads(1);
  for (const char* name : names) unsetenv(name);
  EXPECT_EQ(outcome, "");
  EXPECT_EQ(refused.status().reason(), Reason::invalid) << refused.status().message();
}

TEST(Deadlines, LongestDeadlinesOfTheCInterfaceDoNotOverflow) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  ouro_init_options_t options = OURO_INIT_OPTIONS;
  options.join_deadline_ms = options.deadline_ms = options.late_after_ms = kMost;
  ouro_context_t contexts[2];
  ASSERT_EQ(ouro_context_threads(2, &options, contexts), 0) << ouro_last_error();
  std::string said[2];
  const auto body = [&](int rank) -> std::string {
#define OURO_C_OK(call) \
  if ((call) != 0) return std::string(#call) + ": " + ouro_last_error()
    ouro_group_t world = nullptr, group = nullptr;
    OURO_C_OK(ouro_context_world(contexts[rank], &world));
    ouro_group_options_t group_options = OURO_GROUP_OPTIONS;
    group_options.deadline_ms = kMost;
    OURO_C_OK(ouro_group_split(world, 0, rank, &group_options, &group));
    ouro_stream_t stream = nullptr;
    OURO_C_OK(ouro_stream_create(OURO_PRIORITY_NORMAL, "", &stream));
    const auto late = [&] {
      if (rank == 1) std::this_thread::sleep_for(kPause);
    };
    float mine = 1, sum = 0;
    ouro_work_t work = nullptr;
    late();
    const ouro_op_t add{OURO_OP_SUM, 1, 1};
    OURO_C_OK(ouro_all_reduce(group, &mine, &sum, 1, OURO_DTYPE_F32, add, nullptr, stream, &work));
    OURO_C_OK(ouro_work_wait(work, kMost));
    ouro_work_destroy(work);
    late();
    OURO_C_OK(ouro_all_reduce(group, &mine, &sum, 1, OURO_DTYPE_F32, add, nullptr, stream, nullptr));
    OURO_C_OK(ouro_stream_synchronize(stream, kMost));
    late();
    if (rank == 1) OURO_C_OK(ouro_send(group, &mine, 1, OURO_DTYPE_F32, 0, 1, nullptr, nullptr));
    if (rank == 0)
      OURO_C_OK(ouro_recv(group, &sum, 1, OURO_DTYPE_F32, 1, 1, kMost, nullptr, nullptr, nullptr));
    ouro_stream_destroy(stream);
    OURO_C_OK(ouro_group_close(group));
    OURO_C_OK(ouro_group_destroy(group));
#undef OURO_C_OK
    return "";
  };
  std::thread other([&] { said[1] = body(1); });
  said[0] = body(0);
  other.join();
  EXPECT_EQ(said[0], "");
  EXPECT_EQ(said[1], "");
  for (ouro_context_t c : contexts) ouro_context_destroy(c);
}

}  // namespace
}  // namespace ouro::test
