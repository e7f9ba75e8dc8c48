// The verdict's sentences and the picture.
// Used by rank 0 of the rank program and by the tests.
#include "tools/perf/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

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

/// Who copied.
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
    text += "#  Speed: one rank has nobody to talk to, so bus bandwidth is 0; try -t 2 or --ranks 2.\n";
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
                      c.others_share > 0.06 ? ": do not trust these times, run again when it is quiet" : "");
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

std::string plot_svg(const Options& o, std::span<const Row> rows) {
  constexpr double kWidth = 860, kHeight = 480, kLeft = 70, kRight = 230, kTop = 40, kBottom = 60;
  static constexpr const char* kColors[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                            "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f"};
  std::map<std::string, std::vector<std::pair<double, double>>> lines;  // log2(bytes), GB/s
  double low = 1e9, high = 0, top = 0;
  const auto add = [&](const Row& r, const Half& h, const char* side) {
    if (r.size == 0) return;
    const double x = std::log2(static_cast<double>(r.size));
    low = std::min(low, x), high = std::max(high, x), top = std::max(top, h.busbw);
    lines[fmt::format("{}{}{}, {}", r.type, r.redop == "none" ? "" : " " + r.redop,
                      r.root < 0 ? "" : fmt::format(" root {}", r.root), side)]
        .emplace_back(x, h.busbw);
  };
  for (const Row& r : rows) {
    add(r, r.out_of_place, "out of place");
    if (r.in_place) add(r, *r.in_place, "in place");
  }
  if (lines.empty()) low = high = 0;
  if (high <= low) high = low + 1;
  if (top <= 0) top = 1;
  const auto px = [&](double x) { return kLeft + (x - low) / (high - low) * (kWidth - kLeft - kRight); };
  const auto py = [&](double y) { return kHeight - kBottom - y / top * (kHeight - kTop - kBottom); };

  std::string s = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"24\" font-size=\"16\">{3}: bus bandwidth (GB/s) over size</text>\n",
      kWidth, kHeight, kLeft, info(o.kind).name);
  for (int i = 0; i <= 4; ++i) {
    const double y = top * i / 4;
    s += fmt::format(
        "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.3g}</text>\n",
        kLeft, kWidth - kRight, py(y), py(y), kLeft - 6, py(y) + 4, y);
  }
  const int step = std::max(1, static_cast<int>(std::ceil((high - low) / 8)));
  for (int e = static_cast<int>(std::ceil(low)); e <= static_cast<int>(high); e += step)
    s += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", px(e),
                     kHeight - kBottom + 20, binary_size(std::size_t{1} << e));
  std::size_t i = 0;
  for (const auto& [label, points] : lines) {
    const char* color = kColors[i % std::size(kColors)];
    std::string path;
    for (const auto& [x, y] : points) {
      path += fmt::format("{:.1f},{:.1f} ", px(x), py(y));
      s += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>\n", px(x), py(y), color);
    }
    s += fmt::format(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n",
        path, color, kWidth - kRight + 12, kTop + 16 * static_cast<double>(i), color, label);
    ++i;
  }
  return s + "</svg>\n";
}

}  // namespace ouro::perf
