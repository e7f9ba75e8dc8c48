// The flow of decentralised training: a weighted sum of my vector and those of some neighbours.
// Used through list.h by the host executor, which makes it from the row of an operation, and the verifier.
#pragma once
#include <span>
#include <utility>

#include "kernels/flow/traits.h"

namespace ouro::flow {

// Values are sent unscaled (narrow) and are multiplied at the receiver, so that a parameter set of 16-bit
// floats costs 16 bits per element. My own value is multiplied by the operation's own factor (premulsum).

/// Stores mine + weight * the incoming value into the output. `mine` is kInput, kAcc (the sum so far), or
/// 0 (nothing).
OURO_HD constexpr Step mix_store(int c, int from, double weight, std::uint32_t mine) {
  return {kRecv | kStore | mine, c, from, kNobody, 0, 1, weight};
}
/// As mix_store, but leaves the result wide in the accumulator.
OURO_HD constexpr Step mix_keep(int c, int from, double weight, std::uint32_t mine) {
  return {kRecv | kKeep | mine, c, from, kNobody, 0, 1, weight};
}

/// The part of a rank in a neighbour collective. The caller owns what the spans refer to.
struct NeighbourRow {
  double self = 1;                                             // weight of my own value
  std::span<const std::pair<int, double>> in_neighbours = {};  // rank and weight, in the order of the sum
  std::span<const int> out_neighbours = {};
};

/// y = self * x + the sum of weight * x over `in_neighbours`, in their order. A rank sends each chunk one
/// ahead of the chunk that it sums up, so that messages have arrived when they are needed, and x may alias y:
/// a chunk of y is written only after that chunk of x has been sent.
struct Gossip : Traits {
  using Data = NeighbourRow;
  static constexpr bool kPipelined = true;
  static constexpr bool kKeeps = true;
  static constexpr bool kCanonical = false;  // each rank sums different terms, its own first

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
    if (row.in_neighbours.empty()) return step(row.self == 1 ? Step(copy(c)) : store_input(c));
    // With a weight of zero my value is left out, not multiplied: it may be infinite.
    std::uint32_t mine = row.self != 0 ? std::uint32_t{kInput} : 0;
    for (std::size_t i = 0; i + 1 < row.in_neighbours.size(); ++i, mine = kAcc)
      step(mix_keep(c, row.in_neighbours[i].first, row.in_neighbours[i].second, mine));
    step(mix_store(c, row.in_neighbours.back().first, row.in_neighbours.back().second, mine));
  }
};

}  // namespace ouro::flow
