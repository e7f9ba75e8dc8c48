// No leaks of descriptors, threads, mappings and names after many jobs, successful and failed.
#include <malloc.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "tests/runtime/failure/harness.h"
#include "transport/wire/frames.h"

namespace ouro::test {
namespace {

struct Holdings {
  std::ptrdiff_t fds, tasks, segments, maps, names;
  friend bool operator==(const Holdings&, const Holdings&) = default;
};
std::ostream& operator<<(std::ostream& os, const Holdings& h) {
  return os << h.fds << " fds, " << h.tasks << " tasks, " << h.segments << " segments, " << h.maps
            << " maps, " << h.names << " names in /dev/shm";
}

std::ptrdiff_t entries(const char* folder) {
  std::error_code e;
  return std::distance(std::filesystem::directory_iterator(folder, e), std::filesystem::directory_iterator());
}

Holdings holdings() {
  Holdings h{entries("/proc/self/fd"), entries("/proc/self/task"), 0, 0, 0};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line); ++h.maps) h.segments += has(line, "memfd:ouro");
  std::error_code e;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", e))
    h.names += has(entry.path().filename(), "ouro");
  return h;
}

/// Runs one job that uses a bit of everything.
void cycle(bool fails) {
  auto contexts = thread_contexts(3);
  on_threads(3, [&](int rank) {
    Context& c = contexts[static_cast<std::size_t>(rank)];
    Group& g = c.world();
    auto stream = Stream::create();
    auto memory = c.alloc(1 << 16);
    ASSERT_TRUE(stream.ok() && memory.ok());
    EXPECT_TRUE(exact_all_reduce(g).ok());
    EXPECT_TRUE(exact_all_reduce(g, 5000, {.algorithm = "ring"}).ok());
    const auto mine = memory->as<float>();
    EXPECT_TRUE(all_reduce(g, mine, mine).ok());
    int value = rank;
    EXPECT_TRUE(send(g, CView(&value, 1, DType::i32), (rank + 1) % 3).ok());
    EXPECT_TRUE(recv(g, View(&value, 1, DType::i32), (rank + 2) % 3).ok());
    auto half = g.split(rank % 2, rank);
    ASSERT_TRUE(half.ok());
    auto work = barrier(*half, *stream);
    ASSERT_TRUE(work.ok());
    EXPECT_TRUE(work->wait().ok());
    if (fails) {
      EXPECT_FALSE(exact_all_reduce(g, rank == 1 ? 3 : 4).ok());
      auto next = g.shrink();
      ASSERT_TRUE(next.ok());
      EXPECT_TRUE(exact_all_reduce(*next).ok());
    }
    if (rank != 2) {
      EXPECT_TRUE(c.close().ok());  // the last rank ends without close()
    }
  });
}

TEST(Leaks, NoneAfterFiftyJobs) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "under a sanitizer: it has threads and mappings of its own";
#endif
  Watchdog watchdog(40s);
  mallopt(M_ARENA_MAX, 1);  // so that the allocator's own mappings stay constant
  for (int i = 0; i < 5; ++i) cycle(i % 2 == 1);
  // A joined thread may still be listed for a moment.
  Holdings before = holdings();
  EXPECT_TRUE(eventually([&] { return (before = holdings()).tasks == 2; }))
      << before;  // this one and the watchdog
  EXPECT_EQ(before.segments, 0);
  for (int i = 0; i < 50; ++i) cycle(i % 10 == 9);
  Holdings after{};
  EXPECT_TRUE(eventually([&] { return (after = holdings()) == before; }))
      << "before: " << before << "; after: " << after;
}

/// Ranks are killed at any moment, also while they join: no file name and no socket name is left.
TEST(Leaks, NothingIsLeftOfKilledJobs) {
  OURO_NEEDS_PROCESSES();
  Watchdog watchdog;
  const std::ptrdiff_t names = holdings().names;  // names left by other programs do not count
  for (int i = 0; i < 12; ++i) {
    const UniqueId id = new_id();
    Processes ranks(3, [&](int rank, Board& board) {
      board.stage[rank] = 1;
      auto c = Context::create(options(rank, 3, id));
      if (c.ok()) {
        auto memory = c->alloc(1 << 16);
        while (exact_all_reduce(c->world()).ok()) board.stage[rank] = 2;
      }
      for (;;) pause();  // it waits to be killed, whatever it has noticed of other deaths
    });
    EXPECT_TRUE(ranks.all_reach(i % 3 == 0 ? 1 : 2));
    std::this_thread::sleep_for(std::chrono::milliseconds(i));
    ranks.kill({0, 1, 2});
    ranks.join({0, 1, 2});
    wire::Nonce job;
    std::memcpy(job.data(), id.bytes + 8, job.size());  // after the magic
    std::ifstream sockets("/proc/net/unix");
    const std::string all{std::istreambuf_iterator<char>(sockets), {}};
    EXPECT_FALSE(all.empty());
    EXPECT_FALSE(has(all, wire::hex(job))) << "a socket of the job";
  }
  EXPECT_LE(holdings().names, names);
}

}  // namespace
}  // namespace ouro::test
