// The SVG picture of ouro-topo: one circle of ranks for each round, with an arrow from each sender to its
// receiver. See report.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tools/topo/report.h"

namespace ouro::topo {
namespace {

constexpr double kPi = std::numbers::pi;

struct Point {
  double x, y;
};

/// The positions of the ranks in one round: on a circle, rank 0 on top, clockwise.
struct Circle {
  Point centre;
  double radius, dot;
  int n;
  Point of(int rank) const {
    const double angle = 2 * kPi * rank / n - kPi / 2;
    return {centre.x + radius * std::cos(angle), centre.y + radius * std::sin(angle)};
  }
};

/// A slightly bent line between two dots, so that it avoids those in between, and arrows in opposite
/// directions do not coincide.
std::string arrow(const Circle& c, int from, int to, double weight, bool both_ways) {
  const Point a = c.of(from), b = c.of(to);
  const double length = std::hypot(b.x - a.x, b.y - a.y), ux = (b.x - a.x) / length,
               uy = (b.y - a.y) / length;
  const double bend = both_ways ? 0 : length * 0.08;
  const Point middle{(a.x + b.x) / 2 - uy * bend, (a.y + b.y) / 2 + ux * bend};
  const double gap = c.dot + 2;
  return fmt::format(
      "<path class=\"{}\" d=\"M{:.1f} {:.1f}Q{:.1f} {:.1f} {:.1f} {:.1f}\" style=\"stroke-width:{:.2f}\"/>\n",
      both_ways ? "both" : "one", a.x + ux * gap, a.y + uy * gap, middle.x, middle.y, b.x - ux * gap,
      b.y - uy * gap, 0.75 + 2.25 * weight);
}

/// The opacity of the lines of a round: the more lines there are, the fainter, so that the disc is light, and
/// dots and overlapping lines can be distinguished.
double opacity_of(const Circle& c, const train::Topology& t, int round) {
  constexpr double kMost = 0.8, kLeast = 0.01, kInk = 0.35;  // kInk: share of the disc's area that is covered
  double ink = 0;
  for (int to = 0; to < c.n; ++to)
    for (const auto& [from, weight] : t.row(round, to).in) {
      const Point a = c.of(from), b = c.of(to);
      // Halved, because most lines stand for both directions.
      ink += std::hypot(b.x - a.x, b.y - a.y) * (0.75 + 2.25 * weight) / 2;
    }
  return ink > 0 ? std::clamp(kInk * kPi * c.radius * c.radius / ink, kLeast, kMost) : kMost;
}

bool takes(const train::Row& row, int from) {
  return std::any_of(row.in.begin(), row.in.end(), [&](const auto& x) { return x.first == from; });
}

}  // namespace

std::string picture(const Summary& s, const train::Topology& t) {
  const int n = t.size(), columns = std::min(4, t.period()), lines = (t.period() + columns - 1) / columns;
  const double radius = std::clamp(11.0 * n / (2 * kPi), 80.0, 400.0), dot = n <= 32 ? 11 : n <= 64 ? 6 : 3;
  const double cell = 2 * radius + 70, top = 64, width = std::max(columns * cell, 460.0),
               height = top + lines * cell;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\">\n"
      "<style>text{{font-family:sans-serif;fill:#222}}path{{fill:none}}"
      ".both{{stroke:#2b6cb0}}"
      ".one{{stroke:#c05621;marker-end:url(#tip)}}circle{{fill:#edf2f7;stroke:#4a5568}}</style>\n"
      "<defs><marker id=\"tip\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" "
      "markerWidth=\"6\" markerHeight=\"6\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">"
      "<path d=\"M0 0L6 3L0 6z\" "
      "style=\"fill:#c05621\"/></marker></defs>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      width, height);
  svg += fmt::format("<text x=\"16\" y=\"28\" font-size=\"18\">{}, {} ranks</text>\n", s.name, n);
  svg += fmt::format(
      "<text x=\"16\" y=\"48\" font-size=\"12\">degree {}, contraction {:.4g} a period, {}</text>\n",
      s.degree, s.exact ? 0 : s.contraction,
      s.exact ? fmt::format("exact after {} rounds", t.period())
              : fmt::format("{} rounds to 1/1000", s.rounds_to_consensus));
  for (int k = 0; k < t.period(); ++k) {
    const Circle c{{(k % columns + 0.5) * cell, top + (k / columns + 0.5) * cell + 8}, radius, dot, n};
    svg += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"12\" text-anchor=\"middle\">round {}</text>\n",
        c.centre.x, c.centre.y - radius - 20, k);
    svg += fmt::format("<g stroke-opacity=\"{:.3f}\">\n", opacity_of(c, t, k));
    for (int to = 0; to < n; ++to) {
      for (const auto& [from, weight] : t.row(k, to).in) {
        const bool both = takes(t.row(k, from), to);
        if (!both || from < to) svg += arrow(c, from, to, weight, both);
      }
    }
    svg += "</g>\n";
    for (int r = 0; r < n; ++r) {
      const Point p = c.of(r);
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"/>", p.x, p.y, dot);
      if (dot >= 6)
        svg += fmt::format(
            "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:.0f}\" text-anchor=\"middle\">{}</text>", p.x,
            p.y + dot * 0.36, dot * 0.95, r);
      svg += '\n';
    }
  }
  return svg + "</svg>\n";
}

}  // namespace ouro::topo
