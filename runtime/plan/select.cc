// Selection by the table of rules. See select.h.
#include "runtime/plan/select.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "kernels/flow/list.h"
#include "runtime/plan/cost.h"

namespace ouro::rt {
namespace {

using flow::Algorithm;

/// The abilities of the flow of a (collective, algorithm).
struct Ability {
  bool exists = false, canonical = false, staging = false, by_reference = false, in_place = false,
       in_line = false, switched = false;
};
struct Abilities {
  Ability of[kCollectives][flow::kAlgorithms];
};
constexpr Abilities list_abilities() {
  Abilities all;
#define OURO_X(c, a, F)                                                                             \
  all.of[static_cast<int>(Collective::c)][static_cast<int>(Algorithm::a)] = {true,                  \
                                                                             flow::F::kCanonical,   \
                                                                             flow::F::kStaging,     \
                                                                             flow::F::kByReference, \
                                                                             flow::F::kInPlace,     \
                                                                             flow::F::kInline,      \
                                                                             flow::F::kSwitched};
  OURO_FLOWS(OURO_X)
#undef OURO_X
  return all;
}
constexpr Abilities kAbilities = list_abilities();
const Ability& ability(Collective c, Algorithm a) {
  return kAbilities.of[static_cast<int>(c)][static_cast<int>(a)];
}

/// The flow of a collective that has only one, so that there is no choice.
std::optional<Algorithm> only_flow(Collective c) {
  std::optional<Algorithm> only;
  for (int i = 0; i < flow::kAlgorithms; ++i) {
    const auto a = static_cast<Algorithm>(i);
    if (!ability(c, a).exists) continue;
    if (only) return std::nullopt;
    only = a;
  }
  return only;
}

}  // namespace

std::size_t unit_bytes(const Operation& o, int rank, int size) {
  std::size_t count = 0;
  if (!o.uneven) {
    count = unit_count(o, rank, size);
  } else if (!o.uneven_pairs()) {
    const auto counts = o.shared_counts();
    count = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  }
  return count * size_of(o.dtype(rank));
}

/// An algorithm can serve a call if it is in the list, keeps the numerics, and supports uneven blocks and
/// aliased buffers where the call has them.
const char* Selector::obstacle(const Operation& o, std::size_t bytes, bool canonical, Algorithm algorithm,
                               bool aliased) const {
  const Ability& a = ability(o.collective, algorithm);
  if (!a.exists) return "the collective has no such algorithm";
  if (a.switched && !on_device(o))
    return "a switch between GPUs carries it out, and this is memory of the host";
  if (canonical && o.reduces() && !a.canonical) return "it does not reduce in rank order (canonical)";
  if (aliased && !a.in_place) return "input and output are the same memory";
  if (hosts_ > 1 && a.staging)
    return "the group's ranks are on several hosts, which share no staging buffers";
  if (hosts_ == 1 && flow::between_hosts(algorithm)) return "the group's ranks are on one host";
  if (!o.segments.empty() && (!a.staging || a.by_reference || a.in_line))
    return "it does not carry out several operations as one";
  static_assert(Arrival::kInline == 56);
  if (a.in_line && bytes > Arrival::kInline) return "more than 56 bytes do not fit into an arrival record";
  // Staging buffers need equal pieces and the same number of rounds on all ranks, which uneven pairs do not
  // have. Flows by reference compute the position of a peer's block from the size of their own.
  if (o.uneven && (a.by_reference || (a.staging && o.uneven_pairs()))) return "its blocks are uneven";
  return nullptr;
}

Status Selector::refuse(const std::string& forced, const char* why, const Operation& o, std::size_t bytes,
                        bool canonical, bool aliased) const {
  std::vector<std::string_view> able;
  for (int i = 0; i < flow::kAlgorithms; ++i)
    if (const auto a = static_cast<Algorithm>(i); serves(o, bytes, canonical, a, aliased))
      able.push_back(flow::name(a));
  return invalid(fmt::format("{}: {} cannot serve this call: {}; these can: {}", name(o.collective), forced,
                             why, fmt::join(able, ", ")));
}

/// With one rank all algorithms are equivalent, so one for several hosts must not cause an error. A flow
/// through a switch between GPUs is not forced on memory of the host.
bool Selector::forces(const Operation& o) const {
  return job_algorithm_ && ability(o.collective, *job_algorithm_).exists &&
         !(size_ == 1 && flow::between_hosts(*job_algorithm_)) &&
         (on_device(o) || !flow::switched(*job_algorithm_));
}

Selector::Selector(const Rules& rules, int size, int hosts, bool enough_cores, StreamLimits stream_limits,
                   PostRules posts, std::string job_algorithm)
    : size_(size),
      hosts_(hosts),
      stream_limits_(stream_limits),
      posts_(posts),
      job_algorithm_(flow::parse_algorithm(job_algorithm)) {
  for (const Rule& r : rules.rows) {
    if (size < r.min_ranks || size > r.max_ranks) continue;
    if (r.hosts != Hosts::any && (r.hosts == Hosts::several) != (hosts > 1)) continue;
    if (r.cores != Cores::any && (r.cores == Cores::enough) != enough_cores) continue;
    Rows& rows = rows_[static_cast<std::size_t>(r.collective)];
    const Row row{r.max_bytes, r.algorithm, r.reason, r.in_place, r.any_pages};
    if (r.buffers != Buffers::registered && r.algorithm != Algorithm::zerocopy) {
      rows.others.push_back(row);
      if (r.algorithm != Algorithm::pull) rows.staged.push_back(row);
    }
    if (r.buffers != Buffers::private_) rows.registered.push_back(row);
  }
}

const Selector::Row* Selector::first_row(const std::vector<Row>& rows, const Operation& o, std::size_t bytes,
                                         bool canonical, bool aliased) const {
  for (const Row& row : rows)
    if (bytes <= row.max_bytes && serves(o, bytes, canonical, row.algorithm, aliased)) return &row;
  return nullptr;
}

Status Selector::select(const Operation& o, int rank, bool canonical, Choice* choice,
                        std::string* why) const {
  const bool aliased = o.in.count > 0 && o.in.data == o.out.data;
  const std::size_t bytes = unit_bytes(o, rank, size_);
  const Rows& rows = rows_[static_cast<std::size_t>(o.collective)];
  *choice = {};
  if (const auto only = only_flow(o.collective)) {
    choice->algorithm = *only;
    return {};
  }
  const char* reason = nullptr;
  if (o.names_algorithm()) {
    const auto a = flow::parse_algorithm(o.algorithm);
    const char* found = a ? obstacle(o, bytes, canonical, *a, aliased) : "there is no such algorithm";
    if (found) return refuse(fmt::format("algorithm '{}'", o.algorithm), found, o, bytes, canonical, aliased);
    choice->algorithm = *a, choice->forced = true;
    reason = "forced by the caller";
  } else if (o.algorithm.empty() && forces(o)) {
    // Only this rank knows whether its buffers alias: it declines when the ranks agree on a flow, and all
    // ranks end with the same error.
    if (const char* found = obstacle(o, bytes, canonical, *job_algorithm_, false))
      return refuse(fmt::format("OURO_ALGO={}", flow::name(*job_algorithm_)), found, o, bytes, canonical,
                    false);
    choice->algorithm = *job_algorithm_, choice->forced = true;
    reason = "OURO_ALGO";
  }
  const Row* registered = nullptr;
  if (!choice->forced) {
    const Row* staged = first_row(rows.staged, o, bytes, canonical, aliased);
    if (!staged) return unsupported(fmt::format("{}: no algorithm serves this call", name(o.collective)));
    choice->algorithm = staged->algorithm;
    reason = staged->reason.c_str();
    if (size_ > 1 && !o.uneven && o.segments.empty()) {
      // Ranks whose buffers alias decline when the ranks agree on a flow, so this does not depend
      // on `aliased`.
      registered = first_row(rows.registered, o, bytes, canonical, false);
      const Row* other = first_row(rows.others, o, bytes, canonical, false);
      choice->try_pull = other && other->algorithm == Algorithm::pull;
      choice->pull_any_pages = choice->try_pull && other->any_pages;
      choice->try_zero_copy = registered && registered->algorithm == Algorithm::zerocopy;
      choice->declines_zero_copy = choice->try_zero_copy && registered->in_place && !aliased;
    }
  }
  choice->staging = ability(o.collective, choice->algorithm).staging;
  choice->ring = posts_.ring && choice->staging && goes_round(o.collective, size_, bytes);
  choice->built_in = choice->ring || (posts_.built_in && is_large(o.collective, size_, bytes));
  // If this rank has read its output buffer as input, its lines are in the cache when they are written.
  const bool reads = o.reads(rank);
  const std::size_t touched = aliased || !reads ? o.out.bytes() : o.in.bytes() + o.out.bytes();
  const auto streams = [&](std::size_t from) {
    return !(aliased && reads) && touched * static_cast<std::size_t>(size_) >= from;
  };
  const StreamLimits& limits = stream_limits_;
  const bool from_root = o.traits().in.owner == CollectiveTraits::Owner::root;
  const std::size_t by_reference = from_root ? limits.from_root : limits.by_reference;
  const std::size_t limit = ability(o.collective, choice->algorithm).by_reference ? by_reference
                            : from_root                                           ? limits.from_root
                                                                                  : limits.staged;
  choice->streams = streams(limit);
  choice->streams_by_reference = streams(by_reference);
  if (why) {
    *why = fmt::format("{} over {}: {} ranks on {}, {} bytes; {}", flow::name(choice->algorithm),
                       hosts_ > 1 ? "shared-memory and network" : "shared-memory", size_,
                       hosts_ > 1 ? fmt::format("{} hosts", hosts_) : "one host", bytes, reason);
    if (choice->try_zero_copy)
      *why += fmt::format("; zerocopy where all buffers are registered{}{}",
                          choice->declines_zero_copy
                              ? " and input and output the same memory, as here they are not"
                          : registered && registered->in_place ? " and input and output the same memory"
                                                               : "",
                          registered && !registered->reason.empty() ? ": " + registered->reason : "");
    if (choice->try_pull)
      *why += fmt::format("; pull where {}ranks may read each other's memory",
                          choice->pull_any_pages ? "" : "all buffers lie on huge pages and ");
    if (choice->ring) *why += "; posts use the ring";
    if (job_algorithm_ && !choice->forced)
      *why += fmt::format("; OURO_ALGO={} does not concern {}", flow::name(*job_algorithm_),
                          o.algorithm.empty() ? name(o.collective) : "calls with algorithm 'auto'");
    if (choice->streams)
      *why += fmt::format("; non-temporal stores, as {} bytes or more are touched", limit);
    else if (choice->streams_by_reference && (choice->try_zero_copy || choice->try_pull))
      *why +=
          fmt::format("; by reference non-temporal stores, as {} bytes or more are touched", by_reference);
  }
  return {};
}

}  // namespace ouro::rt
