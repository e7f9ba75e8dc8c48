// Hierarchical flows: one hop over links inside a host, and as few bytes as possible between hosts. Used
// through list.h by the host executor, the verifier and the simulator.
#pragma once
#include <algorithm>

#include "kernels/flow/chain.h"
#include "kernels/flow/hosts.h"

namespace ouro::flow {

// The network link of a host is the bottleneck: no value crosses it twice in one direction. The ranks of a
// host take turns in communicating with other hosts (as the *owners* of chunks there), so that all
// of them work.
//
// No rank waits forever, with two slots per link, whatever the sizes of the hosts. The reason: a flow is a
// sequence of turns, the same for all ranks, and a turn is a sequence of phases. Each message that a rank
// receives was sent in an earlier phase. Each message that it sends goes into the slot of the last message
// but one on that link, which the receiver took in an earlier phase. The rank that is furthest behind can
// therefore always proceed.

/// Chunks travel round the hosts in groups; a group has as many chunks as the smallest host has ranks, its
/// *lanes*. On each host, chunk c is owned by the rank with index c modulo the host's size. The owner sums up
/// the inputs of its host, adds the sum received from the host before, and passes the result on. The finished
/// chunk travels round in the other direction, so that a link carries one message per turn, and from each
/// owner to the other ranks of its host. Group g of a round starts on host g and ends on host g-1.
///
/// Each host sends and receives 2(M-1)/M of the data, which is the minimum, and two hops inside hosts are
/// added to the 2(M-1) hops between them. Rounds follow each other without a gap: while one goes round, the
/// inputs of the next turn are in flight to their owners and the results of the last one to all ranks.
struct HierarchyAllReduce : OverHosts {
  static constexpr bool kCanonical = false, kKeeps = true;
  static constexpr bool kPipelined = true;
  HostLayout hosts = {};

  int chunks(Place at) const {
    const Site here(hosts, at);
    return at.rounds * here.count * here.smallest;
  }
  template <class Listener>
  void operator()(Place at, Listener&& step) const {
    const Site here(hosts, at);
    const int m = here.count, turns = at.rounds * m, last = m - 1;
    give(here, 0, step);
    for (int t = 0; t <= turns + last; ++t) {
      const int c = t < turns ? chunk_of(here, here.index, summed_in(here, t)) : kNobody, stage = t % m;
      Sum sum(step, c);
      if (c != kNobody)
        sum.add_mates(here, stage > 0 ? kKept : m == 1 ? kStored : kPassed, owner(here, c, here.host + 1));
      if (t + 1 < turns) give(here, t + 1, step);
      if (c != kNobody && stage > 0) {
        const int from = owner(here, c, here.host - 1);
        if (stage < last)
          sum.add(from, kPassed, owner(here, c, here.host + 1));
        else
          sum.add(from, kStored | kSend, from);
      }
      if (const int u = t - last - 1; u >= 0) take(here, u, step);
      if (const int u = t - last; u >= 0 && u < turns) spread(here, u, step);
    }
  }

 private:
  static int summed_in(const Site& here, int turn) {
    const int m = here.count;
    return turn / m * m + here.ring(here.host - turn % m);
  }
  static int spread_in(const Site& here, int turn) {
    const int m = here.count;
    return turn / m * m + (here.host + turn % m + 1) % m;
  }
  /// The chunk of a group that the rank with index i on my host owns, or kNobody.
  static int chunk_of(const Site& here, int i, int group) {
    const int begin = group * here.smallest, d = wrap(i - begin % here.size, here.size);
    return d < here.smallest ? begin + d : kNobody;
  }
  static int owner(const Site& here, int c, int host) {
    const int q = here.ring(host);
    return here.rank_of(q, c % here.size_of(q));
  }
  /// Sends my inputs to the owners of their chunks. An owner adds up inputs beginning with that of the rank
  /// after it, so each rank serves the owner before it first.
  template <class Listener>
  static void give(const Site& here, int turn, Listener&& step) {
    for (int d = 1; d < here.size; ++d) {
      const int c = chunk_of(here, wrap(here.index - d, here.size), summed_in(here, turn));
      if (c != kNobody) step(send_widened(c, here.mate(-d)));
    }
  }
  template <class Listener>
  static void take(const Site& here, int turn, Listener&& step) {
    for (int d = 1; d < here.size; ++d) {
      const int c = chunk_of(here, wrap(here.index + d, here.size), spread_in(here, turn));
      if (c != kNobody) step(recv(c, here.mate(d)));
    }
  }
  template <class Listener>
  static void spread(const Site& here, int turn, Listener&& step) {
    const int c = chunk_of(here, here.index, spread_in(here, turn)), stage = turn % here.count;
    if (c == kNobody) return;
    if (stage > 0) {
      const int from = owner(here, c, here.host + 1);
      step(stage + 1 < here.count ? Step(forward(c, from, owner(here, c, here.host - 1))) : recv(c, from));
    }
    for (int d = 1; d < here.size; ++d) step(send_result(c, here.mate(-d)));
  }
};

/// The owner of chunk c on host q of a rooted flow: the host's ranks in turn, beginning with the root
/// on its host.
inline int turn_of(const Site& here, int root, int c, int q) {
  const int begin = q == here.host_of(root) ? here.index_of(root) : 0;
  return here.rank_of(q, (c + begin) % here.size_of(q));
}

/// Each chunk travels along the line of hosts that begins with the root's host, and on each host from its
/// owner to the other ranks. Owners pass on a chunk before they receive the previous one from another rank of
/// their host.
struct HierarchyBroadcast : OverHosts {
  static constexpr bool kPipelined = true;
  HostLayout hosts = {};

