// Words about a finished run: was it right, how fast, how near to what the memory can do. And its picture.
// Used by rank 0 of the rank program and by the tests.
#pragma once
#include <span>
#include <string>

#include "tools/perf/stats.h"

namespace ouro::perf {

struct Ceiling {
  double copy_gbs = 0;         ///< all ranks together, reads and writes counted, measured in the same run
  std::size_t copy_bytes = 0;  ///< of the buffer that was copied
  int group_size = 1;
  int groups = 1;           ///< that ran at the same time
  int cpus = 1;             ///< of this host
  double others_share = 0;  ///< of the processors that programs other than the ranks took, 0 to 1
  int gpus = 0;             ///< that hold the buffers; 0: the host does. The copy is then inside each of them
};
std::string verdict(const Options&, std::span<const Row>, const Summary&, const Ceiling&);

/// For runs on GPUs: of each row, the least bytes that all ranks together have to move in memory, the time
/// that the copy needs for as many, and its share of the time that was measured. Links between GPUs do not
/// count.
std::string limit_lines(const Options&, std::span<const Row>, const Ceiling&);

/// An SVG with bus bandwidth over size, one line for each type, operation, root and side. The scale is
/// logarithmic where a linear one would hide the small sizes.
std::string plot_svg(const Options&, std::span<const Row>);

}  // namespace ouro::perf
