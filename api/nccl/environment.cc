// NCCL's environment variables. See environment.h.
#include "api/nccl/environment.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>

#include "api/nccl/error.h"
#include "runtime/core/env.h"
#include "runtime/core/env_supply.h"
#include "runtime/core/log.h"

namespace ouro::nccl {
namespace {

struct Pair {
  const char *nccl, *ouro;
};
constexpr Pair kLog[] = {{"NCCL_DEBUG", "OURO_DEBUG"},
                         {"NCCL_DEBUG_SUBSYS", "OURO_DEBUG_SUBSYS"},
                         {"NCCL_DEBUG_FILE", "OURO_DEBUG_FILE"}};
/// Read elsewhere: config.cc, and the network of ouro.
constexpr const char* kRead[] = {"NCCL_COMM_BLOCKING", "NCCL_SOCKET_IFNAME"};

bool means_something(const std::string& name) {
  for (const Pair& p : kLog)
    if (name == p.nccl) return true;
  for (const char* k : kRead)
    if (name == k) return true;
  return false;
}

char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

void read() {
  bool logs = false;
  for (const Pair& p : kLog) {
    const char* const value = std::getenv(p.nccl);
    if (!value || *value == '\0' || env::in_environment(p.ouro)) continue;
    std::string text = value;
    if (&p == &kLog[0]) std::transform(text.begin(), text.end(), text.begin(), upper);  // NCCL takes either
    env::supply(p.ouro, text, p.nccl);
    logs = true;
  }
  if (logs) log::reload();
  if (logs || env::in_environment("OURO_DEBUG")) OURO_LOG(version, INIT, "{}", ouro_nccl_identity());
  std::string unused;
  for (const auto& [name, value] : process_environment())
    if (name.starts_with("NCCL_") && !means_something(name)) unused += (unused.empty() ? "" : ", ") + name;
  if (!unused.empty()) OURO_INFO(ENV, "variables of NCCL that mean nothing here: {}", unused);
}

}  // namespace

void read_environment() {
  static std::once_flag once;
  std::call_once(once, read);
}

}  // namespace ouro::nccl
