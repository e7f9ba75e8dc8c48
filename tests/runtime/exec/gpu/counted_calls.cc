// Counts what ranks call. See counted_calls.h.
#include "tests/runtime/exec/gpu/counted_calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/runtime/failure/harness.h"

namespace ouro::test {

// Never destroyed: pools of the process keep events.
gpu::FakeGpu& CountedGpus::devices() {
  static auto* const devices = new gpu::FakeGpu({.devices = 8, .multiprocessors = 16});
  return *devices;
}
gpu::CountingGpu& CountedGpus::counting() {
  static auto* const counting = new gpu::CountingGpu(devices());
  return *counting;
}

std::uint64_t Counted::pieces() const {
  std::uint64_t sum = 0;
  for (const gpu::CallCounts& rank : ranks) sum += rank.pieces();
  return sum;
}

namespace {

/// One rank's part of count_calls.
std::string count_rank(Context& c, const CountedCase& test, const CountedCall& each, std::barrier<>& all,
                       Counted* counted) {
  const LeavesAtTheEnd leaves{all};
  gpu::CountingGpu& counting = CountedGpus::counting();
  CountedRank rank{.group = c.world(), .count = test.count};
  const auto elements = test.count * static_cast<std::size_t>(test.ranks);
  OURO_RANK_OK(rank.in.make(c, elements, test.from));
  OURO_RANK_OK(rank.out.make(c, elements, test.from));
  OURO_RANK_OK(rank.in.fill(1));
  auto stream = Stream::create(c.device());
  OURO_RANK_OK(stream);
  rank.stream = *stream;
  const auto call = [&](int many, bool wait) -> Status {
    for (int i = 0; i < many; ++i) {
      OURO_TRY(each(rank));
      if (wait) OURO_TRY(rank.stream.synchronize());
    }
    return {};
  };
  const Status warm = call(3, true);  // makes words, links, threads and events
  all.arrive_and_wait();
  OURO_RANK_OK(warm);
  gpu::CallCounts before;
  if (rank.group.rank() == 0) before = counting.total();
  all.arrive_and_wait();
  const gpu::CallCounts mine = counting.mine();
  const Status called = call(test.calls, test.wait);
  counted->ranks[static_cast<std::size_t>(rank.group.rank())] = counting.mine() - mine;
  OURO_RANK_OK(called);
  if (!test.wait && !test.until) OURO_RANK_OK(rank.stream.synchronize());
  if (test.until && rank.group.rank() == 0) {
    OURO_RANK_CHECK(eventually([&] { return test.until(counting.total() - before); }),
                    "fewer calls: {} queries", (counting.total() - before).queries());
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  all.arrive_and_wait();
  if (rank.group.rank() == 0) counted->total = counting.total() - before;
  all.arrive_and_wait();
  OURO_RANK_OK(rank.stream.synchronize());
  return test.checked ? only_ran(rank.group, test.path) : "";
}

}  // namespace

Counted count_calls(const CountedCase& test, const CountedCall& each) {
  const ForcedPath forced(test.path);
  const CountedGpus devices;
  Watchdog watchdog;
  Counted counted{.ranks = std::vector<gpu::CallCounts>(static_cast<std::size_t>(test.ranks))};
  InitOptions options;
  if (test.one_gpu || std::string_view(test.path) == "leader") options.gpu = 0;
  auto contexts = thread_contexts(test.ranks, options);
  std::barrier all(test.ranks);
  on_threads(test.ranks, [&](int r) {
    EXPECT_EQ(count_rank(contexts[static_cast<std::size_t>(r)], test, each, all, &counted), "");
  });
  std::ranges::sort(counted.ranks, {}, [](const gpu::CallCounts& c) { return c.pieces(); });
  return counted;
}

}  // namespace ouro::test
