// Late ranks, deadlines, abort, and the destruction of groups and contexts in every order.
#include "runtime/core/log.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

TEST(LateRank, IsReportedWithoutFailingTheOperation) {
  Watchdog watchdog;
  InitOptions o;
  o.late_after = 200ms;
  auto contexts = thread_contexts(3, o);
  on_threads(3, [&](int rank) {
    Group& g = contexts[static_cast<std::size_t>(rank)].world();
    if (rank == 1) {
      EXPECT_TRUE(eventually([] {
        return has(log::last_warning(), "ranks {1} have not entered all_reduce seq 1 of group world");
      })) << log::last_warning();
    }
    EXPECT_TRUE(exact_all_reduce(g).ok());
  });
}

TEST(TimedDeadline, NamesTheRankThatDidNotEnter) {
  Watchdog watchdog;
  InitOptions o;
  o.deadline = 500ms;
  auto contexts = thread_contexts(3, o);
  std::vector<std::int64_t> took(3);
  std::vector<Status> said(3);
  on_threads(3, [&](int rank) {
    const auto i = static_cast<std::size_t>(rank);
    if (rank == 2) std::this_thread::sleep_for(700ms);
    const std::int64_t start = now_ns();
    said[i] = exact_all_reduce(contexts[i].world());
    took[i] = now_ns() - start;
  });
  for (const Status& s : said) {
    EXPECT_THAT(s, Fails(Reason::deadline, 2));
    EXPECT_TRUE(has(s.message(), "ranks {2} have not entered")) << s.message();
    EXPECT_EQ(s.code(), Code::timeout);
  }
  for (std::size_t r : {0, 1}) {
    EXPECT_GE(std::chrono::nanoseconds(took[r]), 490ms);
    EXPECT_LT(std::chrono::nanoseconds(took[r]), 1500ms);
  }
  EXPECT_LT(std::chrono::nanoseconds(took[2]), 200ms) << "the error was known when it came";
}

/// The question that a rank runs while it waits: operations of another group, of so many shapes that one of
/// their plans evicts the plan of the waiting operation.
struct Aside {
  Group group;
  int asked = 0;
  static Status ask(void* data) {
    Aside& a = *static_cast<Aside*>(data);
    if (a.asked++ > 0) return {};
    std::vector<float> in(1001, 7), out(1001);
    for (std::size_t n = 1; n <= 1000; ++n) {
      const Status s = all_reduce(a.group, std::span(in).first(n), std::span(out).first(n));
      if (!s.ok()) return s;
    }
    return {};
  }
};

TEST(InterruptCheck, MayCallOperationsOfAnotherGroup) {
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  std::atomic<bool> asked{false};
  on_threads(2, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    std::vector<float> in(100, static_cast<float>(rank + 1)), out(100);
    const auto sum = [&] { return all_reduce(c.world(), std::span(in), std::span(out)); };
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(sum().ok());  // its plan is cached
    std::fill(out.begin(), out.end(), 0.f);
    if (rank == 0) {
      EXPECT_TRUE(eventually([&] { return asked.load(); }));
      ASSERT_TRUE(sum().ok());
    } else {
      const int alone[] = {1};
      auto made = c.group(alone, "alone");
      ASSERT_TRUE(made.ok());
      Aside aside{*made};
      struct Told {
        Aside& aside;
        std::atomic<bool>& asked;
      } told{aside, asked};
      const InterruptibleWaits waits(
          [](void* data) {
            Told& t = *static_cast<Told*>(data);
            const Status s = Aside::ask(&t.aside);
            t.asked.store(true);
            return s;
          },
          &told);
      const Status s = sum();
      EXPECT_TRUE(s.ok()) << s.message();
    }
    EXPECT_EQ(out, std::vector<float>(100, 3.f));
  });
}

TEST(Deadline, OfAReceiveIsNotSticky) {
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  on_threads(2, [&](int rank) {
    Group& g = contexts[static_cast<std::size_t>(rank)].world();
    int value = 0;
    if (rank == 0) {
      EXPECT_THAT(recv(g, View(&value, 1, DType::i32), 1, 0, 50ms).status(), Fails(Reason::deadline));
    }
    EXPECT_TRUE(exact_all_reduce(g).ok());
    if (rank == 1) {
      value = 7;
      EXPECT_TRUE(send(g, CView(&value, 1, DType::i32), 0).ok());
    }
    if (rank == 0) {
      EXPECT_TRUE(recv(g, View(&value, 1, DType::i32), 1).ok());
    }
    EXPECT_EQ(value, 7);
  });
}

