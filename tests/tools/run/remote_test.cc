// ouro-run over several "hosts", all of which are this one: agents are started by `env`, or by scripts
// that misbehave.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "tests/tools/run/harness.h"

namespace ouro::run {
namespace {

namespace fs = std::filesystem;

class Hosts : public OuroRun {
 protected:
  static constexpr const char* kHere = "--launch-agent 'env HERE={host}' ";
  std::string agent(const std::string& body) {
    std::ofstream(dir_ / "agent") << body;
    return fmt::format("--launch-agent 'sh {} {{host}}' ", (dir_ / "agent").string());
  }
};

TEST_F(Hosts, RanksFillTheSlotsInOrder) {
  const Outcome o =
      run(std::string("-H a:2,b:1,c:4,d -n 5 ") + kHere +
          script("echo $OURO_RANK/$OURO_WORLD_SIZE $OURO_LOCAL_RANK/$OURO_LOCAL_SIZE $OURO_HOSTID "
                 "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $NODE_RANK $GROUP_RANK/"
                 "$GROUP_WORLD_SIZE $ROLE_RANK/$ROLE_WORLD_SIZE"));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(lines_of(o.out),
            (std::multiset<std::string>{"[0] 0/5 0/2 a 0/5 0/2 0 0/3 0/5", "[1] 1/5 1/2 a 1/5 1/2 0 0/3 1/5",
                                        "[2] 2/5 0/1 b 2/5 0/1 1 1/3 2/5", "[3] 3/5 0/2 c 3/5 0/2 2 2/3 3/5",
                                        "[4] 4/5 1/2 c 4/5 1/2 2 2/3 4/5"}));
}

TEST_F(Hosts, HostFileIsReadAndRanksDefaultToAllSlots) {
  std::ofstream(dir_ / "hosts") << "# two\na slots=2\n\nb:1  # the other\n";
  const Outcome o = run(fmt::format("--hostfile hosts {} {}", kHere, script("echo $OURO_HOSTID")));
  EXPECT_EQ(o.out.size(), 3u * 6) << o.err;
  EXPECT_EQ(lines_of(o.out), (std::multiset<std::string>{"[0] a", "[1] a", "[2] b"}));
}

TEST_F(Hosts, WithoutAnAgentCommandEveryHostIsThisOne) {
  EXPECT_EQ(lines_of(run("-H a,b --launch-agent '' " + script("echo $OURO_HOSTID")).out),
            (std::multiset<std::string>{"[0] a", "[1] b"}));
}

TEST_F(Hosts, AllRanksShareAnAddressAJobIdAndASecretOfTheirOwn) {
  const std::string arguments =
      std::string("-H a,b --no-prefix ") + kHere +
      script("echo $OURO_RENDEZVOUS $MASTER_ADDR $MASTER_PORT $OURO_JOB_ID $(cat $OURO_SECRET_FILE)");
  std::set<std::string> jobs;
  for (int i = 0; i < 2; ++i) {
    const auto lines = lines_of(run(arguments).out);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(*lines.begin(), *lines.rbegin());
    std::istringstream words(*lines.begin());
    std::string rendezvous, address, port, job, secret;
    words >> rendezvous >> address >> port >> job >> secret;
    // All can reach it, because they are one host.
    EXPECT_EQ(rendezvous.rfind("127.0.0.1:", 0), 0u) << rendezvous;
    EXPECT_EQ(address, "127.0.0.1");
    EXPECT_NE(rendezvous, address + ":" + port);
    EXPECT_EQ(job.size(), 32u);
    EXPECT_EQ(secret.size(), 64u);
    EXPECT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos);
    jobs.insert(job);
    jobs.insert(secret);
  }
  EXPECT_EQ(jobs.size(), 4u);
}

TEST_F(Hosts, TheSecretIsInNoCommandLineAndNoEnvironment) {
  const pid_t launcher =
      start(std::string("-H a,b ") + kHere +
            script("cat $OURO_SECRET_FILE >s$RANK; ls -lL $OURO_SECRET_FILE >m$RANK; echo $$ >$RANK\n"
                   "while [ ! -e go ]; do sleep 0.05; done"));
  ASSERT_GT(pid_in("0"), 0);
  ASSERT_GT(pid_in("1"), 0);
  const std::string secret = slurp(dir_ / "s0");
  EXPECT_EQ(secret.size(), 64u);
  EXPECT_EQ(secret, slurp(dir_ / "s1"));
  EXPECT_EQ(slurp(dir_ / "m0").rfind("-rw-------", 0), 0u) << slurp(dir_ / "m0");
  int looked_at = 0;
  std::error_code gone;
  for (const auto& process : fs::directory_iterator("/proc", gone)) {
    if (process.path().filename().string().find_first_not_of("0123456789") != std::string::npos) continue;
    for (const char* file : {"cmdline", "environ"}) {
      const std::string text = slurp(process.path() / file);
      looked_at += text.empty() ? 0 : 1;
      EXPECT_EQ(text.find(secret), std::string::npos) << process.path() / file;
    }
  }
  EXPECT_GT(looked_at, 5);
  std::ofstream(dir_ / "go") << "1";
  EXPECT_EQ(reap(launcher), 0);
}

TEST_F(Hosts, OnlySelectedVariablesAreExported) {
  ::setenv("OURO_ALGO", "ring", 1);
  ::setenv("OURO_SECRET", "mine", 1);
  ::setenv("COLOUR", "red", 1);
  const std::string clean =
      agent("shift; exec env -i PATH=$PATH \"$@\"");  // a shell on another host has none of the variables
  const Outcome o = run("-H a,b -x COLOUR -x SHAPE='a b' " + clean +
                        script("echo $OURO_ALGO $COLOUR $SHAPE ${OURO_SECRET:-none}"));
  const Outcome missing = run("-H a -x NOTHING_OF_THE_KIND true");
  ::unsetenv("OURO_ALGO");
  ::unsetenv("OURO_SECRET");
  ::unsetenv("COLOUR");
  EXPECT_EQ(lines_of(o.out), (std::multiset<std::string>{"[0] ring red a b none", "[1] ring red a b none"}))
      << o.err;
  EXPECT_EQ(missing.code, 2);
}

TEST_F(Hosts, FailingRankOfTheSecondHostEndsTheJob) {
  const Outcome o =
      run(std::string("-H a:2,b:2 ") + kHere +
          script("[ $RANK = 3 ] || exec sleep 60\necho 'h:1:1 a.cc:2 OURO WARN disk full' >&2; exit 42"));
  EXPECT_EQ(o.code, 42);
  EXPECT_LT(o.took, test::kHang);
  EXPECT_NE(o.err.find("ouro-run: host b: rank 3 (pid "), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("exited with code 42; its last warning: disk full\n"), std::string::npos) << o.err;
}

TEST_F(Hosts, RemoteSurvivorsMayPrintAndTheDeathIsNamed) {
  const Outcome o =
      run(std::string("-H a,b ") + kHere +
          script("if [ $RANK = 1 ]; then echo $$ >1; exec sleep 60; fi\nwhile [ ! -s 1 ]; do sleep 0.01; "
                 "done\nkill -SEGV $(cat 1); sleep 0.3; echo 'peer is dead' >&2; exit 3"));
  EXPECT_EQ(o.code, 128 + SIGSEGV);
  EXPECT_NE(o.err.find("host b: rank 1 (pid "), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("[0] peer is dead"), std::string::npos) << o.err;
  EXPECT_EQ(o.err.find("exited with code 3"), std::string::npos) << o.err;
}

TEST_F(Hosts, RemoteRankThatIgnoresSigtermIsKilled) {
  const Outcome o =
      run(std::string("-H a,b ") + kHere +
          script("if [ $RANK = 0 ]; then exit 7; fi\ntrap '' TERM; while :; do sleep 0.1; done"));
  EXPECT_EQ(o.code, 7);
  EXPECT_GT(o.took, std::chrono::milliseconds(2500));
  EXPECT_LT(o.took, test::kHang);
}

TEST_F(Hosts, DeathOfAnAgentEndsItsRanksAndAllOthers) {
  const pid_t launcher = start(std::string("-H a:1,b:2 ") + kHere +
                               script("echo $PPID >agent$RANK; echo $$ >$RANK; exec sleep 60"));
  pid_t ranks[3];
  for (int r = 0; r < 3; ++r) ASSERT_GT(ranks[r] = pid_in(std::to_string(r)), 0);
  ::kill(pid_in("agent2"), SIGKILL);
  EXPECT_EQ(reap(launcher), 128 + SIGKILL);
  const std::string err = slurp(dir_ / "err");
  EXPECT_NE(err.find("host b: the connection to its agent"), std::string::npos) << err;
  EXPECT_NE(err.find("and with it rank 1, 2"), std::string::npos) << err;
  EXPECT_TRUE(eventually([&] { return std::none_of(ranks, ranks + 3, alive); }));
}

TEST_F(Hosts, NothingOutlivesTheLauncher) {
  const pid_t launcher =
      start(std::string("-H a,b ") + kHere +
            script("setsid sleep 60 & echo $! >s$RANK; echo $PPID >a$RANK; echo $$ >$RANK; wait"));
  std::vector<pid_t> all;
  for (const char* file : {"0", "1", "s0", "s1", "a0", "a1"}) all.push_back(pid_in(file));
  ASSERT_EQ(std::count(all.begin(), all.end(), 0), 0);
  ::kill(launcher, SIGKILL);
  EXPECT_EQ(reap(launcher), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return std::none_of(all.begin(), all.end(), alive); }));
}

