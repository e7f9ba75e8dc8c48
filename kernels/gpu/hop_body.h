// The bodies of the hop kernels: one step of a flow over one chunk. Included by collect_body.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/arith/cases.h"
#include "kernels/arith/wire.h"
#include "kernels/gpu/collect.h"
#include "kernels/gpu/sweep.h"

namespace ouro::gpu::collect {

/// Whether a hop only copies bytes: one source, unchanged, to destinations of the same kind (wide or narrow).
OURO_HD bool only_moves(const HopArgs& a) {
  if ((a.incoming != nullptr) == (a.mine != nullptr)) return false;
  if (a.incoming != nullptr && a.weight != 1) return false;
  const bool wide = a.incoming != nullptr ? a.incoming_wide : a.mine_wide;
  if (a.send != nullptr && a.send_wide != wide) return false;
  return wide ? a.store == nullptr : a.keep == nullptr;
}

template <class Block>
OURO_HD void hop_move(const HopArgs& a, const Block& at) {
  if (stopped(a.stop)) return;
  const std::byte* const from = a.incoming != nullptr ? a.incoming : a.mine;
  const bool wide = a.incoming != nullptr ? a.incoming_wide : a.mine_wide;
  const std::uint64_t bytes = a.count * (wide ? arith::accumulator_bytes(a.dtype, a.op) : bytes_of(a.dtype));
  std::byte* const to[] = {a.store, a.keep, a.send};
  std::uintptr_t differ = 0;
  OURO_UNROLL
  for (int i = 0; i < 3; ++i)
    if (to[i] != nullptr) differ |= address(to[i]) ^ address(from);
  share_out(
      at, depth_for(at, bytes, kMoveDepth), 1, true, [&](int) { return bytes; },
      [&](int, const Share<Block>& share) {
        sweep_bytes<kMoveDepth>(share, differ, from, bytes, Multicast{from, to, 3, 0});
      });
}

template <class R, Access kAccess>
struct Hop {
  using T = typename R::Element;
  using Acc = typename R::Acc;
  using Unscaled = std::conditional_t<R::kScaled, arith::Sum<T>, R>;  // premul applies to `mine` only
  static constexpr int kNarrow = static_cast<int>(sizeof(T)), kWide = static_cast<int>(sizeof(Acc));
  const HopArgs& a;
  Acc factor;
  template <int kPer>
  static OURO_HD void read(Bits& x, const std::byte* p, bool wide, std::uint64_t i) {
    if (p == nullptr) return;
    if (wide)
      load<kPer * kWide, kAccess>(x, p + i * sizeof(Acc));
    else
      load<kPer * kNarrow, kAccess>(x, p + i * sizeof(T));
  }
  template <int kPer>
  OURO_HD void write(std::byte* p, bool wide, std::uint64_t i, const Acc* v) const {
    if (p == nullptr) return;
    Bits y;
    if (wide) {
      OURO_UNROLL
      for (int e = 0; e < kPer; ++e) set(y, e, arith::settle(v[e]));
      store<kPer * kWide, kAccess>(p + i * sizeof(Acc), y);
    } else {
      OURO_UNROLL
      for (int e = 0; e < kPer; ++e) set(y, e, finish<R>(v[e], a.ranks));
      store<kPer * kNarrow, kAccess>(p + i * sizeof(T), y);
    }
  }
  template <int kPer, int kUnroll>
  OURO_HD void operator()(std::uint64_t at, std::uint64_t stride) const {
    Bits x[kUnroll], y[kUnroll];
    OURO_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      read<kPer>(x[u], a.incoming, a.incoming_wide, at + static_cast<std::uint64_t>(u) * stride);
      read<kPer>(y[u], a.mine, a.mine_wide, at + static_cast<std::uint64_t>(u) * stride);
    }
    OURO_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      const std::uint64_t i = at + static_cast<std::uint64_t>(u) * stride;
      Acc v[kPer] = {};
      OURO_UNROLL
      for (int e = 0; e < kPer; ++e) {
        if (a.incoming != nullptr) {
          v[e] = a.incoming_wide ? get<Acc>(x[u], e) : lift<Unscaled>(get<T>(x[u], e), Acc{});
          if (a.weight != 1) v[e] = arith::weigh(v[e], a.weight);
        }
        if (a.mine != nullptr) {
          const Acc own = a.mine_wide ? get<Acc>(y[u], e) : lift<R>(get<T>(y[u], e), factor);
          v[e] = a.incoming != nullptr ? R::combine(v[e], own) : own;
        }
      }
      write<kPer>(a.store, false, i, v);
      write<kPer>(a.keep, true, i, v);
      write<kPer>(a.send, a.send_wide, i, v);
    }
  }
};

