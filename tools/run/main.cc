// ouro-run: starts N ranks of a program, on this host or on several. A program for users; launcher.h
// describes what it does.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <numeric>
#include <string_view>

#include "runtime/context/faults.h"
#include "runtime/core/fd.h"
#include "runtime/core/file_size.h"
#include "tools/cli/errors.h"
#include "tools/run/agent.h"
#include "tools/run/hosts.h"
#include "tools/run/launcher.h"
#include "tools/run/preload.h"

namespace {
constexpr int kUsage = 2;
constexpr const char* kExamples = R"(Examples:
  ouro-run -n 4 ouro-train digits
  ouro-run -n 2 --timeout 60 python3 train.py --epochs 1
  ouro-run -n 8 --bind core ./my_program
  OURO_DEBUG=INFO ouro-run -n 2 ./my_program
  ouro-run -H node1:4,node2:4 -n 8 ./my_program
  ouro-run --hostfile hosts -x LD_LIBRARY_PATH ./my_program
  ouro-run -H lab-0,lab-1 --launch-agent 'ip netns exec {host}' -n 2 ./my_program

--bind core gives each rank a core, neighbours in rank on adjacent cores (with more ranks than cores they take
hardware threads in turn); cache: all cores that share the outermost cache; numa: those of a NUMA node, and its
memory; none: what the system chooses. All threads of a rank are bound with it: a program with streams or
threads of its own wants cache or numa. Only what this process's own affinity mask allows is used.

With -H or --hostfile ranks fill the slots of the hosts in order (without -n, all of them). A host that is named
without a number has one slot, or, with -n, an even share of the ranks that are left over. On each host an agent,
ouro-run under the same path as here, starts the ranks, in the directory of the same name. By default ssh starts the
agent; it must not ask for a password. Another command may, in which {host} is the host's name; '' is none: every
"host" is this one. Ranks on all hosts get the OURO_* variables of this process and what -x names, and an empty
standard input. They meet (OURO_RENDEZVOUS, MASTER_ADDR) at an address of the first host: the one from which its route
to the second host starts, or another of its interfaces (OURO_SOCKET_IFNAME chooses); the first that all hosts have
reached when asked. They prove to be of the job by a random secret (OURO_SECRET_FILE), which no command line and no
environment shows.

Each rank gets OURO_RANK, OURO_WORLD_SIZE, OURO_LOCAL_RANK, OURO_LOCAL_SIZE, OURO_JOB_ID and the variables of
torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ...). Rank 0 gets standard input unless that
is a terminal. If a rank fails, the others have a second to report and leave, then they are ended; the exit
code is that of the first rank that failed (128 + signal number if a signal killed it), 124 after a timeout,
127 if the program does not exist, 2 for wrong usage, 1 if output cannot be written.

SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to all ranks and end the job (a second one kills it);
SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are passed on, too, and the job continues. Signals that ouro-run was
started to ignore (nohup) are ignored.)";
/// Adds NAME or NAME=VALUE for the ranks on all hosts. False if NAME has no value in this process.
bool set_variable(ouro::Environment& variables, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0) {
    variables[text.substr(0, equals)] = text.substr(equals + 1);
    return true;
  }
  const ouro::Environment mine = ouro::process_environment();
  const auto it = mine.find(text);
  if (it == mine.end()) return false;
  variables[text] = it->second;
  return true;
}

/// The name of a variable given by -x that the launcher sets for every rank itself, so that the given value
/// would be lost; "": there is none.
std::string set_by_itself(const ouro::run::RunOptions& options) {
  ouro::Environment own = ouro::run::rank_environment({}, {});
  own["OURO_ROLL"] = "";
  if (!options.hosts.empty())
    for (const char* name : {"OURO_SECRET", "OURO_SECRET_FILE", "OURO_HOSTID", "OURO_RENDEZVOUS"})
      own[name] = "";
  for (const auto& [name, value] : options.extra)
    if (own.contains(name)) return name;
  return "";
}

/// Appends the faults of --fault to those of OURO_FAULT, for all ranks. Errors: invalid, if a fault is not
/// possible in this job.
ouro::Status set_faults(ouro::Environment& variables, const std::vector<std::string>& faults, int ranks,
                        std::size_t hosts) {
  if (faults.empty()) return {};
  for (const std::string& f : faults) {
    OURO_ASSIGN(const auto parsed, ouro::rt::parse_faults(f, "--fault"));
    OURO_TRY(ouro::rt::check_faults(parsed, ranks, hosts > 1, "--fault"));
    if (parsed.empty()) return ouro::invalid("--fault: expected a fault, as kill:rank=2,op=100");
  }
  const char* const outside = std::getenv("OURO_FAULT");
  const std::string before = variables.contains("OURO_FAULT") ? variables["OURO_FAULT"]
                             : outside                        ? outside
                                                              : "";
  variables["OURO_FAULT"] = fmt::format("{}{}{}", before, before.empty() ? "" : ";", fmt::join(faults, ";"));
  return {};
}

