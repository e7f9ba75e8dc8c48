// The table and the JSON object of ouro-topo. See report.h.
#include "tools/topo/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace ouro::topo {
namespace {

using train::Edge;
using train::Row;
using train::Topology;

/// The edges of a round in the order of their first rank; empty: the round is described by rows.
std::vector<Edge> edges_of(const Topology& t, int round) {
  std::vector<Edge> edges;
  for (int r = 0; r < t.size(); ++r) {
    const Result<Edge> edge = t.edge(round, r);
    if (!edge.ok()) return {};
    if (edge->ranks.front() == r) edges.push_back(*edge);
  }
  return edges;
}

std::string weight(double w) {
  for (int q = 1; q <= 4096; ++q)  // as a fraction if there is one with a small denominator
    if (std::abs(w * q - std::round(w * q)) <= 1e-13 * q)
      return q == 1 ? fmt::format("{}", std::round(w)) : fmt::format("{}/{}", std::round(w * q), q);
  return fmt::format("{:.6g}", w);
}

std::string text(const Row& row) {
  std::string in;
  for (const auto& [from, w] : row.in) in += fmt::format("  {} x rank {}", weight(w), from);
  return fmt::format("{} x self{}{}", weight(row.self), in,
                     row.out.empty() ? "" : fmt::format("  -> {}", fmt::join(row.out, ",")));
}

std::string pair_text(const train::PairRow& p) {
  if (p.from < 0) return "nothing travels";
  return fmt::format("sends {} to {}, z from {}; x = {} x + {} z, y = {} y + {} z", p.send_x ? 'x' : 'y',
                     p.to, p.from, weight(p.x_self), weight(p.x_in), weight(p.y_self), weight(p.y_in));
}

}  // namespace

Summary summarise(std::string name, const train::TopologyOptions& o, const Topology& t) {
  Summary s{.name = std::move(name), .options = o};
  double sent = 0;
  for (int k = 0; k < t.period(); ++k) {
    for (int r = 0; r < t.size(); ++r) {
      const Row row = t.row(k, r);
      s.degree = std::max({s.degree, static_cast<int>(row.in.size()), static_cast<int>(row.out.size())});
      sent += static_cast<double>(row.out.size());
    }
  }
  s.messages = sent / t.size() / t.period();
  s.contraction = t.contraction();
  s.exact = s.contraction < kExact;
  if (s.exact)
    s.rounds_to_consensus = t.period();
  else if (s.contraction < 1)
    s.rounds_to_consensus =
        static_cast<long>(std::ceil(std::log(kTolerance) / std::log(s.contraction))) * t.period();
  return s;
}

std::string table(const Summary& s, const Topology& t, bool rows) {
  std::string out = fmt::format("{}: {} ranks, {} round{} a period{}\n", s.name, t.size(), t.period(),
                                t.period() == 1 ? "" : "s", t.vectors() == 2 ? ", two vectors a rank" : "");
  out += fmt::format("  degree               {} message{} a rank and round at most, {:.3g} sent on average\n",
                     s.degree, s.degree == 1 ? "" : "s", s.messages);
  out += fmt::format("  contraction          {:.6g} a period; spectral gap {:.6g}\n",
                     s.exact ? 0 : s.contraction, s.exact ? 1 : 1 - s.contraction);
  if (s.exact)
    out += fmt::format("  rounds to consensus  {} (exact)\n", s.rounds_to_consensus);
  else if (s.rounds_to_consensus >= 0)
    out += fmt::format("  rounds to consensus  {} (differences below {:g} of what they were)\n",
                       s.rounds_to_consensus, kTolerance);
  else
    out += "  rounds to consensus  never: some ranks never receive from others\n";
  for (int k = 0; k < t.period(); ++k) {
    out += fmt::format("round {}\n", k);
    const std::vector<Edge> edges = edges_of(t, k);
    if (!edges.empty() && !rows) {
      std::string line = " ";
      for (const Edge& e : edges) {
        const std::string item = fmt::format(" {{{}}} x {}", fmt::join(e.ranks, ","), weight(e.weight));
        if (line.size() + item.size() > 110) out += std::exchange(line, " ") + "\n";
        line += item;
      }
      out += line + "\n";
      continue;
    }
    for (int r = 0; r < t.size(); ++r) {
      const Result<train::PairRow> pair = t.pair(k, r);
      out += fmt::format("  rank {:<4} {}\n", r, pair.ok() ? pair_text(*pair) : text(t.row(k, r)));
    }
  }
  return out;
}

nlohmann::ordered_json to_json(const Summary& s, const Topology& t) {
  nlohmann::ordered_json j = {{"name", s.name},
                              {"ranks", t.size()},
                              {"local_world_size", s.options.local_world_size},
                              {"peers", s.options.peers},
                              {"rows", s.options.rows},
                              {"period", t.period()},
                              {"vectors", t.vectors()},
                              {"degree", s.degree},
                              {"messages_per_rank_and_round", s.messages},
                              {"contraction_per_period", s.contraction},
                              {"spectral_gap", 1 - s.contraction},
                              {"exact_average_per_period", s.exact}};
  j["rounds_to_consensus"] = nullptr;
  if (s.rounds_to_consensus >= 0) j["rounds_to_consensus"] = s.rounds_to_consensus;
  j["groups"] = t.groups();
  j["rounds"] = nlohmann::ordered_json::array();
  for (int k = 0; k < t.period(); ++k) {
    nlohmann::ordered_json round;
    if (const std::vector<Edge> edges = edges_of(t, k); !edges.empty()) {
      for (const Edge& e : edges) round["edges"].push_back({{"ranks", e.ranks}, {"weight", e.weight}});
    }
    for (int r = 0; r < t.size(); ++r) {
      const Row row = t.row(k, r);
      nlohmann::ordered_json one = {
          {"self", row.self}, {"in", nlohmann::ordered_json::array()}, {"out", row.out}};
      for (const auto& [from, w] : row.in) one["in"].push_back({{"rank", from}, {"weight", w}});
      if (const Result<train::PairRow> p = t.pair(k, r); p.ok())
        one["pair"] = {{"send", p->send_x ? "x" : "y"},
                       {"x_self", p->x_self},
                       {"x_in", p->x_in},
                       {"y_self", p->y_self},
                       {"y_in", p->y_in},
                       {"from", p->from},
                       {"to", p->to}};
      round["rows"].push_back(std::move(one));
    }
    j["rounds"].push_back(std::move(round));
  }
  return j;
}

}  // namespace ouro::topo
