// The flow of decentralised training: a weighted sum of my vector and those of some neighbours.
// Used through list.h by the host executor, which makes it from the row of an operation, and the verifier.
#pragma once
#include <span>
#include <utility>

#include "kernels/flow/traits.h"

namespace ouro::flow {

// Values travel as they are (narrow) and are multiplied where they arrive, so that a parameter set of 16-bit
// floats costs 16 bits an element. What is mine is multiplied by the operation's own factor (premulsum).

/// mine + weight * what comes in, to the output; `kAcc` in place of `kInput`: the sum so far.
OURO_HD constexpr Step mix_store(int c, int from, double weight, std::uint32_t mine) {
  return {kRecv | kStore | mine, c, from, kNobody, 0, 1, weight};
}
/// The same, left wide in the accumulator.
OURO_HD constexpr Step mix_keep(int c, int from, double weight, std::uint32_t mine) {
  return {kRecv | kKeep | mine, c, from, kNobody, 0, 1, weight};
}

/// The part of a rank in a neighbour collective. The spans are its caller's.
struct NeighbourRow {
  double self = 1;                                             // weight of what is mine
  std::span<const std::pair<int, double>> in_neighbours = {};  // rank and weight, in the order of the sum
  std::span<const int> out_neighbours = {};
};

/// y = self * x + sum of weight * x of `takes`, in this order. A chunk leaves one ahead of the chunk that is
/// summed up: then messages are there when they are needed, and x may be y, whose chunk is written after x's
/// has left.
struct Gossip : Traits {
  using Data = NeighbourRow;
  static constexpr bool kPipelined = true;
  static constexpr bool kKeeps = true;
  static constexpr bool kCanonical = false;  // each rank sums up other terms, itself first

  NeighbourRow row = {};

  OURO_HD int chunks(Place at) const { return at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    constexpr int kAhead = 1;
    pipeline(
        at.rounds, row.out_neighbours.empty() ? 0 : kAhead,
        [&](int c) {
          for (const int to : row.out_neighbours) step(send(c, to));
        },
        [&](int c) { sum(c, step); });
  }

 private:
  template <class Listener>
  OURO_HD void sum(int c, Listener&& step) const {
    if (row.in_neighbours.empty()) return step(row.self == 1 ? copy(c) : store_input(c));
    // A zero of mine is left out, not multiplied: what I had may be infinite.
    std::uint32_t mine = row.self != 0 ? std::uint32_t{kInput} : 0;
    for (std::size_t i = 0; i + 1 < row.in_neighbours.size(); ++i, mine = kAcc)
      step(mix_keep(c, row.in_neighbours[i].first, row.in_neighbours[i].second, mine));
    step(mix_store(c, row.in_neighbours.back().first, row.in_neighbours.back().second, mine));
  }
};

}  // namespace ouro::flow