TEST_F(Hosts, AgentEndsItsRanksWhenItsInputEnds) {
  // As with ssh: the connection breaks, and no signal arrives. `cat` holds the pipe in between.
  const std::string through = agent(
      "host=$1; shift; if [ $host = b ]; then sh -c 'echo $$ >cat; exec cat' | \"$@\"; else exec \"$@\"; fi");
  const pid_t launcher = start("-H a,b " + through + script("echo $$ >$RANK; exec sleep 60"));
  const pid_t first = pid_in("0"), second = pid_in("1"), cat = pid_in("cat");
  ASSERT_GT(second, 0);
  ASSERT_GT(cat, 0);
  ::kill(cat, SIGKILL);
  EXPECT_EQ(reap(launcher), 1);
  EXPECT_NE(slurp(dir_ / "err").find("host b: the connection to its agent"), std::string::npos)
      << slurp(dir_ / "err");
  EXPECT_TRUE(eventually([&] { return !alive(first) && !alive(second); }));
}

TEST_F(Hosts, TimeoutNamesRunningRanksOfAllHosts) {
  const Outcome o = run(std::string("-H a:2,b:2 --timeout 0.6 ") + kHere +
                        script("[ $RANK = 1 ] || [ $RANK = 2 ] || exec sleep 60"));
  EXPECT_EQ(o.code, 124);
  EXPECT_LT(o.took, test::kHang);
  EXPECT_NE(o.err.find("timeout after 0.6 s; still running: rank 0, 3\n"), std::string::npos) << o.err;
}

