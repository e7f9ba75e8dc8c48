// The table of collectives that ouro-perf times.
// Used by every file of ouro-perf and by its tests.
#include "tools/perf/collective.h"

#include <algorithm>

namespace ouro::perf {
namespace {

constexpr KindInfo kKinds[] = {
    {Kind::all_reduce, "all_reduce", "all_reduce_perf", Collective::all_reduce},
    {Kind::reduce, "reduce", "reduce_perf", Collective::reduce},
    {Kind::reduce_scatter, "reduce_scatter", "reduce_scatter_perf", Collective::reduce_scatter},
    {Kind::all_gather, "all_gather", "all_gather_perf", Collective::all_gather},
    {Kind::broadcast, "broadcast", "broadcast_perf", Collective::broadcast},
    {Kind::gather, "gather", "gather_perf", Collective::gather},
    {Kind::scatter, "scatter", "scatter_perf", Collective::scatter},
    {Kind::alltoall, "alltoall", "alltoall_perf", Collective::all_to_all},
    {Kind::sendrecv, "sendrecv", "sendrecv_perf", Collective::none},
};

}  // namespace

std::span<const KindInfo> all_kinds() { return kKinds; }

const KindInfo& info(Kind k) { return kKinds[static_cast<std::size_t>(k)]; }

std::optional<Kind> parse_kind(std::string_view text) {
  if (const auto slash = text.rfind('/'); slash != std::string_view::npos) text.remove_prefix(slash + 1);
  if (text == "all_to_all") return Kind::alltoall;
  for (const KindInfo& k : kKinds)
    if (text == k.name || text == k.program) return k.kind;
  return std::nullopt;
}

Layout layout(Kind kind, std::size_t size, std::size_t element_bytes, int ranks) {
  const CollectiveTraits traits = traits_of(info(kind).collective);
  const std::size_t whole = size / element_bytes, n = static_cast<std::size_t>(ranks), part = whole / n;
  Layout l;
  l.count = traits.blocks() ? part : whole;
  l.in = traits.in.many() ? part * n : l.count;
  l.out = traits.out.many() ? part * n : l.count;
  l.bytes = std::max(l.in, l.out) * element_bytes;
  return l;
}

double bus_factor(Kind kind, int ranks) {
  const double n = ranks;
  switch (kind) {
    case Kind::all_reduce:
      return 2 * (n - 1) / n;
    case Kind::reduce_scatter:
    case Kind::all_gather:
    case Kind::gather:
    case Kind::scatter:
    case Kind::alltoall:
      return (n - 1) / n;
    case Kind::reduce:
    case Kind::broadcast:
    case Kind::sendrecv:
      return 1;
  }
  return 1;
}

double least_memory_bytes(Kind kind, double bytes, int ranks) {
  const double n = ranks;
  switch (kind) {
    case Kind::all_reduce:
    case Kind::alltoall:
    case Kind::sendrecv:
      return 2 * n * bytes;
    case Kind::reduce:
    case Kind::reduce_scatter:
    case Kind::all_gather:
      return (n + 1) * bytes;
    case Kind::broadcast:
      return n * bytes;
    case Kind::gather:
    case Kind::scatter:
      return 2 * bytes;
  }
  return 0;
}

}  // namespace ouro::perf
