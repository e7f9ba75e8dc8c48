// Direct flows: ranks read each other's staging buffers, with one or two hand-offs in all. Staged ones copy
// inputs to the staging buffers, round after round; zero-copy ones post references to registered buffers, in
// one round. Used through list.h by executors and the verifier.
#pragma once
#include "kernels/flow/traits.h"

namespace ouro::flow {

/// An executor may run an operation of one round with a hand-written loop, which must do what the flow does
/// in one round.
struct Staged : Traits {
  static constexpr bool kStaging = true, kPipelined = true;
};
struct ZeroCopy : Traits {
  static constexpr bool kStaging = true, kByReference = true;
  OURO_HD int chunks(Place at) const { return at.size; }
};

/// Everyone reduces everything: one hand-off, n*S bytes read by each rank.
struct OneShotAllReduce : Staged {
  OURO_HD int chunks(Place at) const { return at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) {
      for (int i = 0; i < at.rounds; ++i) step(store_input(i));
      return;
    }
    pipeline(
        at.rounds, kStagingLag, [&](int i) { step(post(i, 1)); },
        [&](int i) {
          step(reduce_posted(i, i));
          step(release());
        });
  }
};

/// As OneShotAllReduce, for inputs that fit into the arrival record itself: a separate name to select it by.
struct InlineAllReduce : OneShotAllReduce {
  static constexpr bool kInline = true;
};

/// Two-shot: each rank reduces its slice of all inputs, then all ranks collect the slices.
struct DirectAllReduce : Staged {
  static constexpr bool kPostsOthers = true, kPostsResult = true;
  OURO_HD int chunks(Place at) const { return at.size * at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    const auto reduce = [&](int i) {
      if (n == 1) return step(store_input(i));
      step(reduce_posted(i * n + r, i * n + r));
      step(post_result(i * n + r));
    };
    const auto collect = [&](int i) {
      for (int d = 1; d < n; ++d) {
        const int from = wrap(r + d, n);
        step(fetch_result(i * n + from, from));
      }
      if (n > 1) step(release());
    };
    for (int i = 0; i < at.rounds + 2 * kStagingLag; ++i) {
      if (i < at.rounds && n > 1) step(post(i * n + wrap(r + 1, n), n - 1));
      if (i >= kStagingLag && i < at.rounds + kStagingLag) reduce(i - kStagingLag);
      if (i >= 2 * kStagingLag) collect(i - 2 * kStagingLag);
    }
  }
};

/// Each rank reduces its slice of all inputs in place and writes the result into all outputs: 2*n*S
/// bytes in all.
struct ZeroCopyAllReduce : ZeroCopy {
  static constexpr bool kMulticast = true;
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) return step(store_input(0));
    step(refer());
    step(reduce_multicast(at.rank, at.rank));
    step(barrier());
  }
};

struct DirectReduceScatter : Staged {
  static constexpr bool kPostsOthers = true;
  OURO_HD int chunks(Place at) const { return at.size * at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    pipeline(
        at.rounds, kStagingLag,
        [&](int i) {
          if (n > 1) step(post(i * n + wrap(r + 1, n), n - 1));
        },
        [&](int i) {
          if (n == 1) return step(store_input(i));
          step(reduce_posted(i * n + r, i * n + r));
          step(release());
        });
  }
};

struct ZeroCopyReduceScatter : ZeroCopy {
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) return step(store_input(0));
    step(refer());
    step(reduce_posted(at.rank, at.rank));
    step(barrier());
  }
};

/// The other ranks post and run ahead as far as the staging buffers allow; the root folds.
struct DirectReduce : Staged {
  static constexpr bool kRooted = true;
  OURO_HD int chunks(Place at) const { return at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    for (int i = 0; i < at.rounds; ++i) {
      if (at.size == 1) {
        step(store_input(i));
        continue;
      }
      if (at.rank == at.root)
        step(reduce_posted(i, i));
      else
        step(post(i, 1));
      step(release());
    }
  }
};

struct ZeroCopyReduce : ZeroCopy {
  OURO_HD int chunks(Place) const { return 1; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) return step(store_input(0));
    step(refer());
    if (at.rank == at.root) step(reduce_posted(0, 0));
    step(barrier());
  }
};

/// The root posts, runs ahead as far as the staging buffers allow, and returns.
struct DirectBroadcast : Staged {
  static constexpr bool kRooted = true;
  OURO_HD int chunks(Place at) const { return at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    for (int i = 0; i < at.rounds; ++i) {
      if (at.rank == at.root) {
        if (at.size > 1) step(post(i, 1));
        step(copy(i));
      } else {
        step(fetch(i, at.root, i));
      }
      if (at.size > 1) step(release());
    }
  }
};

/// As DirectBroadcast, for a root input that fits into the arrival record itself; see InlineAllReduce.
struct InlineBroadcast : DirectBroadcast {
  static constexpr bool kInline = true;
};

/// Each rank copies its slice of the root's input into all outputs.
struct ZeroCopyBroadcast : ZeroCopy {
  static constexpr bool kMulticast = true;
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) return step(copy(0));
    step(refer());
    step(fetch_multicast(at.rank, at.root));
    step(barrier());
  }
};

