// The positions of an operation's chunks in its input and output, in elements: the geometry of flows, applied
// to blocks of any lengths. Used by the executors of host and GPU.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/flow/geometry.h"
#include "runtime/core/collectives.h"
#include "runtime/plan/operation.h"

namespace ouro::rt {

using flow::Extent;

/// The layout of an operation's chunks. It is cut once for a flow, and constant after that.
class Partition {
 public:
  Partition() = default;
  Partition(const Operation& o, int rank, int n) {
    const CollectiveTraits traits = traits_of(o.collective);
    unit_ = unit_count(o, rank, n);
    cut_ = {.blocks = traits.blocks(), .total = unit_};
    in_.many = traits.in.many(), out_.many = traits.out.many();
    if (!cut_.blocks || !o.uneven) return;
    // If only one side has lengths, they apply to both.
    in_.lay_out(o.in_counts.empty() ? o.out_counts : o.in_counts);
    out_.lay_out(o.out_counts.empty() ? o.in_counts : o.out_counts);
    cut_.total = std::max(in_.longest(), out_.longest());
  }

  /// Cuts for a flow of `chunks` chunks per round, each of at most `capacity` elements (at least 1). See
  /// flow::Cut for `line`.
  void cut(int chunks, std::size_t capacity, bool pipelined, std::size_t line) {
    cut_.per_round = chunks, cut_.capacity = capacity, cut_.pipelined = pipelined;
    cut_.cut(line);
  }

  bool blocks() const { return cut_.blocks; }
  std::size_t unit() const { return unit_; }          ///< elements of the region, or of one even block
  std::size_t longest() const { return cut_.total; }  ///< elements of the region, or of the longest block
  std::size_t capacity() const { return cut_.capacity; }
  bool pipelined() const { return cut_.pipelined; }
  int per_round() const { return cut_.per_round; }
  int rounds() const { return cut_.rounds; }
  int round_of(int chunk, int round) const { return cut_.round_of(chunk, round); }
  int within_round(int chunk) const { return cut_.within_round(chunk); }
  /// Elements of block b of the input, or of the output.
  std::size_t in_count(int b) const { return in_.count(b, unit_); }
  std::size_t out_count(int b) const { return out_.count(b, unit_); }

  /// `round`: the round, for flows that are called once per round; else 0.
  Extent in(int chunk, int round) const { return of(in_, chunk, round); }
  Extent out(int chunk, int round) const { return of(out_, chunk, round); }

 private:
  /// The blocks of one side: of equal length, or of individual lengths. A side with a single block, that of
  /// this rank, begins with that block, whatever its number.
  struct Side {
    bool many = false;
    std::vector<std::size_t> offsets, counts;  // uneven blocks only
    void lay_out(std::span<const std::size_t> lengths) {
      counts.assign(lengths.begin(), lengths.end());
      offsets.assign(counts.size(), 0);
      for (std::size_t b = 1; many && b < counts.size(); ++b) offsets[b] = offsets[b - 1] + counts[b - 1];
    }
    std::size_t longest() const {
      return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
    }
    std::size_t offset(int b, std::size_t each) const {
      if (!counts.empty()) return offsets[static_cast<std::size_t>(b)];
      return many ? static_cast<std::size_t>(b) * each : 0;
    }
    std::size_t count(int b, std::size_t each) const {
      return counts.empty() ? each : counts[static_cast<std::size_t>(b)];
    }
  };
  Extent of(const Side& side, int chunk, int round) const {
    if (!cut_.blocks) return cut_.region(chunk, round);
    const int b = cut_.within_round(chunk);
    return cut_.block_part(side.offset(b, unit_), side.count(b, unit_), chunk, round);
  }

  std::size_t unit_ = 0;
  flow::Cut cut_;
  Side in_, out_;
};

}  // namespace ouro::rt
