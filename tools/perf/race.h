// Several ways to do one thing, timed in turn on all ranks, as an application meets them: it writes its
// input, calls, and reads its output. Used by the tuner.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ouro/ouro.hpp"
#include "tools/measure/figures.h"

namespace ouro::perf {

/// Times of one way, round by round.
struct Trial {
  std::string name;
  /// us of one call, the slowest rank's, without the writing and reading. Empty: given up after a few calls,
  /// as hopeless.
  std::vector<double> us;
  double first_us = 0;  ///< of those few calls, writing and reading included
  double median() const;
};

struct Runner {
  std::string name;
  std::function<Status()> call;
  std::span<std::byte> in = {};         ///< rewritten by this rank before each call
  std::span<const std::byte> out = {};  ///< read by this rank after each call
};

struct Effort {
  int rounds = 21;
  double block_ms = 1;  ///< of calls in a row; at least one call, at most 400
  /// A runner that needs longer than a block for one call, and so many times as long as the best, is given
  /// up.
  double hopeless = 4;
};

/// Collective over `world`; every rank gets the same figures. All runners touch equally many
/// bytes; runner `keep` is never given up. The order is reversed every other round.
Result<std::vector<Trial>> race(Group& world, std::span<const Runner>, std::size_t keep, const Effort& = {});

/// The trial to prefer: the least median, if in the median of rounds it is ahead of trial `usual` by more
/// than `margin` of its time, and ahead at all in three rounds of four; else `usual`.
std::size_t winner(std::span<const Trial>, std::size_t usual, double margin);
/// Median over rounds of (time of a / time of b).
double ratio(const Trial& a, const Trial& b);
double share_ahead(const Trial& a, const Trial& b);  ///< of the rounds: those where `b` took less time
using measure::median;

}  // namespace ouro::perf
