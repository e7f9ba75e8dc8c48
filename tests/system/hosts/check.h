// Exact checks that ranks of several hosts perform together: every collective, every element type, and the
// bits of canonical reductions. Used by the program `hosts_rank`.
#pragma once
#include <cstdint>
#include <string>

#include "ouro/ouro.hpp"

namespace ouro::test {

/// Checks every collective with every algorithm that can serve it, in every element type, with all roots,
/// uneven counts, and in place. Returns what went wrong, or ""; `calls` counts the calls.
std::string check_collectives(Context&, int* calls);

/// Checks messages between all pairs, in both directions, from one byte to several slots. Returns what went
/// wrong, or "".
std::string check_messages(Context&);

/// Runs canonical reductions of numbers of many magnitudes, whose sums depend on the order. Returns a
/// hash over all outputs of this rank, which must equal that of the same rank in any other placement of
/// as many ranks.
Result<std::uint64_t> canonical_hash(Context&);

/// Runs an all-reduce and checks every element. Returns its error, or data-corrupt if the result is wrong.
/// `word` is an integer below 2^15 of each rank; *sum is the sum of all words.
Status exact_all_reduce(Group&, std::size_t count, int word, int* sum);

}  // namespace ouro::test
