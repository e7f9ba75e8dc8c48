// The JSON document of -J and --json: the keys of nccl-tests (version 3) and further ones. Used by rank 0 of
// the rank program and by the tests.
#pragma once
#include <span>
#include <string>

#include "runtime/core/status.h"
#include "tools/perf/stats.h"

namespace ouro::perf {

struct RunFacts {
  std::string start_time, end_time, version;
  std::span<const RankInfo> ranks;
  int group_size = 1;
  double copy_bandwidth = 0;  ///< GB/s; 0: not measured
};
/// Booleans are written as the strings "true" and "false", as parsers of nccl-tests expect.
std::string json_document(const Options&, std::span<const Row>, const Summary&, const RunFacts&);

}  // namespace ouro::perf
