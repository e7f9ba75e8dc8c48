// Agreement under simulated hosts, networks and failures: thousands of seeded runs in virtual time, and
// planted flaws that they have to find.
#include "runtime/health/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "agreement_mutants.h"  // from mutate_agreement.py
#include "tests/runtime/failure/agreement_job.h"

namespace ouro::rt {
namespace {

using played::Job;

/// 0: TEST_SEEDS is no number of them.
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

/// The faulty agreements are copies of the real one in which mutate_agreement.py has changed one rule each.
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
