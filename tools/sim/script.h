// The steps of some ranks of a flow, with links resolved: input of the clock. Used by predict.cc
// and clock.cc.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernels/flow/step.h"
#include "tools/sim/cluster.h"

namespace ouro::sim {

/// The ways to group ranks into classes. none: every rank is its own class. shift: rank r represents r +
/// period, r + 2*period, ... flip: the same below the power of two `fold`; the ranks from there on are the
/// extra ones of halving.
struct Symmetry {
  enum class Kind { none, shift, flip } kind = Kind::none;
  int ranks = 1, period = 1, fold = 0;

  int class_of(int rank) const {
    if (kind == Kind::none) return rank;
    return kind == Kind::flip && rank >= fold ? period + (rank - fold) % period : rank % period;
  }
  /// Identifies the receiver relative to the sender: equal for all senders of a class.
  int bearing(int from, int to) const {
    if (kind == Kind::none) return to;
    return kind == Kind::shift ? flow::wrap(to - from, ranks) : from ^ to;
  }
};

/// One step. Links and classes are indices; -1: none.
struct Op {
  std::uint32_t verb = 0;
  std::int32_t in = -1, out = -1;  // links; for a fetch, `in` is the index of its pair
  std::int32_t from = -1;          // class whose staging buffer is read; -1 with a posted verb: all
  std::int32_t span = 1;
  std::int32_t round = -1;  // round of the staging buffers, in pipelined flows; -1: the rank's own round
};

struct Pair {
  Wire wire;  // of the link; for a fetch, of the staging buffers
  bool inside = true;
  double weight = 1;                       // number of pairs of ranks that this one represents
  std::size_t from_node = 0, to_node = 0;  // 0 if all nodes are alike
};

struct Script {
  Symmetry symmetry;
  int ranks = 1, rounds = 1;
  bool by_reference = false, pipelined = false;
  double chunk_bytes = 0, wide_ratio = 1;
  std::vector<int> members;               // by class: the simulated rank
  std::vector<double> weight;             // by class: the number of ranks that it represents
  std::vector<std::vector<Op>> programs;  // by class: the steps of one round
  int program_rounds = 1;                 // how often each program is run: 1 if pipelined
  std::vector<Pair> pairs;                // indexed by link
  std::vector<int> node_of;               // indexed by rank of the job
  int nodes = 1;

  int pair_index(const Cluster& cluster, int from, int to, bool staging) {
    const auto key = static_cast<std::uint64_t>(symmetry.class_of(from)) << 32 |
                     static_cast<std::uint64_t>(symmetry.bearing(from, to));
    const auto [at, fresh] = index_.try_emplace(key, static_cast<int>(pairs.size()));
    if (fresh) {
      const std::size_t a = index(node_of[index(from)]), b = index(node_of[index(to)]);
      const bool inside = a == b, alike = symmetry.kind != Symmetry::Kind::none;
      const double likes =
          std::min(weight[index(symmetry.class_of(from))], weight[index(symmetry.class_of(to))]);
      pairs.push_back({!inside   ? cluster.inter
                       : staging ? cluster.staging
                                 : cluster.intra,
                       inside, likes, alike ? 0 : a, alike ? 0 : b});
    }
    return at->second;
  }

 private:
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::unordered_map<std::uint64_t, int> index_;
};

struct Outcome {
  bool finished = false;  // false: deadlock
  double seconds = 0, busiest = 0, busiest_node = 0, intra = 0, inter = 0;
};

Outcome run(const Cluster&, const Script&);

}  // namespace ouro::sim
