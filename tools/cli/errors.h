// How programs speak of a wrong command line: all alike, with their name in front. Used by their parsers.
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>

namespace ouro::tools {

/// Of what CLI11 finds: "ouro-run: --ranks: ...", and where help is. Programs word what they find themselves
/// so, too.
inline void name_in_errors(CLI::App& app) {
  app.failure_message([](const CLI::App* a, const CLI::Error& e) {
    return fmt::format("{0}: {1}\nTry: {0} --help\n", a->get_name(), e.what());
  });
}

}  // namespace ouro::tools
