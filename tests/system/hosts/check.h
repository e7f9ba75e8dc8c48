// What ranks of several hosts do together and check exactly: every collective, every element type, and the
// bits of canonical reductions. Used by the program `hosts_rank`.
#pragma once
#include <cstdint>
#include <string>

#include "ouro/ouro.hpp"

namespace ouro::test {

/// Every collective by every algorithm that can serve, in every element type, with all roots, uneven counts,
/// in place. Returns what went wrong, or ""; `calls` counts.
std::string check_collectives(Context&, int* calls);

/// Messages between all pairs, each way, from one byte to several slots. Returns what went wrong, or "".
std::string check_messages(Context&);

/// Canonical reductions of numbers of many magnitudes, whose sums depend on the order. The hash is over all
/// outputs of this rank: it must be that of the same rank in any other placement of as many ranks.
Result<std::uint64_t> canonical_hash(Context&);

/// An all-reduce whose every element is checked. The error, or data-corrupt where it is wrong. `word` is an
/// integer below 2^15 of each rank; the sum comes back.
Status exact_all_reduce(Group&, std::size_t count, int word, int* sum);

}  // namespace ouro::test
