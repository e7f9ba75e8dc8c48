// Meshes and parallel layouts: arithmetic on ranks, and the resulting groups. See layout.hpp.
#include "ouro/train/layout.hpp"
#include "api/train/common/patient.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <numeric>

namespace ouro::train {

// ---- meshes ---------------------------------------------------------------------------------------

std::optional<std::vector<int>> Mesh::coordinates(int rank) const {
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end()) return std::nullopt;
  auto rest = static_cast<int>(at - ranks.begin());
  std::vector<int> c(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d]) c[d] = rest % shape[d];
  return c;
}

std::optional<std::size_t> Mesh::axis(std::string_view name) const {
  const auto at = std::find(axes.begin(), axes.end(), name);
  if (at == axes.end()) return std::nullopt;
  return static_cast<std::size_t>(at - axes.begin());
}

Result<std::vector<int>> Mesh::along(std::string_view name, int rank) const {
  const auto d = axis(name);
  if (!d) return invalid(fmt::format("no axis '{}' in a mesh of {}", name, fmt::join(axes, ", ")));
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end()) return invalid(fmt::format("rank {} is not in the mesh", rank));
  const int stride = std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(*d) + 1, shape.end(), 1,
                                     std::multiplies<>());
  const auto index = static_cast<int>(at - ranks.begin());
  const int first = index - index / stride % shape[*d] * stride;
  std::vector<int> line;
  for (int k = 0; k < shape[*d]; ++k) line.push_back(ranks[static_cast<std::size_t>(first + k * stride)]);
  return line;
}

Result<Mesh> make_mesh(std::span<const int> shape, std::span<const std::string> axes) {
  if (shape.empty()) return invalid("a mesh needs at least one dimension");
  std::int64_t size = 1;
  for (const int n : shape) {
    if (n < 1)
      return invalid(fmt::format("a mesh of shape ({}); dimensions are 1 or more", fmt::join(shape, ", ")));
    size *= n;
    if (size > std::numeric_limits<int>::max())
      return invalid(fmt::format("a mesh of shape ({}) has too many ranks", fmt::join(shape, ", ")));
  }
  if (!axes.empty() && axes.size() != shape.size())
    return invalid(fmt::format("{} names for {} dimensions", axes.size(), shape.size()));
  Mesh mesh;
  mesh.shape.assign(shape.begin(), shape.end());
  mesh.axes.assign(axes.begin(), axes.end());
  for (std::size_t d = mesh.axes.size(); d < shape.size(); ++d) mesh.axes.push_back(std::to_string(d));
  for (std::size_t d = 0; d < mesh.axes.size(); ++d)
    if (*mesh.axis(mesh.axes[d]) != d) return invalid(fmt::format("two axes are named '{}'", mesh.axes[d]));
  mesh.ranks.resize(static_cast<std::size_t>(size));
  std::iota(mesh.ranks.begin(), mesh.ranks.end(), 0);
  return mesh;
}

// ---- layouts --------------------------------------------------------------------------------------

namespace {

std::vector<int> range(int first, int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

Status check_node(const LayoutOptions& o) {
  if (!o.node) {
    if (o.uniform_nodes) return invalid("uniform_nodes is about `node`, which is not set");
    return {};
  }
  const NodeInfo& n = *o.node;
  if (n.local_rank < 0 || n.local_rank >= n.local_size)
    return invalid(fmt::format("local rank {} of {}", n.local_rank, n.local_size));
  if (n.node_rank < 0 || n.node_rank >= n.node_count)
    return invalid(fmt::format("node {} of {}", n.node_rank, n.node_count));
  if (o.uniform_nodes && std::int64_t{n.local_size} * n.node_count != o.world_size)
    return invalid(
        fmt::format("{} nodes of {} ranks are not a world of {}", n.node_count, n.local_size, o.world_size));
  return {};
}

/// Checks the options and returns the effective hsdp.
Result<std::optional<int>> check(const LayoutOptions& o, std::span<const int> sizes) {
  if (o.rank < 0 || o.rank >= o.world_size)
    return invalid(fmt::format("rank {} of {}", o.rank, o.world_size));
  if (o.streams < 1) return invalid(fmt::format("{} streams; expected at least 1", o.streams));
  OURO_TRY(check_node(o));
  std::int64_t sum = 0;
  for (const int n : sizes) {
    if (n < 1)
      return invalid(fmt::format("federations of ({}); a size is 1 or more", fmt::join(sizes, ", ")));
    sum += n;
  }
  if (sum != o.world_size)
    return invalid(fmt::format("federations of ({}) have {} ranks, the world has {}", fmt::join(sizes, ", "),
                               sum, o.world_size));
  const bool equal = std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) == sizes.end();
  if (!o.hsdp) {
    if (!equal)
      return invalid(
          fmt::format("federations of ({}) without hsdp: shards of different sizes cannot be matched",
                      fmt::join(sizes, ", ")));
    return std::optional<int>();
  }
  const int l = *o.hsdp;
  if (l < 1) return invalid(fmt::format("{} ranks a replica (hsdp); expected at least 1", l));
  if (std::all_of(sizes.begin(), sizes.end(), [l](int n) { return n % l == 0; })) return o.hsdp;
  if (o.fallback == Fallback::drop_hsdp && equal && !o.federations.empty()) return std::optional<int>();
  return invalid(fmt::format("{} ranks a replica (hsdp) do not divide {} ({})", l,
                             o.federations.empty() ? "the world" : "all federations",
                             fmt::join(sizes, ", ")));
}

}  // namespace