/// A receive with its own deadline is refused where that is unsupported, and no message is lost.
TEST(Deadline, OfAReceiveIsRefusedInBatchesAndOnStreams) {
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  Group &g = contexts[0].world(), &other = contexts[1].world();
  auto stream = Stream::create();
  ASSERT_TRUE(stream.ok());
  int value = 0;
  const View out(&value, 1, DType::i32);
  EXPECT_THAT(recv(g, out, 1, 0, -5ms).status(), Fails(Reason::invalid));
  EXPECT_THAT(recv(g, out, 1, 0, *stream, RecvOptions{.deadline = 50ms}).status(), Fails(Reason::invalid));
  group_start();
  EXPECT_THAT(recv(g, out, 1, 0, 50ms).status(), Fails(Reason::invalid));
  EXPECT_THAT(group_end(), Fails(Reason::invalid));
  group_start();
  EXPECT_THAT(recv(g, out, 1, 0, *stream, RecvOptions{.deadline = 50ms}).status(), Fails(Reason::invalid));
  EXPECT_THAT(group_end(), Fails(Reason::invalid));
  const int sent = 7;
  EXPECT_TRUE(send(other, CView(&sent, 1, DType::i32), 0).ok());
  EXPECT_TRUE(recv(g, out, 1).ok());
  EXPECT_EQ(value, 7);
}

TEST(TimedAbort, EndsAllOperationsOfTheGroupOnAllRanks) {
  Watchdog watchdog;
  auto contexts = thread_contexts(4);
  const int all[] = {0, 1, 2, 3};
  std::vector<Group> groups, others;
  for (auto& c : contexts) {
    groups.push_back(std::move(*c.group(all, "doomed")));
    others.push_back(std::move(*c.group(all, "other")));
  }
  std::atomic<std::int64_t> called{0};
  std::thread caller([&] {
    std::this_thread::sleep_for(150ms);
    called = now_ns();
    groups[0].abort("the user gave up");
    groups[0].abort("again");
  });
  on_threads(4, [&](int rank) {
    const auto i = static_cast<std::size_t>(rank);
    Group& g = groups[i];
    std::vector<std::int32_t> data(1000);
    Status s;
    if (rank == 0) s = exact_all_reduce(g);  // rank 3 never takes part
    if (rank == 1) s = recv(g, View(data.data(), 10, DType::i32), 2).status();
    if (rank == 2) {
      auto stream = Stream::create();
      ASSERT_TRUE(stream.ok());
      auto first = all_reduce(g, std::span(data), std::span(data), ReduceOp::sum, *stream);
      auto second = barrier(g, *stream);
      ASSERT_TRUE(first.ok() && second.ok());
      s = first->wait();
      EXPECT_THAT(second->wait(), Fails(Reason::revoked, 0));
    }
    if (rank == 3) {
      EXPECT_TRUE(eventually([&] { return !g.status().ok(); }));
      s = g.status();
    }
    EXPECT_LT(std::chrono::nanoseconds(now_ns() - called), kHardBound) << "rank " << rank;
    EXPECT_THAT(s, Fails(Reason::revoked, 0));
    EXPECT_TRUE(has(s.message(), "aborted by rank 0: the user gave up")) << s.message();
    g.abort("me too");  // the first error is sticky
    EXPECT_EQ(g.status().message(), s.message());
    EXPECT_THAT(barrier(g), Fails(Reason::revoked, 0));
    EXPECT_TRUE(exact_all_reduce(others[i]).ok()) << "another group is not touched";
    auto next = g.shrink();
    ASSERT_TRUE(next.ok()) << next.status().message();
    EXPECT_TRUE(exact_all_reduce(*next).ok());
  });
  caller.join();
}

