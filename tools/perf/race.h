// Times several ways to do one thing in turn on all ranks, as an application uses them: it writes its input,
// calls, and reads its output. Used by the tuner.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ouro/ouro.hpp"
#include "tools/measure/figures.h"

namespace ouro::perf {

/// The times of one way, round by round.
struct Trial {
  std::string name;
  /// us of one call on the slowest rank, without the writing and reading. Empty: given up after a few calls
  /// because it was much too slow.
  std::vector<double> us;
  double first_us = 0;  ///< us of those first calls, including writing and reading
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
  double block_ms = 1;  ///< duration of a run of calls; it has at least one call and at most 400
  /// A runner is given up if one of its calls takes longer than a block and this many times as long as the
  /// best runner.
  double hopeless = 4;
};

/// Collective over `world`; every rank gets the same figures. All runners must touch the same number of
/// bytes; runner `keep` is never given up. The order is reversed every other round.
Result<std::vector<Trial>> race(Group& world, std::span<const Runner>, std::size_t keep, const Effort& = {});

/// The index of the trial to prefer: the one with the least median, if in the median of rounds it is ahead of
/// trial `usual` by more than `margin` of that trial's time, and ahead at all in three rounds out of four;
/// else `usual`.
std::size_t winner(std::span<const Trial>, std::size_t usual, double margin);
/// Median over the rounds of (time of a / time of b).
double ratio(const Trial& a, const Trial& b);
/// Share of the rounds in which `b` took less time than `a`.
double share_ahead(const Trial& a, const Trial& b);
using measure::median;

}  // namespace ouro::perf
