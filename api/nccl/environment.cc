// NCCL's environment variables. See environment.h.
#include "api/nccl/environment.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

#include "api/nccl/error.h"
#include "api/nccl/tuning.h"
#include "api/nccl/variables.h"
#include "runtime/core/env.h"
#include "runtime/core/env_supply.h"
#include "runtime/core/log.h"
#include "runtime/core/per_process.h"

namespace ouro::nccl {
namespace {

struct Pair {
  const char *nccl, *ouro;
};
constexpr Pair kLog[] = {{"NCCL_DEBUG", "OURO_DEBUG"},
                         {"NCCL_DEBUG_SUBSYS", "OURO_DEBUG_SUBSYS"},
                         {"NCCL_DEBUG_FILE", "OURO_DEBUG_FILE"}};
/// Variables with the same values in both.
constexpr Pair kSame[] = {{"NCCL_SOCKET_IFNAME", "OURO_SOCKET_IFNAME"}, {"NCCL_HOSTID", "OURO_HOSTID"}};
/// Variables that this library interprets itself, here or in config.cc, or that have no effect because ouro
/// always behaves so.
constexpr std::string_view kOwn[] = {"NCCL_CONF_FILE",  "NCCL_COMM_BLOCKING", "NCCL_CHECK_POINTERS",
                                     "NCCL_WIN_ENABLE", "NCCL_P2P_DISABLE",   "NCCL_NET",
                                     "NCCL_COMM_ID",    "NCCL_SOCKET_FAMILY", "NCCL_SHM_DISABLE",
                                     "NCCL_ALGO",       "NCCL_BUFFSIZE",      "NCCL_MULTI_RANK_GPU_ENABLE",
                                     "NCCL_MAX_CTAS"};

bool g_checks_pointers = false, g_offers_windows = true;

bool means_something(std::string_view name) {
  const auto is = [name](const Pair& p) { return name == p.nccl; };
  return std::any_of(std::begin(kLog), std::end(kLog), is) ||
         std::any_of(std::begin(kSame), std::end(kSame), is) ||
         std::find(std::begin(kOwn), std::end(kOwn), name) != std::end(kOwn);
}

std::string in_case(std::string text, bool upper) {
  for (char& c : text) {
    if (upper && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    if (!upper && c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

void supply(const char* parameter, std::string value, const char* origin) {
  if (!env::in_environment(parameter)) env::supply(parameter, std::move(value), origin);
}

/// Applies the current log settings. Returns whether any are set.
bool read_log_settings() {
  bool logs = false;
  for (const Pair& p : kLog) {
    const auto value = variable(p.nccl);
    if (!value || env::in_environment(p.ouro)) {
      env::withdraw(p.ouro);
      continue;
    }
    env::supply(p.ouro, &p == &kLog[0] ? in_case(*value, true) : *value, p.nccl);  // NCCL accepts either case
    logs = true;
  }
  return logs;
}

Status read_network() {
  const auto net = variable("NCCL_NET");
  if (!net) return {};
  const std::string name = in_case(*net, false);
  if (name != "socket" && name != "ib")
    return invalid(fmt::format(
        "NCCL_NET={}; expected Socket (ouro's tcp) or IB (UCX): plugins of NCCL cannot be loaded", *net));
  supply("OURO_FABRIC", name == "ib" ? "ucx" : "tcp", "NCCL_NET");
  return {};
}

/// NCCL divides a buffer into eight slots.
Status read_buffers() {
  OURO_ASSIGN(const auto bytes, number("NCCL_BUFFSIZE", "a number of bytes"));
  if (!bytes) return {};
  if (*bytes < 0) return invalid(fmt::format("NCCL_BUFFSIZE={}; expected a number of bytes", *bytes));
  supply("OURO_SLOT_BYTES", std::to_string(std::clamp(*bytes / 8, 4096LL, 67108864LL)), "NCCL_BUFFSIZE");
  return {};
}

Status read_tuning() {
  if (const auto algorithms = variable("NCCL_ALGO")) {
    OURO_ASSIGN(const Choice choice, parse_algorithms(*algorithms));
    if (!choice.rows.empty()) supply("OURO_SELECT", choice.rows, "NCCL_ALGO");
    if (!choice.declined.empty())
      OURO_INFO(ENV, "NCCL_ALGO={} leaves the algorithm of {} to ouro", *algorithms, choice.declined);
  }
  if (const auto protocols = variable("NCCL_PROTO")) {
    OURO_TRY(check_protocols(*protocols));
    OURO_INFO(ENV, "NCCL_PROTO={} has no effect: ouro has no protocols to choose from", *protocols);
  }
  return {};
}

Status read_settings() {
  for (const Pair& p : kSame)
    if (const auto value = variable(p.nccl)) supply(p.ouro, *value, p.nccl);
  OURO_ASSIGN(g_checks_pointers, flag("NCCL_CHECK_POINTERS", false));
  OURO_ASSIGN(g_offers_windows, flag("NCCL_WIN_ENABLE", true));
  OURO_ASSIGN(const bool without_p2p, flag("NCCL_P2P_DISABLE", false));
  for (const char* name : {"NCCL_COMM_BLOCKING", "NCCL_SHM_DISABLE"})  // read elsewhere, each time
    OURO_TRY(flag(name, false).status());
  OURO_TRY(number("NCCL_MAX_CTAS", "a number of blocks").status());  // read elsewhere, each time
  if (without_p2p) supply("OURO_GPU_PATH", "staged", "NCCL_P2P_DISABLE");
  OURO_TRY(read_network());
  OURO_TRY(read_buffers());
  return read_tuning();
}

Status read() {
  const bool logs = read_log_settings();
  if (logs) log::refresh();
  if (logs || env::in_environment("OURO_DEBUG")) OURO_LOG(version, INIT, "{}", ouro_nccl_identity());
  std::string unused;
  for (const auto& [name, origin] : variables_set()) {
    if (means_something(name) || name == "NCCL_PROTO") continue;
    unused += fmt::format("{}{}{}", unused.empty() ? "" : ", ", name,
                          origin == "environment" ? "" : fmt::format(" ({})", origin));
  }
  if (!unused.empty()) OURO_INFO(ENV, "variables of NCCL that mean nothing here: {}", unused);
  return read_settings();
}

}  // namespace

Status read_environment() {
  static constinit MadeOnce<const Status> outcome;
  return outcome.get(read);
}

void reset_log() {
  (void)read_environment();
  (void)read_log_settings();
  log::refresh();
}

bool checks_pointers() { return g_checks_pointers; }
bool offers_windows() { return g_offers_windows; }

}  // namespace ouro::nccl
