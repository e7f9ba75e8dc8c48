// A weighted sum of a few host arrays, in one pass. Used by mix.cc and gossip_update.cc.
#pragma once
#include <array>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "kernels/host/host_loops.h"
#include "ouro/ouro.hpp"

namespace ouro::train {

/// out = sum of factor * array, at most three terms; an array with factor zero is left out,
/// whatever it holds.
inline void combine(const View& out, std::initializer_list<std::pair<double, CView>> terms) {
  std::array<const void*, 3> arrays{};
  std::array<Scalar, 3> factors{};
  std::size_t n = 0;
  for (const auto& [factor, view] : terms) {
    if (factor == 0) continue;
    arrays[n] = view.data;
    factors[n++] = {factor, 0};
  }
  if (out.count == 0) return;
  if (n == 0) return static_cast<void>(std::memset(out.data, 0, out.bytes()));
  kernels::fold({.dtype = out.dtype, .op = OpKind::premulsum}, out.data, std::span(arrays).first(n),
                std::span(factors).first(n), out.count);
}

}  // namespace ouro::train