Result<ParallelLayout> ParallelLayout::make(const LayoutOptions& o) {
  const std::vector<int> sizes = o.federations.empty() ? std::vector<int>{o.world_size} : o.federations;
  OURO_ASSIGN(const auto checked, check(o, sizes));
  const int federations = static_cast<int>(sizes.size());
  std::vector<int> first(sizes.size(), 0);  // o_f
  std::partial_sum(sizes.begin(), sizes.end() - 1, first.begin() + 1);
  const auto mine =
      static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), o.rank) - first.begin() - 1);
  const int l = o.rank - first[mine];

  ParallelLayout layout;
  layout.rank = o.rank, layout.world_size = o.world_size, layout.streams = o.streams;
  layout.node = o.node;
  if (!o.federations.empty()) layout.federation = Federation{l, sizes, static_cast<int>(mine), federations};
  layout.site = range(first[mine], sizes[mine]);
  if (!checked) {
    layout.fsdp = Mesh{layout.site, {sizes[mine]}, {"shard"}};
    for (const int start : first) layout.federated_group.push_back(start + l);
    return layout;
  }

  const int width = *checked, p = l % width, q = l / width;
  layout.replica = Replica{p, width, q, {}};
  for (const int n : sizes) layout.replica->world_size.push_back(n / width);
  const int replicas = sizes[mine] / width;
  layout.hsdp = Mesh{layout.site, {replicas, width}, {"replica", "shard"}};
  for (int k = 0; k < replicas; ++k) layout.replica_group.push_back(first[mine] + k * width + p);
  const auto sender = [&](std::size_t f) { return first[f] + p % (sizes[f] / width) * width + p; };
  layout.is_sender = sender(mine) == o.rank;
  if (!layout.is_sender) layout.receive_from = sender(mine);
  const bool equal = std::count(sizes.begin(), sizes.end(), sizes[0]) == federations;
  if (o.groups == FederatedGroups::all_replicas && equal) {
    for (const int start : first) layout.federated_group.push_back(start + l);
  } else if (layout.is_sender) {
    for (std::size_t f = 0; f < sizes.size(); ++f) layout.federated_group.push_back(sender(f));
  } else {
    layout.federated_group = {o.rank};
  }
  return layout;
}

std::vector<NamedRanks> group_plan(const ParallelLayout& layout) {
  std::vector<NamedRanks> plan;
  if (layout.hsdp) {
    const int width = layout.hsdp->shape[1];
    plan.push_back({"replica", layout.replica_group});
    plan.push_back({"shard", range(layout.site[0] + layout.replica->rank * width, width)});
  } else {
    plan.push_back({"shard", layout.site});
  }
  const auto each_stream = [&](const char* kind, const std::vector<int>& ranks) {
    for (int s = 0; s < layout.streams; ++s) plan.push_back({fmt::format("{}/{}", kind, s), ranks});
  };
  if (layout.federation) each_stream("federated", layout.federated_group);
  if (layout.hsdp) each_stream("replica_average", layout.replica_group);
  if (layout.federation) plan.push_back({"federation", layout.site});
  return plan;
}

namespace {

/// Sites may train for a long time before they meet.
constexpr Milliseconds kDeadline = std::chrono::hours(1);

}  // namespace

GroupOptions patient(const Context& context, GroupOptions options, Milliseconds deadline) {
  if (options.deadline.count() == 0 && !context.deadline_chosen()) options.deadline = deadline;
  return options;
}

