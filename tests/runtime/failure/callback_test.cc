// Groups and contexts that end inside a callback, on the thread of the stream that has their operations.
#include <future>
#include <memory>
#include <optional>

#include "ouro/ouro.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

/// Rank 0 of two; rank 1 is another thread. Rank 0 enqueues an operation with the test's callback on a
/// stream, and two more after it. All are queued before the first can run.
class Queued {
 public:
  /// `group_of`: returns the group of a rank.
  explicit Queued(const std::function<Group&(int)>& group_of) {
    auto made = Stream::create();
    EXPECT_TRUE(made.ok());
    stream = *made;
    (void)stream.run([opened = gate_.get_future().share()] {
      opened.wait();
      return Status{};
    });
    Group& mine = group_of(0);
    for (auto& data : data_) {
      auto work = all_reduce(mine, std::span<float>(data), std::span<float>(data), ReduceOp::sum, stream);
      EXPECT_TRUE(work.ok()) << work.status().message();
      works.push_back(*work);
    }
    peer_ = std::async(std::launch::async, [&theirs = group_of(1)] {
      std::vector<Status> outcomes;
      std::vector<float> data(100, 1);
      const std::span<float> all(data);
      for (int k = 0; k < 3; ++k) outcomes.push_back(all_reduce(theirs, all, all));
      return outcomes;
    });
  }
  /// Runs `f` in the callback and returns the outcomes on rank 1, after all operations have ended.
  std::vector<Status> then(std::function<void()> f) {
    works[0].then([this, f = std::move(f)](const Status& s) {
      EXPECT_TRUE(s.ok()) << s.message();
      f();
      called_.set_value();
    });
    gate_.set_value();
    EXPECT_EQ(called_.get_future().wait_for(kHang), std::future_status::ready) << "the callback hangs";
    for (Work& w : works) (void)w.wait(kHang);
    for (const Work& w : works) EXPECT_TRUE(w.test()) << "an operation has not ended";
    return peer_.get();
  }

  Stream stream;
  std::vector<Work> works;

 private:
  std::vector<std::vector<float>> data_{3, std::vector<float>(100, 1)};
  std::promise<void> gate_, called_;
  std::future<std::vector<Status>> peer_;
};

/// Operations queued after the callback end as revoked here and on the other rank, within a second.
void expect_revoked(Queued& q, const std::vector<Status>& theirs) {
  EXPECT_TRUE(q.works[0].status().ok());
  EXPECT_THAT(q.works[1].status(), Fails(Reason::revoked));
  EXPECT_THAT(q.works[2].status(), Fails(Reason::revoked));
  ASSERT_EQ(theirs.size(), 3u);
  EXPECT_TRUE(theirs[0].ok()) << theirs[0].message();
  EXPECT_THAT(theirs[1], Fails(Reason::revoked, 0));
  EXPECT_THAT(theirs[2], Fails(Reason::revoked, 0));
}

struct Pair {
  std::vector<Context> contexts = thread_contexts(2);
  std::optional<Group> groups[2];
  Pair() {
    const int all[] = {0, 1};
    for (std::size_t r = 0; r < 2; ++r) groups[r].emplace(std::move(*contexts[r].group(all, "g")));
  }
  std::function<Group&(int)> group() {
    return [this](int r) -> Group& { return *groups[r]; };
  }
  std::function<Group&(int)> world() {
    return [this](int r) -> Group& { return contexts[static_cast<std::size_t>(r)].world(); };
  }
};

TEST(TimedCallback, DestroyingItsGroupRevokesQueuedOperations) {
  Watchdog watchdog;
  Pair pair;
  Queued q(pair.group());
  const auto start = now_ns();
  const auto theirs = q.then([&] { pair.groups[0].reset(); });
  EXPECT_LT(std::chrono::nanoseconds(now_ns() - start), 2 * kHardBound);
  expect_revoked(q, theirs);
  EXPECT_TRUE(q.stream.run([] { return Status{}; }).wait(kHang).ok()) << "the stream goes on";
  on_threads(2, [&](int r) {
    EXPECT_TRUE(exact_all_reduce(pair.contexts[static_cast<std::size_t>(r)].world()).ok());
  });
}

TEST(Callback, DestroyingItsGroupAndStreamRevokesQueuedOperations) {
  Watchdog watchdog;
  Pair pair;
  auto q = std::make_unique<Queued>(pair.group());
  const auto theirs = q->then([&] {
    q->stream = Stream();
    pair.groups[0].reset();
  });
  expect_revoked(*q, theirs);
}

TEST(Callback, DestroyingItsContextRevokesQueuedOperations) {
  Watchdog watchdog;
  for (const bool used_world : {true, false}) {
    Pair pair;
    Queued q(used_world ? pair.world() : pair.group());
    const auto theirs = q.then([&] {
      if (!used_world) pair.groups[0].reset();
      pair.contexts[0] = Context();
    });
    expect_revoked(q, theirs);
  }
}

