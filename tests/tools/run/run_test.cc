// ouro-run from outside: its output, its exit code, what it leaves behind. Each test runs the program.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "runtime/context/machine.h"
#include "tests/tools/run/harness.h"
#include "tools/run/child.h"
#include "tools/run/lines.h"

namespace ouro::run {
namespace {

namespace fs = std::filesystem;

TEST_F(OuroRun, GivesEachRankItsVariables) {
  const Outcome o =
      run("-n 3 " + script("echo $OURO_RANK/$OURO_WORLD_SIZE $OURO_LOCAL_RANK/$OURO_LOCAL_SIZE "
                           "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $ROLE_RANK/"
                           "$ROLE_WORLD_SIZE $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS"));
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(lines_of(o.out),
            (std::multiset<std::string>{"[0] 0/3 0/3 0/3 0/3 0 0/3 0/0", "[1] 1/3 1/3 1/3 1/3 0 1/3 0/0",
                                        "[2] 2/3 2/3 2/3 2/3 0 2/3 0/0"}));
}

TEST_F(OuroRun, FaultOptionsArePassedToTheRanks) {
  const std::string say = script("echo $OURO_FAULT");
  EXPECT_EQ(
      lines_of(run("-n 2 --fault kill:rank=1,op=5 --fault stop:rank=0 " + say).out),
      (std::multiset<std::string>{"[0] kill:rank=1,op=5;stop:rank=0", "[1] kill:rank=1,op=5;stop:rank=0"}));
  ::setenv("OURO_FAULT", "delay:rank=0,ms=1", 1);
  EXPECT_EQ(lines_of(run("-n 1 --fault kill:rank=0 " + say).out),
            (std::multiset<std::string>{"[0] delay:rank=0,ms=1;kill:rank=0"}));
  ::unsetenv("OURO_FAULT");
  const std::pair<const char*, const char*> wrong[] = {
      {"kil:rank=1", "--fault: 'kil' in 'kil:rank=1': expected kill, stop,"},
      {"kill:rank=2", "--fault: 'rank=2' in 'kill:rank=2': expected a rank of 0 to 1"},
      {"cut:rank=1", "expected a job on several hosts"},
      {"\"\"", "--fault: expected a fault"}};
  for (const auto& [fault, text] : wrong) {
    const Outcome o = run(fmt::format("-n 2 --fault {} {}", fault, say));
    EXPECT_EQ(o.code, 2) << fault;
    EXPECT_NE(o.err.find(text), std::string::npos) << o.err;
  }
}

TEST_F(OuroRun, JobIdIsSharedByTheJobAndByNoOther) {
  const std::string program = script("echo $OURO_JOB_ID $TORCHELASTIC_RUN_ID $MASTER_ADDR $MASTER_PORT");
  std::set<std::string> ids;
  for (int i = 0; i < 2; ++i) {
    const auto lines = lines_of(run("-n 2 --no-prefix " + program).out);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(*lines.begin(), *lines.rbegin());
    std::istringstream words(*lines.begin());
    std::string job, run_id, address;
    int port = 0;
    words >> job >> run_id >> address >> port;
    EXPECT_EQ(job.size(), 32u);
    EXPECT_EQ(job.find_first_not_of("0123456789abcdef"), std::string::npos);
    EXPECT_EQ(run_id, job);
    EXPECT_EQ(address, "127.0.0.1");
    EXPECT_GT(port, 0);
    ids.insert(job);
  }
  EXPECT_EQ(ids.size(), 2u);
}

TEST_F(OuroRun, PrefixesBothStreamsAndKeepsThemApart) {
  const Outcome o = run("-n 2 " + script("echo out; echo; echo err >&2; printf unfinished"));
  EXPECT_EQ(lines_of(o.out), (std::multiset<std::string>{"[0] ", "[0] out", "[0] unfinished", "[1] ",
                                                         "[1] out", "[1] unfinished"}));
  EXPECT_EQ(lines_of(o.err), (std::multiset<std::string>{"[0] err", "[1] err"}));
}

TEST_F(OuroRun, WithoutPrefixBytesPassUnchanged) {
  EXPECT_EQ(run("-n 1 --no-prefix " + script("printf 'a\\n\\nb'")).out, "a\n\nb");
}

TEST_F(OuroRun, KeepsLinesWholeUnderLoad) {
  const Outcome o =
      run("-n 4 " + script("i=0; while [ $i -lt 500 ]; do printf '%0300d' $RANK; echo; i=$((i+1)); done"));
  std::map<std::string, int> counts;
  for (const std::string& line : lines_of(o.out)) ++counts[line];
  ASSERT_EQ(counts.size(), 4u);
  for (int r = 0; r < 4; ++r) EXPECT_EQ(counts[fmt::format("[{0}] {0:0300}", r)], 500);
}

TEST_F(OuroRun, NamesTheFirstRankThatFailedWithItsLastWarning) {
  const Outcome o =
      run("-n 3 " + script("[ $RANK = 1 ] || exec sleep 60\n"
                           "echo 'h:1:1 a.cc:1 OURO WARN old' >&2\n"
                           "echo 'h:1:1 a.cc:2 OURO WARN disk full' >&2; echo more >&2; exit 42"));
  EXPECT_EQ(o.code, 42);
  EXPECT_LT(o.took, test::kHang);
  EXPECT_NE(o.err.find("ouro-run: rank 1 (pid "), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("exited with code 42; its last warning: disk full\n"), std::string::npos) << o.err;
}

TEST_F(OuroRun, WithoutAWarningTheLastLineOfStderrIsReported) {
  const Outcome o = run("-n 1 " + script("echo 'ouro: invalid: no' >&2; exit 1"));
  EXPECT_NE(o.err.find("exited with code 1; its last line on stderr: ouro: invalid: no\n"), std::string::npos)
      << o.err;
}

TEST_F(OuroRun, HelpHintIsNotReportedAsTheError) {
  for (const char* hint : {"Try: x --help", "Try 'x --help' for more information."}) {
    const Outcome o = run("-n 1 " + script(fmt::format("echo 'x: no' >&2; echo \"{}\" >&2; exit 2", hint)));
    EXPECT_NE(o.err.find("exited with code 2; its last line on stderr: x: no\n"), std::string::npos) << o.err;
  }
}

TEST_F(OuroRun, ExportOfAVariableThatItSetsIsRefused) {
  const char* const all[] = {"RANK=7", "OURO_RANK=9", "OURO_ROLL=x", "MASTER_PORT=1"};
  for (const char* variable : all) {
    const Outcome o = run(fmt::format("-x {} -n 2 true", variable));
    EXPECT_EQ(o.code, 2) << variable;
    const std::string name(variable, std::string_view(variable).find('='));
    EXPECT_NE(o.err.find(fmt::format("-x {}: ouro-run sets it", name)), std::string::npos) << o.err;
  }
  EXPECT_EQ(run("-H a -x OURO_HOSTID=b --launch-agent 'env A={host}' true").code, 2);
  const Outcome both = run("-x OURO_FAULT=kill:rank=1,op=9 --fault kill:rank=0,op=9 -n 2 --no-prefix " +
                           script("echo $OURO_FAULT"));
  EXPECT_EQ(both.out, "kill:rank=1,op=9;kill:rank=0,op=9\nkill:rank=1,op=9;kill:rank=0,op=9\n");
}

TEST_F(OuroRun, SurvivorsMayPrintAfterADeathAndOnlyTheDeathIsNamed) {
  const Outcome o = run("-n 2 " + script("if [ $RANK = 1 ]; then kill -SEGV $$; fi\n"
                                         "sleep 0.4; echo 'peer is dead' >&2; exit 3"));
  EXPECT_EQ(o.code, 128 + SIGSEGV);
  EXPECT_NE(o.err.find("rank 1 (pid "), std::string::npos);
  EXPECT_NE(o.err.find("was killed by signal 11"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("[0] peer is dead"), std::string::npos) << o.err;
  EXPECT_EQ(o.err.find("exited with code 3"), std::string::npos)
      << "only the first failure is named: " << o.err;
}

TEST_F(OuroRun, RankThatIgnoresSigtermIsKilled) {
  const Outcome o =
      run("-n 2 " + script("if [ $RANK = 1 ]; then exit 7; fi\ntrap '' TERM; while :; do sleep 0.1; done"));
  EXPECT_EQ(o.code, 7);
  EXPECT_GT(o.took, std::chrono::milliseconds(2500));
  EXPECT_LT(o.took, test::kHang);
}

TEST_F(OuroRun, TimeoutEndsTheJobAndNamesRunningRanks) {
  const Outcome o = run("-n 3 --timeout 0.5 " + script("[ $RANK = 1 ] || exec sleep 60"));
  EXPECT_EQ(o.code, 124);
  EXPECT_LT(o.took, test::kHang);
  EXPECT_EQ(run("-n 1 --timeout 1e9 true").code, 0);
  EXPECT_NE(o.err.find("timeout after 0.5 s; still running: rank 0, 2\n"), std::string::npos) << o.err;
}

TEST_F(OuroRun, LeavesNoProcessBehind) {
  // In the process group, in a session of its own, and with its parent gone.
  const Outcome o = run("-n 1 " + script("sleep 60 & echo $! >a\n setsid sleep 60 & \n"
                                         "sh -c 'setsid sleep 60 & echo $! >b'\n exit 0"));
  EXPECT_EQ(o.code, 0);
  EXPECT_LT(o.took, test::kHang);
  EXPECT_FALSE(alive(pid_in("a")));
  EXPECT_FALSE(alive(pid_in("b")));
}

TEST_F(OuroRun, RanksDieWithTheLauncher) {
  const pid_t launcher = start("-n 2 " + script("echo $$ >$RANK; exec sleep 60"));
  ASSERT_GT(launcher, 0);
  const pid_t first = pid_in("0"), second = pid_in("1");
  ASSERT_GT(first, 0);
  ASSERT_GT(second, 0);
  ::kill(launcher, SIGKILL);
  EXPECT_EQ(reap(launcher), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return !alive(first) && !alive(second); }));
}

TEST_F(OuroRun, PassesSignalsOn) {
  for (const int number : {SIGINT, SIGTERM}) {
    const pid_t launcher =
        start("-n 2 " + script("trap 'exit 9' INT TERM; echo $$ >$RANK\n while :; do sleep 0.05; done"));
    pid_in("0");
    pid_in("1");
    ::kill(launcher, number);
    EXPECT_EQ(reap(launcher), 9) << number;
    EXPECT_NE(slurp(dir_ / "err").find(fmt::format("signal {} ", number)), std::string::npos);
    fs::remove(dir_ / "0");
    fs::remove(dir_ / "1");
  }
}

TEST_F(OuroRun, OnlyRankZeroReadsTheInput) {
  std::ofstream(dir_ / "input") << "line\n";
  EXPECT_EQ(run("-n 2 cat", (dir_ / "input").string()).out, "[0] line\n");
}

TEST_F(OuroRun, EndsWhenNobodyReadsItsOutput) {
  const std::string command = fmt::format("{} -n 2 yes 2>/dev/null | head -n 1", OURO_RUN);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, test::kHang);
}

