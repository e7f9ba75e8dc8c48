// ouro-train's command line: converts words to options, and refuses words that have no meaning for the chosen
// strategy. Used by main.cc.
#pragma once
#include <optional>
#include <string>

#include "tools/train/options.h"
#include "tools/train/report.h"

namespace ouro::tools {

struct CommandLine {
  TrainOptions options;
  Outputs outputs;
  bool quiet = false;
  bool instead = false;  ///< standard output gets the content of a file instead of the last line
};

/// Holds the command line, or, after a message was printed (help, an error), the exit code.
struct Parsed {
  std::optional<CommandLine> line;
  int exit = 0;
};
Parsed parse_command_line(int argc, char** argv);

}  // namespace ouro::tools
