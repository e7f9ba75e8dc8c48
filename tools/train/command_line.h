// ouro-train's command line: words become options, and words without meaning for what was chosen are refused.
// Used by main.cc.
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
  bool instead = false;  ///< standard output has a file's text in place of the last line
};

/// Or, after saying why (help, an error), the exit code.
struct Parsed {
  std::optional<CommandLine> line;
  int exit = 0;
};
Parsed parse_command_line(int argc, char** argv);

}  // namespace ouro::tools
