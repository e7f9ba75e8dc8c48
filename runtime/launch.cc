// Reads the variables of the known launchers; one table row each. Used through launch.h.
#include "runtime/launch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "runtime/core/log.h"

namespace ouro {
namespace {

constexpr int kMaxRanks = 65536;

/// What a launcher calls things; "" where it has no word. local_size of SLURM is a list and read apart.
struct Family {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr Family kFamilies[] = {
    {"ouro", "OURO_RANK", "OURO_WORLD_SIZE", "OURO_LOCAL_RANK", "OURO_LOCAL_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"pmix", "PMIX_RANK", "", "", ""},
    {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"mvapich", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
};

class Reader {
 public:
  explicit Reader(const Environment& env) : env_(env) {}

  /// "" if unset: an empty variable counts as unset.
  std::string_view text(const std::string& name) const {
    const auto it = env_.find(name);
    return it == env_.end() ? std::string_view() : std::string_view(it->second);
  }
  bool has(const std::string& name) const { return !text(name).empty(); }
  Result<int> number(const std::string& name) const {
    const std::string_view value = text(name);
    int out = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
    if (error != std::errc() || end != value.data() + value.size()) {
      return invalid(fmt::format("{}={} is not an integer", name, value));
    }
    return out;
  }
  /// The first of the names that is set, or "".
  std::string first(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (has(name)) return name;
    }
    return "";
  }

