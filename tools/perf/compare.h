// Sets a run beside an earlier one, read from its JSON file.
// Used by rank 0 of the rank program and by the tests.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>

#include "runtime/core/status.h"
#include "tools/perf/stats.h"

namespace ouro::perf {

class Baseline {
 public:
  /// A file written by -J, by ouro-perf or by nccl-tests.
  static Result<Baseline> read(const std::string& path);
  static Result<Baseline> parse(const std::string& text, const std::string& origin);
  /// Table of ratios, base time / time now, of the rows that both runs have; says how many have no partner.
  std::string compare(std::span<const Row>) const;

 private:
  using Key = std::tuple<std::size_t, std::string, std::string, int>;  // size, type, redop, root
  struct Times {
    double out_of_place = 0;
    std::optional<double> in_place;
  };
  std::string origin_, start_time_;
  std::map<Key, Times> rows_;
};

}  // namespace ouro::perf
