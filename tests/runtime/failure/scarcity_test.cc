// A rank that runs out of memory or threads anywhere in a call: no other rank waits for it, and it
// reports `resource`.
#include "tests/runtime/failure/scarcity.h"

#include <array>
#include <string_view>

#include "kernels/device/fake/fake_gpu.h"
#include "kernels/device/gpu.h"
#include "runtime/core/no_memory.h"
#include "runtime/stream/gpu_stream.h"
#include "tests/runtime/failure/harness.h"
#include "tests/runtime/failure/two_hosts.h"

namespace ouro::test {
namespace {

constexpr int kMost = 2000;  // allocations in one call; there are far fewer

/// The result of a call on one rank: the outcome, and whether an allocation was refused.
struct Tried {
  Status outcome;
  bool refused = false;
};
using Try = std::function<Tried(Context&, Group&, int n)>;

/// Runs the call on the calling thread, which is refused its n-th allocation; n < 0: none.
Tried starve(int n, const std::function<Status()>& call) {
  if (n >= 0) refuse_memory(n);
  Tried t;
  try {
    t.outcome = call();
  } catch (const std::exception& e) {
    (void)allow_memory();
    ADD_FAILURE() << "allocation " << n << ": an exception crosses the interface: " << e.what();
  }
  if (n >= 0) t.refused = allow_memory();
  return t;
}

/// Rank 1 is refused each allocation of the call in turn, each time in a new group, until the call makes
/// fewer. Either the call succeeds on both ranks, or it fails on both soon; if `sticks`, the error is sticky.
void each_allocation(const Try& call, bool sticks = true, bool two_hosts = false) {
  Watchdog watchdog(4 * kHang);
  InitOptions o;
  o.deadline = kHang;
  const auto join = [&] { return two_hosts ? TwoHosts::contexts() : thread_contexts(2, o); };
  auto contexts = join();
  int refusals = 0, failures = 0;
  for (int n = 0; n < kMost; ++n) {
    if (n % 100 == 99) contexts = join();  // a rank can publish only 128 errors
    std::array<Tried, 2> tried;
    std::array<Status, 2> later;
    const auto start = Clock::now();
    on_threads(2, [&](int rank) {
      const auto i = static_cast<std::size_t>(rank);
      const int both[] = {0, 1};
      auto g = contexts[i].group(both, "scarce");
      ASSERT_TRUE(g.ok()) << g.status().message();
      tried[i] = call(contexts[i], *g, rank == 1 ? n : -1);
      later[i] = exact_all_reduce(*g);
    });
    if (testing::Test::HasFailure()) return;
    ASSERT_LT(Clock::now() - start, kHang) << "allocation " << n << ": " << tried[0].outcome.message();
    for (const Status& s : {tried[0].outcome, tried[1].outcome, later[0], later[1]})
      ASSERT_THAT(s, testing::AnyOf(Fails(Reason::none), Fails(Reason::resource))) << "allocation " << n;
    ASSERT_EQ(later[0].ok(), later[1].ok()) << "allocation " << n;
    if (sticks) {
      ASSERT_EQ(later[0].ok(), tried[1].outcome.ok()) << "allocation " << n << ": " << later[0].message();
    }
    if (!tried[1].refused) {
      ASSERT_TRUE(tried[1].outcome.ok()) << tried[1].outcome.message();
      ASSERT_GT(refusals, 0) << "the call allocates nothing";
      ASSERT_GT(failures, 0) << "no refusal has had a consequence";
      return;
    }
    ++refusals;
    failures += !tried[1].outcome.ok();
  }
  ADD_FAILURE() << "the call has no end of allocations";
}

struct Words {
  std::vector<std::int32_t> in = std::vector<std::int32_t>(300, 1);
  std::vector<std::int32_t> out = std::vector<std::int32_t>(600);
  std::span<const std::int32_t> part(std::size_t k) const { return std::span(in).subspan(100 * k, 100); }
  std::span<std::int32_t> room(std::size_t k) { return std::span(out).subspan(100 * k, 100); }
};

TEST(NoMemoryFailsCleanly, InACall) {
  each_allocation([](Context&, Group& g, int n) {
    Words w;
    return starve(n, [&] { return all_reduce(g, w.part(0), w.room(0)); });
  });
}

TEST(NoMemoryFailsCleanly, InACallBetweenHosts) {
  each_allocation(
      [](Context&, Group& g, int n) {
        Words w;
        return starve(n, [&] { return all_reduce(g, w.part(0), w.room(0)); });
      },
      true, true);
}

TEST(NoMemoryFailsCleanly, InAnUnevenCall) {
  const std::size_t counts[] = {100, 200};
  each_allocation([&](Context&, Group& g, int n) {
    Words w;
    const auto mine = std::span<const std::int32_t>(w.in).first(counts[g.rank()]);
    return starve(n, [&] { return all_gather_v(g, mine, std::span(w.out).first(300), counts); });
  });
}

TEST(NoMemoryFailsCleanly, WhenACallIsEnqueuedOnAStream) {
  each_allocation([](Context&, Group& g, int n) {
    Words w;
    auto stream = Stream::create();
    Result<Work> work = invalid("not called");
    Tried t = starve(n, [&] {
      work = all_reduce(g, w.part(0), w.room(0), ReduceOp::sum, *stream);
      return work.status();
    });
    if (work.ok()) t.outcome = work->wait();
    return t;
  });
}

TEST(NoMemoryFailsCleanly, OnTheThreadOfAStream) {
  each_allocation([](Context&, Group& g, int n) {
    Words w;
    Tried t;
    auto stream = Stream::create();
    if (n >= 0) (void)stream->run([n] { return refuse_memory(n), Status(); });
    auto work = all_reduce(g, w.part(0), w.room(0), ReduceOp::sum, *stream);
    auto end = stream->run([&] { return t.refused = n >= 0 && allow_memory(), Status(); });
    t.outcome = work.ok() ? work->wait() : work.status();
    EXPECT_TRUE(end.wait().ok());
    return t;
  });
}

TEST(NoMemoryFailsCleanly, InABatchThatRunsAsOne) {
  each_allocation([](Context&, Group& g, int n) {
    Words w;
    return starve(n, [&]() -> Status {
      group_start();
      for (const std::size_t k : {0, 1, 2}) (void)all_reduce(g, w.part(k), w.room(k)).ok();
      return group_end();
    });
  });
}

/// Rank 1 cannot run the operations as one, so they are planned again, one by one.
TEST(NoMemoryFailsCleanly, InABatchThatRunsOneByOne) {
  each_allocation([](Context&, Group& g, int n) {
    Words w;
    return starve(n, [&]() -> Status {
      group_start();
      for (const std::size_t k : {0, 1, 2})
        (void)all_reduce(g, w.part(k), g.rank() == 1 ? w.room(0) : w.room(k)).ok();
      return group_end();
    });
  });
}

/// A message that could not be posted has no effect; any other failure fails the group.
void starve_messages(bool two_hosts) {
  for (const bool starved_sends : {true, false}) {
    each_allocation(
        [&](Context&, Group& g, int n) {
          std::vector<std::int32_t> words(20'000, 5);
          const auto message = [&]() -> Status {
            if ((g.rank() == 1) == starved_sends)
              return send(g, std::span<const std::int32_t>(words), 1 - g.rank());
            return recv(g, std::span(words), 1 - g.rank(), 0, kHang).status();
          };
          Tried t = starve(n, message);
          if (t.refused && !t.outcome.ok() && g.status().ok()) t.outcome = message();  // retries
          return t;
        },
        true, two_hosts);
  }
}

TEST(NoMemoryFailsCleanly, WhenMessagesAreExchanged) { starve_messages(false); }
TEST(NoMemoryFailsCleanly, WhenMessagesAreExchangedBetweenHosts) { starve_messages(true); }

/// Groups and memory that ranks create together: no exception, and no rank waits for a rank without memory.
TEST(NoMemoryFailsCleanly, WhenAGroupIsSplit) {
  each_allocation([](Context&, Group& g,
                     int n) { return starve(n, [&]() -> Status { return g.split(0, g.rank()).status(); }); },
                  false);
}

TEST(NoMemoryFailsCleanly, WhenAGroupIsCreated) {
  each_allocation(
      [](Context& c, Group&, int n) {
        const int both[] = {0, 1};
        return starve(n, [&]() -> Status { return c.group(both, "again").status(); });
      },
      false);
}

TEST(NoMemoryFailsCleanly, WhenSharedMemoryIsAllocated) {
  each_allocation([](Context&, Group& g, int n) {
    return starve(n, [&]() -> Status { return g.alloc_shared(5000).status(); });
  });
}

TEST(NoMemoryFailsCleanly, WhenAMatchedMessageIsReceived) {
  each_allocation(
      [](Context&, Group& g, int n) {
        std::vector<std::int32_t> words(100, 5);
        if (g.rank() == 0) return Tried{send(g, std::span<const std::int32_t>(words), 1), false};
        std::optional<Matched> found;
        Tried t = starve(n, [&]() -> Status {
          const auto end = Clock::now() + kHang;
          while (!found && Clock::now() < end) {
            auto m = match(g, 0);
            OURO_TRY(m.status());
            found = *m;
          }
          return recv(g, *found, std::span(words)).status();
        });
        found.reset();
        if (!t.outcome.ok() && g.status().ok()) t.outcome = recv(g, std::span(words), 0).status();
        return t;
      },
      false);
}

/// On the staged path through the host, and on a path where the GPU's own operation has the group's turn.
class NoMemoryOnGpus : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
    setenv("OURO_GPU_PATH", GetParam(), 1);
  }
  void TearDown() override { unsetenv("OURO_GPU_PATH"); }
};
INSTANTIATE_TEST_SUITE_P(All, NoMemoryOnGpus, testing::Values("leader", "stream", "staged"),
                         [](const auto& info) { return info.param; });

TEST_P(NoMemoryOnGpus, EnqueuingACallFailsCleanly) {
  each_allocation([](Context& c, Group& g, int n) {
    auto memory = c.alloc(4000, c.device());
    auto stream = Stream::create(c.device());
    if (!memory.ok() || !stream.ok()) return Tried{memory.status(), false};
    const View v(memory->data(), 1000, DType::i32, c.device());
    Result<Work> work = invalid("not called");
    Tried t = starve(n, [&] {
      work = all_reduce(g, v, v, ReduceOp::max, *stream);
      return work.status();
    });
    if (work.ok()) t.outcome = work->wait();
    (void)stream->synchronize().ok();
    return t;
  });
}

class NoMemoryOnAStagedPath : public NoMemoryOnGpus {};
INSTANTIATE_TEST_SUITE_P(All, NoMemoryOnAStagedPath, testing::Values("staged"),
                         [](const auto& info) { return info.param; });

TEST_P(NoMemoryOnAStagedPath, HostThreadOfTheStreamFailsCleanly) {
  each_allocation([](Context& c, Group& g, int n) {
    auto memory = c.alloc(4000, c.device());
    auto stream = Stream::create(c.device());
    if (!memory.ok() || !stream.ok()) return Tried{memory.status(), false};
    const View v(memory->data(), 1000, DType::i32, c.device());
    Tried t;
    if (n >= 0) (void)stream->run([n] { return refuse_memory(n), Status(); });
    auto work = all_reduce(g, v, v, ReduceOp::max, *stream);
    auto end = stream->run([&] { return t.refused = n >= 0 && allow_memory(), Status(); });
    t.outcome = work.ok() ? work->wait() : work.status();
    EXPECT_TRUE(end.wait().ok());
    (void)stream->synchronize().ok();
    return t;
  });
}

/// A partly enqueued function does not disturb a later stream whose functions would share a word with it.
TEST(NoMemoryOnAStream, LeavesLaterStreamsInOrder) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  Watchdog watchdog;
  auto pinned = rt::take_pinned(2 * sizeof(int));
  ASSERT_TRUE(pinned.ok());
  int* const words = static_cast<int*>(pinned->get());
  for (int n = 0, refused = 1; refused != 0; ++n) {
    {
      auto stream = rt::GpuStream::create(0, 0);
      ASSERT_TRUE(stream.ok());
      const auto enqueue = [&]() -> Status {
        try {
          auto work = (*stream)->enqueue([] { return Status(); });
          return work->done() ? work->outcome() : Status();
        } catch (const std::bad_alloc&) {
          return no_memory();
        }
      };
      refused = starve(n, enqueue).refused;
      ASSERT_TRUE(gpu::gpu().synchronize((*stream)->get()).ok());
      std::this_thread::sleep_for(1ms);  // anything that runs all the same has run by now
    }
    auto stream = rt::GpuStream::create(0, 0);
    ASSERT_TRUE(stream.ok());
    words[0] = words[1] = 0;
    auto work = (*stream)->enqueue([&] {
      std::this_thread::sleep_for(2ms);
      words[0] = 7;
      return Status();
    });
    ASSERT_TRUE(gpu::gpu().copy(words + 1, words, sizeof(int), (*stream)->get()).ok());
    ASSERT_TRUE(gpu::gpu().synchronize((*stream)->get()).ok());
    EXPECT_EQ(words[1], 7) << "after the refusal of allocation " << n;
    work->wait();
  }
}

