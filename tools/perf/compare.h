// Sets a run beside an earlier one, read from its JSON file.
// Used by rank 0 of the rank program and by the tests.
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
  /// A file written by -J, by ouro-perf or by nccl-tests.
  static Result<Baseline> read(const std::string& path);
  static Result<Baseline> parse(const std::string& text, const std::string& origin);
  /// `invalid` if the file says that it is of another collective.
  Status check(std::string_view collective) const;
  /// Table of ratios, base time / time now, of the rows that both runs have; says how many have no partner,
  /// and if the file is of groups of another size.
  std::string compare(std::span<const Row>, int group_size) const;

 private:
  using Key = std::tuple<std::size_t, std::string, std::string, int>;  // size, type, redop, root
  struct Times {
    double out_of_place = 0;
    std::optional<double> in_place;
  };
  std::string origin_, start_time_, collective_;  ///< empty: the file does not say
  int group_size_ = 0;                            ///< 0: likewise
  std::map<Key, Times> rows_;
};

}  // namespace ouro::perf
