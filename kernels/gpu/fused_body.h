// The bodies of the fused kernels: one collective over the buffers of all ranks. Included by collect_body.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/arith/cases.h"
#include "kernels/gpu/collect.h"
#include "kernels/gpu/sweep.h"
#include "runtime/core/collectives.h"

namespace ouro::gpu::collect {

// ---- Pieces of a collective.

OURO_HD bool moves(Collective c) { return traits_of(c).moves() && !traits_of(c).reduces(); }
OURO_HD int pieces_of(const FusedArgs& a) {
  const CollectiveTraits traits = traits_of(a.collective);
  if (!traits.moves() || traits.neighbours()) return 0;  // neighbour collectives run on the host only
  if (!traits.blocks()) return 1;
  const bool pairs = traits.in.many() && traits.out.many();  // includes each rank's pair with itself
  return pairs ? a.ranks * (a.ranks + 1) / 2 : a.ranks;
}
/// The message from rank p to q of an all_to_all: where it begins in p's input and in q's output, and its
/// number of elements.
struct Message {
  std::uint64_t in, out, count;
};
OURO_HD Message message(const FusedArgs& a, int p, int q) {
  if (!a.uneven)
    return {static_cast<std::uint64_t>(q) * a.count, static_cast<std::uint64_t>(p) * a.count, a.count};
  return {a.send_offsets[p][q], a.recv_offsets[q][p], a.send_offsets[p][q + 1] - a.send_offsets[p][q]};
}
/// The ranks of pair k. Pairs are ordered by the distance between their ranks round the circle, from 0 on,
/// each pair once.
OURO_HD int first_of(int k, int ranks) { return k % ranks; }
OURO_HD int second_of(int k, int ranks) { return (k % ranks + k / ranks) % ranks; }

/// Number of elements before piece k, and in it.
OURO_HD std::uint64_t before(const FusedArgs& a, int k) {
  return a.uneven ? a.offsets[k] : static_cast<std::uint64_t>(k) * a.count;
}
OURO_HD std::uint64_t elements_in(const FusedArgs& a, int k) {
  if (!a.uneven) return a.count;
  if (a.collective != Collective::all_to_all) return a.offsets[k + 1] - a.offsets[k];
  const int p = first_of(k, a.ranks), q = second_of(k, a.ranks);
  const std::uint64_t there = message(a, p, q).count, back = message(a, q, p).count;
  return there > back ? there : back;
}
OURO_HD std::uint64_t elements(const FusedArgs& a) {
  std::uint64_t sum = 0;
  if (!a.uneven) return static_cast<std::uint64_t>(pieces_of(a)) * a.count;
  for (int k = 0; k < pieces_of(a); ++k) sum += elements_in(a, k);
  return sum;
}

// ---- Fused kernels.

template <class Block>
OURO_HD void copy(const Share<Block>& share, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (to == nullptr || to == from) return;
  sweep_bytes<kMoveDepth>(share, address(to) ^ address(from), from, bytes, Multicast{from, &to, 1, 0});
}

/// Pair k of an all_to_all.
template <class Block>
OURO_HD void exchange(const FusedArgs& a, int k, const Share<Block>& share, std::uint64_t size) {
  const int p = first_of(k, a.ranks), q = second_of(k, a.ranks);
  const Message there = message(a, p, q), back = message(a, q, p);
  const std::byte *const from0 = a.in[p] + there.in * size, *const from1 = a.in[q] + back.in * size;
  std::byte* const to0 = a.out[q] == nullptr ? nullptr : a.out[q] + there.out * size;
  std::byte* const to1 = a.out[p] == nullptr ? nullptr : a.out[p] + back.out * size;
  if (p == q) return copy(share, to0, from0, there.count * size);
  if (there.count != back.count || to0 == nullptr || to1 == nullptr) {
    // Neither is in place, or the destination that overlaps a source is not written.
    copy(share, to0, from0, there.count * size);
    copy(share, to1, from1, back.count * size);
    return;
  }
  const std::uintptr_t differ =
      (address(from0) ^ address(to0)) | (address(from0) ^ address(from1)) | (address(from0) ^ address(to1));
  sweep_bytes<kMoveDepth / 2>(share, differ, from0, there.count * size, Exchange{from0, from1, to0, to1});
}

template <class Block>
OURO_HD void fused_move(const FusedArgs& a, const Block& at) {
  if (stopped(a.stop)) return;
  const std::uint64_t size = bytes_of(a.dtype);
  const std::byte* out = nullptr;  // one output; all others differ from it in the bits `differ`
  std::uintptr_t differ = 0;
  for (int r = 0; r < a.ranks; ++r) {
    if (a.out[r] == nullptr) continue;
    if (out == nullptr) out = a.out[r];
    differ |= address(a.out[r]) ^ address(out);
  }
  const auto bytes_in = [&](int k) { return elements_in(a, k) * size; };
  const auto run = [&](int k, const Share<Block>& share) {
    if (a.collective == Collective::all_to_all) return exchange(a, k, share, size);
    const std::uint64_t shift = a.collective == Collective::broadcast ? 0 : before(a, k) * size;
    if (a.collective == Collective::gather) return copy(share, a.out[a.root] + shift, a.in[k], bytes_in(k));
    if (a.collective == Collective::scatter) return copy(share, a.out[k], a.in[a.root] + shift, bytes_in(k));
    const std::byte* const from = a.in[a.collective == Collective::broadcast ? a.root : k];
    sweep_bytes<kMoveDepth>(share, differ | (address(from) ^ (address(out) + shift)), from, bytes_in(k),
                            Multicast{from, a.out, a.ranks, shift});
  };
  share_out(at, depth_for(at, elements(a) * size, kMoveDepth), pieces_of(a), !a.uneven, bytes_in, run);
}

/// Folds one element of each rank, or one unit of elements, in rank order. kRanks 0: the number of ranks is
/// an argument. kAhead of them are loaded before the first is used.
template <class R, int kRanks, int kAhead, Access kAccess>
struct Fold {
  const FusedArgs& a;
  std::uint64_t shift;  // bytes into each input
  int only;             // the only output to write, or -1: all outputs that are set
  template <int kPer, int kUnroll>
  OURO_HD void operator()(std::uint64_t at, std::uint64_t stride) const {
    using T = typename R::Element;
    using Acc = typename R::Acc;
    constexpr int kBytes = kPer * static_cast<int>(sizeof(T));
    constexpr int kBatch =
        kAccess == Access::any && kPer == 1 ? 1 : kAhead;  // few elements: short code rather than fast
    [[maybe_unused]] constexpr int kStores = kRanks > 0 ? kRanks : 1;
    const int n = kRanks > 0 ? kRanks : a.ranks;
    const auto place = [&](int u) { return (at + static_cast<std::uint64_t>(u) * stride) * sizeof(T); };
    Acc acc[kUnroll][kPer] = {};
    for (int q = 0; q < n; q += kBatch) {
      Bits x[kUnroll][kBatch];
      OURO_UNROLL
      for (int u = 0; u < kUnroll; ++u) {
        OURO_UNROLL
        for (int j = 0; j < kBatch; ++j)
          if (kRanks > 0 || q + j < n) load<kBytes, kAccess>(x[u][j], a.in[q + j] + shift + place(u));
      }
      OURO_UNROLL
      for (int j = 0; j < kBatch; ++j) {
        if (kRanks == 0 && q + j >= n) break;
        Acc factor = {};
        if constexpr (R::kScaled) factor = R::factor(a.premul[q + j]);
        OURO_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
          OURO_UNROLL
          for (int e = 0; e < kPer; ++e) {
            const Acc v = lift<R>(get<T>(x[u][j], e), factor);
            acc[u][e] = j == 0 && q == 0 ? v : R::combine(acc[u][e], v);
          }
        }
      }
    }
    OURO_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      Bits y;
      OURO_UNROLL
      for (int e = 0; e < kPer; ++e) set(y, e, finish<R>(acc[u][e], n));
      if (only >= 0) {
        store<kBytes, kAccess>(a.out[only] + place(u), y);
      } else {
        OURO_UNROLL_BY(kStores)
        for (int r = 0; r < n; ++r)
          if (a.out[r] != nullptr) store<kBytes, kAccess>(a.out[r] + place(u), y);
      }
    }
  }
};

