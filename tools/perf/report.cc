// Formats of the banner, the rows and the footer.
// Used by rank 0 of the rank program and by the tests.
#include "tools/perf/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>

namespace ouro::perf {
namespace {

std::string wrong_text(const Half& h) {
  return h.wrong ? fmt::format("{:g}", static_cast<double>(*h.wrong)) : "N/A";
}

std::string table_half(const Options& o, const Half* h) {
  if (h == nullptr) {
    std::string s = fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "N/A", "N/A", "N/A", "N/A");
    if (o.iteration_stats) s += fmt::format("  {:>7}  {:>7}  {:>7}  {:>6}", "N/A", "N/A", "N/A", "N/A");
    return s;
  }
  std::string s = fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", format_time(h->us), format_bandwidth(h->algbw),
                              format_bandwidth(h->busbw), wrong_text(*h));
  if (h->samples)
    s += fmt::format("  {:>7}  {:>7}  {:>7}  {:>6.1f}", format_time(h->samples->min),
                     format_time(h->samples->max), format_time(h->samples->p99), h->samples->cv);
  return s;
}

std::string csv_half(const Options& o, const Half* h) {
  if (h == nullptr) return o.iteration_stats ? ",,,,,,,," : ",,,,";
  std::string s = fmt::format(",{:.3f},{:.4f},{:.4f},{}", h->us, h->algbw, h->busbw, wrong_text(*h));
  if (h->samples)
    s += fmt::format(",{:.3f},{:.3f},{:.3f},{:.2f}", h->samples->min, h->samples->max, h->samples->p99,
                     h->samples->cv);
  return s;
}

/// The columns of the distribution of one side; "!" marks what makes the mean doubtful.
std::string table_distribution(const Half* h) {
  constexpr const char* kColumns = "  {:>7}  {:>7}  {:>7}  {:>6}  {:>5}";
  if (h == nullptr || !h->distribution)
    return fmt::format(fmt::runtime(kColumns), "N/A", "N/A", "N/A", "N/A", "N/A");
  const Distribution& d = *h->distribution;
  const std::string halves =
      d.halves > 0 ? fmt::format("{:.{}f}{}", d.halves, d.halves < 100 ? 2 : 0, d.uneven() ? "!" : "") : "-";
  return fmt::format(fmt::runtime(kColumns), format_time(d.min), format_time(d.median), format_time(d.p95),
                     halves, fmt::format("{}{}", d.maps, d.maps > 0 ? "!" : ""));
}

std::string csv_distribution(const Half* h) {
  if (h == nullptr || !h->distribution) return ",,,,,,";
  const Distribution& d = *h->distribution;
  return fmt::format(",{:.3f},{:.3f},{:.3f},{:.3f},{},{}", d.min, d.median, d.p95, d.halves, d.maps,
                     d.warmup);
}

std::string quoted(const std::string& text) {
  std::string s = "\"";
  for (const char c : text) s += c == '"' ? std::string("\"\"") : std::string(1, c);
  return s + '"';
}

/// The columns that describe how an aggregation was done.
std::string how_text(const std::string& strategy, const std::string& streams) {
  return fmt::format("  {:>26}  {:>7}", strategy, streams);
}

std::string aggregation_line(const AggregationOptions& a, int ranks) {
  const auto sites = sites_of(a, ranks);
  return fmt::format(
      "# Aggregation: sites of {} ranks, {}; groups across sites: {}; {} layers; planned: a plan run "
      "again and again, at once: planned in each call\n",
      fmt::join(sites ? *sites : a.sites, ", "),
      a.hsdp ? fmt::format("{} a replica", *a.hsdp) : std::string("each one shard group"), name(a.groups),
      a.layers);
}

}  // namespace

const Sides& sides(const Options& o) {
  static constexpr Sides kCollective{{"out-of-place", "out_of_place"}, {"in-place", "in_place"}},
      kAggregation{{"planned", "planned"}, {"at once", "at_once"}};
  return o.aggregation ? kAggregation : kCollective;
}

std::string format_time(double us) {
  return fmt::format("{:.{}f}", us, us >= 9999.95 ? 0 : us >= 99.995 ? 1 : 2);
}

std::string format_bandwidth(double gbs) {
  return fmt::format("{:.{}f}", gbs, gbs >= 9999.95 ? 0 : gbs >= 999.995 ? 1 : 2);
}

