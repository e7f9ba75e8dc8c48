// How arrays are divided among blocks and traversed: pieces, tiles, units; and the loops that move bytes.
// Used by the bodies of the collective kernels, fused_body.h and hop_body.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/gpu/access.h"
#include "kernels/gpu/block.h"
#include "runtime/core/types.h"

namespace ouro::gpu::collect {

inline constexpr int kMoveDepth = 4;

inline constexpr int kThreads = 256;  // per block, on a device

OURO_HD std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
OURO_HD std::size_t bytes_of(DType t) { return size_of(t); }

// ---- Sharing out: a piece is cut into tiles of 16 bytes per thread (times a depth, if there is enough data
// for all blocks); the tiles of all pieces, one after the other, are assigned to the blocks in turn.

OURO_HD std::uint64_t tiles_of(std::uint64_t bytes, int threads, int depth) {
  const std::uint64_t tile = std::uint64_t{16} * static_cast<std::uint64_t>(threads * depth);
  return (bytes + tile - 1) / tile;
}

/// One block's share of a piece: tiles first, first + blocks, ... of `tiles`.
template <class Block>
struct Share {
  Block at;
  int depth;  // steps of 16 bytes per thread in a tile
  std::uint64_t first, tiles;
};

/// `most` if `bytes` in total give every block a tile of that depth, else 1.
template <class Block>
OURO_HD int depth_for(const Block& at, std::uint64_t bytes, int most) {
  return tiles_of(bytes, at.threads(), most) >= static_cast<std::uint64_t>(at.blocks()) ? most : 1;
}

/// Calls run(k, share) for each piece of which this block has a share. `even`: all pieces have the same
/// number of bytes.
template <class Block, class Bytes, class Run>
OURO_HD void share_out(const Block& at, int depth, int pieces, bool even, const Bytes& bytes_in,
                       const Run& run) {
  const auto blocks = static_cast<std::uint64_t>(at.blocks());
  std::uint64_t tile = static_cast<std::uint64_t>(at.block());
  for (int k = 0; k < pieces;) {
    const std::uint64_t tiles = tiles_of(bytes_in(k), at.threads(), depth);
    if (tile < tiles) {
      run(k, Share<Block>{at, depth, tile, tiles});
      if (++k < pieces) tile += (tiles - tile + blocks - 1) / blocks * blocks - tiles;
    } else {  // tile < blocks, so `skip` fits into an int
      const std::uint64_t skip = even && pieces > 1 && tiles > 0 ? tile / tiles : 1;
      tile -= skip * tiles;
      k += static_cast<int>(skip);
    }
  }
}

/// Traverses a share of a piece of `count` elements in units of kPer elements, kSteps units per step, from
/// element `head` on; elements outside whole units are processed one by one. f<kPer, kUnroll>(element,
/// stride) processes kUnroll units.
template <int kPer, int kSteps, int kUnroll, class Block, class F>
OURO_HD void sweep(const Share<Block>& share, std::uint64_t head, std::uint64_t count, const F& f) {
  const auto thread = static_cast<std::uint64_t>(share.at.thread());
  const auto threads = static_cast<std::uint64_t>(share.at.threads());
  const std::uint64_t units = count > head ? (count - head) / kPer : 0;
  if constexpr (kPer > 1) {
    const std::uint64_t rest = count - units * kPer;
    if (share.first == 0)
      for (std::uint64_t i = thread; i < rest; i += threads)
        f.template operator()<1, 1>(i < head ? i : i + units * kPer, 0);
  }
  const int steps = share.depth * kSteps;
  for (std::uint64_t tile = share.first; tile < share.tiles;
       tile += static_cast<std::uint64_t>(share.at.blocks())) {
    std::uint64_t unit = tile * static_cast<std::uint64_t>(steps) * threads + thread;
    for (int s = 0; s < steps;) {
      if (s + kUnroll <= steps && unit + (kUnroll - 1) * threads < units) {
        f.template operator()<kPer, kUnroll>(head + unit * kPer, threads * kPer);
        s += kUnroll;
        unit += kUnroll * threads;
      } else {
        if (unit < units) f.template operator()<kPer, 1>(head + unit * kPer, 0);
        ++s;
        unit += threads;
      }
    }
  }
}

/// Number of elements of `size` bytes from `p` to the next address aligned to `unit` bytes (a power of two).
OURO_HD std::uint64_t elements_to(std::uintptr_t p, std::size_t unit, std::size_t size) {
  return ((0 - p) & (unit - 1)) / size;
}

// ---- Movement: bytes, in the widest units for which all arrays of a piece have the same alignment.

/// A sweep over bytes. `differ`: bits in which the addresses of the arrays differ; `any`: the address of
/// one of them.
template <int kUnroll, class Block, class F>
OURO_HD void sweep_bytes(const Share<Block>& share, std::uintptr_t differ, const std::byte* any,
                         std::uint64_t bytes, const F& f) {
  const std::uintptr_t p = address(any);
  if (differ % 16 == 0) return sweep<16, 1, kUnroll>(share, elements_to(p, 16, 1), bytes, f);
  if (differ % 8 == 0) return sweep<8, 2, kUnroll>(share, elements_to(p, 8, 1), bytes, f);
  if (differ % 4 == 0) return sweep<4, 4, kUnroll>(share, elements_to(p, 4, 1), bytes, f);
  if (differ % 2 == 0) return sweep<2, 8, kUnroll>(share, elements_to(p, 2, 1), bytes, f);
  return sweep<1, 16, kUnroll>(share, 0, bytes, f);
}

/// Copies one array to several; those that are null, or are the source itself, are skipped.
struct Multicast {
  const std::byte* from;
  std::byte* const* to;
  int n;
  std::uint64_t shift;  // bytes into each of `to`
  template <int kPer, int kUnroll>
  OURO_HD void operator()(std::uint64_t at, std::uint64_t stride) const {
    Bits x[kUnroll];
    OURO_UNROLL
    for (int u = 0; u < kUnroll; ++u)
      load<kPer, Access::constant>(x[u], from + at + static_cast<std::uint64_t>(u) * stride);
    for (int r = 0; r < n; ++r) {
      if (to[r] == nullptr || to[r] + shift == from) continue;
      OURO_UNROLL
      for (int u = 0; u < kUnroll; ++u)
        store<kPer, Access::plain>(to[r] + shift + at + static_cast<std::uint64_t>(u) * stride, x[u]);
    }
  }
};

/// Two copies, each of which may write what the other reads: both are read before either is written.
struct Exchange {
  const std::byte *from0, *from1;
  std::byte *to0, *to1;
  template <int kPer, int kUnroll>
  OURO_HD void operator()(std::uint64_t at, std::uint64_t stride) const {
    Bits x[kUnroll], y[kUnroll];
    OURO_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      const std::uint64_t i = at + static_cast<std::uint64_t>(u) * stride;
      load<kPer, Access::plain>(x[u], from0 + i);
      load<kPer, Access::plain>(y[u], from1 + i);
    }
    OURO_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      const std::uint64_t i = at + static_cast<std::uint64_t>(u) * stride;
      store<kPer, Access::plain>(to0 + i, x[u]);
      store<kPer, Access::plain>(to1 + i, y[u]);
    }
  }
};

}  // namespace ouro::gpu::collect
