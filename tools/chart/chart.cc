// Scales, ticks and paths of a chart. See chart.h.
#include "tools/chart/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ouro::tools {
namespace {

// kLegend, kEntry: width to the right of the panels and height of an entry, if a panel has several lines.
constexpr double kWidth = 860, kPanel = 260, kLeft = 84, kRight = 24, kTop = 48, kGap = 36, kBottom = 52,
                 kLegend = 206, kEntry = 16;
constexpr const char* kColors[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                   "#ff7f0e", "#8c564b", "#17becf", "#e377c2"};
constexpr const char *kDashes[] = {"", "6 3", "2 3"}, *kGrey = "#bbb";
static_assert(std::size(kColors) * std::size(kDashes) == kNamed);

struct Pen {
  const char *color, *dash;
};
std::string stroke(const Pen& pen) {
  const std::string color = fmt::format("stroke=\"{}\"", pen.color);
  return *pen.dash == '\0' ? color : fmt::format("{} stroke-dasharray=\"{}\"", color, pen.dash);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

/// Maps values to positions on the page.
struct Scale {
  double low, high, from, to;
  bool log = false;
  double operator()(double v) const {
    const auto f = [this](double x) { return log ? std::log10(x) : x; };
    return from + (f(v) - f(low)) / (f(high) - f(low)) * (to - from);
  }
};

// A scale cannot hold other values.
bool shown(double v, bool log) { return std::abs(v) <= 1e300 && (!log || v > 0); }

Scale scale_of(const Panel& p, double top, double bottom) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const Line& l : p.lines)
    for (const double v : l.values)
      if (shown(v, p.log)) low = std::min(low, v), high = std::max(high, v);
  if (low > high) low = p.log ? 0.1 : 0, high = 1;  // there is nothing to show
  if (p.log) {                                      // extends to whole decades
    low = std::pow(10, std::floor(std::log10(low) + 1e-9)),
    high = std::pow(10, std::ceil(std::log10(high) - 1e-9));
    if (low >= high) low /= 10;
  } else {
    if (p.from_zero) low = std::min(low, 0.0);
    if (low >= high) low -= p.from_zero ? 0 : 0.5, high += 0.5;
    const double margin = (high - low) * 0.04;
    low = low >= 0 && low < (high - low) / 2 ? 0 : low - margin, high += margin;
  }
  return {low, high, bottom, top, p.log};
}

/// The x of value k of a line, before any scale.
double place_of(const Line& l, int first_x, std::size_t k) {
  return k < l.x.size() ? l.x[k] : first_x + static_cast<double>(k);
}

Scale x_scale(const Chart& chart, double right) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const Panel& p : chart.panels)
    for (const Line& l : p.lines)
      for (std::size_t k = 0; k < l.values.size(); ++k)
        low = std::min(low, place_of(l, chart.first_x, k)),
        high = std::max(high, place_of(l, chart.first_x, k));
  if (low > high) low = high = chart.first_x;
  return {low, std::max(high, low + 1), kLeft, right};
}

/// Draws a polyline for each run of values without a gap, and a dot for a value between two gaps, or for
/// each value.
std::string draw(const Line& l, const Chart& chart, bool log, const Scale& x, const Scale& y,
                 const Pen& pen) {
  std::string svg;
  for (std::size_t i = 0; i < l.values.size();) {
    std::string points;
    std::size_t end = i;
    const auto at = [&](std::size_t k) {
      return std::pair{x(place_of(l, chart.first_x, k)), y(l.values[k])};
    };
    const auto dot = [&](std::size_t k) {
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2\" fill=\"{}\"/>\n", at(k).first,
                         at(k).second, pen.color);
    };
    for (; end < l.values.size() && shown(l.values[end], log); ++end) {
      points += fmt::format("{:.1f},{:.1f} ", at(end).first, at(end).second);
      if (chart.dots) dot(end);
    }
    if (end == i + 1 && !chart.dots) dot(i);
    if (end > i + 1)
      svg += fmt::format("<polyline points=\"{}\" fill=\"none\" {} stroke-width=\"1.5\"/>\n", points,
                         stroke(pen));
    i = end + 1;
  }
  return svg;
}

std::string label(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escaped(text));
}

std::string rule(double x1, double y1, double x2, double y2, const Pen& pen) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2,
                     stroke(pen));
}

