// ouro-run and its readers: slow, stuck or gone, or a file that takes no more; and unterminated lines.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/tools/run/harness.h"
#include "tools/run/lines.h"
#include "tools/run/outlet.h"
#include "tools/run/system.h"

namespace ouro::run {
namespace {

namespace fs = std::filesystem;

class Output : public OuroRun, public testing::WithParamInterface<Where> {
 protected:
  ~Output() override {
    if (shell_ > 0) {
      ::kill(-shell_, SIGKILL);
      reap(shell_);
    }
  }
  /// Makes ouro-run with `arguments` write into a pipe that nobody reads; `done` gets its exit code, `err`
  /// its errors.
  void into_stuck_pipe(const std::string& arguments) {
    const std::string command =
        fmt::format("cd {0}; ({1} {2} {3} 2>err & echo $! >launcher; wait $!; echo $? >done) | sleep 60",
                    dir_.string(), OURO_RUN, GetParam().arguments, arguments);
    shell_ = ::fork();
    if (shell_ == 0) {
      ::setpgid(0, 0);
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
  }
  std::string exit_code() {
    eventually([&] { return slurp(dir_ / "done").ends_with('\n'); });
    return slurp(dir_ / "done");
  }

 private:
  pid_t shell_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Everywhere, Output,
                         testing::Values(Where{"Here", "-n 2"}, Where{"Hosts", "-H a,b --launch-agent ''"}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Output, StuckReaderDoesNotDelayTheTimeout) {
  const auto begin = std::chrono::steady_clock::now();
  into_stuck_pipe("--timeout 1 yes");
  EXPECT_EQ(exit_code(), "124\n");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, test::kHang);
  const std::string err = slurp(dir_ / "err");
  EXPECT_NE(err.find("timeout after 1 s; still running: rank 0, 1\n"), std::string::npos) << err;
  EXPECT_NE(err.find(" bytes of standard output are dropped: they were not read in time\n"),
            std::string::npos)
      << err;
}

TEST_P(Output, StuckReaderDoesNotDelaySignals) {
  into_stuck_pipe(script("echo $$ >$RANK; exec yes"));
  const pid_t launcher = pid_in("launcher"), first = pid_in("0"), second = pid_in("1");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // until all pipes are full
  ::kill(launcher, SIGTERM);
  EXPECT_EQ(exit_code(), "143\n");
  EXPECT_FALSE(alive(first) || alive(second));
}

TEST_P(Output, StuckReaderDoesNotHideTheDeathOfARank) {
  into_stuck_pipe(
      script("echo $$ >$RANK; [ $RANK = 1 ] || exec yes\nsleep 0.5; echo 'disk full' >&2; exit 3"));
  const pid_t first = pid_in("0");
  EXPECT_TRUE(eventually([&] { return !alive(first); }));
  EXPECT_TRUE(
      eventually([&] { return slurp(dir_ / "err").find("exited with code 3") != std::string::npos; }));
  EXPECT_NE(slurp(dir_ / "err").find("[1] disk full\n"), std::string::npos) << "stderr goes on";
  ::kill(pid_in("launcher"), SIGTERM);  // otherwise it waits for its reader, as any program does
  EXPECT_EQ(exit_code(), "3\n");
}

TEST_P(Output, SlowReaderGetsAllOutputAndThrottlesTheRanks) {
  const std::string command = fmt::format(
      "cd {0}; {1} {2} --no-prefix {3} | (sleep 1; echo $(ls wrote* 2>/dev/null | wc -l) >early; wc -lc) "
      ">count",
      dir_.string(), OURO_RUN, GetParam().arguments, script("seq 1000000 1999999; echo >wrote$RANK"));
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::istringstream count(slurp(dir_ / "count"));
  long lines = 0, bytes = 0;
  count >> lines >> bytes;
  EXPECT_EQ(lines, 2'000'000);
  EXPECT_EQ(bytes, 16'000'000);
  EXPECT_EQ(slurp(dir_ / "early"), "0\n") << "8 MB each were read though nobody took them";
}

TEST_P(Output, FailingOutputEndsTheJobWithAnError) {
  for (const char* where : {">/dev/full", ">&-"}) {
    const std::string command =
        fmt::format("cd {}; {} {} echo hi 2>err {}", dir_.string(), OURO_RUN, GetParam().arguments, where);
    const int status = std::system(command.c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << where;
    const std::string err = slurp(dir_ / "err"), word = "ouro-run: cannot write to standard output: ";
    EXPECT_NE(err.find(word + (where[1] == '/' ? "No space left on device\n" : "Bad file descriptor\n")),
              std::string::npos)
        << err;
    EXPECT_EQ(err.find(word), err.rfind(word)) << err;
  }
}

TEST_P(Output, PromptWithoutANewlineIsShown) {
  const pid_t launcher = start(fmt::format("{} {}", GetParam().arguments,
                                           script("[ $RANK = 0 ] || exit 0\nprintf 'name? '; while [ ! -e go "
                                                  "]; do sleep 0.05; done; echo me; printf end")));
  EXPECT_TRUE(eventually([&] { return slurp(dir_ / "out") == "[0] name? "; })) << slurp(dir_ / "out");
  std::ofstream(dir_ / "go") << "1";
  EXPECT_EQ(reap(launcher), 0);
  EXPECT_EQ(slurp(dir_ / "out"), "[0] name? me\n[0] end\n");
}

TEST_P(Output, LineOfMegabytesIsNotSplitWithoutPrefixes) {
  const Outcome o =
      run(fmt::format("{} --no-prefix {}", GetParam().arguments,
                      script("[ $RANK = 1 ] || exit 0\nhead -c 3000000 /dev/zero | tr '\\0' x")));
  EXPECT_EQ(o.out, std::string(3'000'000, 'x'));
}

TEST_P(Output, AnUnfinishedLineIsNotMixedWithAnotherRanks) {
  const Outcome o = run(fmt::format(
      "{} {}", GetParam().arguments,
      script("if [ $RANK = 0 ]; then printf one; sleep 1.5; echo two; else sleep 0.8; echo other; fi")));
  EXPECT_EQ(o.out, "[0] one\n[1] other\n[0] two\n");
}

TEST(LineSplitter, UnfinishedLineIsShownOnce) {
  LineSplitter s;
  std::string got;
  const auto take = [&](std::string_view line, std::size_t shown, LineEnd) {
    got += fmt::format("<{}|{}>", line.substr(0, shown), line.substr(shown));
  };
  const auto more = [&](std::string_view text) { got += fmt::format("({})", text); };
  s.partial(more);
  s.add("ab", take);
  EXPECT_TRUE(s.unfinished());
  s.partial(more);
  EXPECT_FALSE(s.unfinished());
  s.partial(more);
  s.add("c\nd", take);
  s.finish(take);
  EXPECT_EQ(got, "(ab)<ab|c><|d>");
}

TEST(Outlet, NeverBlocksAndReportsWhenItIsFull) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Fd read_end(ends[0]), write_end(ends[1]);
  auto outlet = Outlet::open(write_end.get());
  ASSERT_TRUE(outlet.ok()) << outlet.status().message();
  EXPECT_EQ(::fcntl(write_end.get(), F_GETFL) & O_NONBLOCK, 0) << "others share this description";
  const std::string line(999, 'x');
  std::size_t added = 0;
  while (!(*outlet)->full() && added < 4 * Outlet::kFull) {
    (*outlet)->add(line + "\n");
    added += 1000;
  }
  ASSERT_TRUE((*outlet)->full());
  EXPECT_GT((*outlet)->waiting(), Outlet::kFull);
  std::string got;
  for (char buffer[65536]; got.size() < added;) {
    const ssize_t n = ::read(read_end.get(), buffer, sizeof buffer);
    ASSERT_GT(n, 0);
    got.append(buffer, static_cast<std::size_t>(n));
  }
  EXPECT_EQ(got.size(), added);
  EXPECT_TRUE(eventually([&] { return (*outlet)->waiting() == 0 && !(*outlet)->full(); }));
  read_end.reset();
  (*outlet)->add("x");
  EXPECT_TRUE(eventually([&] { return (*outlet)->broken() == EPIPE; }));
}

}  // namespace
}  // namespace ouro::run
