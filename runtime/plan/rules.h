// Rules: the selection table. It lists which algorithm serves which collective, up to which size, for how
// many ranks on how many cores, in which kind of memory. Built in, and overridden by a tuner's file and by
// OURO_SELECT. Used by selection; written by ouro-perf --tune.
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
};  ///< registered: allocated by Context::alloc, on all ranks

enum class Hosts : std::uint8_t { any, one, several };  ///< number of hosts that the group's ranks are on

struct Rule {
  Collective collective = Collective::none;
  Buffers buffers = Buffers::any;
  Cores cores = Cores::any;
  int min_ranks = 1, max_ranks = std::numeric_limits<int>::max();
  /// Size of one rank's region (all_reduce, broadcast, reduce), or of one block.
  std::size_t max_bytes = ~std::size_t{0};
  /// Rows for registered buffers have zerocopy, or any other name, which means "as for private buffers": then
  /// the rows for those choose.
  flow::Algorithm algorithm{};
  std::string reason = {};
  Hosts hosts = Hosts::any;  ///< rows for several hosts name flows over links; all other rows name flows over
                             ///< staging buffers, which serve one host only
  /// The row is only for calls whose input and output are the same memory on all ranks. Used with flows
  /// by reference.
  bool in_place = false;
  /// If true, a row for pull is also for buffers on small pages, else only for those on huge pages.
  bool any_pages = false;
};

struct Rules {
  std::vector<Rule> rows;  ///< the first row that matches a call, and can serve it, wins
  /// Number of rows at the start that come from OURO_SELECT and OURO_TUNE; rows from a host's calibration are
  /// inserted after them.
  std::size_t chosen_rows = 0;
  /// Total bytes of input and output of all ranks from which outputs are written past the caches. 0: derived
  /// from the size of the last-level cache.
  std::size_t stream_bytes = 0;
  std::string origin = "built in";
  /// Equal on ranks whose rules are equal.
  std::uint64_t digest() const;
};

Rules built_in_rules();

/// "all_reduce<=64K:oneshot,all_reduce@registered:zerocopy": rows separated by commas, each
/// collective[@private|@registered][<=bytes]:algorithm. Errors: invalid, with the row and what is accepted.
Result<std::vector<Rule>> parse_rules(std::string_view text);
/// A row in the form that parse_rules reads; it omits the numbers of ranks and cores.
std::string to_text(const Rule&);

/// The file that ouro-perf --tune writes: JSON {"ouro_tune": 1, "stream_bytes": n, "rules": [{"collective",
/// "buffers", "cores", "hosts", "ranks": [min, max], "max_bytes", "algorithm"}]}. Errors: invalid, with file
/// and position.
Result<Rules> load_rules(const std::string& file);
std::string to_json(const Rules&, const std::string& machine);

/// The rows of OURO_SELECT, then those of the file OURO_TUNE, then the built-in ones. Errors: invalid.
Result<Rules> rules_in_force();

}  // namespace ouro::rt
