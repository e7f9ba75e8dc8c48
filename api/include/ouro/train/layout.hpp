/// The role of each rank in a sharded, replicated, federated job, and in one with replay buffers: pure
/// functions of integers, for any rank on any rank; and the resulting groups. For users and for the trainers.
/// @file
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::train {

/// @defgroup meshes Training: meshes
/// @{

/// Ranks in a grid of any number of dimensions, row-major.
struct OURO_API Mesh {
  std::vector<int> ranks;         ///< one per place, row-major
  std::vector<int> shape;         ///< places in each dimension
  std::vector<std::string> axes;  ///< one name per dimension
  /// The coordinates of a rank; nullopt: not in the mesh.
  std::optional<std::vector<int>> coordinates(int rank) const;
  /// The index of the dimension with this name.
  std::optional<std::size_t> axis(std::string_view name) const;
  /// The ranks that differ from `rank` only along this axis, including `rank`, in order. Errors: invalid (no
  /// such axis; the rank is not in the mesh).
  Result<std::vector<int>> along(std::string_view axis, int rank) const;
  friend bool operator==(const Mesh&, const Mesh&) = default;
};
/// A mesh of ranks 0..prod-1, row-major. Axes without a name are called "0", "1", ... Errors: invalid (no
/// dimension, one below 1, more than 2^31-1 ranks; a number of names other than 0 or one per dimension;
/// equal names).
OURO_API Result<Mesh> make_mesh(std::span<const int> shape, std::span<const std::string> axes = {});

/// @}
/// @defgroup layouts Training: sharded, replicated and federated layouts
/// N ranks; sizes n_0..n_{F-1} of the federations (sites), o_f = sum of n_g for g < f; L ranks per replica,
/// R_f = n_f / L. Without federation F = 1 and n_0 = N. f: the federation with o_f <= r < o_f + n_f; l = r -
/// o_f, p = l mod L, q = l div L. Senders of federation f: S_f[p] = o_f + (p mod R_f) L + p.
/// @{

/// Which ranks form groups across the sites.
enum class FederatedGroups {
  senders,       ///< senders meet across the sites; the others are alone
  all_replicas,  ///< if all sizes are equal, every rank meets its counterparts; else as `senders`
};
/// How to handle sizes that cannot be served.
enum class Fallback {
  none,       ///< return an error
  drop_hsdp,  ///< equal sizes that hsdp does not divide: ignore hsdp
};

/// A rank's place among the hosts of its job.
struct NodeInfo {
  int local_rank = 0;  ///< rank among the ranks of its host
  int local_size = 1;  ///< number of ranks on its host
  int node_rank = 0;   ///< index of its host
  int node_count = 1;  ///< number of hosts
  friend bool operator==(const NodeInfo&, const NodeInfo&) = default;
};
/// The inputs of a ParallelLayout.
struct LayoutOptions {
  int rank = 0;                       ///< r
  int world_size = 1;                 ///< N
  std::vector<int> federations = {};  ///< n_f; empty: no federation
  std::optional<int> hsdp = {};       ///< L; none: each federation is one shard group (FSDP)
  int streams = 1;                    ///< number of copies of the federated and replica groups
  FederatedGroups groups = FederatedGroups::senders;  ///< which ranks meet across the sites
  Fallback fallback = Fallback::none;                 ///< what to do if hsdp does not divide the sizes
  std::optional<NodeInfo> node = {};                  ///< copied into the layout, after a check
  bool uniform_nodes = false;                         ///< require world_size == local_size * node_count
};

/// A rank's place among the replicas of its site.
struct Replica {
  int local_rank = 0;           ///< p
  int local_size = 1;           ///< L
  int rank = 0;                 ///< q
  std::vector<int> world_size;  ///< R_f of each federation
  friend bool operator==(const Replica&, const Replica&) = default;
};
/// A rank's place among the sites.
struct Federation {
  int local_rank = 0;      ///< l
  std::vector<int> sizes;  ///< n_f
  int rank = 0;            ///< f
  int count = 1;           ///< F
  friend bool operator==(const Federation&, const Federation&) = default;
};

/// The complete layout of one rank. Everything follows from the options; nothing is communicated.
struct OURO_API ParallelLayout {
  /// Errors: invalid (rank outside the world; sizes below 1 or with another sum than the world; hsdp below 1
  /// or not dividing a size; unequal sizes without hsdp, whose shards cannot be matched; streams below 1;
  /// local_rank outside its node, nodes that do not make up the world although uniform).
  static Result<ParallelLayout> make(const LayoutOptions&);

  int rank = 0;                          ///< r
  int world_size = 1;                    ///< N
  std::optional<NodeInfo> node;          ///< as given
  std::optional<Replica> replica;        ///< HSDP
  std::optional<Federation> federation;  ///< set if there are sites
  std::optional<Mesh> fsdp;              ///< axis "shard": the ranks of this rank's federation
  std::optional<Mesh> hsdp;              ///< axes "replica", "shard": mesh_f[q][p] = o_f + qL + p
  bool is_sender = true;                 ///< r in S_f; FSDP: always
  std::optional<int> receive_from;       ///< S_f[p], if this rank is not a sender
  /// Across sites, shard by shard; this rank alone if it does not take part.
  std::vector<int> federated_group;
  std::vector<int> replica_group;  ///< inside a site: the column mesh_f[:,p]; empty for FSDP
  std::vector<int> site;           ///< all ranks of this rank's federation
  int streams = 1;                 ///< number of copies of the groups across sites and replicas
};

/// One group of a layout.
struct NamedRanks {
  std::string label;       ///< "replica", "shard", "federated/0", ..., "replica_average/0", ..., "federation"
  std::vector<int> ranks;  ///< world ranks, in the group's order
  friend bool operator==(const NamedRanks&, const NamedRanks&) = default;
};
/// The groups of this rank in the order of their creation. HSDP: replica, shard, federated x S,
/// replica_average x S, federation; FSDP: shard, federated x S, federation. Without federation, the federated
/// and federation groups do not exist.
OURO_API std::vector<NamedRanks> group_plan(const ParallelLayout&);

/// One handle for each entry of the plan; kinds that the layout lacks are empty.
struct LayoutGroups {
  ParallelLayout layout;               ///< the layout that determines the groups
  std::optional<Group> replica;        ///< the ranks of this site that hold this rank's shard
  std::optional<Group> shard;          ///< the ranks that hold the shards of this replica
  std::optional<Group> federation;     ///< all ranks of this site
  std::vector<Group> federated;        ///< across sites, one per stream, usable at the same time
  std::vector<Group> replica_average;  ///< inside a site, one per stream, usable at the same time
};
/// Creates this rank's groups; does not communicate, and takes no memory until a group is used. Deadline: an
/// hour, unless `GroupOptions`, the context's options or OURO_DEADLINE specify another.
OURO_API Result<LayoutGroups> create_groups(Context&, const ParallelLayout&, const GroupOptions& = {});
/// This rank's sub-group along each axis, in the order of the axes; does not communicate; deadlines as above.
/// `tag` distinguishes meshes of the same ranks.
OURO_API Result<std::vector<Group>> create_groups(Context&, const Mesh&, std::string_view tag = "mesh",
                                                  const GroupOptions& = {});
/// The sub-group along one axis.
OURO_API Result<Group> create_group(Context&, const Mesh&, std::string_view axis,
                                    std::string_view tag = "mesh", const GroupOptions& = {});

/// n / k federations of size k. Errors: invalid unless k > 0 divides n and k < n.
OURO_API Result<std::vector<int>> federation_sizes(int n, int k);
/// Sizes from XFFL_FEDERATED_LOCAL_WORLD_SIZE = "2,3", which counts nodes: each number times local_size.
/// Unset or empty: no sizes, no federation. Errors: invalid (not a list of positive numbers,
/// local_size below 1).
OURO_API Result<std::vector<int>> federation_sizes_from_env(int local_size);
/// The cell of a host is the number formed by the digits of its name, div cell_size. Returns the lengths of
/// the runs of hosts in one cell; empty if there is only one run. Errors: invalid (cell_size below 1, a name
/// without digits or with more than 18).
OURO_API Result<std::vector<int>> cell_sizes(std::span<const std::string> hosts, int cell_size);

/// How a rank initialises its model.
struct InitPlan {
  bool meta = false;         ///< without storage: if there is more than one GPU
  bool materialises = true;  ///< has the values (federated FSDP: l = 0; FSDP: r = 0; HSDP: p = 0); the other
                             ///< ranks receive them by broadcast
};
/// How this rank initialises its model, given the number of GPUs per host.
OURO_API InitPlan init_plan(const ParallelLayout&, int gpus_per_node);
/// Whether parameters are sharded inside replicas and replicated across them.
OURO_API bool hybrid_shard(const ParallelLayout&);

/// @}
/// @defgroup replay_layouts Training: layouts with replay buffers
/// N ranks, B buffers, A agent groups, C = 1 with a coordinator (rank N-1), T = N - B - C training
/// ranks, G = T/A.
/// @{

/// Which ranks train and which keep a replay buffer.
enum class RankRule {
  /// Training ranks are 0..T-1, followed by buffers; buffer T + b serves the training ranks r with
  /// r mod B = b.
  contiguous,
  /// Ranks are cut into B chunks, by host if B is divisible by the number of hosts; the last rank of a chunk
  /// is its buffer and serves the others. The first chunks are the larger ones.
  interleaved,
};
/// The inputs of a RankLayout.
struct RankLayoutOptions {
  int world_size = 1;                     ///< N
  int buffers = 0;                        ///< B
  int agent_groups = 1;                   ///< A
  bool coordinator = false;               ///< whether the last rank coordinates
  RankRule rule = RankRule::interleaved;  ///< which ranks train and which are buffers
  std::vector<std::string> hosts = {};    ///< hosts[r]; empty: one host
};
/// Which ranks train, which keep replay buffers, and which one coordinates.
class OURO_API RankLayout {
 public:
  /// Errors: invalid (T <= 0, T < B, A does not divide T, negative numbers; a number of hosts other than 0 or
  /// one per rank; a host with fewer than two ranks for each of its buffers).
  static Result<RankLayout> make(const RankLayoutOptions&);

  int world_size() const { return world_; }                          ///< N
  std::span<const int> training_ranks() const { return training_; }  ///< in the order of their agent groups
  std::span<const int> buffer_ranks() const { return buffers_; }     ///< ascending
  std::vector<std::vector<int>> agent_groups() const;   ///< the training ranks of each agent group
  int agent_group_size() const { return group_size_; }  ///< G
  bool is_training(int rank) const;                     ///< false for a rank that does not exist
  bool is_buffer(int rank) const;                       ///< false for a rank that does not exist
  /// Whether the rank is the coordinator.
  bool is_coordinator(int rank) const { return coordinator_ && *coordinator_ == rank; }
  std::optional<int> coordinator() const { return coordinator_; }  ///< nullopt: there is none
  /// The buffer of a training rank, if there are buffers.
  std::optional<int> assigned_buffer(int rank) const;
  /// The training ranks that a buffer serves.
  std::optional<std::vector<int>> assigned_training_ranks(int rank) const;
  /// The agent group of a training rank; with interleaved, also of a buffer: that of the first
  /// rank it serves.
  std::optional<int> agent_group_id(int rank) const;
  /// The groups to create, in this order: agent groups, all training ranks, the buffers if there are any.
  std::vector<std::vector<int>> groups() const;

 private:
  int world_ = 1, group_size_ = 1;
  RankRule rule_ = RankRule::interleaved;
  std::optional<int> coordinator_;
  std::vector<int> training_, buffers_;
  std::vector<std::pair<int, std::vector<int>>> served_;  // by buffer
};
/// @}

}  // namespace ouro::train
