// Streams: order, events, pools, work handles, and operations of groups on them.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <set>
#include <thread>
#include <vector>

#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

using namespace std::chrono_literals;

/// Blocks a stream until the gate is opened.
struct Gate {
  std::promise<void> promise;
  std::shared_future<void> opened = promise.get_future().share();
  void open() { promise.set_value(); }
  Work hold(const Stream& s) const {
    return s.run([f = opened] {
      f.wait();
      return Status{};
    });
  }
};

Stream made() {
  auto s = Stream::create();
  EXPECT_TRUE(s.ok()) << s.status().message();
  return s.ok() ? *s : Stream();
}

TEST(Streams, KeepOrder) {
  Stream s = made();
  std::vector<int> seen;  // written by the stream's thread only
  for (int i = 0; i < 100; ++i)
    (void)s.run([&seen, i] {
      seen.push_back(i);
      return Status{};
    });
  ASSERT_TRUE(s.synchronize().ok());
  ASSERT_EQ(seen.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(Streams, NoStreamRunsInTheCaller) {
  const auto caller = std::this_thread::get_id();
  std::thread::id ran;
  Work w = Stream().run([&] {
    ran = std::this_thread::get_id();
    return invalid("told so");
  });
  EXPECT_EQ(ran, caller);
  EXPECT_TRUE(w.test());
  EXPECT_EQ(w.wait().reason(), Reason::invalid);
  EXPECT_TRUE(Stream().synchronize().ok());
  EXPECT_TRUE(Work().test());
  EXPECT_TRUE(Work().wait().ok());
}

TEST(Streams, WorkWaitsTestsAndCallsBack) {
  Stream s = made();
  Gate gate;
  const Work held = gate.hold(s);
  const Work failed = s.run([] { return invalid("on purpose"); });
  const Work threw = s.run([]() -> Status { throw std::runtime_error("thrown"); });
  std::promise<Status> told, told_late;
  failed.then([&](const Status& outcome) { told.set_value(outcome); });
  EXPECT_FALSE(failed.test());
  EXPECT_TRUE(failed.status().ok());
  EXPECT_EQ(failed.wait(5ms).reason(), Reason::deadline);
  EXPECT_EQ(s.synchronize(5ms).reason(), Reason::deadline);
  gate.open();
  EXPECT_TRUE(held.wait().ok());
  EXPECT_EQ(failed.wait().reason(), Reason::invalid);
  EXPECT_EQ(failed.wait(0ms).reason(), Reason::invalid) << "any number of times";
  EXPECT_EQ(threw.wait().reason(), Reason::resource);
  EXPECT_NE(threw.wait().message().find("thrown"), std::string::npos);
  EXPECT_EQ(told.get_future().get().reason(), Reason::invalid);
  const auto caller = std::this_thread::get_id();
  failed.then([&](const Status& outcome) {
    EXPECT_EQ(std::this_thread::get_id(), caller) << "it has ended: at once, here";
    told_late.set_value(outcome);
  });
  EXPECT_EQ(told_late.get_future().get().reason(), Reason::invalid);
}

TEST(Streams, LastHandleDrainsTheStream) {
  std::atomic<int> ran{0};
  {
    Stream s = made(), copy = s;
    EXPECT_EQ(s, copy);
    for (int i = 0; i < 10; ++i)
      (void)s.run([&] {
        std::this_thread::sleep_for(1ms);
        ++ran;
        return Status{};
      });
  }
  EXPECT_EQ(ran, 10);
  // The last handle may be destroyed by a function that runs on the stream itself.
  std::promise<void> done;
  auto* own = new Stream(made());
  Gate gate;
  (void)gate.hold(*own);
  (void)own->run([own, &done] {
    delete own;
    done.set_value();
    return Status{};
  });
  gate.open();  // only after run() has returned: until then it uses the handle
  done.get_future().wait();
}

TEST(Events, OrderStreams) {
  Stream a = made(), b = made();
  Gate gate;
  Event event;
  EXPECT_TRUE(event.query()) << "nothing recorded";
  event.wait_on(b);  // and nothing to wait for
  std::atomic<bool> first{false};
  (void)gate.hold(a);
  (void)a.run([&] {
    first = true;
    return Status{};
  });
  event.record(a);
  std::atomic<bool> kept{false};
  event.wait_on(b);
  const Work second = b.run([&] {
    kept = first.load();
    return Status{};
  });
  Gate later;  // the event does not wait for work after the mark
  (void)later.hold(a);
  EXPECT_FALSE(event.query());
  EXPECT_FALSE(second.test());
  EXPECT_EQ(event.synchronize(5ms).reason(), Reason::deadline);
  gate.open();
  EXPECT_TRUE(second.wait().ok());
  EXPECT_TRUE(kept);
  EXPECT_TRUE(event.synchronize().ok());
  EXPECT_TRUE(event.query());
  event.record(a);  // replaces the mark
  EXPECT_FALSE(event.query());
  later.open();
  event.wait_on(Stream());  // no stream: this thread waits
  EXPECT_TRUE(event.query());
}

/// "No stream" never has work, so there is nothing to wait for.
TEST(Events, EventOfNoStreamHasPassed) {
  Event event;
  EXPECT_TRUE(event.query());
  event.record(Stream());
  EXPECT_TRUE(event.query());
  EXPECT_TRUE(event.synchronize().ok());
  event.wait_on(Stream());
  event.wait_on(*Stream::create());
}

TEST(Pools, HandOutStreamsInTurn) {
  EXPECT_EQ(StreamPool::create(0).status().reason(), Reason::invalid);
  EXPECT_FALSE(StreamPool().next().valid());
  EXPECT_FALSE(StreamPool().by_key(7).valid());
  auto pool = StreamPool::create();
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ(pool->size(), StreamPool::kDefaultSize);
  std::vector<Stream> turn;
  for (int i = 0; i < 2 * pool->size(); ++i) turn.push_back(pool->next());
  std::set<const void*> distinct;
  for (int i = 0; i < pool->size(); ++i) {
    EXPECT_EQ(turn[static_cast<std::size_t>(i)], turn[static_cast<std::size_t>(i + pool->size())]);
    distinct.insert(turn[static_cast<std::size_t>(i)].impl().get());
  }
  EXPECT_EQ(distinct.size(), 4u);
  std::set<const void*> keyed;
  for (std::uint64_t key = 0; key < 16; ++key) {
    EXPECT_EQ(pool->by_key(key), pool->by_key(key));
    keyed.insert(pool->by_key(key).impl().get());
  }
  EXPECT_EQ(keyed, distinct);
}

TEST(Pools, AfterAndBeforeOrderThePoolAgainstAStream) {
  auto pool = StreamPool::create(3, Priority::low);
  ASSERT_TRUE(pool.ok());
  Stream user = made();
  Gate gate;
  std::atomic<int> phase{0};
  (void)gate.hold(user);
  (void)user.run([&] {
    phase = 1;
    return Status{};
  });
  pool->after(user);
  std::atomic<int> in_phase_one{0};
  std::vector<Work> works;
  for (int i = 0; i < 3; ++i)
    works.push_back(pool->next().run([&] {
      in_phase_one += phase == 1;
      return Status{};
    }));
  pool->before(user);
  std::atomic<int> seen_by_user{-1};
  const Work last = user.run([&] {
    seen_by_user = in_phase_one.load();
    return Status{};
  });
  for (const Work& w : works) EXPECT_FALSE(w.test());
  gate.open();
  EXPECT_TRUE(last.wait().ok());
  EXPECT_EQ(seen_by_user, 3);
  EXPECT_TRUE(pool->synchronize().ok());
}

class StreamsOf : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(All, StreamsOf, testing::Values(Mode::threads, Mode::processes),
                         [](const auto& info) { return name(info.param); });

/// Operations of one group on two streams and in the caller run in the order of the calls.
TEST_P(StreamsOf, OneGroupOnTwoStreamsKeepsCallOrder) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    Stream a = made(), b = made();
    for (int turn = 0; turn < 20; ++turn) {
      std::vector<int> x(2000, c.rank() + turn);
      const std::span<int> s(x);
      // The streams differ from rank to rank; the order of the calls does not.
      const Stream& first = c.rank() == 1 ? b : a;
      const Stream& second = c.rank() == 2 ? first : b;
      auto one = all_reduce(c.world(), s, s, ReduceOp::sum, first);
      auto two = all_reduce(c.world(), s, s, ReduceOp::max, second);
      OURO_RANK_OK(one);
      OURO_RANK_OK(two);
      OURO_RANK_OK(all_reduce(c.world(), s, s));  // blocking: takes its turn after both
      OURO_RANK_OK(one->wait());
      OURO_RANK_OK(two->wait());
      OURO_RANK_CHECK(x.front() == 3 * (3 + 3 * turn) && x.back() == x.front(), "turn {}: {}", turn,
                      x.front());
    }
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Every operation in its form with a stream, all enqueued without waiting, with one wait at the end.
TEST_P(StreamsOf, EveryOperationRunsOnAStream) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 2, [](Context& c) -> std::string {
    Group& g = c.world();
    const int r = c.rank(), other = 1 - r;
    Stream s = made();
    int mine = r + 1, sum = 0, root_sum = 0, part = 0, wide = 0, from_root = 5 * r, scattered = 0, got = 0;
    std::vector<int> both{r + 1, 10 * (r + 1)}, all(2), all_v(3), gathered(2), swapped(2), swapped_v(2);
    std::vector<int> three{r, r + 10, r + 20}, two_of{7 + r, 8 + r};
    const std::vector<std::size_t> counts{1, 2}, ones{1, 1};
    const auto view = [](int& x) { return std::span<int>(&x, 1); };
    const std::span<const int> my_block =
        std::span<const int>(two_of).first(counts[static_cast<std::size_t>(r)]);
    std::vector<int> part_v(counts[static_cast<std::size_t>(r)]);
    std::vector<Result<Work>> works;
    works.push_back(all_reduce(g, view(mine), view(sum), ReduceOp::sum, s));
    works.push_back(reduce(g, view(sum), view(root_sum), ReduceOp::sum, 1, s));
    works.push_back(reduce_scatter(g, std::span<int>(both), view(part), ReduceOp::sum, s));
    works.push_back(
        reduce_scatter_v(g, std::span<int>(three), std::span<int>(part_v), counts, ReduceOp::sum, s));
    works.push_back(all_gather(g, view(mine), std::span<int>(all), s));
    works.push_back(all_gather_v(g, my_block, std::span<int>(all_v), counts, s));
    works.push_back(broadcast(g, view(from_root), view(wide), 1, s));
    works.push_back(gather(g, view(mine), std::span<int>(gathered), 0, s));
    works.push_back(scatter(g, std::span<int>(both), view(scattered), 1, s));
    works.push_back(all_to_all(g, std::span<int>(both), std::span<int>(swapped), s));
    works.push_back(all_to_all_v(g, std::span<int>(both), std::span<int>(swapped_v), ones, ones, s));
    works.push_back(barrier(g, s));
    works.push_back(send(g, view(mine), other, 1, s));
    works.push_back(recv(g, view(got), other, 1, s));
    for (const auto& w : works) OURO_RANK_OK(w);
    OURO_RANK_OK(s.synchronize());
    for (const auto& w : works) OURO_RANK_CHECK(w->test() && w->status().ok(), "{}", w->status().message());
    OURO_RANK_CHECK(sum == 3 && (r == 0 || root_sum == 6) && part == (r == 0 ? 3 : 30), "{} {} {}", sum,
                    root_sum, part);
    OURO_RANK_CHECK((part_v == (r == 0 ? std::vector{1} : std::vector{21, 41})), "{}", part_v[0]);
    OURO_RANK_CHECK((all == std::vector{1, 2} && all_v == std::vector{7, 8, 9}), "{} {}", all[0], all_v[2]);
    OURO_RANK_CHECK(wide == 5 && (r == 1 || gathered == std::vector{1, 2}) && scattered == (r == 0 ? 2 : 20),
                    "{} {}", wide, scattered);
    OURO_RANK_CHECK((swapped == (r == 0 ? std::vector{1, 2} : std::vector{10, 20}) && swapped_v == swapped),
                    "{}", swapped[1]);
    OURO_RANK_CHECK(got == other + 1, "{}", got);
    return "";
  });
  EXPECT_EQ(outcome, "");
}

