// Scales, ticks and paths of a chart. See chart.h.
#include "tools/train/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ouro::tools {
namespace {

constexpr double kWidth = 860, kPanel = 260, kLeft = 84, kRight = 24, kTop = 48, kGap = 36, kBottom = 52;
constexpr const char* kColors[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

/// Values between two places on the page.
struct Scale {
  double low, high, from, to;
  bool log = false;
  double operator()(double v) const {
    const auto f = [this](double x) { return log ? std::log10(x) : x; };
    return from + (f(v) - f(low)) / (f(high) - f(low)) * (to - from);
  }
};

bool shown(double v, bool log) { return std::abs(v) <= 1e300 && (!log || v > 0); }  // else no scale holds it

Scale scale_of(const Panel& p, double top, double bottom) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double v : p.values)
    if (shown(v, p.log)) low = std::min(low, v), high = std::max(high, v);
  if (low > high) low = p.log ? 0.1 : 0, high = 1;  // nothing to show
  if (p.log) {                                      // whole decades
    low = std::pow(10, std::floor(std::log10(low) + 1e-9)),
    high = std::pow(10, std::ceil(std::log10(high) - 1e-9));
    if (low >= high) low /= 10;
  } else {
    if (low >= high) low -= 0.5, high += 0.5;
    const double margin = (high - low) * 0.04;
    low = low >= 0 && low < (high - low) / 2 ? 0 : low - margin, high += margin;
  }
  return {low, high, bottom, top, p.log};
}

/// Of one panel: a line for each run of values without a gap, a dot for one between two gaps.
std::string lines(const Panel& p, int first_x, const Scale& x, const Scale& y, const char* color) {
  std::string svg;
  for (std::size_t i = 0; i < p.values.size();) {
    std::string points;
    std::size_t end = i;
    const auto at = [&](std::size_t k) {
      return std::pair{x(first_x + static_cast<double>(k)), y(p.values[k])};
    };
    for (; end < p.values.size() && shown(p.values[end], p.log); ++end)
      points += fmt::format("{:.1f},{:.1f} ", at(end).first, at(end).second);
    if (end == i + 1)
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2\" fill=\"{}\"/>\n", at(i).first,
                         at(i).second, color);
    else if (end > i)
      svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n",
                         points, color);
    i = end + 1;
  }
  return svg;
}

std::string label(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escaped(text));
}

std::string rule(double x1, double y1, double x2, double y2, const char* color) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1,
                     y1, x2, y2, color);
}

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
    list.push_back(k * step + 0.0);  // no minus in front of zero
  return list;
}

std::string to_svg(const Chart& chart) {
  const double height = kTop + static_cast<double>(chart.panels.size()) * (kPanel + kGap) - kGap + kBottom;
  std::size_t most = 2;
  for (const Panel& p : chart.panels) most = std::max(most, p.values.size());
  const Scale x{static_cast<double>(chart.first_x),
                static_cast<double>(chart.first_x) + static_cast<double>(most) - 1, kLeft, kWidth - kRight};
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      kWidth, height);
  svg += label(kLeft, 26, "start", chart.title, " font-size=\"15\"");
  for (std::size_t i = 0; i < chart.panels.size(); ++i) {
    const Panel& p = chart.panels[i];
    const char* color = kColors[i % std::size(kColors)];
    const double top = kTop + static_cast<double>(i) * (kPanel + kGap), bottom = top + kPanel;
    const Scale y = scale_of(p, top, bottom);
    for (const double t : ticks(y.low, y.high, p.log)) {
      svg += rule(kLeft, y(t), kWidth - kRight, y(t), "#ddd");
      svg += label(kLeft - 6, y(t) + 4, "end", p.log ? fmt::format("{:.0e}", t) : fmt::format("{:.4g}", t));
    }
    for (const double t : ticks(x.low, x.high, false)) {
      if (t != std::floor(t)) continue;
      svg += rule(x(t), bottom, x(t), bottom + 5, "#444");
      svg += label(x(t), bottom + 18, "middle", fmt::format("{:.0f}", t));
    }
    svg += rule(kLeft, top, kLeft, bottom, "#444") + rule(kLeft, bottom, kWidth - kRight, bottom, "#444");
    svg += label(0, 0, "middle", p.log ? p.y_label + " (log)" : p.y_label,
                 fmt::format(" transform=\"translate(18 {:.1f}) rotate(-90)\"", (top + bottom) / 2).c_str());
    svg += lines(p, chart.first_x, x, y, color);
    const double legend = kWidth - kRight - 12;
    svg += rule(legend - 24, top + 14, legend, top + 14, color);
    svg += label(legend - 30, top + 18, "end", p.series);
  }
  svg += label((kLeft + kWidth - kRight) / 2, height - 12, "middle", chart.x_label);
  return svg + "</svg>\n";
}

}  // namespace ouro::tools
