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
    Job job(static_cast<std::uint64_t>(seed), Agreement::Flaw::none);
    const std::string wrong = job.play();
    ASSERT_EQ(wrong, "") << "seed " << seed << ":" << job.text();
  }
}

class Planted : public testing::TestWithParam<Agreement::Flaw> {};

TEST_P(Planted, IsFound) {
  for (int seed = 1; seed <= 20'000; ++seed) {
    Job job(static_cast<std::uint64_t>(seed), GetParam());
    if (const std::string wrong = job.play(); !wrong.empty()) {
      RecordProperty("seed", seed);
      std::printf("seed %d:%s: %s\n", seed, job.text().c_str(), wrong.c_str());
      return;
    }
  }
  FAIL() << "no seed finds it";
}

using Flaw = Agreement::Flaw;
std::string flaw_name(const testing::TestParamInfo<Flaw>& info) {
  static constexpr const char* kNames[] = {"None",          "HalfIsQuorum",  "ForgetsAccepted",
                                           "SharesBallots", "CountsTheDead", "SkipsPromises"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Flaws, Planted,
                         testing::Values(Flaw::half_is_quorum, Flaw::forgets_accepted, Flaw::shares_ballots,
                                         Flaw::counts_the_dead, Flaw::skips_promises),
                         flaw_name);

}  // namespace
}  // namespace ouro::rt
