// The reference tables of parallel layouts and of rank layouts, every field of every rank. layout_test.cc has
// the layouts' examples and refusals.
#include "ouro/train/layout.hpp"

#include <gtest/gtest.h>

#include "tests/golden_data.h"

namespace ouro::train {
namespace {

using nlohmann::json;
using Ints = std::vector<int>;

json or_null(const Ints& v) { return v.empty() ? json() : json(v); }
template <class T, class F>
json of(const std::optional<T>& x, const F& f) {
  return x ? json(f(*x)) : json();
}

/// All fields of a reference record, taken from `layout`.
json record(const ParallelLayout& l) {
  json r;
  r["rank"] = l.rank;
  r["federated_local_rank"] = of(l.federation, [](const auto& f) { return f.local_rank; });
  r["federated_local_size"] = of(l.federation, [](const auto& f) { return f.sizes; });
  r["federated_rank"] = of(l.federation, [](const auto& f) { return f.rank; });
  r["federated_world_size"] = of(l.federation, [](const auto& f) { return f.count; });
  r["replica_local_rank"] = of(l.replica, [](const auto& x) { return x.local_rank; });
  r["replica_local_size"] = of(l.replica, [](const auto& x) { return x.local_size; });
  r["replica_rank"] = of(l.replica, [](const auto& x) { return x.rank; });
  r["replica_world_size"] = of(l.replica, [](const auto& x) { return x.world_size; });
  r["is_sender"] = l.is_sender;
  r["receive_from"] = of(l.receive_from, [](int x) { return x; });
  r["federated_group"] = l.federation ? json(l.federated_group) : json();
  r["replica_group"] = or_null(l.replica_group);
  r["federation"] = l.federation ? json(l.site) : json();
  r["fsdp_mesh"] = of(l.fsdp, [](const Mesh& m) { return m.ranks; });
  r["hsdp_mesh"] = of(l.hsdp, [](const Mesh& m) {
    json rows = json::array();
    for (int q = 0; q < m.shape[0]; ++q)
      rows.push_back(Ints(m.ranks.begin() + q * m.shape[1], m.ranks.begin() + (q + 1) * m.shape[1]));
    return rows;
  });
  r["hsdp_dims"] = of(l.hsdp, [](const Mesh& m) { return m.axes; });
  json created = json::array();
  for (const NamedRanks& g : group_plan(l)) created.push_back({g.label, g.ranks});
  r["n_groups_created"] = created.size();
  r["group_creation_order"] = created;
  return r;
}

TEST(LayoutGolden, FederatedLayoutsMatchTheRecord) {
  test::CasesRun cases{"federated ranks", "refusals"};
  for (const json& c : test::golden("xffl_groups.json")) {
    LayoutOptions o{.world_size = c.at("world_size"), .groups = FederatedGroups::all_replicas};
    if (!c.at("federated_group_size").is_null()) o.federations = c.at("federated_group_size").get<Ints>();
    if (!c.at("hsdp").is_null()) o.hsdp = c.at("hsdp").get<int>();
    for (const json& want : c.at("ranks")) {
      o.rank = want.at("rank");
      // Records that are not refusals show the result with the compatibility options.
      o.fallback = want.contains("exception") ? Fallback::none : Fallback::drop_hsdp;
      const auto got = ParallelLayout::make(o);
      cases.add("federated ranks");
      if (want.contains("exception")) {
        EXPECT_EQ(got.status().code(), Code::invalid) << want;
        cases.add("refusals");
        continue;
      }
      ASSERT_TRUE(got.ok()) << got.status().message();
      const json mine = record(*got);
      for (const auto& [field, value] : want.items()) {
        if (field == "errors") continue;
        ASSERT_TRUE(mine.contains(field)) << "nobody compares " << field;
        EXPECT_EQ(mine.at(field), value) << field << " of rank " << o.rank << " in " << c.at("world_size")
                                         << ' ' << c.at("federated_group_size") << ' ' << c.at("hsdp");
      }
    }
  }
}

json record(const RankLayout& l, int rank) {
  const auto optional = [](const auto& x) { return x ? json(*x) : json(); };
  const auto list = [](std::span<const int> s) { return json(Ints(s.begin(), s.end())); };
  return {{"rank", rank},
          {"num_training_ranks", l.training_ranks().size()},
          {"agent_group_size", l.agent_group_size()},
          {"agent_group_id", optional(l.agent_group_id(rank))},
          {"agent_groups", l.agent_groups()},
          {"train_global_group", list(l.training_ranks())},
          {"buffer_group", l.buffer_ranks().empty() ? json() : list(l.buffer_ranks())},
          {"assigned_buffer", optional(l.assigned_buffer(rank))},
          {"assigned_training_ranks", optional(l.assigned_training_ranks(rank))},
          {"coordinator_rank", optional(l.coordinator())},
          {"is_training", l.is_training(rank)},
          {"is_buffer", l.is_buffer(rank)},
          {"is_coordinator", l.is_coordinator(rank)},
          {"groups_created", l.groups()}};
}

/// Where ouro deliberately differs from the records: ranks that belong to no agent group, a coordinator that
/// serves nobody.
bool says_nothing(RankRule rule, const RankLayout& l, int rank, const std::string& field) {
  if (field == "agent_group_id")
    return l.is_coordinator(rank) || (rule == RankRule::contiguous && l.is_buffer(rank));
  return field == "assigned_training_ranks" && l.is_coordinator(rank);
}

void compare(const json& c, const char* key, RankRule rule, test::CasesRun& cases) {
  if (!c.contains(key)) return;
  RankLayoutOptions o{.buffers = c.at("num_remote_buffers"),
                      .agent_groups = c.at("num_agent_groups"),
                      .coordinator = c.at("use_coordinator"),
                      .rule = rule};
  if (c.contains("hosts")) o.hosts = c.at("hosts").get<std::vector<std::string>>();
  o.world_size = c.contains("world_size") ? c.at("world_size").get<int>() : static_cast<int>(o.hosts.size());
  const auto got = RankLayout::make(o);
  for (const json& want : c.at(key)) {
    cases.add(std::string(key) + " ranks");
    if (want.contains("exception")) {
      EXPECT_EQ(got.status().code(), Code::invalid) << want;
      cases.add("refusals");
      continue;
    }
    ASSERT_TRUE(got.ok()) << got.status().message();
    const int rank = want.at("rank");
    const json mine = record(*got, rank);
    for (const auto& [field, value] : want.items()) {
      ASSERT_TRUE(mine.contains(field)) << "nobody compares " << field;
      EXPECT_EQ(mine.at(field), says_nothing(rule, *got, rank, field) ? json() : value)
          << key << ' ' << field << " of rank " << rank << " of " << o.world_size << " with " << o.buffers
          << " buffers";
    }
  }
}

TEST(LayoutGolden, TrainingAndBufferRanksMatchTheRecord) {
  test::CasesRun cases{"seed_era ranks", "head ranks", "refusals"};
  for (const char* file : {"torchgfn_layouts.json", "torchgfn_layouts_hostnames.json"})
    for (const json& c : test::golden(file)) {
      compare(c, "seed_era", RankRule::contiguous, cases);
      compare(c, "head", RankRule::interleaved, cases);
    }
}

}  // namespace
}  // namespace ouro::train
