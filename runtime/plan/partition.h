// Which elements a chunk of a flow is: operations are cut into rounds, rounds into chunks that fit into
// slots. Used by the executors of host (its blocks) and GPU (flows over links).
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "runtime/plan/operation.h"

namespace ouro::rt {

struct Extent {
  std::size_t offset = 0, count = 0;  // elements
};

/// The blocks of an operation's input and output, in elements. A side that has one block of this rank's only
/// begins with it, whichever it is.
struct BlockSides {
  struct Side {
    std::vector<std::size_t> offsets, counts;
    /// Of block b what comes after `skip` elements, at most `capacity`.
    Extent piece(std::size_t b, std::size_t skip, std::size_t capacity) const {
      skip = std::min(counts[b], skip);
      return {offsets[b] + skip, std::min(counts[b] - skip, capacity)};
    }
  };
  Side in, out;

  /// Of n ranks, each block `total` elements unless the operation is uneven. Memory is kept from call to
  /// call.
  void lay_out(const Operation& o, std::size_t n, std::size_t total) {
    const auto side = [&](Side* s, std::span<const std::size_t> own, std::span<const std::size_t> other,
                          bool many) {
      if (const auto given = own.empty() ? other : own; o.uneven)
        s->counts.assign(given.begin(), given.end());
      else
        s->counts.assign(n, total);
      s->offsets.assign(n, 0);
      for (std::size_t b = 1; many && b < n; ++b) s->offsets[b] = s->offsets[b - 1] + s->counts[b - 1];
    };
    side(&in, o.in_counts, o.out_counts,
         o.collective != Collective::all_gather && o.collective != Collective::gather);
    side(&out, o.out_counts, o.in_counts,
         o.collective != Collective::reduce_scatter && o.collective != Collective::scatter);
  }
  std::size_t longest() const {
    return std::max(*std::max_element(in.counts.begin(), in.counts.end()),
                    *std::max_element(out.counts.begin(), out.counts.end()));
  }
};

class Partition {
 public:
  Partition(const Operation& o, int rank, int n) : total_(unit_count(o, rank, n)), blocks_(o.blocks()) {
    if (blocks_) sides_.lay_out(o, static_cast<std::size_t>(n), total_);
  }

  /// Cuts for a flow of `chunks` chunks a round, each of at most `capacity` elements (at least 1). Pieces
  /// begin on multiples of `line` elements.
  void cut(std::size_t chunks, std::size_t capacity, bool pipelined, std::size_t line) {
    per_round_ = chunks, capacity_ = capacity, pipelined_ = pipelined;
    const std::size_t longest = blocks_ ? sides_.longest() : total_;
    const std::size_t at_once = blocks_ ? capacity : chunks * capacity;
    rounds_ = longest <= at_once ? 1 : static_cast<int>((longest + at_once - 1) / at_once);
    const std::size_t parts = chunks * static_cast<std::size_t>(rounds_);
    piece_ = std::min(capacity, ((total_ + parts - 1) / parts + line - 1) / line * line);
  }
  int rounds() const { return rounds_; }
  std::size_t round = 0;  ///< of flows that are called once a round
  Extent in(int chunk) const { return blocks_ ? piece_of(sides_.in, chunk) : region(chunk); }
  Extent out(int chunk) const { return blocks_ ? piece_of(sides_.out, chunk) : region(chunk); }

 private:
  Extent piece_of(const BlockSides::Side& s, int chunk) const {
    const auto c = static_cast<std::size_t>(chunk);
    return pipelined_ ? s.piece(c % per_round_, (round + c / per_round_) * capacity_, capacity_)
                      : s.piece(c, round * capacity_, capacity_);
  }
  Extent region(int chunk) const {
    const std::size_t from =
        std::min(total_, (round * per_round_ + static_cast<std::size_t>(chunk)) * piece_);
    return {from, std::min(piece_, total_ - from)};
  }

  std::size_t total_;
  bool blocks_, pipelined_ = false;
  BlockSides sides_;
  std::size_t per_round_ = 1, capacity_ = 1, piece_ = 1;
  int rounds_ = 1;
};

}  // namespace ouro::rt
