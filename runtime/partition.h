// Which elements a chunk of a flow is: operations are cut into rounds, rounds into chunks that fit into
// slots. Used by the GPU executor for flows over links.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "runtime/operation.h"

namespace ouro::rt {

class Partition {
 public:
  struct Extent {
    std::size_t offset = 0, count = 0;  // elements
  };
  Partition(const Operation& o, int rank, int n)
      : n_(static_cast<std::size_t>(n)), total_(unit_count(o, rank, n)), blocks_(o.blocks()) {
    if (!blocks_) return;
    const bool in_many = o.collective != Collective::all_gather && o.collective != Collective::gather;
    const bool out_many = o.collective != Collective::reduce_scatter && o.collective != Collective::scatter;
    side(&in_, o.uneven ? (o.in_counts.empty() ? o.out_counts : o.in_counts) : o.in_counts, o.uneven,
         in_many);
    side(&out_, o.uneven ? (o.out_counts.empty() ? o.in_counts : o.out_counts) : o.out_counts, o.uneven,
         out_many);
  }

  /// Cuts for a flow of `chunks` chunks a round, each of at most `capacity` elements (at least 1). Pieces
  /// begin on multiples of `line` elements.
  void cut(std::size_t chunks, std::size_t capacity, bool pipelined, std::size_t line) {
    per_round_ = chunks, capacity_ = capacity, pipelined_ = pipelined;
    std::size_t longest = total_;
    if (blocks_) {
      longest = 0;
      for (const Side* s : {&in_, &out_})
        for (std::size_t c : s->counts) longest = std::max(longest, c);
    }
    const std::size_t at_once = blocks_ ? capacity : chunks * capacity;
    rounds_ = longest <= at_once ? 1 : static_cast<int>((longest + at_once - 1) / at_once);
    const std::size_t parts = chunks * static_cast<std::size_t>(rounds_);
    piece_ = std::min(capacity, ((total_ + parts - 1) / parts + line - 1) / line * line);
  }
  int rounds() const { return rounds_; }
  std::size_t round = 0;  ///< of flows that are called once a round
  Extent in(int chunk) const { return blocks_ ? piece_of(in_, chunk) : region(chunk); }
  Extent out(int chunk) const { return blocks_ ? piece_of(out_, chunk) : region(chunk); }

 private:
  struct Side {
    std::vector<std::size_t> offsets, counts;  // of each block
  };
  void side(Side* s, std::span<const std::size_t> given, bool uneven, bool many) const {
    s->counts.assign(n_, total_);
    if (uneven) s->counts.assign(given.begin(), given.end());
    s->offsets.assign(n_, 0);
    for (std::size_t b = 1; many && b < n_; ++b) s->offsets[b] = s->offsets[b - 1] + s->counts[b - 1];
  }
  Extent piece_of(const Side& s, int chunk) const {
    const auto c = static_cast<std::size_t>(chunk);
    const std::size_t b = pipelined_ ? c % per_round_ : c;
    const std::size_t r = round + (pipelined_ ? c / per_round_ : 0);
    const std::size_t skip = std::min(s.counts[b], r * capacity_);
    return {s.offsets[b] + skip, std::min(s.counts[b] - skip, capacity_)};
  }
  Extent region(int chunk) const {
    const std::size_t from =
        std::min(total_, (round * per_round_ + static_cast<std::size_t>(chunk)) * piece_);
    return {from, std::min(piece_, total_ - from)};
  }

  std::size_t n_, total_;
  bool blocks_, pipelined_ = false;
  Side in_, out_;
  std::size_t per_round_ = 1, capacity_ = 1, piece_ = 1;
  int rounds_ = 1;
};

}  // namespace ouro::rt
