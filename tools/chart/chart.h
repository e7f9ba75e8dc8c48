// Line charts as SVG: panels one below the other over the same x axis. Used by ouro-train and ouro-perf.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace ouro::tools {

struct Line {
  std::string name;            ///< shown in the legend
  std::vector<double> values;  ///< a value above 1e300 or not a number leaves a gap
  std::vector<double> x = {};  ///< one for each value; empty: Chart::first_x, first_x + 1, ...
};

struct Panel {
  std::string y_label = {};  ///< label of the axis
  /// The first kNamed of them are drawn in colours and named in the legend; all others in grey behind them,
  /// and the legend has their number.
  std::vector<Line> lines = {};
  bool log = false;        ///< values of 0 and below leave a gap too
  bool from_zero = false;  ///< the axis starts at 0, however large the values are
};

struct Chart {
  std::string title = {}, x_label = {};
  int first_x = 0;
  std::vector<Panel> panels = {};
  bool dots = false;  ///< draw a dot at each value; otherwise only at values without a neighbour
  std::function<std::string(int)> x_text = nullptr;  ///< label of an integral x; null: the number itself
};

/// The number of lines that a panel can distinguish: each has its own combination of colour and dash pattern.
inline constexpr std::size_t kNamed = 24;

std::string to_svg(const Chart&);

/// Round numbers (1, 2 or 5 times a power of ten) from low to high, at most `most`, and at least two if low <
/// high. Log: powers of ten, or every few powers of ten.
std::vector<double> ticks(double low, double high, bool log, int most = 8);

}  // namespace ouro::tools
