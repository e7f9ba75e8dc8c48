// The simulating program: runs each seed in a process of its own, so that no seed is affected by another.
// Used by ctest and tools/gate simulate.
#include <fmt/format.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/simulate/job/run.h"
#include "tests/simulate/planted.h"
#include "tools/cli/errors.h"
#include "tools/cli/output.h"

namespace simulate {
namespace {

namespace cli = ouro::tools;

struct Options {
  std::uint64_t first = 1, seeds = 1000, most_failed = 10, minutes = 0;
  int fault = 0;
  bool trace = false, twice = false, faults = false, known = false;
};

struct Totals {
  std::uint64_t seeds = 0, events = 0, calls = 0, failed_calls = 0, shrinks = 0, failed = 0, most_kib = 0;
  std::uint64_t digest = 0;
  double seconds = 0;
};

/// The output of a seed's process: numbers, then what is wrong.
std::string packed(const Outcome& o) {
  return fmt::format("{} {} {} {} {} {} {:.6f}\n{}", o.digest, o.events, o.calls, o.failed_calls, o.shrinks,
                     o.connections, o.seconds, o.wrong);
}

Outcome unpacked(const std::string& said, int status) {
  Outcome o;
  int length = 0;
  const bool whole =
      std::sscanf(said.c_str(), "%lu %lu %lu %lu %lu %lu %lf%n", &o.digest, &o.events, &o.calls,
                  &o.failed_calls, &o.shrinks, &o.connections, &o.seconds, &length) == 7;
  if (whole) o.wrong = said.substr(static_cast<std::size_t>(length) + 1);
  if (!whole || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    o.wrong += fmt::format("  the process of this seed ended by {} {}\n",
                           WIFSIGNALED(status) ? "signal" : "exit code",
                           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  return o;
}

/// Processor seconds after which a seed counts as never ending.
constexpr rlim_t kMostSeconds = 60;

Outcome run_apart(std::uint64_t seed, bool trace, std::uint64_t* most_kib) {
  int ends[2];
  if (pipe(ends) != 0) return {.wrong = "  no pipe\n"};
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const rlimit limit{kMostSeconds, kMostSeconds};
    setrlimit(RLIMIT_CPU, &limit);
    const int lost = cli::write_all(ends[1], packed(run(seed, trace)));
    _exit(lost == 0 ? 0 : 1);
  }
  close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  rusage used{};
  if (child < 0 || wait4(child, &status, 0, &used) != child) return {.wrong = "  no process\n"};
  *most_kib = std::max(*most_kib, static_cast<std::uint64_t>(used.ru_maxrss));
  return unpacked(said, status);
}

/// Runs seeds until there are enough; prints each that fails.
Totals run_seeds(const Options& o, bool quiet) {
  Totals t;
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(o.minutes);
  for (std::uint64_t seed = o.first; seed < o.first + o.seeds && t.failed < o.most_failed; ++seed) {
    if (o.minutes > 0 && std::chrono::steady_clock::now() > end) break;
    Outcome one = run_apart(seed, o.trace, &t.most_kib);
    if (o.twice && one.wrong.empty())
      if (const Outcome again = run_apart(seed, false, &t.most_kib); again.digest != one.digest)
        one.wrong = fmt::format("  its log of events has the hash {:016x}, and {:016x} when it runs again\n",
                                one.digest, again.digest);
    ++t.seeds;
    t.events += one.events, t.calls += one.calls, t.failed_calls += one.failed_calls,
        t.shrinks += one.shrinks;
    t.seconds += one.seconds;
    t.digest = (t.digest ^ one.digest) * 0x100000001b3;
    if (o.trace) cli::print("seed {}: {} events, hash {:016x}\n", seed, one.events, one.digest);
    if (one.wrong.empty()) continue;
    ++t.failed;
    if (!quiet) cli::print("seed {} FAILED, hash {:016x}\n{}", seed, one.digest, one.wrong);
  }
  return t;
}

int simulate_job(const Options& o) {
  const auto start = std::chrono::steady_clock::now();
  const Totals t = run_seeds(o, false);
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  cli::print(
      "{} seeds from {}: {} events, {:.0f} simulated seconds in {:.1f} s ({:.0f} a second); {} calls, {} of "
      "them failed, "
      "{} groups of survivors; at most {} MiB a seed; hash {:016x}; {} seeds failed\n",
      t.seeds, o.first, t.events, t.seconds, took, t.seconds / took, t.calls, t.failed_calls, t.shrinks,
      t.most_kib >> 10, t.digest, t.failed);
  return t.failed == 0 ? 0 : 1;
}

/// Each fault with a known seed must be found, by that seed or within the given number of seeds. Other faults
/// are searched for, unless only the `known` ones are requested, and the output says whether they were found.
int find_faults(const Options& asked) {
  if (faults().empty()) {
    cli::complain("simulate: no faults are planted in this program; simulate_faults has them\n");
    return 2;
  }
  int missed = 0;
  for (std::size_t i = 0; i < faults().size(); ++i) {
    planted = static_cast<int>(i) + 1;
    Options o = asked;
    o.most_failed = 1;
    Totals t;
    const std::uint64_t known = faults()[i].seed;
    if (known == 0 && asked.known) continue;
    if (known > 0) {
      o.first = known, o.seeds = 1;
      t = run_seeds(o, true);
    }
    if (t.failed == 0) {
      o.first = asked.first, o.seeds = asked.seeds;
      t = run_seeds(o, true);
    }
    missed += t.failed == 0 && known > 0;
    cli::print("{:>2} {}: {} {}\n", planted, faults()[i].what,
               t.failed > 0 ? "found by seed" : "NOT FOUND within",
               t.failed > 0 ? o.first + t.seeds - 1 : t.seeds);
  }
  return missed == 0 ? 0 : 1;
}

int run_program(int argc, char** argv) {
  CLI::App app{"Runs jobs of several hosts in one thread and in virtual time, one for each seed."};
  app.name("simulate");
  cli::name_in_errors(app);
  Options o;
  app.add_option("--seeds", o.seeds, "how many")
      ->check(CLI::Range(1ul, 1'000'000'000ul))
      ->capture_default_str();
  app.add_option("--first", o.first, "the first of them")
      ->check(CLI::Range(0ul, 1ul << 62))
      ->capture_default_str();
  app.add_option("--minutes", o.minutes, "end after so many, if all seeds take longer (0: no limit)")
      ->check(CLI::Range(0ul, 1440ul));
  app.add_option("--most-failed", o.most_failed, "end after so many seeds that failed")
      ->check(CLI::Range(1ul, 1'000'000'000ul))
      ->capture_default_str();
  app.add_option("--fault", o.fault, "with this fault planted, as --faults counts them")
      ->check(CLI::Range(0, static_cast<int>(faults().size())));
  app.add_flag("--faults", o.faults, "plants each fault in turn, to be found within the seeds");
  app.add_flag("--known", o.known, "with --faults: only those that a seed is known for");
  app.add_flag("--twice", o.twice, "runs each seed twice: it must do the same");
  app.add_flag("--trace", o.trace, "prints the log of events to standard error");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return cli::answer(app, e);
  }
  planted = o.fault;
  // The library's log becomes part of the log of events.
  setenv("OURO_DEBUG", o.trace ? "INFO" : "VERSION", 1);
  setenv("OURO_DEBUG_SUBSYS", "ALL", 1);
  setenv("OURO_DEBUG_FILE", o.trace ? "/dev/stderr" : "/dev/null", 1);
  (void)run(0, false);  // initialises everything that a process makes once, so that seeds do not repeat it
  return o.faults ? find_faults(o) : simulate_job(o);
}

}  // namespace
}  // namespace simulate

int main(int argc, char** argv) {
  // Without address randomisation, because addresses decide the order of some containers: it must be the same
  // in each run.
  const int now = personality(0xffffffff);
  if (now >= 0 && (now & ADDR_NO_RANDOMIZE) == 0 &&
      personality(static_cast<unsigned>(now) | ADDR_NO_RANDOMIZE) >= 0)
    execv("/proc/self/exe", argv);
  return ouro::tools::run_program("simulate", [&] { return simulate::run_program(argc, argv); });
}
