// The limits that control groups impose on this process, the tightest one up the tree. Reads only a file
// tree, so that tests can supply their own. Used by ouro-info.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace ouro::info {

struct MemoryLimit {
  std::uint64_t bytes = 0;
  std::uint64_t used = 0;  ///< memory in use by that group
  std::string where;       ///< directory of the group that sets the limit
};
/// `root` is "/" or a test's own tree. Handles version 1, version 2 and hybrid hierarchies. nullopt:
/// no limit.
std::optional<MemoryLimit> memory_limit(const std::filesystem::path& root);

/// The first line of a file such as those of /proc and /sys; nullopt if there is none.
std::optional<std::string> first_line(const std::filesystem::path&);

struct CpuLimit {
  double cores = 0;  ///< quota / period
  std::string where;
};
std::optional<CpuLimit> cpu_limit(const std::filesystem::path& root);

}  // namespace ouro::info
