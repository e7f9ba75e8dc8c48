// Walks from a process's control group to the root of its hierarchy.
// Used through cgroup.h.
#include "tools/info/cgroup.h"

#include <fstream>
#include <sstream>
#include <string_view>

namespace ouro::info {
namespace {

namespace fs = std::filesystem;

/// Reads a number; "max" and anything else that is not a number mean no limit.
std::optional<std::uint64_t> number(const fs::path& path) {
  const auto line = first_line(path);
  std::uint64_t value = 0;
  if (!line || !(std::istringstream(*line) >> value)) return std::nullopt;
  return value;
}

bool lists(std::string_view controllers, std::string_view wanted) {
  while (!controllers.empty()) {
    const std::size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == wanted) return true;
    controllers.remove_prefix(comma == std::string_view::npos ? controllers.size() : comma + 1);
  }
  return false;
}

/// Calls visit(directory, version) for the process's group and for each existing group above it, in each
/// hierarchy. The path may name a directory that is visible only from outside a container; then its
/// parents are tried.
template <class F>
void each_level(const fs::path& root, std::string_view controller, F&& visit) {
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && !lists(controllers, controller)) continue;
    fs::path mount = root / "sys/fs/cgroup";
    if (!v2)
      mount /= controller;
    else if (fs::is_directory(mount / "unified"))
      mount /= "unified";
    for (fs::path path = fs::path(line.substr(second + 1)).relative_path();; path = path.parent_path()) {
      if (fs::is_directory(mount / path)) visit(mount / path, v2 ? 2 : 1);
      if (path.empty()) break;
    }
  }
}

}  // namespace

std::optional<std::string> first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<MemoryLimit> memory_limit(const fs::path& root) {
  constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;  // version 1 writes a huge number for "none"
  std::optional<MemoryLimit> tightest;
  each_level(root, "memory", [&](const fs::path& directory, int version) {
    const auto bytes = number(directory / (version == 2 ? "memory.max" : "memory.limit_in_bytes"));
    if (!bytes || *bytes >= kNoLimit || (tightest && tightest->bytes <= *bytes)) return;
    const auto used = number(directory / (version == 2 ? "memory.current" : "memory.usage_in_bytes"));
    tightest = MemoryLimit{*bytes, used.value_or(0), directory.string()};
  });
  return tightest;
}

std::optional<CpuLimit> cpu_limit(const fs::path& root) {
  std::optional<CpuLimit> tightest;
  each_level(root, "cpu", [&](const fs::path& directory, int version) {
    double quota = 0, period = 0;
    if (version == 2) {
      const auto line = first_line(directory / "cpu.max");
      // "max 100000" means that there is no limit, and cannot be read as a number.
      if (!line || !(std::istringstream(*line) >> quota >> period)) return;
    } else {
      const auto line = first_line(directory / "cpu.cfs_quota_us");  // -1: no limit
      if (!line || !(std::istringstream(*line) >> quota)) return;
      period = static_cast<double>(number(directory / "cpu.cfs_period_us").value_or(0));
    }
    if (quota <= 0 || period <= 0 || (tightest && tightest->cores <= quota / period)) return;
    tightest = CpuLimit{quota / period, directory.string()};
  });
  return tightest;
}

}  // namespace ouro::info