Result<LayoutGroups> create_groups(Context& context, const ParallelLayout& layout,
                                   const GroupOptions& options) {
  if (context.rank() != layout.rank || context.world_size() != layout.world_size)
    return invalid(fmt::format("the layout of rank {} of {}, on rank {} of {}", layout.rank,
                               layout.world_size, context.rank(), context.world_size()));
  LayoutGroups groups;
  groups.layout = layout;
  for (const NamedRanks& entry : group_plan(layout)) {
    OURO_ASSIGN(auto group, context.group(entry.ranks, entry.label, patient(context, options, kDeadline)));
    if (entry.label == "replica")
      groups.replica = std::move(group);
    else if (entry.label == "shard")
      groups.shard = std::move(group);
    else if (entry.label == "federation")
      groups.federation = std::move(group);
    else
      (entry.label.starts_with("federated/") ? groups.federated : groups.replica_average)
          .push_back(std::move(group));
  }
  return groups;
}

Result<Group> create_group(Context& context, const Mesh& mesh, std::string_view axis, std::string_view tag,
                           const GroupOptions& options) {
  OURO_ASSIGN(auto ranks, mesh.along(axis, context.rank()));
  return context.group(ranks, fmt::format("{}/{}", tag, axis), patient(context, options, kDeadline));
}

Result<std::vector<Group>> create_groups(Context& context, const Mesh& mesh, std::string_view tag,
                                         const GroupOptions& options) {
  std::vector<Group> groups;
  for (const std::string& axis : mesh.axes) {
    OURO_ASSIGN(auto group, create_group(context, mesh, axis, tag, options));
    groups.push_back(std::move(group));
  }
  return groups;
}

Result<std::vector<int>> federation_sizes(int n, int k) {
  if (k < 1 || k >= n || n % k != 0)
    return invalid(
        fmt::format("federations of {} ranks in a world of {}; a size is at least 1, divides the world and "
                    "is less than it",
                    k, n));
  return std::vector<int>(static_cast<std::size_t>(n / k), k);
}

Result<std::vector<int>> federation_sizes_from_env(int local_size) {
  constexpr const char* kName = "XFFL_FEDERATED_LOCAL_WORLD_SIZE";
  if (local_size < 1) return invalid(fmt::format("{} ranks a node; expected at least 1", local_size));
  const char* text = std::getenv(kName);
  if (text == nullptr || *text == '\0') return std::vector<int>();
  std::vector<int> sizes;
  const std::string_view all = text;
  for (std::size_t at = 0; at <= all.size();) {
    const std::string_view word = all.substr(at, all.find(',', at) - at);
    int nodes = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), nodes);
    if (error != std::errc() || end != word.data() + word.size() || nodes < 1 ||
        nodes > std::numeric_limits<int>::max() / local_size)
      return invalid(fmt::format("{}={}: expected numbers of nodes, such as 2,3", kName, text));
    sizes.push_back(nodes * local_size);
    at += word.size() + 1;
  }
  return sizes;
}

Result<std::vector<int>> cell_sizes(std::span<const std::string> hosts, int cell_size) {
  if (cell_size < 1) return invalid(fmt::format("cells of {} hosts; expected at least 1", cell_size));
  constexpr std::size_t kMostDigits = 18;  // so that an int64 holds the number
  std::vector<int> runs;
  std::int64_t last = 0;
  for (const std::string& host : hosts) {
    std::string digits;
    for (const char c : host)
      if (c >= '0' && c <= '9') digits += c;
    if (digits.empty() || digits.size() > kMostDigits)
      return invalid(fmt::format("host '{}' has {} digits; its cell is determined by 1 to {}", host,
                                 digits.size(), kMostDigits));
    const std::int64_t cell = std::stoll(digits) / cell_size;
    if (runs.empty() || cell != last) runs.push_back(0);
    ++runs.back();
    last = cell;
  }
  if (runs.size() < 2) runs.clear();
  return runs;
}

InitPlan init_plan(const ParallelLayout& layout, int gpus_per_node) {
  const bool first = layout.hsdp         ? layout.replica->local_rank == 0
                     : layout.federation ? layout.federation->local_rank == 0
                                         : layout.rank == 0;
  return {.meta = gpus_per_node > 1, .materialises = first};
}

bool hybrid_shard(const ParallelLayout& layout) { return layout.hsdp.has_value(); }

}  // namespace ouro::train
