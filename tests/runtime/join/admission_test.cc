// Who may join a job: every kind of request in every state of the admission machine.
#include "runtime/join/admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace ouro::rt {
namespace {

constexpr wire::Nonce kJob{1, 2, 3};
const std::string kSettings = "A=1 B=2";

wire::Join request(std::uint32_t rank, std::uint32_t world = 4) {
  return {kJob,     rank,     world, static_cast<std::int32_t>(100 + rank), "node" + std::to_string(rank),
          "server", kSettings};
}
Admission four() { return {kJob, 4, kSettings, "node0", 100}; }

TEST(Admission, AdmitsAnyOrderOfRanks) {
  std::mt19937 random(7);
  std::vector<std::uint32_t> ranks{1, 2, 3};
  do {
    Admission a = four();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      EXPECT_FALSE(a.complete());
      EXPECT_EQ(a.consider(request(ranks[i])).verdict, Admission::Verdict::admitted);
      EXPECT_EQ(a.admitted(), static_cast<int>(i) + 2);
      EXPECT_EQ(a.missing().size(), 2 - i);
    }
    EXPECT_TRUE(a.complete());
  } while (std::next_permutation(ranks.begin(), ranks.end()));
}

TEST(Admission, OneRankIsCompleteAtOnce) { EXPECT_TRUE((Admission{kJob, 1, "", "h", 1}.complete())); }

TEST(Admission, RefusesOtherJobsAndRanksOutOfRangeAndContinues) {
  Admission a = four();
  ASSERT_EQ(a.consider(request(2)).verdict, Admission::Verdict::admitted);
  struct Case {
    wire::Join join;
    const char* words;
  };
  auto foreign = request(1);
  foreign.job = {9};
  for (const Case& c : {Case{foreign, "wrong-job"}, Case{request(4), "rank-range: rank 4 of 4"}}) {
    const auto d = a.consider(c.join);
    EXPECT_EQ(d.verdict, Admission::Verdict::turn_away);
    EXPECT_EQ(d.why.reason(), Reason::refused);
    EXPECT_NE(d.why.message().find(c.words), std::string::npos) << d.why.message();
    EXPECT_EQ(a.missing(), (std::vector<int>{1, 3}));
  }
}

TEST(Admission, GivesUpOnADuplicateAndNamesBoth) {
  Admission a = four();
  ASSERT_EQ(a.consider(request(2)).verdict, Admission::Verdict::admitted);
  auto twin = request(2), zero = request(0);
  twin.pid = 777, zero.pid = 778;
  for (const auto& [join, words] :
       {std::pair{twin, "duplicate-rank: rank 2 (node2, pid 102) joined first, then rank 2 (node2, pid 777)"},
        std::pair{zero,
                  "duplicate-rank: rank 0 (node0, pid 100) joined first, then rank 0 (node0, pid 778)"}}) {
    const auto d = a.consider(join);
    EXPECT_EQ(d.verdict, Admission::Verdict::give_up);
    EXPECT_EQ(d.why.reason(), Reason::refused);
    EXPECT_NE(d.why.message().find(words), std::string::npos) << d.why.message();
    EXPECT_EQ(a.missing(), (std::vector<int>{1, 3}));
  }
}

TEST(Admission, GivesUpIfRanksDisagreeAndNamesBoth) {
  Admission a = four();
  const auto world = a.consider(request(1, 5));
  EXPECT_EQ(world.verdict, Admission::Verdict::give_up);
  EXPECT_EQ(world.why.reason(), Reason::mismatch);
  EXPECT_NE(world.why.message().find("rank 1 (node1, pid 101) says 5, rank 0 (node0, pid 100) says 4"),
            std::string::npos)
      << world.why.message();
  auto other = request(3);
  other.settings = "A=1 B=3";
  const auto settings = a.consider(other);
  EXPECT_EQ(settings.verdict, Admission::Verdict::give_up);
  EXPECT_NE(settings.why.message().find("'A=1 B=3'"), std::string::npos);
  EXPECT_NE(settings.why.message().find("'A=1 B=2'"), std::string::npos);
}

TEST(Admission, AVacatedPlaceCanBeTakenAgain) {
  Admission a = four();
  ASSERT_EQ(a.consider(request(2)).verdict, Admission::Verdict::admitted);
  a.vacate(2);
  EXPECT_EQ(a.missing(), (std::vector<int>{1, 2, 3}));
  a.vacate(2);
  a.vacate(0);  // rank 0 never leaves its own root
  EXPECT_EQ(a.admitted(), 1);
  EXPECT_EQ(a.consider(request(2)).verdict, Admission::Verdict::admitted);
}

TEST(Admission, NamesLostAndMissingRanks) {
  Admission a = four();
  ASSERT_EQ(a.consider(request(3)).verdict, Admission::Verdict::admitted);
  const Status lost = a.lost(3);
  EXPECT_EQ(lost.reason(), Reason::peer_dead);
  EXPECT_EQ(lost.failure()->rank, 3);
  EXPECT_EQ(lost.failure()->pid, 103);
  const Status expired = a.expired(0.5);
  EXPECT_EQ(expired.reason(), Reason::never_joined);
  EXPECT_NE(expired.message().find("ranks {1,2} never joined; 2/4 did within 0.5 s"), std::string::npos)
      << expired.message();
}

TEST(Admission, RandomRequestsNeverAdmitTwiceOrOverfill) {
  std::mt19937 random(42);
  for (int round = 0; round < 2000; ++round) {
    Admission a = four();
    std::vector<bool> taken{true, false, false, false};
    for (int i = 0; i < 12; ++i) {
      auto join = request(static_cast<std::uint32_t>(random() % 6), random() % 8 == 0 ? 3 : 4);
      if (random() % 8 == 0) join.job[0] ^= 1;
      if (random() % 8 == 0) join.settings += "x";
      const bool fits = join.job == kJob && join.world == 4 && join.rank < 4 && !taken[join.rank] &&
                        join.settings == kSettings;
      const auto d = a.consider(join);
      ASSERT_EQ(d.verdict == Admission::Verdict::admitted, fits);
      ASSERT_EQ(d.why.ok(), fits);
      if (fits) taken[join.rank] = true;
      ASSERT_EQ(a.admitted(), std::count(taken.begin(), taken.end(), true));
    }
  }
}

}  // namespace
}  // namespace ouro::rt
