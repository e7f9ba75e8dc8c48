// Sentences about a finished run: whether it was right, how fast it was, and how close to what the memory can
// do; and its plot. Used by rank 0 of the rank program and by the tests.
#pragma once
#include <span>
#include <string>

#include "tools/perf/stats.h"

namespace ouro::perf {

struct Ceiling {
  double copy_gbs = 0;  ///< of all ranks together, with reads and writes counted, measured in the same run
  std::size_t copy_bytes = 0;  ///< size of the buffer that was copied
  int group_size = 1;
  int groups = 1;           ///< groups that ran at the same time
  int cpus = 1;             ///< processors of this host
  double others_share = 0;  ///< share of the processors that programs other than the ranks took, 0 to 1
  int gpus = 0;  ///< GPUs that hold the buffers, and inside each of which the copy was made; 0: the buffers
                 ///< are on the host
};
std::string verdict(const Options&, std::span<const Row>, const Summary&, const Ceiling&);

/// For runs on GPUs, for each row: the minimum memory traffic of all ranks together, the time that the copy
/// needs for as many bytes, and the ratio of this time to the measured one. Links between GPUs do not count.
std::string limit_lines(const Options&, std::span<const Row>, const Ceiling&);

/// An SVG of bus bandwidth over size, with one line for each type, operation, root and side. The scale is
/// logarithmic if a linear one would hide the small sizes.
std::string plot_svg(const Options&, std::span<const Row>);

}  // namespace ouro::perf
