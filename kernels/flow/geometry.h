// The layout of a flow's chunks, in elements: an operation is cut into rounds, a round into chunks that fit
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

/// Rounds of an operation whose longest block, or region, has `longest` elements, of which one round moves
/// `at_once`. At least 1.
OURO_HD constexpr std::uint64_t rounds_of(std::uint64_t longest, std::uint64_t at_once) {
  return longest <= at_once ? 1 : parts_of(longest, at_once);
}

/// Share i when `count` elements are divided into `shares` equal shares, cut at multiples of `line`; the last
/// ones may be shorter or empty.
OURO_HD constexpr Extent share_of(std::uint64_t count, int shares, int i, std::uint64_t line) {
  const std::uint64_t each = round_up(parts_of(count, static_cast<std::uint64_t>(shares)), line);
  const std::uint64_t first = least(count, static_cast<std::uint64_t>(i) * each);
  return {first, least(count - first, each)};
}

/// How a flow's chunks are cut. If the collective has blocks, chunk c of a round is this round's part of
/// block c; otherwise the chunks of all rounds are consecutive pieces of one region.
struct Cut {
  bool blocks = false, pipelined = false;
  int per_round = 1;           // chunks
  int rounds = 1;              // at least 1
  std::uint64_t total = 0;     // elements of the region, or of the longest block
  std::uint64_t capacity = 1;  // elements of a chunk, at most
  std::uint64_t piece = 1;     // elements of a chunk of a region; all but the last chunks have as many

  /// Computes rounds and piece from all the other members. Rounds of a region are of equal size, and pieces
  /// begin at multiples of `line` elements, so that those of different ranks share no line, unless the
  /// capacity is smaller than that.
  OURO_HD constexpr void cut(std::uint64_t line) {
    const auto chunks = static_cast<std::uint64_t>(per_round);
    const std::uint64_t many = rounds_of(total, blocks ? capacity : chunks * capacity);
    rounds = static_cast<int>(many);
    piece = blocks ? capacity : least(capacity, round_up(parts_of(total, chunks * many), line));
  }
  /// A capacity with which the whole operation is one round.
  OURO_HD static constexpr std::uint64_t in_one_round(bool blocks, std::uint64_t total, int per_round) {
    const std::uint64_t most = blocks ? total : parts_of(total, static_cast<std::uint64_t>(per_round));
    return most == 0 ? 1 : most;
  }

  // `round`: the current round, if the flow is called once per round; 0 if it is pipelined, since its chunk
  // numbers continue from round to round.
  OURO_HD constexpr int round_of(int chunk, int round) const { return pipelined ? chunk / per_round : round; }
  OURO_HD constexpr int within_round(int chunk) const { return pipelined ? chunk % per_round : chunk; }

  /// Elements of a chunk of the region.
  OURO_HD constexpr Extent region(int chunk, int round) const {
    const std::uint64_t before = static_cast<std::uint64_t>(round) * static_cast<std::uint64_t>(per_round);
    const std::uint64_t first = least(total, (before + static_cast<std::uint64_t>(chunk)) * piece);
    return {first, least(total - first, piece)};
  }
  /// Elements of a chunk that is part of the block that begins at `begin` and has `count` elements.
  OURO_HD constexpr Extent block_part(std::uint64_t begin, std::uint64_t count, int chunk, int round) const {
    const std::uint64_t skip = least(count, static_cast<std::uint64_t>(round_of(chunk, round)) * capacity);
    return {begin + skip, least(count - skip, capacity)};
  }
};

// The post of a rank in a round: its inputs in pieces (one, or one for each other rank, beginning with that
// of the next rank), then its result if the flow posts one.

/// Number of pieces before the result.
OURO_HD constexpr int input_pieces(bool posts_others, int ranks) { return posts_others ? ranks - 1 : 1; }
/// Index of the piece that holds chunk c of the round in the post of `from`, if it posts those of all others.
OURO_HD constexpr int piece_for(int c, int from, int ranks) { return wrap(c - from - 1, ranks); }

}  // namespace ouro::flow
