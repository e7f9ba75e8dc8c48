// Gathers facts from probes, /proc, /sys, limits and hwloc.
// Used through facts.h.
#include "tools/info/facts.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "api/include/ouro/ouro.hpp"
#include "api/src/settings.h"
#include "kernels/host/host_loops.h"
#include "runtime/core/env.h"

namespace ouro::info {
namespace {

namespace fs = std::filesystem;

/// The value of a line of /proc/meminfo, in bytes.
std::uint64_t meminfo(const fs::path& root, const std::string& key) {
  std::ifstream file(root / "proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t kib = 0;
    if (words >> name >> kib && name == key + ":") return kib * 1024;
  }
  return 0;
}

std::string container_of(const fs::path& root) {
  std::error_code ignored;
  if (std::getenv("KUBERNETES_SERVICE_HOST")) return "kubernetes";
  if (fs::exists(root / ".dockerenv", ignored)) return "docker";
  if (fs::exists(root / "run/.containerenv", ignored)) return "podman";
  if (const char* kind = std::getenv("container"); kind && *kind) return kind;
  std::ifstream groups(root / "proc/1/cgroup");
  for (std::string line; std::getline(groups, line);)
    for (const char* kind : {"kubepods", "docker", "containerd", "lxc"})
      if (line.find(kind) != std::string::npos) return kind;
  return "";
}

std::uint64_t limit(rlim_t value) {
  return value == RLIM_INFINITY ? std::numeric_limits<std::uint64_t>::max() : std::uint64_t{value};
}

Build this_build() {
  Build b;
#if defined(__clang__)
  b.compiler = fmt::format("clang++ {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  b.compiler = fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
  b.type = OURO_BUILD_TYPE;
  b.cuda = OURO_BUILD_CUDA;
  b.ucx = OURO_BUILD_UCX;
  b.sanitizers = OURO_BUILD_SANITIZE;
  return b;
}

}  // namespace

std::string bracketed(const std::string& line) {
  const std::size_t open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos || close < open
             ? ""
             : line.substr(open + 1, close - open - 1);
}

std::vector<Transport> transports_of(const std::vector<Probe>& probes, const Build& build, const Ucx& ucx) {
  std::string works, fails;
  bool present = true;
  for (const Probe& p : probes) {
    if (p.works)
      works += (works.empty() ? "" : ", ") + p.name;
    else
      fails += (fails.empty() ? "" : "; ") + fmt::format("{} ({})", p.name, p.detail);
    if (!p.works && p.required()) present = false;
  }
  std::vector<Transport> all;
  all.push_back({"shared-memory", present, fails.empty() ? works + " work" : "fails: " + fails});
  all.push_back({"cuda-ipc", build.cuda, build.cuda ? "built in" : kNoCuda});
  all.push_back(
      {"ucx", ucx.why.empty(), ucx.why.empty() ? fmt::format("{} from {}", ucx.version, ucx.path) : ucx.why});
  all.push_back({"tcp", true, "built in"});
  return all;
}

std::uint64_t Facts::usable_memory() const {
  if (!memory_limit) return memory_available;
  const std::uint64_t left = memory_limit->bytes - std::min(memory_limit->used, memory_limit->bytes);
  return std::min(memory_available, left);
}

bool Facts::works(std::string_view probe) const {
  return std::any_of(probes.begin(), probes.end(),
                     [&](const Probe& p) { return p.name == probe && p.works; });
}

Facts gather(const fs::path& root) {
  Facts f;
  f.version = version();
  f.build = this_build();
  utsname system{};
  if (uname(&system) == 0)
    f.host = system.nodename, f.kernel = system.release, f.architecture = system.machine;
  f.container = container_of(root);
  f.gpus = read_gpus(gpu::gpu());  // first, because it sets variables that the driver reads when it starts
  f.cuda = probe_cuda();
  f.probes = {probe_memfd(), probe_seals(), probe_pidfd(), probe_descriptors(), probe_pull()};
  f.ucx = read_ucx();
  f.transports = transports_of(f.probes, f.build, f.ucx);

  if (Result<Machine> machine = read_machine(); machine)
    f.machine = std::move(*machine);
  else
    f.machine_error = machine.status().message();
  f.allowed = rt::machine();
  f.instruction_set = kernels::instruction_set();
  f.cpu_limit = cpu_limit(root);

  f.memory_total = meminfo(root, "MemTotal");
  f.memory_available = meminfo(root, "MemAvailable");
  f.memory_limit = memory_limit(root);
  rlimit r{};
  if (getrlimit(RLIMIT_NOFILE, &r) == 0) f.files_soft = limit(r.rlim_cur), f.files_hard = limit(r.rlim_max);
  if (getrlimit(RLIMIT_MEMLOCK, &r) == 0) f.locked_memory = limit(r.rlim_cur);
  const fs::path thp = root / "sys/kernel/mm/transparent_hugepage";
  f.huge_pages = bracketed(first_line(thp / "enabled").value_or(""));
  f.huge_pages_shared = bracketed(first_line(thp / "shmem_enabled").value_or(""));

  for (const env::Setting& s : env::settings())
    if (!s.valid.ok()) f.settings_errors.push_back(s.valid.message());
  if (f.settings_errors.empty())
    for (const Status& s : refused_settings()) f.settings_errors.push_back(s.message());
  f.settings_warnings = env::complaints();
  return f;
}

}  // namespace ouro::info
