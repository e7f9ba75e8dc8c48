// Threads that really move between cores while a group works, and the bits of sums before and after a change
// of record.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/calibration/pair_probe.h"
#include "runtime/context/machine.h"
#include "runtime/core/thread.h"
#include "runtime/group/group.h"
#include "tests/runtime/calibration/invented.h"
#include "tests/runtime/group/access.h"
#include "tests/runtime/group/ranks.h"
#include "tests/timing.h"

namespace ouro {
namespace {

using namespace std::chrono_literals;
using rt::TestAccess;

constexpr std::size_t kCount = 16384;  // of 4 bytes: 64 KiB
constexpr int kStride = 64;            // distance of operations that are watched
constexpr const char* kBusy = "the cores do not answer each other in time";
const auto kMode = OURO_TEST_TSAN ? test::Mode::threads : test::Mode::processes;

void go_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
}

/// Runs all-reduces of integers, each checked; "" if all were right.
std::string run(Context& c, int operations) {
  std::vector<int> in(kCount, c.rank() + 1), out(kCount);
  const int expected = c.world().size() * (c.world().size() + 1) / 2;
  for (int i = 0; i < operations; ++i) {
    OURO_RANK_OK(all_reduce(c.world(), std::span<const int>(in), std::span(out)));
    OURO_RANK_CHECK(std::count(out.begin(), out.end(), expected) == static_cast<std::ptrdiff_t>(kCount),
                    "operation {}: {} instead of {}", i, out[0], expected);
    std::fill(out.begin(), out.end(), 0);
  }
  return "";
}

/// Runs until the group has another record than `before`; reports if it never gets one.
std::string run_until_revised(Context& c, const std::string& before) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<int> late(1), any(1);
  while (TestAccess::since(*c.world().impl()) == before) {
    if (const std::string wrong = run(c, kStride); !wrong.empty()) return wrong;
    late[0] = std::chrono::steady_clock::now() - begin < test::kHang / 2 ? 0 : 1;
    OURO_RANK_OK(all_reduce(c.world(), std::span<const int>(late), std::span(any)));
    if (any[0] > 0) return kBusy;  // equal on all ranks
  }
  return "";
}

void verdict(const std::string& outcome) {
  if (outcome.find(kBusy) != outcome.npos) GTEST_SKIP() << "other work: " << outcome;
  EXPECT_EQ(outcome, "");
}

/// Ranks that share one core cannot measure, because the time of a context switch is not a hand-off. The
/// previous record stays in force, and every sum is right, also after they are back on their own cores.
TEST(TimedMoving, SharingOneCoreKeepsTheRecordAndTheSums) {
  const auto cpus = rt::affinity_of(0);
  if (cpus.size() < 2) GTEST_SKIP() << "this machine has no second core";
  verdict(test::run(kMode, 2, [&](Context& c) -> std::string {
    const rt::Group& world = *c.world().impl();
    const int own = cpus[static_cast<std::size_t>(c.rank())];
    go_to(own);
    OURO_RANK_OK(TestAccess::adapt(*c.world().impl(), rt::too_fast(), {}));
    OURO_RANK_OK(barrier(c.world()));
    if (const std::string wrong = run_until_revised(c, ""); !wrong.empty()) return wrong;
    const rt::Calibration apart = TestAccess::record(world);
    OURO_RANK_CHECK(apart.pair[0].handoff > rt::too_fast().pair[0].handoff, "{} ns", apart.pair[0].handoff);
    go_to(cpus[0]);
    if (const std::string wrong = run(c, 24 * kStride); !wrong.empty()) return "on one core: " + wrong;
    // Longer than a hand-off between two cores of a host ever takes, but shorter than the time slice of a
    // spinning thread.
    OURO_RANK_CHECK(TestAccess::record(world).pair[0].handoff < 1'000, "{} ns on one core",
                    TestAccess::record(world).pair[0].handoff);
    go_to(own);
    const std::string wrong = run(c, 24 * kStride);
    return wrong.empty() ? "" : "back again: " + wrong;
  }));
}

/// Time of a hand-off from one core to another; 0: no answer.
std::uint32_t handoff(int here, int there) {
  std::uint32_t ns = 0;
  Thread("prober", [&] {
    const auto end = Clock::now() + 20ms;
    if (const auto probe = rt::make_pair_probe(here, there, end); probe.ok())
      ns = rt::measure_handoff(**probe, Clock::now, end);
  }).join();
  return ns;
}