TEST(Ending, SecondCloseSucceedsAndLaterCallsAreRevoked) {
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  on_threads(2, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    const int all[] = {0, 1};
    auto g = c.group(all, "mine");
    ASSERT_TRUE(g.ok());
    EXPECT_TRUE(exact_all_reduce(*g).ok());
    EXPECT_TRUE(g->close().ok());
    EXPECT_TRUE(g->close().ok());
    int value = 0;
    EXPECT_THAT(exact_all_reduce(*g), Fails(Reason::revoked));
    EXPECT_THAT(send(*g, CView(&value, 1, DType::i32), 1 - rank), Fails(Reason::revoked));
    EXPECT_THAT(recv(*g, View(&value, 1, DType::i32), 1 - rank).status(), Fails(Reason::revoked));
    EXPECT_THAT(probe(*g, 0).status(), Fails(Reason::revoked));
    EXPECT_THAT(g->shrink().status(), Fails(Reason::revoked));
    EXPECT_TRUE(exact_all_reduce(c.world()).ok());
    EXPECT_TRUE(c.close().ok());
    EXPECT_TRUE(c.close().ok());
    EXPECT_FALSE(c.active());
    EXPECT_THAT(exact_all_reduce(c.world()), Fails(Reason::revoked));
    EXPECT_THAT(c.group(all, "late").status(), Fails(Reason::revoked));
    EXPECT_THAT(c.alloc(64).status(), Fails(Reason::revoked));
  });
}

TEST(Ending, CallsOnEmptyHandlesAreRefused) {
  Group none;
  Context nothing;
  EXPECT_THAT(barrier(none), Fails(Reason::invalid));
  EXPECT_THAT(none.close(), Fails(Reason::invalid));
  EXPECT_THAT(none.shrink().status(), Fails(Reason::invalid));
  EXPECT_THAT(barrier(nothing.world()), Fails(Reason::invalid));
  EXPECT_THAT(nothing.alloc(1).status(), Fails(Reason::invalid));
  EXPECT_TRUE(nothing.close().ok());
  none.abort();
}

TEST(Ending, ContextMayEndBeforeItsGroupsAndMemory) {
  Watchdog watchdog;
  for (int order = 0; order < 4; ++order) {
    auto contexts = thread_contexts(2);
    on_threads(2, [&](int rank) {
      Context c = std::move(contexts[static_cast<std::size_t>(rank)]);
      const int all[] = {0, 1};
      auto a = c.group(all, "a"), b = c.group(all, "b");
      ASSERT_TRUE(a.ok() && b.ok());
      auto memory = c.alloc(1 << 16);
      ASSERT_TRUE(memory.ok());
      const auto mine = memory->as<float>();
      EXPECT_TRUE(all_reduce(*a, mine, mine).ok());  // in place: the peer maps it
      EXPECT_TRUE(exact_all_reduce(*b).ok());
      EXPECT_TRUE(barrier(*a).ok());
      if (order & 1) c = Context();
      if (order & 2)
        *b = Group();
      else
        *a = Group();
      if (!(order & 1)) c = Context();
      EXPECT_THAT(exact_all_reduce(order & 2 ? *a : *b), Fails(Reason::revoked));
      mine[0] = 1;  // still mapped
      *memory = Memory();
    });
  }
}

/// Destruction never waits for peers: operations in flight end with an error, on all ranks.
TEST(TimedEnding, DestructionEndsOperationsInFlightWithoutWaiting) {
  Watchdog watchdog;
  for (const bool context_first : {true, false}) {
    auto contexts = thread_contexts(2);
    const int all[] = {0, 1};
    std::vector<float> data(100);
    const std::span<float> span(data);
    auto stream = Stream::create();
    ASSERT_TRUE(stream.ok());
    auto group = contexts[0].group(all, "g");
    auto peer = contexts[1].group(all, "g");
    ASSERT_TRUE(group.ok() && peer.ok());
    Group& used = context_first ? contexts[0].world() : *group;
    auto work = all_reduce(used, span, span, ReduceOp::sum, *stream);
    ASSERT_TRUE(work.ok());
    std::this_thread::sleep_for(20ms);
    const std::int64_t start = now_ns();
    if (context_first)
      contexts[0] = Context();
    else
      *group = Group();
    EXPECT_LT(std::chrono::nanoseconds(now_ns() - start), kHardBound);
    EXPECT_FALSE(work->wait(1s).ok());
    EXPECT_TRUE(work->test());
    Group& theirs = context_first ? contexts[1].world() : *peer;
    EXPECT_FALSE(all_reduce(theirs, span, span).ok());
    EXPECT_LT(std::chrono::nanoseconds(now_ns() - start), 2 * kHardBound);
  }
}

}  // namespace
}  // namespace ouro::test
