// Determines which rank this process is from the variables of the launcher that started it. See launch.h.
#include "runtime/join/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/core/log.h"
#include "runtime/core/types.h"
#include "runtime/join/launchers.h"
#include "runtime/join/slurm.h"
#include "runtime/network/net_address.h"

namespace ouro {
namespace {

using launchers::Found;

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

/// Reads rank, size and their local counterparts. Without local names all ranks are taken to be on one host.
Result<Launch> read(const Variables& env, const Found& names) {
  Launch l;
  l.launcher = names.launcher;
  if (names.size.empty() || !env.has(names.size)) {
    return invalid(fmt::format(
        "{} is set, but {} is not: the number of ranks is unknown; "
        "set OURO_RANK and OURO_WORLD_SIZE, or unset {}",
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
    const Result<int> local = slurm::local_size(env, l.size);
    if (!local.ok()) return local.status();
    l.local_size = *local;
  }
  OURO_TRY(check(names, l));
  const bool foreign =
      names.node == "SLURM_NODEID" && !slurm::hosts(env, l.launcher);  // an allocation has it, too
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

/// A name from the launcher that all ranks of the job see and no other job has; "" if there is none.
std::string key_of(const Variables& env, const std::string& launcher) {
  const std::string job = env.first({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  if (launcher == "torchrun" && env.has("MASTER_ADDR") && env.has("MASTER_PORT")) {
    return fmt::format("torchrun:{}:{}:{}:{}", env.text("MASTER_ADDR"), env.text("MASTER_PORT"),
                       env.text("TORCHELASTIC_RUN_ID"), env.text("TORCHELASTIC_RESTART_COUNT"));
  }
  if ((launcher == "openmpi" || launcher == "pmix") && !job.empty())
    return fmt::format("{}:{}", job, env.text(job));
  return slurm::hosts(env, launcher) ? fmt::format("slurm:{}", slurm::step_name(env)) : "";
}

/// The endpoint of the rendezvous, or "" if that is not known.
Result<std::string> rendezvous_of(const Variables& env, const Launch& l) {
  if (env.has("OURO_RENDEZVOUS")) return std::string(env.text("OURO_RENDEZVOUS"));
  if (l.launcher == "torchrun" && env.has("MASTER_ADDR") && env.has("MASTER_PORT")) {
    const Result<int> port = env.number("MASTER_PORT");
    if (port.ok() && *port >= 1 && *port < 65535) return rt::with_port(env.text("MASTER_ADDR"), *port + 1);
    if (!l.several_hosts()) return std::string();
    return invalid(
        fmt::format("MASTER_PORT={}: expected 1 to 65534, since ranks of other hosts meet at the port "
                    "after it; or set OURO_RENDEZVOUS=ADDRESS:PORT on all ranks",
                    env.text("MASTER_PORT")));
  }
  if (const auto first = slurm::first_host(env); !first.list.empty() && slurm::hosts(env, l.launcher)) {
    if (!first.host.empty()) return rt::with_port(first.host, first.port);
    return invalid(fmt::format("{}={} names no host", first.list, env.text(first.list)));
  }
  if (env.has("MASTER_ADDR") && env.has("MASTER_PORT")) {  // set by hand
    const Result<int> port = env.number("MASTER_PORT");
    if (port.ok() && *port >= 1 && *port <= 65535) return rt::with_port(env.text("MASTER_ADDR"), *port);
    if (l.several_hosts())
      return invalid(fmt::format("MASTER_PORT={}: expected 1 to 65535", env.text("MASTER_PORT")));
  }
  return std::string();
}

/// Checks what a job over several hosts needs in addition to ranks and sizes: a rendezvous, and a job key,
/// which it completes.
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

/// Names a process by its id and start time: field 22 of /proc/PID/stat, in clock ticks since boot. The
/// process name in field 2 may contain blanks and brackets.
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
  const Variables env(environment);
  std::vector<std::string> claims;
  for (const Found& f : launchers::find(env)) claims.push_back(launchers::claim(env, f));
  return fmt::format("{}", fmt::join(claims, ","));
}

Identity identity() { return {name_of(getpid()), name_of(getppid())}; }

Result<Launch> discover(const Environment& environment, const Identity& who) {
  const Variables env(environment);
  const std::string job_id(env.text("OURO_JOB_ID"));
  const Result<std::optional<Found>> names = launchers::choose(env);
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
