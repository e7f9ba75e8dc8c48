// ouro-run: starts N ranks of a program on this host. For users; everything it does is in launcher.h.
#include <CLI/CLI.hpp>
#include <iostream>

#include "tools/run/launcher.h"

namespace {
constexpr int kUsage = 2;
constexpr const char* kExamples = R"(Examples:
  ouro-run -n 4 ouro-train digits
  ouro-run -n 2 --timeout 60 python3 train.py --epochs 1
  ouro-run -n 8 --bind core ./my_program
  OURO_DEBUG=INFO ouro-run -n 2 ./my_program

--bind core gives each rank a core, neighbours in rank beside each other (with more ranks than cores they take
hardware threads in turn); cache: all cores that share the outermost cache; numa: those of a NUMA node, and its
memory; none: what the system chooses. All threads of a rank are bound with it: a program with streams or
threads of its own wants cache or numa. Only what this process's own affinity mask allows is used.

Each rank gets OURO_RANK, OURO_WORLD_SIZE, OURO_LOCAL_RANK, OURO_LOCAL_SIZE, OURO_JOB_ID and the variables of
torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ...). Rank 0 gets standard input unless that
is a terminal. If a rank fails, the others have a second to report and leave, then they are ended; the exit
code is that of the first rank that failed (128 + signal number if a signal killed it), 124 after a timeout,
127 if the program does not exist, 2 for wrong usage.)";
}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Starts N ranks of a program on this host and ends them all if one fails.", "ouro-run"};
  app.footer(kExamples);
  app.set_version_flag("--version", OURO_VERSION);
  ouro::run::RunOptions options;
  bool no_prefix = false;
  std::string bind;
  std::vector<std::string> program;
  app.add_option("-n,--ranks", options.ranks, "number of ranks")
      ->required()
      ->check(CLI::Range(1, ouro::run::kMaxRanks));
  app.add_option("--timeout", options.timeout_s, "end the job after this many seconds (default: never)")
      ->check(CLI::PositiveNumber);
  app.add_option("--bind", bind, "bind each rank: core, cache, numa or none (default: OURO_BIND, else none)");
  app.add_flag("--no-prefix", no_prefix, "do not put \"[rank] \" before each line of output");
  app.add_option("program", program, "the program and its arguments")->required();
  app.positionals_at_end();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsage;
  }
  options.prefix = !no_prefix;
  const auto chosen = ouro::rt::chosen_bind(bind);
  if (!chosen.ok()) {
    std::cerr << "ouro-run: " << chosen.status().failure()->text << "\n";
    return kUsage;
  }
  options.bind = *chosen;
  const ouro::Result<int> code = ouro::run::run_ranks(options, program);
  if (!code.ok()) {
    std::cerr << code.status().message() << "\n";
    return 1;
  }
  return *code;
}