  int chunks(Place at) const { return at.rounds; }
  template <class Listener>
  void operator()(Place at, Listener&& step) const {
    const Site here(hosts, at);
    const bool is_root = at.rank == at.root;
    const int root_host = here.host_of(at.root), position = here.ring(here.host - root_host);
    const auto owner = [&](int c, int d) { return turn_of(here, at.root, c, here.ring(here.host + d)); };
    pipeline(
        at.rounds, 1,
        [&](int c) {
          const int mine = owner(c, 0), to = position + 1 < here.count ? owner(c, 1) : kNobody;
          if (mine == at.rank) {
            if (is_root && to != kNobody) step(send(c, to));
            if (!is_root) {
              const int from = position == 0 ? at.root : owner(c, -1);
              step(to == kNobody ? Step(recv(c, from)) : forward(c, from, to));
            }
            for (int d = 1; d < here.size; ++d)
              if (here.mate(d) != at.root)
                step(is_root ? Step(send(c, here.mate(d))) : send_result(c, here.mate(d)));
          } else if (is_root) {
            step(send(c, mine));
          } else if (mine == at.root) {
            step(recv(c, mine));  // not later: the root also sends me the chunks that I own
          }
          if (is_root) step(copy(c));
        },
        [&](int c) {
          const int mine = owner(c, 0);
          if (mine != at.rank && mine != at.root && !is_root) step(recv(c, mine));
        });
  }
};

/// The reverse of the broadcast: owners sum up their hosts' inputs, and the sums travel up the line of hosts
/// to the root's host, whose owner passes the total, wide, to the root.
struct HierarchyReduce : OverHosts {
  static constexpr bool kCanonical = false, kKeeps = true;
  static constexpr bool kPipelined = true;
  HostLayout hosts = {};

  int chunks(Place at) const { return at.rounds; }
  template <class Listener>
  void operator()(Place at, Listener&& step) const {
    const Site here(hosts, at);
    const bool is_root = at.rank == at.root;
    const int position = here.ring(here.host - here.host_of(at.root) - 1);
    const auto owner = [&](int c, int d) { return turn_of(here, at.root, c, here.ring(here.host + d)); };
    const auto give = [&](int c) {
      if (c < at.rounds && owner(c, 0) != at.rank) step(send_widened(c, owner(c, 0)));
    };
    // With several hosts, a rank sends its next input before it receives a total, which has to wait for
    // the network.
    const int behind = here.count > 1 ? 1 : 0;
    give(0);
    for (int c = 0; c < at.rounds + behind; ++c) {
      if (c < at.rounds) {
        const bool mine = owner(c, 0) == at.rank;
        const int to = position + 1 < here.count ? owner(c, 1) : is_root ? kNobody : at.root;
        Sum sum(step, c);
        const std::uint32_t leave = to == kNobody ? kStored : kPassed;
        if (mine) sum.add_mates(here, position > 0 ? kKept : leave, to);
        give(c + 1);
        if (mine && position > 0) sum.add(owner(c, -1), leave, to);
      }
      if (const int done = c - behind; is_root && done >= 0 && owner(done, 0) != at.rank)
        step(recv_total(done, owner(done, 0)));
    }
  }
};

// Flows with one block per rank and any number of ranks on each host. A host holds the blocks of one host in
// each stage; it passes them on to the next host in the same stage (all-gather) or in the next one
// (reduce-scatter). A stage consists of windows (turns) of as many blocks as the smallest host has ranks, so
// that no link carries two messages in one phase. A block is stored or kept and passed on one turn later, not
// forwarded in one step: a forward would hold its slot until there is room ahead, and then the argument above
// would not hold for all sizes.

/// Blocks travel round the hosts, and on each host from their owners to the other ranks, so that each host
/// receives each block of the others once. Stage t: a host holds the blocks of the t-th host before it.
struct HierarchyAllGather : OverHosts {
  HostLayout hosts = {};

