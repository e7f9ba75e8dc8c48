// The known launchers, one table row each. See launchers.h.
#include "runtime/join/launchers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/join/slurm.h"

namespace ouro::launchers {
namespace {

/// The variables of a launcher; "" if it has none. SLURM's local_size is a list and is read separately.
struct Family {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* node;
  const char* restarts;
};
constexpr Family kFamilies[] = {
    {"ouro", "OURO_RANK", "OURO_WORLD_SIZE", "OURO_LOCAL_RANK", "OURO_LOCAL_SIZE", "GROUP_RANK",
     "TORCHELASTIC_RESTART_COUNT"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
     "TORCHELASTIC_RESTART_COUNT"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "", ""},
    {"pmix", "PMIX_RANK", "", "", "", "SLURM_NODEID", "SLURM_RESTART_COUNT"},
    {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "SLURM_NODEID",
     "SLURM_RESTART_COUNT"},
    {"mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_NODEID", "SLURM_RESTART_COUNT"},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "", "SLURM_NODEID", "SLURM_RESTART_COUNT"},
};

std::string_view value(const Variables& env, const std::string& name) {
  return name.empty() ? std::string_view() : env.text(name);
}

/// "RANK=0, WORLD_SIZE=1".
std::string shown(const Variables& env, const Found& f) {
  std::string text = fmt::format("{} ({}={}", f.launcher, f.rank, value(env, f.rank));
  if (!value(env, f.size).empty()) text += fmt::format(", {}={}", f.size, value(env, f.size));
  return text + ")";
}

bool agree(const Variables& env, const Found& a, const Found& b) {
  const auto size = [&](const Found& f) {  // PMIx has none of its own
    return f.launcher == "pmix" ? std::string_view() : value(env, f.size);
  };
  const std::string_view one = size(a), other = size(b);
  return value(env, a.rank) == value(env, b.rank) && (one.empty() || other.empty() || one == other);
}

/// Whether `inner` is known to have been started by a rank of `outer`, so that the variables of `outer`
/// describe its parent: ouro-run records the launchers of which it was a rank itself; torchrun marks its
/// workers, and is started by one task of srun or mpirun per node; mpirun starts its daemons by srun,
/// one per node.
bool inside(const Variables& env, const Found& inner, const Found& outer) {
  if (inner.launcher == "ouro") {
    std::string_view list = env.text("OURO_OUTER_LAUNCHERS");
    const std::string wanted = claim(env, outer);
    while (!list.empty()) {
      const std::size_t comma = std::min(list.find(','), list.size());
      if (list.substr(0, comma) == wanted) return true;
      list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return false;
  }
  if (inner.launcher == "torchrun") return env.has("TORCHELASTIC_RUN_ID");
  // PMIx leaves the size to SLURM, whose variables then must mean the same job.
  return outer.launcher == "slurm" && inner.launcher != "pmix";
}

}  // namespace

std::vector<Found> find(const Variables& env) {
  std::vector<Found> all;
  for (const Family& f : kFamilies) {
    const std::string_view launcher = f.launcher;
    if (!env.has(f.rank) && (*f.size == '\0' || !env.has(f.size))) continue;
    if (launcher == "slurm" && !slurm::in_step(env)) continue;
    Found found{f.launcher, f.rank, f.size, f.local_rank, f.local_size, f.node, f.restarts};
    if (launcher == "pmix") {
      found.size = env.first({"PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
      found.local_rank = env.first({"MPI_LOCALRANKID", "SLURM_LOCALID"});
      found.local_size = env.first({"MPI_LOCALNRANKS"});
    } else if (launcher == "slurm") {
      found.size = env.first({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
    }
    all.push_back(std::move(found));
  }
  return all;
}

std::string claim(const Variables& env, const Found& f) {
  return fmt::format("{} {}/{}", f.launcher, value(env, f.rank), value(env, f.size));
}

Result<std::optional<Found>> choose(const Variables& env) {
  const std::vector<Found> all = find(env);
  if (const std::string_view wanted = env.text("OURO_LAUNCHER"); !wanted.empty()) {
    std::vector<std::string> known{"none"};
    for (const Family& f : kFamilies) known.emplace_back(f.launcher);
    if (std::find(known.begin(), known.end(), wanted) == known.end())
      return invalid(fmt::format("OURO_LAUNCHER={}: expected one of {}", wanted, fmt::join(known, ", ")));
    if (wanted == "none") return std::optional<Found>();
    for (const Found& f : all)
      if (f.launcher == wanted) return std::optional<Found>(f);
    return invalid(fmt::format(
        "OURO_LAUNCHER={}, but none of its variables is set; unset it, or set it to none", wanted));
  }
  if (all.empty()) return std::optional<Found>();
  const Found& first = all.front();
  for (const Found& other : all) {
    if (agree(env, first, other) || inside(env, first, other)) continue;
    return invalid(
        fmt::format("two launchers disagree about which rank this is: {} and {}; unset the variables of the "
                    "one that did not start it, or choose with OURO_LAUNCHER={} or OURO_LAUNCHER={}",
                    shown(env, first), shown(env, other), first.launcher, other.launcher));
  }
  return std::optional<Found>(first);
}

}  // namespace ouro::launchers