TEST_F(OuroRun, MoreRanksThanCoresStart) {
  const Outcome o = run("-n 64 " + script("exit 0"));
  EXPECT_EQ(o.code, 0) << o.err;
}

TEST_F(OuroRun, InvalidUsageIsRefused) {
  const Outcome missing = run("-n 2 /no/such/program");
  EXPECT_EQ(missing.code, 127);
  EXPECT_NE(missing.err.find("cannot run /no/such/program: No such file or directory"), std::string::npos);
  EXPECT_EQ(run("-n 2 /etc/passwd").code, 126);
  for (const char* usage : {"-n 0 true", "-n -1 true", "-n two true", "true", "-n 2", "--nonsense -n 1 true",
                            "-n 2 --timeout 0 true", "-n 1 --timeout 9.3e9 true", "-n 1 --timeout nan true",
                            "-n 1 --timeout inf true", "-n 1 --timeout 1e-9 true", "-n 99999999 true"}) {
    const Outcome refused = run(usage);
    EXPECT_EQ(refused.code, 2) << usage;
    EXPECT_EQ(refused.err.rfind("ouro-run: ", 0), 0u) << refused.err;
  }
  EXPECT_EQ(run("--help").code, 0);
}

/// The processors on which a rank may run, according to the system.
constexpr const char* kTellAffinity = "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/$$/status";

