// The exploring program: runs litmus tests of the engine, explores protocols and the faults that must be
// found in them, and repeats single executions. Used by ctest and tools/gate explore.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "tests/explore/engine/explore.h"
#include "tests/explore/litmus.h"
#include "tests/explore/report.h"

namespace explore {
namespace {

constexpr const char* kUsage = R"(Usage: explore COMMAND [OPTIONS]

litmus                   litmus tests of the engine: all executions, those left by partial-order reduction, and random
                         ones have exactly the outcomes that C++20 allows
protocols                explores each protocol, exhaustively where its bounds allow, then at random; then plants each
                         of its faults, and all must be found
list                     protocols and their faults
orders                   weakens each acquire and release of the library to relaxed, place by place, and says which of
                         the protocols find it; the places that none finds
sites NAME               atomic operations that a protocol comes to, by place in the source
repeat NAME CHOICES      one execution, step by step; CHOICES as printed with a violation

  --only TEXT            protocols, orders: protocols whose name begins so
  --executions N         protocols, orders: bound of each search (default 250000)
  --minutes M            protocols, on top: M minutes of random executions, shared by them; --seed S is their first seed
  --random               protocols: random executions only
  --fault N              repeat: with the N-th fault of the protocol, from 1

Exit code: 0 all as it must be, 1 a violation, or a fault that was not found, 2 wrong usage.
)";

[[noreturn]] void wrong(const std::string& what) {
  std::fprintf(stderr, "explore: %s; see --help\n", what.c_str());
  std::exit(2);
}

std::uint64_t number(const char* option, const char* text) {
  char* end = nullptr;
  const std::uint64_t n = text ? std::strtoull(text, &end, 10) : 0;
  if (!text || end == text || *end || *text == '-') wrong(std::string(option) + " needs a number");
  return n;
}

/// Ends the program if the command does not use the option.
void check_use(std::string_view command, std::string_view option) {
  const bool protocols = command == "protocols";
  const bool bounds = option == "--only" || option == "--executions";
  const bool random = option == "--minutes" || option == "--seed" || option == "--random";
  const bool used = option == "--fault" ? command == "repeat"
                    : bounds            ? protocols || command == "orders"
                    : random            ? protocols
                                        : true;
  if (!used) wrong(std::string(command) + " takes no " + std::string(option));
}

int main_of(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "-h" || command == "--help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  if (command.empty()) wrong("no command");
  Settings settings;
  std::vector<const char*> names;
  for (int i = 2; i < argc; ++i) {
    const std::string_view a = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
    check_use(command, a);
    if (a == "--only") {
      if (!value) wrong("--only needs a name");
      settings.only = value, ++i;
    } else if (a == "--executions") {
      settings.executions = number("--executions", value), ++i;
    } else if (a == "--minutes") {
      settings.minutes = number("--minutes", value), ++i;
    } else if (a == "--seed") {
      settings.seed = number("--seed", value), ++i;
    } else if (a == "--fault") {
      settings.fault = number("--fault", value), ++i;
    } else if (a == "--random") {
      settings.random_only = true;
    } else if (a.starts_with("-")) {
      wrong("unknown option " + std::string(a));
    } else {
      names.push_back(argv[i]);
    }
  }
  if (command == "litmus" && names.empty()) return run_litmus();
  if (command == "protocols" && names.empty()) return run_protocols(settings);
  if (command == "list" && names.empty()) return list_protocols();
  if (command == "orders" && names.empty()) return weaken_orders(settings);
  if (command == "sites" && names.size() == 1) return list_sites(names[0]);
  if (command == "repeat" && names.size() == 2) return repeat(names[0], names[1], settings);
  wrong("unknown command, or not its arguments: " + std::string(command));
}

}  // namespace
}  // namespace explore

int main(int argc, char** argv) { return explore::main_of(argc, argv); }
