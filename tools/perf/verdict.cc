// The verdict's sentences and the plot. Used by rank 0 of the rank program and by the tests.
#include "tools/perf/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "tools/chart/chart.h"

namespace ouro::perf {
namespace {

std::string binary_size(std::size_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  int unit = 0;
  double x = static_cast<double>(bytes);
  while (x >= 1024 && unit < 3) x /= 1024, ++unit;
  return fmt::format("{:.4g} {}", x, kUnits[unit]);
}

struct Best {
  const Row* row = nullptr;
  const Half* half = nullptr;
  bool in_place = false;
};

/// The half with the largest bus bandwidth among rows of at least `least` bytes.
Best best_of(std::span<const Row> rows, std::size_t least) {
  Best best;
  for (const Row& r : rows) {
    if (r.size < least) continue;
    for (const bool in_place : {false, true}) {
      const Half* h = in_place ? (r.in_place ? &*r.in_place : nullptr) : &r.out_of_place;
      if (h != nullptr && (best.half == nullptr || h->busbw > best.half->busbw)) best = {&r, h, in_place};
    }
  }
  return best;
}

std::string describe(const Best& b) {
  return fmt::format("{} of {}{}, {}", binary_size(b.row->size), b.row->type,
                     b.row->redop == "none" ? "" : " " + b.row->redop,
                     b.in_place ? "in place" : "out of place");
}

/// The text that says which copies the ceiling is from.
std::string copied(const Ceiling& c) {
  if (c.gpus > 0) return fmt::format("copies inside {} GPU{} reached", c.gpus, c.gpus == 1 ? "" : "s");
  return fmt::format("all {} ranks reached together copying private buffers", c.group_size * c.groups);
}

}  // namespace

std::string verdict(const Options& o, std::span<const Row> rows, const Summary& s, const Ceiling& c) {
  std::string text = "# Verdict\n";
  if (!s.checked) {
    text += "#  Results: not checked (-c 0).\n";
  } else if (s.right()) {
    text += fmt::format("#  Results: right. {} rows on {} ranks, whole buffers compared bit for bit.\n",
                        rows.size(), c.group_size * c.groups);
  } else {
    text += fmt::format("#  Results: WRONG. {} elements differ from what they must be.\n", s.wrong);
  }
  const Best top = best_of(rows, 0);
  if (top.half == nullptr || top.half->algbw <= 0) return text + "#  Speed: no bytes were moved.\n";
  if (c.group_size == 1)
    text += "#  Speed: one rank has no peer, so bus bandwidth is 0; try -t 2 or --ranks 2.\n";
  else
    text += fmt::format("#  Speed: best bus bandwidth {:.2f} GB/s ({}).\n", top.half->busbw, describe(top));

  std::size_t largest = 0;
  for (const Row& r : rows) largest = std::max(largest, r.size);
  const Best big = best_of(rows, largest);
  if (big.half->us > 0 && c.copy_gbs > 0) {
    const double bytes = least_memory_bytes(o.kind, static_cast<double>(largest), c.group_size) * c.groups;
    const double used = bytes / 1e3 / big.half->us;
    text += fmt::format(
        "#  Limit: at {}, each call has to read every input once and write every output once: {:.1f} GB/s,\n"
        "#         {:.0f} % of the {:.1f} GB/s that {} of {}.\n",
        describe(big), used, 100 * used / c.copy_gbs, c.copy_gbs, copied(c), binary_size(c.copy_bytes));
    if (used > c.copy_gbs) text += "#         More than 100 %: part of the data was still in the caches.\n";
  }
  text += fmt::format("#  Machine: {} processors for {} ranks; other programs took {:.0f} % of them{}.\n",
                      c.cpus, c.group_size * c.groups, 100 * c.others_share,
                      c.others_share > 0.06 ? ": do not trust these times, run again when it is idle" : "");
  return text;
}

std::string limit_lines(const Options& o, std::span<const Row> rows, const Ceiling& c) {
  std::string text = fmt::format(
      "#\n# Limit: {:.1f} GB/s that {} of {}, reads and writes counted, in this run\n"
      "# {:>10}  {:>8}  {:>6}  {:>14}  {:>10}  {:>12}  {:>12}\n",
      c.copy_gbs, copied(c), binary_size(c.copy_bytes), "size (B)", "type", "redop", "least bytes",
      "limit (us)", "out-of-place", "in-place");
  for (const Row& r : rows) {
    if (r.size == 0) continue;
    const double bytes = least_memory_bytes(o.kind, static_cast<double>(r.size), c.group_size) * c.groups;
    const double us = c.copy_gbs > 0 ? bytes / 1e3 / c.copy_gbs : 0;
    const auto share = [us](const Half* h) {
      return h != nullptr && h->us > 0 ? fmt::format("{:.1f} %", 100 * us / h->us) : std::string("N/A");
    };
    text += fmt::format("# {:>10}  {:>8}  {:>6}  {:>14.0f}  {:>10}  {:>12}  {:>12}\n", r.size, r.type,
                        r.redop, bytes, fmt::format("{:.2f}", us), share(&r.out_of_place),
                        share(r.in_place ? &*r.in_place : nullptr));
  }
  return text;
}

namespace {

/// Whether small values would be on the axis of a linear scale.
bool spans_decades(std::span<const tools::Line> lines) {
  constexpr double kDecades = 30;  // a value of 1/30 is 8 of 260 pixels high
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const tools::Line& l : lines)
    for (const double v : l.values)
      if (v > 0) low = std::min(low, v), high = std::max(high, v);
  return high > kDecades * low;
}

}  // namespace

std::string plot_svg(const Options& o, std::span<const Row> rows) {
  std::map<std::string, tools::Line> lines;
  const auto add = [&](const Row& r, const Half& h, const char* side) {
    if (r.size == 0) return;
    const std::string name = fmt::format("{}{}{}, {}", r.type, r.redop == "none" ? "" : " " + r.redop,
                                         r.root < 0 ? "" : fmt::format(" root {}", r.root), side);
    tools::Line& line = lines[name];
    line.name = name;
    line.x.push_back(std::log2(static_cast<double>(r.size)));
    line.values.push_back(h.busbw);
  };
  for (const Row& r : rows) {
    add(r, r.out_of_place, "out of place");
    if (r.in_place) add(r, *r.in_place, "in place");
  }
  tools::Panel panel{.y_label = "bus bandwidth (GB/s)", .lines = {}};
  for (auto& [name, line] : lines) panel.lines.push_back(std::move(line));
  panel.log = spans_decades(panel.lines);
  panel.from_zero = !panel.log;
  // If there are too many lines to label all, the fastest are labelled, and the slowest are drawn as
  // grey lines.
  const auto best = [](const tools::Line& l) { return *std::max_element(l.values.begin(), l.values.end()); };
  if (panel.lines.size() > tools::kNamed)
    std::stable_sort(panel.lines.begin(), panel.lines.end(),
                     [&](const tools::Line& a, const tools::Line& b) { return best(a) > best(b); });
  return tools::to_svg({.title = fmt::format("{}: bus bandwidth over size", info(o.kind).name),
                        .x_label = "size",
                        .panels = {std::move(panel)},
                        .dots = true,
                        .x_text = [](int e) { return binary_size(std::size_t{1} << e); }});
}

}  // namespace ouro::perf
