// What the ranks of a chaos job put in, and what must come out: inputs are a function of seed, rank and step,
// and outputs are computed again by one thread, in rank order. Used by rank.cc.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::chaos {

/// One step of the job, of which everything follows from seed and number.
struct Step {
  std::uint64_t seed = 0, number = 0;

  std::size_t count() const;  ///< elements of one rank's block, 1 to 50,000
  bool maximum() const;       ///< integers: their greatest, in place of their sum
  std::int64_t integer(int rank, std::size_t i) const;
  float real(int rank,
             std::size_t i) const;  ///< of 40 binary orders of magnitude: sums depend on their order
};

/// The collectives of a step over the group, each result compared bit by bit with the replay over `members`
/// (the ranks of the job that are in the group, in the group's order). The error of a collective; or
/// `data-corrupt`, with the words "nobody said so", where one succeeded and its result is wrong. `stop` of
/// the group's rank 0 comes out as `stopped`; `completed` counts the collectives that have succeeded.
Status run(const Step&, Group&, std::span<const int> members, bool stop, bool* stopped,
           std::uint64_t* completed);

}  // namespace ouro::chaos
