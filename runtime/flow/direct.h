// Direct flows: ranks read each other's boards, with one or two hand-offs in all. Staged ones copy inputs to
// the boards; in-place ones post references to registered buffers. Used through list.h by executors and the
// verifier.
#pragma once
#include "runtime/flow/traits.h"

namespace ouro::flow {

template <bool by_reference>
struct OnBoards : Traits {
  static constexpr bool kBoards = true;
  static constexpr bool kByReference = by_reference;
};

/// Everyone reduces everything: one hand-off, n*S bytes read by each rank.
struct OneShotAllReduce : OnBoards<false> {
  OURO_HD int chunks(Place) const { return 1; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) return step(store_input(0));
    step(post(0, 1));
    step(reduce_posted(0, 0));
  }
};

/// Two-shot: each rank reduces its slice of all inputs, then everyone collects the slices.
struct DirectAllReduce : OnBoards<false> {
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    if (n == 1) return step(store_input(0));
    step(post(0, n));
    step(reduce_posted(r, r));
    step(post_result(r));
    for (int d = 1; d < n; ++d) {
      const int c = wrap(r + d, n);
      step(fetch_result(c, c));
    }
  }
};

/// Each rank reduces its slice of all inputs in place and writes it into all outputs: 2*n*S bytes in all.
struct InPlaceAllReduce : OnBoards<true> {
  static constexpr bool kSpread = true;
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) return step(store_input(0));
    step(post(0, at.size));
    step(reduce_spread(at.rank, at.rank));
    step(meet());
  }
};

template <bool by_reference>
struct BoardReduceScatter : OnBoards<by_reference> {
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) return step(store_input(0));
    step(post(0, at.size));
    step(reduce_posted(at.rank, at.rank));
    if (by_reference) step(meet());
  }
};

template <bool by_reference>
struct BoardReduce : OnBoards<by_reference> {
  OURO_HD int chunks(Place) const { return 1; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) return step(store_input(0));
    step(post(0, 1));
    if (at.rank == at.root) step(reduce_posted(0, 0));
    if (by_reference) step(meet());
  }
};

template <bool by_reference>
struct BoardBroadcast : OnBoards<by_reference> {
  OURO_HD int chunks(Place) const { return 1; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) return step(copy(0));
    if (at.rank == at.root) {
      step(post(0, 1));
      step(copy(0));
    } else {
      step(fetch(0, at.root, 0));
    }
    if (by_reference) step(meet());
  }
};

template <bool by_reference>
struct BoardAllGather : OnBoards<by_reference> {
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    if (n == 1) return step(copy(0));
    step(post(r, 1));
    step(copy(r));
    for (int d = 1; d < n; ++d) {
      const int c = wrap(r + d, n);
      step(fetch(c, c, c));
    }
    if (by_reference) step(meet());
  }
};

/// By reference it cannot run in place: a block from a peer would overwrite the block for that peer, which
/// that peer may not have read yet.
template <bool by_reference>
struct BoardAllToAll : OnBoards<by_reference> {
  static constexpr bool kInPlace = !by_reference;
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    if (n == 1) return step(copy(0));
    step(post(0, n));
    step(copy(r));
    for (int d = 1; d < n; ++d) {
      const int from = wrap(r + d, n);
      step(fetch(from, from, r));
    }
    if (by_reference) step(meet());
  }
};

template <bool by_reference>
struct BoardGather : OnBoards<by_reference> {
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    if (n == 1) return step(copy(0));
    if (r == at.root) {
      step(copy(r));  // first: the root's input may lie where another block will come to lie
      for (int d = 1; d < n; ++d) {
        const int c = wrap(r + d, n);
        step(fetch(c, c, c));
      }
    } else {
      step(post(r, 1));
    }
    if (by_reference) step(meet());
  }
};

template <bool by_reference>
struct BoardScatter : OnBoards<by_reference> {
  OURO_HD int chunks(Place at) const { return at.size; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int r = at.rank;
    if (at.size == 1) return step(copy(0));
    if (r == at.root) {
      step(post(0, at.size));
    } else {
      step(fetch(r, at.root, r));
    }
    if (by_reference) step(meet());
    if (r == at.root) step(copy(r));  // last: the root's output may lie where another block is read from
  }
};

using DirectReduceScatter = BoardReduceScatter<false>;
using InPlaceReduceScatter = BoardReduceScatter<true>;
using DirectReduce = BoardReduce<false>;
using InPlaceReduce = BoardReduce<true>;
using DirectBroadcast = BoardBroadcast<false>;
using InPlaceBroadcast = BoardBroadcast<true>;
using DirectAllGather = BoardAllGather<false>;
using InPlaceAllGather = BoardAllGather<true>;
using DirectAllToAll = BoardAllToAll<false>;
using InPlaceAllToAll = BoardAllToAll<true>;
using DirectGather = BoardGather<false>;
using InPlaceGather = BoardGather<true>;
using DirectScatter = BoardScatter<false>;
using InPlaceScatter = BoardScatter<true>;

}  // namespace ouro::flow