TEST_F(OuroRun, BindsEachRankToItsPlace) {
  using rt::Bind;
  const rt::Machine& m = rt::machine();
  if (m.invented) GTEST_SKIP() << "set by the user: HWLOC_XMLFILE or HWLOC_SYNTHETIC";
  const std::string everywhere = rt::to_text(rt::affinity_of(0));
  for (const Bind policy : {Bind::core, Bind::cache, Bind::numa, Bind::none})
    for (const int ranks : {1, 2, 3}) {
      const Outcome o = run(fmt::format("-n {} --bind {} {}", ranks, name(policy), script(kTellAffinity)));
      std::multiset<std::string> expected;
      for (int r = 0; r < ranks; ++r) {
        const std::string place = rt::to_text(m.place(r, ranks, policy).cpus);
        expected.insert(fmt::format("[{}] {}", r, place.empty() ? everywhere : place));
      }
      EXPECT_EQ(lines_of(o.out), expected) << name(policy) << ", " << ranks << " ranks";
      EXPECT_EQ(o.code, 0) << o.err;
    }
}

TEST_F(OuroRun, BindsWithinItsOwnAffinityMask) {
  const rt::Cpus mine = rt::affinity_of(0);
  if (mine.size() < 2) GTEST_SKIP() << "this machine has no second core";
  std::thread([&] {  // and what the rank starts
    ASSERT_TRUE(rt::bind_this_thread({.cpus = {mine.back()}}).ok());
    const Outcome o = run("-n 2 --bind core " + script(kTellAffinity));
    EXPECT_EQ(lines_of(o.out), (std::multiset<std::string>{fmt::format("[0] {}", mine.back()),
                                                           fmt::format("[1] {}", mine.back())}));
    EXPECT_EQ(o.err, "ouro-run: 2 ranks take the hardware threads (1) in turn\n");
  })
      .join();
}

