// What control groups allow this process, tightest limit up the tree. Pure over a file tree, so that tests
// can bring their own. Used by ouro-info.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace ouro::info {

struct MemoryLimit {
  std::uint64_t bytes = 0;
  std::uint64_t used = 0;  ///< of that group
  std::string where;       ///< directory of the group that sets it
};
/// `root` is "/" or a test's copy of it. Version 1, version 2 and hybrid hierarchies. nullopt: no limit.
std::optional<MemoryLimit> memory_limit(const std::filesystem::path& root);

/// Of a file such as those of /proc and /sys; nullopt where there is none.
std::optional<std::string> first_line(const std::filesystem::path&);

struct CpuLimit {
  double cores = 0;  ///< quota / period
  std::string where;
};
std::optional<CpuLimit> cpu_limit(const std::filesystem::path& root);

}  // namespace ouro::info