TEST(Callback, CInterfaceMayDestroyGroupAndContext) {
  Watchdog watchdog;
  for (const bool whole_context : {false, true}) {
    ouro_context_t contexts[2];
    ASSERT_EQ(ouro_context_threads(2, nullptr, contexts), 0) << ouro_last_error();
    ouro_group_t groups[2];
    const int all[] = {0, 1};
    for (int r = 0; r < 2; ++r)
      ASSERT_EQ(ouro_context_group(contexts[r], all, 2, "g", nullptr, &groups[r]), 0) << ouro_last_error();
    ouro_stream_t stream = nullptr;
    ASSERT_EQ(ouro_stream_create(OURO_PRIORITY_NORMAL, nullptr, &stream), 0);
    float data[3] = {1, 1, 1};
    ouro_work_t works[3];
    for (int k = 0; k < 3; ++k)
      ASSERT_EQ(ouro_all_reduce(groups[0], &data[k], &data[k], 1, OURO_DTYPE_F32, ouro_op(OURO_OP_SUM),
                                nullptr, stream, &works[k]),
                0);
    struct Last {
      ouro_context_t context;
      ouro_group_t group;
      bool whole_context;
      std::promise<void> called;
    } last{contexts[0], groups[0], whole_context, {}};
    const auto destroy = [](int, const char*, void* argument) {
      auto& l = *static_cast<Last*>(argument);
      EXPECT_EQ(ouro_group_destroy(l.group), 0);
      if (l.whole_context) ouro_context_destroy(l.context);
      l.called.set_value();
    };
    ASSERT_EQ(ouro_work_then(works[0], destroy, &last), 0);
    float theirs = 1;
    EXPECT_EQ(ouro_all_reduce(groups[1], &theirs, &theirs, 1, OURO_DTYPE_F32, ouro_op(OURO_OP_SUM), nullptr,
                              nullptr, nullptr),
              0)
        << ouro_last_error();
    EXPECT_EQ(last.called.get_future().wait_for(kHang), std::future_status::ready) << "the callback hangs";
    for (int k = 0; k < 3; ++k) {
      const int code = ouro_work_wait(works[k], 10'000);
      EXPECT_EQ(code, static_cast<int>(k == 0 ? Code::ok : Code::aborted)) << ouro_last_error();
      ouro_work_destroy(works[k]);
    }
    ouro_stream_destroy(stream);
    ouro_group_destroy(groups[1]);
    if (!whole_context) ouro_context_destroy(contexts[0]);
    ouro_context_destroy(contexts[1]);
  }
}

/// These calls would wait for operations that cannot start before they return: they are refused, and the
/// group stays usable.
TEST(Callback, ClosingOrShrinkingIsRefused) {
  Watchdog watchdog;
  Pair pair;
  Queued q(pair.group());
  Status closed, shrunk;
  const auto theirs = q.then([&] {
    closed = pair.groups[0]->close();
    shrunk = pair.groups[0]->shrink().status();
  });
  EXPECT_THAT(closed, Fails(Reason::invalid));
  EXPECT_TRUE(has(closed.message(), "stream")) << closed.message();
  EXPECT_THAT(shrunk, Fails(Reason::invalid));
  for (const Work& w : q.works) EXPECT_TRUE(w.status().ok()) << w.status().message();
  for (const Status& s : theirs) EXPECT_TRUE(s.ok()) << s.message();
  on_threads(2, [&](int r) {
    EXPECT_TRUE(exact_all_reduce(*pair.groups[r]).ok());
    EXPECT_TRUE(pair.groups[r]->close().ok());
  });
}

TEST(Callback, ClosingAContextIsRefused) {
  Watchdog watchdog;
  Pair pair;
  Queued q(pair.world());
  Status closed;
  const auto theirs = q.then([&] { closed = pair.contexts[0].close(); });
  EXPECT_THAT(closed, Fails(Reason::invalid));
  EXPECT_TRUE(pair.contexts[0].active());
  for (const Status& s : theirs) EXPECT_TRUE(s.ok()) << s.message();
  EXPECT_TRUE(pair.contexts[0].close().ok());
}

/// With nothing queued, there is nothing to wait for, so these calls succeed.
TEST(Callback, LastOperationMayCloseOrDestroyItsGroup) {
  Watchdog watchdog;
  for (const bool close : {true, false}) {
    Pair pair;
    auto stream = Stream::create();
    ASSERT_TRUE(stream.ok());
    std::promise<Status> ended;
    std::vector<float> mine(10, 1), theirs(10, 1);
    const std::span<float> in(mine), other(theirs);
    std::promise<void> gate;
    (void)stream->run([opened = gate.get_future().share()] {
      opened.wait();
      return Status{};
    });
    auto work = all_reduce(*pair.groups[0], in, in, ReduceOp::sum, *stream);
    ASSERT_TRUE(work.ok());
    work->then([&](const Status& s) {
      Status outcome = s;
      if (close && s.ok()) outcome = pair.groups[0]->close();
      if (!close) pair.groups[0].reset();
      ended.set_value(outcome);
    });
    gate.set_value();
    EXPECT_TRUE(all_reduce(*pair.groups[1], other, other).ok());
    auto said = ended.get_future();
    ASSERT_EQ(said.wait_for(kHang), std::future_status::ready) << "the callback hangs";
    const Status outcome = said.get();
    EXPECT_TRUE(outcome.ok()) << outcome.message();
    EXPECT_EQ(mine[0], 2);
  }
}

/// Other threads destroy groups at the moment when the last operation ends; for the sanitizers.
TEST(Callback, GroupMayBeDestroyedAsItsLastOperationEnds) {
  Watchdog watchdog(60s);
  auto contexts = thread_contexts(2);
  const int all[] = {0, 1};
  for (int turn = 0; turn < 100; ++turn) {
    std::optional<Group> groups[2];
    for (std::size_t r = 0; r < 2; ++r) groups[r].emplace(std::move(*contexts[r].group(all, "g")));
    on_threads(2, [&](int r) {
      auto stream = Stream::create();
      ASSERT_TRUE(stream.ok());
      float x = 1;
      auto work =
          all_reduce(*groups[r], CView(&x, 1, DType::f32), View(&x, 1, DType::f32), ReduceOp::sum, *stream);
      groups[r].reset();
      if (!work.ok()) return;  // the other rank has already ended the group
      (void)work->wait(kHang);
      EXPECT_TRUE(work->test());
    });
  }
}

}  // namespace
}  // namespace ouro::test
