// The collectives, as methods of Group.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "api/python/src/submit.h"

namespace ouro::python {
namespace {

using namespace nb::literals;
using Counts = std::vector<std::size_t>;
using Name = std::optional<std::string>;

/// The keyword arguments of all collectives.
struct Call {
  Call(const Name& numerics_name, const Name& algorithm) : name(algorithm.value_or("")) {
    options.numerics = numerics(numerics_name);
    options.algorithm = name;
  }
  Call(const Call&) = delete;
  std::string name;
  CallOptions options;
};

/// Input and output of a call. Without an output, or with the same array, the operation works in place
/// on the input.
struct Pair {
  Pair(nb::handle in, nb::handle out) : result(nb::borrow(out.is_none() ? in : out)) {
    arrays.reserve(2);
    const bool same = out.is_none() || out.is(in);
    arrays.emplace_back(in, "x", same);
    if (!same) arrays.emplace_back(out, "out", true);
  }
  CView in() const { return arrays.front().cview(); }
  View out() const { return arrays.back().view(); }
  Arrays arrays;
  nb::object result;
};

nb::object all_reduce_of(Group& g, nb::handle x, nb::handle out, nb::handle op, OptionalStream stream,
                         Name numerics_name, Name algorithm) {
  Pair p(x, out);
  const Call call(numerics_name, algorithm);
  const ReduceOp how = reduction(op);
  const CView a = p.in();
  const View b = p.out();
  return submit(std::move(p.arrays), std::move(p.result), stream,
                [&](auto&&... s) { return all_reduce(g, a, b, how, s..., call.options); });
}

nb::object reduce_of(Group& g, nb::handle x, nb::handle out, int root, nb::handle op, OptionalStream stream,
                     Name numerics_name, Name algorithm) {
  const Call call(numerics_name, algorithm);
  const ReduceOp how = reduction(op);
  const bool writes = g.rank() == root;
  Arrays arrays;
  arrays.emplace_back(x, "x", writes && (out.is_none() || out.is(x)));
  if (!out.is_none() && !out.is(x) && writes) arrays.emplace_back(out, "out", true);
  const CView a = arrays.front().cview();
  const View b = writes ? arrays.back().view() : View();
  return submit(std::move(arrays), nb::borrow(out.is_none() ? x : out), stream,
                [&](auto&&... s) { return reduce(g, a, b, how, root, s..., call.options); });
}

nb::object broadcast_of(Group& g, nb::handle x, int root, OptionalStream stream, Name algorithm) {
  Arrays arrays;
  arrays.emplace_back(x, "x", g.rank() != root);
  const View b = arrays.front().view();
  const Call call({}, algorithm);
  return submit(std::move(arrays), nb::borrow(x), stream,
                [&](auto&&... s) { return broadcast(g, b, b, root, s..., call.options); });
}

nb::object all_gather_of(Group& g, nb::handle x, nb::handle out, std::optional<Counts> counts,
                         OptionalStream stream, Name algorithm) {
  Pair p(x, out);
  const CView a = p.in();
  const View b = p.out();
  const Call call({}, algorithm);
  return submit(std::move(p.arrays), std::move(p.result), stream, [&](auto&&... s) {
    return counts ? all_gather_v(g, a, b, *counts, s..., call.options)
                  : all_gather(g, a, b, s..., call.options);
  });
}

nb::object reduce_scatter_of(Group& g, nb::handle x, nb::handle out, nb::handle op,
                             std::optional<Counts> counts, OptionalStream stream, Name numerics_name,
                             Name algorithm) {
  Pair p(x, out);
  const CView a = p.in();
  const View b = p.out();
  const Call call(numerics_name, algorithm);
  const ReduceOp how = reduction(op);
  return submit(std::move(p.arrays), std::move(p.result), stream, [&](auto&&... s) {
    return counts ? reduce_scatter_v(g, a, b, *counts, how, s..., call.options)
                  : reduce_scatter(g, a, b, how, s..., call.options);
  });
}

nb::object gather_of(Group& g, nb::handle x, nb::handle out, int root, OptionalStream stream,
                     Name algorithm) {
  Arrays arrays;
  arrays.emplace_back(x, "x", false);
  if (g.rank() == root) arrays.emplace_back(out, "out", true);
  const CView a = arrays.front().cview();
  const View b = g.rank() == root ? arrays.back().view() : View();
  const Call call({}, algorithm);
  return submit(std::move(arrays), nb::borrow(out), stream,
                [&](auto&&... s) { return gather(g, a, b, root, s..., call.options); });
}

nb::object scatter_of(Group& g, nb::handle x, nb::handle out, int root, OptionalStream stream,
                      Name algorithm) {
  Arrays arrays;
  if (g.rank() == root) arrays.emplace_back(x, "x", false);
  arrays.emplace_back(out, "out", true);
  const CView a = g.rank() == root ? arrays.front().cview() : CView();
  const View b = arrays.back().view();
  const Call call({}, algorithm);
  return submit(std::move(arrays), nb::borrow(out), stream,
                [&](auto&&... s) { return scatter(g, a, b, root, s..., call.options); });
}

nb::object all_to_all_of(Group& g, nb::handle x, nb::handle out, std::optional<Counts> send_counts,
                         std::optional<Counts> recv_counts, OptionalStream stream, Name algorithm) {
  if (send_counts.has_value() != recv_counts.has_value())
    throw nb::value_error("all_to_all: send_counts and recv_counts are passed both or not at all");
  Pair p(x, out);
  const CView a = p.in();
  const View b = p.out();
  const Call call({}, algorithm);
  return submit(std::move(p.arrays), std::move(p.result), stream, [&](auto&&... s) {
    return send_counts ? all_to_all_v(g, a, b, *send_counts, *recv_counts, s..., call.options)
                       : all_to_all(g, a, b, s..., call.options);
  });
}

}  // namespace

void bind_operations(nb::class_<Group>& group) {
  const auto none = nb::none();
  group
      .def("all_reduce", &all_reduce_of, "x"_a, "out"_a = none, "op"_a = "sum", nb::kw_only(),
           "stream"_a = none, "numerics"_a = none, "algorithm"_a = none,
           "Reduces elementwise over all ranks: out[i] = x of rank 0 [i] (+) ... (+) x of the last\n"
           "rank [i].\n\n"
           "x, out: arrays with the same number of elements and type; without `out`, the operation\n"
           "works in place, in x. op: 'sum', 'prod', 'max', 'min', 'avg', premul(factor), and for\n"
           "integers 'band', 'bor', 'bxor', 'land', 'lor', 'lxor'. Returns out (or x); with a stream, a\n"
           "Work at once.")
      .def("reduce", &reduce_of, "x"_a, "out"_a = none, "root"_a = 0, "op"_a = "sum", nb::kw_only(),
           "stream"_a = none, "numerics"_a = none, "algorithm"_a = none,
           "As all_reduce, but only `root` receives the result; `out` is ignored on the other ranks.\n"
           "Without `out`, the result is in root's x.")
      .def("broadcast", &broadcast_of, "x"_a, "root"_a = 0, nb::kw_only(), "stream"_a = none,
           "algorithm"_a = none,
           "Copies root's x into x of every rank. Returns x; with a stream, a Work at once.")
      .def("all_gather", &all_gather_of, "x"_a, "out"_a, "counts"_a = none, nb::kw_only(), "stream"_a = none,
           "algorithm"_a = none,
           "Gathers the x of all ranks on every rank: block r of out is x of rank r. out has as many\n"
           "elements as the x of all ranks together.\n\n"
           "counts: list with the number of elements of each block, if they differ; the same on all\n"
           "ranks. x may be the caller's block of out. Returns out; with a stream, a Work at once.")
      .def("reduce_scatter", &reduce_scatter_of, "x"_a, "out"_a, "op"_a = "sum", "counts"_a = none,
           nb::kw_only(), "stream"_a = none, "numerics"_a = none, "algorithm"_a = none,
           "Reduces x over all ranks and scatters the result: out on rank r is block r of the reduction.\n"
           "x has as many elements as the out of all ranks together.\n\n"
           "op: as in all_reduce. counts: list with the number of elements of each block, if they\n"
           "differ; the same on all ranks. out may be the caller's block of x. Returns out; with a\n"
           "stream, a Work at once.")
      .def("gather", &gather_of, "x"_a, "out"_a.none() = none, "root"_a = 0, nb::kw_only(), "stream"_a = none,
           "algorithm"_a = none,
           "Gathers the x of all ranks on `root`: block r of root's out, which has size times the\n"
           "elements of x, is x of rank r. out is ignored on the other ranks, where it may be None.\n"
           "Returns out; with a stream, a Work at once.")
      .def("scatter", &scatter_of, "x"_a.none(), "out"_a, "root"_a = 0, nb::kw_only(), "stream"_a = none,
           "algorithm"_a = none,
           "Scatters root's x, which has size times the elements of out: out on rank r is block r of\n"
           "it. x is ignored on the other ranks, where it may be None. Returns out; with a stream, a\n"
           "Work at once.")
      .def("all_to_all", &all_to_all_of, "x"_a, "out"_a, "send_counts"_a = none, "recv_counts"_a = none,
           nb::kw_only(), "stream"_a = none, "algorithm"_a = none,
           "Exchanges blocks: block j of x goes to rank j, and block i of out comes from rank i. Returns\n"
           "out; with a stream, a Work at once.\n\n"
           "send_counts, recv_counts: the numbers of elements of the blocks of x and of out, if they\n"
           "differ; pass both or neither (ValueError). MismatchError: the counts of a pair of ranks\n"
           "disagree. Without them, x and out have the same number of elements, a multiple of the\n"
           "group's size.")
      .def(
          "barrier",
          [](Group& g, OptionalStream stream) {
            return submit({}, nb::none(), stream, [&](auto&&... s) { return barrier(g, s...); });
          },
          nb::kw_only(), "stream"_a = none,
          "Returns on each rank after all ranks have entered. With a stream, returns a Work at once.");
}

}  // namespace ouro::python
