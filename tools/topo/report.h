// What ouro-topo says about a topology: a table, a JSON object, an SVG picture. Used by main.cc.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "api/include/ouro/train/topology.hpp"

namespace ouro::topo {

struct Summary {
  std::string name;
  train::TopologyOptions options;
  int degree = 0;          ///< messages that a rank sends or receives in a round, at most
  double messages = 0;     ///< that a rank sends in a round, on average
  double contraction = 0;  ///< of one period
  bool exact = false;      ///< every period ends in the mean
  /// Until differences between ranks have shrunk by `tolerance`; the period where it is exact; -1: never.
  long rounds_to_consensus = -1;
};
inline constexpr double kTolerance = 1e-3, kExact = 1e-12;

Summary summarise(std::string name, const train::TopologyOptions&, const train::Topology&);

/// `rows`: also every row of every round.
std::string table(const Summary&, const train::Topology&, bool rows);
nlohmann::ordered_json to_json(const Summary&, const train::Topology&);
/// One circle of ranks a round.
std::string picture(const Summary&, const train::Topology&);

}  // namespace ouro::topo
