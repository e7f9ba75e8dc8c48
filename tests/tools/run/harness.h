// Runs ouro-run as a program, and collects its output and exit code. Used by the tests of this folder.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "tests/timing.h"

#ifndef OURO_RUN  // path of the launcher under test; the build defines it
#define OURO_RUN "ouro-run"
#endif

namespace ouro::run {

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream all;
  all << in.rdbuf();
  return all.str();
}

inline std::multiset<std::string> lines_of(const std::string& text) {
  std::multiset<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.insert(line);
  return lines;
}

inline bool alive(pid_t pid) {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string all;
  std::getline(stat, all);
  const std::size_t bracket = all.rfind(')');
  return bracket != std::string::npos && all.substr(bracket + 2, 1) != "Z";
}

/// True as soon as `done` returns true; false if that does not happen in time.
template <class F>
bool eventually(F&& done) {
  for (const auto end = std::chrono::steady_clock::now() + test::kHang;
       std::chrono::steady_clock::now() < end;) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

/// Arguments for a job on this host, or on several hosts that are all this one.
struct Where {
  const char* name;
  const char* arguments;
  const char* before = "";  ///< put before the command line: a program that executes ouro-run
};
inline void PrintTo(const Where& w, std::ostream* out) { *out << w.name; }

class OuroRun : public testing::Test {
 protected:
  OuroRun() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ouro-run-test-XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~OuroRun() override { std::filesystem::remove_all(dir_); }

  struct Outcome {
    int code = -1;
    std::string out, err;
    std::chrono::duration<double> took{};
  };
  /// Runs ouro-run to its end. `arguments` is shell text; the program of the ranks usually is `sh script`.
  Outcome run(const std::string& arguments, const std::string& input = "/dev/null") {
    const auto start = std::chrono::steady_clock::now();
    const std::string command = fmt::format("cd {0}; {1} {2} {3} >{0}/out 2>{0}/err <{4}", dir_.string(),
                                            before_, OURO_RUN, arguments, input);
    const int status = std::system(command.c_str());
    Outcome o;
    o.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    o.out = slurp(dir_ / "out");
    o.err = slurp(dir_ / "err");
    o.took = std::chrono::steady_clock::now() - start;
    return o;
  }
  /// Starts ouro-run without waiting for it. The caller must end and reap it.
  pid_t start(const std::string& arguments) {
    const std::string command = fmt::format("cd {0}; exec {1} {2} {3} >{0}/out 2>{0}/err </dev/null",
                                            dir_.string(), before_, OURO_RUN, arguments);
    const pid_t launcher = ::fork();
    if (launcher == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    return launcher;
  }
  /// Waits for a process from `start`; returns its exit code, or 128 + signal.
  static int reap(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string script(const std::string& body) {
    std::ofstream(dir_ / "script") << body;
    return "sh " + (dir_ / "script").string();
  }
  pid_t pid_in(const std::string& file) {
    pid_t pid = 0;
    eventually([&] { return static_cast<bool>(std::ifstream(dir_ / file) >> pid); });
    return pid;
  }

  std::filesystem::path dir_;
  std::string before_;  ///< as Where::before
};

}  // namespace ouro::run
