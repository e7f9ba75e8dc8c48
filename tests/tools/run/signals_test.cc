// ouro-run with signals, sudden deaths, limits and programs that do not start; and ranks that never join.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "runtime/core/fd.h"
#include "tests/tools/run/harness.h"

namespace ouro::run {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

class Signalled : public OuroRun, public testing::WithParamInterface<Where> {
 protected:
  Signalled() { before_ = GetParam().before; }
  /// The letter of the process's state; T means stopped.
  static std::string state(pid_t pid) {
    const std::string all = slurp(fmt::format("/proc/{}/stat", pid));
    const std::size_t bracket = all.rfind(')');
    return bracket == std::string::npos ? "" : all.substr(bracket + 2, 1);
  }
  pid_t launch(const std::string& body) {
    return start(fmt::format("{} {}", GetParam().arguments, script(body)));
  }
};

INSTANTIATE_TEST_SUITE_P(Everywhere, Signalled,
                         testing::Values(Where{"Here", "-n 2"}, Where{"Hosts", "-H a,b --launch-agent ''"},
                                         Where{"HereOnOldSystem", "-n 2", OLD_SYSTEM " ENOSYS"},
                                         Where{"HostsOnOldSystem", "-H a,b --launch-agent ''",
                                               OLD_SYSTEM " EPERM"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Signalled, UserSignalsReachTheRanksAndTheJobContinues) {
  for (const auto& [number, name] : {std::pair{SIGUSR1, "USR1"}, std::pair{SIGUSR2, "USR2"}}) {
    const pid_t launcher = launch(fmt::format(
        "trap 'echo >got$RANK' {}; echo $$ >$RANK\nwhile [ ! -e go ]; do sleep 0.05; done", name));
    ASSERT_GT(pid_in("0"), 0);
    ASSERT_GT(pid_in("1"), 0);
    ::kill(launcher, number);
    EXPECT_TRUE(eventually([&] { return fs::exists(dir_ / "got0") && fs::exists(dir_ / "got1"); })) << name;
    std::ofstream(dir_ / "go") << "1";
    EXPECT_EQ(reap(launcher), 0) << name;
    for (const char* file : {"go", "got0", "got1", "0", "1"}) fs::remove(dir_ / file);
  }
}

TEST_P(Signalled, StopsAndContinuesWithItsRanks) {
  // The ranks wait without starting programs. A shell that has started one waits for it in an uninterruptible
  // state until that program is executed, which a stop can delay for good.
  for (const char* fifo : {"go0", "go1"}) ASSERT_EQ(::mkfifo((dir_ / fifo).c_str(), 0600), 0);
  const pid_t launcher = launch("echo $$ >$RANK\nread line <go$RANK || true");
  const pid_t first = pid_in("0"), second = pid_in("1");
  ASSERT_GT(second, 0);
  ::kill(launcher, SIGTSTP);
  for (const pid_t pid : {launcher, first, second})
    EXPECT_TRUE(eventually([&] { return state(pid) == "T"; })) << state(pid);
  ::kill(launcher, SIGCONT);
  for (const pid_t pid : {launcher, first, second})
    EXPECT_TRUE(eventually([&] { return state(pid) != "T"; })) << state(pid);
  for (const char* fifo : {"go0", "go1"}) std::ofstream(dir_ / fifo) << "\n";
  EXPECT_EQ(reap(launcher), 0) << slurp(dir_ / "err");
}

TEST_P(Signalled, AStoppedJobCanBeEnded) {
  const pid_t launcher = launch("echo $$ >$RANK; exec sleep 60");
  const pid_t first = pid_in("0");
  ASSERT_GT(pid_in("1"), 0);
  ::kill(launcher, SIGTSTP);
  EXPECT_TRUE(eventually([&] { return state(launcher) == "T" && state(first) == "T"; }));
  ::kill(launcher, SIGTERM);
  ::kill(launcher, SIGCONT);
  EXPECT_EQ(reap(launcher), 128 + SIGTERM);
}

TEST_P(Signalled, SignalsIgnoredAtItsStartStayIgnored) {
  const std::string command =
      fmt::format("cd {0}; trap '' HUP; exec {1} {2} {3} >out 2>err </dev/null", dir_.string(), OURO_RUN,
                  GetParam().arguments, script("echo $$ >$RANK; while [ ! -e go ]; do sleep 0.05; done"));
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  const pid_t first = pid_in("0");
  ASSERT_GT(pid_in("1"), 0);
  ::kill(launcher, SIGHUP);
  ::kill(first, SIGHUP);  // ranks inherit it
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_TRUE(alive(launcher));
  std::ofstream(dir_ / "go") << "1";
  EXPECT_EQ(reap(launcher), 0);
  EXPECT_EQ(slurp(dir_ / "err"), "");
}

/// Each rank starts a process that has left its group and its session.
constexpr const char* kFamily = "setsid sleep 60 & echo $! >s$RANK; echo $PPID >p$RANK; echo $$ >$RANK; wait";

TEST_P(Signalled, NothingOutlivesAKilledLauncher) {
  const pid_t launcher = launch(kFamily);
  std::vector<pid_t> all;
  for (const char* file : {"0", "1", "s0", "s1", "p0", "p1"}) all.push_back(pid_in(file));
  ASSERT_EQ(std::count(all.begin(), all.end(), 0), 0);
  ::kill(launcher, SIGKILL);
  EXPECT_EQ(reap(launcher), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return std::none_of(all.begin(), all.end(), alive); }));
}

TEST_P(Signalled, NothingOutlivesAKilledSupervisor) {
  const pid_t launcher = launch(kFamily);
  std::vector<pid_t> all;
  for (const char* file : {"0", "1", "s0", "s1"}) all.push_back(pid_in(file));
  ASSERT_EQ(std::count(all.begin(), all.end(), 0), 0);
  ::kill(pid_in("p1"), SIGKILL);
  EXPECT_EQ(reap(launcher), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return std::none_of(all.begin(), all.end(), alive); }));
  EXPECT_NE(slurp(dir_ / "err").find("was ended from outside (code 137); all ranks are ended\n"),
            std::string::npos)
      << slurp(dir_ / "err");
}

