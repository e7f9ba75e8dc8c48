// From what was measured to the rules file: rows, the threshold of non-temporal stores, merging with a file
// that exists. Pure but for the reading. Used by the tuner and its tests.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/rules.h"

namespace ouro::perf {

/// What is ahead at one size; `bytes` as rules count them: of one region, or of one block.
struct Winner {
  std::size_t bytes = 0;
  flow::Algorithm algorithm{};
};

/// What a row is about, but for its size and algorithm.
struct Scope {
  Collective collective = Collective::none;
  rt::Buffers buffers = rt::Buffers::any;
  rt::Cores cores = rt::Cores::any;
  int ranks = 0;
};

/// Rows for winners in ascending order of size. Neighbours with one algorithm share a row; a row ends at the
/// geometric mean of the sizes on both sides of a change, the last one at the largest size: what is larger
/// was not measured and stays with the built-in rows. A single winner of 0 bytes (barrier) has no limit.
std::vector<rt::Rule> rows_of(const Scope&, std::span<const Winner>);

/// Bytes touched by all ranks, and how many times faster the operation is with non-temporal stores.
struct StreamPoint {
  std::size_t bytes = 0;
  double gain = 1;
};
/// The least of the points (ascending) from which on every gain is above 1 + margin. If there is none: `old`,
/// an earlier run's, if it lies above them; else twice the largest, or 0 (a share of the cache, see
/// rt::Rules) where that is larger anyway.
std::size_t stream_threshold(std::span<const StreamPoint>, double margin, std::size_t cache_bytes,
                             std::size_t old);

/// `fresh` rows, then those of `old` that they do not replace: of other collectives, numbers of ranks or
/// cores.
std::vector<rt::Rule> merge(std::vector<rt::Rule> fresh, const std::vector<rt::Rule>& old);

/// The rules in `file`; none if there is no such file. Errors: invalid if it is no rules file, or if it was
/// measured on a machine other than `machine`.
Result<rt::Rules> existing_rules(const std::string& file, const std::string& machine);

}  // namespace ouro::perf
