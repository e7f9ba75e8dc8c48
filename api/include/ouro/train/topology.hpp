/// Topologies of decentralised training: which ranks average in which round. Pure functions of integers, and
/// the exchange that executes one of their rows. For users.
/// @file
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::train {

/// Ranks that average among themselves: x_i <- weight x_i + (1 - weight) / (size - 1) sum over j != i of x_j.
/// If weight is 1 / size, as computed in double, all weights have this value: the mean.
struct Edge {
  std::vector<int> ranks;  ///< sorted
  double weight = 1;       ///< the share that each member keeps, 0 to 1; 1 if there is one rank
  friend bool operator==(const Edge&, const Edge&) = default;
};
using Round = std::vector<Edge>;  ///< each rank is in exactly one edge

/// One row of a mixing matrix, and the ranks that need this rank's value.
struct Row {
  double self = 1;  ///< weight of this rank's own value
  /// Rank and weight, sorted by rank; excludes this rank and zero weights.
  std::vector<std::pair<int, double>> in;
  std::vector<int> out;  ///< ranks that need this rank's value, sorted
  friend bool operator==(const Row&, const Row&) = default;
};

/// One round of a topology that keeps two vectors, x and y, per rank. With z, the vector that arrives: x <-
/// x_self x + x_in z, y <- y_self y + y_in z.
struct PairRow {
  bool send_x = true;  ///< the vector that travels in this round, the same on all ranks: x, else y
  double x_self = 1;   ///< weight of x in the new x
  double x_in = 0;     ///< weight of z in the new x
  double y_self = 1;   ///< weight of y in the new y
  double y_in = 0;     ///< weight of z in the new y
  int from = -1;       ///< rank that sends to this rank; -1: nothing travels
  int to = -1;         ///< rank that receives from this rank; -1: nothing travels
};

/// Parameters of some topologies.
struct TopologyOptions {
  int local_world_size = 1;  ///< ranks per host, consecutive; divides n (alternating-exp-ring)
  /// Maximum number of messages that a rank sends and receives per round (hypercuboid, base-k).
  int peers = 1;
  int rows = 0;  ///< divides n; 0: the largest divisor not above sqrt(n) (grid, torus)
};

/// The mixing of every rank in every round. A value: copies share their contents. Any rank can query any
/// rank; the round of step s is s modulo the period.
class OURO_API Topology {
 public:
  /// Makes a topology by a name from `topologies()`. Errors: invalid (name, n < 1, options, a number of ranks
  /// that the rule cannot serve).
  static Result<Topology> make(std::string_view name, int n, const TopologyOptions& = {});
  /// Errors: invalid, naming round and rank: no round, an empty edge, a rank outside 0..n-1, missing or named
  /// twice, a weight outside 0..1, or other than 1 for a single rank; ranks that are not connected by any
  /// sequence of rounds.
  static Result<Topology> from_rounds(int n, std::vector<Round>);
  /// `w`: period matrices of n * n, row-major; row i holds the weights that rank i applies to each rank.
  /// Errors: invalid, naming round and row or column: a negative entry, a sum that is not 1 within 1e-12;
  /// ranks that are not connected by any sequence of rounds.
  static Result<Topology> from_matrices(int n, std::span<const double> w);

  int size() const;    ///< number of ranks
  int period() const;  ///< number of rounds
  /// 1, or 2 if each rank keeps two vectors (ceca-2p). In the latter case `pair` has the arithmetic, and
  /// `row` describes what travels: mixing the sent vector with it yields the received one.
  int vectors() const;
  Row row(std::int64_t step, int rank) const;  ///< a rank outside 0..n-1 has no neighbours
  /// The mixing matrix of a step: n * n, row-major.
  std::vector<double> matrix(std::int64_t step) const;
  /// Errors: unsupported (the round is not made of edges), invalid (rank).
  Result<Edge> edge(std::int64_t step, int rank) const;
  /// Errors: unsupported (the topology keeps one vector), invalid (rank).
  Result<PairRow> pair(std::int64_t step, int rank) const;
  /// The distinct rank sets of the edges of all rounds, in order of appearance.
  std::vector<std::vector<int>> groups() const;
  /// || product of the matrices of one period - J ||_2, where J averages all ranks; of x if there are two
  /// vectors. 0: every period ends in the mean; below 1: ranks converge. Cost: n^3.
  double contraction() const;

  struct OURO_HIDDEN State;
  explicit Topology(std::shared_ptr<const State> s) : state_(std::move(s)) {}  ///< for the library

 private:
  std::shared_ptr<const State> state_;
};

/// A name that `make` accepts.
struct TopologyInfo {
  std::string name;       ///< for Topology::make
  std::string about;      ///< one line
  bool by_node = false;   ///< reads TopologyOptions::local_world_size beyond checking it
  bool by_peers = false;  ///< reads TopologyOptions::peers
  bool by_rows = false;   ///< reads TopologyOptions::rows
};
/// Built-in topologies first, then registered ones in the order of registration.
OURO_API std::vector<TopologyInfo> topologies();

/// Makes the rounds of a topology for n ranks.
using TopologyRule = std::function<Result<std::vector<Round>>(int n, const TopologyOptions&)>;
/// Adds a user-defined name for the rest of the process. Errors: invalid (empty or taken name, no rule).
/// Callable from any thread; the rule runs in the thread that calls `make`.
OURO_API Status register_topology(std::string name, TopologyRule rule);

/// @defgroup mixing Training: mixing with neighbours
/// Collective over the group, like the operations of ouro.hpp: blocking, or on a stream. Vectors are half,
/// bfloat16, float or double, on the host, of equal length on all ranks; 16-bit types are accumulated in
/// float and rounded once. The rows of the ranks must be consistent: if rank a lists rank b in `in`, rank b
/// lists rank a in `out`. Otherwise ranks wait for each other until the deadline, or a later operation finds
/// the leftover message: `deadline` or `mismatch`, naming the peer.
/// @{

/// y = row.self * x + sum of weight * x of each rank of row.in, in this order: x itself first, then by rank.
/// x may be y. One vector is sent to each rank of row.out and one received from each of row.in; a rank
/// without neighbours does not wait. If all weights are 1/n, as computed in double, y is the sum divided by n
/// once. Errors: invalid (row, types, lengths), unsupported (vectors on a GPU).
OURO_API Status mix(Group&, const Row&, CView x, View y);
OURO_API Result<Work> mix(Group&, const Row&, CView x, View y, const Stream&);  ///< the same on a stream
/// Push-sum, for rows of which only the columns sum to 1: mixes the vector and this rank's weight (initially
/// 1) with the same row. y / weight is this rank's estimate of the mean.
OURO_API Status push_sum(Group&, const Row&, CView x, View y, double& weight);
/// One round of a topology of two vectors: updates x and y as `row` says; z, of the same length, is
/// overwritten. Not allowed inside group_start (invalid).
OURO_API Status mix_pair(Group&, const PairRow& row, View x, View y, View z);
/// @}

}  // namespace ouro::train
