// One rank of one launch: reads a list of points, times each with its peer, prints one JSON line for each
// point. Used by the main() of each peer; started by bench/compare.
#pragma once
#include <string>
#include <vector>

#include "bench/comparison/peer.h"

namespace ouro::compare {

/// Arguments: --points FILE --directory DIR --ranks N --cores 0,1 --seconds S --blocks B --block-ms MS
/// [--rank R] (without --rank: from the variables of mpirun). FILE has a line for each point: COLLECTIVE
/// BYTES ELEMENT BUFFER METHOD in|out [ALGORITHM]
int run_harness(int argc, char** argv, Peer&);

/// This process ends when its parent does, and after `seconds` in any case.
void die_with_parent(unsigned seconds);
std::vector<int> parse_cores(const std::string& list);  ///< "0,1"

}  // namespace ouro::compare
