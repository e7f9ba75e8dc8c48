// How programs speak of a wrong command line: all alike, with their name in front. Used by their parsers.
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <sstream>

#include "tools/cli/output.h"

namespace ouro::tools {

/// Of what CLI11 finds: "ouro-run: --ranks: ...", and where help is. Programs word what they find themselves
/// so, too.
inline void name_in_errors(CLI::App& app) {
  app.failure_message([](const CLI::App* a, const CLI::Error& e) {
    std::string asked = a->get_name();  // with the subcommand whose options these are
    for (const CLI::App* sub : a->get_subcommands()) asked += " " + sub->get_name();
    return fmt::format("{}: {}\nTry: {} --help\n", a->get_name(), e.what(), asked);
  });
}

/// Prints what CLI11 has to say in place of a run, and returns the exit code: 0 after help or version, 2 for
/// a wrong command line. Goes with run_program, which notices if help was lost.
inline int answer(const CLI::App& app, const CLI::ParseError& e) {
  std::ostringstream out, err;
  const int code = app.exit(e, out, err);
  print_text(out.str());
  complain_text(err.str());
  return code == 0 ? 0 : 2;
}

}  // namespace ouro::tools
