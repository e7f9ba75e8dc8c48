// Line charts as SVG, one panel below the other over the same x. Used by ouro-train and ouro-perf.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace ouro::tools {

struct Line {
  std::string name;            ///< in the legend
  std::vector<double> values;  ///< beyond 1e300 or no number: a gap
  std::vector<double> x = {};  ///< of each value; none: Chart::first_x, first_x + 1, ...
};

struct Panel {
  std::string y_label = {};  ///< beside the axis
  /// The first kNamed of them in colours, with their names; all others in grey behind them, counted in the
  /// legend.
  std::vector<Line> lines = {};
  bool log = false;        ///< values of 0 and below leave a gap, too
  bool from_zero = false;  ///< the axis begins at 0, however far away the values are
};

struct Chart {
  std::string title = {}, x_label = {};
  int first_x = 0;
  std::vector<Panel> panels = {};
  bool dots = false;                                 ///< at each value; else where a value has no neighbour
  std::function<std::string(int)> x_text = nullptr;  ///< of a whole x; none: the number itself
};

/// How many lines a panel tells apart: each has a colour and a dash of its own.
inline constexpr std::size_t kNamed = 24;

std::string to_svg(const Chart&);

/// Round numbers (1, 2 or 5 times a power of ten) from low to high, at most `most` and at least two where low
/// < high. Log: powers of ten, or of several tens.
std::vector<double> ticks(double low, double high, bool log, int most = 8);

}  // namespace ouro::tools
