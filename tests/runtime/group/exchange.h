// Every collective in one callable form, with shapes and expected values: an independent reference without
// algorithms. Used by the tests of collectives.
#pragma once
#include <numeric>
#include <string_view>
#include <vector>

#include "ouro/ouro.hpp"

namespace ouro::test {

/// A collective of the API; `uneven` selects its v-form.
struct Form {
  Collective collective;
  bool uneven = false;
};

/// One call, the same on all ranks.
struct Exchange {
  Form form;
  int n = 1;
  std::size_t count = 0;
  int root = 0;

  /// Elements that rank i has for rank j: for block collectives, the size of block j (all_gather_v: of block
  /// i). The v-forms have blocks of many sizes, some empty.
  std::size_t block(int i, int j) const {
    const auto a = static_cast<std::size_t>(i), b = static_cast<std::size_t>(j);
    if (!form.uneven || count == 0) return count;
    if (form.collective == Collective::all_to_all) return (a + 2 * b) % 3 == 1 ? 0 : count + a + 3 * b;
    return (form.collective == Collective::all_gather ? a : b) % 3 == 1
               ? 0
               : count + (form.collective == Collective::all_gather ? a : b);
  }
  bool reads(int rank) const {
    return (form.collective != Collective::broadcast && form.collective != Collective::scatter) ||
           rank == root;
  }
  bool writes(int rank) const {
    return (form.collective != Collective::reduce && form.collective != Collective::gather) || rank == root;
  }
  bool blocks_in() const {
    return form.collective == Collective::reduce_scatter || form.collective == Collective::scatter ||
           form.collective == Collective::all_to_all;
  }
  bool blocks_out() const {
    return form.collective == Collective::all_gather || form.collective == Collective::gather ||
           form.collective == Collective::all_to_all;
  }
  std::vector<std::size_t> sent(int rank) const {
    std::vector<std::size_t> blocks;
    for (int j = 0; j < n; ++j) blocks.push_back(block(rank, j));
    return blocks;
  }
  std::vector<std::size_t> received(int rank) const {
    std::vector<std::size_t> blocks;
    for (int i = 0; i < n; ++i) blocks.push_back(block(i, rank));
    return blocks;
  }
  static std::size_t before(const std::vector<std::size_t>& blocks, int index) {
    return std::accumulate(blocks.begin(), blocks.begin() + index, std::size_t{0});
  }
  std::size_t in_count(int rank) const { return blocks_in() ? before(sent(rank), n) : block(rank, rank); }
  std::size_t out_count(int rank) const {
    return blocks_out() ? before(received(rank), n) : block(rank, rank);
  }

  /// In place, the small buffer begins this many elements into the large one.
  std::size_t in_place_at(int rank) const {
    if (form.collective == Collective::all_to_all) return 0;
    if (blocks_in()) return before(sent(rank), rank);
    return blocks_out() ? before(received(rank), rank) : 0;
  }

  /// Small integers, whose sums are exact in any order.
  static float value(int rank, std::size_t i) {
    return static_cast<float>((static_cast<std::size_t>(rank) * 5 + i * 3 + (i >> 7)) % 11) - 5;
  }

  /// The complete expected output of `rank`.
  std::vector<float> expected(int rank) const {
    std::vector<float> out;
    const auto sum_from = [&](std::size_t from, std::size_t many) {
      out.resize(many);
      for (std::size_t i = 0; i < many; ++i)
        for (int q = 0; q < n; ++q) out[i] += value(q, from + i);
    };
    const auto append = [&](int source, std::size_t from, std::size_t many) {
      for (std::size_t i = 0; i < many; ++i) out.push_back(value(source, from + i));
    };
    switch (form.collective) {
      case Collective::all_reduce:
      case Collective::reduce:
        sum_from(0, count);
        break;
      case Collective::reduce_scatter:
        sum_from(before(sent(rank), rank), block(rank, rank));
        break;
      case Collective::all_gather:
      case Collective::gather:
        for (int q = 0; q < n; ++q) append(q, 0, block(q, rank));
        break;
      case Collective::broadcast:
        append(root, 0, count);
        break;
      case Collective::scatter:
        append(root, static_cast<std::size_t>(rank) * count, count);
        break;
      case Collective::all_to_all:
        for (int q = 0; q < n; ++q) append(q, before(sent(q), rank), block(q, rank));
        break;
      default:
        break;
    }
    return out;
  }

  Status call(Group& g, CView in, View out, const CallOptions& o) const {
    const int r = g.rank();
    switch (form.collective) {
      case Collective::all_reduce:
        return all_reduce(g, in, out, ReduceOp::sum, o);
      case Collective::reduce:
        return reduce(g, in, out, ReduceOp::sum, root, o);
      case Collective::reduce_scatter:
        if (form.uneven) return reduce_scatter_v(g, in, out, sent(r), ReduceOp::sum, o);
        return reduce_scatter(g, in, out, ReduceOp::sum, o);
      case Collective::all_gather:
        if (form.uneven) return all_gather_v(g, in, out, received(r), o);
        return all_gather(g, in, out, o);
      case Collective::broadcast:
        return broadcast(g, in, out, root, o);
      case Collective::gather:
        return gather(g, in, out, root, o);
      case Collective::scatter:
        return scatter(g, in, out, root, o);
      case Collective::all_to_all:
        if (form.uneven) return all_to_all_v(g, in, out, sent(r), received(r), o);
        return all_to_all(g, in, out, o);
      default:
        return invalid("no such form");
    }
  }
};

}  // namespace ouro::test
