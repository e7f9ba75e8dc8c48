// The collectives that ouro-perf can time, with their names and bandwidth factors. Used by every file of
// ouro-perf and by its tests.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/core/collectives.h"
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
  const char* name;       ///< first argument of ouro-perf
  const char* program;    ///< name of the installed program that times only this collective
  Collective collective;  ///< none: a message
  bool reduces() const { return traits_of(collective).reduces(); }
  bool rooted() const { return traits_of(collective).rooted(); }
};

std::span<const KindInfo> all_kinds();
const KindInfo& info(Kind);
/// Parses a name, a program name (a path is allowed), or "all_to_all".
std::optional<Kind> parse_kind(std::string_view);

/// Number of elements on each side of one call. As in nccl-tests, the `size` of a row is the size of the
/// larger buffer.
struct Layout {
  std::size_t count = 0;  ///< as printed in the table: elements of the smaller buffer
  std::size_t in = 0;
  std::size_t out = 0;
  std::size_t bytes = 0;  ///< of the larger buffer
};
Layout layout(Kind, std::size_t size, std::size_t element_bytes, int ranks);

/// busbw / algbw: the share of the data that must cross a link in the best algorithm.
double bus_factor(Kind, int ranks);

/// The minimum memory traffic of one call over `ranks` ranks, with `bytes` of Layout: every input is read
/// once and every output is written once.
double least_memory_bytes(Kind, double bytes, int ranks);

}  // namespace ouro::perf
