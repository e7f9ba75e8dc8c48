// The selection table and its sources. See rules.h.
#include "runtime/plan/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kernels/flow/list.h"
#include "runtime/core/env.h"

namespace ouro::rt {
namespace {

using flow::Algorithm;
using Json = nlohmann::json;

constexpr std::size_t kAny = ~std::size_t{0};
constexpr int kMany = std::numeric_limits<int>::max();
constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

constexpr Collective kAll[] = {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                               Collective::broadcast,  Collective::reduce,         Collective::gather,
                               Collective::scatter,    Collective::all_to_all,     Collective::barrier};
constexpr std::string_view kBuffersNames[] = {"any", "private", "registered"};
constexpr std::string_view kCoresNames[] = {"any", "enough", "fewer"};
constexpr std::string_view kHostsNames[] = {"any", "one", "several"};

/// Parses a collective that has rows: neighbour collectives have none, since they have one flow each.
std::optional<Collective> parse_ruled(std::string_view text) {
  const auto c = parse_collective(text);
  return c && std::find(std::begin(kAll), std::end(kAll), *c) != std::end(kAll) ? c : std::nullopt;
}
/// Flows through a switch between GPUs do not count: rows are for memory of the host.
bool exists(Collective c, Algorithm a) {
  return !flow::switched(a) && flow::visit(c, a, [](auto) {});
}
std::string algorithms_of(Collective c) {
  std::string all;
  for (int i = 0; i < flow::kAlgorithms; ++i)
    if (exists(c, static_cast<Algorithm>(i)))
      all += fmt::format("{}{}", all.empty() ? "" : ", ", flow::name(static_cast<Algorithm>(i)));
  return all;
}
std::string collectives() {
  std::string all;
  for (const Collective c : kAll) all += fmt::format("{}{}", all.empty() ? "" : ", ", name(c));
  return all;
}

template <std::size_t N>
std::optional<std::size_t> index_in(const std::string_view (&names)[N], std::string_view text) {
  for (std::size_t i = 0; i < N; ++i)
    if (names[i] == text) return i;
  return std::nullopt;
}

/// Bytes, with the binary suffix K, M or G.
std::optional<std::size_t> parse_bytes(std::string_view text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  int shift = 0;
  if (suffix == "K")
    shift = 10;
  else if (suffix == "M")
    shift = 20;
  else if (suffix == "G")
    shift = 30;
  else if (!suffix.empty())
    return std::nullopt;
  if (value > (kAny >> shift)) return std::nullopt;
  return value << shift;
}

Result<Rule> parse_rule(std::string_view row) {
  const auto wrong = [&](std::string what) {
    return invalid(fmt::format("rule '{}': {}; expected collective[@private|@registered][<=bytes]:algorithm",
                               row, what));
  };
  Rule rule;
  const std::size_t colon = row.rfind(':');
  if (colon == std::string_view::npos) return wrong("no ':'");
  std::string_view left = row.substr(0, colon);
  const std::string_view algorithm = row.substr(colon + 1);
  if (const std::size_t at = left.find("<="); at != std::string_view::npos) {
    const auto bytes = parse_bytes(left.substr(at + 2));
    if (!bytes) return wrong(fmt::format("'{}' is no number of bytes", left.substr(at + 2)));
    rule.max_bytes = *bytes;
    left = left.substr(0, at);
  }
  if (const std::size_t at = left.find('@'); at != std::string_view::npos) {
    const auto buffers = index_in(kBuffersNames, left.substr(at + 1));
    if (!buffers) return wrong(fmt::format("'{}' is no kind of buffer", left.substr(at + 1)));
    rule.buffers = static_cast<Buffers>(*buffers);
    left = left.substr(0, at);
  }
  const auto collective = parse_ruled(left);
  if (!collective) return wrong(fmt::format("'{}' is no collective ({})", left, collectives()));
  rule.collective = *collective;
  const auto a = flow::parse_algorithm(algorithm);
  if (!a || !exists(*collective, *a))
    return wrong(
        fmt::format("{} has no algorithm '{}' (it has {})", left, algorithm, algorithms_of(*collective)));
  rule.algorithm = *a;
  rule.reason = "OURO_SELECT";
  return rule;
}

}  // namespace

Rules built_in_rules() {
  const auto row = [](Collective c, Buffers b, int min, int max, std::size_t bytes, Algorithm a,
                      const char* why) { return Rule{c, b, Cores::any, min, max, bytes, a, why}; };
  constexpr Buffers any = Buffers::any, registered = Buffers::registered;
  Rules rules;
  // Registered buffers: two barriers and no copy, compared with one hand-off and a copy through the
  // staging buffers.
  rules.rows = {
      row(Collective::all_reduce, any, 2, 64, Arrival::kInline, Algorithm::inlined,
          "the input fits into the line that says that it is there"),
      row(Collective::all_reduce, registered, 2, 2, 32 * KiB, Algorithm::oneshot, "one hand-off"),
      row(Collective::all_reduce, registered, 3, kMany, 16 * KiB, Algorithm::oneshot, "one hand-off"),
      row(Collective::all_reduce, registered, 2, kMany, kAny, Algorithm::zerocopy,
          "each rank reduces its slice of all inputs and writes it to all outputs"),
      row(Collective::all_reduce, any, 2, 2, 128 * KiB, Algorithm::oneshot,
          "one hand-off; everyone reduces everything"),
      row(Collective::all_reduce, any, 2, 2, 4 * MiB, Algorithm::direct,
          "in the caches: each rank reads half of the other's input"),
      row(Collective::all_reduce, any, 1, 2, kAny, Algorithm::oneshot,
          "everyone reduces everything, at the speed of the memory"),
      row(Collective::all_reduce, any, 3, kMany, 64 * KiB, Algorithm::oneshot,
          "one hand-off; everyone reduces everything"),
      row(Collective::all_reduce, any, 3, kMany, kAny, Algorithm::direct,
          "each rank reduces its slice from all staging buffers"),
  };
  rules.rows.push_back(row(Collective::broadcast, any, 2, kMany, Arrival::kInline, Algorithm::inlined,
                           "the input fits into the line that says that it is there"));
  // Bytes of a block up to which one hand-off of the staging buffers is faster than two barriers
  // without a copy.
  const auto staging_up_to = [](Collective c) {
    switch (c) {
      case Collective::broadcast:  // its root runs ahead
        return 256 * KiB;
      case Collective::reduce_scatter:
        return 64 * KiB;
      case Collective::all_gather:
      case Collective::all_to_all:
        return 32 * KiB;
      default:
        return 16 * KiB;
    }
  };
  for (const Collective c : kAll) {
    if (c == Collective::all_reduce) continue;
    const char* why =
        c == Collective::barrier ? "a barrier of all" : "read from staging buffers, one hand-off";
    // A root that reads, or is read by, all others in place is no faster than the staging buffers.
    if (c != Collective::barrier && c != Collective::gather && c != Collective::scatter) {
      rules.rows.push_back(row(c, registered, 2, kMany, staging_up_to(c), Algorithm::direct, why));
      rules.rows.push_back(
          row(c, registered, 2, kMany, kAny, Algorithm::zerocopy, "no copy through the staging buffers"));
    }
    rules.rows.push_back(row(c, any, 1, kMany, kAny, Algorithm::direct, why));
  }
  const auto among = [&](int max, Collective c, std::size_t bytes, Algorithm a, const char* why) {
    rules.rows.push_back(row(c, any, 2, max, bytes, a, why));
    rules.rows.back().hosts = Hosts::several;
  };
  const auto far = [&](Collective c, std::size_t bytes, Algorithm a, const char* why) {
    among(kMany, c, bytes, a, why);
  };
  among(2, Collective::all_reduce, 256 * KiB, Algorithm::exchange,
        "two ranks: as few bytes as there are, in one hop");
  among(4, Collective::all_reduce, 2 * KiB, Algorithm::exchange, "between hosts, few ranks: one hop");
  far(Collective::all_reduce, 16 * KiB, Algorithm::hierarchy_tree, "between hosts: few hops");
  far(Collective::all_reduce, kAny, Algorithm::hierarchy, "each host's slice crosses its link once each way");
  among(2, Collective::all_reduce, kAny, Algorithm::exchange, "two ranks, in rank order");
  far(Collective::all_reduce, kAny, Algorithm::chain, "between hosts, in rank order");
  far(Collective::reduce_scatter, kAny, Algorithm::hierarchy, "reduced within a host first");
  far(Collective::reduce_scatter, kAny, Algorithm::chain, "between hosts, in rank order");
  far(Collective::all_gather, kAny, Algorithm::hierarchy, "each block crosses a host's link once");
  for (const Collective c : {Collective::broadcast, Collective::reduce}) {
    far(c, 16 * KiB, Algorithm::hierarchy_tree, "between hosts: few hops");
    far(c, kAny, Algorithm::hierarchy, "once over each host's link, as a pipeline");
  }
  far(Collective::reduce, kAny, Algorithm::chain, "between hosts, in rank order");
  far(Collective::gather, kAny, Algorithm::linear, "between hosts");
  far(Collective::scatter, kAny, Algorithm::linear, "between hosts");
  far(Collective::barrier, kAny, Algorithm::hierarchy, "hosts first, then between them");
  // This row is for uneven pairs, which staging buffers cannot serve, and for pairs on different hosts.
  rules.rows.push_back(row(Collective::all_to_all, any, 1, kMany, kAny, Algorithm::pairwise, "pair by pair"));
  return rules;
}

std::uint64_t Rules::digest() const {
  std::uint64_t h = stream_bytes;
  for (const Rule& r : rows) {
    const std::uint64_t words[] = {
        static_cast<std::uint64_t>(r.collective) | static_cast<std::uint64_t>(r.buffers) << 8 |
            static_cast<std::uint64_t>(r.cores) << 16 | static_cast<std::uint64_t>(r.algorithm) << 24 |
            static_cast<std::uint64_t>(r.hosts) << 32,
        static_cast<std::uint64_t>(r.min_ranks) | static_cast<std::uint64_t>(r.max_ranks) << 32, r.max_bytes};
    h = XXH3_64bits_withSeed(words, sizeof words, h);
  }
  return h;
}

Result<std::vector<Rule>> parse_rules(std::string_view text) {
  std::vector<Rule> rules;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    auto rule = parse_rule(text.substr(0, comma));
    if (!rule.ok()) return rule.status();
    rules.push_back(std::move(*rule));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return rules;
}

std::string to_text(const Rule& r) {
  std::string text = name(r.collective);
  if (r.buffers != Buffers::any)
    text += fmt::format("@{}", kBuffersNames[static_cast<std::size_t>(r.buffers)]);
  if (r.max_bytes != kAny) text += fmt::format("<={}", r.max_bytes);
  return text + fmt::format(":{}", flow::name(r.algorithm));
}

Result<Rules> load_rules(const std::string& file) {
  constexpr std::size_t kMostBytes = 16u << 20;
  std::ifstream in(file);
  if (!in) return invalid(fmt::format("{}: cannot be read", file));
  std::string text;
  for (char piece[65536]; in && text.size() < kMostBytes;) {
    in.read(piece, sizeof piece);
    text.append(piece, static_cast<std::size_t>(in.gcount()));
  }
  if (text.size() >= kMostBytes)  // reading a device may never end
    return invalid(fmt::format("{}: {} bytes and more are no table of rules", file, kMostBytes));
  if (in.bad()) return invalid(fmt::format("{}: cannot be read", file));
  const Json json = Json::parse(text, nullptr, false);
  // No part of it is copied: a copy is recursive, and lists may be nested deeper than the stack allows.
  const auto field = [](const Json& object, const char* key) -> const Json* {
    const auto it = object.find(key);
    return it == object.end() ? nullptr : &*it;
  };
  const auto wrong = [&](const std::string& where, const std::string& what) {
    return invalid(fmt::format("{}: {}: {} (expected what ouro-perf --tune writes)", file, where, what));
  };
  if (json.is_discarded() || !json.is_object()) return wrong("the file", "not a JSON object");
  if (const Json* version = field(json, "ouro_tune"); !version || *version != 1)
    return wrong("ouro_tune", "not 1");
  Rules rules;
  rules.origin = file;
  if (const Json* bytes = field(json, "stream_bytes")) {
    if (!bytes->is_number_unsigned()) return wrong("stream_bytes", "not a number of bytes");
    rules.stream_bytes = bytes->get<std::size_t>();
  }
  static const Json none = Json::array();
  const Json* const given = field(json, "rules");
  const Json& rows = given ? *given : none;
  if (!rows.is_array()) return wrong("rules", "not a list");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Json& row = rows[i];
    const std::string where = fmt::format("rules[{}]", i);
    if (!row.is_object()) return wrong(where, "not an object");
    const auto text = [&](const char* key) {
      const auto it = row.find(key);
      return it != row.end() && it->is_string() ? it->get<std::string>() : std::string();
    };
    Rule rule;
    const auto collective = parse_ruled(text("collective"));
    if (!collective)
      return wrong(where, fmt::format("collective '{}' ({})", text("collective"), collectives()));
    rule.collective = *collective;
    const auto algorithm = flow::parse_algorithm(text("algorithm"));
    if (!algorithm || !exists(*collective, *algorithm))
      return wrong(where, fmt::format("algorithm '{}' ({})", text("algorithm"), algorithms_of(*collective)));
    rule.algorithm = *algorithm;
    const auto buffers = index_in(kBuffersNames, text("buffers")),
               cores = index_in(kCoresNames, text("cores"));
    if (!buffers)
      return wrong(where, fmt::format("buffers '{}' (any, private, registered)", text("buffers")));
    if (!cores) return wrong(where, fmt::format("cores '{}' (any, enough, fewer)", text("cores")));
    rule.buffers = static_cast<Buffers>(*buffers), rule.cores = static_cast<Cores>(*cores);
    const auto hosts = index_in(kHostsNames, row.contains("hosts") ? text("hosts") : "any");
    if (!hosts) return wrong(where, fmt::format("hosts '{}' (any, one, several)", text("hosts")));
    rule.hosts = static_cast<Hosts>(*hosts);
    if (const Json* ranks = field(row, "ranks")) {
      if (!ranks->is_array() || ranks->size() != 2 || !(*ranks)[0].is_number_unsigned() ||
          !(*ranks)[1].is_number_unsigned() || !std::in_range<int>((*ranks)[1].get<std::uint64_t>()) ||
          (*ranks)[0] > (*ranks)[1])
        return wrong(where, "ranks is not [min, max]");
      rule.min_ranks = (*ranks)[0].get<int>(), rule.max_ranks = (*ranks)[1].get<int>();
    }
    const Json* const bytes = field(row, "max_bytes");
    if (bytes && !bytes->is_null() && !bytes->is_number_unsigned())
      return wrong(where, "max_bytes is not a number of bytes");
    rule.max_bytes = !bytes || bytes->is_null() ? kAny : bytes->get<std::size_t>();
    rule.reason = fmt::format("measured ({})", file);
    rules.rows.push_back(std::move(rule));
  }
  return rules;
}

