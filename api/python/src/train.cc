// Topologies of decentralised training, and mixing with neighbours.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "api/python/src/submit.h"
#include "ouro/train/topology.hpp"

namespace ouro::python {
namespace {

using namespace nb::literals;
using train::Row;
using train::Topology;

Topology make_topology(const std::string& name, int n, int local_world_size, int peers, int rows) {
  return value_of(
      Topology::make(name, n, {.local_world_size = local_world_size, .peers = peers, .rows = rows}));
}

using Matrix = std::vector<std::vector<double>>;
constexpr auto kMatrices =
    "A matrix for each round, as an array or nested lists of rounds, rows, columns: row i is what rank i "
    "takes "
    "from each\n"
    "rank. Each row and each column sums to 1. InvalidError names the round and the row or column.";

Topology from_matrices(const std::vector<Matrix>& rounds) {
  const std::size_t n = rounds.empty() ? 0 : rounds.front().size();
  std::vector<double> flat;
  for (const Matrix& w : rounds) {
    if (w.size() != n) throw nb::value_error("matrices: rounds differ in their number of rows");
    for (const auto& row : w) {
      if (row.size() != n) throw nb::value_error("matrices: as many columns as rows are expected");
      flat.insert(flat.end(), row.begin(), row.end());
    }
  }
  return value_of(Topology::from_matrices(static_cast<int>(n), flat));
}

using Rounds = std::vector<std::vector<std::pair<std::vector<int>, std::optional<double>>>>;
Topology from_rounds(int n, Rounds given) {
  std::vector<train::Round> rounds;
  for (auto& round : given) {
    rounds.emplace_back();
    for (auto& [ranks, weight] : round) {
      std::sort(ranks.begin(), ranks.end());
      const double alike = 1 / static_cast<double>(std::max<std::size_t>(ranks.size(), 1));
      rounds.back().push_back({std::move(ranks), weight.value_or(alike)});
    }
  }
  return value_of(Topology::from_rounds(n, std::move(rounds)));
}

nb::object mix_of(Group& g, const Row& row, nb::handle x, nb::handle out, OptionalStream stream) {
  const bool in_place = out.is_none() || out.is(x);
  Arrays arrays;
  arrays.emplace_back(x, "x", in_place);
  if (!in_place) arrays.emplace_back(out, "out", true);
  const CView a = arrays.front().cview();
  const View b = arrays.back().view();
  return submit(std::move(arrays), nb::borrow(out.is_none() ? x : out), stream,
                [&](auto&&... s) { return train::mix(g, row, a, b, s...); });
}

double push_sum_of(Group& g, const Row& row, nb::handle x, double weight) {
  const Array array(x, "x", true);
  Status s;
  {
    Waiting waiting;
    s = train::push_sum(g, row, array.cview(), array.view(), weight);
  }
  check_interrupted(s);
  return weight;
}

}  // namespace

void bind_training(nb::module_& m, nb::class_<Group>& group) {
  nb::class_<Row>(m, "Row", "One row of a mixing matrix, and who needs my value.")
      .def(
          "__init__",
          [](Row* self, double own, std::vector<std::pair<int, double>> in, std::vector<int> out) {
            new (self) Row{own, std::move(in), std::move(out)};
          },
          "own"_a, "sources"_a, "targets"_a)
      .def_ro("own", &Row::self, "Weight of this rank's own value.")
      .def_ro("sources", &Row::in, "(rank, weight) of those whose values are added, sorted.")
      .def_ro("targets", &Row::out, "Ranks that add this rank's value, sorted.");
  nb::class_<Topology>(
      m, "Topology",
      "Who averages with whom in which round: by name, of topologies(), for n ranks.\n\n"
      "local_world_size: ranks of a node; peers: messages of a rank in a round, at most; rows: of a grid.")
      .def(
          "__init__",
          [](Topology* self, const std::string& name, int n, int local_world_size, int peers, int rows) {
            new (self) Topology(make_topology(name, n, local_world_size, peers, rows));
          },
          "name"_a, "n"_a, nb::kw_only(), "local_world_size"_a = 1, "peers"_a = 1, "rows"_a = 0)
      .def_static("from_matrices", &from_matrices, "matrices"_a, kMatrices)
      .def_static(
          "from_matrices", [](const Matrix& w) { return from_matrices({w}); }, "matrix"_a,
          "The same with one round.")
      .def_static(
          "from_rounds", &from_rounds, "n"_a, "rounds"_a,
          "For n ranks, of rounds as lists of (ranks, weight): these ranks average among themselves, and "
          "each keeps\n"
          "the share `weight` of its own, None: all count alike. In a round each rank is in one of them.")
      .def_prop_ro("size", &Topology::size, "Number of ranks.")
      .def_prop_ro("period", &Topology::period, "Number of rounds; that of step s is s modulo the period.")
      .def_prop_ro("vectors", &Topology::vectors, "How many vectors a rank keeps, 1 or 2.")
      .def("row", &Topology::row, "step"_a, "rank"_a, "What a rank does in a step, for Group.mix.")
      .def(
          "matrix",
          [](const Topology& t, std::int64_t step) {
            const std::vector<double> flat = t.matrix(step);
            const auto n = static_cast<std::size_t>(t.size());
            std::vector<std::vector<double>> out;
            for (std::size_t r = 0; r < n; ++r)
              out.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(r * n),
                               flat.begin() + static_cast<std::ptrdiff_t>((r + 1) * n));
            return out;
          },
          "step"_a, "The mixing matrix of a step: row i is what rank i takes from each rank.")
      .def(
          "edge",
          [](const Topology& t, std::int64_t step, int rank) {
            train::Edge e = value_of(t.edge(step, rank));
            return std::pair(std::move(e.ranks), e.weight);
          },
          "step"_a, "rank"_a,
          "(ranks, weight) with whom a rank averages in a step, as of from_rounds. UnsupportedError where a "
          "round is not\n"
          "made of these.")
      .def("contraction", &Topology::contraction,
           "How much of the ranks' differences one period leaves: 0 none, below 1 less. Cost: n^3.");
  m.def(
      "topologies",
      [] {
        nb::dict out;
        for (const train::TopologyInfo& t : train::topologies()) out[nb::str(t.name.c_str())] = t.about;
        return out;
      },
      "Names that Topology accepts, with a line about each.");
  group
      .def("mix", &mix_of, "row"_a, "x"_a, "out"_a = nb::none(), nb::kw_only(), "stream"_a = nb::none(),
           "out = row.own * x + the sum of weight * x of each source; in place without `out`. Collective; "
           "the rows of the\n"
           "ranks belong together, as those of a Topology do. x: half, bfloat16, float or double, on the "
           "host.")
      .def("push_sum", &push_sum_of, "row"_a, "x"_a, "weight"_a,
           "For rows of which only the columns sum to 1: mixes x, in place, and this rank's weight (1 at "
           "first) alike.\n"
           "Returns the new weight; what a rank believes the mean to be is x / weight.");
}

}  // namespace ouro::python
