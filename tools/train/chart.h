// Line charts as SVG, one panel below the other over the same x. Used by the reports of ouro-train.
#pragma once
#include <string>
#include <vector>

namespace ouro::tools {

struct Panel {
  std::string y_label, series;  ///< beside the axis, in the legend
  std::vector<double> values;   ///< at x = first_x, first_x + 1, ...; beyond 1e300 or no number: a gap
  bool log = false;             ///< values of 0 and below leave a gap, too
};

struct Chart {
  std::string title, x_label;
  int first_x = 0;
  std::vector<Panel> panels;
};

std::string to_svg(const Chart&);

/// Round numbers (1, 2 or 5 times a power of ten) from low to high, at most `most` and at least two where low
/// < high. Log: powers of ten, or of several tens.
std::vector<double> ticks(double low, double high, bool log, int most = 8);

}  // namespace ouro::tools