  int chunks(Place at) const { return at.size; }
  template <class Listener>
  void operator()(Place at, Listener&& step) const {
    const Site here(hosts, at);
    const int me = at.rank, last = here.count - 1;
    const auto blocks = [&](int t) { return here.size_of(here.ring(here.host - t)); };
    // Calls f(x, block, owner) for the blocks of a window.
    const auto each = [&](int t, int begin, auto&& f) {
      const int q = here.ring(here.host - t), end = std::min(begin + here.smallest, here.size_of(q));
      for (int x = begin; x < end; ++x) f(x, here.rank_of(q, x), owner(here, here.host, t, x));
    };
    for (int t = 0; t <= last; ++t) {
      const auto give = [&](int block, int to) {
        step(t == 0 ? Step(send(block, to)) : send_result(block, to));
      };
      const int most = t < last ? std::max(blocks(t), blocks(t + 1)) : blocks(t);
      for (int begin = 0; begin < most; begin += here.smallest) {
        if (t < last)
          each(t, begin, [&](int x, int block, int mine) {
            if (mine == me) give(block, owner(here, here.host + 1, t + 1, x));
          });
        each(t, begin, [&](int, int block, int mine) {
          for (int d = 1; mine == me && d < here.size; ++d) give(block, here.mate(-d));
        });
        if (t == 0 && begin == 0) step(copy(me));
        each(t, begin, [&](int, int block, int mine) {
          if (mine != me) step(recv(block, mine));
        });
        if (t < last)
          each(t + 1, begin, [&](int x, int block, int mine) {
            if (mine == me) step(recv(block, owner(here, here.host - 1, t, x)));
          });
      }
    }
  }

 private:
  /// The owner of block x of stage t. A host's own blocks (t = 0) are owned by their own ranks.
  static int owner(const Site& here, int host, int t, int x) {
    const int q = here.ring(host), earlier = t == 0 ? 0 : here.ranks_on(here.ring(q - t + 1), t);
    return here.rank_of(q, (earlier + x) % here.size_of(q));
  }
};

/// The reverse of the all-gather: sums of the blocks of host q travel round from host q+1 to q, each host
/// adds its own inputs, and sends each block of another host once. Stage t: a host holds the blocks of the
/// (t+1)-th host before it, in the last stage its own.
struct HierarchyReduceScatter : OverHosts {
  static constexpr bool kCanonical = false, kKeeps = true;
  HostLayout hosts = {};

  int chunks(Place at) const { return at.size; }
  template <class Listener>
  void operator()(Place at, Listener&& step) const {
    const Site here(hosts, at);
    const int me = at.rank, last = here.count - 1;
    const auto blocks = [&](int t) { return here.size_of(here.ring(here.host - t - 1)); };
    const auto each = [&](int t, int begin, auto&& f) {
      const int q = here.ring(here.host - t - 1), end = std::min(begin + here.smallest, here.size_of(q));
      for (int x = begin; x < end; ++x) f(x, here.rank_of(q, x), owner(here, here.host, t, x));
    };
    for (int t = 0; t <= last; ++t) {
      const int most = t > 0 ? std::max(blocks(t - 1), blocks(t)) : blocks(t);
      for (int begin = 0; begin < most; begin += here.smallest) {
        if (t > 0)
          each(t - 1, begin, [&](int x, int block, int mine) {
            const bool kept = t > 1 || here.size > 1;
            if (mine == me) Sum(step, block, kept).pass(owner(here, here.host + 1, t, x));
          });
        each(t, begin, [&](int, int block, int mine) {
          if (mine != me) step(send_widened(block, mine));
        });
        each(t, begin, [&](int, int block, int mine) {
          if (mine == me) Sum(step, block).add_mates(here, last == 0 ? kStored : kKept);
        });
        if (t > 0)
          each(t, begin, [&](int x, int block, int mine) {
            if (mine != me) return;
            Sum(step, block, here.size > 1)
                .add(owner(here, here.host - 1, t - 1, x), t == last ? kStored : kKept);
          });
      }
    }
  }

 private:
  /// The owner of block x of stage t. A host's own blocks, in its last stage, are owned by their own ranks.
  static int owner(const Site& here, int host, int t, int x) {
    const int q = here.ring(host), size = here.size_of(q);
    const int still = here.ranks_on(here.ring(q + 1), here.count - t - 1);
    return here.rank_of(q, (x + size - still % size) % size);
  }
};

/// The first rank of each host waits for the other ranks of its host, exchanges messages with the hosts at
/// distances 1, 2, 4, ..., and then notifies the other ranks of its host.
struct HierarchyBarrier : OverHosts {
  HostLayout hosts = {};

  int chunks(Place) const { return 1; }
  template <class Listener>
  void operator()(Place at, Listener&& step) const {
    const Site here(hosts, at);
    const auto leader = [&](int host) { return here.rank_of(here.ring(host), 0); };
    if (here.index != 0) {
      step(send(0, leader(here.host)));
      return step(recv(0, leader(here.host)));
    }
    for (int d = 1; d < here.size; ++d) step(recv(0, here.mate(d)));
    for (int d = 1; d < here.count; d *= 2) {
      step(send(0, leader(here.host + d)));
      step(recv(0, leader(here.host - d)));
    }
    for (int d = 1; d < here.size; ++d) step(send(0, here.mate(d)));
  }
};

}  // namespace ouro::flow
