// The output of ouro-topo for a topology: a table, a JSON object, an SVG picture. Used by main.cc.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "api/include/ouro/train/topology.hpp"

namespace ouro::topo {

struct Summary {
  std::string name;
  train::TopologyOptions options;
  int degree = 0;          ///< maximum number of messages that a rank sends or receives in a round
  double messages = 0;     ///< average number of messages that a rank sends in a round
  double contraction = 0;  ///< contraction factor of one period
  bool exact = false;      ///< every period ends with the exact mean
  /// Rounds until differences between ranks have shrunk by `tolerance`; the period if it is exact; -1: never.
  long rounds_to_consensus = -1;
};
inline constexpr double kTolerance = 1e-3, kExact = 1e-12;

Summary summarise(std::string name, const train::TopologyOptions&, const train::Topology&);

/// `rows`: also prints every row of every round.
std::string table(const Summary&, const train::Topology&, bool rows);
nlohmann::ordered_json to_json(const Summary&, const train::Topology&);
/// A picture with one circle of ranks for each round.
std::string picture(const Summary&, const train::Topology&);

}  // namespace ouro::topo