TEST_F(Hosts, TimeoutCoversAgentsThatNeverAnswer) {
  const Outcome o = run("-H a,b --timeout 0.3 " + agent("exec sleep 60") + "true");
  EXPECT_EQ(o.code, 124);
  EXPECT_LT(o.took, test::kHang);
}

TEST_F(Hosts, PassesSignalsOn) {
  const pid_t launcher =
      start(std::string("-H a,b ") + kHere +
            script("trap 'exit 9' INT TERM; echo $$ >$RANK\n while :; do sleep 0.05; done"));
  ASSERT_GT(pid_in("0"), 0);
  ASSERT_GT(pid_in("1"), 0);
  ::kill(launcher, SIGINT);
  EXPECT_EQ(reap(launcher), 9);
  EXPECT_NE(slurp(dir_ / "err").find("signal 2 "), std::string::npos);
}

TEST_F(Hosts, KeepsLinesWholeUnderLoad) {
  const Outcome o =
      run(std::string("-H a:2,b:2 ") + kHere +
          script("i=0; while [ $i -lt 500 ]; do printf '%0300d' $RANK; echo; i=$((i+1)); done"));
  std::map<std::string, int> counts;
  for (const std::string& line : lines_of(o.out)) ++counts[line];
  ASSERT_EQ(counts.size(), 4u) << o.err;
  for (int r = 0; r < 4; ++r) EXPECT_EQ(counts[fmt::format("[{0}] {0:0300}", r)], 500);
}

