// What ouro-perf can time: the collectives, their names, shapes and bandwidth factors.
// Used by every file of ouro-perf and by its tests.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/core/types.h"

namespace ouro::perf {

enum class Kind {
  all_reduce,
  reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  gather,
  scatter,
  alltoall,
  sendrecv
};

struct KindInfo {
  Kind kind;
  const char* name;     ///< first argument of ouro-perf
  const char* program;  ///< the same by argv[0]
  Collective collective;
  bool reduces;
  bool rooted;
};

std::span<const KindInfo> all_kinds();
const KindInfo& info(Kind);
/// By name, by program name (a path is allowed), or by "all_to_all".
std::optional<Kind> parse_kind(std::string_view);

/// Elements on each side of one call. A row of `size` bytes follows nccl-tests: size is the larger buffer.
struct Layout {
  std::size_t count = 0;  ///< what the table prints: elements of the smaller buffer
  std::size_t in = 0;
  std::size_t out = 0;
  std::size_t bytes = 0;  ///< of the larger buffer
};
Layout layout(Kind, std::size_t size, std::size_t element_bytes, int ranks);

/// busbw / algbw: the share of the data that has to cross a link in the best algorithm.
double bus_factor(Kind, int ranks);

/// Least bytes that must cross memory for one call over `ranks` ranks, `bytes` of Layout: every input is read
/// once and every output written once.
double least_memory_bytes(Kind, double bytes, int ranks);

}  // namespace ouro::perf
