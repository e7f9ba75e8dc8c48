// Reads the JSON of an earlier run and prints the ratios.
// Used by rank 0 of the rank program and by the tests.
#include "tools/perf/compare.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/cli/files.h"

namespace ouro::perf {
namespace {

std::string ratio(const std::optional<double>& base, const Half* now) {
  return base && *base > 0 && now != nullptr && now->us > 0 ? fmt::format("{:.2f}", *base / now->us) : "N/A";
}

/// `time`; `cpu_time` in files of nccl-tests runs that were asked for it.
double time_of(const nlohmann::json& half) {
  return half.contains("time") ? half.at("time").get<double>() : half.at("cpu_time").get<double>();
}

/// Normalises the name, so that "AllReduce", as nccl-tests writes it, and "all_reduce" compare equal.
std::string plain(std::string_view collective) {
  std::string letters;
  for (const char c : collective)
    if (c != '_') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

}  // namespace

Result<Baseline> Baseline::read(const std::string& path) {
  constexpr std::size_t kMostBytes = 1u << 30;
  const auto text = tools::read_file(path, kMostBytes);
  if (!text) return Status(Reason::resource, fmt::format("--compare {}", text.status().failure()->text));
  return parse(*text, path);
}

Result<Baseline> Baseline::parse(const std::string& text, const std::string& origin) {
  Baseline b;
  b.origin_ = origin;
  try {
    const auto j = nlohmann::json::parse(text);
    b.start_time_ = j.value("start_time", "");
    if (j.contains("config")) {
      b.collective_ = j.at("config").value("collective", "");
      b.group_size_ = j.at("config").value("group_size", 0);
    }
    for (const auto& r : j.at("results")) {
      Times t{time_of(r.at("out_of_place")), std::nullopt};
      if (r.contains("in_place") && r.at("in_place").is_object()) t.in_place = time_of(r.at("in_place"));
      b.rows_[{r.at("size").get<std::size_t>(), r.at("type").get<std::string>(),
               r.at("redop").get<std::string>(), r.at("root").get<int>()}] = t;
    }
  } catch (const nlohmann::json::exception& e) {
    return invalid(fmt::format("{} is not a result of -J: {}", origin, e.what()));
  }
  return b;
}

Status Baseline::check(std::string_view collective) const {
  if (collective_.empty() || plain(collective_) == plain(collective)) return {};
  return invalid(
      fmt::format("--compare {}: it is a result of {}, this run is of {}", origin_, collective_, collective));
}

std::string Baseline::compare(std::span<const Row> rows, int group_size) const {
  std::string text = fmt::format(
      "# Compared with {} ({}): time then / time now; above 1 it is faster now. "
      "Times of another hour differ\n"
      "# by what the machine did then, so small ratios mean nothing.\n"
      "# {:>10}  {:>8}  {:>6}  {:>6}  {:>12}  {:>8}\n",
      origin_, start_time_, "size", "type", "redop", "root", "out-of-place", "in-place");
  if (group_size_ != 0 && group_size_ != group_size)
    text += fmt::format("# It is a result of {} ranks; these are {}.\n", group_size_, group_size);
  double logs = 0;
  std::size_t paired = 0;
  for (const Row& r : rows) {
    const auto base = rows_.find({r.size, r.type, r.redop, r.root});
    if (base == rows_.end()) continue;
    const Half* in = r.in_place ? &*r.in_place : nullptr;
    text += fmt::format("# {:>10}  {:>8}  {:>6}  {:>6}  {:>12}  {:>8}\n", r.size, r.type, r.redop, r.root,
                        ratio(base->second.out_of_place, &r.out_of_place), ratio(base->second.in_place, in));
    if (base->second.out_of_place > 0 && r.out_of_place.us > 0) {
      logs += std::log(base->second.out_of_place / r.out_of_place.us);
      ++paired;
    }
  }
  if (paired > 0)
    text += fmt::format("# Geometric mean, out of place, {} rows: {:.2f}\n", paired,
                        std::exp(logs / static_cast<double>(paired)));
  if (paired < rows.size()) text += fmt::format("# Without a partner: {} rows\n", rows.size() - paired);
  return text;
}

}  // namespace ouro::perf
