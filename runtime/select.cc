// The selection table. See select.h.
#include "runtime/select.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <vector>

namespace ouro::rt {
namespace {

using flow::Algorithm;

/// The first row that fits wins. `max_bytes` is of the unit: one rank's region, or one block.
struct Row {
  Collective collective;
  std::size_t max_bytes;
  Algorithm algorithm;
  const char* reason;
};
constexpr std::size_t kAny = ~std::size_t{0};
constexpr Row kTable[] = {
    {Collective::all_reduce, 16 << 10, Algorithm::oneshot,
     "small: one synchronisation, everyone reduces everything"},
    {Collective::all_reduce, kAny, Algorithm::direct,
     "one node: each rank reduces its slice from all boards"},
    {Collective::reduce_scatter, kAny, Algorithm::direct, "one node: read from all boards"},
    {Collective::all_gather, kAny, Algorithm::direct, "one node: read from all boards"},
    {Collective::broadcast, kAny, Algorithm::direct, "one node: all read the root's board"},
    {Collective::reduce, kAny, Algorithm::direct, "one node: the root reads all boards"},
    {Collective::gather, kAny, Algorithm::direct, "one node: the root reads all boards"},
    {Collective::scatter, kAny, Algorithm::direct, "one node: all read the root's board"},
    {Collective::all_to_all, kAny, Algorithm::direct, "one node: read from all boards"},
    {Collective::barrier, kAny, Algorithm::direct, "one node: all meet"},
};
constexpr std::size_t kInPlaceBytes = 32 << 10;  // below, asking costs more than it saves

/// Whether `a` can serve this call: it is in the list, keeps the numerics, and copes with uneven blocks
/// and, where input and output are the same memory, with that.
bool serves(const Operation& o, bool canonical, Algorithm a, bool aliased) {
  bool ok = false;
  flow::visit(o.collective, a, [&](auto f) {
    using Flow = decltype(f);
    ok = !(canonical && o.reduces() && !Flow::kCanonical);
    // Pages are cut into equal pieces and rounds are counted alike on all ranks: not known for uneven pairs.
    if (o.uneven && o.collective == Collective::all_to_all && Flow::kBoards) ok = false;
    // A block read in place is found by the size of one's own.
    if (o.uneven && Flow::kByReference) ok = false;
    if (!Flow::kInPlace && aliased) ok = false;
  });
  return ok;
}

}  // namespace

Result<Choice> select(const Operation& o, int rank, int size, bool canonical, const std::string& job_default,
                      bool explain) {
  const bool aliased = o.in.count > 0 && o.in.data == o.out.data;
  const auto finish = [&](Algorithm a, bool forced, const char* why) {
    Choice c{a, false, forced, {}};
    const std::size_t bytes = unit_count(o, rank, size) * size_of(o.dtype(rank));
    const bool asked_for = job_default == flow::name(Algorithm::inplace);
    c.try_in_place = size > 1 && !o.uneven && !forced && (bytes >= kInPlaceBytes || asked_for) &&
                     serves(o, canonical, Algorithm::inplace, false);  // aliasing ranks decline when asked
    if (explain)
      c.why = fmt::format("{} over shared-memory: {} ranks on one node, {} bytes; {}{}", flow::name(a), size,
                          bytes, why, c.try_in_place ? "; in place where all buffers are registered" : "");
    return c;
  };
  if (!o.algorithm.empty()) {
    const auto a = flow::parse_algorithm(o.algorithm);
    if (a && serves(o, canonical, *a, aliased)) return finish(*a, true, "forced by the caller");
    std::vector<std::string_view> names;
    for (int i = 0; flow::name(static_cast<Algorithm>(i)) != "?"; ++i)
      if (serves(o, canonical, static_cast<Algorithm>(i), aliased))
        names.push_back(flow::name(static_cast<Algorithm>(i)));
    return invalid(fmt::format("{}: algorithm '{}' cannot serve this call{}; these can: {}",
                               name(o.collective), o.algorithm, canonical ? " (canonical)" : "",
                               fmt::join(names, ", ")));
  }
  if (const auto a = flow::parse_algorithm(job_default);
      a && *a != Algorithm::inplace && serves(o, canonical, *a, aliased))
    return finish(*a, true, "OURO_ALGO");
  if (o.uneven && o.collective == Collective::all_to_all)
    return finish(Algorithm::pairwise, false, "uneven pairs");
  const std::size_t bytes = unit_count(o, rank, size) * size_of(o.dtype(rank));
  for (const Row& row : kTable)
    if (row.collective == o.collective && bytes <= row.max_bytes &&
        serves(o, canonical, row.algorithm, aliased))
      return finish(row.algorithm, false, row.reason);
  return unsupported(fmt::format("{}: no algorithm serves this call", name(o.collective)));
}

}  // namespace ouro::rt