struct DirectAllGather : Staged {
  OURO_HD int chunks(Place at) const { return at.size * at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    pipeline(
        at.rounds, kStagingLag,
        [&](int i) {
          if (n > 1) step(post(i * n + r, 1));
          step(copy(i * n + r));
        },
        [&](int i) {
          for (int d = 1; d < n; ++d) {
            const int from = wrap(r + d, n);
            step(fetch(i * n + from, from, i * n + from));
          }
          if (n > 1) step(release());
        });
  }
};

/// Each rank writes its block into all outputs: every block is read once.
struct ZeroCopyAllGather : ZeroCopy {
  static constexpr bool kMulticast = true;
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size == 1) return step(copy(0));
    step(refer());
    step(multicast(at.rank));
    step(barrier());
  }
};

struct DirectAllToAll : Staged {
  static constexpr bool kPostsOthers = true;
  OURO_HD int chunks(Place at) const { return at.size * at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    pipeline(
        at.rounds, kStagingLag,
        [&](int i) {
          if (n > 1) step(post(i * n + wrap(r + 1, n), n - 1));
          step(copy(i * n + r));
        },
        [&](int i) {
          for (int d = 1; d < n; ++d) {
            const int from = wrap(r + d, n);
            step(fetch(i * n + from, from, i * n + r));
          }
          if (n > 1) step(release());
        });
  }
};

/// Cannot run with output and input the same: a block from a peer would overwrite the block for that peer,
/// which that peer may not have read yet.
struct ZeroCopyAllToAll : ZeroCopy {
  static constexpr bool kInPlace = false;
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    if (n == 1) return step(copy(0));
    step(refer());
    step(copy(r));
    for (int d = 1; d < n; ++d) {
      const int from = wrap(r + d, n);
      step(fetch(from, from, r));
    }
    step(barrier());
  }
};

/// Collects the blocks of one round of a gather at its root. The root's own block comes first, because the
/// root's input may occupy the place of another block in the output.
template <class Listener>
OURO_HD void collect_blocks(Place at, int round, Listener&& step) {
  const int n = at.size, r = at.rank;
  step(copy(round * n + r));
  for (int d = 1; d < n; ++d) {
    const int from = wrap(r + d, n);
    step(fetch(round * n + from, from, round * n + from));
  }
}

struct DirectGather : Staged {
  static constexpr bool kRooted = true;
  OURO_HD int chunks(Place at) const { return at.size * at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    for (int i = 0; i < at.rounds; ++i) {
      if (at.rank == at.root)
        collect_blocks(at, i, step);
      else
        step(post(i * at.size + at.rank, 1));
      if (at.size > 1) step(release());
    }
  }
};

struct ZeroCopyGather : ZeroCopy {
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size > 1) step(refer());
    if (at.rank == at.root) collect_blocks(at, 0, step);
    if (at.size > 1) step(barrier());
  }
};

struct DirectScatter : Staged {
  static constexpr bool kRooted = true;
  static constexpr bool kPostsOthers = true;
  OURO_HD int chunks(Place at) const { return at.size * at.rounds; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    for (int i = 0; i < at.rounds; ++i) {
      if (r == at.root) {
        if (n > 1) step(post(i * n + wrap(r + 1, n), n - 1));
        step(copy(i * n + r));  // last: the root's output may overlap a block that another rank reads
      } else {
        step(fetch(i * n + r, at.root, i * n + r));
      }
      if (n > 1) step(release());
    }
  }
};

struct ZeroCopyScatter : ZeroCopy {
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int r = at.rank;
    if (at.size == 1) return step(copy(0));
    step(refer());
    if (r != at.root) step(fetch(r, at.root, r));
    step(barrier());
    if (r == at.root) step(copy(r));  // last: the root's output may overlap a block that another rank reads
  }
};

// Pull flows: buffers need not be registered, and each rank copies what it needs out of them: one
// copy in all.

struct Pull : ZeroCopy {
  static constexpr bool kPulls = true;
};

/// Two-shot: each rank reduces its slice of all inputs into its own output, then all ranks collect
/// the slices.
struct PullAllReduce : Pull {
  static constexpr bool kPostsResult = true;
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    if (n == 1) return step(store_input(0));
    step(refer());
    step(reduce_posted(r, r));
    step(barrier());
    for (int d = 1; d < n; ++d) {
      const int from = wrap(r + d, n);
      step(fetch_result(from, from));
    }
    step(barrier());
  }
};

struct PullReduceScatter : Pull {
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    ZeroCopyReduceScatter{}(at, step);
  }
};

struct PullBroadcast : Pull {
  OURO_HD int chunks(Place) const { return 1; }
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    if (at.size > 1) step(refer());
    step(at.rank == at.root ? Step(copy(0)) : fetch(0, at.root, 0));
    if (at.size > 1) step(barrier());
  }
};

struct PullAllGather : Pull {
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    const int n = at.size, r = at.rank;
    if (n > 1) step(refer());
    step(copy(r));
    for (int d = 1; d < n; ++d) {
      const int from = wrap(r + d, n);
      step(fetch(from, from, from));
    }
    if (n > 1) step(barrier());
  }
};

struct PullAllToAll : Pull {
  static constexpr bool kInPlace = false;
  template <class Listener>
  OURO_HD void operator()(Place at, Listener&& step) const {
    ZeroCopyAllToAll{}(at, step);
  }
};

}  // namespace ouro::flow
