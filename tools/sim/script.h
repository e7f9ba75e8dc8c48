// What some ranks of a flow do, with links resolved: input of the clock. Used by predict.cc and clock.cc.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernels/flow/step.h"
#include "tools/sim/cluster.h"

namespace ouro::sim {

/// How ranks are told apart. none: every rank by itself. shift: rank r stands for r + period, r + 2*period,
/// ... flip: the same below the power of two `fold`; the ranks above it are the extra ones of halving.
struct Symmetry {
  enum class Kind { none, shift, flip } kind = Kind::none;
  int ranks = 1, period = 1, fold = 0;

  int class_of(int rank) const {
    if (kind == Kind::none) return rank;
    return kind == Kind::flip && rank >= fold ? period + (rank - fold) % period : rank % period;
  }
  /// Names the receiver as seen from the sender: equal for all senders of a class.
  int bearing(int from, int to) const {
    if (kind == Kind::none) return to;
    return kind == Kind::shift ? flow::wrap(to - from, ranks) : from ^ to;
  }
};

/// One step. Links and classes are indices; -1: none.
struct Op {
  std::uint32_t verb = 0;
  std::int32_t in = -1, out = -1;  // links; `in` also names the pair of a fetch
  std::int32_t from = -1;          // class whose staging buffer is read
  std::int32_t span = 1;
  std::int32_t round = -1;  // of staging buffers, in pipelined flows; else the rank's own
};

struct Pair {
  Wire wire;  // of the link; of staging buffers for a fetch
  bool inside = true;
  double weight = 1;                       // how many pairs of ranks it stands for
  std::size_t from_node = 0, to_node = 0;  // 0 where all nodes are alike
};

struct Script {
  Symmetry symmetry;
  int ranks = 1, rounds = 1;
  bool by_reference = false, pipelined = false;
  double chunk_bytes = 0, wide_ratio = 1;
  std::vector<int> members;               // by class: one rank of it
  std::vector<double> weight;             // by class: how many ranks it stands for
  std::vector<std::vector<Op>> programs;  // by class: one round
  int program_rounds = 1;                 // how often each is run: 1 if pipelined
  std::vector<Pair> pairs;                // by link
  std::vector<int> node_of;               // by rank of the job
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
