// Jobs in odd surroundings: standard descriptors closed, file sizes limited, system calls refused, a loopback
// without IPv4.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/tools/run/harness.h"

namespace ouro::run {
namespace {

using testing::HasSubstr;

class Surroundings : public OuroRun, public testing::WithParamInterface<Where> {
 protected:
  Surroundings() { before_ = GetParam().before; }
  Outcome launch(const std::string& program) {
    return run(fmt::format("{} {}", GetParam().arguments, program));
  }
};

/// Processes whose parents have ended are reparented to the launcher or its agent, which does not keep those
/// that end: they would use up the limit of processes.
class Orphans : public Surroundings {};

/// Over shared memory, and over tcp between two names of this host.
constexpr Where kHere{"Here", "-n 2 --timeout 60"}, kHosts{"Hosts", "-H a,b --launch-agent '' --timeout 60"};
const auto kName = [](const auto& info) { return std::string(info.param.name); };

INSTANTIATE_TEST_SUITE_P(Everywhere, Orphans, testing::Values(kHere, kHosts), kName);

TEST_P(Orphans, AreReapedWhileTheJobRuns) {
  // Each of the processes is made by a parent that ends at once. A rank waits until its own parent has no
  // children but ranks; those that have ended and are not reaped count.
  const Outcome o =
      launch(script("for i in $(seq 50); do (sleep 0.0$i &); done\n"
                    "for i in $(seq 200); do\n"
                    "  [ $(cat /proc/$PPID/task/*/children | wc -w) -le 2 ] && exit 0\n"
                    "  sleep 0.1\n"
                    "done\n"
                    "echo children: $(cat /proc/$PPID/task/*/children); exit 1"));
  EXPECT_EQ(o.code, 0) << o.out << o.err;
}

class Descriptors : public Surroundings {};
INSTANTIATE_TEST_SUITE_P(Everywhere, Descriptors, testing::Values(kHere, kHosts), kName);

/// The ranks print, and so does the library, to descriptors that were closed before they started: the text
/// must be lost, and not be written to a socket or a segment that got the number.
TEST_P(Descriptors, ClosedStandardDescriptorsAreNotReusedForData) {
  constexpr const char* kCloses[] = {"0<&-", "1>&-", "2>&-"};
  for (const char* who : {"[ $OURO_RANK = 1 ]", "true"})
    for (unsigned set = 0; set < 8; ++set) {
      std::string closed;
      for (unsigned fd = 0; fd < 3; ++fd)
        if ((set >> fd & 1) != 0) closed += fmt::format(" {}", kCloses[fd]);
      const Outcome o =
          launch(script(fmt::format("export OURO_DEBUG=INFO OURO_DEBUG_SUBSYS=ALL\n"
                                    "if {}; then exec {} {}; fi\nexec {}",
                                    who, JOINER, closed, JOINER)));
      EXPECT_EQ(o.code, 0) << who << closed << "\n" << o.err;
    }
}

/// The launcher itself and its agents, whose pipes would otherwise get the numbers.
TEST_P(Descriptors, LauncherRunsWithClosedStandardDescriptors) {
  const std::string job = fmt::format("cd {}; {} {} {}", dir_.string(), OURO_RUN, GetParam().arguments,
                                      script("echo $OURO_RANK >ran$OURO_RANK; exec " JOINER " >/dev/null"));
  const auto code = [](int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; };
  for (const char* closed : {"0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"}) {
    EXPECT_EQ(code(std::system(fmt::format("{} {}", job, closed).c_str())), 0) << closed;
    for (const char* file : {"ran0", "ran1"}) EXPECT_TRUE(std::filesystem::remove(dir_ / file)) << closed;
  }
}

class FileSizes : public Surroundings {};
INSTANTIATE_TEST_SUITE_P(Everywhere, FileSizes, testing::Values(kHere, kHosts), kName);

TEST_P(FileSizes, LimitTooSmallForASegmentIsAnErrorOfTheRank) {
  const Outcome o = launch(script("ulimit -f 8; exec " JOINER));
  EXPECT_EQ(o.code, 1) << o.err;
  EXPECT_THAT(o.err, HasSubstr("cannot reserve "));
  EXPECT_THAT(o.err, HasSubstr("File too large: files and shared memory of this process are limited to "));
  EXPECT_THAT(o.err, HasSubstr("raise `ulimit -f`"));
}

TEST_P(FileSizes, LimitOfZeroEndsTheLauncherWithItsReason) {
  const std::string command =
      fmt::format("cd {}; (ulimit -f 0; {} {} " JOINER "; echo code $?) 2>&1 | cat >all", dir_.string(),
                  OURO_RUN, GetParam().arguments);
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::string all = slurp(dir_ / "all");
  EXPECT_THAT(all, HasSubstr("code 1\n"));
  EXPECT_THAT(all, HasSubstr("limited to 0 bytes (RLIMIT_FSIZE"));
}

/// A log that may not grow is no reason for a rank to die.
TEST_P(FileSizes, FullLogFileDoesNotEndTheRank) {
  const Outcome o = launch(script(fmt::format(
      "log={}/log$OURO_RANK; truncate -s 4G $log; ulimit -f $((4 * 1024 * 1024 * 2))\n"
      "export OURO_DEBUG=INFO OURO_DEBUG_FILE=$log; [ $(stat -c %s $log) = 4294967296 ] || exit 77; exec {}",
      dir_.string(), JOINER)));
  if (o.code == 77) GTEST_SKIP() << "this system has no sparse file of 4 GiB: " << o.err;
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(std::filesystem::file_size(dir_ / "log0"), std::uintmax_t{1} << 32);
}

class OldSystem : public Surroundings {};
INSTANTIATE_TEST_SUITE_P(Everywhere, OldSystem,
                         testing::Values(Where{"Here", kHere.arguments, OLD_SYSTEM " ENOSYS"},
                                         Where{"Hosts", kHosts.arguments, OLD_SYSTEM " EPERM"}),
                         kName);

TEST_P(OldSystem, RunsAJob) {
  const Outcome o = launch(JOINER);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(lines_of(o.out), lines_of("[0] rank 0 of 2: 1\n[1] rank 1 of 2: 1\n"));
}

TEST_P(OldSystem, ARankThatFailsEndsTheJob) {
  const Outcome o = launch(script("[ $OURO_RANK = 1 ] && exit 42; exec sleep 60"));
  EXPECT_EQ(o.code, 42) << o.err;
  EXPECT_LT(o.took, test::kHang);
}

class OnlyIpv6 : public Surroundings {};
INSTANTIATE_TEST_SUITE_P(Everywhere, OnlyIpv6, testing::Values(kHere, kHosts), kName);

TEST_P(OnlyIpv6, JobRunsWithIpv6OnTheLoopbackOnly) {
  const std::string inside =
      script(fmt::format("ip link set lo up && ip -4 address flush dev lo && ip -6 address show dev lo | "
                         "grep -q ::1 || exit 77\n"
                         "exec {} {} sh -c 'echo $MASTER_ADDR; exec {}'",
                         OURO_RUN, GetParam().arguments, JOINER));
  const std::string command =
      fmt::format("cd {}; unshare {} true || exit 77; unshare {} {} >out 2>err </dev/null", dir_.string(),
                  ::geteuid() == 0 ? "-n" : "-rn", ::geteuid() == 0 ? "-n" : "-rn", inside);
  const int status = std::system(command.c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "this system allows no network namespaces with IPv6";
  EXPECT_EQ(WEXITSTATUS(status), 0) << slurp(dir_ / "err");
  EXPECT_THAT(slurp(dir_ / "out"), HasSubstr("[0] ::1\n"));
}

}  // namespace
}  // namespace ouro::run