TEST_F(OuroRun, BlockedStartEndsByTimeoutOrSignal) {
  // Opening a file under a write lease blocks until the holder releases it, for up to 45 s.
  const fs::path program = dir_ / "program";
  fs::copy_file("/bin/true", program);
  const Fd held(::open(program.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(held);
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGIO, &ignore, &before);
  if (::fcntl(held.get(), F_SETLEASE, F_WRLCK) != 0)
    GTEST_SKIP() << "this system has no leases on this file system";
  const Outcome late = run(fmt::format("-n 2 --timeout 0.5 {}", program.string()));
  const pid_t launcher = start(fmt::format("-n 2 {}", program.string()));
  std::this_thread::sleep_for(milliseconds(500));
  ::kill(launcher, SIGTERM);
  const auto begin = std::chrono::steady_clock::now();
  const int code = reap(launcher);
  const auto took = std::chrono::steady_clock::now() - begin;
  ::fcntl(held.get(), F_SETLEASE, F_UNLCK);
  ::sigaction(SIGIO, &before, nullptr);
  EXPECT_EQ(late.code, 124);
  EXPECT_LT(late.took, test::kHang);
  EXPECT_NE(late.err.find("the end of the job's time while rank 0 was being started"), std::string::npos)
      << late.err;
  EXPECT_EQ(code, 128 + SIGTERM);
  EXPECT_LT(took, test::kHang);
  EXPECT_NE(slurp(dir_ / "err").find("signal 15 (Terminated) while rank 0 was being started"),
            std::string::npos)
      << slurp(dir_ / "err");
}

TEST_F(OuroRun, RaisesItsOwnSoftLimitOfOpenFilesAndNotThatOfTheRanks) {
  const std::string tight = fmt::format("sh -c 'ulimit -Sn 100; exec {} -n 40 {}'", OURO_RUN,
                                        script("[ $RANK != 39 ] || ulimit -Sn"));
  const int status = std::system(fmt::format("cd {}; {} >out 2>err", dir_.string(), tight).c_str());
  EXPECT_EQ(WEXITSTATUS(status), 0) << slurp(dir_ / "err");
  EXPECT_EQ(slurp(dir_ / "out"), "[39] 100\n");
}

TEST_F(OuroRun, SaysHowManyOpenFilesAreNeededAndAllowed) {
  const int status = std::system(
      fmt::format("cd {}; sh -c 'ulimit -n 60; exec {} -n 40 true' >out 2>err", dir_.string(), OURO_RUN)
          .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  const std::string err = slurp(dir_ / "err");
  EXPECT_NE(err.find(" file descriptors needed for starting 40 ranks ("), std::string::npos) << err;
}

class Joining : public Signalled {};
INSTANTIATE_TEST_SUITE_P(Everywhere, Joining,
                         testing::Values(Where{"Here", "-n 3"},
                                         Where{"Hosts", "-H a,b:2 -n 3 --launch-agent ''"},
                                         Where{"LastHost", "-H a:2,b -n 3 --launch-agent ''"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Joining, RankThatExitsWithoutJoiningIsNamedToWaitingRanks) {
  for (int missing = 0; missing < 3; ++missing) {
    for (const char* moment : {"", "sleep 0.7; "}) {  // before the others ask, and while they wait
      const Outcome o = run(fmt::format(
          "{} {}", GetParam().arguments,
          script(fmt::format("[ $RANK != {} ] || {{ {}exit 0; }}\nexec {}", missing, moment, JOINER))));
      EXPECT_EQ(o.code, 1) << o.err;
      EXPECT_LT(o.took, test::kHang) << missing;
      const std::string word = fmt::format("never-joined: rank {}", missing);
      EXPECT_NE(o.err.find(word), std::string::npos) << o.err;
      EXPECT_NE(o.err.find("it ended with exit code 0 before"), std::string::npos) << o.err;
    }
  }
}

TEST_P(Joining, CompleteJobsAndOtherProgramsAreNotAffected) {
  const Outcome o = run(fmt::format("{} {}", GetParam().arguments, JOINER));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(run(fmt::format("{} {}", GetParam().arguments, script("sleep 0.$RANK"))).code, 0);
}

}  // namespace
}  // namespace ouro::run
