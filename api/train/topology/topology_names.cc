// The names of topologies: built-in ones in one table, and user-registered ones. See ouro/train/topology.hpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>

#include "api/train/topology/topology_state.h"

namespace ouro::train {
namespace {

struct Builtin {
  const char* name;
  const char* about;
  Rule rule;
  bool by_node = false, by_peers = false, by_rows = false;
};
constexpr Builtin kBuiltins[] = {
    {"complete", "everyone averages with everyone: exact in one round", make_complete},
    {"ring", "pairs along a ring, first one way, then the other", make_ring},
    {"one-peer-exp", "pairs at distance 1, 2, 4, ... (xor): exact; n a power of two", make_one_peer_exp},
    {"alternating-exp-ring", "nodes alone and pairs of nodes in turn: exact; 2, 4, 8, ... nodes",
     make_alternating_exp_ring, true},
    {"hypercuboid", "averages along the digits of the rank: exact; prime factors of n at most peers + 1",
     make_hypercuboid, false, true},
    {"base-k", "exact for every n with at most `peers` messages a round", make_base_k, false, true},
    {"ceca-2p", "two vectors a rank, one message a round: exact for every n in ceil(log2 n) rounds",
     make_ceca_2p},
    {"one-peer-exp-directed", "takes from distance 1, 2, 4, ... (modulo n); exact for powers of two",
     make_one_peer_exp_directed},
    {"static-exp", "takes from all distances 1, 2, 4, ... in each round", make_static_exp},
    {"grid", "neighbours in a rectangle, Metropolis weights", make_grid, false, false, true},
    {"torus", "neighbours in a rectangle whose sides meet, Metropolis weights", make_torus, false, false,
     true},
    {"star", "everyone with rank 0, Metropolis weights", make_star},
};

struct Registered {
  std::string name;
  TopologyRule rule;
};
struct Registry {
  std::mutex mutex;
  std::vector<Registered> entries;
};
Registry& registry() {
  static auto* const r = new Registry;  // never destroyed: trainers may outlive static objects
  return *r;
}

const Builtin* find_builtin(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kBuiltins), std::end(kBuiltins),
                                         [&](const Builtin& b) { return name == b.name; });
  return found == std::end(kBuiltins) ? nullptr : found;
}

Status check(std::string_view name, int n, const TopologyOptions& o) {
  if (n < 1 || n > kMostRanks)
    return invalid(fmt::format("{}: {} ranks; expected 1 to {}", name, n, kMostRanks));
  if (o.local_world_size < 1 || n % o.local_world_size != 0)
    return invalid(
        fmt::format("{}: {} ranks with {} a node; expected a divisor of {}", name, n, o.local_world_size, n));
  if (o.peers < 1) return invalid(fmt::format("{}: {} peers; expected 1 or more", name, o.peers));
  if (o.rows < 0 || (o.rows > 0 && n % o.rows != 0))
    return invalid(
        fmt::format("{}: {} ranks in {} rows; expected a divisor of {}, or 0", name, n, o.rows, n));
  return {};
}

/// Calls the user's rule and converts its exceptions.
Result<std::vector<Round>> call(const TopologyRule& rule, std::string_view name, int n,
                                const TopologyOptions& o) {
  try {
    return rule(n, o);
  } catch (const std::exception& e) {
    return invalid(fmt::format("{}: its rule threw: {}", name, e.what()));
  } catch (...) {
    return invalid(fmt::format("{}: its rule threw", name));
  }
}

}  // namespace

Result<Topology> Topology::make(std::string_view name, int n, const TopologyOptions& o) {
  if (const Builtin* b = find_builtin(name)) {
    OURO_TRY(check(name, n, o));
    OURO_ASSIGN(auto plan, b->rule(n, o));
    return finish(n, std::move(plan));
  }
  std::optional<TopologyRule> rule;
  {
    std::lock_guard lock(registry().mutex);
    for (const Registered& r : registry().entries)
      if (r.name == name) rule = r.rule;
  }
  if (!rule) {
    std::vector<std::string> names;
    for (const TopologyInfo& t : topologies()) names.push_back(t.name);
    return invalid(fmt::format("topology '{}' is not known; known: {}", name, fmt::join(names, ", ")));
  }
  OURO_TRY(check(name, n, o));
  OURO_ASSIGN(auto rounds, call(*rule, name, n, o));
  return from_rounds(n, std::move(rounds));
}

std::vector<TopologyInfo> topologies() {
  std::vector<TopologyInfo> all;
  for (const Builtin& b : kBuiltins) all.push_back({b.name, b.about, b.by_node, b.by_peers, b.by_rows});
  std::lock_guard lock(registry().mutex);
  for (const Registered& r : registry().entries)
    all.push_back({r.name, "registered by the program", true, true, true});
  return all;
}

Status register_topology(std::string name, TopologyRule rule) {
  if (name.empty()) return invalid("register_topology: the name is empty");
  if (!rule) return invalid(fmt::format("register_topology: '{}' has no rule", name));
  std::lock_guard lock(registry().mutex);
  const auto same = [&](const Registered& r) { return r.name == name; };
  if (find_builtin(name) || std::any_of(registry().entries.begin(), registry().entries.end(), same))
    return invalid(fmt::format("register_topology: '{}' is taken", name));
  registry().entries.push_back({std::move(name), std::move(rule)});
  return {};
}

}  // namespace ouro::train
