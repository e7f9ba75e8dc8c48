// Rank discovery under the real mpirun of Open MPI and of MPICH, if they are installed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

using testing::HasSubstr;
using testing::StartsWith;

struct Outcome {
  int code = -1;
  std::multiset<std::string> lines;
};

/// Runs a shell command. A launcher that hangs is killed.
Outcome run(const std::string& command) {
  const std::string whole =
      fmt::format("timeout -k 5 30 env -u OURO_JOB_ID -u OURO_RENDEZVOUS {} 2>&1", command);
  FILE* out = ::popen(whole.c_str(), "r");
  if (out == nullptr) return {};
  std::string text;
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, out)) text.append(buffer, n);
  const int status = ::pclose(out);
  Outcome o;
  o.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) o.lines.insert(line);
  return o;
}

bool installed(const char* program) {
  return std::system(fmt::format("command -v {} >/dev/null", program).c_str()) == 0;
}

/// Returns the common key of the lines "LAUNCHER r/size r/size key=... at=...". Checks that they are the
/// lines of all ranks of one host.
std::string common_key(const Outcome& o, const std::string& launcher, int size) {
  EXPECT_EQ(o.code, 0) << testing::PrintToString(o.lines);
  EXPECT_EQ(o.lines.size(), static_cast<std::size_t>(size)) << testing::PrintToString(o.lines);
  std::set<std::string> keys;
  int rank = 0;
  for (const std::string& line : o.lines) {
    EXPECT_THAT(line, StartsWith(fmt::format("{0} {1}/{2} {1}/{2} key=", launcher, rank++, size)));
    if (const std::size_t at = line.find("key="); at != std::string::npos) keys.insert(line.substr(at));
  }
  EXPECT_EQ(keys.size(), 1u) << testing::PrintToString(keys);
  return keys.empty() ? "" : *keys.begin();
}

constexpr const char* kOpenMpi = "mpirun.openmpi --allow-run-as-root --oversubscribe";

TEST(OpenMpi, RanksOfOneHostFindTheirRankAndJob) {
  if (!installed("mpirun.openmpi")) GTEST_SKIP() << "not installed: mpirun.openmpi";
  const std::string command = fmt::format("{} -n 3 {}", kOpenMpi, LAUNCH_PROBE);
  const std::string first = common_key(run(command), "openmpi", 3),
                    second = common_key(run(command), "openmpi", 3);
  EXPECT_THAT(first, StartsWith("key=PMIX_NAMESPACE:"));
  EXPECT_NE(first, second);
}

TEST(OpenMpi, PassesTheRendezvousToItsRanks) {
  if (!installed("mpirun.openmpi")) GTEST_SKIP() << "not installed: mpirun.openmpi";
  const std::string command =
      fmt::format("OURO_RENDEZVOUS=10.0.0.1:7000 {} -x OURO_RENDEZVOUS -n 2 {}", kOpenMpi, LAUNCH_PROBE);
  EXPECT_THAT(common_key(run(command), "openmpi", 2), HasSubstr(" at=10.0.0.1:7000"));
}

TEST(OpenMpi, RanksWithConflictingLauncherVariablesAreRefused) {
  if (!installed("mpirun.openmpi")) GTEST_SKIP() << "not installed: mpirun.openmpi";
  const Outcome o = run(fmt::format("RANK=0 WORLD_SIZE=1 {} -n 2 {}", kOpenMpi, LAUNCH_PROBE));
  EXPECT_NE(o.code, 0);
  EXPECT_THAT(testing::PrintToString(o.lines),
              HasSubstr("torchrun (RANK=0, WORLD_SIZE=1) and openmpi (OMPI_COMM_WORLD_RANK="));
}

TEST(Mpich, RanksOfOneHostFindTheirRankAndJob) {
  if (!installed("mpirun.mpich")) GTEST_SKIP() << "not installed: mpirun.mpich";
  const std::string command = fmt::format("mpirun.mpich -n 3 {}", LAUNCH_PROBE);
  const std::string first = common_key(run(command), "pmi", 3), second = common_key(run(command), "pmi", 3);
  EXPECT_THAT(first, StartsWith("key=parent:"));
  EXPECT_NE(first, second);
}

/// MPICH treats two names of this machine as two hosts.
constexpr const char* kTwoHosts = "mpirun.mpich -launcher fork -hosts localhost:1,127.0.0.1:1 -n 2";

TEST(Mpich, RanksOfTwoHostsUseTheGivenRendezvous) {
  if (!installed("mpirun.mpich")) GTEST_SKIP() << "not installed: mpirun.mpich";
  const Outcome o = run(fmt::format("{} -genv OURO_RENDEZVOUS 127.0.0.1:7000 {}", kTwoHosts, LAUNCH_PROBE));
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(o.lines,
            (std::multiset<std::string>{"pmi 0/2 0/1 key=rendezvous:127.0.0.1:7000 at=127.0.0.1:7000",
                                        "pmi 1/2 0/1 key=rendezvous:127.0.0.1:7000 at=127.0.0.1:7000"}));
}

TEST(Mpich, RanksOfTwoHostsWithoutARendezvousSayHowToSetOne) {
  if (!installed("mpirun.mpich")) GTEST_SKIP() << "not installed: mpirun.mpich";
  const Outcome o = run(fmt::format("{} {}", kTwoHosts, LAUNCH_PROBE));
  EXPECT_NE(o.code, 0);
  EXPECT_THAT(testing::PrintToString(o.lines), HasSubstr("mpirun -genvlist OURO_RENDEZVOUS"));
}

}  // namespace