std::string to_json(const Rules& rules, const std::string& machine) {
  Json json = {
      {"ouro_tune", 1}, {"machine", machine}, {"stream_bytes", rules.stream_bytes}, {"rules", Json::array()}};
  for (const Rule& r : rules.rows) {
    Json row = {{"collective", name(r.collective)},
                {"buffers", kBuffersNames[static_cast<std::size_t>(r.buffers)]},
                {"cores", kCoresNames[static_cast<std::size_t>(r.cores)]},
                {"ranks", {r.min_ranks, r.max_ranks}},
                {"algorithm", flow::name(r.algorithm)}};
    if (r.hosts != Hosts::any) row["hosts"] = kHostsNames[static_cast<std::size_t>(r.hosts)];
    if (r.max_bytes != kAny) row["max_bytes"] = r.max_bytes;
    json["rules"].push_back(std::move(row));
  }
  return json.dump(1) + "\n";
}

Result<Rules> rules_in_force() {
  Rules rules = built_in_rules();
  auto file = env::text("OURO_TUNE"), rows = env::text("OURO_SELECT");
  auto stream = env::integer("OURO_STREAM_BYTES");
  for (const Status& s : {file.status(), rows.status(), stream.status()}) OURO_TRY(s);
  if (const std::string name = file->value_or(""); !name.empty()) {
    auto measured = load_rules(name);
    if (!measured.ok()) return invalid(fmt::format("OURO_TUNE: {}", measured.status().failure()->text));
    measured->chosen_rows = measured->rows.size();
    measured->rows.insert(measured->rows.end(), rules.rows.begin(), rules.rows.end());
    rules = std::move(*measured);
  }
  auto given = parse_rules(rows->value_or(""));
  if (!given.ok()) return invalid(fmt::format("OURO_SELECT: {}", given.status().failure()->text));
  rules.rows.insert(rules.rows.begin(), given->begin(), given->end());
  rules.chosen_rows += given->size();
  if (*stream) rules.stream_bytes = static_cast<std::size_t>(**stream);
  return rules;
}

}  // namespace ouro::rt