 private:
  const Environment& env_;
};

/// Processes of srun have a step. The shells of salloc and sbatch have SLURM's other variables too, and an
/// interactive or batch step with a reserved number, but are no ranks: counting them would wait for nobody.
bool in_slurm_step(const Reader& env) {
  constexpr std::uint32_t kFirstReserved = 0xfffffff0u;
  const std::string_view id = env.text("SLURM_STEP_ID");
  std::uint32_t step = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), step);
  return !id.empty() && error == std::errc() && end == id.data() + id.size() && step < kFirstReserved;
}

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

Result<int> slurm_local_size(const Reader& env, int size) {
  if (env.text("SLURM_STEP_NUM_NODES") == "1" || env.text("SLURM_NNODES") == "1") return size;
  const std::string list = env.first({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (list.empty() || !env.has("SLURM_NODEID")) {
    return invalid(
        "SLURM does not say how many tasks this node has: SLURM_STEP_TASKS_PER_NODE or SLURM_NODEID is "
        "missing");
  }
  const Result<int> node = env.number("SLURM_NODEID");
  if (!node.ok()) return node.status();
  const std::optional<int> tasks = tasks_on_node(env.text(list), *node);
  if (!tasks) return invalid(fmt::format("{}={} has no entry for node {}", list, env.text(list), *node));
  return *tasks;
}

/// The names that this environment really uses: PMIx names a rank and leaves the rest to its host launcher.
struct Found {
  std::string launcher, rank, size, local_rank, local_size;
};

std::optional<Found> find(const Reader& env) {
  for (const Family& f : kFamilies) {
    const std::string_view launcher = f.launcher;
    if (!env.has(f.rank) && (*f.size == '\0' || !env.has(f.size))) continue;
    if (launcher == "slurm" && !in_slurm_step(env)) continue;
    Found found{f.launcher, f.rank, f.size, f.local_rank, f.local_size};
    if (launcher == "pmix") {
      found.size = env.first({"PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
      found.local_rank = env.first({"MPI_LOCALRANKID", "SLURM_LOCALID"});
      found.local_size = env.first({"MPI_LOCALNRANKS"});
    } else if (launcher == "slurm") {
      found.size = env.first({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
    }
    return found;
  }
  return std::nullopt;
}

Status check(const Found& names, const Launch& l) {
  if (l.size < 1 || l.size > kMaxRanks) {
    return invalid(fmt::format("{}={}: expected 1 to {} ranks", names.size, l.size, kMaxRanks));
  }
  if (l.rank < 0 || l.rank >= l.size) {
    return invalid(
        fmt::format("{}={}: expected 0 to {}, as {}={}", names.rank, l.rank, l.size - 1, names.size, l.size));
  }
  if (l.local_size < 1 || l.local_size > l.size) {
    return invalid(fmt::format("{}={}: expected 1 to {}, the number of ranks",
                               names.local_size.empty() ? "local size" : names.local_size, l.local_size,
                               l.size));
  }
  if (l.local_rank < 0 || l.local_rank >= l.local_size) {
    return invalid(fmt::format("{}={}: expected 0 to {}, as this host has {} ranks",
                               names.local_rank.empty() ? "local rank" : names.local_rank, l.local_rank,
                               l.local_size - 1, l.local_size));
  }
  return {};
}

/// Rank, size and their local likes. Without local names all ranks are taken to be on one host.
Result<Launch> read(const Reader& env, const Found& names) {
  Launch l;
  l.launcher = names.launcher;
  if (names.size.empty() || !env.has(names.size)) {
    return invalid(fmt::format(
        "{} is set, but {} is not: the number of ranks is unknown; set OURO_RANK and OURO_WORLD_SIZE, or "
        "unset {}",
        names.rank, names.size.empty() ? "no variable with the number of ranks" : names.size, names.rank));
  }
  if (!env.has(names.rank)) {
    return invalid(fmt::format("{} is set, but {} is not: set both or none", names.size, names.rank));
  }
  const Result<int> rank = env.number(names.rank), size = env.number(names.size);
  if (!rank.ok()) return rank.status();
  if (!size.ok()) return size.status();
  l.rank = l.local_rank = *rank;
  l.size = l.local_size = *size;
  if (!names.local_rank.empty() && env.has(names.local_rank)) {
    const Result<int> local = env.number(names.local_rank);
    if (!local.ok()) return local.status();
    l.local_rank = *local;
  }
  if (!names.local_size.empty() && env.has(names.local_size)) {
    const Result<int> local = env.number(names.local_size);
    if (!local.ok()) return local.status();
    l.local_size = *local;
  } else if (names.local_rank == "SLURM_LOCALID") {
    const Result<int> local = slurm_local_size(env, l.size);
    if (!local.ok()) return local.status();
    l.local_size = *local;
  }
  OURO_TRY(check(names, l));
  return l;
}

/// What the launcher says that all ranks see and no other job does; "" if it says nothing of the kind.
std::string key_of(const Reader& env, const std::string& launcher) {
  const auto slurm = [&] {
    return fmt::format("slurm:{}.{}.{}", env.text("SLURM_JOB_ID"), env.text("SLURM_STEP_ID"),
                       env.text("SLURM_RESTART_COUNT"));
  };
  const std::string job = env.first({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  if (launcher == "torchrun" && env.has("MASTER_ADDR") && env.has("MASTER_PORT")) {
    return fmt::format("torchrun:{}:{}:{}:{}", env.text("MASTER_ADDR"), env.text("MASTER_PORT"),
                       env.text("TORCHELASTIC_RUN_ID"), env.text("TORCHELASTIC_RESTART_COUNT"));
  }
  if ((launcher == "openmpi" || launcher == "pmix") && !job.empty())
    return fmt::format("{}:{}", job, env.text(job));
  const bool of_slurm =
      launcher == "slurm" || launcher == "pmix" || launcher == "pmi" || launcher == "mvapich";
  return of_slurm && env.has("SLURM_JOB_ID") && in_slurm_step(env) ? slurm() : "";
}

/// Field 22 of /proc/PID/stat, in clock ticks since boot. The name in field 2 may hold blanks and brackets.
std::string name_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line, field;
  std::getline(file, line);
  const std::size_t bracket = line.rfind(')');
  std::istringstream rest(bracket == std::string::npos ? "" : line.substr(bracket + 1));
  for (int i = 3; i <= 22 && rest >> field;) ++i;
  return fmt::format("{}@{}", pid, rest ? field : "?");
}

}  // namespace

Identity identity() { return {name_of(getpid()), name_of(getppid())}; }

Result<Launch> discover(const Environment& environment, const Identity& who) {
  const Reader env(environment);
  const std::string job_id(env.text("OURO_JOB_ID"));
  const std::optional<Found> names = find(env);
  if (!names) {
    Launch alone;
    alone.job_key = job_id.empty() ? "process:" + who.self : "ouro:" + job_id;
    return alone;
  }
  Result<Launch> launch = read(env, *names);
  if (!launch.ok()) return launch;
  launch->job_key = job_id.empty() ? key_of(env, launch->launcher) : "ouro:" + job_id;
  if (launch->job_key.empty()) {
    if (launch->local_size < launch->size) {
      return invalid(
          fmt::format("{} ranks on several hosts, and {} gives the job no name that all of them see: set "
                      "OURO_JOB_ID to the same text on all ranks",
                      launch->size, launch->launcher));
    }
    launch->job_key = "parent:" + who.parent;
  }
  return launch;
}

Result<Launch> discover() {
  env::warn_of_complaints();
  Result<Launch> launch = discover(process_environment(), identity());
  if (launch.ok()) {
    OURO_INFO(INIT, "launcher {}: rank {} of {}, local rank {} of {}", launch->launcher, launch->rank,
              launch->size, launch->local_rank, launch->local_size);
  }
  return launch;
}

}  // namespace ouro
