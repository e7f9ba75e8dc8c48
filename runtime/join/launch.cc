// Reads the variables of the known launchers; one table row each. Used through launch.h.
#include "runtime/join/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/core/log.h"
#include "runtime/core/types.h"

namespace ouro {
namespace {

/// What a launcher calls things; "" where it has no word. local_size of SLURM is a list and read apart.
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

/// Of these launchers SLURM's srun may be the host, and then says what they do not.
bool of_slurm(const Reader& env, const std::string& launcher) {
  const bool may_be = launcher == "slurm" || launcher == "pmix" || launcher == "pmi" || launcher == "mvapich";
  return may_be && env.has("SLURM_JOB_ID") && in_slurm_step(env);
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
  std::string launcher, rank, size, local_rank, local_size, node, restarts;
};

/// All launchers whose variables are there, in the order of the table.
std::vector<Found> find(const Reader& env) {
  std::vector<Found> all;
  for (const Family& f : kFamilies) {
    const std::string_view launcher = f.launcher;
    if (!env.has(f.rank) && (*f.size == '\0' || !env.has(f.size))) continue;
    if (launcher == "slurm" && !in_slurm_step(env)) continue;
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

std::string_view value(const Reader& env, const std::string& name) {
  return name.empty() ? std::string_view() : env.text(name);
}

/// "slurm 3/4": whose rank this process is, as one launcher says.
std::string claim(const Reader& env, const Found& f) {
  return fmt::format("{} {}/{}", f.launcher, value(env, f.rank), value(env, f.size));
}

/// "RANK=0, WORLD_SIZE=1".
std::string shown(const Reader& env, const Found& f) {
  std::string text = fmt::format("{} ({}={}", f.launcher, f.rank, value(env, f.rank));
  if (!value(env, f.size).empty()) text += fmt::format(", {}={}", f.size, value(env, f.size));
  return text + ")";
}

bool agree(const Reader& env, const Found& a, const Found& b) {
  const auto size = [&](const Found& f) {  // PMIx has none of its own
    return f.launcher == "pmix" ? std::string_view() : value(env, f.size);
  };
  const std::string_view one = size(a), other = size(b);
  return value(env, a.rank) == value(env, b.rank) && (one.empty() || other.empty() || one == other);
}

/// Whether `inner` is known to have been started by a rank of `outer`, so that what `outer` says is about its
/// parent: ouro-run notes whose rank it was itself; torchrun marks its workers, and starts from a task of
/// srun or mpirun for each node; mpirun starts its daemons by srun, one for each node.
bool inside(const Reader& env, const Found& inner, const Found& outer) {
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
  // PMIx leaves the size to SLURM, which then has to mean the same job.
  return outer.launcher == "slurm" && inner.launcher != "pmix";
}

/// Whose variables count. None: this process is alone.
Result<std::optional<Found>> choose(const Reader& env) {
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
                    "one that did not "
                    "start it, or choose with OURO_LAUNCHER={} or OURO_LAUNCHER={}",
                    shown(env, first), shown(env, other), first.launcher, other.launcher));
  }
  return std::optional<Found>(first);
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
  const bool foreign =
      names.node == "SLURM_NODEID" && !of_slurm(env, l.launcher);  // an allocation's shell has it
  if (!names.node.empty() && !foreign && env.has(names.node)) {
    const Result<int> node = env.number(names.node);
    if (!node.ok()) return node.status();
    if (*node < 0) return invalid(fmt::format("{}={}: expected 0 or more", names.node, *node));
    l.node = *node;
  }
  if (!names.restarts.empty() && !foreign && env.has(names.restarts)) {
    const Result<int> restarts = env.number(names.restarts);
    if (!restarts.ok()) return restarts.status();
    if (*restarts < 0) return invalid(fmt::format("{}={}: expected 0 or more", names.restarts, *restarts));
    l.generation = static_cast<std::uint64_t>(*restarts);
  }
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
  return of_slurm(env, launcher) ? slurm() : "";
}

/// The first host of a list such as "n[07-9,12],m3": "n07". "" if the list cannot be read.
std::string first_host(std::string_view list) {
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

/// A port that all ranks of a step compute alike, and that two steps seldom share. Below the ports that
/// systems hand out by themselves.
int slurm_port(const Reader& env) {
  constexpr std::uint64_t kFirst = 10'000, kPorts = 20'000;
  const std::string step = fmt::format("{}.{}", env.text("SLURM_JOB_ID"), env.text("SLURM_STEP_ID"));
  return static_cast<int>(kFirst + XXH3_64bits(step.data(), step.size()) % kPorts);
}

std::string with_port(std::string_view host, int port) {
  const bool ipv6 = host.find(':') != std::string_view::npos && host.front() != '[';
  return fmt::format(fmt::runtime(ipv6 ? "[{}]:{}" : "{}:{}"), host, port);
}

/// Where the hosts of the job meet, or "" if nobody says.
Result<std::string> rendezvous_of(const Reader& env, const Launch& l) {
  if (env.has("OURO_RENDEZVOUS")) return std::string(env.text("OURO_RENDEZVOUS"));
  if (l.launcher == "torchrun" && env.has("MASTER_ADDR") && env.has("MASTER_PORT")) {
    const Result<int> port = env.number("MASTER_PORT");
    if (port.ok() && *port >= 1 && *port < 65535) return with_port(env.text("MASTER_ADDR"), *port + 1);
    if (!l.several_hosts()) return std::string();
    return invalid(
        fmt::format("MASTER_PORT={}: expected 1 to 65534, since ranks of other hosts meet at the port "
                    "after it; or set OURO_RENDEZVOUS=ADDRESS:PORT on all ranks",
                    env.text("MASTER_PORT")));
  }
  const std::string list = env.first({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (!list.empty() && of_slurm(env, l.launcher)) {
    const std::string host = first_host(env.text(list));
    if (!host.empty()) return with_port(host, slurm_port(env));
    return invalid(fmt::format("{}={} names no host", list, env.text(list)));
  }
  if (env.has("MASTER_ADDR") && env.has("MASTER_PORT")) {  // set by hand, for whoever meets there
    const Result<int> port = env.number("MASTER_PORT");
    if (port.ok() && *port >= 1 && *port <= 65535) return with_port(env.text("MASTER_ADDR"), *port);
    if (l.several_hosts())
      return invalid(fmt::format("MASTER_PORT={}: expected 1 to 65535", env.text("MASTER_PORT")));
  }
  return std::string();
}

/// What completes a job over several hosts, beside ranks and sizes.
Status check_rendezvous(Launch& l) {
  if (l.rendezvous.empty()) {
    return invalid(fmt::format(
        "{} ranks on several hosts, and {} does not say where they meet: set OURO_RENDEZVOUS=ADDRESS:PORT "
        "(or MASTER_ADDR and MASTER_PORT), an address of the host of rank 0 and a free port there, or "
        "file:PATH on a file system that all hosts share, on all ranks (Open MPI: mpirun -x OURO_RENDEZVOUS; "
        "MPICH: mpirun -genvlist OURO_RENDEZVOUS)",
        l.size, l.launcher));
  }
  if (!l.job_key.empty()) return {};
  if (l.rendezvous.starts_with("file:")) {
    return invalid(
        fmt::format("{} ranks on several hosts, and {} gives the job no name that all of them see: set "
                    "OURO_JOB_ID to the same text on all ranks",
                    l.size, l.launcher));
  }
  l.job_key = "rendezvous:" + l.rendezvous;  // one job at a time can listen there
  return {};
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

std::string outer_launchers(const Environment& environment) {
  const Reader env(environment);
  std::vector<std::string> claims;
  for (const Found& f : find(env)) claims.push_back(claim(env, f));
  return fmt::format("{}", fmt::join(claims, ","));
}

Identity identity() { return {name_of(getpid()), name_of(getppid())}; }

Result<Launch> discover(const Environment& environment, const Identity& who) {
  const Reader env(environment);
  const std::string job_id(env.text("OURO_JOB_ID"));
  const Result<std::optional<Found>> names = choose(env);
  if (!names.ok()) return names.status();
  if (!*names) {
    Launch alone;
    alone.job_key = job_id.empty() ? "process:" + who.self : "ouro:" + job_id;
    return alone;
  }
  Result<Launch> launch = read(env, **names);
  if (!launch.ok()) return launch;
  launch->job_key = job_id.empty() ? key_of(env, launch->launcher) : "ouro:" + job_id;
  Result<std::string> rendezvous = rendezvous_of(env, *launch);
  if (!rendezvous.ok()) return rendezvous.status();
  launch->rendezvous = std::move(*rendezvous);
  if (launch->several_hosts()) OURO_TRY(check_rendezvous(*launch));
  if (launch->job_key.empty()) launch->job_key = "parent:" + who.parent;
  return launch;
}

Result<Launch> discover() {
  env::report();
  Result<Launch> launch = discover(process_environment(), identity());
  if (launch.ok()) {
    OURO_INFO(INIT, "launcher {}: rank {} of {}, local rank {} of {}", launch->launcher, launch->rank,
              launch->size, launch->local_rank, launch->local_size);
  }
  return launch;
}

}  // namespace ouro