/// The alignment of a hop's arrays: whether the narrow and the wide ones reach an aligned unit after the same
/// number of elements.
template <class T, class Acc>
struct Lie {
  static constexpr std::size_t kPer = 16 / sizeof(Acc);
  std::uint64_t head = 0;
  bool any = false, alike = true;
  OURO_HD void add(const std::byte* p, bool wide) {
    if (p == nullptr) return;
    const std::size_t size = wide ? sizeof(Acc) : sizeof(T);
    const std::uint64_t h = elements_to(address(p), kPer * size, size);
    alike &= !any || h == head;
    head = h;
    any = true;
  }
};

template <class R>
OURO_HD typename R::Acc factor_of(const Scalar& premul) {
  if constexpr (R::kScaled)
    return R::factor(premul);
  else
    return {};
}

/// A hot reduction: all arrays are aligned to their elements.
template <class R, class Block>
OURO_HD void hop_hot(const HopArgs& a, const Block& at) {
  if (stopped(a.stop)) return;
  using T = typename R::Element;
  using Acc = typename R::Acc;
  constexpr int kSize = static_cast<int>(sizeof(Acc)), kPer = 16 / kSize,
                kUnroll = 2;  // four loads in flight; more would spill registers
  Lie<T, Acc> lie;
  lie.add(a.incoming, a.incoming_wide);
  lie.add(a.mine, a.mine_wide);
  lie.add(a.store, false);
  lie.add(a.keep, true);
  lie.add(a.send, a.send_wide);
  const auto written = [&](const std::byte* p) {
    return p != nullptr && (p == a.store || p == a.keep || p == a.send);
  };
  const auto run = [&](int, const Share<Block>& share) {
    const Hop<R, Access::plain> plain = {a, factor_of<R>(a.premul)};
    if (!lie.alike)
      sweep<1, kPer, 1>(share, 0, a.count, plain);
    else if (written(a.incoming) || written(a.mine))
      sweep<kPer, 1, kUnroll>(share, lie.head, a.count, plain);
    else
      sweep<kPer, 1, kUnroll>(share, lie.head, a.count, Hop<R, Access::constant>{a, plain.factor});
  };
  const std::uint64_t bytes = a.count * kSize;
  share_out(
      at, depth_for(at, bytes, kUnroll), 1, true, [&](int) { return bytes; }, run);
}

template <class Block>
struct HopGeneric {
  const HopArgs& a;
  const Share<Block>& share;
  template <class R>
  OURO_HD_OUTLINE void operator()() const {
    using Acc = typename R::Acc;
    Lie<typename R::Element, Acc> lie;
    lie.add(a.incoming != nullptr ? a.incoming : a.mine,
            a.incoming != nullptr ? a.incoming_wide : a.mine_wide);
    sweep<16 / static_cast<int>(sizeof(Acc)), 1, 1>(share, lie.head, a.count,
                                                    Hop<R, Access::any>{a, factor_of<R>(a.premul)});
  }
};
template <class Block>
OURO_HD void hop_generic(const HopArgs& a, const Block& at) {
  if (stopped(a.stop)) return;
  const std::uint64_t bytes = a.count * arith::accumulator_bytes(a.dtype, a.op);
  share_out(
      at, 1, 1, true, [&](int) { return bytes; },
      [&](int, const Share<Block>& share) {
        arith::with_reduction(a.dtype, a.op, HopGeneric<Block>{a, share});
      });
}

}  // namespace ouro::gpu::collect