TEST_F(OuroRun, EnvironmentBindingIsNotInheritedByRanks) {
  ::setenv("OURO_BIND", "core", 1);
  const Outcome bound = run("-n 1 " + script(std::string(kTellAffinity) + "; echo $OURO_BIND"));
  const Outcome free = run("-n 1 --bind none " + script(kTellAffinity));
  ::unsetenv("OURO_BIND");
  const std::string place = rt::to_text(rt::machine().place(0, 1, rt::Bind::core).cpus);
  EXPECT_EQ(bound.out, fmt::format("[0] {}\n[0] none\n", place)) << bound.err;
  EXPECT_EQ(free.out, fmt::format("[0] {}\n", rt::to_text(rt::affinity_of(0))));
}

TEST_F(OuroRun, RefusesBindingsThatDoNotExist) {
  const Outcome option = run("-n 1 --bind socket true");
  EXPECT_EQ(option.code, 2);
  EXPECT_EQ(option.err, "ouro-run: unknown binding 'socket'; one of: core, cache, numa, none\n");
  ::setenv("OURO_BIND", "socket", 1);
  const Outcome variable = run("-n 1 true");
  ::unsetenv("OURO_BIND");
  EXPECT_EQ(variable.code, 2);
  EXPECT_NE(variable.err.find("OURO_BIND=socket (from environment): expected core|cache|numa|none"),
            std::string::npos)
      << variable.err;
  ::setenv("HWLOC_SYNTHETIC", "core:4 pu:1", 1);
  const Outcome invented = run("-n 1 --bind core true");
  ::unsetenv("HWLOC_SYNTHETIC");
  EXPECT_EQ(invented.code, 1);
  EXPECT_NE(invented.err.find("HWLOC_SYNTHETIC"), std::string::npos) << invented.err;
}