OURO_HD bool scatters(const FusedArgs& a) { return a.collective == Collective::reduce_scatter; }

/// A hot reduction: all arrays are aligned to their elements.
template <class R, int kRanks, class Block>
OURO_HD void fused_hot(const FusedArgs& a, const Block& at) {
  if (stopped(a.stop)) return;
  constexpr int kSize = static_cast<int>(sizeof(typename R::Element)), kPer = 16 / kSize;
  constexpr int kAhead = kRanks > 0 ? kRanks : 8;
  constexpr int kUnroll = kRanks > 0 ? 8 / kRanks : 1;  // eight loads in flight
  const int n = kRanks > 0 ? kRanks : a.ranks;
  std::uintptr_t differ = 0;  // bits in which the addresses of arrays that move together differ
  bool in_place = false;
  OURO_UNROLL
  for (int r = 0; r < n; ++r) {
    differ |= address(a.in[r]) ^ address(a.in[0]);
    if (a.out[r] == nullptr) continue;
    if (!scatters(a)) differ |= address(a.out[r]) ^ address(a.in[0]);
    in_place |= a.out[r] == a.in[r] + (scatters(a) ? before(a, r) * kSize : 0);
  }
  const auto bytes_in = [&](int k) { return elements_in(a, k) * kSize; };
  const auto run = [&](int k, const Share<Block>& share) {
    const std::uint64_t shift = scatters(a) ? before(a, k) * kSize : 0, count = elements_in(a, k);
    const int only = scatters(a) ? k : -1;
    if (scatters(a) && a.out[k] == nullptr) return;
    const std::uintptr_t begin = address(a.in[0]) + shift;
    const Fold<R, kRanks, kAhead, Access::plain> plain = {a, shift, only};
    if ((differ | (scatters(a) ? begin ^ address(a.out[k]) : 0)) % 16 != 0)
      sweep<1, kPer, 1>(share, 0, count, plain);
    else if (in_place)
      sweep<kPer, 1, kUnroll>(share, elements_to(begin, 16, kSize), count, plain);
    else
      sweep<kPer, 1, kUnroll>(share, elements_to(begin, 16, kSize), count,
                              Fold<R, kRanks, kAhead, Access::constant>{a, shift, only});
  };
  share_out(at, depth_for(at, elements(a) * kSize, kUnroll), pieces_of(a), !a.uneven, bytes_in, run);
}