TEST_F(Hosts, EndsWhenNobodyReadsItsOutput) {
  const std::string command = fmt::format("{} -H a,b {} yes 2>/dev/null | head -n 1", OURO_RUN, kHere);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, test::kHang);
}

TEST_F(Hosts, OutputOfARemoteShellIsForwarded) {
  const Outcome o =
      run("-H a,b " + agent("echo Welcome to $1; echo careful >&2; shift; exec \"$@\"") + "true");
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(lines_of(o.err), (std::multiset<std::string>{"[a] Welcome to a", "[a] careful",
                                                         "[b] Welcome to b", "[b] careful"}));
}

TEST_F(Hosts, UnreachableAgentIsReportedWithItsReason) {
  const Outcome refused = run("-H a,b " +
                              agent("[ $1 = a ] || { echo 'Permission denied' >&2; exit 255; }; shift; exec "
                                    "\"$@\"") +
                              script("echo started"));
  EXPECT_EQ(refused.code, 255);
  EXPECT_EQ(refused.out, "");
  EXPECT_NE(refused.err.find("host b: its agent (pid "), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("), which never answered, exited with code 255, and with it rank 1"),
            std::string::npos)
      << refused.err;
  EXPECT_NE(refused.err.find("its last line on stderr: Permission denied\n"), std::string::npos)
      << refused.err;
  EXPECT_EQ(run("-H a,b --launch-agent '/no/such/agent {host}' true").code, 127);
}

TEST_F(Hosts, AnAgentOfAnotherProtocolIsRefused) {
  const Outcome o = run(
      "-H a " + agent("echo 'ouro-run agent, protocol 3'; printf 'HTTP/1.1 400'; exec sleep 60") + "true");
  EXPECT_EQ(o.code, 1);
  EXPECT_LT(o.took, test::kHang);
  EXPECT_NE(o.err.find("host a: no message of ouro-run and its agents"), std::string::npos) << o.err;
}

TEST_F(Hosts, DeletedWorkingDirectoryIsAnError) {
  const std::string command =
      fmt::format("cd {0}; mkdir gone; cd gone; rmdir ../gone; {1} -H a,b {2} true >{0}/out 2>{0}/err",
                  dir_.string(), OURO_RUN, kHere);
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_NE(slurp(dir_ / "err").find("the working directory has no name"), std::string::npos)
      << slurp(dir_ / "err");
}

TEST_F(Hosts, InterfaceListChoosesTheRendezvousAddress) {
  const std::string where = script("echo $OURO_RENDEZVOUS");
  const Outcome lo = run("-H a,b -x OURO_SOCKET_IFNAME==lo --no-prefix --launch-agent '' " + where);
  EXPECT_EQ(lo.code, 0) << lo.err;
  EXPECT_EQ(lo.out.rfind("127.0.0.1:", 0), 0u) << lo.out;
  ::setenv("OURO_SOCKET_IFNAME", "none-such", 1);
  const Outcome none = run("-H a,b --launch-agent '' " + where);
  ::unsetenv("OURO_SOCKET_IFNAME");
  EXPECT_EQ(none.code, 1);
  EXPECT_NE(none.err.find("host a: no network interface can be used"), std::string::npos) << none.err;
}

TEST_F(Hosts, InvalidUsageIsRefused) {
  const Outcome missing = run(std::string("-H a,b ") + kHere + "/no/such/program");
  EXPECT_EQ(missing.code, 127);
  EXPECT_NE(missing.err.find("cannot run /no/such/program: No such file or directory"), std::string::npos)
      << missing.err;
  for (const char* usage :
       {"-H a:1,b:1 -n 3 true", "-H a:0 true", "-H a, true", "-H -oProxyCommand=x true", "-H 'a b' true",
        "-H a:2:3 true", "-H [::1 true", "--hostfile /no/such/file true", "-H a --hostfile f true",
        "-H a -x true", "-H a,b --launch-agent env true", "-n 1 --launch-agent 'env A={host}' true"}) {
    EXPECT_EQ(run(usage).code, 2) << usage;
  }
}

}  // namespace
}  // namespace ouro::run