TEST(Spawn, BindingToAMissingCpuIsAnError) {
  const auto child = spawn({"true"}, {}, STDIN_FILENO, {.cpus = {65000}});
  ASSERT_TRUE(child.ok()) << child.status().message();
  const auto* error = std::get_if<StartError>(&*child);
  ASSERT_NE(error, nullptr);
  EXPECT_TRUE(error->binding);
  EXPECT_EQ(error->error, EINVAL);
}

TEST(Spawn, MissingMemoryNodeIsReportedButNotFatal) {
  auto child = spawn({"/bin/true"}, {}, STDIN_FILENO, {.node = 1000});
  ASSERT_TRUE(child.ok()) << child.status().message();
  auto* started = std::get_if<Child>(&*child);
  ASSERT_NE(started, nullptr);
  EXPECT_NE(started->memory_error, 0);
  int status = -1;
  ASSERT_EQ(::waitpid(started->pid, &status, 0), started->pid);
  EXPECT_EQ(status, 0);
  const auto missing = spawn({"/no/such/program"}, {}, STDIN_FILENO, {.node = 1000});
  ASSERT_TRUE(missing.ok());
  const auto* error = std::get_if<StartError>(&*missing);
  ASSERT_NE(error, nullptr);
  EXPECT_FALSE(error->binding);
  EXPECT_EQ(error->error, ENOENT);
}

TEST_F(OuroRun, ArgumentsOfTheProgramAreNotItsOwn) {
  EXPECT_EQ(run("-n 1 echo -n 5 --timeout --help -- x").out, "[0] 5 --timeout --help -- x\n");
}

TEST_F(OuroRun, PreloadPathWithABlankOrColonIsRefused) {
  for (const char* prefix : {"a b", "a:b"}) {
    const fs::path root = dir_ / prefix, program = root / "bin/ouro-run", nccl = root / "lib/ouro/nccl";
    fs::create_directories(root / "bin");
    fs::create_directories(nccl);
    fs::copy_file(OURO_RUN, program);
    std::ofstream(nccl / "libnccl.so.2") << "";
    const std::string command =
        fmt::format("'{}' -n 1 --nccl true >'{}/out' 2>&1", program.string(), root.string());
    EXPECT_NE(std::system(command.c_str()), 0);
    EXPECT_NE(slurp(root / "out").find("takes no path with a blank or a colon"), std::string::npos)
        << slurp(root / "out");
  }
}

TEST(LineSplitter, JoinsPiecesAndBreaksEndlessLines) {
  LineSplitter s;
  std::vector<std::string> got;
  std::string ends;
  const auto take = [&](std::string_view line, std::size_t, LineEnd end) {
    got.emplace_back(line);
    ends += static_cast<char>(end);
  };
  s.add("a", take);
  s.add("b\n\nc", take);
  EXPECT_EQ(got, (std::vector<std::string>{"ab", ""}));
  s.finish(take);
  EXPECT_EQ(got.back(), "c");
  EXPECT_EQ(ends, "110") << "a newline, and the end";
  got.clear();
  ends.clear();
  const std::string endless(LineSplitter::kLongest + 5, 'x');
  s.add(endless + "\ny\n", take);
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[0].size(), LineSplitter::kLongest);
  EXPECT_EQ(got[1], "xxxxx");
  EXPECT_EQ(got[2], "y");
  EXPECT_EQ(ends, "211") << "where the line was broken it may go on";
}

}  // namespace
}  // namespace ouro::run
