// Exchanges: sends and receives between ranks, by kernels and through the host, as threads and as processes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "runtime/group/group.h"
#include "tests/runtime/exec/gpu/device_arena.h"
#include "tests/runtime/exec/gpu/letters.h"
#include "tests/runtime/failure/harness.h"
#include "tests/timing.h"

namespace ouro::test {
namespace {

/// Where ranks and their memory are. kernels: exchanges move by kernels there.
struct Place {
  const char* name;
  Mode mode;
  const char* path;
  const char* devices;
  bool kernels;
};
void PrintTo(const Place& p, std::ostream* os) { *os << p.name; }

/// Sets the environment of a place while an object lives.
class At {
 public:
  explicit At(const Place& p) {
    setenv("OURO_GPU_PATH", p.path, 1);
    setenv("OURO_FAKE_GPUS", p.devices, 1);
  }
  ~At() {
    unsetenv("OURO_GPU_PATH");
    setenv("OURO_FAKE_GPUS", "1", 1);
  }
};

class GpuExchanges : public testing::TestWithParam<Place> {
 protected:
  const Place& place = GetParam();
};
// A process that has used emulated devices has as many as it had at first, so threads have one here; each
// rank has its own in GpuExchangesOfDevices below.
INSTANTIATE_TEST_SUITE_P(Places, GpuExchanges,
                         testing::Values(Place{"threads", Mode::threads, "auto", "1", true},
                                         Place{"processes", Mode::processes, "auto", "8", true},
                                         Place{"threads_staged", Mode::threads, "staged", "1", false},
                                         Place{"processes_of_one_device", Mode::processes, "auto", "1",
                                               false}),
                         [](const auto& info) { return std::string(info.param.name); });

#define OURO_EXPECT_KERNELS(group, place, times)                                           \
  do {                                                                                     \
    const std::uint64_t ran_here = (group).impl()->exchanged_by_kernels();                 \
    OURO_RANK_CHECK(ran_here == ((place).kernels ? static_cast<std::uint64_t>(times) : 0), \
                    "{} exchanges by kernels", ran_here);                                  \
  } while (0)

TEST_P(GpuExchanges, RingsOfEverySize) {
  OURO_NEEDS_FAKES();
  OURO_SKIP_PROCESSES_UNDER_TSAN(place.mode);
  const At at(place);
  for (const int n : {2, 3, 5}) {
    EXPECT_EQ(run(place.mode, n,
                  [&](Context& c) -> std::string {
                    Group& g = c.world();
                    const int next = (g.rank() + 1) % n, previous = (g.rank() + n - 1) % n;
                    auto s = Stream::create(c.device());
                    OURO_RANK_OK(s);
                    int times = 0;
                    for (const std::size_t bytes : {0, 1, 8, 4095, 8192, 8193, 70'001, 3'000'000}) {
                      Letters letters(g);
                      letters.send(next, bytes, 3);
                      letters.receive(previous, bytes, 5);
                      letters.send(previous, bytes / 2);
                      letters.receive(next, bytes / 2);
                      OURO_RANK_OK(letters.make(c));
                      OURO_RANK_OK(exchange(g, letters.transfers(), *s));
                      OURO_RANK_OK(s->synchronize());
                      ++times;
                      OURO_EXPECT_LETTERS(letters);
                    }
                    OURO_EXPECT_KERNELS(g, place, times);
                    return "";
                  }),
              "");
  }
}

TEST_P(GpuExchanges, AllPairsWithSeveralMessagesAndEachRankItself) {
  OURO_NEEDS_FAKES();
  OURO_SKIP_PROCESSES_UNDER_TSAN(place.mode);
  const At at(place);
  constexpr int n = 4, kRounds = 12;
  EXPECT_EQ(run(place.mode, n,
                [&](Context& c) -> std::string {
                  Group& g = c.world();
                  Letters letters(g);
                  for (int k = 0; k < 9; ++k)
                    for (int p = 0; p < n; ++p) {
                      letters.send(p, static_cast<std::size_t>(40 * k * (g.rank() + 2 * p)));
                      letters.receive(p, static_cast<std::size_t>(40 * k * (p + 2 * g.rank())));
                    }
                  OURO_RANK_OK(letters.make(c));
                  for (int round = 0; round < kRounds; ++round) {  // without a stream, and with one
                    OURO_RANK_OK(letters.fill());
                    if (round % 2 == 0) {
                      OURO_RANK_OK(exchange(g, letters.transfers()));
                    } else {
                      auto s = Stream::create(c.device());
                      OURO_RANK_OK(s);
                      auto work = exchange(g, letters.transfers(), *s);
                      OURO_RANK_OK(work);
                      OURO_RANK_OK(work->wait());
                    }
                    OURO_EXPECT_LETTERS(letters);
                  }
                  OURO_EXPECT_KERNELS(g, place, kRounds);
                  return "";
                }),
            "");
}

/// Ranks that are not named take no part, and collectives of the group are not affected.
TEST_P(GpuExchanges, OnlyNamedRanksTakePart) {
  OURO_NEEDS_FAKES();
  OURO_SKIP_PROCESSES_UNDER_TSAN(place.mode);
  const At at(place);
  EXPECT_EQ(run(place.mode, 3,
                [&](Context& c) -> std::string {
                  Group& g = c.world();
                  Floats sum;
                  OURO_RANK_OK(sum.make(c, 100));
                  OURO_RANK_OK(sum.fill(1));
                  Letters letters(g);
                  if (g.rank() == 0) letters.send(2, 50'000);
                  if (g.rank() == 2) letters.receive(0, 50'000);
                  OURO_RANK_OK(letters.make(c));
                  OURO_RANK_OK(exchange(g, letters.transfers()));
                  OURO_RANK_OK(all_reduce(g, sum.view(), sum.view(), ReduceOp::sum));
                  OURO_EXPECT_ALL(sum, 3);
                  OURO_EXPECT_LETTERS(letters);
                  OURO_EXPECT_KERNELS(g, place, g.rank() == 1 ? 0 : 1);
                  OURO_RANK_OK(barrier(g));
                  return "";
                }),
            "");
}

/// In a batch the exchanges of a group are one: the order of sends and receives does not matter. Collectives
/// of the batch follow.
TEST_P(GpuExchanges, OfABatchAreOne) {
  OURO_NEEDS_FAKES();
  OURO_SKIP_PROCESSES_UNDER_TSAN(place.mode);
  const At at(place);
  EXPECT_EQ(run(place.mode, 3,
                [&](Context& c) -> std::string {
                  Group& g = c.world();
                  const int next = (g.rank() + 1) % 3, previous = (g.rank() + 2) % 3;
                  auto s = Stream::create(c.device());
                  OURO_RANK_OK(s);
                  for (int round = 0; round < 4; ++round) {
                    Letters letters(g);
                    letters.receive(previous, 30'000);  // each alone would wait for the others for ever
                    letters.receive(next, 20'000);
                    letters.send(next, 30'000);
                    letters.send(previous, 20'000);
                    OURO_RANK_OK(letters.make(c));
                    Floats sum;
                    OURO_RANK_OK(sum.make(c, 10));
                    OURO_RANK_OK(sum.fill(1));
                    Work last;
                    group_start();
                    for (const Transfer& t : letters.transfers()) {
                      if (round % 2 == 0) {
                        OURO_RANK_OK(exchange(g, std::span(&t, 1)));
                      } else {
                        auto work = exchange(g, std::span(&t, 1), *s);
                        OURO_RANK_OK(work);
                        last = *work;
                      }
                    }
                    if (round % 2 == 1)
                      OURO_RANK_OK(all_reduce(g, sum.view(), sum.view(), ReduceOp::sum, *s));
                    OURO_RANK_OK(group_end());
                    if (round % 2 == 1) OURO_RANK_OK(last.wait());
                    OURO_RANK_OK(s->synchronize());
                    OURO_EXPECT_LETTERS(letters);
                    OURO_EXPECT_ALL(sum, round % 2 == 1 ? 3 : 1);
                  }
                  OURO_EXPECT_KERNELS(g, place, 4);
                  return "";
                }),
            "");
}

/// Exchanges match in the order of the calls, also on different streams, and never with other messages.
TEST_P(GpuExchanges, MatchInTheOrderOfCallsAndNotWithMessages) {
  OURO_NEEDS_FAKES();
  OURO_SKIP_PROCESSES_UNDER_TSAN(place.mode);
  const At at(place);
  EXPECT_EQ(
      run(place.mode, 2,
          [&](Context& c) -> std::string {
            Group& g = c.world();
            constexpr int kCalls = 10;
            const int peer = 1 - g.rank();
            std::vector<Floats> all(kCalls);
            std::vector<Stream> streams;
            for (int k = 0; k < 2; ++k) streams.push_back(*Stream::create(c.device()));
            for (int k = 0; k < kCalls; ++k) {
              OURO_RANK_OK(all[static_cast<std::size_t>(k)].make(c, 20'000));
              OURO_RANK_OK(all[static_cast<std::size_t>(k)].fill(g.rank() == 0 ? static_cast<float>(k) : -1));
            }
            Floats other;
            OURO_RANK_OK(other.make(c, 100));  // it waits in the slots of the engine
            OURO_RANK_OK(other.fill(77));
            if (g.rank() == 0) OURO_RANK_OK(send(g, other.view(), peer, 0));
            for (int k = 0; k < kCalls; ++k) {
              const View v = all[static_cast<std::size_t>(k)].view();
              const Transfer t = g.rank() == 0 ? Transfer::send_to(peer, v) : Transfer::receive_from(peer, v);
              OURO_RANK_OK(exchange(g, std::span(&t, 1), streams[static_cast<std::size_t>(k * k % 2)]));
            }
            for (Stream& s : streams) OURO_RANK_OK(s.synchronize());
            for (int k = 0; k < kCalls; ++k)
              OURO_EXPECT_ALL(all[static_cast<std::size_t>(k)], static_cast<float>(k));
            if (g.rank() == 1) {
              OURO_RANK_OK(other.fill(0));
              OURO_RANK_OK(recv(g, other.view(), peer, 0));
              OURO_EXPECT_ALL(other, 77);
            }
            OURO_RANK_OK(barrier(g));
            return "";
          }),
      "");
}

/// A message of another length is an error of the group that names both numbers and the sender.
TEST_P(GpuExchanges, AnotherLengthFailsTheGroup) {
  OURO_NEEDS_FAKES();
  OURO_SKIP_PROCESSES_UNDER_TSAN(place.mode);
  const At at(place);
  EXPECT_EQ(run(place.mode, 2,
                [&](Context& c) -> std::string {
                  Group& g = c.world();
                  Letters letters(g);
                  if (g.rank() == 0)
                    letters.send(1, 40'000);
                  else
                    letters.receive(0, 40'004);
                  OURO_RANK_OK(letters.make(c));
                  const Status s = exchange(g, letters.transfers());
                  if (g.rank() == 0) {  // a message that has left in slots is no longer the sender's
                    const bool waits = place.kernels && place.mode == Mode::threads;
                    OURO_RANK_CHECK(!waits || s.reason() == Reason::mismatch, "{}", s.message());
                    return "";
                  }
                  OURO_RANK_CHECK(s.reason() == Reason::mismatch, "{}", s.message());
                  OURO_RANK_CHECK(s.failure()->rank == 0, "{}", s.message());
                  OURO_RANK_CHECK(has(s.message(), "40000") && has(s.message(), "40004"), "{}", s.message());
                  OURO_RANK_CHECK(!g.status().ok(), "the error sticks");
                  return "";
                }),
            "");
}

TEST_P(GpuExchanges, WrongArgumentsLeaveTheGroupUsable) {
  OURO_NEEDS_FAKES();
  OURO_SKIP_PROCESSES_UNDER_TSAN(place.mode);
  const At at(place);
  EXPECT_EQ(run(place.mode, 2,
                [&](Context& c) -> std::string {
                  Group& g = c.world();
                  Floats here;
                  OURO_RANK_OK(here.make(c, 4));
                  const std::vector<float> host(4);
                  const auto refused = [&](std::vector<Transfer> t) {
                    return exchange(g, t).reason() == Reason::invalid;
                  };
                  OURO_RANK_CHECK(refused({Transfer::send_to(2, here.view())}), "a rank");
                  OURO_RANK_CHECK(refused({Transfer::receive_from(kAnySource, here.view())}), "any source");
                  OURO_RANK_CHECK(refused({Transfer::send_to(1, CView(nullptr, 4, DType::f32, c.device()))}),
                                  "null");
                  OURO_RANK_CHECK(refused({Transfer::send_to(1, here.view()),
                                           Transfer::send_to(1, CView(host.data(), 4, DType::f32))}),
                                  "memory of both kinds");
                  group_start();
                  OURO_RANK_CHECK(refused({Transfer::send_to(2, here.view())}), "a rank, in a batch");
                  OURO_RANK_CHECK(group_end().reason() == Reason::invalid, "the batch is dropped");
                  OURO_RANK_OK(exchange(g, std::vector<Transfer>{}));
                  OURO_RANK_OK(barrier(g));
                  return "";
                }),
            "");
}

/// The same calls move memory of the host, with and without a stream.
TEST_P(GpuExchanges, MoveMemoryOfTheHost) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(place.mode);
  const At at(place);
  EXPECT_EQ(run(place.mode, 3,
                [&](Context& c) -> std::string {
                  Group& g = c.world();
                  Stream s = *Stream::create();
                  for (int round = 0; round < 6; ++round) {
                    std::vector<int> out(50'000, 10 * round + g.rank()), in(50'000, -1), mine(3, -1);
                    const int next = (g.rank() + 1) % 3, previous = (g.rank() + 2) % 3;
                    const Transfer all[] = {Transfer::receive_from(previous, std::span(in)),
                                            Transfer::send_to(next, std::span(out)),
                                            Transfer::send_to(g.rank(), std::span(out).first(3)),
                                            Transfer::receive_from(g.rank(), std::span(mine))};
                    if (round % 2 == 0) {
                      OURO_RANK_OK(exchange(g, all));
                    } else {
                      auto work = exchange(g, all, s);
                      OURO_RANK_OK(work);
                      OURO_RANK_OK(work->wait());
                    }
                    OURO_RANK_CHECK(std::ranges::count(in, 10 * round + previous) == 50'000, "round {}",
                                    round);
                    OURO_RANK_CHECK(std::ranges::count(mine, 10 * round + g.rank()) == 3, "round {}", round);
                  }
                  return "";
                }),
            "");
}

/// A GPU for each rank, ranks as threads: addresses of other devices.
TEST(GpuExchangesOfDevices, AllPairs) {
  OURO_NEEDS_FAKES();
  const FakeForEach devices;
  constexpr int n = 8;
  const Place place{"devices", Mode::threads, "auto", "8", true};
  EXPECT_EQ(run_threads(n,
                        [&](Context& c) -> std::string {
                          Group& g = c.world();
                          Letters letters(g);
                          for (int p = 0; p < n; ++p) {
                            letters.send(p, static_cast<std::size_t>(30'000 + 10 * g.rank() + p));
                            letters.receive(p, static_cast<std::size_t>(30'000 + 10 * p + g.rank()));
                          }
                          OURO_RANK_OK(letters.make(c));
                          for (int round = 0; round < 5; ++round) {
                            OURO_RANK_OK(letters.fill());
                            OURO_RANK_OK(exchange(g, letters.transfers()));
                            OURO_EXPECT_LETTERS(letters);
                          }
                          OURO_EXPECT_KERNELS(g, place, 5);
                          return "";
                        }),
            "");
}

}  // namespace
}  // namespace ouro::test
