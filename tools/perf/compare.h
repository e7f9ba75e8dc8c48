// Compares a run with an earlier one that is read from its JSON file. Used by rank 0 of the rank program and
// by the tests.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "runtime/core/status.h"
#include "tools/perf/stats.h"

namespace ouro::perf {

class Baseline {
 public:
  /// Reads a file written with -J by ouro-perf or nccl-tests.
  static Result<Baseline> read(const std::string& path);
  static Result<Baseline> parse(const std::string& text, const std::string& origin);
  /// Fails with `invalid` if the file says that it is for another collective.
  Status check(std::string_view collective) const;
  /// A table of the ratios base time / time now for the rows that both runs have. The text also says how many
  /// rows have no counterpart, and whether the file is for groups of another size.
  std::string compare(std::span<const Row>, int group_size) const;

 private:
  using Key = std::tuple<std::size_t, std::string, std::string, int>;  // size, type, redop, root
  struct Times {
    double out_of_place = 0;
    std::optional<double> in_place;
  };
  std::string origin_, start_time_, collective_;  ///< empty: not stated in the file
  int group_size_ = 0;                            ///< 0: not stated in the file
  std::map<Key, Times> rows_;
};

}  // namespace ouro::perf