int usage(const std::string& text) {
  std::cerr << "ouro-run: " << text << "\n";
  return kUsage;
}
}  // namespace

int main(int argc, char** argv) {
  ouro::occupy_standard_descriptors();
  ouro::block_file_size_signal();  // a file that grows too large is an error
  if (argc == 2 && std::string_view(argv[1]) == ouro::run::kAgentCommand) return ouro::run::agent_main();
  CLI::App app{"Starts N ranks of a program, on this host or on several, and ends them all if one fails.",
               "ouro-run"};
  app.footer(kExamples);
  ouro::tools::name_in_errors(app);
  app.set_version_flag("--version", OURO_VERSION);
  ouro::run::RunOptions options;
  bool no_prefix = false, nccl = false;
  std::string bind, hosts, hostfile;
  std::vector<std::string> program, variables, faults;
  CLI::Option* ranks =
      app.add_option("-n,--ranks", options.ranks, "number of ranks")->check(CLI::Range(1, ouro::kMaxRanks));
  CLI::Option* list = app.add_option("-H,--hosts", hosts, "hosts and their slots: a:2,b,[fd77::1]:4");
  app.add_option("--hostfile", hostfile, "the same from a file, a line each: a:2, or a slots=2")
      ->excludes(list);
  CLI::Option* agent =
      app.add_option("--launch-agent", options.agent, "command that runs a command on {host}")
          ->capture_default_str();
  app.add_option("-x,--export", variables, "variable for the ranks: NAME or NAME=VALUE; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--fault", faults,
                 "a fault that a rank brings upon itself, as OURO_FAULT: kill:rank=2,op=100; may be repeated")
      ->allow_extra_args(false);
  CLI::Option* timeout =
      app.add_option("--timeout", options.timeout_s, "end the job after so many seconds (default: never)");
  app.add_option("--bind", bind, "bind each rank: core, cache, numa or none (default: OURO_BIND, else none)");
  app.add_flag("--no-prefix", no_prefix, "do not put \"[rank] \" before each line of output");
  app.add_flag("--nccl", nccl,
               "preload ouro's libnccl.so.2 into the ranks: programs written for NCCL run on ouro");
  app.add_option("program", program, "the program and its arguments")->required();
  app.positionals_at_end();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsage;
  }
  options.prefix = !no_prefix;
  if (*timeout &&
      !(options.timeout_s >= ouro::run::kMinTimeout && options.timeout_s <= ouro::run::kMaxTimeout))
    return usage(
        fmt::format("--timeout: expected {} to {} seconds", ouro::run::kMinTimeout, ouro::run::kMaxTimeout));
  if (*agent && hosts.empty() && hostfile.empty())
    return usage("--launch-agent: no hosts; say which with -H");
  if (const ouro::Status ok = ouro::run::check_agent(options.agent); !ok.ok())
    return usage(ok.failure()->text);
  for (const std::string& v : variables)
    if (!set_variable(options.extra, v)) return usage("-x " + v + ": not set here, and no NAME=VALUE");
  if (nccl) {
    const char* const before = options.extra.contains("LD_PRELOAD") ? options.extra["LD_PRELOAD"].c_str()
                                                                    : std::getenv("LD_PRELOAD");
    auto preload = ouro::run::preload_nccl(before ? before : "");
    if (!preload.ok()) return usage("--nccl: " + preload.status().failure()->text);
    options.extra["LD_PRELOAD"] = *preload;
  }
  if (!hosts.empty() || !hostfile.empty()) {
    auto parsed = hosts.empty() ? ouro::run::read_hostfile(hostfile) : ouro::run::parse_hosts(hosts);
    if (!parsed.ok()) return usage(parsed.status().failure()->text);
    options.hosts = std::move(*parsed);
    const auto slots = [](int sum, const ouro::run::Host& h) { return sum + h.slots; };
    if (!*ranks) options.ranks = std::accumulate(options.hosts.begin(), options.hosts.end(), 0, slots);
    if (const auto placed = ouro::run::place(options.hosts, options.ranks); !placed.ok())
      return usage(placed.status().failure()->text);
  } else if (!*ranks) {
    return usage("say how many ranks with -n, or on which hosts with -H");
  }
  if (const std::string name = set_by_itself(options); !name.empty())
    return usage(fmt::format("-x {}: ouro-run sets it for each rank", name));
  if (const ouro::Status ok = set_faults(options.extra, faults, options.ranks, options.hosts.size());
      !ok.ok())
    return usage(ok.failure()->text);
  const auto chosen = ouro::rt::chosen_bind(bind);
  if (!chosen.ok()) return usage(chosen.status().failure()->text);
  options.bind = *chosen;
  const ouro::Result<int> code = ouro::run::run_ranks(options, program);
  if (!code.ok()) {
    std::cerr << code.status().message() << "\n";
    return 1;
  }
  return *code;
}
