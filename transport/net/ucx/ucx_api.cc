// Loading UCX. See ucx_api.h.
#include "transport/net/ucx/ucx_api.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <signal.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>

#include "runtime/core/log.h"
#include "runtime/core/per_process.h"
#include "transport/net/ucx/ucx.h"

namespace ouro::transport {
namespace {

constexpr const char* kLibrary = "libucp.so.0";

std::string real_path(const char* path) {
  char buffer[PATH_MAX];
  return realpath(path, buffer) ? buffer : path;
}

/// Files of the libucp copies in this process. Two copies, from different packages for example, share the
/// names of their symbols and settings, but not their state.
std::set<std::string> copies() {
  std::set<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        const char* name = std::strrchr(info->dlpi_name, '/');
        if (name && std::strncmp(name, "/libucp", 7) == 0)
          static_cast<std::set<std::string>*>(out)->insert(real_path(info->dlpi_name));
        return 0;
      },
      &paths);
  return paths;
}

/// Loads UCX without the signal handlers that it installs for the whole process: the effect of SIGHUP or
/// SIGSEGV is up to the program. If the user requests them by UCX's settings, they stay.
void* load_quietly() {
  constexpr int kSignals[] = {SIGHUP, SIGILL, SIGBUS, SIGFPE, SIGSEGV, SIGABRT};
  struct sigaction before[std::size(kSignals)];
  for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], nullptr, &before[i]);
  // Never closed: UCX leaves a thread and exit handlers behind.
  void* const lib = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  for (const char* asked : {"UCX_HANDLE_ERRORS", "UCX_ERROR_SIGNALS", "UCX_DEBUG_SIGNO"})
    if (std::getenv(asked)) return lib;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before[i], nullptr);
  return lib;
}

Result<UcxApi> open() {
  void* const lib = load_quietly();
  if (!lib) {
    const char* why = dlerror();
    return Status(unsupported(fmt::format("UCX cannot be loaded: {}", why ? why : kLibrary)));
  }
  UcxApi api{};
  const auto find = [&](auto& f, const char* name) {
    f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(lib, name));
    return f ? nullptr : name;
  };
  const char* missing = find(api.ucs_status_string, "ucs_status_string");
#define OURO_X(f) \
  if (!missing) missing = find(api.f, #f);
  OURO_UCP_FUNCTIONS(OURO_X)
#undef OURO_X
  Dl_info where{};
  if (api.ucp_get_version && dladdr(reinterpret_cast<void*>(api.ucp_get_version), &where) && where.dli_fname)
    api.path = real_path(where.dli_fname);
  if (missing) return Status(unsupported(fmt::format("{} has no {}: too old", api.path, missing)));
  if (const auto all = copies(); all.size() > 1)
    return Status(unsupported(
        fmt::format("this process has two copies of UCX, {} and {}", *all.begin(), *all.rbegin())));
  api.ucp_get_version(&api.major, &api.minor, &api.release);
  if (api.major != UCP_API_MAJOR)
    return Status(unsupported(fmt::format("{} is UCX {}; this was built with {}", api.path, api.version(),
                                          UcxApi::header_version())));
  if (api.minor < UCP_API_MINOR)
    OURO_WARN("{} is UCX {}, older than {}, which this was built with", api.path, api.version(),
              UcxApi::header_version());
  return api;
}

}  // namespace

std::string UcxApi::version() const { return fmt::format("{}.{}.{}", major, minor, release); }

std::string UcxApi::header_version() { return fmt::format("{}.{}", UCP_API_MAJOR, UCP_API_MINOR); }

Status ucx_usable() {
  const auto api = UcxApi::load();
  if (api.ok()) return {};
  return unsupported(fmt::format("OURO_FABRIC=ucx: {}; expected tcp", api.status().failure()->text));
}

Result<const UcxApi*> UcxApi::load() {
  static constinit MadeOnce<const Result<UcxApi>> opened;
  const Result<UcxApi>& api = opened.get(open);
  if (!api.ok()) return api.status();
  return &api.value();
}

}  // namespace ouro::transport