/// Handles of streams, work and groups may be destroyed before their work has run.
TEST_P(StreamsOf, HandlesMayBeDestroyedBeforeTheirWorkRuns) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  const std::string outcome = run(GetParam(), 3, [](Context& c) -> std::string {
    std::vector<float> x(10'000, 1);
    const std::span<float> v(x);
    std::atomic<int> told{0};
    for (int turn = 0; turn < 20; ++turn) {
      auto g = c.world().split(0, 0);
      OURO_RANK_OK(g);
      Stream s = made();
      {
        auto w = all_reduce(*g, v, v, ReduceOp::max, s);
        OURO_RANK_OK(w);
        w->then([&](const Status& outcome) { told += outcome.ok(); });
      }
      s = Stream();  // drains
      OURO_RANK_OK(g->close());
    }
    OURO_RANK_CHECK(told == 20, "{}", told.load());
    OURO_RANK_CHECK(x.back() == 1, "{}", x.back());
    // close() drains what is on a stream.
    auto g = c.world().split(0, 0);
    OURO_RANK_OK(g);
    Stream s = made();
    auto w = all_reduce(*g, v, v, ReduceOp::sum, s);
    OURO_RANK_OK(w);
    OURO_RANK_OK(g->close());
    OURO_RANK_OK(w->wait());
    OURO_RANK_CHECK(x.front() == 3, "{}", x.front());
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test
