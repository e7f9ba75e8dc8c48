// Inputs and expected outputs of a chaos job: inputs are a function of seed, rank and step; one thread
// recomputes the outputs, in rank order. Used by rank.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::chaos {

/// One step of the job, fully determined by seed and number.
struct Step {
  std::uint64_t seed = 0, number = 0;

  std::size_t count() const;  ///< elements of one rank's block, 1 to 50,000
  bool maximum() const;       ///< integers: their maximum instead of their sum
  std::int64_t integer(int rank, std::size_t i) const;
  float real(int rank,
             std::size_t i) const;  ///< exponents from -20 to 20: sums depend on their order
};

/// Runs the collectives of a step over the group and compares each result bit by bit with the replay over
/// `members` (the job's ranks of the group's members, in the group's order). Returns the error of a
/// collective, or `data-corrupt` with the words "nobody said so" if one succeeded with a wrong result.
/// `stop` of the group's rank 0 is returned on all ranks as `stopped`; `completed` counts the collectives
/// that have succeeded.
Status run(const Step&, Group&, std::span<const int> members, bool stop, bool* stopped,
           std::uint64_t* completed);

}  // namespace ouro::chaos
