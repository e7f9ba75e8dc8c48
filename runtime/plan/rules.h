// Rules: the selection table. Which algorithm serves which collective, up to which size, for how many ranks
// on how many cores, in which kind of memory. Built in, and overridden by a tuner's file and by OURO_SELECT.
// Used by selection; written by ouro-perf --tune.
#pragma once
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/flow/list.h"
#include "runtime/core/link_view.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace ouro::rt {

enum class Cores : std::uint8_t {
  any,
  enough,
  fewer
};  ///< enough: a core for each rank on all hosts of the group
enum class Buffers : std::uint8_t {
  any,
  private_,
  registered
};  ///< registered: by Context::alloc, on all ranks

enum class Hosts : std::uint8_t { any, one, several };  ///< on which the group's ranks are

struct Rule {
  Collective collective = Collective::none;
  Buffers buffers = Buffers::any;
  Cores cores = Cores::any;
  int min_ranks = 1, max_ranks = std::numeric_limits<int>::max();
  /// Of one rank's region (all_reduce, broadcast, reduce), or of one block.
  std::size_t max_bytes = ~std::size_t{0};
  /// For registered buffers: zerocopy, or any other name for "as for private ones", whose rows then choose.
  flow::Algorithm algorithm{};
  std::string reason = {};
  Hosts hosts = Hosts::any;  ///< rows for several say which flows over links; others over staging buffers
                             ///< serve one only
};

struct Rules {
  std::vector<Rule> rows;  ///< the first that fits a call, and can serve it, wins
  /// The first so many are those of OURO_SELECT and OURO_TUNE; what a host's calibration says comes behind
  /// them.
  std::size_t chosen_rows = 0;
  /// Bytes of input and output of all ranks from which outputs are written past the caches. 0: from the size
  /// of the last-level cache.
  std::size_t stream_bytes = 0;
  std::string origin = "built in";
  /// The same on ranks whose rules are the same.
  std::uint64_t digest() const;
};

Rules built_in_rules();

/// "all_reduce<=64K:oneshot,all_reduce@registered:zerocopy": rows separated by commas, each
/// collective[@private|@registered][<=bytes]:algorithm. Errors: invalid, with the row and what is accepted.
Result<std::vector<Rule>> parse_rules(std::string_view text);
/// A row in the form that parse_rules reads; the numbers of ranks and cores are not in it.
std::string to_text(const Rule&);

/// The file that ouro-perf --tune writes: JSON {"ouro_tune": 1, "stream_bytes": n, "rules": [{"collective",
/// "buffers", "cores", "hosts", "ranks": [min, max], "max_bytes", "algorithm"}]}. Errors: invalid, with file
/// and place.
Result<Rules> load_rules(const std::string& file);
std::string to_json(const Rules&, const std::string& machine);

/// OURO_SELECT, then the file OURO_TUNE, then what is built in.
Result<Rules> rules_in_force();

}  // namespace ouro::rt
