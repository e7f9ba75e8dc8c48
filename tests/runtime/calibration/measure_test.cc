// How figures are derived from measurements, with a probe and a clock made for the test; then real answers of
// this machine.
#include "runtime/calibration/measure.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>

#include "runtime/calibration/pair_probe.h"
#include "runtime/context/machine.h"
#include "runtime/core/thread.h"
#include "tests/runtime/calibration/invented.h"

namespace ouro::rt {
namespace {

using namespace std::chrono_literals;

/// Answers by size and kind; each question takes one microsecond of test time.
class FakeProbe final : public Probe {
 public:
  std::optional<std::uint32_t> handoff() override { return answer(60); }
  std::optional<CopyCost> copy(kernels::CopyKind kind, std::size_t bytes) override {
    const std::uint32_t slower = kind == kernels::CopyKind::rep && rep_is_slow ? 4 : 1;
    const auto ns =
        answer((static_cast<std::uint32_t>(bytes / 16) + static_cast<std::uint32_t>(kind)) * slower);
    return ns ? std::optional(CopyCost{*ns, *ns + 7}) : std::nullopt;
  }
  std::optional<std::uint32_t> pull(std::size_t bytes, bool huge) override {
    return pulls ? answer(static_cast<std::uint32_t>(bytes / (huge ? 32 : 8))) : std::nullopt;
  }
  std::optional<std::uint32_t> context_switch() override { return answer(1100); }
  std::optional<std::uint32_t> wake() override { return answer(13'000); }
  std::optional<CopyCost> together(kernels::CopyKind kind) override {
    const auto ns = answer(6000 + static_cast<std::uint32_t>(kind));
    return ns ? std::optional(CopyCost{*ns, *ns + 7}) : std::nullopt;
  }
  std::optional<CopyCost> ring(kernels::CopyKind kind) override {
    ring_kind = kind;
    const auto ns = answer(ring_ns);
    return ns ? std::optional(CopyCost{*ns, *ns + 7}) : std::nullopt;
  }
  std::optional<std::uint32_t> pull_together() override { return pulls ? answer(9000) : std::nullopt; }
  std::optional<Accesses> accesses(std::size_t bytes) override {
    const auto ns = answer(static_cast<std::uint32_t>(bytes / 64));
    return ns ? std::optional(Accesses{{*ns * 4, *ns}, {*ns * 3, *ns}}) : std::nullopt;
  }
  std::optional<std::uint32_t> large_local() override { return answer(250'000); }
  std::optional<CopyCost> large(kernels::CopyKind kind) override {
    large_kind = kind;
    const auto ns = answer(300'000);
    return ns ? std::optional(CopyCost{*ns, *ns + 7}) : std::nullopt;
  }

  TimeOf clock() {
    return [this] { return now; };
  }
  /// Every eleventh answer is too high, as from a core that others use.
  std::optional<std::uint32_t> answer(std::uint32_t ns) {
    now += 1us, ++asked;
    if (silent_from >= 0 && asked > silent_from) return std::nullopt;
    return disturbed && asked % 11 == 0 ? ns * 50 : ns;
  }
  Clock::time_point now{};
  int asked = 0, silent_from = -1;
  bool disturbed = false, pulls = true, rep_is_slow = false;
  std::uint32_t ring_ns = 5000;
  kernels::CopyKind large_kind{}, ring_kind{};
};

/// The model of cores that are `factor` times slower, for copies up to `bytes`.
PairCosts slower(const PairCosts& than, std::uint32_t factor, std::size_t bytes) {
  PairCosts p = than;
  p.handoff *= factor;
  for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s) {
    const std::uint32_t by = kernels::kCopySizes[s] <= bytes ? factor : 0;
    for (CopyCost& c : p.copies[s]) c.write *= by, c.read *= by;
    p.pull[s] *= by, p.pull_huge[s] *= by;
  }
  const std::uint32_t by = kernels::kCopySizes.back() <= bytes ? factor : 0;  // treated like the largest size
  p.large.write *= by, p.large.read *= by;
  const std::uint32_t piece = kLargePiece <= bytes ? factor : 0;
  for (CopyCost* c : {&p.together, &p.together_slots, &p.ring}) c->write *= piece, c->read *= piece;
  p.pull_together *= piece;
  // As a hand-off. What no other core has touched is as fast as before, and so are copies of a core's own.
  for (AccessCost& a : p.stores) a.after *= factor;
  for (AccessCost& a : p.loads) a.after *= factor;
  return p;
}

TEST(Revised, UnmeasuredSizesChangeByTheFactorOfTheSizeBefore) {
  const Calibration before = invented_record();
  const Calibration after = revised(before, slower(before.farthest(), 3, 64 << 10));
  EXPECT_EQ(after.farthest(), slower(before.farthest(), 3, 1 << 20));
  EXPECT_EQ(after.pair[0], before.pair[0]) << "near cores are as near as they were";
  EXPECT_EQ(revised(before, PairCosts{}), before) << "nothing was measured";
}

TEST(Revised, OnlyAChangeByAFactorOfTwoIsAMove) {
  const Calibration c = invented_record();
  const PairCosts& p = c.farthest();
  EXPECT_FALSE(moved(c, p));
  EXPECT_FALSE(moved(c, PairCosts{}));
  EXPECT_TRUE(moved(c, slower(p, 3, 64 << 10)));
  PairCosts other = p;
  other.handoff = p.handoff * 19 / 10;
  EXPECT_FALSE(moved(c, other));
  other.handoff = p.handoff / 2;
  EXPECT_TRUE(moved(c, other));
  other = p;
  other.copies[1][static_cast<std::size_t>(kernels::CopyKind::plain)] = {1, 1};
  EXPECT_FALSE(moved(c, other)) << "a kind that is not in force";
  other.copies[1][static_cast<std::size_t>(kernels::CopyKind::rep)] = {1, 1};
  EXPECT_TRUE(moved(c, other));
}

TEST(Measure, TakesTheLeastOfSeveralTries) {
  FakeProbe probe;
  probe.disturbed = true;
  const PairCosts costs = measure(probe, probe.clock(), probe.now + 1s);
  EXPECT_EQ(costs.handoff, 60u);
  for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s) {
    const auto bytes = static_cast<std::uint32_t>(kernels::kCopySizes[s]);
    for (std::uint32_t k = 0; k < kernels::kCopyKinds; ++k)
      EXPECT_EQ(costs.copies[s][k], (CopyCost{bytes / 16 + k, bytes / 16 + k + 7}));
    EXPECT_EQ(costs.pull[s], bytes / 8);
    EXPECT_EQ(costs.pull_huge[s], bytes / 32);
  }
  EXPECT_EQ(costs.large, (CopyCost{300'000, 300'007}));
  EXPECT_EQ(costs.together, (CopyCost{6001, 6008}));
  EXPECT_FALSE(costs.together_slots.known()) << "slots are written by the built-in kind";
  EXPECT_EQ(costs.ring, (CopyCost{5000, 5007}));
  EXPECT_EQ(costs.pull_together, 9000u);
  for (std::size_t s = 0; s < kAccessSizes.size(); ++s) {
    const auto lines = static_cast<std::uint32_t>(kAccessSizes[s] / 64);
    EXPECT_EQ(costs.stores[s], (AccessCost{lines * 4, lines}));
    EXPECT_EQ(costs.loads[s], (AccessCost{lines * 3, lines}));
  }
  EXPECT_EQ(costs.large_local, 250'000u);
  EXPECT_EQ(probe.large_kind, kernels::CopyKind::rep);  // the kind that will be in force
  EXPECT_EQ(probe.ring_kind, kernels::CopyKind::rep);
  EXPECT_EQ(measure_context_switch(probe, probe.clock(), probe.now + 1s), 1100u);
  EXPECT_EQ(measure_wake(probe, probe.clock(), probe.now + 1s), 13'000u);
}

TEST(Measure, NearCoresGetOnlyHandOffAndBuiltInCopyFigures) {
  FakeProbe probe, another;
  const PairCosts all = measure(probe, probe.clock(), probe.now + 1s);
  Calibration c{};
  c.pairs = 2, c.pair[1] = all;
  c.pair[0] = measure(another, another.clock(), another.now + 1s, false);
  EXPECT_LT(5 * another.asked, probe.asked);
  EXPECT_TRUE(c.complete());
  PairCosts used{};
  used.handoff = all.handoff;
  for (std::size_t s = 0; s < kernels::kCopySizes.size(); ++s) {
    const auto kind = static_cast<std::size_t>(kernels::kDefaultCopyKinds[s]);
    used.copies[s][kind] = all.copies[s][kind];
  }
  EXPECT_EQ(c.pair[0], used);
}

/// Copies at once are measured by the kinds that will be in force, and by the built-in one.
TEST(Measure, FasterKindIsTheOneMeasuredForSlots) {
  FakeProbe probe;
  probe.rep_is_slow = true;
  const PairCosts slots = measure(probe, probe.clock(), probe.now + 1s);
  EXPECT_EQ(slots.together, (CopyCost{6001, 6008}));
  EXPECT_EQ(slots.together_slots, (CopyCost{6000, 6007}));
  EXPECT_EQ(probe.ring_kind, kernels::CopyKind::rep);
  EXPECT_EQ(probe.large_kind, kernels::CopyKind::rep) << "a ring takes less than such slots";
  probe.ring_ns = 7000;
  measure(probe, probe.clock(), probe.now + 1s);
  EXPECT_EQ(probe.large_kind, kernels::CopyKind::plain);
}

TEST(Measure, APauseIsTheLeastOfSeveralTriesRoundedUp) {
  Clock::time_point now{};
  auto step = 4000ns;
  const auto clock = [&] { return now += step -= 100ns; };
  EXPECT_EQ(measure_pause(clock), 54u);  // 3400 ns in the last question, divided by 64
}

TEST(Measure, EndsAtTheDeadlineAndOmitsFiguresWithTooFewTries) {
  FakeProbe probe;
  const PairCosts costs = measure(probe, probe.clock(), probe.now + 30us);  // two rounds of some sizes
  EXPECT_LE(probe.asked, 33);
  EXPECT_EQ(costs.handoff, 60u);
  for (const auto& size : costs.copies)
    for (const CopyCost& c : size) EXPECT_FALSE(c.known());
}

TEST(Measure, ASilentProbeYieldsNoFigures) {
  FakeProbe probe;
  probe.silent_from = 0;
  EXPECT_EQ(measure(probe, probe.clock(), probe.now + 1s), PairCosts{});
  EXPECT_EQ(measure_context_switch(probe, probe.clock(), probe.now + 1s), 0u);
  EXPECT_EQ(measure_wake(probe, probe.clock(), probe.now + 1s), 0u);
}

TEST(Measure, RecordIsCompleteIfPullsAreForbidden) {
  FakeProbe probe;
  probe.pulls = false;
  Calibration c{};
  c.pairs = 1, c.pair[0] = measure(probe, probe.clock(), probe.now + 1s);
  EXPECT_TRUE(c.complete());
  EXPECT_EQ(c.pair[0].pull[3], 0u);
}

TEST(Measure, TimesAFactorOfTwoApartAreDifferentModes) {
  EXPECT_TRUE(same_mode(50, 99));
  EXPECT_FALSE(same_mode(50, 100));
  EXPECT_FALSE(same_mode(200, 100));
  EXPECT_TRUE(same_mode(200, 101));
}

/// Whatever else runs here: answers arrive in time or not at all, and each is a time.
TEST(PairProbe, AnswersUntilItsEnd) {
  const auto& cores = machine().cores;
  if (cores.size() < 2) GTEST_SKIP() << "this machine has no second core";
  Thread("prober",
         [&] {  // as if it moved to a core and stayed there
           const auto end = Clock::now() + 2s;
           const auto probe = make_pair_probe(cores[0].cpus[0], cores[1].cpus[0], end);
           ASSERT_TRUE(probe.ok()) << probe.status().message();
           int answers = 0, others = 0;
           while (answers < 5 && Clock::now() < end) {
             const auto handoff = (*probe)->handoff();
             const auto copy = (*probe)->copy(kernels::CopyKind::rep, 4096);
             const auto together = (*probe)->context_switch();
             const auto wake = (*probe)->wake();
             const auto large = (*probe)->large(kernels::CopyKind::rep);
             const auto both = (*probe)->together(kernels::CopyKind::rep);
             const auto ring = (*probe)->ring(kernels::CopyKind::rep);
             (void)(*probe)->pull_together();  // systems may forbid it
             EXPECT_TRUE(!copy || !large || large->both() > copy->both());
             EXPECT_TRUE(!large || !both || large->both() > both->both());
             EXPECT_TRUE(!ring || ring->known());
             others += handoff && copy && together;
             if (!handoff || !copy || !together || !wake) continue;
             EXPECT_GT(*handoff, 0u);
             EXPECT_GT(copy->write, 0u);
             EXPECT_GT(copy->read, 0u);
             EXPECT_GT(*together, 0u);
             EXPECT_GT(*wake, *handoff);
             ++answers;
           }
           EXPECT_TRUE(answers > 0 || others < 50) << "a sleeper was never woken";
         })
      .join();
}

}  // namespace
}  // namespace ouro::rt
