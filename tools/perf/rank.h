// The program of one rank: gathers facts about the ranks, runs the table, reports. Rank 0 prints. Used by
// main.cc, once in a process or once in each thread.
#pragma once
#include "ouro/ouro.hpp"
#include "tools/perf/options.h"

namespace ouro::perf {

/// Returns the exit code: 0 good, 1 wrong results, too slow, or a failure, which is printed on stderr.
int run_rank(const Options&, const Split&, Context&);

/// Prints remarks about the rows: with the table on stdout, with CSV on stderr, and with JSON not at all.
void say(const Options&, const std::string& words);

}  // namespace ouro::perf
