// Runs ouro-run and ouro-train as a user does, and reads the files that they write. Used by the tests
// of programs.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <system_error>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

namespace ouro::test {

namespace fs = std::filesystem;

inline std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A temporary directory for a test, removed with this object.
class Scratch {
 public:
  Scratch() : path_(fs::temp_directory_path() / "ouro-train-XXXXXX") {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

struct Outcome {
  int exit = -1;     ///< 124: it did not end in time
  std::string text;  ///< output of all ranks, both streams
};

/// Runs a job whose ranks execute `command`. `environment`: assignments in shell syntax.
inline Outcome run(int ranks, const std::string& command, const std::string& environment = "",
                   int seconds = 60) {
  const Scratch scratch;
  const std::string out = scratch / "out";
  const int status = std::system(
      fmt::format("{} timeout {} {} -n {} {} > {} 2>&1", environment, seconds, OURO_RUN, ranks, command, out)
          .c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text_of(out)};
}
inline Outcome train(int ranks, const std::string& options, const std::string& environment = "",
                     int seconds = 60) {
  return run(ranks, fmt::format("{} {}", OURO_TRAIN, options), environment, seconds);
}

/// The --json report of a run, which must succeed.
inline nlohmann::json report_of(int ranks, const std::string& options, int seconds = 60) {
  const Scratch scratch;
  const std::string file = scratch / "report.json";
  const Outcome o = train(ranks, fmt::format("{} --quiet --json {}", options, file), "", seconds);
  EXPECT_EQ(o.exit, 0) << options << '\n' << o.text;
  nlohmann::json report = nlohmann::json::parse(text_of(file), nullptr, false);
  EXPECT_FALSE(report.is_discarded()) << options;
  return report;
}

}  // namespace ouro::test
