// Charts: ticks, scales, gaps, legends.
#include "tools/chart/chart.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <set>

namespace ouro::tools {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Ticks, AreRoundAndFew) {
  EXPECT_THAT(ticks(0, 10, false, 6), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(ticks(0, 239, false, 8), ElementsAre(0, 50, 100, 150, 200));
  EXPECT_THAT(ticks(-1, 1, false, 5), ElementsAre(-1, -0.5, 0, 0.5, 1));
  EXPECT_THAT(ticks(3, 3, false), ElementsAre(3));
  EXPECT_THAT(ticks(1e-3, 1e1, true), ElementsAre(DoubleEq(1e-3), DoubleEq(1e-2), DoubleEq(1e-1), 1, 10));
  for (const double high : {1e-300, 0.003, 7.7, 1e9, 1e300}) {
    const std::vector<double> list = ticks(0, high, false);
    EXPECT_GE(list.size(), 2u) << high;
    EXPECT_LE(list.size(), 8u) << high;
    EXPECT_LE(list.back(), high * (1 + 1e-6));
  }
  EXPECT_LE(ticks(1e-30, 1, true).size(), 9u);
}

TEST(Chart, ShowsPanelsWithAxesAndNames) {
  const std::string svg =
      to_svg({.title = "a < b",
              .x_label = "step",
              .first_x = 5,
              .panels = {{.y_label = "loss", .lines = {{"mean", {2, 1, 0.5}}}},
                         {.y_label = "d", .lines = {{"far", {1, 0.01, 0.1}}}, .log = true}}});
  EXPECT_THAT(svg, HasSubstr(">a &lt; b<"));
  for (const char* text :
       {">step<", ">loss<", ">mean<", ">d (log)<", ">far<", ">5<", ">7<", ">1e-02<", ">1e+00<"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_EQ(count(svg, "<polyline"), 2u);
}

TEST(Chart, NonFiniteValuesLeaveGaps) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                   kInf = std::numeric_limits<double>::infinity();
  const auto lines = [](std::vector<double> values, bool log) {
    const std::string svg =
        to_svg({.title = "t",
                .x_label = "x",
                .first_x = 0,
                .panels = {{.y_label = "y", .lines = {{"s", std::move(values)}}, .log = log}}});
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
    return std::pair{count(svg, "<polyline"), count(svg, "<circle")};
  };
  using Marks = std::pair<std::size_t, std::size_t>;  // lines, dots
  EXPECT_EQ(lines({1, 2, kNan, 3, kInf, 4}, false), Marks(1, 2));
  EXPECT_EQ(lines({1, 2, 0, 3, 5, -1, 4}, true), Marks(2, 1));
  EXPECT_EQ(lines({}, false), Marks(0, 0));
  EXPECT_EQ(lines({0, 0}, true), Marks(0, 0));
  EXPECT_EQ(lines({7}, false), Marks(0, 1));
  EXPECT_EQ(lines({7, 7}, true), Marks(1, 0));
  EXPECT_EQ(lines({1e-300, 1e300}, true), Marks(1, 0));
  EXPECT_EQ(lines({-1e308, 1, 2}, false), Marks(1, 0));
}

TEST(Chart, LegendNamesOnlyLinesThatCanBeDistinguished) {
  const auto legend = [](std::size_t n) {
    Panel panel;
    for (std::size_t k = 0; k < n; ++k) panel.lines.push_back({fmt::format("line {}", k), {1, 2}});
    return to_svg({.panels = {std::move(panel)}});
  };
  const std::string full = legend(kNamed);
  std::set<std::string> pens;
  const std::regex polyline("<polyline[^>]*fill=\"none\" ([^>]*)/>");
  for (std::sregex_iterator i(full.begin(), full.end(), polyline), end; i != end; ++i) pens.insert((*i)[1]);
  EXPECT_EQ(pens.size(), kNamed) << "each has a colour and a dash of its own";
  EXPECT_THAT(full, Not(HasSubstr("other")));
  EXPECT_THAT(legend(kNamed + 1), HasSubstr(">1 other<"));
  const std::string many = legend(300);
  EXPECT_THAT(many, HasSubstr(">276 others<"));
  EXPECT_EQ(count(many, "<polyline"), 300u);
  EXPECT_EQ(count(many, ">line "), kNamed);
}

TEST(Chart, LinesMayHaveTheirOwnXValues) {
  const std::string svg = to_svg({.title = "t",
                                  .x_label = "size",
                                  .panels = {{.y_label = "GB/s",
                                              .lines = {{"a", {90, 91, 92}, {3, 5, 7}}, {"b", {95}, {4}}},
                                              .from_zero = true}},
                                  .dots = true,
                                  .x_text = [](int e) { return "2^" + std::to_string(e); }});
  for (const char* text : {">a<", ">b<", ">2^3<", ">2^7<", ">0<", ">GB/s<"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_EQ(count(svg, "<polyline"), 1u);
  EXPECT_EQ(count(svg, "<circle"), 4u);
  EXPECT_THAT(to_svg({.panels = {{.from_zero = true}}}), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace ouro::tools
