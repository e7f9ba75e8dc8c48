// Turns measurements into the rules file: rows, the threshold of non-temporal stores, merging with an
// existing file. Pure except for reading the file. Used by the tuner and its tests.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/rules.h"

namespace ouro::perf {

/// The best algorithm at one size; `bytes` as rules count them: of one region, or of one block.
struct Winner {
  std::size_t bytes = 0;
  flow::Algorithm algorithm{};
};

/// The attributes of a row except its size and algorithm.
struct Scope {
  Collective collective = Collective::none;
  rt::Buffers buffers = rt::Buffers::any;
  rt::Cores cores = rt::Cores::any;
  int ranks = 0;
};

/// Rows for winners, which must be in ascending order of size. Neighbours with the same algorithm share a
/// row. A row ends at the geometric mean of the two sizes between which the algorithm changes; the last row
/// ends at the largest size, because larger sizes were not measured and are left to the built-in rows. A
/// single winner of 0 bytes (barrier) has no limit.
std::vector<rt::Rule> rows_of(const Scope&, std::span<const Winner>);

/// Bytes touched by all ranks, and the speed-up by non-temporal stores at this size.
struct StreamPoint {
  std::size_t bytes = 0;
  double gain = 1;
};
/// The smallest of the points (ascending) from which on every gain is above 1 + margin. If there is none:
/// `old`, from an earlier run, if it is above all points; else twice the largest point, or 0 (a share of the
/// cache, see rt::Rules) if that is larger anyway.
std::size_t stream_threshold(std::span<const StreamPoint>, double margin, std::size_t cache_bytes,
                             std::size_t old);

/// The `fresh` rows, then those rows of `old` that they do not replace: for other collectives, numbers of
/// ranks or cores.
std::vector<rt::Rule> merge(std::vector<rt::Rule> fresh, const std::vector<rt::Rule>& old);

/// The rules in `file`; none if the file does not exist. Errors: invalid if it is not a rules file, or if it
/// was measured on a machine other than `machine`.
Result<rt::Rules> existing_rules(const std::string& file, const std::string& machine);

}  // namespace ouro::perf
