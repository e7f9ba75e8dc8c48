// A rank of the job that overwrites all shared memory with garbage: its peers get failures and do not crash.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/context/context.h"
#include "runtime/core/link_view.h"
#include "runtime/health/control_page.h"
#include "tests/runtime/failure/harness.h"

namespace ouro::test {
namespace {

/// The words of all shared segments that this process may write.
std::vector<std::span<std::uint64_t>> shared_words() {
  std::vector<std::span<std::uint64_t>> all;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::uint64_t begin = 0, end = 0;
    char dash = 0;
    std::string rights;
    words >> std::hex >> begin >> dash >> end >> rights;
    if (line.find("memfd:ouro") != line.npos && rights.starts_with("rw"))
      all.emplace_back(reinterpret_cast<std::uint64_t*>(begin), (end - begin) / sizeof(std::uint64_t));
  }
  return all;
}

/// Overwrites single words with small values, huge values, or neighbouring words; more often at the
/// beginnings of segments, where counters are.
void scribble(unsigned seed, const Board& board) {
  std::mt19937_64 random(seed);
  const auto memory = shared_words();
  ASSERT_FALSE(memory.empty());
  while (!board.over)
    for (int i = 0; i < 1000; ++i) {
      const std::span<std::uint64_t> words = memory[random() % memory.size()];
      const std::size_t near = i % 2 ? words.size() : std::min<std::size_t>(words.size(), 4096);
      const std::uint64_t values[] = {
          random(),       random() % 256,         ~std::uint64_t{0},
          random() << 32, words[random() % near], std::uint64_t{1} << random() % 64};
      __atomic_store_n(&words[random() % near], values[random() % std::size(values)], __ATOMIC_RELAXED);
    }
}

/// Uses everything that reads what the other rank has written, until an operation fails.
Status use(Context& c, Group& g, std::span<float> registered) {
  for (int i = 0; i < 40; ++i) {
    OURO_TRY(exact_all_reduce(g));
    OURO_TRY(exact_all_reduce(g, 5000, {.algorithm = "ring"}));
    OURO_TRY(exact_all_reduce(g, 50'000));
    OURO_TRY(all_reduce(g, registered, registered));
    float value = 1;
    const int other = 1 - g.rank();
    OURO_TRY(send(g, CView(&value, 1, DType::f32), other));
    OURO_TRY(recv(g, View(&value, 1, DType::f32), other).status());
    auto half = g.split(0, g.rank());
    OURO_TRY(half.status());
    OURO_TRY(barrier(*half));
  }
  return c.world().size() == 2 ? Status() : Status(Reason::invalid, "a group of two has another size");
}

TEST(Hostile, GarbageInSharedMemoryCrashesNoPeer) {
  OURO_NEEDS_PROCESSES();
  Watchdog watchdog(std::chrono::minutes(10));
  const char* const set = std::getenv("TEST_SEEDS");
  const unsigned seeds = set ? static_cast<unsigned>(std::max(std::atoi(set), 1)) : 8;
  int failed = 0;
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    const UniqueId id = new_id();
    Processes ranks(2, [&](int rank, Board& board) {
      InitOptions mine = options(rank, 2, id);
      mine.deadline = 300ms;
      auto c = Context::create(mine);
      ASSERT_TRUE(c.ok()) << c.status().message();
      auto memory = c->alloc(1 << 20);
      ASSERT_TRUE(memory.ok());
      const auto registered = memory->as<float>();
      ASSERT_TRUE(exact_all_reduce(c->world()).ok());
      ASSERT_TRUE(exact_all_reduce(c->world(), 5000, {.algorithm = "ring"}).ok());
      ASSERT_TRUE(all_reduce(c->world(), registered, registered).ok());
      board.stage[rank] = 1;
      if (rank == 1) {
        scribble(seed, board);
        _exit(0);  // cleaning up would use the data that it has overwritten
      }
      const Status s = use(*c, c->world(), registered);
      board.stage[0] = s.ok() ? 2 : 3;
      if (!s.ok()) (void)c->world().shrink().ok();
      (void)c->close().ok();
      board.over = true;
    });
    EXPECT_TRUE(eventually([&] { return ranks.board().over.load(); })) << "seed " << seed;
    failed += ranks.board().stage[0] == 3;
    ranks.join();
    if (HasFailure()) return;
  }
  EXPECT_GT(failed, 0) << "nothing that was written was of any concern";
}

/// Rank 1 takes part correctly, while one of its threads writes `value` to each word whose index modulo
/// `line` is one of `places`, in segments other than control pages. Rank 0 must fail with reason `expected`.
void strike(std::size_t line, const std::vector<std::size_t>& places, std::uint64_t value, Reason expected,
            const std::function<Status(Group&, std::span<float>)>& work) {
  Watchdog watchdog;
  const UniqueId id = new_id();
  Processes ranks(2, [&](int rank, Board& board) {
    auto c = Context::create(options(rank, 2, id));
    ASSERT_TRUE(c.ok()) << c.status().message();
    auto memory = c->alloc(4096);
    ASSERT_TRUE(memory.ok());
    const auto registered = memory->as<float>();
    Status s = work(c->world(), registered);
    ASSERT_TRUE(s.ok()) << s.message();
    board.stage[rank] = 1;  // nothing is overwritten before both ranks have set up
    ASSERT_TRUE(eventually([&] { return board.stage[1 - rank] == 1; }));
    constexpr std::size_t kPageBytes = (sizeof(rt::ControlPage) + 4095) / 4096 * 4096;
    std::thread striker([&] {
      while (rank == 1 && !board.over)
        for (const auto words : shared_words())
          for (std::size_t at = 0; at + line <= words.size() && words.size_bytes() != kPageBytes; at += line)
            for (const std::size_t place : places)
              __atomic_store_n(&words[at + place], value, __ATOMIC_RELAXED);
    });
    for (int i = 0; s.ok() && i < 100'000; ++i) s = work(c->world(), registered);
    if (rank == 0) {
      EXPECT_EQ(s.reason(), expected) << s.message();
      board.over = true;
    }
    striker.join();
    _exit(rank == 0 && testing::Test::HasFailure() ? 1 : 0);
  });
  ranks.join();
}

/// Overwrites the offsets of buffers in arrival records.
TEST(Hostile, OffsetsBeyondMappedMemoryAreRefused) {
  OURO_NEEDS_PROCESSES();
  static_assert(offsetof(Arrival, in.offset) == 88 && offsetof(Arrival, out.offset) == 104);
  strike(16, {11, 13}, std::uint64_t{1} << 40, Reason::ring_corrupt,
         [](Group& g, std::span<float> registered) {
           return all_reduce(g, registered, registered, ReduceOp::max, {.algorithm = "zerocopy"});
         });
}

/// Overwrites sizes and tags in slot headers.
TEST(Hostile, SizesBeyondTheSlotAreRefused) {
  OURO_NEEDS_PROCESSES();
  static_assert(offsetof(SlotHeader, bytes) == 24);
  strike(8, {3}, 0x7fffffff, Reason::ring_corrupt, [](Group& g, std::span<float>) -> Status {
    float value = 1;
    const int other = 1 - g.rank();
    OURO_TRY(send(g, CView(&value, 1, DType::f32), other));
    return recv(g, View(&value, 1, DType::f32), other).status();
  });
}

/// Data that a rank reads from its own page may have been overwritten by another rank.
TEST(Hostile, OverwrittenIndexOnTheOwnPageStaysInBounds) {
  const auto page = std::make_unique<rt::ControlPage>();
  rt::GroupRecord& record = page->groups[0];
  record.key.set(7);
  record.vote.set(1'000'000);
  const rt::VoteRegister* const vote = rt::claim_vote(*page, record);
  EXPECT_TRUE(vote >= page->votes && vote < page->votes + rt::kVotes);
}

/// An error published by a peer counts as an error, whatever its reason.
TEST(Hostile, PublishedErrorWithoutAValidReasonStillFails) {
  Watchdog watchdog;
  for (const int reason : {0, 200}) {
    auto contexts = thread_contexts(2);
    on_threads(2, [&](int rank) {
      Context& c = contexts[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(exact_all_reduce(c.world()).ok());
      if (rank == 0) {
        const Status s = barrier(c.world());
        EXPECT_FALSE(s.ok());
        EXPECT_EQ(s.reason(), Reason::ring_corrupt) << s.message();
        return;
      }
      auto& page = const_cast<rt::ControlPage&>(c.impl()->members().page(rank));
      page.errors[0].reason = static_cast<Reason>(reason);
      for (rt::GroupRecord& record : page.groups)
        if (record.key.get() != 0) record.error.set(1);
    });
  }
}

}  // namespace
}  // namespace ouro::test
