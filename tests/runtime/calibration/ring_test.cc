// Posts that go round the ring of the staging buffers: results of operations of many sizes, one after
// another.
#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "runtime/core/collectives.h"
#include "tests/runtime/calibration/invented.h"
#include "tests/runtime/calibration/pinned.h"
#include "tests/runtime/group/access.h"
#include "tests/runtime/group/exchange.h"
#include "tests/runtime/group/ranks.h"

namespace ouro::test {
namespace {

/// Groups have rings if the host has a record.
class Rings : public testing::Test {
 protected:
  Rings() { records_.pin(rt::invented_record()); }
  PinnedRecords records_;
};

constexpr Form kForms[] = {{Collective::all_reduce},       {Collective::broadcast},
                           {Collective::reduce},           {Collective::all_gather},
                           {Collective::gather},           {Collective::scatter},
                           {Collective::reduce_scatter},   {Collective::all_to_all},
                           {Collective::all_gather, true}, {Collective::reduce_scatter, true}};

bool goes_round(const Group& g, std::size_t count) {
  std::vector<float> x(count);
  rt::Operation o;
  o.collective = Collective::all_reduce;
  o.in = CView(x.data(), count, DType::f32), o.out = View(x.data(), count, DType::f32);
  return rt::TestAccess::goes_round(*g.impl(), o);
}

/// Runs operations that the seed determines; every other one waits for nothing beyond its own rounds.
std::string run_many(Context& c, unsigned seed, int operations, bool ring) {
  Group& g = c.world();
  OURO_RANK_OK(rt::TestAccess::select_by(*g.impl(), "", ring));
  OURO_RANK_CHECK(goes_round(g, 4'000) == ring && !goes_round(g, 1'000), "it is {}", goes_round(g, 4'000));
  std::mt19937 random(seed);
  const int n = g.size(), rank = g.rank();
  for (int i = 0; i < operations; ++i) {
    const Form form = kForms[random() % std::size(kForms)];
    // From a slot to several rounds, and to sizes for which posts stay in slots.
    const std::size_t counts[] = {1 + random() % 1'000, 1'000 + random() % 10'000,
                                  60'000 + random() % 60'000};
    const Exchange x{form, n, counts[random() % 3], static_cast<int>(random() % static_cast<unsigned>(n))};
    std::vector<float> in(x.reads(rank) ? x.in_count(rank) : 0),
        out(x.writes(rank) ? x.out_count(rank) : 0, -99.0F);
    for (std::size_t k = 0; k < in.size(); ++k) in[k] = Exchange::value(rank, k);
    OURO_RANK_OK(x.call(g, x.reads(rank) ? CView(in.data(), in.size(), DType::f32) : CView(),
                        x.writes(rank) ? View(out.data(), out.size(), DType::f32) : View(), {}));
    if (x.writes(rank))
      OURO_RANK_CHECK(out == x.expected(rank), "operation {} ({} of {}) is wrong", i, name(form.collective),
                      x.count);
  }
  return "";
}

TEST_F(Rings, OperationsOfManySizesGiveRightResults) {
  for (const Mode mode : {Mode::threads, Mode::processes}) {
    if (OURO_TEST_TSAN && mode == Mode::processes) continue;
    for (const int n : {2, 3, 4})
      EXPECT_EQ(run(mode, n, [&](Context& c) { return run_many(c, 7, OURO_TEST_TSAN ? 60 : 300, true); }), "")
          << n << " " << name(mode);
  }
}

/// What the record says, groups do: with a core for each rank, posts of more than a page.
TEST_F(Rings, AreUsedOnlyIfFasterThanSlots) {
  const auto said = [&](rt::CopyCost ring) {
    rt::Calibration c = rt::invented_record();
    c.pair[1].ring = ring;
    records_.pin(c);
    return run_threads(2, [](Context& context) -> std::string {
      if (!context.impl()->cores().enough_for({0, 1})) return "one core";
      const auto why = context.world().explain(Collective::all_reduce, 4'000, DType::f32);
      OURO_RANK_OK(why.status());
      const bool round = why->find("posts use the ring") != std::string::npos;
      OURO_RANK_CHECK(round == goes_round(context.world(), 4'000), "{}", *why);
      return round ? "round" : "slots";
    });
  };
  const std::string slower = said({20'000, 20'000}), faster = said({5'000, 5'000});
  if (slower.find("one core") != std::string::npos) GTEST_SKIP() << "this machine has no second core";
  EXPECT_EQ(slower.find("round"), std::string::npos) << slower;
  EXPECT_NE(slower.find("slots"), std::string::npos) << slower;
  EXPECT_EQ(faster.find("slots"), std::string::npos) << faster;
  EXPECT_NE(faster.find("round"), std::string::npos) << faster;
}

/// Posts stay in slots for a while, then go round the ring, and back, as when a record is replaced in
/// mid-run.
TEST_F(Rings, SwitchingBetweenSlotsAndRingKeepsResultsRight) {
  EXPECT_EQ(run_threads(3,
                        [](Context& c) -> std::string {
                          std::string wrong;
                          for (unsigned turn = 0; turn < 6 && wrong.empty(); ++turn)
                            wrong = run_many(c, turn, 25, turn % 2 == 1);
                          return wrong;
                        }),
            "");
}

/// A rank that would look elsewhere for a post notices that its peers have put it into the ring.
TEST_F(Rings, RanksThatDisagreeOnTheRingFailWithMismatch) {
  const std::string outcome = run_threads(2, [](Context& c) -> std::string {
    OURO_RANK_OK(rt::TestAccess::select_by(*c.world().impl(), "", c.rank() == 0));
    std::vector<float> x(4'000);
    const Status s = all_reduce(c.world(), std::span<const float>(x), std::span(x));
    OURO_RANK_CHECK(s.reason() == Reason::mismatch, "{}", s.message());
    OURO_RANK_CHECK(s.message().find("posts round the ring") != std::string::npos, "{}", s.message());
    return "";
  });
  EXPECT_EQ(outcome, "");
}

}  // namespace
}  // namespace ouro::test
