// Where the chunks of a flow lie, in elements: an operation is cut into rounds, a round into chunks that fit
// into slots. Used by the executors of host and GPUs, device kernels, the verifier and the simulator.
#pragma once
#include <cstdint>

#include "kernels/flow/step.h"

namespace ouro::flow {

struct Extent {
  std::uint64_t offset = 0, count = 0;  // elements
};

OURO_HD constexpr std::uint64_t least(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }
OURO_HD constexpr std::uint64_t parts_of(std::uint64_t x, std::uint64_t part) {
  return (x + part - 1) / part;
}
OURO_HD constexpr std::uint64_t round_up(std::uint64_t x, std::uint64_t unit) {
  return parts_of(x, unit) * unit;
}

/// Rounds of an operation whose longest block, or region, has `longest` elements, of which `at_once` pass in
/// one round. There is always one.
OURO_HD constexpr std::uint64_t rounds_of(std::uint64_t longest, std::uint64_t at_once) {
  return longest <= at_once ? 1 : parts_of(longest, at_once);
}

/// Share i of `shares` equal ones of `count` elements, cut at multiples of `line`; the last ones may be
/// shorter or empty.
OURO_HD constexpr Extent share_of(std::uint64_t count, int shares, int i, std::uint64_t line) {
  const std::uint64_t each = round_up(parts_of(count, static_cast<std::uint64_t>(shares)), line);
  const std::uint64_t first = least(count, static_cast<std::uint64_t>(i) * each);
  return {first, least(count - first, each)};
}

/// How a flow's chunks are cut. Of collectives with blocks, chunk c of a round is what this round has of
/// block c; else the chunks of all rounds are pieces of one region, one after the other.
struct Cut {
  bool blocks = false, pipelined = false;
  int per_round = 1;           // chunks
  int rounds = 1;              // at least 1
  std::uint64_t total = 0;     // of the region, or of the longest block
  std::uint64_t capacity = 1;  // of a chunk, at most
  std::uint64_t piece = 1;     // of a chunk of a region; all but the last ones have as many

  /// Fills in rounds and piece from all the others. Rounds of a region are of equal size, and pieces begin at
  /// multiples of `line` elements, unless the capacity is less: then those of different ranks share no line.
  OURO_HD constexpr void cut(std::uint64_t line) {
    const auto chunks = static_cast<std::uint64_t>(per_round);
    const std::uint64_t many = rounds_of(total, blocks ? capacity : chunks * capacity);
    rounds = static_cast<int>(many);
    piece = blocks ? capacity : least(capacity, round_up(parts_of(total, chunks * many), line));
  }
  /// A capacity with which all is one round.
  OURO_HD static constexpr std::uint64_t in_one_round(bool blocks, std::uint64_t total, int per_round) {
    const std::uint64_t most = blocks ? total : parts_of(total, static_cast<std::uint64_t>(per_round));
    return most == 0 ? 1 : most;
  }

  // `round`: the one at hand, where the flow is called once a round; 0 where it is pipelined, since its
  // chunks are numbered on from round to round.
  OURO_HD constexpr int round_of(int chunk, int round) const { return pipelined ? chunk / per_round : round; }
  OURO_HD constexpr int within_round(int chunk) const { return pipelined ? chunk % per_round : chunk; }

  /// Of a region.
  OURO_HD constexpr Extent region(int chunk, int round) const {
    const std::uint64_t before = static_cast<std::uint64_t>(round) * static_cast<std::uint64_t>(per_round);
    const std::uint64_t first = least(total, (before + static_cast<std::uint64_t>(chunk)) * piece);
    return {first, least(total - first, piece)};
  }
  /// Of the block that the chunk names, which begins at `begin` and has `count` elements.
  OURO_HD constexpr Extent block_part(std::uint64_t begin, std::uint64_t count, int chunk, int round) const {
    const std::uint64_t skip = least(count, static_cast<std::uint64_t>(round_of(chunk, round)) * capacity);
    return {begin + skip, least(count - skip, capacity)};
  }
};

// What a rank posts in a round: its inputs, a piece each (one, or those of all others, from that of the next
// rank on), then its result where the flow posts one.

/// Pieces before the result.
OURO_HD constexpr int input_pieces(bool posts_others, int ranks) { return posts_others ? ranks - 1 : 1; }
/// Which piece of what `from` posted is chunk c of the round, where it posts those of all others.
OURO_HD constexpr int piece_for(int c, int from, int ranks) { return wrap(c - from - 1, ranks); }

}  // namespace ouro::flow
