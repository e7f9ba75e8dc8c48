// The program of one rank for --tune: times every algorithm in turn, prints the figures, writes the rules.
// Used by main.cc, in place of the rank program.
#pragma once
#include "ouro/ouro.hpp"
#include "tools/perf/options.h"

namespace ouro::perf {

/// Returns the exit code: 0 rules written, 1 wrong results or a failure, which is printed on stderr.
int run_tune(const Options&, const Split&, Context&);

}  // namespace ouro::perf