std::string timestamp_now() {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(std::time(nullptr)));
}

std::string banner(const Options& o, std::span<const RankInfo> ranks, const std::string& version,
                   const std::string& start_time) {
  const bool factor = o.step_factor > 1;
  std::string s = fmt::format("# ouro version {}, started {}\n", version, start_time);
  s += fmt::format("# Collective test starting: {}\n", o.program());
  s += fmt::format(
      "# nThread {} nGpus {} minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg iters: {} "
      "validation: {} graph: {}\n",
      o.threads, o.gpus, o.min_bytes, o.max_bytes, factor ? o.step_factor : o.step_bytes,
      factor ? "factor" : "bytes", o.warmup, o.iters, o.aggregate, o.check, o.graph);
  static constexpr const char* kBlocking[] = {
      "calls back to back in the calling thread", "a barrier after each call",
      "calls enqueued on a stream, one wait", "calls enqueued on a stream, a wait after each"};
  static constexpr const char* kAverage[] = {"of rank 0", "mean over ranks", "minimum over ranks",
                                             "maximum over ranks"};
  const char* clock = o.events ? " by events of the GPU" : o.cpu_time ? " of the calls alone" : "";
  const std::string method = o.graph > 0
                                 ? fmt::format("all iterations in a graph, launched {} times", o.graph)
                                 : kBlocking[static_cast<int>(o.blocking)];
  s += fmt::format("# Method: {}{}; time{}: {}; buffers: {}{}\n", method,
                   o.null_stream ? " (the null stream)" : "", clock, kAverage[static_cast<int>(o.average)],
                   o.registered ? "registered (ouro's allocator)" : "private",
                   o.unalign > 0 ? fmt::format(", shifted by {} elements", o.unalign) : "");
  if (o.aggregation) s += aggregation_line(*o.aggregation, static_cast<int>(ranks.size()));
  s += "#\n# Using devices\n";
  for (const RankInfo& r : ranks)
    s += fmt::format("#  Rank {:2d} Group {:2d} Pid {:6d} on {:>10} device {:2d} [{}] {}\n", r.rank, r.group,
                     r.pid, r.host, std::max(r.gpu, 0), r.gpu < 0 ? "host" : r.bus, r.device);
  return s;
}

std::string header(const Options& o) {
  if (o.output == Output::csv) {
    std::string s = "size,count,type,redop,root";
    if (o.aggregation) s += ",strategy,streams";
    for (const char* side : {sides(o).first.key, sides(o).second.key}) {
      for (const char* c : {"time_us", "algbw_gbs", "busbw_gbs", "wrong"})
        s += fmt::format(",{}_{}", side, c);
      if (o.iteration_stats)
        for (const char* c : {"i_min", "i_max", "i_p99", "i_cv_percent"}) s += fmt::format(",{}_{}", side, c);
    }
    if (o.timestamps) s += ",timestamp";
    if (o.distribution)
      for (const char* side : {sides(o).first.key, sides(o).second.key})
        for (const char* c : {"min_us", "median_us", "p95_us", "halves", "maps", "warmup"})
          s += fmt::format(",{}_{}", side, c);
    if (o.explain) s += ",explain";
    return s + "\n";
  }
  if (o.output == Output::osu) {
    std::string s = fmt::format("# OSU-style {} latency (ouro)\n# Size       Avg Latency(us)", o.name());
    if (o.iteration_stats) s += "   Min Latency(us)   Max Latency(us)";
    s += "  Iterations";
    if (o.timestamps) s += "  Time stamp";
    if (o.explain) s += "  Explanation";
    return s + "\n";
  }
  const int width = o.iteration_stats ? 65 : 33;
  std::string titles = fmt::format("{:^{}}{:^{}}", sides(o).first.title, width, sides(o).second.title, width);
  std::string names, units;
  if (o.aggregation) {
    titles.insert(0, how_text("", ""));
    names = how_text("strategy", "streams");
    units = how_text("", "");
  }
  for (int side = 0; side < 2; ++side) {
    names += fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "time", "algbw", "busbw", "#wrong");
    units += fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", "(us)", "(GB/s)", "(GB/s)", "");
    if (o.iteration_stats) {
      names += fmt::format("  {:>7}  {:>7}  {:>7}  {:>6}", "i_min", "i_max", "i_p99", "i_cv%");
      units += fmt::format("  {:>7}  {:>7}  {:>7}  {:>6}", "(us)", "(us)", "(us)", "");
    }
  }
  if (o.timestamps) names += fmt::format("  {:>19}", "timestamp");
  if (o.distribution) {
    if (o.timestamps) titles += std::string(21, ' '), units += std::string(21, ' ');
    for (const char* title : {sides(o).first.title, sides(o).second.title}) {
      titles += fmt::format("{:^42}", title);
      names += fmt::format("  {:>7}  {:>7}  {:>7}  {:>6}  {:>5}", "min", "median", "p95", "halves", "maps");
      units += fmt::format("  {:>7}  {:>7}  {:>7}  {:>6}  {:>5}", "(us)", "(us)", "(us)", "", "");
    }
  }
  if (o.explain) names += "  what runs";
  const auto line = [](const char* a, const char* b, const char* c, const char* d, const char* e,
                       const std::string& r) {
    return fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}{}\n", a, b, c, d, e, r);
  };
  return "#\n" + line("", "", "", "", "", titles) + line("size", "count", "type", "redop", "root", names) +
         line("(B)", "(elements)", "", "", "", units);
}

