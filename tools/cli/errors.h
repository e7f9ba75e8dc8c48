// Error messages about a wrong command line: the same form in all programs, beginning with the program's
// name. Used by their parsers.
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <sstream>

#include "tools/cli/output.h"

namespace ouro::tools {

/// Formats the errors that CLI11 finds: "ouro-run: --ranks: ...", and where to find help. Programs use the
/// same form for errors that they find themselves.
inline void name_in_errors(CLI::App& app) {
  app.failure_message([](const CLI::App* a, const CLI::Error& e) {
    std::string asked = a->get_name();  // with the subcommand that has these options
    for (const CLI::App* sub : a->get_subcommands()) asked += " " + sub->get_name();
    return fmt::format("{}: {}\nTry: {} --help\n", a->get_name(), e.what(), asked);
  });
}

/// Prints what CLI11 reports instead of running the program, and returns the exit code: 0 after help or
/// version, 2 for a wrong command line. Use with run_program, which notices if the help text was lost.
inline int answer(const CLI::App& app, const CLI::ParseError& e) {
  std::ostringstream out, err;
  const int code = app.exit(e, out, err);
  print_text(out.str());
  complain_text(err.str());
  return code == 0 ? 0 : 2;
}

}  // namespace ouro::tools