/// A batch over two groups needs a thread for each of them. Rank 1 cannot start any.
TEST(NoThread, BatchOfTwoGroupsFailsWithResource) {
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  on_threads(2, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    const int both[] = {0, 1};
    auto a = c.group(both, "a"), b = c.group(both, "b");
    ASSERT_TRUE(a.ok() && b.ok());
    Words w;
    std::vector<Status> said;
    const auto batch = [&] {
      group_start();
      for (Group* g : {&*a, &*b}) (void)all_reduce(*g, w.part(0), w.room(g == &*b)).ok();
      said.push_back(group_end());
    };
    if (rank == 1) {
      const NoThreads none;
      batch();
      EXPECT_GT(none.refused(), 0);
    } else {
      batch();
    }
    EXPECT_THAT(said[0], Fails(Reason::resource));
    EXPECT_TRUE(exact_all_reduce(c.world()).ok());
  });
}

/// A group on a GPU that fails releases its streams' waits from a thread. If none can be started, the caller
/// that waits for the group's end does it.
TEST(NoThread, WaitingCallerReleasesTheStreams) {
  if (gpu::gpu().devices() == 0) GTEST_SKIP() << "no CUDA device";
  // The host sets the words: a stream of an emulated device, which sets those in device memory, needs a
  // thread.
  if (std::string_view(gpu::gpu().name()) == "fake")
    gpu::install(new gpu::FakeGpu({.device_words = false}));  // never destroyed, like other emulated devices
  Watchdog watchdog;
  auto contexts = thread_contexts(2);
  Context& c = contexts[0];
  const int both[] = {0, 1};
  auto made = c.group(both, "late"), there = contexts[1].group(both, "late");
  ASSERT_TRUE(made.ok() && there.ok());
  auto memory = c.alloc(4000, c.device());
  auto stream = Stream::create(c.device());
  ASSERT_TRUE(memory.ok() && stream.ok());
  const View v(memory->data(), 1000, DType::f32, c.device());
  auto work = all_reduce(*made, v, v, ReduceOp::max, *stream);  // rank 1 never takes part
  ASSERT_TRUE(work.ok()) << work.status().message();
  {
    const NoThreads none(NoThreads::For::all);
    { const Group goes = std::move(*made); }
    EXPECT_GT(none.refused(), 0);
  }
  EXPECT_THAT(work->wait(), Fails(Reason::revoked));
  EXPECT_TRUE(stream->synchronize().reason() == Reason::revoked);
}

/// A callback that throws does not end the thread of its stream, which has more operations queued.
TEST(Callback, ExceptionDoesNotEndTheStreamsThread) {
  Watchdog watchdog;
  auto stream = Stream::create();
  ASSERT_TRUE(stream.ok());
  std::atomic<bool> go{false};
  auto first = stream->run([&] { return eventually([&] { return go.load(); }), Status(); });
  first.then([](const Status&) { throw std::runtime_error("of the user's"); });
  auto second = stream->run([] { return Status(); });
  go = true;
  EXPECT_TRUE(second.wait(kHang).ok());
}

}  // namespace
}  // namespace ouro::test
