// The agreement under simulated hosts, networks and failures: thousands of seeded runs in virtual time, and
// planted faults that they must find.
#include "runtime/health/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "agreement_mutants.h"  // from mutate_agreement.py
#include "runtime/health/suspicions.h"
#include "tests/runtime/failure/agreement_job.h"

namespace ouro::rt {
namespace {

using played::Job;

/// Number of runs; 0: TEST_SEEDS is not a valid number.
int seeds() {
  const char* set = std::getenv("TEST_SEEDS");
  if (set == nullptr) return 20'000;
  const std::string_view text = set;
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && end == text.data() + text.size() ? std::max(count, 0) : 0;
}

TEST(Agreement, HoldsUnderEverySeed) {
  const int count = seeds();
  ASSERT_GT(count, 0) << "TEST_SEEDS=" << std::getenv("TEST_SEEDS") << ": expected 1 or more";
  for (int seed = 1; seed <= count; ++seed) {
    Job<Agreement> job(static_cast<std::uint64_t>(seed));
    const std::string wrong = job.play();
    ASSERT_EQ(wrong, "") << "seed " << seed << ":" << job.text();
  }
}

/// Two of four members do not hear each other, while the others hear both: each of the two proposes. All
/// members step at the same times, on what the others published in the previous step, so that none is ahead
/// by chance.
TEST(Agreement, MutuallySuspectingProposersDoNotOutbidForever) {
  using namespace std::chrono_literals;
  constexpr int kMembers = 4;
  std::vector<Agreement> members;
  for (int r = 0; r < kMembers; ++r) members.emplace_back(r, kMembers, 5s);
  std::vector<std::optional<Verdict>> decided(kMembers);
  const auto all = [&] { return std::all_of(decided.begin(), decided.end(), [](auto& d) { return d; }); };
  Agreement::Clock::time_point now{};
  for (const auto end = now + 5s; now < end && !all(); now += 500us) {
    std::vector<Vote> said;
    for (const Agreement& a : members) said.push_back(a.vote());
    const auto before = decided;
    for (int r = 0; r < kMembers; ++r) {
      std::vector<Agreement::Member> seen(kMembers);
      for (int o = 0; o < kMembers; ++o) {
        Agreement::Member& m = seen[static_cast<std::size_t>(o)];
        if (o + r == 1) {
          m.standing = Agreement::Standing::lost;
        } else {
          m.called = true;
          m.vote = said[static_cast<std::size_t>(o)];
          m.decided = before[static_cast<std::size_t>(o)];
        }
      }
      const auto outcome = members[static_cast<std::size_t>(r)].step(seen, now);
      if (outcome.state == Agreement::Outcome::decided)
        decided[static_cast<std::size_t>(r)] = outcome.verdict;
    }
  }
  ASSERT_TRUE(all()) << "within the patience of 5 s";
  for (const auto& d : decided) EXPECT_EQ(*d, *decided[0]);
  EXPECT_EQ(decided[0]->dead.count(), 1);
}

/// Reference: removes the rank with most quarrels, one by one, recomputed each time.
template <class Quarrel>
RankSet leave_one_by_one(RankSet side, int size, const Quarrel& quarrel) {
  for (;;) {
    int worst = -1, most = 0;
    for (int r = 0; r < size; ++r) {
      int quarrels = 0;
      for (int o = 0; o < size && side.has(r); ++o) quarrels += o != r && side.has(o) && quarrel(r, o);
      if (quarrels > 0 && quarrels >= most) worst = r, most = quarrels;
    }
    if (worst < 0) return side;
    side.remove(worst);
  }
}

TEST(MutualSuspicion, RanksThatSuspectMostAreRemovedFirst) {
  std::mt19937 random(1);
  for (int graph = 0; graph < 2000; ++graph) {
    const int size = 1 + static_cast<int>(random() % 9);
    const unsigned part = random() % 100;
    RankSet side, quarrels[9];
    for (int r = 0; r < size; ++r)
      if (random() % 5 > 0) side.add(r);
    for (int a = 0; a < size; ++a)
      for (int b = 0; b < a; ++b)
        if (random() % 100 < part) quarrels[a].add(b), quarrels[b].add(a);
    const auto quarrel = [&](int a, int b) { return quarrels[a].has(b); };
    const RankSet left = without_mutual_suspicion(side, size, quarrel);
    EXPECT_EQ(left, leave_one_by_one(side, size, quarrel)) << "graph " << graph;
    for (int a = 0; a < size; ++a)
      for (int b = 0; b < size; ++b) EXPECT_FALSE(left.has(a) && left.has(b) && quarrel(a, b));
  }
}

/// A partial cut: two of the thirds have given each other up, and both hear the last third.
TEST(MutualSuspicion, EachPairOfAThousandRanksIsQueriedTwiceAtMost) {
  constexpr int kRanks = kMaxRanks, kThird = kRanks / 3;
  RankSet all;
  for (int r = 0; r < kRanks; ++r) all.add(r);
  int asked = 0;
  const RankSet left = without_mutual_suspicion(all, kRanks, [&](int a, int b) {
    ++asked;
    return (a < kThird && b >= kThird && b < 2 * kThird) || (b < kThird && a >= kThird && a < 2 * kThird);
  });
  EXPECT_EQ(left.count(), kRanks - kThird);
  EXPECT_LE(asked, kRanks * kRanks);
}

/// The faulty agreements are copies of the real one, each with one rule changed by mutate_agreement.py.
template <class Faulty>
void expect_found() {
  for (int seed = 1; seed <= 20'000; ++seed) {
    Job<Faulty> job(static_cast<std::uint64_t>(seed));
    if (const std::string wrong = job.play(); !wrong.empty()) {
      testing::Test::RecordProperty("seed", seed);
      std::printf("seed %d:%s: %s\n", seed, job.text().c_str(), wrong.c_str());
      return;
    }
  }
  FAIL() << "no seed finds it";
}

TEST(PlantedFlaw, HalfIsQuorumIsFound) { expect_found<half_is_quorum::Agreement>(); }
TEST(PlantedFlaw, ForgetsAcceptedIsFound) { expect_found<forgets_accepted::Agreement>(); }
TEST(PlantedFlaw, SharesBallotsIsFound) { expect_found<shares_ballots::Agreement>(); }
TEST(PlantedFlaw, CountsTheDeadIsFound) { expect_found<counts_the_dead::Agreement>(); }
TEST(PlantedFlaw, SkipsPromisesIsFound) { expect_found<skips_promises::Agreement>(); }

}  // namespace
}  // namespace ouro::rt
