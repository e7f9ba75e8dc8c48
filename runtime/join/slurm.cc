// SLURM's variables. See slurm.h.
#include "runtime/join/slurm.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ouro::slurm {
namespace {

/// Number `node` of a list such as "2(x3),1", which stands for 2,2,2,1.
std::optional<int> tasks_on_node(std::string_view list, int node) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string item(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
    int tasks = 0, repeat = 1, used = 0;
    const bool repeated = std::sscanf(item.c_str(), "%d(x%d)%n", &tasks, &repeat, &used) == 2;
    if (!repeated && std::sscanf(item.c_str(), "%d%n", &tasks, &used) != 1) return std::nullopt;
    if (used != static_cast<int>(item.size()) || repeat < 1) return std::nullopt;
    if (node < repeat) return tasks;
    node -= repeat;
  }
  return std::nullopt;
}

/// The first host of a list such as "n[07-9,12],m3": "n07". "" if the list cannot be read.
std::string first_of(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    const std::size_t end = list.find(']');
    if (end == std::string_view::npos) return "";
    const std::string_view inside = list.substr(1, end - 1);
    host += inside.substr(0, inside.find_first_of(",-"));
    list.remove_prefix(end + 1);
  }
  return host;
}

}  // namespace

bool in_step(const Variables& env) {
  constexpr std::uint32_t kFirstReserved = 0xfffffff0u;
  const std::string_view id = env.text("SLURM_STEP_ID");
  std::uint32_t step = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), step);
  return !id.empty() && error == std::errc() && end == id.data() + id.size() && step < kFirstReserved;
}

bool hosts(const Variables& env, std::string_view launcher) {
  const bool may_be = launcher == "slurm" || launcher == "pmix" || launcher == "pmi" || launcher == "mvapich";
  return may_be && env.has("SLURM_JOB_ID") && in_step(env);
}

Result<int> local_size(const Variables& env, int size) {
  if (env.text("SLURM_STEP_NUM_NODES") == "1" || env.text("SLURM_NNODES") == "1") return size;
  const std::string list = env.first({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (list.empty() || !env.has("SLURM_NODEID")) {
    return invalid(
        "SLURM does not say how many tasks this node has: "
        "SLURM_STEP_TASKS_PER_NODE or SLURM_NODEID is missing");
  }
  const Result<int> node = env.number("SLURM_NODEID");
  if (!node.ok()) return node.status();
  const std::optional<int> tasks = tasks_on_node(env.text(list), *node);
  if (!tasks) return invalid(fmt::format("{}={} has no entry for node {}", list, env.text(list), *node));
  return *tasks;
}

std::string step_name(const Variables& env) {
  return fmt::format("{}.{}.{}", env.text("SLURM_JOB_ID"), env.text("SLURM_STEP_ID"),
                     env.text("SLURM_RESTART_COUNT"));
}

FirstHost first_host(const Variables& env) {
  constexpr std::uint64_t kFirst = 10'000, kPorts = 20'000;
  const std::string list = env.first({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const std::string step = fmt::format("{}.{}", env.text("SLURM_JOB_ID"), env.text("SLURM_STEP_ID"));
  return {list, first_of(env.text(list)),
          static_cast<int>(kFirst + XXH3_64bits(step.data(), step.size()) % kPorts)};
}

}  // namespace ouro::slurm
