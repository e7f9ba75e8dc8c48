// The program of one rank: announces itself, runs the table, reports. Rank 0 prints.
// Used by main.cc, once in a process or once in each thread.
#pragma once
#include "ouro/ouro.hpp"
#include "tools/perf/options.h"

namespace ouro::perf {

/// The exit code: 0 good, 1 wrong results, too slow, or a failure, which is printed on stderr.
int run_rank(const Options&, const Split&, Context&);

/// Prints what is said about the rows: beside the table on stdout, beside CSV on stderr, and beside JSON
/// nowhere.
void say(const Options&, const std::string& words);

}  // namespace ouro::perf