/// One block's share of a piece, for any other reduction, at any addresses.
template <class Block>
struct FoldGeneric {
  const FusedArgs& a;
  const Share<Block>& share;
  std::uint64_t shift, head, count;
  int only;
  template <class R>
  OURO_HD_OUTLINE void operator()() const {
    constexpr int kPer = 16 / static_cast<int>(sizeof(typename R::Element));
    sweep<kPer, 1, 1>(share, head, count, Fold<R, 0, 4, Access::any>{a, shift, only});
  }
};
template <class Block>
OURO_HD void fused_generic(const FusedArgs& a, const Block& at) {
  if (stopped(a.stop)) return;
  const std::size_t size = bytes_of(a.dtype);
  const auto bytes_in = [&](int k) { return elements_in(a, k) * size; };
  share_out(at, 1, pieces_of(a), !a.uneven, bytes_in, [&](int k, const Share<Block>& share) {
    if (scatters(a) && a.out[k] == nullptr) return;
    const std::uint64_t shift = scatters(a) ? before(a, k) * size : 0;
    const std::uint64_t head = elements_to(address(a.in[0]) + shift, 16, size);
    arith::with_reduction(a.dtype, a.op,
                          FoldGeneric<Block>{a, share, shift, head, elements_in(a, k), scatters(a) ? k : -1});
  });
}

}  // namespace ouro::gpu::collect