/// From the farthest core to the nearest: the group replaces what it measured between the distant cores.
TEST(TimedMoving, MoveToNearCoresLowersTheMeasuredHandOff) {
  const auto cpus = rt::affinity_of(0);
  int near = -1, far = -1;
  std::uint32_t least = 0, most = 0;
  for (const int there : std::span(cpus).subspan(std::min<std::size_t>(cpus.size(), 1))) {
    const std::uint32_t ns = handoff(cpus[0], there);
    if (ns == 0) continue;
    if (near < 0 || ns < least) near = there, least = ns;
    if (far < 0 || ns > most) far = there, most = ns;
  }
  if (most < 3 * least || near == far) GTEST_SKIP() << "this machine has no cores at two distances";
  verdict(test::run(kMode, 2, [&](Context& c) -> std::string {
    const rt::Group& world = *c.world().impl();
    go_to(c.rank() == 0 ? cpus[0] : far);
    OURO_RANK_OK(TestAccess::adapt(*c.world().impl(), rt::too_fast(), {}));
    OURO_RANK_OK(barrier(c.world()));
    if (const std::string wrong = run_until_revised(c, ""); !wrong.empty()) return wrong;
    const std::uint32_t then = TestAccess::record(world).pair[0].handoff;
    const std::string since = TestAccess::since(world);
    OURO_RANK_OK(barrier(c.world()));
    go_to(c.rank() == 0 ? cpus[0] : near);
    if (const std::string wrong = run_until_revised(c, since); !wrong.empty()) return wrong;
    const std::uint32_t now = TestAccess::record(world).pair[0].handoff;
    OURO_RANK_CHECK(2 * now < then, "{} ns far, {} ns near", then, now);
    return "";
  }));
}

/// Numbers whose sum depends on the order, on huge pages if the system has them, so that they are pulled.
std::span<float> numbers(int rank) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  void* const p = ::mmap(nullptr, 2 * kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return {};
  auto* const at = static_cast<std::byte*>(p) + (kHuge - reinterpret_cast<std::uintptr_t>(p) % kHuge) % kHuge;
  (void)::madvise(at, kHuge, MADV_HUGEPAGE);
  auto* const values = reinterpret_cast<float*>(at);
  std::uint32_t state = 12345u + static_cast<std::uint32_t>(rank);
  for (std::size_t i = 0; i < kCount; ++i) {
    state = state * 1664525u + 1013904223u;
    const float size = (state >> 8) % 2 == 0 ? 1e-3f : 1e7f;
    values[i] = (static_cast<float>(state >> 9) / 4e6f - 1.0f) * size;
  }
  return {values, kCount};
}

/// The same sums, repeatedly, with three ranks and with four; the record changes in between.
TEST(Moving, SumsHaveTheSameBitsAfterARecordChange) {
  for (const int n : {3, 4}) {
    const auto outcome = test::run(kMode, n, [](Context& c) -> std::string {
      TestAccess::pretend_cores(*c.impl());
      OURO_RANK_OK(
          TestAccess::adapt(*c.world().impl(), rt::too_fast(), [](int) { return rt::as_near_cores(); }));
      const std::span<float> in = numbers(c.rank()), out = numbers(c.rank());
      OURO_RANK_CHECK(!in.empty() && !out.empty(), "no memory");
      OURO_RANK_OK(barrier(c.world()));
      const rt::GroupRecord& record =
          *c.impl()->members().find_record(c.rank(), c.world().impl()->spec().key);
      std::vector<float> first(kCount), backwards(kCount);
      std::uint64_t how = 0;
      int changes = 0;
      for (int i = 0; i < 1000; ++i) {
        OURO_RANK_OK(all_reduce(c.world(), std::span<const float>(in), out));
        const auto signature = entered_as(record, record.entered.get());
        OURO_RANK_CHECK(signature, "nothing entered");
        const std::uint64_t now = signature->what >> rt::Signature::kHowShift;
        changes += i > 0 && now != how;
        how = now;
        if (i == 0) std::copy(out.begin(), out.end(), first.begin());
        OURO_RANK_CHECK(std::memcmp(out.data(), first.data(), kCount * sizeof(float)) == 0,
                        "operation {} of {} changes has other bits", i, changes);
      }
      OURO_RANK_CHECK(changes == 1, "{} changes", changes);
      // Checks that another order of these numbers gives other bits; otherwise equal bits would
      // prove nothing.
      for (int r = c.world().size() - 1; r >= 0; --r) {
        const std::span<float> theirs = numbers(r);
        for (std::size_t i = 0; i < kCount; ++i) backwards[i] += theirs[i];
      }
      OURO_RANK_CHECK(std::memcmp(backwards.data(), first.data(), kCount * sizeof(float)) != 0,
                      "the order does not matter");
      return "";
    });
    EXPECT_EQ(outcome, "") << n << " ranks";
  }
}

}  // namespace
}  // namespace ouro
