// Windows: one-sided access, whole arrays, turns between readers and writers, selective averaging.
#include "ouro/train/window.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/runtime/group/ranks.h"

namespace ouro::train {
namespace {

using test::run_threads;

bool refused(const Status& s) { return s.code() == Code::invalid; }
std::string text(const Status& s) { return s.ok() ? "ok" : s.message(); }

bool uniform(const std::vector<double>& y) {
  return std::all_of(y.begin(), y.end(), [&](double v) { return v == y[0]; });
}

class Windows : public ::testing::TestWithParam<test::Mode> {};

TEST_P(Windows, GetPutAccumulateAndAverageGiveExpectedValues) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  EXPECT_EQ("", run(GetParam(), 3, [](Context& c) -> std::string {
              const auto mine = static_cast<float>(c.rank() + 1);
              std::vector<float> x(1000, mine), y(1000);
              auto w = Window::create(c.world(), std::span<const float>(x));
              OURO_RANK_OK(w);
              OURO_RANK_OK(w->fence());
              for (int r = 0; r < 3; ++r) {
                OURO_RANK_OK(w->get(r, std::span<float>(y)));
                OURO_RANK_CHECK(y == std::vector<float>(1000, static_cast<float>(r + 1)), "rank {} shows {}",
                                r, y[0]);
              }
              // keep 0.5, weights 1 and 3: 0.5 own + 0.5 (1 + 3 * 3) / 4.
              const int donors[] = {2, 0};
              const double weights[] = {3, 1};
              OURO_RANK_OK(average_donors(*w, donors, weights, std::span<float>(x), 0.5));
              OURO_RANK_CHECK(x == std::vector<float>(1000, 0.5F * mine + 1.25F), "{}", x[0]);
              OURO_RANK_OK(w->fence());
              const std::vector<float> one(10, 1);
              OURO_RANK_OK(w->accumulate(0, std::span<const float>(one), ReduceOp::sum, 5));
              OURO_RANK_OK(w->fence());
              OURO_RANK_OK(w->get(0, std::span<float>(y)));
              OURO_RANK_CHECK(y[4] == 1 && y[5] == 4 && y[14] == 4 && y[15] == 1, "{} {} {} {}", y[4], y[5],
                              y[14], y[15]);
              auto version = w->version(0);
              OURO_RANK_OK(version);
              OURO_RANK_CHECK(*version == 3, "version {}", *version);
              return "";
            }));
}
INSTANTIATE_TEST_SUITE_P(All, Windows, ::testing::Values(test::Mode::threads, test::Mode::processes),
                         [](const auto& mode) { return test::name(mode.param); });

/// Owners publish while others read: every array that is read is one that was published, never parts of two,
/// and never older than one that was read before. In the end every rank has read the last one.
TEST_P(Windows, ConcurrentReadersSeeOnlyWholeArrays) {
  OURO_SKIP_PROCESSES_UNDER_TSAN(GetParam());
  EXPECT_EQ("", run(GetParam(), 4, [](Context& c) -> std::string {
              constexpr int kTurns = 100;
              std::vector<double> x(4096, 0), y(4096);
              auto w = Window::create(c.world(), std::span<const double>(x));
              OURO_RANK_OK(w);
              const int donors[] = {0, 1, 2, 3};
              const double weights[] = {1, 1, 1, 1};
              double seen[4] = {}, least = 0;
              const auto look = [&](int other) -> std::string {
                OURO_RANK_OK(w->get(other, std::span<double>(y)));
                OURO_RANK_CHECK(uniform(y), "half of two arrays from rank {}", other);
                OURO_RANK_CHECK(y[0] >= seen[other] && y[0] <= kTurns, "{} after {} from rank {}", y[0],
                                seen[other], other);
                seen[other] = y[0];
                return "";
              };
              for (int t = 1; t <= kTurns; ++t) {
                std::fill(x.begin(), x.end(), static_cast<double>(t));
                OURO_RANK_OK(w->publish(std::span<const double>(x)));
                if (auto wrong = look(c.rank()); !wrong.empty()) return wrong;
                OURO_RANK_CHECK(seen[c.rank()] == t, "{} is the last that was published, {} is shown", t,
                                seen[c.rank()]);
                if (auto wrong = look((c.rank() + t) % 4); !wrong.empty()) return wrong;
                OURO_RANK_OK(average_donors(*w, donors, weights, std::span<double>(y)));
                OURO_RANK_CHECK(uniform(y), "a mean of half arrays");
                double sum = 0;
                for (const double s : seen) sum += s;
                OURO_RANK_CHECK(y[0] >= std::max(sum / 4, least) && y[0] <= kTurns,
                                "a mean of {} after {} and {}", y[0], sum / 4, least);
                least = y[0];
              }
              OURO_RANK_OK(w->fence());
              for (int r = 0; r < 4; ++r) {
                if (auto wrong = look(r); !wrong.empty()) return wrong;
                OURO_RANK_CHECK(seen[r] == kTurns, "rank {} shows {} in the end", r, seen[r]);
                auto version = w->version(r);
                OURO_RANK_OK(version);
                OURO_RANK_CHECK(*version == kTurns, "version {} of rank {}", *version, r);
              }
              OURO_RANK_OK(average_donors(*w, donors, weights, std::span<double>(y)));
              OURO_RANK_CHECK(y == std::vector<double>(4096, kTurns), "a mean of {} in the end", y[0]);
              return "";
            }));
}

/// Overlapping readers do not starve a writer: while it waits, each of them reads at most once more.
TEST(Window, ReadersDoNotStarveAWriter) {
  EXPECT_EQ("", run_threads(4, [](Context& c) -> std::string {
              std::vector<double> x(1 << 17);
              auto w = Window::create(c.world(), std::span<const double>(x));
              OURO_RANK_OK(w);
              if (c.rank() > 0) {  // readers, until the value that they read says that it is over
                for (std::vector<double> y(x.size()); y[0] < 20;) {
                  OURO_RANK_OK(w->get(0, std::span(y)));
                  const double one = 1;
                  // Number of reads so far.
                  OURO_RANK_OK(w->accumulate(c.rank(), std::span<const double>(&one, 1)));
                }
                return "";
              }
              const auto reads = [&]() -> Result<double> {
                double sum = 0;
                for (int r = 1; r < 4; ++r) {
                  double many = 0;
                  OURO_TRY(w->get(r, std::span(&many, 1)));
                  sum += many;
                }
                return sum;
              };
              std::vector<double> waited;
              for (double t = 1; t <= 20; ++t) {
                const auto before = reads();
                OURO_RANK_OK(w->put(0, std::span<const double>(&t, 1)));
                const auto after = reads();
                OURO_RANK_OK(before);
                OURO_RANK_OK(after);
                waited.push_back(*after - *before);
              }
              std::sort(waited.begin(), waited.end());
              OURO_RANK_CHECK(waited[10] <= 12, "{} reads while a writer waited", waited[10]);
              return "";
            }));
}

TEST(Window, RefusesWrongArguments) {
  EXPECT_EQ(
      "", run_threads(2, [](Context& c) -> std::string {
        std::vector<float> x(8, 1);
        std::vector<double> d(8);
        const Status differ = Window::create(c.world(), std::span(x).first(c.rank() == 0 ? 8 : 7)).status();
        OURO_RANK_CHECK(refused(differ), "lengths: {}", text(differ));
        const Status types =
            Window::create(c.world(), c.rank() == 0 ? CView(std::span(x)) : CView(std::span(d))).status();
        OURO_RANK_CHECK(refused(types), "types: {}", text(types));
        auto w = Window::create(c.world(), std::span<const float>(x));
        OURO_RANK_OK(w);
        const View out = std::span<float>(x);
        OURO_RANK_CHECK(refused(w->get(2, out)) && refused(w->get(-1, out)), "rank");
        OURO_RANK_CHECK(refused(w->get(0, out, 1)), "offset");
        OURO_RANK_CHECK(refused(w->get(0, std::span<double>(d))), "type");
        OURO_RANK_CHECK(refused(w->put(0, CView(nullptr, 8, DType::f32))), "null");
        OURO_RANK_CHECK(refused(w->accumulate(0, out, ReduceOp::avg)), "avg");
        OURO_RANK_CHECK(refused(w->accumulate(0, out, ReduceOp::bxor)), "bitwise on floats");
        const int donors[] = {0, 1}, twice[] = {1, 1};
        const double even[] = {1, 1}, none[] = {0, 0}, negative[] = {1, -1};
        OURO_RANK_CHECK(refused(average_donors(*w, donors, even, out, 1.5)), "keep");
        OURO_RANK_CHECK(refused(average_donors(*w, {}, {}, out)), "no donors");
        OURO_RANK_CHECK(refused(average_donors(*w, donors, std::span(even).first(1), out)), "one weight");
        OURO_RANK_CHECK(refused(average_donors(*w, donors, none, out)), "zero weights");
        OURO_RANK_CHECK(refused(average_donors(*w, donors, negative, out)), "negative");
        OURO_RANK_CHECK(refused(average_donors(*w, twice, even, out)), "twice");
        OURO_RANK_CHECK(refused(average_donors(*w, donors, even, std::span<float>(x).first(4))), "shorter");
        OURO_RANK_OK(average_donors(*w, donors, even, out, 1));  // keeps its own values entirely
        return "";
      }));
}

}  // namespace
}  // namespace ouro::train
