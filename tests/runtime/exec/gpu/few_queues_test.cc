// Processes with one rank each whose streams share one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1, as some
// trainers set it): whatever waits for another process in one stream does not hold up work of another stream.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/device/fake/fake_gpu.h"
#include "runtime/exec/gpu/gpu_path.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

/// A stream with work that the other rank waits for.
struct Producer {
  Stream stream;
  std::uint32_t* word = nullptr;
  void make(Context& c) {
    auto s = Stream::create(c.device());
    auto memory = gpu::gpu().alloc_pinned(sizeof *word);
    ASSERT_TRUE(s.ok() && memory.ok());
    stream = *s;
    word = static_cast<std::uint32_t*>(std::memset(*memory, 0, sizeof *word));
  }
  /// Returns once the device has done the work.
  void run() {
    const gpu::MemOp set{gpu::MemOp::Kind::write, 1, word};
    ASSERT_TRUE(gpu::gpu().enqueue({&set, 1}, {stream.device().index, stream.cuda_handle()}).ok());
    ASSERT_TRUE(eventually([&] { return std::atomic_ref(*word).load() == 1; }))
        << "it is held up by a stream that waits";
  }
};

/// What each rank does: one operation in `stream` on `data`, which holds 1 on rank 0 and 2 on rank 1.
struct Case {
  const char* name;
  bool one_gpu, reach;
  const char* path;
  Result<Work> (*operate)(Context&, int rank, View data, Stream&);
  float result;  ///< on rank 0
  std::size_t count;
};

Result<Work> sum(Context& c, int, View v, Stream& s) { return all_reduce(c.world(), v, v, ReduceOp::sum, s); }
Result<Work> message(Context& c, int rank, View v, Stream& s) {
  return rank == 0 ? recv(c.world(), v, 1, 0, s) : send(c.world(), v, 0, 0, s);
}
Result<Work> function(Context& c, int, View, Stream& s) {
  return s.run([&c] { return barrier(c.world()); });
}

class FewQueuesChoice : public testing::Test {
 protected:
  void SetUp() override {
    OURO_NEEDS_FAKES();
    OURO_NEEDS_PROCESSES();
  }
};
class FewQueues : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    OURO_NEEDS_FAKES();
    OURO_NEEDS_PROCESSES();
  }
};
constexpr std::size_t kSmall = 3000, kPieces = 7 << 20;  // elements; staged in one piece and in several
INSTANTIATE_TEST_SUITE_P(All, FewQueues,
                         testing::Values(Case{"message", false, true, "", message, 2, kSmall},
                                         Case{"message_on_one_gpu", true, true, "", message, 2, kSmall},
                                         Case{"resident", false, true, "resident", sum, 3, kSmall},
                                         Case{"staged", false, false, "staged", sum, 3, kSmall},
                                         Case{"staged_large", false, false, "staged", sum, 3, kPieces},
                                         Case{"one_gpu", true, true, "staged", sum, 3, kSmall},
                                         Case{"function", false, true, "", function, 1, kSmall}),
                         [](const auto& info) { return info.param.name; });

/// Rank 0 enqueues its operation, and then the work for which rank 1 waits before it takes part.
TEST_P(FewQueues, WorkOfAnotherStreamIsNotHeldUp) {
  const Case& test = GetParam();
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(2, [&](int rank, Board& board) {
    gpu::FakeOptions fakes{.devices = 2, .multiprocessors = 16, .harsh = {.connections = 1}};
    if (!test.reach) fakes.peer = [](int, int) { return false; };
    gpu::install(new gpu::FakeGpu(std::move(fakes)));
    InitOptions o = options(rank, 2, id);
    o.gpu = test.one_gpu ? 0 : rank;
    auto c = Context::create(o);
    ASSERT_TRUE(c.ok()) << c.status().message();
    Floats data;
    ASSERT_TRUE(data.make(*c, test.count).ok() && data.fill(static_cast<float>(rank + 1)).ok());
    auto stream = Stream::create(c->device());
    ASSERT_TRUE(stream.ok());
    Producer other;
    other.make(*c);
    ASSERT_TRUE(rank == 0 || eventually([&] { return board.stage[0] == 1; }));
    auto w = test.operate(*c, rank, data.view(), *stream);
    ASSERT_TRUE(w.ok()) << w.status().message();
    if (rank == 0) {
      other.run();
      board.stage[0] = 1;
    }
    EXPECT_TRUE(w->wait().ok()) << w->wait().message();
    EXPECT_EQ(data.expect(rank == 0 || test.operate == sum ? test.result : 2), "");
    if (*test.path) {
      EXPECT_EQ(only_ran(c->world(), test.path), "");
    }
    ASSERT_TRUE(barrier(c->world()).ok());
  });
  ranks.join();
}

/// A path whose streams wait is not chosen, and refused by name.
TEST_F(FewQueuesChoice, PathsWhoseStreamsWaitAreRefused) {
  Watchdog watchdog;
  for (const char* path : {"leader", "copies", "stream"}) {
    const ForcedPath forced(path);
    const UniqueId id = new_id();
    const bool one_gpu = path == std::string("leader");
    Processes ranks(2, [&](int rank, Board&) {
      gpu::install(new gpu::FakeGpu({.devices = 2, .multiprocessors = 16, .harsh = {.connections = 3}}));
      InitOptions o = options(rank, 2, id);
      o.gpu = one_gpu ? 0 : rank;
      auto c = Context::create(o);
      ASSERT_TRUE(c.ok()) << c.status().message();
      Floats data;
      ASSERT_TRUE(data.make(*c, kSmall).ok());
      const View v = data.view();
      const Status s = broadcast(c->world(), v, v, 0);
      EXPECT_THAT(s, Fails(Reason::unsupported));
      EXPECT_TRUE(has(s.message(), "CUDA_DEVICE_MAX_CONNECTIONS")) << s.message();
      EXPECT_TRUE(has(s.message(), one_gpu ? "these can: staged" : "these can: resident, staged"))
          << s.message();
      ASSERT_TRUE(barrier(c->world()).ok());
    });
    ranks.join();
  }
}

}  // namespace
}  // namespace ouro::test