constexpr Pen kGrid{"#ddd", ""}, kAxis{"#444", ""}, kOthers{kGrey, ""};

}  // namespace

std::vector<double> ticks(double low, double high, bool log, int most) {
  std::vector<double> list;
  if (!(low < high)) return {low};
  if (log) {
    const int first = static_cast<int>(std::ceil(std::log10(low) - 1e-9)),
              last = static_cast<int>(std::floor(std::log10(high) + 1e-9));
    const int step = std::max(1, (last - first + most - 1) / most);
    for (int e = first; e <= last; e += step) list.push_back(std::pow(10, e));
    return list;
  }
  const double rough = (high - low) / (most - 1), power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double nice : {5.0, 2.0, 1.0})
    if (nice * power >= rough) step = nice * power;
  const double slack = 1e-9 * step;
  for (double k = std::ceil((low - slack) / step); k * step <= high + slack && list.size() < 100; ++k)
    list.push_back(k * step + 0.0);  // + 0.0 turns minus zero into zero
  return list;
}

std::string to_svg(const Chart& chart) {
  std::size_t most = 1;  // maximum number of entries of a legend; the lines without a name take one more
  for (const Panel& p : chart.panels) most = std::max(most, std::min(p.lines.size(), kNamed + 1));
  const double panel = std::max(kPanel, kEntry * static_cast<double>(most));
  const double right = kWidth - kRight - (most > 1 ? kLegend : 0);
  const double height = kTop + static_cast<double>(chart.panels.size()) * (panel + kGap) - kGap + kBottom;
  const Scale x = x_scale(chart, right);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      kWidth, height);
  svg += label(kLeft, 26, "start", chart.title, " font-size=\"15\"");
  std::size_t drawn = 0;
  for (std::size_t i = 0; i < chart.panels.size(); ++i) {
    const Panel& p = chart.panels[i];
    const double top = kTop + static_cast<double>(i) * (panel + kGap), bottom = top + panel;
    const Scale y = scale_of(p, top, bottom);
    for (const double t : ticks(y.low, y.high, p.log)) {
      svg += rule(kLeft, y(t), right, y(t), kGrid);
      svg += label(kLeft - 6, y(t) + 4, "end", p.log ? fmt::format("{:.0e}", t) : fmt::format("{:.4g}", t));
    }
    for (const double t : ticks(x.low, x.high, false)) {
      if (t != std::floor(t)) continue;
      svg += rule(x(t), bottom, x(t), bottom + 5, kAxis);
      svg += label(x(t), bottom + 18, "middle",
                   chart.x_text ? chart.x_text(static_cast<int>(t)) : fmt::format("{:.0f}", t));
    }
    svg += rule(kLeft, top, kLeft, bottom, kAxis) + rule(kLeft, bottom, right, bottom, kAxis);
    svg += label(0, 0, "middle", p.log ? p.y_label + " (log)" : p.y_label,
                 fmt::format(" transform=\"translate(18 {:.1f}) rotate(-90)\"", (top + bottom) / 2).c_str());
    double entry = top + 14;
    const auto explain = [&](const Pen& pen, const std::string& name) {
      if (most > 1) {
        svg += rule(right + 12, entry, right + 36, entry, pen);
        svg += label(right + 42, entry + 4, "start", name);
      } else {
        svg += rule(right - 36, entry, right - 12, entry, pen);
        svg += label(right - 42, entry + 4, "end", name);
      }
      entry += kEntry;
    };
    const std::size_t named = std::min(p.lines.size(), kNamed), others = p.lines.size() - named;
    for (std::size_t k = named; k < p.lines.size(); ++k) svg += draw(p.lines[k], chart, p.log, x, y, kOthers);
    for (std::size_t k = 0; k < named; ++k, ++drawn) {
      const Pen pen{kColors[drawn % std::size(kColors)],
                    kDashes[drawn / std::size(kColors) % std::size(kDashes)]};
      svg += draw(p.lines[k], chart, p.log, x, y, pen);
      explain(pen, p.lines[k].name);
    }
    if (others > 0) explain(kOthers, fmt::format("{} other{}", others, others == 1 ? "" : "s"));
  }
  svg += label((kLeft + right) / 2, height - 12, "middle", chart.x_label);
  return svg + "</svg>\n";
}

}  // namespace ouro::tools