std::string format_row(const Options& o, const Row& r) {
  const Half* in = r.in_place ? &*r.in_place : nullptr;
  std::string s;
  if (o.output == Output::osu) {
    s = fmt::format("{:<10}  {:>18.2f}", r.size, r.out_of_place.us);
    if (r.out_of_place.samples)
      s += fmt::format("  {:>16.2f}  {:>16.2f}", r.out_of_place.samples->min, r.out_of_place.samples->max);
    s += fmt::format("  {:>10}", o.iters);
  } else if (o.output == Output::csv) {
    s = fmt::format("{},{},{},{},{}", r.size, r.count, r.type, r.redop, r.root);
    if (o.aggregation) s += fmt::format(",{},{}", r.strategy, r.streams);
    s += csv_half(o, &r.out_of_place) + csv_half(o, in);
    if (o.timestamps) s += "," + r.timestamp;
    if (o.distribution) s += csv_distribution(&r.out_of_place) + csv_distribution(in);
    if (o.explain) s += "," + quoted(r.explain);
    return s + "\n";
  } else {
    s = fmt::format("{:>12}  {:>12}  {:>8}  {:>6}  {:>6}", r.size, r.count, r.type, r.redop, r.root);
    if (o.aggregation) s += how_text(r.strategy, std::to_string(r.streams));
    s += table_half(o, &r.out_of_place) + table_half(o, in);
  }
  if (o.timestamps) s += "  " + r.timestamp;
  if (o.distribution && o.output == Output::table)
    s += table_distribution(&r.out_of_place) + table_distribution(in);
  if (o.explain) s += "  " + r.explain;
  return s + "\n";
}

std::string footer(const Options& o, const Summary& s) {
  std::string text = fmt::format("# Out of bounds values : {} {}\n", s.wrong,
                                 !s.checked  ? "OK (not checked: -c 0)"
                                 : s.right() ? "OK"
                                             : "FAILED");
  text += fmt::format("# Avg bus bandwidth    : {:g} {}\n", s.average_busbw,
                      s.min_busbw <= 0  ? ""
                      : s.fast_enough() ? "OK"
                                        : "FAILED");
  if (s.marked > 0)
    text += fmt::format(
        "# Marked with !        : {} of the times are doubtful: the halves of a loop differ by more than {} "
        "times, or\n#                        memory of other processes was mapped during it (maps)\n",
        s.marked, kUnevenHalves);
  for (const std::string& e : s.errors) text += fmt::format("# Error: {}\n", e);
  return text + fmt::format("#\n# Collective test concluded: {}\n", o.program());
}

std::string memory_lines(std::span<const RankInfo> ranks) {
  std::string s = "#\n# Peak resident memory (threads of a process share it)\n";
  for (const RankInfo& r : ranks)
    s += fmt::format("#  Rank {:2d} Pid {:6d} on {:>10} {:10.1f} MiB\n", r.rank, r.pid, r.host,
                     r.peak_bytes / (1 << 20));
  return s;
}

}  // namespace ouro::perf
