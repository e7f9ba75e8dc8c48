// Reference results: files of the folder OURO_GOLDEN_DIR, by default the project's own copy. Tests keep no
// case in code: they run what the files hold, and say how much that was. Used by tests with the label
// `golden`.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include <fmt/format.h>

#ifndef OURO_GOLDEN_DEFAULT  // CMake says where the source has them
#define OURO_GOLDEN_DEFAULT "tests/golden"
#endif

namespace ouro::test {

inline std::filesystem::path golden_dir() {
  const char* given = std::getenv("OURO_GOLDEN_DIR");
  return given && *given ? given : OURO_GOLDEN_DEFAULT;
}

/// The parsed file; throws with its path where it is missing or not JSON.
inline nlohmann::json golden(const std::string& file) {
  const auto path = golden_dir() / file;
  std::ifstream in(path);
  if (!in) throw std::runtime_error("no golden file " + path.string());
  return nlohmann::json::parse(in);
}

/// Counts cases by kind and prints the counts when it goes: "golden: 12 topologies".
class CasesRun {
 public:
  void add(const std::string& kind) { ++counts_[kind]; }
  int count(const std::string& kind) const {
    const auto it = counts_.find(kind);
    return it == counts_.end() ? 0 : it->second;
  }
  ~CasesRun() {
    for (const auto& [kind, n] : counts_) fmt::print("golden: {} {}\n", n, kind);
  }

 private:
  std::map<std::string, int> counts_;
};

}  // namespace ouro::test
